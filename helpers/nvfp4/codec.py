"""NVFP4 encode and decode, bit for bit as one of the named recipes does it, on the CPU or on CUDA, without a Python loop over elements.

A block is 16 consecutive elements of the last dimension. A tensor [..., K] becomes codes uint8 [..., K/2] (low nibble first), block
scales float8_e4m3fn [..., K/16] and a float32 global scale whose shape is a prefix of the leading dimensions: [] for the whole
tensor, [E] for a stack of experts, [..., ] down to one a row (per-token activations).
"""

from dataclasses import dataclass, replace

import torch

from helpers.errors import InputError
from helpers.nvfp4.elements import BLOCK, E2M1_MAX, E2M1_VALUES, as_bytes, e4m3_encode, round_to_e2m1_
from helpers.nvfp4.recipes import Recipe, recipe

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

# Blocks worked on at once on the CPU: large enough to hide the cost of a call, small enough that float32 copies stay in the L2 cache.
_ENCODE_BLOCKS = 1 << 13
_DECODE_BLOCKS = 1 << 15
# Below this many blocks a global scale, a table of every decoded pair costs more than it saves.
_TABLE_BLOCKS = 1 << 13


@dataclass(frozen=True)
class Nvfp4:
    """An encoded tensor. codes uint8 [..., K/2]; scales float8_e4m3fn [..., K/16]; global_scale float32, see the module; recipe: its name.

    ``global_scale`` is what the recipe's own files store: amax/2688 for modelopt, 2688/amax for the others.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    global_scale: torch.Tensor
    recipe: str = "modelopt"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the decoded tensor."""
        return (*self.codes.shape[:-1], 2 * self.codes.shape[-1])

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.global_scale.nbytes

    def __getitem__(self, index) -> "Nvfp4":
        """The same index on every part's leading dimension, e.g. one expert of a stack (the global scale must have that dimension)."""
        return replace(self, codes=self.codes[index], scales=self.scales[index], global_scale=self.global_scale[index])


def check(encoded: Nvfp4, name: str = "tensor", file: str = "") -> Nvfp4:
    """``encoded``, or an InputError that names tensor, file, what is there and what should be. Of the values, only the global scale's."""
    where = f"{name} in {file}" if file else name
    codes, scales, g = encoded.codes, encoded.scales, encoded.global_scale
    if codes.dtype not in (torch.uint8, torch.float4_e2m1fn_x2):
        raise InputError(f"{where}: codes are {codes.dtype}, expected uint8 (two codes a byte) or float4_e2m1fn_x2")
    if codes.ndim < 1 or codes.numel() == 0:
        raise InputError(f"{where}: codes have shape {tuple(codes.shape)}: there is nothing to decode")
    if codes.shape[-1] % (BLOCK // 2):
        raise InputError(f"{where}: codes {tuple(codes.shape)} hold K={2 * codes.shape[-1]}, not a multiple of the block of {BLOCK}")
    expected = (*codes.shape[:-1], codes.shape[-1] // (BLOCK // 2))
    if scales.dtype != torch.float8_e4m3fn:
        raise InputError(f"{where}: block scales are {scales.dtype} {tuple(scales.shape)}, expected float8_e4m3fn {expected}")
    if tuple(scales.shape) != expected:
        transposed = " (this is its transpose)" if tuple(scales.shape) == (*expected[:-2], *expected[:-3:-1]) else ""
        raise InputError(
            f"{where}: block scales have shape {tuple(scales.shape)}, expected {expected} for codes {tuple(codes.shape)}{transposed}"
        )
    _check_global(g, codes.shape[:-1], where)
    return encoded


def _check_global(g: torch.Tensor, leading: tuple[int, ...], where: str) -> None:
    if g.dtype != torch.float32 or tuple(g.shape) != tuple(leading[: g.ndim]):
        raise InputError(f"{where}: global scale is {g.dtype} {tuple(g.shape)}, expected float32 [] or a prefix of {tuple(leading)}")
    if not (g.isfinite() & (g > 0)).all():
        bad = g[~(g.isfinite() & (g > 0))].flatten()[0].item()
        raise InputError(f"{where}: global scale {bad} cannot scale anything; it must be finite and positive")


def encode(
    x: torch.Tensor,
    recipe_name: str = "modelopt",
    global_scale: torch.Tensor | float | None = None,
    *,
    per_token: bool = False,
    name: str = "tensor",
) -> Nvfp4:
    """Encode float32, bfloat16 or float16 ``x`` [..., K].

    global_scale: given (static scales), in the recipe's own convention, float32 with a shape that is a prefix of the leading
    dimensions; None takes it from the data (dynamic), one for the tensor, or one a row with ``per_token``.
    Raises InputError, naming ``name``: K not a multiple of 16, NaN or Inf in ``x``, a global scale of 0.
    """
    rules = recipe(recipe_name)
    if x.dtype not in FLOATS:
        raise InputError(f"{name}: {x.dtype} {tuple(x.shape)} cannot be encoded, expected float32, bfloat16 or float16")
    if x.ndim < 1 or x.numel() == 0:
        raise InputError(f"{name}: shape {tuple(x.shape)}: there is nothing to encode")
    if x.shape[-1] % BLOCK:
        raise InputError(f"{name}: K={x.shape[-1]} in shape {tuple(x.shape)} is not a multiple of the block of {BLOCK}")
    leading, blocks = x.shape[:-1], x.shape[-1] // BLOCK
    x = x.contiguous().view(-1, BLOCK)
    amax = _block_amax(x, name)
    if global_scale is not None:
        g = torch.as_tensor(global_scale, dtype=torch.float32, device=x.device)
    elif per_token:
        g = rules.row_scale(amax.view(*leading, blocks).amax(-1))
    else:
        g = rules.global_scale(amax.amax())
    if per_token and global_scale is None and not rules.stores_reciprocal:
        g = torch.where(g == 0, 1.0, g)  # a row of zeros has nothing to scale; padding rows are common
    _check_global(g, leading, name)
    codes = torch.empty(len(x), BLOCK // 2, dtype=torch.uint8, device=x.device)
    scales = torch.empty(len(x), dtype=torch.float8_e4m3fn, device=x.device)
    each = g if g.ndim == 0 else g.reshape(*g.shape, *(1,) * (len(leading) - g.ndim), 1).expand(*leading, blocks).reshape(-1)
    step = len(x) if x.is_cuda else _ENCODE_BLOCKS
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        _encode_blocks(rules, x[part], amax[part], each if g.ndim == 0 else each[part], codes[part], scales[part])
    return Nvfp4(codes.view(*leading, -1), scales.view(*leading, blocks), g, recipe_name)


def _block_amax(x: torch.Tensor, name: str) -> torch.Tensor:
    """Largest magnitude of each row of [N, 16], in x's dtype. As integers: faster, and NaN and Inf cannot hide behind a comparison."""
    integer, magnitude = (torch.int32, 0x7FFFFFFF) if x.dtype == torch.float32 else (torch.int16, 0x7FFF)
    amax = torch.empty(len(x), dtype=integer, device=x.device)
    step = len(x) if x.is_cuda else _ENCODE_BLOCKS
    for start in range(0, len(x), step):
        torch.amax(x[start : start + step].view(integer) & magnitude, -1, out=amax[start : start + step])
    amax = amax.view(x.dtype)
    if not amax.amax().isfinite():
        first = int((~amax.isfinite()).nonzero()[0])
        raise InputError(
            f"{name}: NaN or Inf in block {first} (elements {first * BLOCK} to {first * BLOCK + BLOCK - 1}); it has no NVFP4 code"
        )
    return amax


def _quotients(rules: Recipe, x, amax, g, scales) -> torch.Tensor:
    """float32 [N, 16]: x [N, 16] over its block's step, before rounding to E2M1."""
    factor = rules.factor(scales.float(), g, amax).unsqueeze(-1)
    if rules.divides:
        return torch.div(x, factor)
    q = torch.mul(x, factor)
    if factor.isinf().any():
        q = torch.where(q.isnan(), 6.0, q)  # 0 * inf, which the hardware's conversion turns into +6
    return q


def _encode_blocks(rules: Recipe, x, amax, g, codes, scales) -> None:
    scales.copy_(rules.block_scale(amax, g))
    q = _quotients(rules, x, amax, g, scales)
    if not rules.signs_zero:
        q.add_(0.0)  # -0.0 + 0.0 is +0.0; nothing else changes
    pairs = round_to_e2m1_(q).view(torch.int16)
    codes.copy_(pairs.bitwise_or(pairs.bitwise_right_shift(4)))


def decode(encoded: Nvfp4, dtype: torch.dtype = torch.bfloat16, out: torch.Tensor | None = None) -> torch.Tensor:
    """The numbers [..., K] in ``dtype`` (float32, bfloat16, float16), by the arithmetic of ``encoded.recipe``, rounded once at the end.

    out: contiguous, right shape and dtype. On CUDA one Triton kernel; on the CPU a table of every pair of codes under every block
    scale; plain torch where neither pays (see ``decode_plain``). The three are bit-equal. NaN scales decode to NaN.
    """
    check(encoded)
    codes = as_bytes(encoded.codes).contiguous()
    scales = encoded.scales.contiguous()
    if out is None:
        out = torch.empty(encoded.shape, dtype=dtype, device=codes.device)
    rules = recipe(encoded.recipe)
    if codes.is_cuda:
        from helpers.nvfp4.gpu import decode_cuda

        return decode_cuda(rules.name, rules.decodes_signed_zero, codes, scales, encoded.global_scale, out)
    g = encoded.global_scale.reshape(-1)
    if scales.numel() < _TABLE_BLOCKS * g.numel():
        return out.copy_(decode_plain(encoded, dtype))
    parts = zip(codes.view(len(g), -1), scales.view(len(g), -1), g, out.view(len(g), -1), strict=True)
    for part_codes, part_scales, part_g, part_out in parts:
        _decode_table(pair_table(rules, part_g, dtype), part_codes, part_scales, part_out)
    return out


def decode_plain(encoded: Nvfp4, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """``decode`` written out in torch operations on any device: the definition the faster paths are tested against."""
    check(encoded)
    rules = recipe(encoded.recipe)
    codes = as_bytes(encoded.codes)
    values = _values(rules, codes.device)[torch.stack((codes & 15, codes >> 4), -1).long().flatten(-2)]
    g = encoded.global_scale
    g = g.reshape(*g.shape, *(1,) * (encoded.codes.ndim + 1 - g.ndim))
    blocks = values.view(*encoded.scales.shape, BLOCK)
    return rules.value(blocks, encoded.scales.float().unsqueeze(-1), g).reshape(encoded.shape).to(dtype)


def _values(rules: Recipe, device) -> torch.Tensor:
    values = torch.tensor(E2M1_VALUES, device=device)
    return values if rules.decodes_signed_zero else values.add_(0.0)


def pair_table(rules: Recipe, global_scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[65536] integers, each the bits of two decoded ``dtype`` numbers: entry ``scale byte * 256 + code byte``, low nibble first."""
    scales = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    single = rules.value(_values(rules, "cpu"), scales.unsqueeze(1), global_scale).to(dtype)
    low, high = single.unsqueeze(1).expand(256, 16, 16), single.unsqueeze(2).expand(256, 16, 16)
    return torch.stack((low, high), -1).view(torch.int64 if dtype == torch.float32 else torch.int32).flatten()


def _decode_table(table: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """All flat: codes [n*8], scales [n], out [n*16]."""
    codes, scales, pairs = codes.view(-1, BLOCK // 2), scales.view(torch.uint8), out.view(table.dtype)
    for start in range(0, len(scales), _DECODE_BLOCKS):
        part = slice(start, start + _DECODE_BLOCKS)
        index = scales[part].to(torch.int32).mul_(256).unsqueeze(1) + codes[part]
        torch.index_select(table, 0, index.flatten(), out=pairs[start * 8 : start * 8 + index.numel()])


def fast_math_undecided(x: torch.Tensor, global_scale: torch.Tensor | float) -> tuple[torch.Tensor, torch.Tensor]:
    """Where ``flashinfer_fast`` hangs on the last bit of ``rcp.approx``: masks over scales [..., K/16] and over elements [..., K].

    PTX bounds a reciprocal's error by one unit in the last place, and every step of the recipe is monotone in each of its three
    reciprocals; so the ends of those three intervals bound every result. Where the ends agree, every conforming GPU gives exactly
    what ``encode`` gives; where they differ, a GPU may give either. global_scale: one number, within 2**-100 .. 2**100 (beyond that
    a reciprocal can be subnormal and flush, and nothing is decided: InputError).
    """
    g = torch.as_tensor(global_scale, dtype=torch.float32, device=x.device)
    if g.ndim or not 2.0**-100 < g < 2.0**100:
        raise InputError(f"fast_math_undecided: global scale {g.tolist()} is not one number within 2**-100 .. 2**100")
    blocks = x.contiguous().view(-1, BLOCK)
    amax = _block_amax(blocks, "tensor").float()
    down, up = torch.tensor(0.0, device=x.device), torch.tensor(float("inf"), device=x.device)
    sixth = 1.0 / torch.tensor(E2M1_MAX, device=x.device)
    scales = [e4m3_encode(g * (amax * torch.nextafter(sixth, end))) for end in (down, up)]
    codes = []
    for scale in scales:
        for end, opposite in ((down, up), (up, down)):
            factor = torch.nextafter(1.0 / (scale.float() * torch.nextafter(1.0 / g, opposite)), end)
            factor = torch.where(scale.float() == 0, 0.0, factor)
            codes.append(round_to_e2m1_(blocks * factor.unsqueeze(-1)))
    open_scales = scales[0].view(torch.uint8) != scales[1].view(torch.uint8)
    open_codes = torch.stack([code != codes[0] for code in codes[1:]]).any(0)
    return open_scales.view(*x.shape[:-1], -1), open_codes.view(x.shape)
