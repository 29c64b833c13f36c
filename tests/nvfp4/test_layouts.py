"""Every arrangement has its inverse, and is the one that FlashInfer's own functions make (those that run on a CPU)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.errors import InputError, UsageError
from helpers.nvfp4.codec import decode, encode
from helpers.nvfp4.elements import unpack
from helpers.nvfp4.layouts import (
    W13_ORDERS,
    column_slice,
    expert_slice,
    from_marlin_scales,
    from_marlin_tiles,
    from_mma_view,
    join_w13,
    marlin_scales,
    marlin_tiles,
    mma_view,
    offset_128x4,
    padded,
    reorder_w13,
    row_slice,
    shuffle_rows,
    split_w13,
    swizzle_8x4,
    swizzle_128x4,
    unshuffle_rows,
    unswizzle_8x4,
    unswizzle_128x4,
)

examples = settings(max_examples=60, deadline=None)


def numbered(*shape: int) -> torch.Tensor:
    """Every element different, so that a permutation cannot hide."""
    count = torch.Size(shape).numel()
    return torch.arange(1, count + 1, dtype=torch.int32).view(shape)


SIZES = {"lead": st.sampled_from([(), (1,), (3,), (2, 2)]), "rows": st.integers(1, 300), "cols": st.integers(1, 30)}


@examples
@given(**SIZES)
def test_swizzles_round_trip_and_pad_with_zeros(lead, rows, cols):
    x = numbered(*lead, rows, cols)
    for swizzle, unswizzle, tile in ((swizzle_128x4, unswizzle_128x4, 128), (swizzle_8x4, unswizzle_8x4, 8)):
        swizzled = swizzle(x)
        assert swizzled.shape == (*lead, *padded(rows, cols, tile))
        assert torch.equal(unswizzle(swizzled, rows, cols), x)
        assert (swizzled == 0).sum() == swizzled.numel() - x.numel()


@examples
@given(rows=SIZES["rows"], cols=SIZES["cols"])
def test_the_address_formulas(rows, cols):
    """128x4 by our own formula (the notebook draws it); 8x4 by the index arithmetic of FlashInfer's device function."""
    x = numbered(rows, cols)
    row, col = torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
    assert torch.equal(swizzle_128x4(x).flatten()[offset_128x4(row, col, cols)], x)
    tiles = -(-cols // 4)
    offset = row // 8 * tiles * 32 + col // 4 * 32 + row % 8 * 4 + col % 4
    assert torch.equal(swizzle_8x4(x).flatten()[offset], x)


@examples
@given(**{**SIZES, "lead": st.integers(1, 4)})
def test_swizzle_is_flashinfers(lead, rows, cols):
    from flashinfer.gemm.gemm_bf16_fp4 import _unswizzle_sf_128x4
    from flashinfer.trace.templates.gemm import _unswizzle_batched_sf_128x4

    x = (numbered(lead, rows, cols) % 251).to(torch.uint8)
    swizzled = swizzle_128x4(x)
    assert torch.equal(_unswizzle_batched_sf_128x4(swizzled, lead, rows, cols), x)
    assert torch.equal(_unswizzle_sf_128x4(swizzled[0], rows, cols), x[0])
    assert torch.equal(unswizzle_128x4(swizzled, rows, cols), x)


@examples
@given(experts=st.integers(1, 4), row_tiles=st.integers(1, 3), col_tiles=st.integers(1, 5))
def test_mma_view_is_flashinfers_and_moves_no_byte(experts, row_tiles, col_tiles):
    from flashinfer.cute_dsl.utils import convert_sf_from_mma_layout, convert_sf_to_mma_layout

    x = numbered(experts, 128 * row_tiles, 4 * col_tiles)
    view = mma_view(x)
    theirs = convert_sf_to_mma_layout(x.view(-1, x.shape[-1]), 128 * row_tiles, 64 * col_tiles, experts)
    assert view.data_ptr() == x.data_ptr()
    assert view.stride() == theirs.stride() and torch.equal(view, theirs)
    assert torch.equal(from_mma_view(view), x)
    assert torch.equal(convert_sf_from_mma_layout(view, 128 * row_tiles, 64 * col_tiles, experts).flatten(), from_mma_view(view).flatten())


def test_scales_keep_their_dtype():
    x = encode(torch.randn(130, 80, generator=torch.Generator().manual_seed(6))).scales
    swizzled = swizzle_128x4(x)
    assert swizzled.dtype == torch.float8_e4m3fn
    assert torch.equal(unswizzle_128x4(swizzled, 130, 5).view(torch.uint8), x.view(torch.uint8))


def test_what_the_mma_view_indexes():
    """(row % 32, row % 128 // 32, row // 128, block % 4, block // 4, expert), as the kernel's documentation says."""
    x = numbered(2, 256, 8)
    view = mma_view(swizzle_128x4(x))
    assert view[5, 2, 1, 3, 1, 1] == x[1, 128 + 2 * 32 + 5, 7]


@examples
@given(
    source=st.sampled_from(sorted(W13_ORDERS)), target=st.sampled_from(sorted(W13_ORDERS)), groups=st.integers(1, 3), dim=st.integers(0, 2)
)
def test_w13_orders_round_trip(source, target, groups, dim):
    shape = [2, 3, 4]
    shape[dim] = 2 * 64 * groups
    w13 = numbered(*shape)
    there = reorder_w13(w13, source, target, dim)
    assert torch.equal(reorder_w13(there, target, source, dim), w13)
    gate, up = split_w13(w13, source, dim)
    assert torch.equal(join_w13(gate, up, source, dim), w13)
    assert all(torch.equal(a, b) for a, b in zip(split_w13(there, target, dim), (gate, up), strict=True))


def test_w13_orders_are_flashinfers():
    from flashinfer.fused_moe.core import deinterleave_gated_rows, reorder_rows_for_gated_act_gemm
    from flashinfer.fused_moe.cute_dsl.sm90_contiguous_gather_grouped_gemm_act_fusion import interleave_up_gate_sm90
    from flashinfer.fused_moe.prepare import interleave_cute_dsl_moe_weights

    up_gate, scales = numbered(3, 256, 8), numbered(3, 256, 2)
    for swap_ab, order in ((False, "up_gate_64"), (True, "up_gate_16")):
        theirs = interleave_cute_dsl_moe_weights(up_gate, scales, swap_ab)
        assert torch.equal(reorder_w13(up_gate, "up_gate", order), theirs[0])
        assert torch.equal(reorder_w13(scales, "up_gate", order), theirs[1])
    gate_up = reorder_w13(up_gate, "up_gate", "gate_up")
    assert torch.equal(reorder_w13(gate_up, "gate_up", "up_gate_32"), interleave_up_gate_sm90(gate_up))
    assert torch.equal(reorder_w13(up_gate[0], "up_gate", "up_gate_1"), reorder_rows_for_gated_act_gemm(up_gate[0]))
    assert torch.equal(reorder_w13(up_gate[0], "up_gate_64", "up_gate"), deinterleave_gated_rows(up_gate[0], 64))


@examples
@given(tp=st.sampled_from([1, 2, 4]), ep=st.sampled_from([1, 2, 3]), per_row=st.booleans())
def test_ranks_together_hold_everything_once(tp, ep, per_row):
    x = torch.randn(6, 8, 128, generator=torch.Generator().manual_seed(5))
    encoded = encode(x, per_token=True) if per_row else encode(x, "modelopt", x.abs().amax((1, 2)) / 2688)
    whole = decode(encoded)
    experts = [expert_slice(encoded, ep, rank) for rank in range(ep)]
    assert torch.equal(torch.cat([decode(part) for part in experts]), whole)
    assert torch.equal(torch.cat([decode(row_slice(encoded, tp, rank)) for rank in range(tp)], 1), whole)
    assert torch.equal(torch.cat([decode(column_slice(encoded, tp, rank)) for rank in range(tp)], 2), whole)


def test_slicing_commutes_with_the_order_of_gate_and_up_only_half_by_half():
    """Cutting the joined matrix gives rank 0 all of one half: the mistake that a per-projection cut cannot make."""
    gate, up = numbered(128, 4), numbered(128, 4) + 1000
    joined = join_w13(gate, up, "gate_up")
    right = torch.cat((gate[:64], up[:64]))
    assert not torch.equal(joined[:128], right)
    assert torch.equal(join_w13(gate[:64], up[:64], "gate_up"), right)


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: unswizzle_128x4(torch.zeros(64, 4), 64, 4), "take [..., 128, 4]"),
        (lambda: unswizzle_8x4(torch.zeros(8, 8), 8, 4), "take [..., 8, 4]"),
        (lambda: swizzle_128x4(torch.zeros(4)), "got shape (4,)"),
        (lambda: mma_view(torch.zeros(1, 120, 4)), "got shape (1, 120, 4)"),
        (lambda: from_mma_view(torch.zeros(32, 4, 1, 3, 1, 1)), "got (32, 4, 1, 3, 1, 1)"),
        (lambda: split_w13(torch.zeros(96, 4), "up_gate_64"), "96 rows (shape (96, 4)) are not a multiple of 2 x 64"),
        (lambda: split_w13(torch.zeros(7, 4), "gate_up"), "7 rows"),
        (lambda: join_w13(torch.zeros(8, 4), torch.zeros(4, 4), "gate_up"), "must be equal"),
        (lambda: join_w13(torch.zeros(96, 4), torch.zeros(96, 4), "up_gate_64"), "96 rows of gate"),
    ],
)
def test_wrong_shapes_are_named(call, words):
    with pytest.raises(InputError) as error:
        call()
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: expert_slice(e, 4, 0), "experts 6 in 4 parts gives 6/4 = 1.5"),
        (lambda e: expert_slice(e, 2, 2), "rank 2 of 2"),
        (lambda e: row_slice(e, 3, 0), "output features 8 in 3 parts"),
        (lambda e: column_slice(e, 16, 0), "input features 128 in 16 parts gives 128/16 = 8, which must be a whole multiple of 16"),
        (lambda e: split_w13(e.codes, "up_gate64"), "did you mean up_gate_64"),
    ],
)
def test_impossible_cuts_are_named(call, words):
    with pytest.raises(UsageError) as error:
        call(encode(torch.ones(6, 8, 128)))
    assert words in str(error.value)


@pytest.mark.parametrize("rows", [32, 96, 256])
def test_shuffled_rows_are_flashinfers(rows):
    from flashinfer.utils import get_shuffle_matrix_a_row_indices

    x = numbered(2, rows, 5)
    shuffled = shuffle_rows(x)
    assert torch.equal(shuffled, x[:, get_shuffle_matrix_a_row_indices(x[0], 128)])
    assert torch.equal(unshuffle_rows(shuffled), x)


def repacked(codes: torch.Tensor) -> list[int]:
    """Marlin's words of codes [N, K] by the arithmetic of its repacking kernel, one thread at a time."""
    rows, columns = codes.shape
    words = []
    for k_tile in range(columns // 16):
        for n_tile in range(rows // 64):
            tile = [0] * 128
            for warp in range(4):
                for thread in range(32):
                    row, column = n_tile * 64 + warp * 16 + thread // 4, k_tile * 16 + thread % 4 * 2
                    values = [int(codes[row + half, column + step]) for half in (0, 8) for step in (0, 1, 8, 9)]
                    tile[thread * 4 + warp] = sum(values[source] << 4 * place for place, source in enumerate((0, 2, 4, 6, 1, 3, 5, 7)))
            words += tile
    return words


def test_marlin_tiles_are_the_repacking_kernels():
    codes = torch.randint(0, 256, (2, 128, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    tiles = marlin_tiles(codes)
    assert tiles.shape == (2, 3, 256)
    assert [word & 0xFFFFFFFF for word in tiles[1].flatten().tolist()] == repacked(unpack(codes[1]))
    assert torch.equal(from_marlin_tiles(tiles), codes)


def test_marlin_scales_hold_every_scale_and_their_places():
    """The permutations as the two index lists of the source say them; every non-negative E4M3 number there and back."""
    scales = torch.arange(64 * 8, dtype=torch.int32).remainder(127).to(torch.uint8).view(64, 8).view(torch.float8_e4m3fn)
    permuted = marlin_scales(scales)
    assert torch.equal(from_marlin_scales(permuted).view(torch.uint8), scales.view(torch.uint8))
    by_list = scales.float().T[:, [i + 8 * j for i in range(8) for j in range(8)]].reshape(-1, 4)[:, [0, 2, 1, 3]].reshape(8, 64)
    exponent, mantissa = permuted.view(torch.uint8) >> 3, permuted.view(torch.uint8) & 7
    value = torch.where(exponent == 0, mantissa * 2.0**-24 * 128, (1 + mantissa / 8) * 2.0 ** (exponent.float() - 15)) / 128
    assert torch.equal(value, by_list)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: shuffle_rows(numbered(40, 4)), "blocks of 32, got 40 rows"),
        (lambda: marlin_tiles(torch.zeros(80, 8, dtype=torch.uint8)), "64 rows x 16 columns, got 80 x 16"),
        (lambda: from_marlin_tiles(torch.zeros(1, 64, dtype=torch.int32)), "N a multiple of 64"),
        (lambda: marlin_scales(torch.zeros(80, 8).to(torch.float8_e4m3fn)), "over 64 rows, got 80"),
        (lambda: from_marlin_scales(torch.full((1, 64), 0xFF, dtype=torch.uint8)), "no E4M3 number"),
    ],
)
def test_kernel_layouts_say_what_does_not_fit(act, message):
    with pytest.raises(InputError, match=message):
        act()
