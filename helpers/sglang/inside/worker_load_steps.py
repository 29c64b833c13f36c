"""What process_weights_after_loading() needs a GPU for, on a CPU: the same arithmetic in torch, named in the answer when it was used.

A replacement stands for the kernel alone; what the release does around it stays the release's.
"""

import ast
import contextlib
import importlib
import sys

import torch

used = []  # names of the replaced steps that ran


def refuse_as_kernel(message):
    """The refusal that the kernel itself has in this place, in its words."""
    raise RuntimeError(message)


def _step(replacement):
    def step(*args, **kwargs):
        if replacement.__name__ not in used:
            used.append(replacement.__name__)
        return replacement(*args, **kwargs)

    return step


@_step
def block_scale_interleave(scales):
    """Block scales in tiles of 128 rows and 4 columns, padded with zeros; FlashInfer fp4_quantization.py: block_scale_interleave."""
    shape = scales.shape
    scales = scales.reshape(-1, *shape[-2:])
    groups, rows, columns = scales.shape
    padded = scales.new_zeros(groups, -(-rows // 128) * 128, -(-columns // 4) * 4)
    padded[:, :rows, :columns] = scales
    tiles = padded.view(groups, padded.shape[1] // 128, 4, 32, padded.shape[2] // 4, 4)
    return tiles.permute(0, 1, 4, 3, 2, 5).contiguous().flatten()


@_step
def gptq_marlin_repack(b_q_weight, perm, size_k, size_n, num_bits):
    """Codes int32 [K / 8, N], eight of K in a word, to Marlin's tiles int32 [K / 16, 2 N]; gptq_marlin_repack.cuh.

    A word holds 8 codes of a thread in its m16n8k16 products: of a tile of 64 rows (warp, half, thread column) by 16 columns of K
    (half, thread pair, one of the pair).
    """
    if num_bits != 4 or perm.numel():
        raise NotImplementedError(f"a Marlin repack of {num_bits} bits with a permutation of {perm.numel()} columns has no replacement")
    for name, size, tile in (("size_k", size_k, 16), ("size_n", size_n, 64)):
        if size % tile:
            refuse_as_kernel(f"{name} = {size} is not divisible by tile_{name[-1]}_size = {tile}")
    packed = b_q_weight.T.contiguous().view(torch.uint8)
    codes = torch.stack((packed & 15, packed >> 4), -1).view(size_n // 64, 4, 2, 8, size_k // 16, 2, 4, 2)
    words = codes.permute(4, 0, 3, 6, 1, 7, 2, 5).reshape(-1, 4, 2)
    return (words[..., 0] | words[..., 1] << 4).contiguous().view(torch.int32).view(size_k // 16, 2 * size_n)


@_step
def scaled_fp8_quant(input, scale=None, *args, **kwargs):
    """E4M3 with one scale for all elements, the given one or maximum / 448; fp8_kernel.py: scaled_fp8_quant."""
    if scale is None:
        scale = input.abs().max().float() / 448
    return (input.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


REPLACED = {
    "block_scale_interleave": block_scale_interleave,
    "nvfp4_block_scale_interleave": block_scale_interleave,
    "gptq_marlin_repack": gptq_marlin_repack,
    "scaled_fp8_quant": scaled_fp8_quant,
}


def without_communication():
    """The dispatcher of FlashInfer's all-to-all is made without its buffers, which all ranks' GPUs would share; loading needs none."""
    from sglang.srt.layers.moe.token_dispatcher import base, flashinfer

    def without_buffers(self, *args, **kwargs):
        if "FlashinferDispatcher" not in used:
            used.append("FlashinferDispatcher")
        base.BaseDispatcher.__init__(self)

    flashinfer.FlashinferDispatcher.__init__ = without_buffers
    flashinfer.FlashinferDispatcher.set_quant_config = base.BaseDispatcher.set_quant_config


def complete_imports():
    """Makes up for the imports that the release's layers make at their top only on a CUDA machine."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("sglang.srt.layers.quantization", "sglang.srt.layers.moe")) and getattr(module, "__file__", None):
            _complete(module)


def _complete(module):
    with open(module.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    guards = [statement for statement in tree.body if isinstance(statement, ast.If | ast.Try)]
    for statement in (inner for guard in guards for inner in ast.walk(guard)):
        if not isinstance(statement, ast.ImportFrom) or statement.level:
            continue
        for alias in statement.names:
            known = alias.asname or alias.name
            if known not in vars(module):
                with contextlib.suppress(ImportError, AttributeError):
                    setattr(module, known, getattr(importlib.import_module(statement.module), alias.name))


@contextlib.contextmanager
def replaced():
    """REPLACED in every module that has a function of that name, for as long as the block lasts."""
    kept = []
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith(("sglang.srt.layers", "flashinfer")):
            for name, replacement in REPLACED.items():
                if callable(vars(module).get(name)):
                    kept.append((module, name, vars(module)[name]))
                    setattr(module, name, replacement)
    try:
        yield
    finally:
        for module, name, original in kept:
            setattr(module, name, original)
