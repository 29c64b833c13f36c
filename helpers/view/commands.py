"""Commands to paste: the server launch that a deployment describes, and this suite's own question about it."""

import shlex
from dataclasses import fields

from helpers.checkpoint import Checkpoint
from helpers.deployment import Deployment
from helpers.deployment.flags import flags
from helpers.deployment.launch import FIELDS
from helpers.paths import ROOT

_OWN_FLAGS = ("runner", "a2a", "quantization", "tp", "ep", "dp")


def model_path(checkpoint: Checkpoint, asked: str) -> str:
    """What ``--model-path`` must say: the folder as it was asked for, a bundled one from the repository's root, else the hub's name."""
    if checkpoint.path is None:
        return asked.replace("--", "/", 1)
    return str(checkpoint.path.relative_to(ROOT)) if checkpoint.path.is_relative_to(ROOT) else asked


def launch_command(model: str, deployed: Deployment) -> str:
    """``python -m sglang.launch_server …`` in the release's own flags, its environment variables in front, one flag a line.

    Only what differs from the defaults is written. ``parse_launch`` reads it back into the same deployment.
    """
    before = [f"{name}={shlex.quote(value)}" for name, value in deployed.env]
    command = " ".join([*before, "python -m sglang.launch_server"])
    return " \\\n  ".join([command, f"--model-path {shlex.quote(model)}", *_arguments(deployed)])


def _arguments(deployed: Deployment) -> list[str]:
    default = {entry.name: entry.default for entry in fields(Deployment)}
    written = []
    for dest, name in FIELDS.items():
        value = getattr(deployed, name)
        flag = next((text for text, known in flags(deployed.release).items() if known.dest == dest and _plain(text, dest)), None)
        if name == "model" or flag is None or value == default[name] or any(name == done for done, _ in written):
            continue
        written.append((name, flag if value is True else f"{flag} {shlex.quote(str(value))}"))
    return [text for _, text in written]


def _plain(flag: str, dest: str) -> bool:
    """Is it the flag's own long name, not an alias?"""
    return flag == "--" + dest.replace("_", "-")


def preflight_command(checkpoint: str, deployed: Deployment) -> str:
    """The same question in a terminal. Values that preflight has no flag for go through ``--launch``."""
    plain = all(
        entry.name in ("release", "gpu", "env", *_OWN_FLAGS) or getattr(deployed, entry.name) == entry.default
        for entry in fields(Deployment)
        if entry.compare
    )
    command = ["python -m helpers preflight", shlex.quote(checkpoint), f"--sglang {deployed.release}", f"--gpu {deployed.gpu}"]
    if not plain:
        return " ".join([*command, "--launch", shlex.quote(launch_command(checkpoint, deployed).replace(" \\\n ", ""))])
    default = Deployment()
    for name in _OWN_FLAGS:
        if getattr(deployed, name) != getattr(default, name):
            command.append(f"--{name} {shlex.quote(str(getattr(deployed, name)))}")
    return " ".join([*command, *(f"--env {shlex.quote(f'{name}={value}')}" for name, value in deployed.env)])
