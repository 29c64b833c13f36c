"""FlashInfer's low-latency MoE on plain multiply-adds, for a few tokens: no tensor core, linear scales.

Facts: flashinfer 0.7.4 fused_moe/backends/frost_low_latency/fma/fp4_weight_only.py (tactics: columns a thread block of either
product, then values a load or routes a group), runner.py: top-k at most 32.
"""

import cutlass.cute as cute
import torch
from flashinfer.fused_moe.api import SwiGLU
from flashinfer.fused_moe.backends.frost_low_latency.fma import fp4_weight_only
from flashinfer.fused_moe.backends.frost_low_latency.fma.activation_config import lower_activation

from helpers.kernels.configurations import Recipe, fake
from helpers.kernels.geometry import NVFP4_BLOCK, Block
from helpers.kernels.targets import Target

MOST_TOP_K = 32
# Name -> tokens, columns of both products, values a load of both, routes a group.
TACTICS = {
    "1 token, 2x2 columns": (1, 2, 2, 4, 4, 1),
    "1 token, 2x4 columns, wide loads": (1, 2, 4, 8, 8, 1),
    "8 tokens, 4x4 columns, wide loads": (8, 4, 4, 8, 8, 1),
    "8 tokens, 2x2 columns, 4 routes together": (8, 2, 2, 4, 4, 4),
}


def tactics(block: Block) -> dict[str, bool]:
    return dict.fromkeys(TACTICS, block.top_k <= MOST_TOP_K and block.activation == "silu")


def moe(block: Block, target: Target, tactic: str) -> None:
    tokens, first, second, first_values, second_values, group = TACTICS[tactic]
    h, i, e, k = block.hidden, block.intermediate, block.experts, block.top_k
    u8, f32, i32, bf16 = torch.uint8, torch.float32, torch.int32, torch.bfloat16
    arguments = (
        fake.tensor(bf16, tokens, h),
        fake.tensor(u8, e, 2 * i, h // 2),
        fake.tensor(u8, e, 2 * i, h // NVFP4_BLOCK),
        fake.tensor(f32, e, 2),
        fake.tensor(u8, e, h, i // 2),
        fake.tensor(u8, e, h, i // NVFP4_BLOCK),
        fake.tensor(f32, e),
        fake.tensor(i32, tokens, k),
        fake.tensor(f32, tokens, k),
        fake.tensor(bf16, tokens * k, i),
        fake.tensor(bf16, tokens, h),
    )
    name, parameters = lower_activation(SwiGLU())
    # gated, the activation's parameters, no narrow output, finalise, decode by the instruction where there is one, integer weights
    flags = (name, True, parameters, False, True, target.capability[0] >= 10, NVFP4_BLOCK, False)
    options = f"--gpu-arch {target.arch} --enable-tvm-ffi"
    stream = fake.environment_stream()
    cute.compile(fp4_weight_only.launch, *arguments, first, second, *flags, first_values, second_values, group, stream, options=options)


RECIPES = {"frost_w4a16_moe": Recipe(tactics, moe)}
