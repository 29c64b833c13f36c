"""What a compiled kernel is made of: its instructions from the PTX text, its registers from the cubin, its shared memory from the
host code that would launch it.
"""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

# The instructions by which one sees what a kernel does: products, conversions of four and eight bits, asynchronous copies.
_TELLING = re.compile(
    r"\b(tcgen05\.(?:mma|cp|ld)\.[\w.:]+|wgmma\.mma_async\.[\w.:]+|mma\.sync\.[\w.:]+|cvt\.[\w.]*(?:e2m1|e4m3|ue8m0)[\w.]*"
    r"|cp\.async\.(?:bulk|c[ag])[\w.:]*|ldmatrix\.[\w.]+|setmaxnreg\.[\w.]+|red\.[\w.]*bf16x2|prmt\.b32|fma\.rn\.(?:f32|bf16x2|f16x2))\b"
)
_RESOURCES = re.compile(r"Function (\S+?):\s+REG:(\d+) STACK:(\d+)")
# In the host code as the DSL lowers it, a launch's configuration is a structure whose third field is the shared memory of a block.
_LAUNCH = r"struct<\(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32\)>"
_FIELD = re.compile(rf"(%\d+) = llvm\.getelementptr %\d+\[0, 2\] [^\n]*{_LAUNCH}\s+llvm\.store (%\w+), \1 : i64")


@dataclass(frozen=True)
class DeviceFunction:
    """registers a thread; stack: bytes of local memory a thread, where registers are spilled to."""

    name: str
    registers: int
    stack: int


def instructions(ptx: Iterable[str]) -> dict[str, int]:
    """How often each telling instruction stands in the texts, most often first."""
    counts = Counter(found for text in ptx for found in _TELLING.findall(text))
    return dict(counts.most_common())


def disassembler() -> str | None:
    """Triton's wheel brings cuobjdump, and so does the CUDA toolkit."""
    triton = find_spec("triton")
    if triton and triton.origin:
        found = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        if found.exists():
            return str(found)
    return shutil.which("cuobjdump")


def device_functions(cubins: Iterable[Path]) -> tuple[DeviceFunction, ...] | None:
    """None where there is no cuobjdump to ask."""
    tool = disassembler()
    if tool is None:
        return None
    found = []
    for cubin in sorted(cubins):
        said = subprocess.run([tool, "--dump-resource-usage", str(cubin)], capture_output=True, text=True, check=True).stdout
        found += [DeviceFunction(name, *map(int, numbers)) for name, *numbers in _RESOURCES.findall(said)]
    return tuple(found)


def shared_memory(lowered: Iterable[str]) -> int | None:
    """Bytes of shared memory that the largest launch asks for, None when the host code computes it while it runs."""
    found = []
    for text in lowered:
        for function in text.split("llvm.func "):
            constants = dict(re.findall(r"(%\d+) = llvm\.mlir\.constant\((\d+) : i64\)", function))
            found += [constants.get(value) for _, value in _FIELD.findall(function)]
    return max(map(int, found)) if found and None not in found else None
