"""Stands for the kernel packages that a GPU server has and this environment has not. Nothing in them runs.

A release asks for them in two ways: it imports them in its model files, and it decides by their presence (DeepGEMM, DeepEP).
"""

import builtins
import importlib.machinery
import sys
import types

# An installed package is taken first. deep_gemm comes with sgl_kernel.
PACKAGES = ("cutlass", "cuda", "deep_gemm", "quack", "tilelang", "deep_ep")

# What model files name without having imported it, because they import it at their top only on a CUDA machine.
NAMES = ("deep_gemm", "_raw_flashinfer_mm_mxfp8", "fused_a_gemm_weight_eligible")


class Absent:
    """Answers anything that a module does at import: decorate, subscript, derive, compare, count."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else Absent()

    def __getattr__(self, name):
        if name.startswith("__") and name != "__name__":
            raise AttributeError(name)
        return Absent()

    def __getitem__(self, key):
        return Absent()

    def __mro_entries__(self, bases):
        return (object,)

    def __or__(self, other):
        return self

    def __index__(self):
        return 64

    def __lt__(self, other):
        return False

    __ror__ = __or__
    __int__ = __index__
    __gt__ = __lt__
    __add__ = __sub__ = __mul__ = __mod__ = __floordiv__ = __rmul__ = lambda self, other: 64


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent()


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in PACKAGES:
            return importlib.machinery.ModuleSpec(name, _Finder, is_package=True)
        return None

    @staticmethod
    def create_module(spec):
        return _Module(spec.name)

    @staticmethod
    def exec_module(module):
        pass


def stand_in():
    """From now on `import deep_gemm` and the like succeed, where the package is not installed."""
    sys.meta_path.append(_Finder)
    for name in NAMES:
        setattr(builtins, name, Absent())
