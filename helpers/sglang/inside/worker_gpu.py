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
    r"|is_flashinfer_available|get_device_sm|get_device_capability|get_platform)\(\)"
)
CONSTANT = re.compile(r"^(\w+) *(?:: *\w+ *)?= *(.+)$", re.MULTILINE)
DRIVER_ANSWERS = ("get_nvgpu_memory_capacity", "get_device_sm_nvidia_smi", "is_flashinfer_available", "is_gpu_fabric_ready")


def _sglang_modules():
    return [
        (name, module)
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "sglang" and isinstance(module, types.ModuleType)
    ]


def _constants(module):
    """(name, compiled expression) of the module's one-line constants that ask one of PROBES."""
    try:
        with open(module.__file__ or "", encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return []
    found = []
    for name, expression in CONSTANT.findall(text):
        if PROBES.search(expression) and name in vars(module):
            try:
                found.append((name, compile(expression.strip(), f"{module.__name__}.{name}", "eval")))
            except SyntaxError:  # the first line of a longer expression: see the list the tests hold
                continue
    return found


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

    def become(self, gpu):
        """gpu: {"name", "capability": [major, minor], "memory_mib", "count"}."""
        modules = _sglang_modules()
        if gpu == self.current and len(modules) == len(self.seen):
            return
        self.current = gpu
        for name, module in modules:
            if name in self.seen:
                continue
            self.seen.add(name)
            for attribute, value in list(vars(module).items()):
                if attribute in self.answers:
                    setattr(module, attribute, self.answers[attribute])
                elif isinstance(value, functools._lru_cache_wrapper) and value not in self.caches:
                    self.caches.append(value)
            self.constants += [(module, attribute, expression) for attribute, expression in _constants(module)]
        self._forget()

    def _forget(self):
        """Every cached predicate and every module-level fact is computed anew."""
        for cache in self.caches:
            cache.cache_clear()
        for module, attribute, expression in self.constants:
            setattr(module, attribute, eval(expression, vars(module)))

    @contextlib.contextmanager
    def absent(self):
        """The machine without its GPUs, for imports that come late."""
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
            self.current = None
