"""One mixture-of-experts layer over NVFP4 weights, in float32, one expert in memory at a time: what a kernel's output is held against.

Routing is given. Every rounding that belongs to the format is done exactly (weights decode exactly in float32, activations are
quantised by a named recipe); everything else is float32. Beside the output the layer can say how far another correct
implementation may be from it (``spread``), so that a tolerance is a consequence and not a choice; see ``helpers.nvfp4.compare``.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import gelu

from helpers.errors import InputError, UsageError, unknown
from helpers.nvfp4.codec import Nvfp4, check, decode, encode
from helpers.nvfp4.elements import E4M3_MAX, e4m3_encode
from helpers.nvfp4.recipes import recipe

# One addition in a tensor core's float32 accumulator: it truncates, so up to one unit in the last place of 2**-23.
ACCUMULATE = 2.0**-23
# ex2.approx, rcp.approx and a multiplication: sigmoid as kernels compute it, relative.
SIGMOID = 2.0**-21
# Half a unit in the last place of bfloat16 is at most this share of the number; as a standard deviation, over the square root of 3.
HALF_BF16 = 2.0**-8

ACTIVATIONS = ("silu", "gelu_tanh", "relu2")
PRECISIONS = ("w4a16", "w4a4", "w4a4_per_token", "w4a8", "float32")


@dataclass(frozen=True)
class Activation:
    """What stands between the two matrix products.

    kind "silu": g * sigmoid(alpha * g) * (u + beta), g = min(gate, limit), u = clamp(up, -limit, limit). "gelu_tanh": gelu(gate) * up.
    "relu2": relu(up) squared, no gate.
    """

    kind: str = "silu"
    alpha: float = 1.0
    beta: float = 0.0
    limit: float = math.inf

    def __post_init__(self):
        if self.kind not in ACTIVATIONS:
            raise unknown("activation", self.kind, ACTIVATIONS)

    @property
    def gated(self) -> bool:
        return self.kind != "relu2"

    def __call__(self, gate: torch.Tensor | None, up: torch.Tensor) -> torch.Tensor:
        """float32 [n, I] from float32 pre-activations [n, I]."""
        if self.kind == "relu2":
            return up.relu().square()
        if self.kind == "gelu_tanh":
            return gelu(gate, approximate="tanh") * up
        gate = gate.clamp(max=self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (up.clamp(-self.limit, self.limit) + self.beta)

    def variance(self, gate, up, gate_variance, up_variance) -> torch.Tensor:
        """Variance of the result from those of its inputs, first order; slopes of silu and gelu never exceed 1.13."""
        if self.kind == "relu2":
            return (2 * up.relu()).square() * up_variance
        one = torch.ones_like(gate)
        along_up = self(gate, one * (1 - self.beta if self.kind == "silu" else 1))
        along_gate = 1.13 * (up.clamp(-self.limit, self.limit) + self.beta)
        return along_gate.square() * gate_variance + along_up.square() * up_variance + (SIGMOID * self(gate, up)).square()


SWIGLU_OAI = Activation("silu", alpha=1.702, beta=1.0, limit=7.0)


@dataclass(frozen=True)
class Precision:
    """What happens to the activations before each matrix product.

    kind "w4a16": rounded to bfloat16. "w4a4": NVFP4 under a static input scale. "w4a4_per_token": NVFP4, one scale a token. "w4a8":
    E4M3 under a static input scale, or one a token where none is given. "float32": left alone, as some references do and no kernel.
    recipe: the NVFP4 arithmetic of the activations.
    """

    kind: str = "w4a16"
    recipe: str = "flashinfer_exact"

    def __post_init__(self):
        if self.kind not in PRECISIONS:
            raise unknown("precision", self.kind, PRECISIONS)
        recipe(self.recipe)

    def round(self, x: torch.Tensor, input_scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """(float32 numbers the product uses, distance between neighbours there), both of the shape [n, K] of ``x``.

        input_scale: as checkpoints store it, amax/2688 for w4a4 and amax/448 for w4a8.
        """
        if self.kind in ("w4a16", "float32"):
            dtype = torch.bfloat16 if self.kind == "w4a16" else torch.float32
            rounded = x.to(dtype).float()
            return rounded, _unit(rounded.abs(), torch.finfo(dtype).eps, torch.finfo(torch.float32).tiny)
        if self.kind == "w4a8":
            peak = x.abs().amax(-1, keepdim=True).float()
            scale = torch.where(peak == 0, 1.0, peak / E4M3_MAX) if input_scale is None else input_scale
            code = e4m3_encode(x.float() / scale).float()
            return code * scale, _unit(code.abs(), 2.0**-3, 2.0**-6) * scale
        return self._nvfp4(x, input_scale)

    def _nvfp4(self, x, input_scale):
        rules = recipe(self.recipe)
        if self.kind == "w4a4" and input_scale is None:
            raise UsageError("w4a4 quantises activations under a static input scale: give input_scales, or use w4a4_per_token")
        g = None if self.kind == "w4a4_per_token" else (1 / input_scale if rules.stores_reciprocal else input_scale)
        encoded = encode(x, self.recipe, g, per_token=self.kind == "w4a4_per_token", name="activations")
        rounded = decode(encoded, torch.float32)
        one = decode(Nvfp4(torch.full_like(encoded.codes, 0x22), encoded.scales, encoded.global_scale, self.recipe), torch.float32)
        magnitude = torch.where(one == 0, 0.0, rounded.abs() / one)
        return rounded, one * torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))


def _unit(magnitude: torch.Tensor, relative: float, smallest_normal: float) -> torch.Tensor:
    """Unit in the last place at ``magnitude``: ``relative`` to the power of two below it."""
    return torch.exp2(torch.floor(torch.log2(magnitude.clamp(min=smallest_normal)))) * relative


@dataclass(frozen=True)
class Expert:
    """One expert: gate and up [I, H] (gate None where the activation has none), down [H, I]. Their global scales may all differ."""

    gate: Nvfp4 | None
    up: Nvfp4
    down: Nvfp4

    def __post_init__(self):
        rows, cols = self.up.shape[-2:]
        for name, part, expected in (("gate", self.gate, (rows, cols)), ("up", self.up, (rows, cols)), ("down", self.down, (cols, rows))):
            if part is not None:
                check(part, name)
                if part.shape != expected:
                    raise InputError(f"{name}: shape {part.shape}, expected {expected} beside up {self.up.shape}")


@dataclass(frozen=True)
class ExpertOutput:
    """What one expert made of its tokens: output float32 [n, H] before the router's weight, tokens and slots [n]; variance or None."""

    expert: int
    tokens: torch.Tensor
    slots: torch.Tensor
    output: torch.Tensor
    variance: torch.Tensor | None


@dataclass(frozen=True)
class MoeOutput:
    """output float32 [T, H]. With ``spread``, else None: variance [T, H] of the difference to another correct implementation, and
    squares [T, H], the sum over the experts of the square of what each contributed."""

    output: torch.Tensor
    variance: torch.Tensor | None
    squares: torch.Tensor | None


Scales = float | torch.Tensor | None


def moe(
    x: torch.Tensor,
    experts: Sequence[Expert] | Callable[[int], Expert],
    ids: torch.Tensor,
    weights: torch.Tensor,
    *,
    activation: Activation = Activation(),
    precision: Precision = Precision(),
    input_scales: tuple[Scales, Scales] = (None, None),
    held: range | None = None,
    spread: bool = False,
) -> MoeOutput:
    """The layer. x [T, H] (what the layer gets, bfloat16 in a model); ids [T, k] expert numbers; weights float32 [T, k].

    experts: indexed by expert number, or a function that makes one, called once per expert that has tokens.
    input_scales: for the first and the second product, one number or one an expert [E]; ``maximum`` makes the former of the latter.
    held: the expert numbers of this expert-parallel rank; others contribute nothing, and the ranks' outputs add up to the layer's.
    """
    output = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    variance, squares = (torch.zeros_like(output) if spread else None for _ in range(2))
    for part in expert_outputs(x, experts, ids, activation, precision, input_scales, held, spread):
        weight = weights[part.tokens, part.slots].float().unsqueeze(1)
        contribution = part.output * weight
        output.index_add_(0, part.tokens, contribution)
        if spread:
            variance.index_add_(0, part.tokens, part.variance * weight.square())
            squares.index_add_(0, part.tokens, contribution.square())
    return MoeOutput(output, variance, squares)


def expert_outputs(
    x: torch.Tensor,
    experts: Sequence[Expert] | Callable[[int], Expert],
    ids: torch.Tensor,
    activation: Activation = Activation(),
    precision: Precision = Precision(),
    input_scales: tuple[Scales, Scales] = (None, None),
    held: range | None = None,
    spread: bool = False,
) -> Iterator[ExpertOutput]:
    """Each expert that has tokens, in order; see ``moe``."""
    if torch.get_float32_matmul_precision() != "highest":
        raise UsageError('the reference needs torch.set_float32_matmul_precision("highest"); TF32 products are not float32')
    for expert in ids.unique().tolist():
        if held is not None and expert not in held:
            continue
        if not callable(experts) and not 0 <= expert < len(experts):
            raise InputError(f"routing names expert {expert}, and the layer has experts 0 to {len(experts) - 1}")
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        part = experts(expert) if callable(experts) else experts[expert]
        if activation.gated != (part.gate is not None):
            raise InputError(f"expert {expert}: {activation.kind} {'needs' if activation.gated else 'has no'} gate projection")
        first, second = (_of(scales, expert) for scales in input_scales)
        output, variance = _run(x[tokens], part, activation, precision, first, second, spread)
        del part  # before the next one is made
        yield ExpertOutput(expert, tokens, slots, output, variance)


def _of(scales: Scales, expert: int) -> float | None:
    if isinstance(scales, torch.Tensor):
        return float(scales if scales.ndim == 0 else scales[expert])
    return scales


def maximum(scales: torch.Tensor) -> float:
    """One input scale for all experts, as kernels take that quantise the tokens once: the largest, so that none saturates."""
    return float(scales.max())


def _run(x, part: Expert, activation, precision, first, second, spread):
    x, _ = precision.round(x, first)
    gate, gate_variance = _product(x, part.gate, None, spread) if part.gate is not None else (None, None)
    up, up_variance = _product(x, part.up, None, spread)
    hidden = activation(gate, up)
    hidden_variance = activation.variance(gate, up, gate_variance, up_variance) if spread else None
    rounded, step = precision.round(hidden, second)
    if spread:
        # Two values a distance d apart round to neighbours a step apart with probability d / step, and then differ by a step.
        # E|d| is 0.8 standard deviations of a normal d. Where d exceeds the step, d itself remains.
        hidden_variance = 0.8 * hidden_variance.sqrt() * step + hidden_variance
    return _product(rounded, part.down, hidden_variance, spread)


def _product(x, weight: Nvfp4, x_variance, spread):
    """x @ weight.T in float32, and its variance: K additions, each wrong by ACCUMULATE of a partial sum, and x's own."""
    w = decode(weight, torch.float32)
    product = x @ w.T
    if not spread:
        return product, None
    w.square_()
    variance = (x.square() @ w.T) * (x.shape[-1] * ACCUMULATE**2)
    return product, variance if x_variance is None else variance + x_variance @ w.T


# One alpha where the checkpoint has two ------------------------------------------------------------------------------


def collapse_globals(gate: Nvfp4, up: Nvfp4, how: str) -> tuple[Nvfp4, Nvfp4]:
    """gate and up (modelopt) as a kernel sees them that takes one global scale for both.

    how "first": gate's is used for both, so up is off by their ratio; SGLang does this under marlin, with a warning, and wherever a
    kernel takes one alpha (sglang 0.5.23 modelopt_quant.py: _compute_gemm1_alphas). "maximum": the larger for both, the other's
    block scales rounded again to E4M3 for it.
    """
    if how not in ("first", "maximum"):
        raise unknown("way to collapse two global scales", how, ("first", "maximum"))
    g = gate.global_scale if how == "first" else torch.maximum(gate.global_scale, up.global_scale)

    def to(part: Nvfp4) -> Nvfp4:
        scales = part.scales if how == "first" else e4m3_encode(part.scales.float() * (part.global_scale / g))
        return Nvfp4(part.codes, scales, g, part.recipe)

    return to(gate), to(up)
