"""FlashInfer's CuTe DSL kernels that quantise activations, beside what each should give: our own encoding of the same numbers.

Facts: flashinfer 0.7.4 quantization/kernels/nvfp4_quantize.py, cute_dsl/rmsnorm_fp4quant.py and add_rmsnorm_fp4quant.py. A GPU before
SM100 has no instruction that rounds to E2M1; there ``helpers.kernels.e2m1_sm90`` must be installed before one of them is compiled.
The two RMSNorm kernels say that they divide by their global scale; they multiply, as all the others do.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from helpers.nvfp4.codec import Nvfp4, encode
from helpers.nvfp4.layouts import swizzle_8x4, swizzle_128x4

EPSILON = 1e-6
LAYOUTS = {"128x4": 0, "8x4": 1, "linear": 2}
EXACT = "FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH"


@dataclass(frozen=True)
class Quantiser:
    """run(inputs, multiplier) -> (codes uint8 [M, K/2], scale bytes as laid out); inputs(count, K, device, seed) makes its tensors;
    numbers(inputs) -> what is quantised, float32 or bfloat16; layout: of the scales; recipe: whose bytes it must give, under exact
    division where the kernel has it; exact: every byte, because nothing before the quantisation is approximate.
    """

    name: str
    layout: str
    recipe: str
    inputs: Callable
    numbers: Callable
    run: Callable
    per_token: bool = False
    exact: bool = True

    def expected(self, inputs, multiplier: float) -> Nvfp4:
        """Codes, and scales still row by row."""
        return encode(self.numbers(*inputs), self.recipe, None if self.per_token else multiplier, per_token=self.per_token)

    def laid_out(self, scales: torch.Tensor) -> torch.Tensor:
        scales = scales.view(torch.uint8)
        return {"128x4": swizzle_128x4, "8x4": swizzle_8x4, "linear": lambda s: s}[self.layout](scales)


def _normal(*shape, device, seed):
    return torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(seed)).bfloat16()


def _one(count, k, device, seed):
    return (_normal(count, k, device=device, seed=seed),)


def _gate_up(count, k, device, seed):
    return (_normal(count, 2 * k, device=device, seed=seed),)


def _with_weight(count, k, device, seed):
    return _normal(count, k, device=device, seed=seed), (1 + 0.1 * _normal(k, device=device, seed=seed + 1).float()).bfloat16()


def _with_residual(count, k, device, seed):
    x, weight = _with_weight(count, k, device, seed)
    return x, _normal(count, k, device=device, seed=seed + 2), weight


def _silu_mul(x):
    gate, up = x.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).bfloat16()  # the kernel rounds before it quantises


def _rmsnorm(x, weight):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight.float()


def _add_rmsnorm(x, residual, weight):
    return _rmsnorm((x.float() + residual.float()).bfloat16(), weight)


def _bytes(codes, scales):
    return codes.view(torch.uint8), scales.view(torch.uint8)


def _scale(x, multiplier):
    return torch.full((1,), multiplier, device=x.device)


def _plain(layout):
    def run(inputs, multiplier):
        from flashinfer.quantization.kernels.nvfp4_quantize import nvfp4_quantize_cute_dsl

        return _bytes(*nvfp4_quantize_cute_dsl(inputs[0], _scale(inputs[0], multiplier), sf_layout=LAYOUTS[layout]))

    return run


def _run_silu(inputs, multiplier):
    from flashinfer.quantization.kernels.nvfp4_quantize import silu_and_mul_nvfp4_quantize_cute_dsl

    return _bytes(*silu_and_mul_nvfp4_quantize_cute_dsl(inputs[0], _scale(inputs[0], multiplier), sf_layout=LAYOUTS["128x4"]))


def _run_per_token(inputs, multiplier):
    from flashinfer.quantization.kernels.nvfp4_quantize import nvfp4_quantize_per_token_cute_dsl

    x = inputs[0]
    codes, scales, _ = nvfp4_quantize_per_token_cute_dsl(x, _scale(x, 1 / 2688), sf_layout=LAYOUTS["128x4"])
    return _bytes(codes, scales)


def _run_rmsnorm(inputs, multiplier):
    from flashinfer.cute_dsl.rmsnorm_fp4quant import rmsnorm_fp4quant

    x, weight = inputs
    return _bytes(*rmsnorm_fp4quant(x, weight, global_scale=_scale(x, multiplier), eps=EPSILON))


def _run_add_rmsnorm(inputs, multiplier):
    from flashinfer.cute_dsl.add_rmsnorm_fp4quant import add_rmsnorm_fp4quant

    x, residual, weight = inputs
    codes, scales, *_ = add_rmsnorm_fp4quant(x, residual.clone(), weight, global_scale=_scale(x, multiplier), eps=EPSILON)
    return _bytes(codes, scales)


QUANTISERS = (
    *(Quantiser(f"nvfp4_quantize_{layout}", layout, "flashinfer_exact", _one, lambda x: x, _plain(layout)) for layout in LAYOUTS),
    Quantiser("nvfp4_quantize_per_token", "128x4", "flashinfer_exact", _one, lambda x: x, _run_per_token, per_token=True),
    Quantiser("silu_mul_quantize", "128x4", "flashinfer_exact", _gate_up, _silu_mul, _run_silu, exact=False),
    Quantiser("rmsnorm_quantize", "linear", "flashinfer_fast", _with_weight, _rmsnorm, _run_rmsnorm, exact=False),
    Quantiser("add_rmsnorm_quantize", "linear", "flashinfer_fast", _with_residual, _add_rmsnorm, _run_add_rmsnorm, exact=False),
)
