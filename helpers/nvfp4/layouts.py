"""Where a kernel wants each byte: scale-factor layouts, orders of the gate and up rows, and the parts that a rank holds.

Everything here moves elements and changes none; each arrangement has its inverse. Rows are output features, columns of a scale
tensor are blocks of 16 input features.
"""

from dataclasses import dataclass, replace

import torch

from helpers.errors import InputError, UsageError, unknown
from helpers.nvfp4.codec import Nvfp4
from helpers.nvfp4.elements import BLOCK, e4m3_encode, pack, unpack

# Scale factors --------------------------------------------------------------------------------------------------------
#
# A tensor-core instruction reads the scales of 128 rows and 4 blocks (64 elements of K) as one tile of 512 bytes: the four scales of
# a row are one 32-bit word, and rows r, r+32, r+64, r+96 are neighbours. Tiles follow each other along the columns, then the rows.


def padded(rows: int, cols: int, row_tile: int) -> tuple[int, int]:
    """Rows and columns of the smallest whole number of tiles of row_tile x 4."""
    return -(-rows // row_tile) * row_tile, -(-cols // 4) * 4


def _pad(scales: torch.Tensor, row_tile: int) -> torch.Tensor:
    if scales.ndim < 2:
        raise InputError(f"scale factors are [..., rows, K/16], got shape {tuple(scales.shape)}")
    rows, cols = scales.shape[-2:]
    rows_padded, cols_padded = padded(rows, cols, row_tile)
    out = scales.new_zeros(*scales.shape[:-2], rows_padded, cols_padded)
    out[..., :rows, :cols] = scales
    return out


def _check_padded(swizzled: torch.Tensor, rows: int, cols: int, row_tile: int) -> None:
    expected = padded(rows, cols, row_tile)
    if tuple(swizzled.shape[-2:]) != expected:
        raise InputError(
            f"swizzled scale factors have shape {tuple(swizzled.shape)}; {rows} rows and {cols} blocks in tiles of "
            f"{row_tile}x4 take [..., {expected[0]}, {expected[1]}]"
        )


def swizzle_128x4(scales: torch.Tensor) -> torch.Tensor:
    """[..., R, C] to [..., R', C'] (multiples of 128 and 4, zeros in the padding): bytes in the order of tcgen05's scale tiles."""
    x = _pad(scales, 128)
    rows, cols = x.shape[-2:]
    return x.view(-1, rows // 128, 4, 32, cols // 4, 4).permute(0, 1, 4, 3, 2, 5).reshape(x.shape)


def unswizzle_128x4(swizzled: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """The inverse: [..., R', C'] to [..., rows, cols]."""
    _check_padded(swizzled, rows, cols, 128)
    all_rows, all_cols = swizzled.shape[-2:]
    tiles = swizzled.reshape(-1, all_rows // 128, all_cols // 4, 32, 4, 4)
    return tiles.permute(0, 1, 4, 3, 2, 5).reshape(swizzled.shape)[..., :rows, :cols].contiguous()


def offset_128x4(row: torch.Tensor, col: torch.Tensor, cols: int) -> torch.Tensor:
    """Position in the swizzled tensor's storage of the scale at (row, col) of a matrix with ``cols`` columns of scales."""
    tiles_a_row = -(-cols // 4)
    tile = row // 128 * tiles_a_row + col // 4
    return tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + col % 4


def swizzle_8x4(scales: torch.Tensor) -> torch.Tensor:
    """[..., R, C] to [..., R', C'] (multiples of 8 and 4): tiles of 8 rows, for few tokens."""
    x = _pad(scales, 8)
    rows, cols = x.shape[-2:]
    return x.view(-1, rows // 8, 8, cols // 4, 4).transpose(2, 3).reshape(x.shape)


def unswizzle_8x4(swizzled: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """The inverse: [..., R', C'] to [..., rows, cols]."""
    _check_padded(swizzled, rows, cols, 8)
    all_rows, all_cols = swizzled.shape[-2:]
    tiles = swizzled.reshape(-1, all_rows // 8, all_cols // 4, 8, 4)
    return tiles.transpose(2, 3).reshape(swizzled.shape)[..., :rows, :cols].contiguous()


def mma_view(swizzled: torch.Tensor) -> torch.Tensor:
    """[E, R', C'] in 128x4 order as the (32, 4, R'/128, 4, C'/4, E) view that the CuTe DSL kernels take; no byte moves."""
    if swizzled.ndim != 3 or swizzled.shape[1] % 128 or swizzled.shape[2] % 4:
        raise InputError(f"the MMA view is of [experts, rows, blocks] swizzled to 128x4, got shape {tuple(swizzled.shape)}")
    experts, rows, cols = swizzled.shape
    return swizzled.contiguous().view(experts, rows // 128, cols // 4, 32, 4, 4).permute(3, 4, 1, 5, 2, 0)


def from_mma_view(view: torch.Tensor) -> torch.Tensor:
    """The inverse: (32, 4, Rt, 4, Ct, E) to [E, 128*Rt, 4*Ct]."""
    if view.ndim != 6 or (*view.shape[:2], view.shape[3]) != (32, 4, 4):
        raise InputError(f"an MMA view of scale factors has shape (32, 4, rows/128, 4, blocks/4, experts), got {tuple(view.shape)}")
    _, _, row_tiles, _, col_tiles, experts = view.shape
    return view.permute(5, 2, 4, 0, 1, 3).reshape(experts, row_tiles * 128, col_tiles * 4)


# Gate and up rows -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class W13Order:
    """How the gate (w1) and up (w3) rows of one expert share a matrix of 2I rows.

    first: "gate" or "up". group: rows of one before the other's follow; 0 for two halves. used_by: kernels and files.
    """

    first: str
    group: int
    used_by: str


W13_ORDERS = {
    "gate_up": W13Order("gate", 0, "Hugging Face and ModelOpt files; SGLang's default; CuTe DSL with DeepEP (v1)"),
    "up_gate": W13Order("up", 0, "FlashInfer TRT-LLM and CUTLASS; b12x 'w13'"),
    "up_gate_64": W13Order("up", 64, "CuTe DSL on SM100 and SM103 (v2)"),
    "up_gate_16": W13Order("up", 16, "CuTe DSL on SM100 and SM103 with swap_ab"),
    "up_gate_32": W13Order("up", 32, "CuTe DSL BF16 on SM90"),
    "gate_up_1": W13Order("gate", 1, "gpt-oss files: row by row"),
    "up_gate_1": W13Order("up", 1, "TRT-LLM's gated GEMM, before its own shuffle"),
}


def w13_order(name: str) -> W13Order:
    if name not in W13_ORDERS:
        raise unknown("order of gate and up rows", name, W13_ORDERS)
    return W13_ORDERS[name]


def split_w13(w13: torch.Tensor, order: str, dim: int = -2) -> tuple[torch.Tensor, torch.Tensor]:
    """(gate, up), each with half the rows in dimension ``dim``. InputError when the rows do not divide into the order's groups."""
    layout, dim = w13_order(order), dim % w13.ndim
    rows = w13.shape[dim]
    group = layout.group or rows // 2
    if group == 0 or rows % (2 * group):
        raise InputError(f"{order}: {rows} rows (shape {tuple(w13.shape)}) are not a multiple of 2 x {layout.group or 1}")
    grouped = w13.unflatten(dim, (-1, 2, group))
    first, second = (grouped.select(dim + 1, half).flatten(dim, dim + 1) for half in (0, 1))
    return (first, second) if layout.first == "gate" else (second, first)


def join_w13(gate: torch.Tensor, up: torch.Tensor, order: str, dim: int = -2) -> torch.Tensor:
    """The inverse of ``split_w13``."""
    layout, dim = w13_order(order), dim % gate.ndim
    rows = gate.shape[dim]
    if gate.shape != up.shape:
        raise InputError(f"gate and up have shapes {tuple(gate.shape)} and {tuple(up.shape)}; they must be equal")
    group = layout.group or rows
    if group == 0 or rows % group:
        raise InputError(f"{order}: {rows} rows of gate (shape {tuple(gate.shape)}) are not a multiple of {group}")
    pair = (gate, up) if layout.first == "gate" else (up, gate)
    return torch.stack([half.unflatten(dim, (-1, group)) for half in pair], dim + 1).flatten(dim, dim + 2)


def reorder_w13(w13: torch.Tensor, source: str, target: str, dim: int = -2) -> torch.Tensor:
    """From one order to another: for weights, for their scales, for biases alike."""
    return join_w13(*split_w13(w13, source, dim), target, dim)


# Rows and tiles of whole kernels ---------------------------------------------------------------------------------------


def shuffle_rows(x: torch.Tensor) -> torch.Tensor:
    """[..., N, C], N a multiple of 32: rows as TRT-LLM's transposed product takes them, of weights and of their scales alike.

    Within 32 rows, row 4i + j goes to 8j + i: what one thread of the product's epilogue owns lies together
    (flashinfer 0.7.4 utils.py: get_shuffle_matrix_a_row_indices with an epilogue tile of 128).
    """
    return _rows_of_32(x, 8, 4)


def unshuffle_rows(x: torch.Tensor) -> torch.Tensor:
    """The inverse of ``shuffle_rows``."""
    return _rows_of_32(x, 4, 8)


def _rows_of_32(x: torch.Tensor, outer: int, inner: int) -> torch.Tensor:
    if x.shape[-2] % 32:
        raise InputError(f"shuffled rows come in blocks of 32, got {x.shape[-2]} rows (shape {tuple(x.shape)})")
    return x.unflatten(-2, (-1, outer, inner)).transpose(-3, -2).flatten(-4, -2)


# Marlin keeps one 32-bit word a thread and step of its m16n8k16 products: 8 codes of 16 columns of K and 64 rows. A row is
# (tile of 64, warp, half, column of a thread), a column (tile of 16, half, pair of a thread, one of the pair).
_MARLIN_ROWS, _MARLIN_COLUMNS = (4, 2, 8), (2, 4, 2)


def marlin_tiles(codes: torch.Tensor) -> torch.Tensor:
    """Packed codes uint8 [..., N, K/2] to Marlin's int32 [..., K/16, 2N]; N a multiple of 64, K of 16.

    Source: sglang 0.5.23 kernels/jit/csrc/gemm/marlin/gptq_marlin_repack.cuh, 4 bits without a permutation.
    """
    *lead, rows, half = codes.shape
    if rows % 64 or half % 8:
        raise InputError(f"Marlin tiles are 64 rows x 16 columns, got {rows} x {2 * half} (codes {tuple(codes.shape)})")
    x = unpack(codes).reshape(-1, rows // 64, *_MARLIN_ROWS, half // 8, *_MARLIN_COLUMNS)
    words = x.permute(0, 5, 1, 4, 7, 2, 8, 3, 6)  # K tile, row tile, thread column, thread pair, warp; in a word: pair, half, half
    return pack(words.reshape(-1, 8)).view(torch.int32).reshape(*lead, half // 8, 2 * rows)


def from_marlin_tiles(words: torch.Tensor) -> torch.Tensor:
    """The inverse: int32 [..., K/16, 2N] to packed codes uint8 [..., N, K/2]."""
    *lead, tiles, width = words.shape
    if words.dtype != torch.int32 or width % 128:
        raise InputError(f"Marlin tiles are int32 [..., K/16, 2N] with N a multiple of 64, got {words.dtype} {tuple(words.shape)}")
    x = unpack(words.contiguous().view(torch.uint8)).reshape(-1, tiles, width // 128, 8, 4, 4, 2, 2, 2)
    return pack(x.permute(0, 2, 5, 7, 3, 1, 8, 4, 6).reshape(-1, 2)).reshape(*lead, width // 2, tiles * 8)


def marlin_scales(scales: torch.Tensor) -> torch.Tensor:
    """Block scales float8_e4m3fn [..., N, K/16], K above 16 and none negative, to Marlin's [..., K/16, N].

    The sign bit is given to the exponent: a byte is 5 bits of exponent and 3 of mantissa of 128 times the scale, which holds every
    E4M3 number exactly. The dtype says float8_e4m3fn all the same.
    Source: sglang 0.5.23 quantization/marlin_utils_fp4.py: nvfp4_marlin_process_scales; marlin_utils.py: marlin_permute_scales.
    """
    rows = scales.shape[-2]
    if rows % 64:
        raise InputError(f"Marlin permutes scales over 64 rows, got {rows} (shape {tuple(scales.shape)})")
    half = scales.float().mul(128).to(torch.float16).transpose(-1, -2)
    half = half.unflatten(-1, (-1, 8, 8)).transpose(-1, -2).flatten(-3)
    half = half.unflatten(-1, (-1, 2, 2)).transpose(-1, -2).flatten(-3).contiguous()
    return (half.view(torch.int16) >> 7).to(torch.uint8).view(torch.float8_e4m3fn)


def from_marlin_scales(permuted: torch.Tensor) -> torch.Tensor:
    """The inverse: [..., K/16, N] to float8_e4m3fn [..., N, K/16]; InputError for a scale that E4M3 does not have."""
    bits = permuted.contiguous().view(torch.uint8).unflatten(-1, (-1, 2, 2)).transpose(-1, -2).flatten(-3)
    bits = bits.unflatten(-1, (-1, 8, 8)).transpose(-1, -2).flatten(-3).transpose(-1, -2)
    value = (bits.to(torch.int16) << 7).contiguous().view(torch.float16).float() / 128
    scales = e4m3_encode(value)
    if not torch.equal(scales.float(), value):
        raise InputError("Marlin scales: a byte is no E4M3 number times 128")
    return scales


# What a rank holds ----------------------------------------------------------------------------------------------------


def _share(size: int, parts: int, rank: int, what: str, multiple: int = 1) -> slice:
    if not 0 <= rank < parts:
        raise UsageError(f"rank {rank} of {parts}: ranks are 0 to {parts - 1}")
    if size % parts or size // parts % multiple:
        each = f"{size}/{parts} = {size / parts:g}"
        raise UsageError(f"{what} {size} in {parts} parts gives {each}, which must be a whole multiple of {multiple}")
    return slice(size // parts * rank, size // parts * (rank + 1))


def expert_slice(encoded: Nvfp4, ep: int, rank: int) -> Nvfp4:
    """The experts of one expert-parallel rank, from a stack [E, rows, K]."""
    return _cut(encoded, _share(encoded.codes.shape[0], ep, rank, "experts"), dim=0)


def row_slice(encoded: Nvfp4, tp: int, rank: int) -> Nvfp4:
    """One tensor-parallel rank's output features (rows) of [..., rows, K]: one projection at a time, before gate and up are joined."""
    return _cut(encoded, _share(encoded.codes.shape[-2], tp, rank, "output features"), dim=-2)


def column_slice(encoded: Nvfp4, tp: int, rank: int) -> Nvfp4:
    """One tensor-parallel rank's input features (columns) of [..., rows, K]: whole blocks, because a block shares its scale."""
    part = _share(encoded.shape[-1], tp, rank, "input features", BLOCK)
    codes = encoded.codes[..., part.start // 2 : part.stop // 2]
    scales = encoded.scales[..., part.start // BLOCK : part.stop // BLOCK]
    return replace(encoded, codes=codes.contiguous(), scales=scales.contiguous())


def _cut(encoded: Nvfp4, part: slice, dim: int) -> Nvfp4:
    dim %= encoded.codes.ndim

    def cut(x: torch.Tensor) -> torch.Tensor:
        return x.narrow(dim, part.start, part.stop - part.start).contiguous()

    g = encoded.global_scale
    return replace(encoded, codes=cut(encoded.codes), scales=cut(encoded.scales), global_scale=cut(g) if g.ndim > dim else g)
