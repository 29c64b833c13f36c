"""What a runner keeps of an expert block once its weights are processed, and the way back to the checkpoint's order.

A runner's layout is data: in which tensors the weights, their scales and the kernel's factors lie, and how each was arranged.
Names are those of SGLang's parameters (sglang 0.5.11 to 0.5.23 layers/quantization/modelopt_quant.py:
ModelOptNvFp4FusedMoEMethod.process_weights_after_loading); the arrangements are those of ``layouts``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from helpers.errors import InputError
from helpers.nvfp4.layouts import (
    from_marlin_scales,
    from_marlin_tiles,
    from_mma_view,
    padded,
    split_w13,
    unshuffle_rows,
    unswizzle_128x4,
)

# In front of bfloat16's global scale Marlin puts what turns its own number formats into the right power of two
# (sglang 0.5.23 quantization/marlin_utils_fp4.py: nvfp4_marlin_process_global_scale).
MARLIN_GLOBAL = 2.0**119

Tensors = Mapping[str, torch.Tensor]
Matrix = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Layout:
    """How one runner keeps a block.

    name: the runner, or what stands for it. order: of gate and up (layouts.W13_ORDERS). shuffled: rows in TRT-LLM's order of 32.
    tiles: "128x4", "mma" or "marlin". scales: the tensors of block scales, of the first and the second product; the first name that
    is there. factors: what multiplies the accumulators of gate, up and down. inputs: what activations are multiplied with before
    they are rounded, for the first and the second product; () where they stay bfloat16. source: of the factors, file and function.
    """

    name: str
    order: str
    shuffled: bool
    tiles: str
    scales: tuple[tuple[str, ...], tuple[str, ...]]
    factors: tuple[str, str, str]
    inputs: tuple[str, ...]
    source: str

    @property
    def cuts_padded(self) -> bool:
        """Whether tensor-parallel ranks are cut after padding: rank r starts at r times the padded size, and the last hold less.

        Source: sglang 0.5.23 model_loader/weight_utils.py: narrow_padded_param_and_loaded_weight.
        """
        return self.name == "flashinfer_trtllm"

    @property
    def words(self) -> str:
        """The layout in a line, for a table."""
        tiles = {"128x4": "tiles of 128x4", "mma": "the same tiles as a 6-D view", "marlin": "[K/16, N], permuted over 64 rows"}[self.tiles]
        weights = "Marlin tiles of 16x64, 32-bit words" if self.tiles == "marlin" else "rows, two codes a byte"
        return f"{self.order}; {weights}{', shuffled in 32' if self.shuffled else ''}; scales: {tiles}"


_SWIZZLED = (("w13_blockscale_swizzled", "w13_weight_scale"), ("w2_blockscale_swizzled", "w2_weight_scale"))
_PLAIN = (("w13_weight_scale",), ("w2_weight_scale",))
_INPUTS = ("w13_input_scale_quant", "w2_input_scale_quant")
_METHOD = "layers/quantization/modelopt_quant.py: ModelOptNvFp4FusedMoEMethod.process_weights_after_loading"
_TRTLLM = "layers/moe/moe_runner/flashinfer_trtllm.py: align_fp4_moe_weights_for_flashinfer_trtllm"

LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("flashinfer_cutlass", "up_gate", False, "128x4", _SWIZZLED, ("g1_alphas", "g1_alphas", "g2_alphas"), _INPUTS, _METHOD),
        Layout(
            "flashinfer_cutedsl",
            "up_gate_64",
            False,
            "mma",
            (("w13_blockscale_mma",), ("w2_blockscale_mma",)),
            ("cutedsl.w1_alpha", "cutedsl.w1_alpha", "cutedsl.w2_alpha"),
            ("cutedsl.input_scale", "cutedsl.fc2_input_scale"),
            "layers/moe/moe_runner/flashinfer_cutedsl.py: resolve_cutedsl_standard_scales",
        ),
        Layout(
            "flashinfer_cutedsl with deepep",
            "gate_up",
            False,
            "128x4",
            _SWIZZLED,
            ("g1_alphas", "g1_alphas", "g2_alphas"),
            _INPUTS,
            _METHOD,
        ),
        Layout("flashinfer_trtllm", "up_gate_1", True, "128x4", _PLAIN, ("g1_alphas", "g1_scale_c", "g2_alphas"), _INPUTS, _TRTLLM),
        Layout(
            "marlin",
            "gate_up",
            False,
            "marlin",
            _PLAIN,
            ("w13_weight_scale_2", "w13_weight_scale_2", "w2_weight_scale_2"),
            (),
            "layers/quantization/marlin_utils_fp4.py: prepare_moe_nvfp4_layer_for_marlin",
        ),
        Layout("no runner of its own", "gate_up", False, "128x4", _SWIZZLED, ("g1_alphas", "g1_alphas", "g2_alphas"), _INPUTS, _METHOD),
    )
}


def layout_of(tensors: Tensors, facts: Mapping[str, object]) -> Layout:
    """The layout of a processed block. facts: the switches of the method that processed it, by which it chose one."""
    if tensors["w13_weight"].dtype == torch.int32:
        return LAYOUTS["marlin"]
    if "w13_blockscale_mma" in tensors:
        return LAYOUTS["flashinfer_cutedsl"]
    if facts.get("enable_flashinfer_cutedsl_moe"):
        return LAYOUTS["flashinfer_cutedsl with deepep"]
    named = (name for name in ("flashinfer_trtllm", "flashinfer_cutlass") if facts.get(f"enable_{name}_moe"))
    return LAYOUTS[next(named, "no runner of its own")]


@dataclass(frozen=True)
class HeldExpert:
    """One expert: (codes uint8 [rows, K/2], scales float8_e4m3fn [rows, K/16]) of gate (None without one), up and down.

    The rows of gate and up, and the columns of down, are as many as the runner keeps: at least the rank's share, padding behind it.
    """

    gate: Matrix | None
    up: Matrix
    down: Matrix


def held_expert(tensors: Tensors, layout: Layout, expert: int, gated: bool) -> HeldExpert:
    """One expert, back in the checkpoint's order. InputError when the shapes of the tensors do not fit together."""
    first = _matrix(tensors, layout, "w13_weight", 0, expert)
    down = _matrix(tensors, layout, "w2_weight", 1, expert)
    if not gated:
        return HeldExpert(None, first, down)
    (gate, up), (gate_scales, up_scales) = (split_w13(part, layout.order) for part in first)
    return HeldExpert((gate, gate_scales), (up, up_scales), down)


def _matrix(tensors: Tensors, layout: Layout, weight: str, product: int, expert: int) -> Matrix:
    name = next((name for name in layout.scales[product] if name in tensors), None)
    if weight not in tensors or name is None:
        missing = weight if weight not in tensors else " or ".join(layout.scales[product])
        raise InputError(f"the processed block has no {missing}, which {layout.name} reads; it has {', '.join(sorted(tensors))}")
    if layout.tiles == "marlin":
        return from_marlin_tiles(tensors[weight][expert]), from_marlin_scales(tensors[name][expert])
    codes = tensors[weight][expert].view(torch.uint8)
    rows, blocks = codes.shape[0], codes.shape[1] // 8
    swizzled = from_mma_view(tensors[name][..., expert : expert + 1])[0] if layout.tiles == "mma" else tensors[name][expert]
    if swizzled.numel() == rows * blocks:  # TRT-LLM's is declared with the shape of the rows
        swizzled = swizzled.reshape(padded(rows, blocks, 128))
    scales = unswizzle_128x4(swizzled, rows, blocks).view(torch.float8_e4m3fn)
    return (unshuffle_rows(codes), unshuffle_rows(scales)) if layout.shuffled else (codes, scales)


# The numbers beside the weights -----------------------------------------------------------------------------------------

Scales = tuple[torch.Tensor, torch.Tensor]


def input_scales(layout: Layout, first: torch.Tensor, second: torch.Tensor, local: slice) -> Scales | None:
    """What the runner makes of the checkpoint's input scales, [] or [local experts] each; None where activations stay bfloat16.

    first, second: float32 [E] of all experts of the layer, of gate and up the larger one. local: the rank's experts.
    """
    if not layout.inputs:
        return None
    if layout.name in ("flashinfer_cutlass", "flashinfer_trtllm"):
        return first.max(), second.max()
    if layout.name == "flashinfer_cutedsl":
        return first.max(), second[local].max()
    if layout.name == "flashinfer_cutedsl with deepep":
        return first.max().expand(second[local].shape), second[local]
    return first[local], second[local]


def factor(layout: Layout, projection: str, gated: bool, g: torch.Tensor, scales: Scales | None) -> torch.Tensor:
    """The factor that stands for global scale ``g`` [E] of a projection, in the runner's own order of float32 operations."""
    if scales is None:
        return g * MARLIN_GLOBAL
    first, second = scales
    scale = second if projection == "down" else first
    if layout.name == "flashinfer_cutedsl":
        return g / (1 / scale)
    if layout.name == "flashinfer_trtllm" and projection == "up" and gated:
        return (1 / second) * (first * g)
    return scale * g


def global_scale(layout: Layout, projection: str, gated: bool, found: torch.Tensor, scales: Scales | None) -> torch.Tensor:
    """The inverse of ``factor`` up to rounding: the global scale float32 [E] that a factor amounts to."""
    one = torch.ones(found.shape, dtype=torch.float64)
    wide = None if scales is None else tuple(scale.double() for scale in scales)
    return (found.double() / factor(layout, projection, gated, one, wide)).float()


def factor_name(layout: Layout, projection: str, gated: bool) -> str:
    """The tensor that holds a projection's factor. Without a gate there is one for the first product."""
    if projection == "down":
        return layout.factors[2]
    return layout.factors[1] if projection == "up" and gated else layout.factors[0]
