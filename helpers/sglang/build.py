"""Builds the environments of real SGLang releases: a base once, each release's wheel, and each pin once: transformers, kernel packages.

How a folder is built, so that nothing half built is used: building.py.
"""

import difflib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from helpers.deployment import RELEASES
from helpers.errors import InputError, UsageError, unknown
from helpers.sglang.building import GB, last_line, make_venv, mark, needs, new_folder, one_build_at_a_time, pip, pip_failed
from helpers.sglang.environments import (
    KERNELS,
    base_folder,
    home,
    kernel_folder,
    kernel_pins,
    marker,
    pinned,
    release_folder,
    requirements,
    transformers_folder,
)

KNOWN = [release.version for release in RELEASES]
DEFAULT_RELEASES = ("0.5.15", "0.5.16", "0.5.23")

# SGLang imports torchvision, and torch of this age imports every release from 0.5.11 to 0.5.23. NVFP4_TORCH replaces the line, for
# instance by a CPU build: "torch==2.14.1 torchvision==0.29.1 --index-url https://…/cpu".
TORCH = "torch==2.14.1 torchvision==0.29.1"

# What a release imports before it has resolved its arguments, without the kernel packages. outlines: later ones renamed what is imported.
PACKAGES = (
    "numpy msgspec orjson psutil pyzmq requests setproctitle pybase64 pillow pydantic fastapi uvicorn uvloop prometheus_client "
    "packaging compressed-tensors triton ipython aiohttp dill einops datasets blobfile distro interegular partial_json_parser "
    "sentencepiece tiktoken scipy tqdm gguf watchfiles python-multipart xxhash zstandard openai llguidance xgrammar openai-harmony "
    "anthropic mistral_common outlines==0.1.11 modelscope"
)

# Folders of a wheel that neither question imports.
NOT_UNPACKED = ("sglang/multimodal_gen/", "sglang/test/", "sglang/benchmark/", "sglang/eval/", "sglang/srt/rust_extensions/")

# What FlashInfer imports and the base has not. Its own requirements would bring another torch and kernels that never run here.
BESIDE = {"flashinfer": ("tabulate", "nvidia-ml-py", "ninja"), "cutlass-dsl": ()}
# Sources and archives of kernels, which are only compiled for a GPU: up to 360 MB of FlashInfer.
NOT_KEPT = {"flashinfer": ("flashinfer/data",), "cutlass-dsl": ()}

SPACE = {
    "base": 9 * GB,
    "transformers": GB // 2,
    "release": GB // 2,
    "kernels": 3 * GB // 2,
}  # while building; base ends at 6.5 GB, a release at 30 to 100 MB


def build(releases: Iterable[str], say: Callable[[str], None] = print, load: bool = False) -> None:
    """Builds what is missing for these releases. UsageError or InputError in one line when that cannot be done.

    load: with the kernel packages they pin, which the question how a release loads weights needs. DEFAULT_RELEASES always get them.
    """
    releases = list(dict.fromkeys(releases)) or list(DEFAULT_RELEASES)
    for release in releases:
        if not re.fullmatch(r"\d+\.\d+\.\d+(\.post\d+|rc\d+)?", release):
            raise UsageError(f"{release!r} is no release number: write it like 0.5.16 or 0.5.15.post1")
        if release not in KNOWN and _numbers(release) <= _numbers(KNOWN[-1]):  # a newer one is tried on the index
            raise unknown("SGLang release", release, KNOWN)
    with one_build_at_a_time(say):
        if marker(base_folder()) is None:
            needs(SPACE["base"], "the base environment")
            say(f"base environment: {_torch()} and {len(PACKAGES.split())} packages (about 3 minutes, 6.5 GB) …")
            with new_folder(base_folder(), say) as folder:
                _make_base(folder)
        for number, release in enumerate(releases, 1):
            built = marker(release_folder(release))
            if built is None:
                needs(SPACE["release"], f"sglang {release}")
                say(f"[{number}/{len(releases)}] sglang {release}: its wheel …")
                with new_folder(release_folder(release), say) as folder:
                    built = _make_release(folder, release)
            pin = built["transformers"]
            if marker(transformers_folder(pin)) is None:
                needs(SPACE["transformers"], f"transformers {pin}")
                say(f"[{number}/{len(releases)}] transformers {pin}, which sglang {release} pins …")
                with new_folder(transformers_folder(pin), say) as folder:
                    _make_transformers(folder, pin)
            if load or release in DEFAULT_RELEASES:
                _build_kernels(release, f"[{number}/{len(releases)}]", say)
            say(f"[{number}/{len(releases)}] sglang {release}: ready (transformers {pin})")


def _build_kernels(release: str, which: str, say):
    for name, pin in kernel_pins(release).items():
        if pin is None:
            raise InputError(f"sglang {release} pins no {KERNELS[name]}; this builder knows releases that do")
        if marker(kernel_folder(name, pin)) is None:
            needs(SPACE["kernels"], f"{name} {pin}")
            say(f"{which} {name} {pin}, which sglang {release} pins …")
            with new_folder(kernel_folder(name, pin), say) as folder:
                _make_kernels(folder, name, pin)


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


def _torch() -> str:
    return os.environ.get("NVFP4_TORCH") or TORCH


def _make_base(folder: Path):
    python = make_venv(folder)
    pip(python, "install", *shlex.split(_torch()), what=_torch())
    pip(python, "install", *PACKAGES.split(), what="the packages SGLang imports")
    facts = subprocess.run(
        [python, "-c", "import platform, torch, torchvision; print(platform.python_version(), torch.__version__, torchvision.__version__)"],
        capture_output=True,
        text=True,
    )
    if facts.returncode != 0:
        raise InputError(f"{_torch()} was installed and does not import: {last_line(facts.stderr)}; set NVFP4_TORCH to another build")
    mark(folder, **dict(zip(("python", "torch", "torchvision"), facts.stdout.split(), strict=True)))


def _make_transformers(folder: Path, pin: str):
    pip(_base_python(), "install", "--target", str(folder), f"transformers=={pin}", what=f"transformers=={pin}")
    mark(folder, transformers=pin)


def _make_kernels(folder: Path, name: str, pin: str):
    """The distribution and the parts of it that it pins to its own version, without what else they require."""
    wanted = [f"{KERNELS[name]}=={pin}", *BESIDE[name]]
    while wanted:
        with tempfile.TemporaryDirectory(dir=home(), suffix=".building") as part:  # pip would not add to a folder that is there
            pip(_base_python(), "install", "--no-deps", "--no-compile", "--target", part, *wanted, what=wanted[0])
            shutil.copytree(part, folder, dirs_exist_ok=True)
        there = {_distribution(path.name) for path in folder.glob("*.dist-info")}
        parts = {line.split("==")[0].strip() for line in requirements(folder) if line.startswith(KERNELS[name]) and ";" not in line}
        wanted = [f"{part}=={pin}" for part in sorted(parts) if part not in there and pinned(folder, part) == pin]
    for path in NOT_KEPT[name]:
        shutil.rmtree(folder / path, ignore_errors=True)
    mark(folder, **{name: pin})


def _distribution(folder: str) -> str:
    """nvidia-cutlass-dsl of nvidia_cutlass_dsl-4.6.0.dist-info."""
    return folder.split("-")[0].replace("_", "-")


def _make_release(folder: Path, release: str) -> dict:
    with tempfile.TemporaryDirectory(dir=home(), suffix=".building") as downloads:
        wheel = _download(release, Path(downloads))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if not name.startswith(NOT_UNPACKED)])
    pin = pinned(folder, "transformers")
    if pin is None:
        raise InputError(f"{wheel.name} pins no transformers version; this builder knows releases that do")
    mark(folder, sglang=release, transformers=pin, wheel=wheel.name)
    return marker(folder)


def _base_python() -> str:
    return str(base_folder() / "bin" / "python")


def _download(release: str, folder: Path) -> Path:
    """The release's wheel for the base environment's Python. Never a source archive: nothing is compiled or run here."""
    wheel_only = ("download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder))
    asked = subprocess.run(
        [_base_python(), "-m", "pip", "--disable-pip-version-check", *wheel_only, f"sglang=={release}"], capture_output=True, text=True
    )
    if asked.returncode == 0:
        return next(folder.glob("*.whl"))
    output = asked.stdout + asked.stderr
    listed = re.search(r"\(from versions: ([^)]*)\)", output)
    if listed is None or listed[1] == "none":
        raise pip_failed(output, f"sglang {release}")
    raise _no_wheel(release, listed[1].split(", "))


def _no_wheel(release: str, known: list[str]) -> UsageError:
    """Why the index has no wheel of the release for this Python: another Python has one, or there is no such release."""
    python = marker(base_folder())["python"].rsplit(".", 1)[0]
    others = [minor for minor in ("3.10", "3.11", "3.12", "3.13", "3.14") if minor != python and release in _versions_for(minor)]
    if others:
        return UsageError(
            f"sglang {release} has wheels for Python {', '.join(others)} and the base environment is Python {python}: "
            f"remove {base_folder()} and build with NVFP4_PYTHON=/path/to/python{others[-1]}"
        )
    near = difflib.get_close_matches(release, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the newest is {known[-1]}"
    return UsageError(f"there is no sglang {release} on the package index: {hint}")


def _versions_for(minor: str) -> list[str]:
    """The releases with a wheel for that Python."""
    arguments = ("index", "versions", "sglang", "--python-version", minor, "--only-binary", ":all:")
    asked = subprocess.run([_base_python(), "-m", "pip", "--disable-pip-version-check", *arguments], capture_output=True, text=True)
    found = re.search(r"Available versions: (.*)", asked.stdout)
    return found[1].split(", ") if found else []
