"""FlashInfer's MoE kernels for the workstation Blackwells: b12x in W4A16 and W4A4, and the two that keep the checkpoint's own layout.

Facts: flashinfer 0.7.4 fused_moe/cute_dsl/blackwell_sm12x: moe_w4a16_kernel.py, moe_dispatch.py, moe_nvfp4_w4a16.py,
moe_nvfp4_w4a4.py (_check_shape).
"""

from collections.abc import Callable
from importlib import import_module

import cutlass.cute as cute
import torch

from helpers.kernels.configurations import TOKENS, Recipe, fake
from helpers.kernels.geometry import NVFP4_BLOCK, Block
from helpers.kernels.targets import TARGETS, Target

PACKAGE = "flashinfer.fused_moe.cute_dsl.blackwell_sm12x"
F32, I32, BF16, U8 = torch.float32, torch.int32, torch.bfloat16, torch.uint8

# Name -> tokens, rows a route block, more arguments.
W4A16 = {
    "64 tokens": (64, 8, {}),
    "1 token, top-k sum inside": (1, 8, {"direct_topk_routes": True, "tc_decode_fused_sum": True}),
    "4 tokens": (4, 8, {}),
    "256 tokens": (256, 16, {}),
    "1024 tokens": (1024, 32, {}),
    "4096 tokens": (4096, 64, {}),
    "64 tokens, weights as in the checkpoint": (64, 8, {"weight_layout": "modelopt", "w13_layout": "w13"}),
}
W4A4 = ("micro", "dynamic")
CANONICAL_TOKENS = {"64 tokens": 64, "16 tokens": 16, "1 token": 1}


def _module(name: str):
    return import_module(f"{PACKAGE}.{name}")


def _rows(block: Block) -> int:
    return (2 if block.gated else 1) * block.intermediate


def b12x_w4a16(block: Block, target: Target, tactic: str) -> None:
    tokens, rows, more = W4A16[tactic]
    _module("moe_w4a16_kernel").compile_w4a16_fused_moe(
        size_m=tokens,
        hidden_size=block.hidden,
        intermediate_size=block.intermediate,
        num_experts=block.experts,
        top_k=block.top_k,
        activation=block.activation,
        apply_router_weight_on_input=False,
        zero_fc2_output=False,
        moe_block_size=rows,
        max_m_blocks=tokens * block.top_k,
        sms=target.sms,
        max_shared_mem=target.shared_block,
        **more,
    )


def b12x_w4a4(block: Block, target: Target, tactic: str) -> None:
    dispatch = _module("moe_dispatch")
    h, i, e, k = block.hidden, block.intermediate, block.experts, block.top_k
    if tactic == "micro":
        dispatch._get_micro_kernel(e, e, 1, h, i, k, k, activation=block.activation)
    else:
        dispatch._get_dynamic_kernel(e, TOKENS, h, i, k, TOKENS * k, activation=block.activation)


def _pad(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _scales(experts: int, rows: int, cols: int) -> tuple[int, int, int]:
    return experts, _pad(rows, 128), _pad(cols // NVFP4_BLOCK, 4)


def run_w4a16(block: Block, target: Target, tactic: str) -> None:
    module = _module("moe_nvfp4_w4a16")
    tokens, rows = CANONICAL_TOKENS[tactic], _rows(block)
    h, i, e, k = block.hidden, block.intermediate, block.experts, block.top_k
    persistent, constants, sizes, _ = module._entry(tokens, h, i, rows, e, k, torch.device("cpu"))
    partial, counters, middle = fake.tensor(F32, sizes[0]), fake.tensor(I32, sizes[1]), fake.tensor(BF16, sizes[2])
    weights = (
        fake.tensor(U8, e, rows, h // 2),
        fake.tensor(U8, *_scales(e, rows, h)),
        fake.tensor(F32, e),
        fake.tensor(U8, e, h, i // 2),
        fake.tensor(U8, *_scales(e, h, i)),
        fake.tensor(F32, e),
    )
    x = fake.tensor(BF16, tokens, h)
    if persistent:
        routes, out = (fake.tensor(I32, tokens, k), fake.tensor(F32, tokens, k)), fake.tensor(BF16, tokens, h)
        arguments, program = (x, *routes, *weights, partial, counters, out), module.moe_jitA
    else:
        routes, out = (fake.tensor(I32, tokens * k), fake.tensor(F32, tokens * k)), fake.tensor(BF16, tokens * h)
        arguments, program = (x, *routes, *weights, middle, partial, out, counters), module.moe_jit
    cute.compile(program, *arguments, fake.environment_stream(), *constants.values(), options="--enable-tvm-ffi")


def run_w4a4(block: Block, target: Target, tactic: str) -> None:
    module = _module("moe_nvfp4_w4a4")
    tokens, rows = CANONICAL_TOKENS[tactic], _rows(block)
    h, i, e, k = block.hidden, block.intermediate, block.experts, block.top_k
    program, shapes, _ = module._entry(tokens, h, i, rows, e, k, torch.device("cpu"))
    scratch = [fake.tensor(dtype, *shape) for shape, dtype in shapes]
    # The quantised activations and their scales are passed twice: as bytes, and as words of four of them.
    words = {at: fake.tensor(I32, torch.Size(shapes[at][0]).numel() // 4) for at in (4, 5, 7, 8)}
    arguments = (
        fake.tensor(I32, tokens * k),
        fake.tensor(F32, tokens * k),
        fake.tensor(BF16, tokens, h),
        fake.tensor(U8, e * rows * h // 2),
        fake.tensor(I32, e * rows * (h // NVFP4_BLOCK) // 4),
        fake.tensor(F32, e),
        fake.tensor(U8, e * h * i // 2),
        fake.tensor(I32, e * h * (i // NVFP4_BLOCK) // 4),
        fake.tensor(F32, e),
        fake.tensor(F32, 1),
        fake.tensor(F32, 1),
        *scratch[:4],
        words[4],
        scratch[4],
        words[5],
        scratch[5],
        scratch[6],
        words[7],
        scratch[7],
        words[8],
        scratch[8],
        fake.tensor(BF16, tokens, h),
    )
    cute.compile(program, *arguments, fake.environment_stream(), options="--enable-tvm-ffi")


def _accepts(names, check) -> Callable[[Block], dict[str, bool]]:
    """The library's own check of a geometry raises ValueError; it asks about all variants alike."""

    def tactics(block: Block) -> dict[str, bool]:
        try:
            check(block)
        except ValueError:
            return dict.fromkeys(names, False)
        return dict.fromkeys(names, True)

    return tactics


def _b12x_w4a16_tactics(block: Block) -> dict[str, bool]:
    """A variant is legal when some tile fits either product, with the shared memory of the smaller GPUs it was made for."""
    kernels, smallest = _module("moe_w4a16_kernel"), TARGETS["sm_120a"]

    def fits(tokens: int, rows: int) -> bool:
        try:
            for n, k in ((_rows(block), block.hidden), (block.hidden, block.intermediate)):
                kernels._select_tile_config(
                    problem_m=tokens,
                    problem_n=n,
                    problem_k=k,
                    top_k=block.top_k,
                    moe_block_size=rows,
                    sms=smallest.sms,
                    max_shared_mem=smallest.shared_block,
                )
        except ValueError:
            return False
        return True

    return {name: fits(tokens, rows) for name, (tokens, rows, _) in W4A16.items()}


def _check_b12x_w4a4(block: Block) -> None:
    _module("moe_dispatch")._validate_w4a4_dimensions(block.hidden, block.intermediate, "nvfp4")


def _check_w4a4(block: Block) -> None:
    _module("moe_nvfp4_w4a4")._check_shape(block.hidden, block.intermediate, _rows(block))


def _check_w4a16(block: Block) -> None:
    """The library plans its tiles for any geometry; asked for the plan, it raises for none that is a multiple of 16."""
    for tokens in CANONICAL_TOKENS.values():
        sizes = (tokens, block.hidden, block.intermediate, _rows(block), block.experts, block.top_k)
        _module("moe_nvfp4_w4a16")._entry(*sizes, torch.device("cpu"))


RECIPES = {
    "b12x_w4a16_moe": Recipe(_b12x_w4a16_tactics, b12x_w4a16),
    "b12x_w4a4_moe": Recipe(_accepts(W4A4, _check_b12x_w4a4), b12x_w4a4),
    "run_moe_w4a16": Recipe(_accepts(CANONICAL_TOKENS, _check_w4a16), run_w4a16),
    "run_moe_w4a4": Recipe(_accepts(CANONICAL_TOKENS, _check_w4a4), run_w4a4),
}
