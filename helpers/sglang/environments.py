"""Where real SGLang releases are found: in the cache that `python -m helpers sglang build` fills, or in a Python of the user's.

    $NVFP4_CACHE (default ~/.cache/nvfp4-moe-validation)/sglang/
        base/                  a virtual environment with torch and what SGLang imports, without SGLang
        transformers-5.12.1/   one folder for each pin, shared between the releases that have it
        release-0.5.16/        the release's wheel, unpacked
        flashinfer-0.6.14/     the kernel packages the release pins, for the question how it loads weights; shared between releases
        cutlass-dsl-4.6.0/

A folder counts only when it has its marker file, which is written last, before the folder gets its name.
SGLANG_PYTHON=/path/to/python, or an sglang importable in this Python, is used as it is and nothing is built for it.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from helpers.errors import InputError, UsageError

MARKER = "built.json"

# What the questions read of the asker's environment; everything else of SGLang's and Python's is left out of a worker's.
_LEFT_OUT = ("SGLANG_", "SGL_", "PYTHON", "VIRTUAL_ENV", "CONDA_")


@dataclass(frozen=True)
class Environment:
    """A Python that can import one SGLang release.

    path: folders to put first on its path. transformers: the release's own pin (None: not known). origin: "cache", or how the
    user's own installation was found.
    """

    release: str
    python: str
    path: tuple[str, ...]
    transformers: str | None
    origin: str

    @property
    def can_load(self) -> bool:
        """Is it built with what loading needs? Of the user's own installation nobody knows before it is asked."""
        return self.origin != "cache" or bool(_kernels(self.release))

    def with_kernels(self) -> "Environment":
        """The same with FlashInfer and the CuTe DSL first on its path. UsageError says how to build them; the user's own has its own."""
        if self.origin != "cache":
            return self
        kernels = _kernels(self.release)
        if not kernels:
            build = f"python -m helpers sglang build {self.release} --load"
            raise UsageError(f"sglang {self.release} is built without FlashInfer, which loading needs: {build}")
        return replace(self, path=kernels + self.path)

    def variables(self) -> dict[str, str]:
        """The environment variables of a worker: no hub, no GPU (SGLang imports as on a CPU machine), none of SGLang's own."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
        return inherited | {
            "PYTHONPATH": os.pathsep.join(self.path),
            "PYTHONNOUSERSITE": "1",
            "PYTHONHASHSEED": "0",  # the order of a set reaches error texts
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def note(self, transformers: str) -> str:
        """Says so when the worker runs under another transformers than the release pins; "" otherwise."""
        if self.transformers in (None, transformers):
            return ""
        return f"answered under transformers {transformers}, and sglang {self.release} pins {self.transformers}"


def home() -> Path:
    """The folder that holds everything built, $NVFP4_CACHE/sglang."""
    return Path(os.environ.get("NVFP4_CACHE") or Path.home() / ".cache" / "nvfp4-moe-validation") / "sglang"


def marker(folder: Path) -> dict | None:
    """What the builder wrote when it finished the folder; None when it did not finish, or never began."""
    try:
        return json.loads((folder / MARKER).read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None


def base_folder() -> Path:
    return home() / "base"


def release_folder(release: str) -> Path:
    return home() / f"release-{release}"


def transformers_folder(pin: str) -> Path:
    return home() / f"transformers-{pin}"


# A kernel package that a release pins: the folder of a pin is called so, and holds the distribution.
KERNELS = {"flashinfer": "flashinfer-python", "cutlass-dsl": "nvidia-cutlass-dsl"}


def kernel_folder(name: str, pin: str) -> Path:
    return home() / f"{name}-{pin}"


def requirements(folder: Path) -> list[str]:
    """What the distributions unpacked in a folder require, as their metadata write it."""
    metadata = (HeaderParser().parsestr(file.read_text()) for file in sorted(folder.glob("*.dist-info/METADATA")))
    return [requirement for one in metadata for requirement in one.get_all("Requires-Dist") or []]


def pinned(folder: Path, distribution: str) -> str | None:
    """The version that the distributions in `folder` require of another, with == and without a condition; None: they pin none."""
    name = re.sub("[-_]", "[-_]", distribution)
    pins = (re.fullmatch(rf"{name}(?:\[[\w,]*\])?\s*==\s*([\w.]+)", line) for line in requirements(folder))
    return next((pin[1] for pin in pins if pin), None)


def kernel_pins(release: str) -> dict[str, str | None]:
    """The version of each of KERNELS that a built release pins."""
    return {name: pinned(release_folder(release), distribution) for name, distribution in KERNELS.items()}


def _kernels(release: str) -> tuple[str, ...]:
    """The folders of the kernel packages that a built release pins; empty unless all are there."""
    folders = [kernel_folder(name, pin) for name, pin in kernel_pins(release).items() if pin is not None]
    if len(folders) < len(KERNELS) or any(marker(folder) is None for folder in folders):
        return ()
    # The CuTe DSL keeps the package `cutlass` one level lower and finds it through a .pth file, which a folder on PYTHONPATH has no use of.
    lower = [path for folder in folders for path in sorted(folder.glob("nvidia_cutlass_dsl/*_packages"))]
    return tuple(map(str, folders + lower))


def environments() -> dict[str, Environment]:
    """Every release that can be asked now, by version: those built in the cache, and the user's own installation."""
    found = {}
    if marker(base_folder()) is not None:
        for folder in sorted(home().glob("release-*")):
            built = marker(folder)
            if built is not None and marker(transformers_folder(built["transformers"])) is not None:
                path = (str(transformers_folder(built["transformers"])), str(folder))
                python = str(base_folder() / "bin" / "python")
                found[built["sglang"]] = Environment(built["sglang"], python, path, built["transformers"], "cache")
    own = installed()
    if own is not None:
        found[own.release] = own
    return found


def environment(release: str) -> Environment:
    """The environment of one release; UsageError says how to build it."""
    found = environments()
    if release not in found:
        there = f"there is {', '.join(sorted(found))}" if found else "none is built"
        raise UsageError(f'no environment for sglang {release} ({there}): make sglang RELEASES="{release}"')
    return found[release]


def installed() -> Environment | None:
    """The user's own installation: $SGLANG_PYTHON, else an sglang in this Python. InputError when $SGLANG_PYTHON has none."""
    python = os.environ.get("SGLANG_PYTHON")
    if python:
        return Environment(_version_in(python), python, (), None, "SGLANG_PYTHON")
    try:
        return Environment(version("sglang"), sys.executable, (), None, "this Python")
    except PackageNotFoundError:
        return None


@cache
def _version_in(python: str) -> str:
    """The sglang version that a Python has, from its metadata (nothing is imported)."""
    try:
        asked = subprocess.run(
            [python, "-c", "import importlib.metadata as m; print(m.version('sglang'))"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"SGLANG_PYTHON={python} does not run ({error}): name a Python interpreter that has sglang") from None
    if asked.returncode != 0:
        raise InputError(f"SGLANG_PYTHON={python} has no sglang: install it there (pip install sglang), or unset SGLANG_PYTHON")
    return asked.stdout.strip()
