"""A kernel that compiles for Hopper and computes nothing: FlashInfer's CUDA C++ quantiser, read in its own sources."""

import re
from importlib.util import find_spec
from pathlib import Path

_CONVERSION = re.compile(r"uint32_t fp32_vec_to_e2m1\([^{]*\{(.*?)#endif", re.DOTALL)


def _read(path: str) -> str:
    return (Path(find_spec("flashinfer").origin).parent / path).read_text()


def built_for_hopper() -> bool:
    """Whether `fp4_quantize(backend="cuda")` is built for SM90 (jit/fp4_quantization.py)."""
    return bool(re.search(r'gen_fp4_quantization_module\(sm90a_nvcc_flags, "90"\)', _read("jit/fp4_quantization.py")))


def codes_before_blackwell() -> set[str]:
    """What each of its conversions to E2M1 returns on a GPU before SM100 (quantization_utils.cuh: fp32_vec_to_e2m1)."""
    bodies = _CONVERSION.findall(_read("data/csrc/nv_internal/tensorrt_llm/kernels/quantization_utils.cuh"))
    guarded = [body.partition("#else")[2] for body in bodies if "__CUDA_ARCH__ >= 1000" in body]
    return {value for body in guarded for value in re.findall(r"return ([^;]+);", body)}
