"""FlashInfer's CuTe DSL MoE kernels: each function brings the experts into the kernel's layout once and returns how to call it.

A call takes x bfloat16 [T, H], ids int32 [T, k] and weights float32 [T, k], and returns bfloat16 [T, H]; it can be captured in a
CUDA graph once it has run with the same shapes. Facts about arguments: flashinfer 0.7.4, the files named in each docstring.
"""

from collections.abc import Callable

import torch

from helpers.kernels.inputs import Experts
from helpers.nvfp4.layouts import swizzle_128x4

Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _swizzled(scales: torch.Tensor) -> torch.Tensor:
    return swizzle_128x4(scales.view(torch.uint8)).view(torch.float8_e4m3fn)


def b12x_w4a16(experts: Experts, expert_map: torch.Tensor | None = None) -> Call:
    """``b12x_fused_moe(quant_mode="w4a16")`` (fused_moe/cute_dsl/b12x_moe.py): claims SM120 and SM121, and has no gate that asks.

    expert_map int32 [all experts]: the position here of each expert of the model, -1 for those of other ranks.
    """
    from flashinfer import b12x_fused_moe

    w1, w2 = experts.w13("up_gate"), experts.down
    s1, s2 = _swizzled(w1.scales), _swizzled(w2.scales)
    k, activation = experts.block.top_k, experts.block.activation
    count = len(experts) if expert_map is None else len(expert_map)

    def call(x, ids, weights):
        output = torch.empty_like(x)
        return b12x_fused_moe(
            x,
            w1.codes,
            s1,
            w2.codes,
            s2,
            ids,
            weights,
            count,
            k,
            w1_alpha=w1.global_scale,
            w2_alpha=w2.global_scale,
            num_local_experts=len(experts),
            expert_map=expert_map,
            output=output,
            activation=activation,
            quant_mode="w4a16",
        )

    return call


def frost(experts: Experts) -> Call:
    """``MoELayer`` with ``FrostLowLatencyConfig`` (fused_moe/api.py): up to 8 tokens, linear scales, no tensor cores."""
    from flashinfer.fused_moe.api import (
        BackendOptions,
        ExpertConfig,
        FrostLowLatencyConfig,
        MoEActivationPack,
        MoEConfig,
        MoEWeightPack,
        QuantConfig,
        QuantFormat,
        RoutingConfig,
        RoutingInputMode,
    )
    from flashinfer.fused_moe.layer import MoELayer

    block = experts.block
    w1, w2 = experts.w13("up_gate"), experts.down
    parts = (w1.codes, w1.scales, w1.global_scale, w2.codes, w2.scales, w2.global_scale)
    packed = MoEWeightPack()
    packed.prepare_for("frost_low_latency", FrostLowLatencyConfig.prepare_nvfp4_weight_only_weights(*parts))
    config = MoEConfig(
        routing=RoutingConfig(num_experts=len(experts), top_k=block.top_k),
        quant=QuantConfig(weight=QuantFormat.NVFP4, activation=QuantFormat.BF16),
        experts=ExpertConfig(intermediate_size=block.intermediate),
        backend=BackendOptions((FrostLowLatencyConfig(max_num_tokens=8),)),
    )
    layer = MoELayer(config)

    def call(x, ids, weights):
        # Packed routing would round the weights to bfloat16.
        return layer(MoEActivationPack(x, None, ids, weights, routing_input_mode=RoutingInputMode.UnpackedPrecomputed), packed)

    return call


def canonical_w4a16(experts: Experts) -> Call:
    """``run_moe_w4a16`` (fused_moe/cute_dsl/blackwell_sm12x/moe_nvfp4_w4a16.py): checkpoint order of the nibbles, HFMA2 products."""
    from flashinfer.fused_moe.cute_dsl.blackwell_sm12x.moe_nvfp4_w4a16 import allocate_workspace, run_moe_w4a16

    block = experts.block
    w1, w2 = experts.w13("gate_up"), experts.down
    s1, s2 = _swizzled(w1.scales), _swizzled(w2.scales)
    workspaces = {}

    def call(x, ids, weights):
        count = len(x)
        if count not in workspaces:
            sizes = (count, block.hidden, block.intermediate, len(experts), block.top_k, block.gated, x.device)
            workspaces[count] = allocate_workspace(*sizes)
        output = torch.empty_like(x)
        parts = (w1.codes, s1, w1.global_scale, w2.codes, s2, w2.global_scale)
        return run_moe_w4a16(x, ids, weights, *parts, output, workspaces[count])

    return call


# Four-bit activations: GPUs with block-scaled tensor cores ------------------------------------------------------------


def cutedsl_wrapper(experts: Experts) -> Call:
    """``CuteDslMoEWrapper`` (fused_moe/cute_dsl/fused_moe.py) as SGLang's standard path calls it, on SM100 and SM103.

    sglang 0.5.23 moe_runner/flashinfer_cutedsl.py: ensure_cutedsl_wrapper, fused_experts_none_to_flashinfer_cutedsl_fp4; weights as
    modelopt_quant.py: process_weights_after_loading lays them out. Its moe_sort is C++, compiled at the first call, with headers from
    the network.
    """
    from flashinfer import CuteDslMoEWrapper
    from flashinfer.cute_dsl.utils import convert_sf_to_mma_layout

    block = experts.block
    w1, w2 = experts.w13("up_gate_64"), experts.down
    first, second = experts.first_input.max(), experts.second_input.max()

    def mma(part):
        rows, cols = part.shape[-2:]
        swizzled = swizzle_128x4(part.scales.view(torch.uint8)).reshape(-1)
        return convert_sf_to_mma_layout(swizzled, m=rows, k=cols, num_groups=len(experts), sf_vec_size=16)

    wrapper = CuteDslMoEWrapper(
        num_experts=len(experts),
        top_k=block.top_k,
        hidden_size=block.hidden,
        intermediate_size=block.intermediate,
        use_cuda_graph=True,
        num_local_experts=len(experts),
        local_expert_offset=0,
        output_dtype=torch.bfloat16,
        device=str(w1.codes.device),
        use_fused_finalize=True,
        quant_mode="w4a4",
    )
    s1, s2 = mma(w1), mma(w2)
    multiplier, a1, a2 = (1 / first).reshape(1), w1.global_scale * first, w2.global_scale * second

    def call(x, ids, weights):
        from flashinfer.quantization.kernels.nvfp4_quantize import SF_LAYOUT_LINEAR, nvfp4_quantize_cute_dsl

        codes, scales = nvfp4_quantize_cute_dsl(x, multiplier, sf_layout=SF_LAYOUT_LINEAR)
        return wrapper.run(
            x=codes,
            x_sf=scales.view(torch.float8_e4m3fn).reshape(len(x), -1),
            token_selected_experts=ids,
            token_final_scales=weights,
            w1_weight=w1.codes,
            w1_weight_sf=s1,
            w1_alpha=a1,
            fc2_input_scale=(1 / second).reshape(1),
            w2_weight=w2.codes,
            w2_weight_sf=s2,
            w2_alpha=a2,
        )

    return call


def masked(experts: Experts) -> Call:
    """Two ``grouped_gemm_nt_masked`` with quantisation between them, as SGLang runs them behind DeepEP, on SM100 and SM103.

    sglang 0.5.23 moe/flashinfer_cutedsl_moe.py: flashinfer_cutedsl_moe_masked. DeepEP would bring each expert its tokens in a matrix
    of its own; here a sort does.
    """
    from flashinfer import scaled_fp4_grouped_quantize, silu_and_mul_scaled_nvfp4_experts_quantize
    from flashinfer.cute_dsl.blockscaled_gemm import grouped_gemm_nt_masked

    block, count = experts.block, len(experts)
    w1, w2 = experts.w13("gate_up"), experts.down
    s1, s2 = _swizzled(w1.scales), _swizzled(w2.scales)
    types = {"ab_dtype": "float4_e2m1fn", "sf_dtype": "float8_e4m3fn", "c_dtype": "bfloat16", "sf_vec_size": 16, "alpha_dtype": "float32"}
    a1, a2 = ((w.global_scale * scale).view(1, 1, count) for w, scale in ((w1, experts.first_input), (w2, experts.second_input)))

    def product(activations, weight, scales, alpha, rows, cols, taken):
        out = torch.empty((count, rows, cols), dtype=torch.bfloat16, device=taken.device).permute(1, 2, 0)
        grouped_gemm_nt_masked(activations, (weight.codes.permute(1, 2, 0), scales), out, taken, alpha=alpha, **types)
        return out.permute(2, 0, 1)

    def call(x, ids, weights):
        grouped, taken, place = by_expert(x, ids, count)
        rows = grouped.shape[1]
        quantised = scaled_fp4_grouped_quantize(grouped, taken, 1 / experts.first_input)
        hidden = product(quantised, w1, s1, a1, rows, w1.codes.shape[1], taken)
        quantised = silu_and_mul_scaled_nvfp4_experts_quantize(hidden, taken, 1 / experts.second_input)
        out = product(quantised, w2, s2, a2, rows, block.hidden, taken).reshape(count * rows, -1)
        return (out[place].view(*ids.shape, -1).float() * weights.unsqueeze(-1)).sum(1).bfloat16()

    return call


def by_expert(x: torch.Tensor, ids: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(tokens by expert [E, T, H], zeros where an expert has fewer than T; how many each has, int32 [E]; where slot i of token t went,
    int64 [T * k], into the first two dimensions as one).
    """
    flat = ids.flatten().long()
    order = flat.argsort(stable=True)
    taken = torch.zeros(count, dtype=torch.int64, device=ids.device).scatter_add_(0, flat, torch.ones_like(flat))
    position = torch.empty_like(order)
    position[order] = torch.arange(len(flat), device=ids.device) - (taken.cumsum(0) - taken)[flat[order]]
    place = flat * len(x) + position
    grouped = x.new_zeros(count * len(x), x.shape[1])
    grouped[place] = x.repeat_interleave(ids.shape[1], 0)
    return grouped.view(count, len(x), -1), taken.int(), place


def b12x_w4a4(experts: Experts) -> Call:
    """``b12x_fused_moe(quant_mode="nvfp4")``, on SM120 and SM121. Scales of activations are amax/2688 here, and the second product's is
    not folded into its alpha (blackwell_sm12x/moe_dispatch.py: launch_sm120_moe folds the first one's).
    """
    from flashinfer import b12x_fused_moe

    w1, w2 = experts.w13("up_gate"), experts.down
    s1, s2 = _swizzled(w1.scales), _swizzled(w2.scales)
    a2 = w2.global_scale * experts.second_input

    def call(x, ids, weights):
        return b12x_fused_moe(
            x,
            w1.codes,
            s1,
            w2.codes,
            s2,
            ids,
            weights,
            len(experts),
            experts.block.top_k,
            w1_alpha=w1.global_scale,
            w2_alpha=a2,
            fc2_input_scale=experts.second_input,
            input_global_scale=experts.first_input,
            output=torch.empty_like(x),
            activation=experts.block.activation,
            quant_mode="nvfp4",
        )

    return call
