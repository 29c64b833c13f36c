"""The SGLang releases the suite knows: calendar, order and pins (data/releases.toml)."""

import tomllib
from dataclasses import dataclass

from helpers.errors import unknown
from helpers.paths import DATA


@dataclass(frozen=True, order=True)
class Release:
    """One SGLang release. Releases compare by age: ``release("0.5.15") < release("0.5.16")``.

    date: on PyPI, ISO. transformers, torch, flashinfer, cutlass_dsl, sgl_kernel: the versions its wheel pins.
    """

    position: int
    version: str
    date: str
    transformers: str
    torch: str
    flashinfer: str
    cutlass_dsl: str
    sgl_kernel: str

    def at_least(self, version: str) -> bool:
        """Is this release ``version`` or newer? How every rule of the model says when it began to hold."""
        return self.position >= _POSITION[version]

    def __str__(self) -> str:
        return self.version


def _read() -> tuple[Release, ...]:
    entries = tomllib.loads((DATA / "releases.toml").read_text())["release"]
    return tuple(Release(position, **(entry | {"date": entry["date"].isoformat()})) for position, entry in enumerate(entries))


RELEASES = _read()
DEFAULT_RELEASE = RELEASES[-1]
_POSITION = {entry.version: entry.position for entry in RELEASES}


def release(version: str) -> Release:
    """The release of that number, e.g. ``release("0.5.16")``; UsageError with the nearest known ones otherwise."""
    if version not in _POSITION:
        raise unknown("SGLang release", version, _POSITION)
    return RELEASES[_POSITION[version]]
