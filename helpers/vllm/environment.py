"""The environment of the one vLLM release that is asked: where it is, how it is built, what a process in it sees.

It stands in the cache beside SGLang's, $NVFP4_CACHE (default ~/.cache/nvfp4-moe-validation)/sglang/vllm-0.33.0, so that one lock and
one rule for what an interrupted build leaves hold for both. It shares nothing else with them: vLLM wants another transformers.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from helpers.errors import InputError, UsageError
from helpers.sglang import building
from helpers.sglang.environments import home, marker, requirements

VERSION = "0.33.0"

# vLLM pins torch 2.14.0, whose build on the package index wants 6 GB of CUDA libraries. What is asked needs none of them, and this
# torch imports it. NVFP4_TORCH replaces the line, as for SGLang.
TORCH = "torch==2.13.0"

# Those of vLLM's requirements that it imports on the way to its expert layers; each in the version that its wheel asks for.
NEEDED = (
    "regex cachetools psutil sentencepiece numpy requests certifi tqdm blake3 py-cpuinfo transformers huggingface_hub tokenizers "
    "safetensors protobuf fastapi aiohttp openai pydantic prometheus_client pillow tiktoken llguidance xgrammar typing_extensions filelock "
    "partial-json-parser jsonschema pyzmq msgspec pyyaml einops compressed-tensors cloudpickle pybase64 cbor2 ijson oss-harmony ninja "
    "apache-tvm-ffi nvidia-cutlass-dsl humming-kernels"
)
# Without a pin in vLLM's metadata, or only through a package that is left out.
BESIDE = ("uvloop", "tabulate", "nvidia-ml-py")
# Its presence decides which backend is chosen. Its own requirements would bring CUDA libraries that never run here.
WITHOUT_REQUIREMENTS = ("flashinfer-python",)
NOT_KEPT = ("flashinfer/data",)  # sources and archives of kernels, which are only compiled for a GPU

SPACE = 6 * building.GB  # while it is built, pip's temporary copies included; it ends at 3.3 GB


def folder() -> Path:
    """Where the environment is when it is built."""
    return home() / f"vllm-{VERSION}"


def built() -> dict | None:
    """What the builder noted: {"vllm", "torch", "python", "flashinfer", "transformers"}; None when it is not built."""
    return marker(folder())


def python() -> str:
    """The interpreter that imports vLLM. UsageError says how to build it."""
    if built() is None:
        raise UsageError(f"vllm {VERSION} is not built in {home()}: make vllm")
    return str(folder() / "bin" / "python")


def variables() -> dict[str, str]:
    """The environment variables of a process in it: no hub, no GPU, no usage report, and nothing of the asker's own vLLM."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "PYTHON", "VIRTUAL_ENV", "CONDA_"))}
    return inherited | {
        "PYTHONNOUSERSITE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_HAS_FLASHINFER_CUBIN": "1",  # else it asks for nvcc and ninja, which a question has no use of
        "VLLM_CACHE_ROOT": str(Path(tempfile.gettempdir()) / f"nvfp4-moe-vllm-{os.getuid()}"),
    }


def build(say: Callable[[str], None] = print) -> None:
    """Builds the environment unless it is there. InputError in one line when that cannot be done."""
    with building.one_build_at_a_time(say):
        if built() is not None:
            say(f"vllm {VERSION}: already built")
            return
        building.needs(SPACE, f"vllm {VERSION}")
        torch = os.environ.get("NVFP4_TORCH") or TORCH
        say(f"vllm {VERSION} over {torch}: its wheel and {len(NEEDED.split())} of its requirements (about 3 minutes, 3.3 GB) …")
        with building.new_folder(folder(), say) as made:
            _make(made, torch)
        say(f"vllm {VERSION}: ready")


def _make(made: Path, torch: str) -> None:
    inside = building.make_venv(made)
    site = next((made / "lib").glob("python3*/site-packages"))

    def pip(what: str, *arguments: str) -> None:
        building.pip(inside, "install", "--no-compile", *arguments, what=what)

    pip(f"vllm=={VERSION}", "--no-deps", "--only-binary", ":all:", f"vllm=={VERSION}")
    wanted = wanted_of(requirements(site))
    pip(torch, *shlex.split(torch))
    pip("the packages vLLM imports", *wanted["with"], *BESIDE)
    pip("flashinfer-python", "--no-deps", *wanted["without"])
    for path in NOT_KEPT:
        shutil.rmtree(site / path, ignore_errors=True)
    facts = subprocess.run(
        [inside, "-c", "import importlib.metadata as m, platform; print(platform.python_version(), *map(m.version, "
         "('vllm', 'torch', 'transformers', 'flashinfer-python')))"],
        capture_output=True,
        text=True,
    )  # fmt: skip
    if facts.returncode != 0:
        raise InputError(f"vllm {VERSION} was installed and its metadata cannot be read: {building.last_line(facts.stderr)}")
    building.mark(made, **dict(zip(("python", "vllm", "torch", "transformers", "flashinfer"), facts.stdout.split(), strict=True)))


def wanted_of(lines: list[str]) -> dict[str, list[str]]:
    """What is installed of a wheel's requirements, as pip takes them: {"with": [...], "without": [...]} their own requirements."""
    chosen: dict[str, list[str]] = {"with": [], "without": []}
    for line in lines:
        name = re.match(r"[\w.-]+", line)[0]
        if "extra ==" in line:
            continue
        if name in NEEDED.split():
            chosen["with"].append(re.sub(r"\[[^]]*\]", "", line))  # an extra adds a server or a CUDA library
        elif name in WITHOUT_REQUIREMENTS:
            chosen["without"].append(line)
    return chosen
