"""What a runner holds, against the checkpoint: every layout comes back exactly, and everything that is put out of order is named."""

import pytest
import torch

from helpers.checkpoint import open_checkpoint
from helpers.errors import InputError
from helpers.nvfp4 import proof
from helpers.nvfp4.codec import Nvfp4
from helpers.nvfp4.faults import FAULTS
from helpers.nvfp4.layouts import join_w13, marlin_scales, marlin_tiles, mma_view, shuffle_rows, swizzle_128x4
from helpers.nvfp4.moe import Activation, collapse_globals
from helpers.nvfp4.processed import LAYOUTS, MARLIN_GLOBAL, factor, factor_name, held_expert, input_scales, layout_of
from helpers.nvfp4.proof import prove
from helpers.nvfp4.stored import Share, Stored, blocks

GATED, UNGATED = "qwen3-moe-mixed", "nemotron-h-nvfp4-repaired"
BLOCK = {GATED: "model.layers.0.mlp.experts", UNGATED: "backbone.layers.1.mixer.experts"}
ALL = Share(0, 8)
RELU2 = Activation("relu2")


def opened(name: str) -> Stored:
    """The block with input scales that differ from expert to expert: in the export all experts of a layer share one."""
    stored = Stored(open_checkpoint(name), BLOCK[name])
    for scale in stored.inputs:
        scale.mul_(torch.tensor([1.3, 1.1, 1.9, 1.2, 1.6, 1.4, 1.5, 1.7]))
    return stored


@pytest.fixture(scope="module")
def gated():
    with opened(GATED) as stored:
        yield stored


@pytest.fixture(scope="module")
def ungated():
    with opened(UNGATED) as stored:
        yield stored


class Block(dict):
    """A processed block under construction: (projection, expert) -> Nvfp4, padded; and the global and input scales beside it."""

    def __init__(self, stored, share: Share, padded: int, each: int | None = None):
        self.stored, self.share, self.padded = stored, share, padded
        for e in range(share.experts):
            for name in stored.projections:
                self[name, e] = self.pad(name, share.cut(stored.matrix(share.first + e, name), name, each))
        self.globals = {name: g[share.local].clone() for name, g in stored.globals.items()}
        self.inputs = tuple(scale.clone() for scale in stored.filled_inputs)

    def pad(self, name: str, matrix: Nvfp4) -> Nvfp4:
        rows, columns = (len(matrix.codes), self.padded) if name == "down" else (self.padded, matrix.shape[1])
        codes = torch.zeros(rows, columns // 2, dtype=torch.uint8)
        scales = torch.zeros(rows, columns // 16).to(torch.float8_e4m3fn)
        codes[: len(matrix.codes), : matrix.codes.shape[1]] = matrix.codes
        scales[: len(matrix.codes), : matrix.scales.shape[1]] = matrix.scales
        return Nvfp4(codes, scales, matrix.global_scale)

    def laid_out(self, layout) -> dict[str, torch.Tensor]:
        """The tensors that the runner of the layout would hold."""
        gated = self.stored.gated
        stacks = {}
        for weight, part in (("w13_weight", "codes"), ("w13_weight_scale", "scales")):
            names = ("gate", "up") if gated else ("up",)
            halves = [torch.stack([getattr(self[name, e], part).view(torch.uint8) for e in range(self.share.experts)]) for name in names]
            stacks[weight] = join_w13(*halves, layout.order) if gated else halves[0]
            down = torch.stack([getattr(self["down", e], part).view(torch.uint8) for e in range(self.share.experts)])
            stacks[weight.replace("w13", "w2")] = down
        tensors = {}
        for product, weight in enumerate(("w13_weight", "w2_weight")):
            codes, scales = stacks[weight], stacks[f"{weight}_scale"]
            if layout.shuffled:
                codes, scales = shuffle_rows(codes), shuffle_rows(scales)
            name = layout.scales[product][-1]
            if layout.tiles == "marlin":
                tensors[weight], tensors[name] = marlin_tiles(codes), marlin_scales(scales.view(torch.float8_e4m3fn))
            else:
                tensors[weight], tensors[name] = codes, swizzle_128x4(scales).view(torch.float8_e4m3fn)
                if layout.tiles == "mma":
                    tensors[name] = mma_view(tensors[name].view(torch.uint8)).contiguous()
        scales = input_scales(layout, *self.inputs, self.share.local)
        for name, scale in zip(layout.inputs, scales or (), strict=True):
            tensors[name] = 1 / scale
        for projection in self.stored.projections:
            found = factor(layout, projection, gated, self.globals[projection], scales)
            tensors[factor_name(layout, projection, gated)] = found
        if layout.tiles == "marlin":  # it keeps them in bfloat16
            for name in {factor_name(layout, projection, gated) for projection in self.stored.projections}:
                tensors[name] = (tensors[name] / MARLIN_GLOBAL).bfloat16() * MARLIN_GLOBAL
        return tensors


def faults(proved) -> dict[str, set[str]]:
    """what -> faults, over all projections."""
    found: dict[str, set[str]] = {}
    for row in proved.rows:
        if row.faults:
            found.setdefault(row.what, set()).update(row.faults)
    return found


EXACT = [name for name in LAYOUTS if name != "marlin"]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("share", [ALL, Share(4, 4), Share(0, 8, 1, 2)], ids=["whole", "experts 4 to 7", "second half"])
def test_every_layout_comes_back_exactly(gated, name, share):
    layout = LAYOUTS[name]
    padded = 128 if layout.cuts_padded and share.parts > 1 else 128 // share.parts
    block = Block(gated, share, padded, each=padded)
    if layout.cuts_padded and share.parts > 1:
        share = Share(0, 8)  # 64 rows a rank padded to 128: the first rank takes them all
        block = Block(gated, share, 128)
    proved = prove(gated, block.laid_out(layout), layout, share, Activation())
    assert faults(proved) == {}
    assert proved.exact and proved.output.accepted
    compared = {(row.what, row.projection): row.compared for row in proved.rows}
    assert compared["codes", "up"] == share.experts * block.padded * 64
    assert compared["global scale", "down"] == share.experts


def test_a_rank_behind_the_padding_holds_nothing(gated):
    """128 rows over two ranks that pad their 64 to 128: the second starts behind the end."""
    layout = LAYOUTS["flashinfer_trtllm"]
    share = Share(0, 8, 1, 2)
    proved = prove(gated, Block(gated, share, 128, each=128).laid_out(layout), layout, share, Activation())
    assert faults(proved) == {}
    assert proved.output is None
    assert {row.what for row in proved.rows} == {"padding", "global scale", "input scale"}


@pytest.mark.parametrize("name", EXACT)
def test_padding_of_an_ungated_block(ungated, name):
    layout = LAYOUTS[name]
    proved = prove(ungated, Block(ungated, ALL, 128).laid_out(layout), layout, ALL, RELU2)
    assert faults(proved) == {}
    assert proved.output.accepted
    assert {row.projection for row in proved.rows if row.what == "padding"} == {"up", "down"}


def test_marlin_rounds_the_global_scales(gated):
    layout = LAYOUTS["marlin"]
    proved = prove(gated, Block(gated, ALL, 128).laid_out(layout), layout, ALL, Activation())
    assert faults(proved) == {"global scale": {proof.GLOBALS_ROUNDED}}
    assert not proved.output.accepted
    assert proved.output.relative_l2 < 0.01


def swap(block, e):
    block["gate", e], block["up", e] = block["up", e], block["gate", e]


def repeat(block, e):
    block["down", e] = block["down", e - 1]


def drop_scales(block, e):
    old = block["up", e]
    block["up", e] = Nvfp4(old.codes, torch.zeros_like(old.scales), old.global_scale)


def change_a_row(block, e):
    block["gate", e].codes[5] ^= 0x33


def round_again(block, e):
    block.globals["up"][e] *= 2
    block.stored.globals["up"][e] *= 2
    block["gate", e], block["up", e] = collapse_globals(
        *(Nvfp4(block[n, e].codes, block[n, e].scales, block.globals[n][e]) for n in ("gate", "up")), "maximum"
    )


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(
    ("damage", "what", "fault"),
    [
        (swap, "codes", proof.EXCHANGED),
        (repeat, "codes", proof.OTHER_EXPERT),
        (drop_scales, "block scales", proof.MISSING_SCALES),
        (change_a_row, "codes", proof.UNEXPLAINED),
    ],
)
def test_damaged_weights_are_named(gated, name, damage, what, fault):
    layout, block = LAYOUTS[name], Block(gated, ALL, 128)
    damage(block, 3)
    proved = prove(gated, block.laid_out(layout), layout, ALL, Activation())
    assert faults(proved)[what] == {fault}
    assert {row.experts for row in proved.rows if row.what in ("codes", "block scales") and row.faults} == {(3,)}
    assert not proved.exact and not proved.output.accepted


@pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if fault.undo and name != "reciprocal global scale"])
def test_known_faults_are_named_through_a_layout(gated, fault):
    layout, block = LAYOUTS["flashinfer_cutedsl"], Block(gated, ALL, 128)
    block["down", 2] = FAULTS[fault].inject(block["down", 2])
    proved = prove(gated, block.laid_out(layout), layout, ALL, Activation())
    assert set.union(*faults(proved).values()) == {fault}
    assert not proved.rounded.accepted


def test_block_scales_rounded_again_are_named():
    with Stored(open_checkpoint(GATED), BLOCK[GATED]) as stored:  # of its own: the checkpoint's numbers are changed
        layout, block = LAYOUTS["flashinfer_trtllm"], Block(stored, ALL, 128)
        round_again(block, 1)
        proved = prove(stored, block.laid_out(layout), layout, ALL, Activation())
    assert faults(proved)["block scales"] == {proof.ROUNDED_AGAIN}


def pad_in_front(block, e):
    for name in ("up", "down"):
        old = block[name, e]
        rolled = (old.codes.roll(48, 0), old.scales.roll(48, 0)) if name == "up" else (old.codes.roll(24, 1), old.scales.roll(3, 1))
        block[name, e] = Nvfp4(*rolled, old.global_scale)


def fill_padding(block, e):
    block["up", e].codes[100, 3], block["up", e].scales[100, :] = 0x55, 1.0


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("damage", "fault"), [(pad_in_front, proof.PADDING_MISPLACED), (fill_padding, proof.PADDING_NOT_ZERO)])
def test_padding_in_the_wrong_place_is_named(ungated, name, damage, fault):
    layout, block = LAYOUTS[name], Block(ungated, ALL, 128)
    damage(block, 6)
    proved = prove(ungated, block.laid_out(layout), layout, ALL, RELU2)
    found = set.union(*faults(proved).values())
    assert fault in found and found <= {fault, proof.PADDING_NOT_ZERO}


def test_gate_and_up_padded_together_are_named(gated):
    """64 rows a rank and 96 kept: gate's rows, then up's, then all of the padding."""
    layout, share = LAYOUTS["flashinfer_cutlass"], Share(0, 8, 1, 2)
    block = Block(gated, share, 96)
    for e in range(8):
        gate, up = block["gate", e], block["up", e]
        codes, scales = (torch.cat((b[:64], a[:64], a[64:], b[64:])) for a, b in ((gate.codes, up.codes), (gate.scales, up.scales)))
        block["up", e], block["gate", e] = (Nvfp4(codes[i : i + 96], scales[i : i + 96], up.global_scale) for i in (0, 96))
    proved = prove(gated, block.laid_out(layout), layout, share, Activation())
    assert proof.PADDING_MISPLACED in faults(proved)["codes"]
    assert not proved.output.accepted


@pytest.fixture
def untied():
    """The checkpoint with another global scale for each up projection, as some exports have it."""
    with Stored(open_checkpoint(GATED), BLOCK[GATED]) as stored:
        stored.globals["up"].mul_(torch.linspace(1.1, 3.0, 8))
        yield stored


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.factors[0] == layout.factors[1]])
def test_one_factor_for_both_halves_is_named(untied, name):
    layout, block = LAYOUTS[name], Block(untied, ALL, 128)
    block.globals["up"] = block.globals["gate"]
    proved = prove(untied, block.laid_out(layout), layout, ALL, Activation())
    expected = proof.GLOBALS_EXCHANGED_ROUNDED if name == "marlin" else proof.GLOBALS_EXCHANGED
    assert {row.projection: set(row.faults) for row in proved.rows if row.what == "global scale"}["up"] == {expected}
    assert not proved.rounded.accepted


def test_two_factors_keep_two_global_scales(untied):
    layout = LAYOUTS["flashinfer_trtllm"]
    proved = prove(untied, Block(untied, ALL, 128).laid_out(layout), layout, ALL, Activation())
    assert faults(proved) == {} and proved.output.accepted


def exchange(block):
    block.globals["gate"], block.globals["up"] = block.globals["up"], block.globals["gate"]


def larger(block):
    block.globals["gate"] = block.globals["up"] = torch.maximum(block.globals["gate"], block.globals["up"])


def reciprocal(block):
    block.globals["down"] = 1 / block.globals["down"]


def move(block):
    block.globals["down"] = block.globals["down"].roll(1)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (exchange, {"gate": {proof.GLOBALS_EXCHANGED}, "up": {proof.GLOBALS_EXCHANGED}}),
        (larger, {"gate": {proof.GLOBALS_EXCHANGED}}),  # here the larger one is up's
        (reciprocal, {"down": {proof.GLOBALS_RECIPROCAL}}),
        (move, {"down": {proof.GLOBALS_MOVED}}),
    ],
)
def test_wrong_global_scales_are_named(untied, damage, expected):
    layout, block = LAYOUTS["flashinfer_trtllm"], Block(untied, ALL, 128)
    damage(block)
    proved = prove(untied, block.laid_out(layout), layout, ALL, Activation())
    assert {row.projection: set(row.faults) for row in proved.rows if row.faults} == expected
    assert not proved.rounded.accepted


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (lambda scale: torch.ones_like(scale), proof.INPUTS_ONE),
        (lambda scale: scale[0].expand(8).clone(), proof.INPUTS_FIRST),
        (lambda scale: scale * 1.5, proof.UNEXPLAINED),
        (lambda scale: scale * 0, proof.NOT_A_NUMBER),
        (lambda scale: scale * torch.nan, proof.NOT_A_NUMBER),
    ],
)
def test_wrong_input_scales_are_named(gated, name, given, fault):
    layout, block = LAYOUTS[name], Block(gated, ALL, 128)
    block.inputs = tuple(given(scale) for scale in block.inputs)
    proved = prove(gated, block.laid_out(layout), layout, ALL, Activation())
    assert faults(proved)["input scale"] == {fault}
    assert (proved.output is None) == (fault == proof.NOT_A_NUMBER)


def test_the_largest_of_the_ranks_experts_alone_is_named(gated):
    layout, share = LAYOUTS["flashinfer_cutlass"], Share(4, 4)
    block = Block(gated, share, 128)
    block.inputs = tuple(scale[share.local].max().expand(8) for scale in block.inputs)
    proved = prove(gated, block.laid_out(layout), layout, share, Activation())
    assert proof.INPUTS_LOCAL in faults(proved)["input scale"]


def test_a_missing_input_scale_is_named():
    with Stored(open_checkpoint(GATED), BLOCK[GATED]) as stored:
        stored.inputs[0][3] = torch.nan
        layout = LAYOUTS["flashinfer_trtllm"]
        proved = prove(stored, Block(stored, ALL, 128).laid_out(layout), layout, ALL, Activation())
    assert {row.projection: row.faults for row in proved.rows if row.faults} == {
        "gate and up": (proof.INPUTS_MISSING,),
        "down": (proof.INPUTS_MISSING,),
    }


def test_the_layout_is_the_one_that_the_method_chose():
    plain, words, view = ({"w13_weight": torch.zeros(1, dtype=dtype)} for dtype in (torch.uint8, torch.int32, torch.uint8))
    view["w13_blockscale_mma"] = torch.zeros(1)
    on = {name: {f"enable_{name}_moe": True} for name in ("flashinfer_cutedsl", "flashinfer_trtllm", "flashinfer_cutlass")}
    assert layout_of(words, {}).name == "marlin"
    assert layout_of(view, on["flashinfer_cutedsl"]).name == "flashinfer_cutedsl"
    assert layout_of(plain, on["flashinfer_cutedsl"]).order == "gate_up"
    assert [layout_of(plain, on[name]).name for name in on][1:] == list(on)[1:]
    assert layout_of(plain, {"enable_flashinfer_trtllm_moe": False}).name == "no runner of its own"


def test_what_is_not_there_is_said(gated):
    layout = LAYOUTS["flashinfer_cutedsl"]
    with pytest.raises(InputError, match="no w13_blockscale_mma"):
        held_expert({"w13_weight": torch.zeros(1, 4, 8, dtype=torch.uint8)}, layout, 0, True)
    with pytest.raises(InputError, match=r"no NVFP4 experts under model\.layers\.9"):
        Stored(open_checkpoint(GATED), "model.layers.9.mlp.experts")
    assert blocks([*gated.jobs[0, "up"].codes.tensor.split(), "lm_head.weight"]) == (BLOCK[GATED],)
