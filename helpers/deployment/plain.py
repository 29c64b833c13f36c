"""From the plain values that the command line and the notebooks hold to a Deployment."""

import re
from collections.abc import Mapping

from helpers.deployment.deployment import Deployment, checked
from helpers.deployment.gpus import gpu as find_gpu
from helpers.deployment.launch import parse_launch
from helpers.deployment.releases import release
from helpers.errors import UsageError


def deployment(
    *,
    sglang: str = "0.5.23",
    runner: str = "auto",
    a2a: str = "none",
    quantization: str = "",
    tp: int = 1,
    ep: int = 1,
    dp: int = 1,
    gpu: str = "B200",
    env: str | Mapping[str, str] = "",
    launch: str = "",
    **more,
) -> Deployment:
    """The deployment that plain values describe; names and defaults are the notebooks' parameters.

    quantization "": no flag. env: "K=V,K=V" or a mapping. launch: the user's own command line (or @FILE), which replaces the
    flags. more: any further field of Deployment. UsageError, with the nearest known names, for what the release does not know; a
    combination that SGLang itself judges (ep that does not divide tp) is not an error here.
    """
    flags = {"runner": runner, "a2a": a2a, "quantization": quantization, "tp": tp, "ep": ep, "dp": dp}
    pairs = _environment(env)
    if launch:
        beside = [name for name, value in flags.items() if value != deployment.__kwdefaults__[name]] + list(more)
        if beside:
            raise UsageError(f"{', '.join(beside)} given beside launch: put it into the launch command")
        return parse_launch(launch, release(sglang), find_gpu(gpu), env=pairs)
    return checked(release(sglang), find_gpu(gpu), tuple(sorted(pairs.items())), **flags | {"quantization": quantization or None}, **more)


def _environment(env: str | Mapping[str, str]) -> dict[str, str]:
    if isinstance(env, Mapping):
        return dict(env)
    pairs = {}
    for entry in filter(None, (part.strip() for part in env.split(","))):
        name, equals, value = entry.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UsageError(f"environment variable {entry!r}: write NAME=VALUE, several separated by commas")
        pairs[name] = value
    return pairs
