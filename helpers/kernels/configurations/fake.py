"""Arguments that have a type, a shape and an alignment, and no memory: enough to compile a kernel."""

import cutlass
import cutlass.cute as cute
import torch
from cuda.bindings.driver import CUstream
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_ptr

F4, E4M3 = cutlass.Float4E2M1FN, cutlass.Float8E4M3FN
F32, I32, BF16 = cutlass.Float32, cutlass.Int32, cutlass.BFloat16
_DTYPES = {torch.bfloat16: BF16, torch.uint8: cutlass.Uint8, torch.float32: F32, torch.int32: I32}

# Where the weights of one kernel would start, were there memory: a pointer type holds some address.
_ADDRESS = 1024


def pointer(dtype, align: int = 16):
    """A pointer to global memory aligned to ``align`` bytes."""
    return make_ptr(dtype, _ADDRESS, cute.AddressSpace.gmem, assumed_align=align)


def tensor(dtype: torch.dtype, *shape: int):
    """A row-major tensor of this shape; aligned to 16 bytes unless it is smaller."""
    small = dtype.itemsize * torch.Size(shape).numel() < 16
    order = tuple(range(len(shape) - 1, -1, -1))
    return make_fake_compact_tensor(_DTYPES[dtype], shape, stride_order=order, assumed_align=4 if small else 16)


def stream():
    """The null stream: a value, for kernels that take a stream's handle."""
    return CUstream(0)


def environment_stream():
    """For kernels that take whatever stream is current when they are called."""
    return make_fake_stream(use_tvm_ffi_env_stream=True)
