"""Two numbers of a model that no release looks at before its first forward, or not in every class: the activation and the top-k.

What a model class itself refuses is in route.py (Family.activation): it raises while the model is built.
"""

from collections.abc import Iterator

from helpers.findings import Finding
from helpers.stages.case import Case
from helpers.stages.modules import family_of

# What the expert kernels compute for these model classes; for the others it is silu.
_COMPUTED = {
    "Gemma4ForCausalLM": "gelu_pytorch_tanh",
    "Gemma4ForConditionalGeneration": "gelu_pytorch_tanh",
    "NemotronHForCausalLM": "relu2",
}


def activation_is_another(case: Case) -> Iterator[Finding]:
    """Most classes do not read hidden_act: their experts compute silu whatever it says, or hand the name on to a kernel."""
    geometry = case.shape.geometry
    computed = _COMPUTED.get(case.checkpoint.architecture, "silu")
    if geometry is None or geometry.activation == computed:
        return
    family = family_of(case.checkpoint)
    yield Finding(
        id="load.activation",
        stage="load",
        severity="abstained",
        read="config.json: hidden_act",
        observed=geometry.activation,
        expected=computed,
        why="the model class builds without complaint; whether its experts compute this activation, another, or stop at the first "
        "forward is not known without running them",
        source=f"sglang {case.release} {family.file if family else 'models'}",
        remedy=f"restore hidden_act as the model was trained ({computed} for this architecture), or compare outputs with the original",
        releases=(case.release.version,),
    )


def top_k_exceeds_experts(case: Case) -> Iterator[Finding]:
    """A token cannot take more experts than there are. Every release builds the model all the same."""
    geometry = case.shape.geometry
    if geometry is None or geometry.top_k <= geometry.experts:
        return
    yield Finding(
        id="load.top_k",
        stage="load",
        severity="abstained",
        read="config.json: num_experts_per_tok, number of experts",
        observed=f"{geometry.top_k} of {geometry.experts} experts for each token",
        expected=f"at most {geometry.experts}",
        why="the model is built without complaint, and the selection meets it at the first forward: torch.topk raises, a fused kernel "
        "may return experts that do not exist",
        source=f"sglang {case.release} layers/moe/topk.py: select_experts",
        remedy="restore num_experts_per_tok and the number of experts as the model was trained",
        releases=(case.release.version,),
    )


SHAPE_RULES = (activation_is_another, top_k_exceeds_experts)
