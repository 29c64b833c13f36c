"""The GPUs a deployment can be judged for (data/gpus.toml): compute capability and memory, which SGLang's rules read."""

import tomllib
from dataclasses import dataclass

from helpers.errors import unknown
from helpers.paths import DATA


@dataclass(frozen=True)
class Gpu:
    """key: how the suite calls it. name: how the driver does. capability: CUDA compute capability. memory_mib: as nvidia-smi says."""

    key: str
    name: str
    capability: tuple[int, int]
    memory_mib: int
    aliases: tuple[str, ...] = ()

    @property
    def arch(self) -> str:
        """The compiler's name, e.g. ``sm_100``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    @property
    def is_sm90(self) -> bool:
        """Hopper: SGLang's ``is_sm90_supported``."""
        return self.capability[0] == 9

    @property
    def is_sm100(self) -> bool:
        """Data-centre Blackwell, sm_100 and sm_103: SGLang's ``is_sm100_supported`` (the capability's major number is 10)."""
        return self.capability[0] == 10

    @property
    def is_sm120(self) -> bool:
        """Workstation Blackwell, sm_120 and sm_121: SGLang's ``is_sm120_supported``."""
        return self.capability[0] == 12

    @property
    def is_blackwell(self) -> bool:
        """SGLang's ``is_blackwell_supported``: both families."""
        return self.is_sm100 or self.is_sm120

    def __str__(self) -> str:
        return self.key


def _read() -> tuple[Gpu, ...]:
    table = tomllib.loads((DATA / "gpus.toml").read_text())
    return tuple(
        Gpu(key, entry["name"], tuple(entry["capability"]), entry["memory_mib"], tuple(entry.get("aliases", ())))
        for key, entry in table.items()
    )


GPUS = _read()
_BY_NAME = {name.lower(): entry for entry in GPUS for name in (entry.key, *entry.aliases)}
DEFAULT_GPU = _BY_NAME["b200"]


def gpu(name: str) -> Gpu:
    """The GPU of that key or alias, whatever its case (``"B200"``, ``"sm_100"``); UsageError with the nearest names otherwise."""
    found = _BY_NAME.get(name.lower())
    if found is None:
        raise unknown("GPU", name, [known for entry in GPUS for known in (entry.key, *entry.aliases)])
    return found
