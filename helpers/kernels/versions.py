"""What is installed here, and in one line each why it cannot compile or run kernels. Nothing heavy is imported to find out."""

import ctypes
import platform as python_platform
import re
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

# What the recipes are written for: FlashInfer's own functions change with its minor versions, and 0.7.4 asks for DSL 4.8.
FLASHINFER = ("0.7.4", "0.8")
CUTLASS_DSL = ("4.8.0", "5")
INSTALL = "pip install 'nvfp4-moe-validation[kernels]'"
OLDEST_CAPABILITY = (8, 0)
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Platform:
    """Versions are None for what is absent. payloads: CUDA majors that the installed DSL has libraries for (they lie side by side by
    design). torch_cuda: CUDA major that torch was built for, None for a CPU build. driver_cuda: newest CUDA the driver supports.
    """

    system: str = "linux"
    flashinfer: str | None = None
    cutlass_dsl: str | None = None
    payloads: tuple[int, ...] = ()
    triton: str | None = None
    torch: str | None = None
    torch_cuda: int | None = None
    driver_cuda: tuple[int, int] | None = None
    gpu: str | None = None
    capability: tuple[int, int] | None = None

    @property
    def payload(self) -> int | None:
        """The CUDA major of the libraries that the DSL loads: the newest that the driver can run (cutlass-dsl 4.8.1
        cutlass/_mlir/_mlir_libs/__init__.py: _select_and_load_cutlass_ir_toolkit).
        """
        usable = [major for major in self.payloads if self.driver_cuda is None or major <= self.driver_cuda[0]]
        return max(usable, default=None)

    def packages(self) -> dict[str, str | None]:
        """What the result of a compile depends on."""
        payload = None if self.payload is None else f"cu{self.payload}"
        return {"flashinfer": self.flashinfer, "cutlass_dsl": self.cutlass_dsl, "payload": payload, "triton": self.triton}


def within(given: str, bounds: tuple[str, str]) -> bool:
    """Whether bounds[0] <= given < bounds[1], by the numbers in them."""
    low, high = (tuple(map(int, _NUMBERS.findall(bound))) for bound in bounds)
    return low <= tuple(map(int, _NUMBERS.findall(given)))[:3] < high


def compile_blocker(here: Platform) -> str:
    """Why nothing can be compiled here, "" when it can."""
    if here.system != "linux":
        return (
            f"FlashInfer and the CuTe DSL are published for Linux, and this is {here.system}: compile on a Linux machine, no GPU is needed"
        )
    for package, given, bounds in (
        ("flashinfer-python", here.flashinfer, FLASHINFER),
        ("nvidia-cutlass-dsl", here.cutlass_dsl, CUTLASS_DSL),
    ):
        if given is None:
            return f"{package} is not installed: {INSTALL}"
        if not within(given, bounds):
            return f"{package} {given} is not one that these recipes are written for ({bounds[0]} to below {bounds[1]}): {INSTALL}"
    if here.torch is None:
        return f"torch is not installed, and FlashInfer imports it: {INSTALL}"
    if here.payload is None and here.driver_cuda is not None and here.payloads:
        return _payload_too_new(here)
    if here.payload is None:
        return f"nvidia-cutlass-dsl {here.cutlass_dsl} has no libraries: pip install --force-reinstall 'nvidia-cutlass-dsl[cu13]'"
    return ""


def _payload_too_new(here: Platform) -> str:
    newest = ".".join(map(str, here.driver_cuda))
    return (
        f"the CuTe DSL here is built for CUDA {min(here.payloads)} and the driver supports CUDA {newest}: "
        "update the driver, or pip install nvidia-cutlass-dsl for the CUDA 12 libraries"
    )


def run_blocker(here: Platform) -> str:
    """Why no kernel can run on a GPU here, "" when one can."""
    blocker = compile_blocker(here)
    if blocker:
        return blocker
    if here.driver_cuda is None:
        return "no NVIDIA driver here (libcuda.so.1 is not found or does not start): kernels are compiled and not run"
    if here.capability is None:
        return "the NVIDIA driver lists no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"
    if here.capability < OLDEST_CAPABILITY:
        return f"{here.gpu} is SM{here.capability[0]}{here.capability[1]}, and no kernel here runs below SM80: use a newer GPU"
    if here.torch_cuda is None:
        return f"torch {here.torch} is a CPU build, and tensors have to be on the GPU: pip install torch --force-reinstall"
    if here.torch_cuda > here.driver_cuda[0]:
        newest = ".".join(map(str, here.driver_cuda))
        return f"torch {here.torch} is built for CUDA {here.torch_cuda} and the driver supports CUDA {newest}: update the driver"
    if here.payload != here.torch_cuda:
        return (
            f"the CuTe DSL loads its CUDA {here.payload} libraries and torch {here.torch} is built for CUDA {here.torch_cuda}: "
            f"pip install 'nvidia-cutlass-dsl[cu{here.torch_cuda}]=={here.cutlass_dsl}', or a torch for CUDA {here.payload}"
        )
    return ""


def here() -> Platform:
    """This machine. The GPU is listed by nvidia-smi and not touched."""
    from helpers.kernels.execute import gpu_here

    gpu = gpu_here()
    return Platform(
        system=sys.platform if sys.platform != "darwin" else f"macOS on {python_platform.machine()}",
        flashinfer=_installed("flashinfer-python"),
        cutlass_dsl=_installed("nvidia-cutlass-dsl"),
        payloads=_payloads(),
        triton=_installed("triton"),
        torch=_installed("torch"),
        torch_cuda=_torch_cuda(),
        driver_cuda=_driver_cuda(),
        gpu=gpu.name if gpu else None,
        capability=gpu.capability if gpu else None,
    )


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _payloads() -> tuple[int, ...]:
    """From the names of the DSL's libraries, as it finds them itself."""
    spec = find_spec("cutlass")
    if spec is None or not spec.origin:
        return ()
    libraries = (Path(spec.origin).parent / "_mlir" / "_mlir_libs").glob("_cutlass_ir.cu*.so")
    return tuple(sorted({int(re.search(r"\.cu(\d+)\.", path.name)[1]) for path in libraries}))


def _torch_cuda() -> int | None:
    """From the file in which a torch wheel says what it was built for."""
    spec = find_spec("torch")
    if spec is None or not spec.origin:
        return None
    found = re.search(r"^cuda\b[^=]*= '(\d+)", (Path(spec.origin).parent / "version.py").read_text(), re.MULTILINE)
    return int(found[1]) if found else None


def _driver_cuda() -> tuple[int, int] | None:
    """(13, 0) for a driver that supports CUDA 13.0; None without a driver. Asks the library, which needs no GPU for it."""
    try:
        number, driver = ctypes.c_int(), ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    if driver.cuDriverGetVersion(ctypes.byref(number)):
        return None
    return number.value // 1000, number.value % 1000 // 10
