"""FlashInfer's dense products with NVFP4 weights: layers that are not experts, and one expert at a time.

Facts: flashinfer 0.7.4 gemm/gemm_base.py (mm_fp4), gemm_mm_fp4_cute_dsl.py, gemm_bf16_fp4_cute_dsl.py and gemm/kernels.
"""

import cutlass
import cutlass.cute as cute
import torch
from flashinfer.gemm import gemm_bf16_fp4_cute_dsl as bf16_fp4
from flashinfer.gemm.gemm_mm_fp4_cute_dsl import _make_blockscaled_gemm_compile_fn
from flashinfer.gemm.kernels.cute_dsl import low_latency_blockscaled_gemm as low_latency
from flashinfer.gemm.kernels.cute_dsl.dense_gemm_bf16_fp4_sm100 import Sm100DenseGemmBf16Fp4Kernel
from flashinfer.gemm.kernels.dense_blockscaled_gemm_sm100 import Sm100BlockScaledPersistentDenseGemmKernel as Sm100
from flashinfer.gemm.kernels.dense_blockscaled_gemm_sm120_b12x import DenseGemmKernel as B12x
from flashinfer.gemm.kernels.sm12x_cute import policy as sm12x_policy
from flashinfer.gemm.kernels.sm12x_cute import runner as sm12x_runner

from helpers.kernels.configurations import TOKENS, Recipe, fake
from helpers.kernels.configurations.fake import BF16, E4M3, F4, F32, I32, pointer
from helpers.kernels.geometry import NVFP4_BLOCK, Block
from helpers.kernels.targets import Target

# Name -> tile, cluster, operands exchanged.
CUTE_DSL = {
    "128x128": ((128, 128), (1, 1), False),
    "256x256 on 2 SMs": ((256, 256), (2, 1), False),
    "128x16, operands exchanged": ((128, 16), (1, 1), True),
}
B12X = {"128x128": (128, 128), "64x128": (64, 128), "64x64": (64, 64)}
# Name -> tile, warps, pipeline depth.
BF16_FP4_SM12X = {"64x64x64": ((64, 64, 64), (2, 2, 1), 1), "16x64x128": ((16, 64, 128), (1, 2, 1), 1)}
LOW_LATENCY_TOKENS = 8


def _block_scaled(kernel, target: Target, block: Block, clusters: int, exchanged: bool = False) -> None:
    scale_tiles = (-(-TOKENS // 128), -(-block.intermediate // 128), -(-block.hidden // NVFP4_BLOCK // 4))
    _make_blockscaled_gemm_compile_fn(
        kernel,
        ab_cutlass_dtype=cutlass.Uint8,
        sf_dtype=E4M3,
        c_cutlass_dtype=BF16,
        ab_assumed_align=32,
        swap_ab=exchanged,
        sf_m=scale_tiles[0],
        sf_n=scale_tiles[1],
        sf_k=scale_tiles[2],
        batch_size=1,
        max_active_clusters=target.sms // clusters,
    )()


def cute_dsl(block: Block, target: Target, name: str) -> None:
    """mm_fp4(backend="cute-dsl")."""
    tiler, cluster, exchanged = CUTE_DSL[name]
    _block_scaled(Sm100(NVFP4_BLOCK, tiler, cluster, True, True, None), target, block, cluster[0] * cluster[1], exchanged)


def _cute_dsl_legal(block: Block) -> dict[str, bool]:
    def legal(tiler, cluster, exchanged: bool) -> bool:
        # A narrow tile is for as many tokens as it is wide.
        m, n, c_major = (block.intermediate, tiler[1], "m") if exchanged else (TOKENS, block.intermediate, "n")
        return Sm100.can_implement(F4, E4M3, NVFP4_BLOCK, BF16, tiler, cluster, m, n, block.hidden, 1, "k", "k", c_major)

    return {name: legal(*variant) for name, variant in CUTE_DSL.items()}


def _cute_dsl_sm12x_tactics(block: Block) -> dict:
    """The library's default first: a product of a few tokens, and one of many."""
    return {" ".join(map(str, tactic)): tactic for tactic in (sm12x_policy.SMALL, sm12x_policy.TMA)}


def _cute_dsl_sm12x_legal(block: Block) -> dict[str, bool]:
    sizes = (TOKENS, block.intermediate, block.hidden)
    return {name: sm12x_policy.compatible(*sizes, tactic) for name, tactic in _cute_dsl_sm12x_tactics(block).items()}


def cute_dsl_sm12x(block: Block, target: Target, name: str) -> None:
    """mm_fp4(backend="cute-dsl") on the workstation Blackwells, which is another kernel."""
    tactic = _cute_dsl_sm12x_tactics(block)[name]
    sm12x_runner._compile(TOKENS, block.intermediate, block.hidden, tactic, compute_capability=target.capability)


def b12x(block: Block, target: Target, name: str) -> None:
    """mm_fp4(backend="b12x")."""
    _block_scaled(B12x(NVFP4_BLOCK, B12X[name], (1, 1), use_prefetch=False, enable_pdl=True), target, block, 1)


def _b12x_legal(block: Block) -> dict[str, bool]:
    sizes = (block.intermediate, block.hidden, 1)
    return {name: B12x.can_implement(F4, E4M3, NVFP4_BLOCK, BF16, tiler, (1, 1), *sizes, "k", "k", "n") for name, tiler in B12X.items()}


def _low_latency_tactics(block: Block) -> dict:
    sizes = (block.intermediate, LOW_LATENCY_TOKENS, block.hidden, 1)
    found = low_latency.autotune_tactics(sizes, F4, F4, E4M3, NVFP4_BLOCK, BF16)
    return {
        f"K step {step}, {stages} stages, split {split}": (step, stages, scale_stages, split) for step, stages, scale_stages, split in found
    }


def low_latency_gemm(block: Block, target: Target, name: str) -> None:
    """mm_fp4(backend="cutedsl_low_latency"): up to 8 tokens."""
    step, stages, scale_stages, split = _low_latency_tactics(block)[name]
    kernel = low_latency.LowLatencyBlockscaledGemmKernel(
        acc_dtype=F32,
        mma_tiler_mnk=(128, LOW_LATENCY_TOKENS, step),
        num_ab_stage=stages,
        num_sfb_tmem_stage=scale_stages,
        sf_vec_size=NVFP4_BLOCK,
        use_pdl=True,
        pdl_count=0,
        split_k=split,
        sfb_tmem_store=False,
        use_scale=True,
        use_bias=False,
    )
    sizes = tuple(I32(size) for size in (block.intermediate, LOW_LATENCY_TOKENS, block.hidden, 1))
    operands = (pointer(F4, 32), pointer(E4M3), pointer(F4, 32), pointer(E4M3), pointer(BF16), pointer(F32, 4), None)
    cute.compile(kernel, *operands, sizes, fake.stream())


def _bf16_fp4_tactics() -> dict:
    return {
        f"{tiler[0]}x{tiler[1]}x{tiler[2]} cluster {cluster[0]}x{cluster[1]}, raster along {'M' if raster else 'N'}": (
            tiler,
            cluster,
            raster,
        )
        for tiler, cluster, raster in bf16_fp4._SM100_BF16_FP4_TACTICS
    }


def _bf16_fp4_legal(block: Block) -> dict[str, bool]:
    return {
        name: Sm100DenseGemmBf16Fp4Kernel.can_implement(
            mnkl=(block.intermediate, TOKENS, block.hidden, 1),
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
        for name, (tiler, cluster, _) in _bf16_fp4_tactics().items()
    }


def mm_bf16_fp4(block: Block, target: Target, name: str) -> None:
    """mm_bf16_fp4, the kernel of the data-centre Blackwells; the workstation ones have another."""
    tiler, cluster, raster = _bf16_fp4_tactics()[name]
    operands = (pointer(F4, 32), pointer(E4M3), pointer(BF16, 32), pointer(F32, 4), pointer(BF16, 32))
    sizes = (block.intermediate, TOKENS, block.hidden)
    clusters = target.sms // (cluster[0] * cluster[1])
    bf16_fp4._get_sm100_bf16_fp4_kernel(*operands, *sizes, clusters, fake.stream(), True, tiler, cluster, raster)


def mm_bf16_fp4_sm12x(block: Block, target: Target, name: str) -> None:
    """mm_bf16_fp4 on the workstation Blackwells: any shape, so nothing of the block is in it."""
    tile, atoms, depth = BF16_FP4_SM12X[name]
    bf16 = torch.bfloat16
    bf16_fp4._get_cute_dsl_bf16_fp4_gemm(tile, bf16, bf16, atom_layout=atoms, pipeline_depth=depth, use_fp16_mma=0)


RECIPES = {
    "mm_fp4_cute_dsl": Recipe(_cute_dsl_legal, cute_dsl),
    "mm_bf16_fp4_sm12x": Recipe(lambda block: dict.fromkeys(BF16_FP4_SM12X, True), mm_bf16_fp4_sm12x),
    "mm_fp4_cute_dsl_sm12x": Recipe(_cute_dsl_sm12x_legal, cute_dsl_sm12x),
    "mm_fp4_low_latency": Recipe(lambda block: dict.fromkeys(_low_latency_tactics(block), True), low_latency_gemm),
    "mm_fp4_b12x": Recipe(_b12x_legal, b12x),
    "mm_bf16_fp4": Recipe(_bf16_fp4_legal, mm_bf16_fp4),
}
