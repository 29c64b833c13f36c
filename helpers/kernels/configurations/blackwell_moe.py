"""FlashInfer's mixture-of-experts kernels for the data-centre Blackwells (tcgen05), by themselves and as its wrapper combines them.

Facts: flashinfer 0.7.4 fused_moe/cute_dsl/tuner.py (the tactics, and can_implement's arguments), the two grouped GEMM modules beside
it, blackwell/moe_swap_ab.py and moe_w4a16.py, gemm/kernels/grouped_gemm_masked_blackwell.py.
"""

import cutlass.cute as cute
from flashinfer.fused_moe.cute_dsl import tuner
from flashinfer.fused_moe.cute_dsl.blackwell import (
    BlockScaledContiguousGatherGroupedGemmKernel as Gather,
)
from flashinfer.fused_moe.cute_dsl.blackwell import (
    Sm100BlockScaledContiguousGroupedGemmFinalizeFusionKernel as Finalize,
)
from flashinfer.fused_moe.cute_dsl.blackwell import moe_swap_ab_tuner, moe_w4a16
from flashinfer.fused_moe.cute_dsl.blackwell.moe_swap_ab_kernel import Sm100BlockScaledGroupedGemmKernel as SwapAb
from flashinfer.fused_moe.cute_dsl.blackwell.moe_w4a16_kernel import Sm100W4A16GroupedGemmKernel as W4A16
from flashinfer.fused_moe.cute_dsl.blockscaled_contiguous_gather_grouped_gemm_act_fusion import _get_compiled_gather_kernel
from flashinfer.fused_moe.cute_dsl.blockscaled_contiguous_grouped_gemm_finalize_fusion import _get_compiled_finalize_kernel
from flashinfer.fused_moe.cute_dsl.moe_utils import get_max_num_permuted_tokens
from flashinfer.gemm.kernels import grouped_gemm_masked_blackwell as masked
from flashinfer.tllm_enums import ActivationType

from helpers.kernels.configurations import TOKENS, Recipe, fake
from helpers.kernels.configurations.fake import BF16, E4M3, F4, F32, I32, pointer
from helpers.kernels.geometry import NVFP4_BLOCK, Block
from helpers.kernels.targets import Target

ACTIVATIONS = {"silu": ActivationType.Swiglu, "relu2": ActivationType.Relu2}
MASKED = {"128x128": ((128, 128), (1, 1)), "256x128 on 2 SMs": ((256, 128), (2, 1))}
# createpolicy's encoding of evict_last, which the wrapper asks for in both products.
KEEP_IN_L2 = 0x14F0000000000000
# Rows an expert at most, as SGLang's DeepEP dispatch lays them out (grouped_gemm_nt_masked takes [m, k, experts]).
MASKED_ROWS = 512


def _gated(block: Block) -> int:
    return (2 if block.gated else 1) * block.intermediate


def _rows(block: Block, tile: int) -> int:
    """Rows after routing, padded to tiles expert by expert."""
    return get_max_num_permuted_tokens(TOKENS, block.top_k, block.experts, tile)


def _first_legal(block: Block, tactic) -> bool:
    tiler, cluster, _ = tactic
    return block.activation in ACTIVATIONS and Gather.can_implement(
        a_dtype=F4,
        b_dtype=F4,
        sf_dtype=E4M3,
        sf_vec_size=NVFP4_BLOCK,
        c_dtype=F4,
        mma_tiler_mn=tiler,
        cluster_shape_mn=cluster,
        m=_rows(block, tiler[0]),
        n=_gated(block),
        k=block.hidden,
        l=block.experts,
        a_major="k",
        b_major="k",
        c_major="n",
        gated=block.gated,
    )


def _second_legal(block: Block, tactic) -> bool:
    tiler, cluster, _ = tactic
    return Finalize.can_implement(
        a_dtype=F4,
        b_dtype=F4,
        sf_dtype=E4M3,
        sf_vec_size=NVFP4_BLOCK,
        out_dtype=BF16,
        final_scale_dtype=F32,
        mma_tiler_mn=tiler,
        cluster_shape_mn=cluster,
        m=_rows(block, tiler[0]),
        n=block.hidden,
        k=block.intermediate,
        l=block.experts,
        a_major="k",
        b_major="k",
        out_major="n",
    )


def _tiles(tactic) -> str:
    tiler, cluster, _ = tactic
    return f"{tiler[0]}x{tiler[1]} cluster {cluster[0]}x{cluster[1]}"


def _pair(tactic) -> str:
    _, first, second = tactic
    return f"{_tiles(first)} + {_tiles(second)}"


def _firsts() -> dict:
    return {_tiles(first): first for _, first, _ in tuner.ALL_BLACKWELL_MOE_TACTICS}


def _seconds() -> dict:
    return {_tiles(second): second for _, _, second in tuner.ALL_BLACKWELL_MOE_TACTICS}


def _pairs() -> dict:
    return {_pair(tactic): tactic for tactic in tuner.ALL_BLACKWELL_MOE_TACTICS}


def _clusters(target: Target, cluster: tuple[int, int]) -> int:
    return target.sms // (cluster[0] * cluster[1])


def _compile_first(block: Block, target: Target, tactic) -> None:
    tiler, cluster, raster = tactic
    _get_compiled_gather_kernel(
        orig_m=TOKENS,
        permuted_m=_rows(block, tiler[0]),
        n=_gated(block),
        k=block.hidden,
        num_experts=block.experts,
        a_ptr=pointer(F4, 32),
        b_ptr=pointer(F4, 32),
        a_sf_ptr=pointer(E4M3),
        b_sf_ptr=pointer(E4M3),
        c_ptr=pointer(F4, 32),
        c_sf_ptr=pointer(E4M3),
        alpha_ptr=pointer(F32),
        tile_idx_ptr=pointer(I32),
        mn_limit_ptr=pointer(I32),
        token_id_ptr=pointer(I32),
        num_tiles_ptr=pointer(I32),
        norm_const_ptr=pointer(F32),
        a_per_token_scale_ptr=None,
        clamped_relu2_limit_ptr=None,
        max_active_clusters=_clusters(target, cluster),
        stream=fake.stream(),
        a_dtype="float4_e2m1fn",
        b_dtype="float4_e2m1fn",
        sf_dtype="float8_e4m3fn",
        c_dtype="float4_e2m1fn",
        quantize_output=True,
        sf_vec_size=NVFP4_BLOCK,
        tile_size=tiler[0],
        topk=block.top_k,
        cluster_shape_mn=cluster,
        vectorized_f32=True,
        raster_along_m=raster,
        mma_tiler_mn=tiler,
        activation_type=ACTIVATIONS[block.activation].value,
        gated=block.gated,
    )


def _compile_second(block: Block, target: Target, tactic) -> None:
    tiler, cluster, raster = tactic
    _get_compiled_finalize_kernel(
        seq_len=TOKENS,
        permuted_m=_rows(block, tiler[0]),
        n=block.hidden,
        k=block.intermediate,
        num_experts=block.experts,
        topk=block.top_k,
        a_ptr=pointer(F4, 32),
        b_ptr=pointer(F4, 32),
        a_sf_ptr=pointer(E4M3),
        b_sf_ptr=pointer(E4M3),
        c_ptr=pointer(BF16),
        alpha_ptr=pointer(F32),
        tile_idx_ptr=pointer(I32),
        mn_limit_ptr=pointer(I32),
        permuted_idx_ptr=pointer(I32),
        num_tiles_ptr=pointer(I32),
        token_scales_ptr=pointer(F32),
        a_per_token_scale_ptr=None,
        max_active_clusters=_clusters(target, cluster),
        stream=fake.stream(),
        sf_vec_size=NVFP4_BLOCK,
        tile_size=tiler[0],
        cluster_shape_mn=cluster,
        raster_along_m=raster,
        a_dtype=F4,
        b_dtype=F4,
        sf_dtype=E4M3,
        out_dtype=BF16,
        final_scale_dtype=F32,
        mma_tiler_mn=tiler,
    )


def gather(block: Block, target: Target, name: str) -> None:
    _compile_first(block, target, _firsts()[name])


def finalize(block: Block, target: Target, name: str) -> None:
    _compile_second(block, target, _seconds()[name])


def wrapper(block: Block, target: Target, name: str) -> None:
    """Both products of CuteDslMoEWrapper in one tactic of its tuner."""
    _, first, second = _pairs()[name]
    _compile_first(block, target, first)
    _compile_second(block, target, second)


def _w4a16_legal(block: Block, tactic) -> bool:
    def legal(channels: int, reduction: int, gemm) -> bool:
        tiler, cluster, _ = gemm
        return W4A16.can_implement(
            mnkl=(channels, _rows(block, tiler[1]), reduction, block.experts),
            a_dtype=F4,
            b_dtype=BF16,
            c_dtype=BF16,
            a_major="k",
            b_major="k",
            c_major="m",
            mma_tiler=tiler,
            cluster_shape_mn=cluster,
            use_2cta_instrs=tiler[0] == 256,
        )

    first, second = tactic
    known = block.activation in ACTIVATIONS
    return known and legal(_gated(block), block.hidden, first) and legal(block.hidden, block.intermediate, second)


def _w4a16_tactics() -> dict:
    def name(gemm) -> str:
        tiler, cluster, _ = gemm
        return f"{tiler[0]}x{tiler[1]}x{tiler[2]} cluster {cluster[0]}x{cluster[1]}"

    return {f"{name(first)} + {name(second)}": (first, second) for first, second in tuner.W4A16_MOE_TACTICS}


def w4a16(block: Block, target: Target, name: str) -> None:
    """Both products of CuteDslMoEWrapper(quant_mode="w4a16"): weights decoded to bfloat16 on their way to the tensor core."""
    first, second = _w4a16_tactics()[name]
    products = (
        (_gated(block), block.hidden, first, ACTIVATIONS[block.activation]),
        (block.hidden, block.intermediate, second, None),
    )
    for channels, reduction, (tiler, cluster, raster), activation in products:
        is_second = activation is None
        moe_w4a16._get_compiled_kernel(
            num_local_experts=block.experts,
            weight_ptr=pointer(F4, 32),
            weight_sf_ptr=pointer(E4M3),
            activation_ptr=pointer(BF16),
            tile_idx_to_expert_idx_ptr=pointer(I32),
            tile_idx_to_mn_limit_ptr=pointer(I32),
            num_non_exiting_tiles_ptr=pointer(I32),
            alpha_ptr=pointer(F32),
            output_ptr=pointer(BF16, 32),
            permuted_idx_to_expanded_idx_ptr=pointer(I32),
            token_final_scales_ptr=pointer(F32) if is_second else None,
            m=channels,
            n=_rows(block, tiler[1]),
            k=reduction,
            num_tokens=TOKENS,
            top_k=block.top_k,
            max_active_clusters=_clusters(target, cluster),
            stream=fake.stream(),
            activation_type=activation,
            swiglu_alpha=1.0,
            swiglu_beta=0.0,
            swiglu_limit=float("inf"),
            situ_beta=None,
            situ_linear_beta=None,
            use_fused_finalize=is_second,
            enable_pdl=True,
            use_clc_scheduler=False,
            mma_tiler_mnk=tiler,
            cluster_shape_mn=cluster,
            raster_along_m=raster,
            gated_weight_group_size=NVFP4_BLOCK,
            gather_input=not is_second,
        )


def _swap_legal(block: Block, tactic) -> bool:
    _, first, second, depths, _ = tactic
    products = (
        (_gated(block), block.hidden, first, F4, depths[0]),
        (block.hidden, block.intermediate, second, BF16, depths[1]),
    )
    return block.activation in ACTIVATIONS and all(
        SwapAb.can_implement(
            m=channels,
            n=_rows(block, tiler[1]),
            k=reduction,
            output_dtype=output,
            activation_dtype=F4,
            weight_dtype=F4,
            sf_dtype=E4M3,
            sf_vec_size=NVFP4_BLOCK,
            mma_tiler_mn=tiler,
            cluster_shape_mn=cluster,
            k_steps=depth,
        )
        for channels, reduction, (tiler, cluster, _), output, depth in products
    )


def _swap_tactics() -> dict:
    every = (moe_swap_ab_tuner.DEFAULT_SWAP_AB_MOE_TACTIC, *moe_swap_ab_tuner.ALL_SWAP_AB_MOE_TACTICS)
    return {f"{_tiles(t[1])} + {_tiles(t[2])}, steps {t[3][0]} {t[3][1]}" + (", CLC" if t[4] else ""): t for t in every}


def swap_ab(block: Block, target: Target, name: str) -> None:
    """Both products of CuteDslMoEWrapper(swap_ab=True): weights as the tensor core's first operand, so that few tokens waste no rows."""
    _, first, second, depths, clc = _swap_tactics()[name]
    products = ((_gated(block), block.hidden, first, depths[0]), (block.hidden, block.intermediate, second, depths[1]))
    for gathers, (channels, reduction, (tiler, _, _), depth) in zip((True, False), products, strict=True):
        output = F4 if gathers else BF16
        kernel = SwapAb(
            mma_tiler_mnk=(*tiler, 256),
            activation_type=ACTIVATIONS[block.activation].value if gathers else None,
            activation_dtype=F4,
            weight_dtype=F4,
            sf_dtype=E4M3,
            sf_vec_size=NVFP4_BLOCK,
            native_mma_k=96 if target.capability == (10, 3) else 64,
            gather_input=gathers,
            scatter_output=not gathers,
            per_token_scale_is_routed=False,
            k_steps=depth,
            num_stages=None,
            overlap_activation_accumulators=None if gathers else False,
            pdl_signal_at="startup" if gathers else "producer_exit",
            use_clc_scheduler=clc,
            num_tile_info_stages=1,
            prefetch_weights_before_wait=not gathers,
            publish_routing_before_signal=gathers,
            activation_cache_policy=KEEP_IN_L2,
            generate_sfc=gathers,
            output_dtype=output,
            final_scale_dtype=F32,
            top_k=block.top_k,
            swiglu_alpha=1.0,
            swiglu_beta=0.0,
            swiglu_limit=float("inf"),
            use_per_token_scale=False,
            use_fused_finalize=not gathers,
            enable_pdl=True,
            max_active_clusters=target.sms,
        )
        pointers = (
            pointer(F4, 32),
            pointer(E4M3),
            pointer(F4, 32),
            pointer(E4M3, 4 if gathers else 16),
            pointer(output, 32),
            pointer(E4M3) if gathers else None,
            pointer(F32),
            pointer(F32) if gathers else None,
            *(pointer(I32) for _ in range(4)),
            None if gathers else pointer(F32),
            None,
            None,
        )
        sizes = (channels, _rows(block, tiler[1]), reduction, block.experts, TOKENS)
        cute.compile(kernel.wrapper, *pointers, *sizes, stream=fake.stream())


def _masked_legal(block: Block, tiler, cluster) -> bool:
    def legal(n: int, k: int) -> bool:
        sizes = (MASKED_ROWS, n, k, block.experts)
        kernel = masked.Sm100BlockScaledPersistentDenseGemmKernel
        return kernel.can_implement(F4, E4M3, NVFP4_BLOCK, BF16, tiler, cluster, *sizes, "k", "k", "n")

    return legal(_gated(block), block.hidden) and legal(block.hidden, block.intermediate)


def grouped_gemm_masked(block: Block, target: Target, name: str) -> None:
    """The first product as SGLang's DeepEP path calls it: [512, H] rows an expert, of which masked_m are valid, a scale an expert."""
    tiler, cluster = MASKED[name]
    kernel = masked.MaskedBatchedMatmulCuteDSL(
        m=MASKED_ROWS,
        n=_gated(block),
        k=block.hidden,
        l=block.experts,
        a_major="k",
        b_major="k",
        c_major="n",
        ab_dtype=F4,
        sf_dtype=E4M3,
        c_dtype=BF16,
        alpha_dtype=F32,
        sf_vec_size=NVFP4_BLOCK,
        mma_tiler_mn=tiler,
        cluster_shape_mn=cluster,
        sm_count=target.sms,
        sm_version=f"sm_{target.sm}",
    )
    pointers = [pointer(dtype) for dtype in (F4, F4, E4M3, E4M3, BF16, I32)]
    cute.compile(kernel, *pointers, None, pointer(F32), *[None] * 6, fake.stream())


def _legal(named, legal):
    return lambda block: {name: legal(block, tactic) for name, tactic in named().items()}


RECIPES = {
    "gather_grouped_gemm": Recipe(_legal(_firsts, _first_legal), gather),
    "grouped_gemm_finalize": Recipe(_legal(_seconds, _second_legal), finalize),
    "cutedsl_moe_wrapper": Recipe(_legal(_pairs, lambda b, t: _first_legal(b, t[1]) and _second_legal(b, t[2])), wrapper),
    "cutedsl_moe_w4a16": Recipe(_legal(_w4a16_tactics, _w4a16_legal), w4a16),
    "cutedsl_moe_swap_ab": Recipe(_legal(_swap_tactics, _swap_legal), swap_ab),
    "grouped_gemm_masked": Recipe(lambda b: {name: _masked_legal(b, *tiles) for name, tiles in MASKED.items()}, grouped_gemm_masked),
}
