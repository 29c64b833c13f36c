"""The layer in plain torch, on any device: slow, and computed as the kernels do, so that every check has a kernel wherever it runs.

Codes times block scales are exact in bfloat16 (E2M1 x E4M3 has at most 6 significant bits), products accumulate in float32, and
both global scales are multiplied in afterwards: what a tensor core does with block-scaled operands, up to the order of additions.
"""

import torch

from helpers.kernels.inputs import Experts
from helpers.nvfp4.codec import Nvfp4, decode, encode
from helpers.nvfp4.moe import Activation


def prepare(experts: Experts, expert_map: torch.Tensor | None = None, *, quantised: bool):
    """A call as ``flashinfer_moe``'s are. quantised: the activations of both products are NVFP4 under the static input scales (W4A4),
    else bfloat16. expert_map int32 [all experts]: the position here of each expert of the model, -1 for those of other ranks.
    """

    def call(x, ids, weights):
        return _run(experts, x, ids if expert_map is None else expert_map[ids.long()], weights, quantised)

    return call


def _run(experts: Experts, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, quantised: bool) -> torch.Tensor:
    activation = Activation(experts.block.activation)
    output = torch.zeros(x.shape, device=x.device)
    for e in ids[ids >= 0].unique().tolist():
        at, slot = (ids == e).nonzero(as_tuple=True)
        first, second = (scale[e] if quantised else None for scale in (experts.first_input, experts.second_input))
        expert = experts[e]
        rows, alpha = _activations(x[at], first)
        gate, up = (None if w is None else _product(rows, w) * (alpha * w.global_scale) for w in (expert.gate, expert.up))
        rows, alpha = _activations(activation(gate, up), second)
        out = _product(rows, expert.down) * (alpha * expert.down.global_scale)
        output.index_add_(0, at, out * weights[at, slot].unsqueeze(1))
    return output.bfloat16()


def _activations(x: torch.Tensor, input_scale: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | float]:
    """(bfloat16 operand, the number its product is multiplied with)."""
    if input_scale is None:
        return x.bfloat16(), 1.0
    encoded = encode(x, "flashinfer_exact", 1 / input_scale)
    return _unscaled(encoded), 1 / encoded.global_scale


def _unscaled(encoded: Nvfp4) -> torch.Tensor:
    """Codes times block scales, without the global scale."""
    one = torch.ones_like(encoded.global_scale)
    return decode(Nvfp4(encoded.codes, encoded.scales, one, encoded.recipe), torch.bfloat16)


def _product(x: torch.Tensor, weight: Nvfp4) -> torch.Tensor:
    """float32 x @ weight.T of bfloat16 operands."""
    w = _unscaled(weight)
    return torch.mm(x, w.T, out_dtype=torch.float32) if x.is_cuda else x.float() @ w.float().T
