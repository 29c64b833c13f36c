"""Simulates a CUDA machine under an SGLang release that was imported on a machine without one.

Only what the driver would answer is replaced (torch.cuda's questions, nvidia-smi's memory, the presence of FlashInfer); every
predicate SGLang derives from it (is_sm100_supported, is_blackwell_supported, get_device_sm …) stays the release's own code and is
asked again. The imports must happen before: an SGLang imported on a CUDA machine wants sgl_kernel.
"""

import contextlib
import functools
import re
import sys
import types

import torch

# Module-level facts such as `_is_cuda = is_cuda()` are computed once, at import. These are the probes they are made of.
PROBES = re.compile(
    r"\b(is_cuda|is_cuda_alike|is_sm\d+\w*|is_blackwell\w*|is_hopper_with_cuda_12_3|is_ampere_with_cuda_12_3|is_arch_support_pdl"
    r"|is_flashinfer_available|_compute_enable_deep_gemm|_supports_\w+|get_device_sm|get_device_capability|get_platform)\(\)|\b(ENABLE_JIT_DEEPGEMM|DEEPGEMM_\w+)\b"
)
CONSTANT = re.compile(r"^(\w+) *(?:: *\w+ *)?= *(.+)$", re.MULTILINE)
LONGEST = 12  # lines of one such expression
# Constants that reach their readers through `from … import *`; the others are read where they are computed.
REEXPORTED = re.compile(r"ENABLE_JIT_DEEPGEMM|DEEPGEMM_\w+")


def _sglang_modules():
    named = [(name, module) for name, module in list(sys.modules.items()) if name == "sglang" or name.startswith("sglang.")]
    return [(name, module) for name, module in named if isinstance(module, types.ModuleType)]


def _constants(module):
    """(name, compiled expression) of the module's constants that ask one of PROBES, in order."""
    try:
        with open(module.__file__ or "", encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return []
    found = []
    for match in CONSTANT.finditer(text):
        name = match[1]
        if name in vars(module):
            expression = _whole_expression(text[match.start(2) :])
            if expression is not None and PROBES.search(expression):
                found.append((name, compile(expression, f"{module.__name__}.{name}", "eval")))
    return found


def _whole_expression(text):
    """The expression that `text` begins with, over as many lines as it takes; None when it is none."""
    lines = text.split("\n", LONGEST)[:LONGEST]
    for count in range(1, len(lines) + 1):
        candidate = "\n".join(lines[:count]).strip()
        try:
            compile(candidate, "constant", "eval")
        except SyntaxError:
            if candidate.count("(") <= candidate.count(")"):  # nothing is left open: it is no expression
                return None
        else:
            return candidate
    return None


class SimulatedMachine:
    """One machine with `count` GPUs of one kind; `become()` changes the kind, with every cache of an earlier kind forgotten."""

    def __init__(self):
        self.current = None
        self.cpu = {
            "is_available": torch.cuda.is_available,
            "is_initialized": torch.cuda.is_initialized,
            "device_count": torch.cuda.device_count,
        }
        self.cuda_version = torch.version.cuda
        self.seen = set()
        self.constants = []
        self.copies = []
        self.caches = []
        torch.version.cuda = torch.version.cuda or "13.0"  # a CPU build of torch has none, and SGLang compares it with 12.8
        torch.cuda.is_available = lambda: True
        torch.cuda.is_initialized = lambda: True  # else get_device_sm() would ask NVML
        torch.cuda.current_device = lambda: 0
        torch.cuda.device_count = lambda: self.current["count"]
        torch.cuda.get_device_capability = lambda *a, **k: tuple(self.current["capability"])
        torch.cuda.get_device_name = lambda *a, **k: self.current["name"]
        torch.cuda.mem_get_info = lambda *a, **k: (self.current["memory_mib"] << 20,) * 2
        torch.cuda.get_device_properties = lambda *a, **k: types.SimpleNamespace(
            name=self.current["name"],
            major=self.current["capability"][0],
            minor=self.current["capability"][1],
            total_memory=self.current["memory_mib"] << 20,
            multi_processor_count=self.current.get("multiprocessors", 148),
        )
        self.answers = {
            "get_nvgpu_memory_capacity": lambda *a, **k: float(self.current["memory_mib"]),
            "get_device_sm_nvidia_smi": lambda *a, **k: tuple(self.current["capability"]),
            "is_flashinfer_available": lambda *a, **k: torch.cuda.is_available(),
            "is_gpu_fabric_ready": lambda *a, **k: False,
        }
        self._register_mxfp4()

    @staticmethod
    def _register_mxfp4():
        """The one registration that a module-level `if is_cuda()` makes and that the questions read; it is not made on a CPU."""
        from sglang.srt.layers import quantization

        for methods in (quantization.BASE_QUANTIZATION_METHODS, quantization.QUANTIZATION_METHODS):
            methods["mxfp4"] = quantization.Mxfp4Config

    def become(self, gpu):
        """gpu: {"name", "capability": [major, minor], "memory_mib", "count"}."""
        if gpu == self.current:  # modules imported since then have computed their facts for this machine
            return
        self.current = gpu
        for name, module in _sglang_modules():
            if name in self.seen:
                continue
            self.seen.add(name)
            for attribute, value in list(vars(module).items()):
                if attribute in self.answers:
                    setattr(module, attribute, self.answers[attribute])
                elif isinstance(value, functools._lru_cache_wrapper) and value not in self.caches:
                    self.caches.append(value)
            own = [(module, attribute, expression) for attribute, expression in _constants(module)]
            self.constants += own
            computed = {attribute for _, attribute, _ in own}
            self.copies += [
                (module, attribute) for attribute in vars(module) if REEXPORTED.fullmatch(attribute) and attribute not in computed
            ]
        self._forget()

    def _forget(self):
        """Every cached predicate and every module-level fact is computed anew."""
        for cache in self.caches:
            cache.cache_clear()
        for module, attribute, expression in self.constants:
            setattr(module, attribute, eval(expression, vars(module)))
        values = {attribute: getattr(module, attribute) for module, attribute, _ in self.constants if REEXPORTED.fullmatch(attribute)}
        for module, attribute in self.copies:
            setattr(module, attribute, values[attribute])

    @contextlib.contextmanager
    def absent(self):
        """The machine without its GPUs for a while, for imports and process groups."""
        simulated = {name: getattr(torch.cuda, name) for name in self.cpu}
        version = torch.version.cuda
        for name, value in self.cpu.items():
            setattr(torch.cuda, name, value)
        torch.version.cuda = self.cuda_version
        self._forget()
        try:
            yield
        finally:
            for name, value in simulated.items():
                setattr(torch.cuda, name, value)
            torch.version.cuda = version
            gpu, self.current = self.current, None
            self.become(gpu)
