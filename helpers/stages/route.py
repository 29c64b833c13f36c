"""Stage 3: which method class every module of the model gets, and which name in the checkpoint decided it.

`route` depends on the checkpoint and the release alone, so it is computed once for each pair; what follows from the
deployment is in consequences.py. Findings here hold for every deployment of that checkpoint on that release.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache

from helpers.checkpoint import Checkpoint
from helpers.deployment import Release
from helpers.findings import Finding
from helpers.stages import route_findings
from helpers.stages.detect import Detection
from helpers.stages.methods import Choice, choose
from helpers.stages.modules import Family, Module, family_of, has_class, modules_of
from helpers.stages.names import Unloadable
from helpers.stages.quant_config import Spec, quant_spec
from helpers.stages.steps import Step


@dataclass(frozen=True, slots=True)
class ModuleRoute:
    """One module of the running model.

    prefix: SGLang's name. kind: "experts", "linear", "lm_head", "attention" or "embedding". algo: what the checkpoint is taken
    to say, None for nothing. method: SGLang's class, "" when there is none. candidates: names tried in the map with the key
    each matched. matched: the key that decided. how: "exact", "packed", "child", "target" or "". excluded_by: the pattern that
    left it unquantised. sources: the checkpoint's names of its parts. unless: why the model class may not ask ("fused" into
    the expert block, "unquantised" by the class itself, "bf16 indexer", "not quantised" at all). source: the function that decided.
    """

    prefix: str
    kind: str
    layer: int | None
    algo: str | None
    method: str
    candidates: tuple[tuple[str, str | None], ...]
    matched: str | None
    how: str
    excluded_by: str | None
    excluded_part: str | None
    sources: tuple[str, ...]
    unless: str
    source: str

    def steps(self, release: Release) -> tuple[Step, ...]:
        """The decision in the order SGLang takes it, for the explorers."""
        source = f"sglang {release} {self.source}"
        steps = [Step("what is it called at run time?", "model class", " + ".join(self.sources), self.prefix, source)]
        for name, key in self.candidates:
            looked = "is one of the map's keys its child?" if name.endswith(".") else "is it in the map?"
            steps.append(Step(looked, "quantized_layers", name, f"yes: {key}" if key else "no", source))
        excluded = "no" if self.excluded_by is None else f"yes: its part {self.excluded_part!r} matches"
        steps.append(Step("is it excluded?", "ignore / exclude_modules", str(self.excluded_by), excluded, source))
        steps.append(Step("which method builds it?", "algorithm", str(self.algo), self.method or "none", source))
        return tuple(steps)


@dataclass(frozen=True, eq=False)
class Routing:
    """All modules of one checkpoint on one release.

    quantization: the name the modules were built under. quant_config: SGLang's class ("" when not quantised). known: whether
    the model class's names are known; otherwise they are assumed to be the checkpoint's own. error, message: the exception
    that ends the load while modules are built, "" when none. spec: the quantisation config itself.
    """

    release: Release
    quantization: str | None
    quant_config: str
    known: bool
    modules: tuple[ModuleRoute, ...]
    error: str
    message: str
    spec: Spec | None
    findings: tuple[Finding, ...]

    @cached_property
    def expert_blocks(self) -> Counter:
        """(algorithm, method) -> number of expert blocks."""
        return Counter((module.algo, module.method) for module in self.modules if module.kind == "experts")

    @cached_property
    def draft_algorithms(self) -> frozenset[str]:
        """Algorithms the map gives to the draft model's layers (keys ``mtp.``)."""
        layers = self.spec.layers.layers if self.spec is not None and self.spec.layers is not None else {}
        return frozenset(self.spec.layers.algorithm(key) for key in layers if key.startswith("mtp."))

    @cached_property
    def expert_kinds(self) -> frozenset[tuple[str | None, str]]:
        """The distinct (algorithm, method) of the expert blocks: all that most rules about a deployment look at."""
        return frozenset(self.expert_blocks)


def route(checkpoint: Checkpoint, detection: Detection, release: Release, quantization: str | None = None) -> Routing:
    """Route every module. quantization: the name ModelConfig ended with when a flag changed it; default: detection's."""
    return _route(checkpoint, detection, release, quantization if quantization is not None else detection.quantization)


@lru_cache(maxsize=256)
def _route(checkpoint: Checkpoint, detection: Detection, release: Release, quantization: str | None) -> Routing:
    family = family_of(checkpoint)
    known = family is not None and has_class(family, checkpoint, release)
    text = checkpoint.text_config
    spec, error, routed = None, None, []
    try:
        spec = quant_spec(
            checkpoint,
            detection,
            release,
            quantization,
            packed=family.packed(text, release) if family else {},
            mapper=family.mapper(release) if family else None,
            remap=family is not None and family.remap,
        )
        _check_activation(family, text)
    except Unloadable as problem:
        error = problem
    if error is None:
        for module in _modules(family, checkpoint, release, quantization, spec):
            try:
                routed.append(_module_route(module, choose(spec, module.prefix, module.kind, release), quantized=spec is not None))
                if spec is not None and module.prefix.endswith(".wo_a") and not release.at_least("0.5.21"):
                    _needs_block_fp8(routed[-1], spec)
            except Unloadable as problem:
                error = problem
                break
    bare = Routing(
        release=release,
        quantization=quantization,
        quant_config=spec.cls if spec else "",
        known=known,
        modules=tuple(routed),
        error=error.error if error else "",
        message=error.message if error else "",
        spec=spec,
        findings=(),
    )
    findings = route_findings.findings(checkpoint, detection, bare, error)
    return Routing(**{**vars(bare), "findings": findings})


def _check_activation(family: Family | None, text: dict) -> None:
    """Some model classes look at hidden_act while their layers are built."""
    named = text.get("hidden_act")
    if family is not None and family.activation and named not in (None, family.activation):
        message = f"Unsupported activation: {named}. Only {family.activation} is supported for now."
        raise Unloadable("ValueError", message, f"{family.file}: __init__")


def _modules(family: Family | None, checkpoint: Checkpoint, release: Release, quantization: str | None, spec: Spec | None):
    if family is not None:
        return modules_of(family, checkpoint, release, quantization or "")
    return route_findings.assumed_modules(checkpoint, spec)


def _needs_block_fp8(module: ModuleRoute, spec: Spec) -> None:
    """Up to 0.5.20 DeepSeek-V4's class insists on block scales for wo_a: its grouped GEMM on Blackwell reads nothing else."""
    if module.method != "Fp8LinearMethod" or spec.block is None:
        raise Unloadable(
            "AssertionError", "FP8 quant_config must create weight_scale_inv", "models/deepseek_v4.py: MqaAttentionBase.__init__"
        )


def _module_route(module: Module, choice: Choice, *, quantized: bool) -> ModuleRoute:
    """quantized: is there a quantisation config at all? Without one the model class asks for no method."""
    by_class = module.unless == "unquantised"
    return ModuleRoute(
        prefix=module.prefix,
        kind=module.kind,
        layer=module.layer,
        algo=None if by_class else choice.algorithm,
        method="UnquantizedLinearMethod" if by_class else choice.method,
        candidates=choice.resolution.candidates,
        matched=choice.resolution.key,
        how=choice.resolution.how,
        excluded_by=choice.excluded.pattern if choice.excluded else None,
        excluded_part=choice.excluded.matched if choice.excluded else None,
        sources=module.sources,
        unless=module.unless if quantized else "not quantised",
        source=choice.source,
    )
