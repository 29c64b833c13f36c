"""Each release's own command line flags (data/flags.json, written by helpers.deployment.record from the release's parser)."""

import json
from dataclasses import dataclass
from functools import cache

from helpers.deployment.releases import Release
from helpers.errors import UsageError, unknown
from helpers.paths import DATA


@dataclass(frozen=True)
class Flag:
    """dest: the field of SGLang's ServerArgs it fills. takes: "one", "none", "many" or "optional" values. choices: or () for any."""

    dest: str
    takes: str
    choices: tuple[str, ...]


@cache
def _table() -> dict[str, list[dict]]:
    return json.loads((DATA / "flags.json").read_text())


@cache
def flags(release: Release) -> dict[str, Flag]:
    """Every flag the release knows, by name (``--tp-size``), aliases included."""
    return {
        name: Flag(shape["dest"], shape["takes"], tuple(shape.get("choices", ())))
        for name, shapes in _table().items()
        for shape in shapes
        if release.at_least(shape["first"]) and (release.version == shape["last"] or not release.at_least(shape["last"]))
    }


@cache
def choices(release: Release, dest: str) -> tuple[str, ...]:
    """The values a flag accepts in this release, e.g. ``choices(release, "moe_runner_backend")``."""
    return next((flag.choices for flag in flags(release).values() if flag.dest == dest), ())


def runners(release: Release) -> tuple[str, ...]:
    """The MoE runners that ``--moe-runner-backend`` accepts in this release."""
    return choices(release, "moe_runner_backend")


def a2a_backends(release: Release) -> tuple[str, ...]:
    """The all-to-all backends that ``--moe-a2a-backend`` accepts in this release."""
    return choices(release, "moe_a2a_backend")


def quantizations(release: Release) -> tuple[str, ...]:
    """The names that ``--quantization`` accepts in this release."""
    return choices(release, "quantization")


def deepep_modes(release: Release) -> tuple[str, ...]:
    """The modes that ``--deepep-mode`` accepts in this release."""
    return choices(release, "deepep_mode")


def dispatch_types(release: Release) -> tuple[str, ...]:
    """The values that ``--flashinfer-a2a-dispatch-type`` accepts in this release; none before 0.5.20."""
    return choices(release, "flashinfer_a2a_dispatch_type")


def find(release: Release, given: str) -> tuple[str, Flag]:
    """The flag behind what was typed: its full name, or a prefix that only one flag has (argparse allows those).

    UsageError for a flag this release does not know (names the releases that do, else the nearest flags) or an ambiguous prefix.
    """
    known = flags(release)
    if given in known:
        return given, known[given]
    longer = [name for name in known if name.startswith(given)] if given.startswith("--") else []
    if len({known[name] for name in longer}) == 1:
        return longer[0], known[longer[0]]
    if longer:
        raise UsageError(f"{given} could be {', '.join(longer)} in SGLang {release}: write it out")
    if given in _table():
        spans = ", ".join(f"{shape['first']} to {shape['last']}" for shape in _table()[given])
        raise UsageError(f"SGLang {release} has no flag {given}: it exists in {spans}")
    raise unknown(f"flag of SGLang {release}", given, known)
