"""Which NVFP4 kernels there are in the CuTe DSL, what each computes, and for which GPUs its library says it is.

A claim is read from the library where it writes one down for its own checks (`supported_compute_capability`), and typed here, with
the place it was read, where it does not. Facts: flashinfer 0.7.4.
"""

from dataclasses import dataclass
from importlib import import_module

from helpers.errors import unknown
from helpers.kernels.versions import FLASHINFER, Platform, within

SM10X, SM12X = frozenset({100, 103}), frozenset({120, 121})
BLACKWELL = SM10X | SM12X


@dataclass(frozen=True)
class Claim:
    """reads: "module:function" whose annotation names the GPUs, or "". typed: the GPUs where nothing is annotated. source: who says so.
    kernel_for: an entry point that serves more GPUs than this kernel hands the others to another one.
    """

    reads: str = ""
    typed: frozenset[int] = frozenset()
    source: str = ""
    kernel_for: frozenset[int] = BLACKWELL | {90}

    def gpus(self) -> frozenset[int]:
        """Compute capabilities, e.g. 103. Imports the library."""
        if not self.reads:
            return self.typed & self.kernel_for
        module, name = self.reads.split(":")
        return frozenset(getattr(import_module(module), name)._supported_ccs) & self.kernel_for


@dataclass(frozen=True)
class Kernel:
    """entry: what a caller calls. weights, activations: number formats. layout: of scales and rows. shapes: what a block must satisfy,
    beyond what its tactics say. sglang: where SGLang calls it. needs: beyond FlashInfer and the DSL. proof: instructions of which a
    compile for a GPU it claims contains one, as a regular expression.
    """

    name: str
    entry: str
    computes: str
    weights: str
    activations: str
    layout: str
    claim: Claim
    proof: str
    kinds: tuple[str, ...] = ("silu",)
    shapes: str = ""
    sglang: str = ""
    needs: tuple[str, ...] = ()
    versions: tuple[str, str] = FLASHINFER
    reference: str = "helpers.nvfp4.moe"


_MOE = Claim(reads="flashinfer.fused_moe.cute_dsl.fused_moe:cute_dsl_fused_moe_nvfp4", kernel_for=SM10X)
_SORT = "C++ JIT and a network, for its moe_sort (headers are downloaded)"
_B12X = Claim(reads="flashinfer.fused_moe.cute_dsl.b12x_moe:b12x_fused_moe")
_DOC_100 = "SM100 and later, says the docstring; the function does not ask"
_MXF4 = r"tcgen05\.mma.*mxf4nvf4\.block_scale"
_MMA_SYNC_MXF4 = r"mma\.sync.*mxf4nvf4\.block_scale"
_MMA_SYNC = r"mma\.sync.*m16n8k16.*bf16"
_TO_E2M1 = r"cvt\.rn\.satfinite\.e2m1x2\.f32"
_FROM_E2M1 = r"cvt\.rn\.\w+\.e2m1x2"
_RECIPES = "helpers.nvfp4.recipes"

_ALL = (
    Kernel(
        "cutedsl_moe_wrapper",
        "flashinfer.fused_moe.cute_dsl.fused_moe: CuteDslMoEWrapper",
        "the whole layer: route, first product with SwiGLU, second product, weighted sum",
        "NVFP4",
        "NVFP4",
        "scales 128x4; rows up and gate in turns of 64",
        _MOE,
        _MXF4,
        kinds=("silu", "relu2"),
        sglang="flashinfer_cutedsl without an all-to-all",
        needs=(_SORT,),
    ),
    Kernel(
        "gather_grouped_gemm",
        "flashinfer.fused_moe.cute_dsl: blockscaled_contiguous_gather_grouped_gemm_act_fusion_nvfp4",
        "first product of routed rows, SwiGLU, and quantised again",
        "NVFP4",
        "NVFP4",
        "scales 128x4; rows up and gate in turns of 64",
        _MOE,
        _MXF4,
        kinds=("silu", "relu2"),
        sglang="inside CuteDslMoEWrapper",
    ),
    Kernel(
        "grouped_gemm_finalize",
        "flashinfer.fused_moe.cute_dsl: blockscaled_contiguous_grouped_gemm_finalize_fusion_nvfp4",
        "second product, times the router's weights, added into each token's row",
        "NVFP4",
        "NVFP4",
        "scales 128x4",
        _MOE,
        _MXF4,
        kinds=("silu", "relu2"),
        sglang="inside CuteDslMoEWrapper",
    ),
    Kernel(
        "cutedsl_moe_w4a16",
        'flashinfer.fused_moe.cute_dsl.fused_moe: CuteDslMoEWrapper(quant_mode="w4a16")',
        "both products, weights decoded on their way to the tensor core",
        "NVFP4",
        "BF16",
        "scales 128x4; rows up and gate in turns of 16",
        _MOE,
        _FROM_E2M1,
        kinds=("silu", "relu2"),
        sglang="flashinfer_cutedsl on W4A16 experts",
        needs=(_SORT,),
    ),
    Kernel(
        "cutedsl_moe_swap_ab",
        "flashinfer.fused_moe.cute_dsl.fused_moe: CuteDslMoEWrapper(swap_ab=True)",
        "both products with the weights as first operand, for few tokens",
        "NVFP4",
        "NVFP4",
        "scales 128x4; rows up and gate in turns of 16",
        _MOE,
        _MXF4,
        kinds=("silu", "relu2"),
        needs=(_SORT,),
    ),
    Kernel(
        "grouped_gemm_masked",
        "flashinfer.gemm: grouped_gemm_nt_masked",
        "one product for every expert, over as many rows as it received",
        "NVFP4",
        "NVFP4",
        "scales 128x4, six dimensions, experts last",
        Claim(typed=SM10X, source="grouped_gemm_masked_blackwell.py: MaskedBatchedMatmulCuteDSL asserts its SM versions"),
        _MXF4,
        sglang="flashinfer_cutedsl with deepep",
    ),
    Kernel(
        "mm_fp4_cute_dsl",
        'flashinfer: mm_fp4(backend="cute-dsl")',
        "dense product",
        "NVFP4",
        "NVFP4",
        "scales 128x4",
        Claim(reads="flashinfer.gemm.gemm_base:_cute_dsl_gemm_fp4_requirement", kernel_for=SM10X),
        _MXF4,
        sglang="linear layers, --fp4-gemm-backend flashinfer_cutedsl",
    ),
    Kernel(
        "mm_fp4_cute_dsl_sm12x",
        'flashinfer: mm_fp4(backend="cute-dsl")',
        "dense product; the same call on SM12x is another kernel",
        "NVFP4",
        "NVFP4",
        "scales 128x4",
        Claim(reads="flashinfer.gemm.gemm_base:_cute_dsl_gemm_fp4_requirement", kernel_for=SM12X),
        _MMA_SYNC_MXF4,
        shapes="N and K multiples of 64",
    ),
    Kernel(
        "mm_fp4_low_latency",
        'flashinfer: mm_fp4(backend="cutedsl_low_latency")',
        "dense product of up to 8 tokens",
        "NVFP4",
        "NVFP4",
        "scales 128x4 of the weights, 8x4 of the activations",
        Claim(reads="flashinfer.gemm.gemm_base:_cutedsl_low_latency_gemm_fp4_requirement"),
        _MXF4,
    ),
    Kernel(
        "mm_fp4_b12x",
        'flashinfer: mm_fp4(backend="b12x")',
        "dense product",
        "NVFP4",
        "NVFP4",
        "scales 128x4",
        Claim(reads="flashinfer.gemm.gemm_base:_b12x_gemm_fp4_requirement"),
        _MMA_SYNC_MXF4,
        shapes="K a multiple of 32",
    ),
    Kernel(
        "mm_bf16_fp4",
        "flashinfer: mm_bf16_fp4",
        "dense product, weights decoded on their way to the tensor core",
        "NVFP4",
        "BF16",
        "scales 128x4 as a view of six dimensions",
        Claim(reads="flashinfer.gemm.gemm_bf16_fp4:_cute_dsl_bf16_fp4_requirement", kernel_for=SM10X),
        _FROM_E2M1,
        sglang="linear layers in W4A16, with the same flag",
    ),
    Kernel(
        "mm_bf16_fp4_sm12x",
        "flashinfer: mm_bf16_fp4",
        "dense product; the same call on SM12x is another kernel",
        "NVFP4",
        "BF16",
        "weights packed for it (prepare_bf16_fp4_weights)",
        Claim(reads="flashinfer.gemm.gemm_bf16_fp4:_cute_dsl_bf16_fp4_requirement", kernel_for=SM12X),
        _MMA_SYNC,
    ),
    Kernel(
        "b12x_w4a16_moe",
        'flashinfer: b12x_fused_moe(quant_mode="w4a16")',
        "the whole layer in one launch: both products, activation, weighted sum",
        "NVFP4",
        "BF16",
        "scales 128x4, weights repacked by it; up rows first",
        _B12X,
        _MMA_SYNC,
        kinds=("silu", "gelu_tanh", "relu2"),
        needs=("triton", "CUDA 13"),
    ),
    Kernel(
        "b12x_w4a4_moe",
        'flashinfer: b12x_fused_moe(quant_mode="nvfp4")',
        "the whole layer",
        "NVFP4",
        "NVFP4",
        "scales 128x4; up rows first",
        _B12X,
        _MMA_SYNC_MXF4,
        kinds=("silu", "gelu_tanh", "relu2"),
        shapes="H a multiple of 128, I of 16",
        needs=("triton", "CUDA 13"),
    ),
    Kernel(
        "run_moe_w4a16",
        "flashinfer.fused_moe.cute_dsl.blackwell_sm12x.moe_nvfp4_w4a16: run_moe_w4a16",
        "the whole layer, by multiply-adds on weights in the checkpoint's own order",
        "NVFP4",
        "BF16",
        "scales 128x4; gate rows first",
        Claim(typed=SM12X, source="moe_nvfp4_w4a16.py: its docstring; the function does not ask"),
        _FROM_E2M1,
        kinds=("silu", "relu2"),
    ),
    Kernel(
        "run_moe_w4a4",
        "flashinfer.fused_moe.cute_dsl.blackwell_sm12x.moe_nvfp4_w4a4: run_moe_w4a4",
        "the whole layer on block-scaled mma.sync",
        "NVFP4",
        "NVFP4",
        "scales 128x4; gate rows first",
        Claim(typed=SM12X, source="moe_nvfp4_w4a4.py: its docstring; the function does not ask"),
        _MMA_SYNC_MXF4,
        kinds=("silu", "relu2"),
        shapes="H a multiple of 128, I of 64",
    ),
    Kernel(
        "frost_w4a16_moe",
        "flashinfer.fused_moe: MoELayer with FrostLowLatencyConfig",
        "the whole layer for up to 8 tokens, by multiply-adds",
        "NVFP4",
        "BF16",
        "scales linear; up rows first",
        Claim(
            typed=frozenset({90, 100, 103, 120}),
            source="frost_low_latency/runner.py: _check_support (no tensor core path: SM80, SM90, SM120; SM80 not for NVFP4)",
        ),
        r"fma\.rn\.f32",
        shapes="top-k at most 32",
    ),
    Kernel(
        "nvfp4_quantize",
        'flashinfer: nvfp4_quantize(backend="cute-dsl")',
        "quantise rows",
        "",
        "BF16 to NVFP4",
        "scales 128x4, 8x4 or linear",
        Claim(typed=BLACKWELL, source=f"fp4_quantization.py: nvfp4_quantize: {_DOC_100}"),
        _TO_E2M1,
        sglang="before the first product, on SM100",
        reference=_RECIPES,
    ),
    Kernel(
        "nvfp4_quantize_per_token",
        "flashinfer.quantization.kernels.nvfp4_quantize: nvfp4_quantize_per_token_cute_dsl",
        "quantise rows, a global scale a row",
        "",
        "BF16 to NVFP4",
        "scales 128x4, 8x4 or linear",
        Claim(typed=BLACKWELL, source=f"fp4_quantization.py: nvfp4_quantize: {_DOC_100}"),
        _TO_E2M1,
        sglang="flashinfer_cutedsl with per-token activations",
        reference=_RECIPES,
    ),
    Kernel(
        "silu_mul_quantize",
        "flashinfer: silu_and_mul_nvfp4_quantize",
        "SwiGLU and quantise",
        "",
        "BF16 to NVFP4",
        "scales 128x4, 8x4 or linear",
        Claim(typed=BLACKWELL, source="fp4_quantization.py: silu_and_mul_nvfp4_quantize refuses a major capability below 10"),
        _TO_E2M1,
        reference=_RECIPES,
    ),
    Kernel(
        "rmsnorm_quantize",
        "flashinfer.cute_dsl: rmsnorm_fp4quant",
        "RMSNorm and quantise",
        "",
        "BF16 to NVFP4",
        "scales 128x4 or linear",
        Claim(typed=BLACKWELL, source=f"cute_dsl/rmsnorm_fp4quant.py: {_DOC_100}"),
        _TO_E2M1,
        shapes="H at least 64",
        reference=_RECIPES,
    ),
    Kernel(
        "add_rmsnorm_quantize",
        "flashinfer.cute_dsl: add_rmsnorm_fp4quant",
        "residual added, RMSNorm and quantise",
        "",
        "BF16 to NVFP4",
        "scales 128x4 or linear",
        Claim(typed=BLACKWELL, source=f"cute_dsl/add_rmsnorm_fp4quant.py: {_DOC_100}"),
        _TO_E2M1,
        shapes="H at least 64",
        reference=_RECIPES,
    ),
)
KERNELS = {kernel.name: kernel for kernel in _ALL}


def kernel(name: str) -> Kernel:
    if name not in KERNELS:
        raise unknown("kernel", name, KERNELS)
    return KERNELS[name]


def not_offered(kernel: Kernel, here: Platform) -> str:
    """Why a kernel is not offered on a platform that can compile; "" when it is."""
    if here.flashinfer and not within(here.flashinfer, kernel.versions):
        low, high = kernel.versions
        return f"{kernel.name} is described for flashinfer-python {low} to below {high}, and {here.flashinfer} is installed"
    if "triton" in kernel.needs and here.triton is None:
        return f"{kernel.name} needs Triton, which a CPU build of torch does not bring: pip install triton"
    return ""
