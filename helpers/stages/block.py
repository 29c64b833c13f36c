"""Loading one block of experts as the release does it: what each tensor of the checkpoint does to each parameter, in shapes and names.

Nothing is read but names, types and shapes. A tensor that is copied into a parameter of another type is cast without a word, which
is why a wrong type fails only where the shape does.
Sources: layers/moe/fused_moe_triton/layer.py (weight_loader and below), layers/quantization/modelopt_quant.py and unquant.py
(create_weights), the model classes' load_weights.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from helpers.checkpoint import Checkpoint
from helpers.checkpoint.checkpoint import ExpertGeometry
from helpers.deployment import Deployment
from helpers.stages.admit import admit
from helpers.stages.case import Case
from helpers.stages.detect import detect
from helpers.stages.load import PROCESS_RULES, trtllm_width
from helpers.stages.methods import NVFP4_EXPERTS
from helpers.stages.route import route

FP8_EXPERTS, PLAIN_EXPERTS = "ModelOptFp8MoEMethod", "UnquantizedFusedMoEMethod"
METHODS = (NVFP4_EXPERTS, FP8_EXPERTS, PLAIN_EXPERTS)

# How a model class names the projections of an expert, and what it does with an expert's tensor that has no parameter.
PROJECTIONS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
CLASSES = {
    "Qwen3MoeForCausalLM": (PROJECTIONS, "skips"),
    "MiniMaxM2ForCausalLM": ({"w1": "w1", "w3": "w3", "w2": "w2"}, "skips"),
    "Qwen3_5MoeForConditionalGeneration": (PROJECTIONS, "raises"),
    "NemotronHForCausalLM": (PROJECTIONS, "skips"),
}
# models/qwen3_5.py: what ends so is skipped where it has no parameter; anything else is looked up.
SKIPPED_BY_QWEN3_5 = ("bias", "k_scale", "v_scale", "weight_scale", "input_scale")


class CannotLoad(Exception):
    """The release's own exception: its type's name and its text."""

    def __init__(self, error: str, message: str):
        super().__init__(message)
        self.error, self.message = error, message


@dataclass(frozen=True)
class BlockLoad:
    """What loading one block on one rank comes to.

    step: "prepare", "build", "load" or "process" where it fails, "" where it does not. error, message: the exception. method, runner:
    the block's. unwritten: parameter -> local experts of which some element gets no value. dropped: tensors that nothing is done with,
    beside those of experts that another rank holds. known: False where the model has no rules (a model class or a method).
    """

    step: str = ""
    error: str = ""
    message: str = ""
    method: str = ""
    unwritten: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    known: bool = True


@dataclass(frozen=True)
class Share:
    """What one rank holds: experts first … first + local - 1, `width` of the intermediate size, as share `tp_rank` of `tp`."""

    experts: int
    local: int
    first: int
    width: int
    tp: int
    tp_rank: int


@dataclass
class Parameter:
    """shape: with the experts first; every expert of the model where `every`. covered: (expert, part) that got a value."""

    shape: tuple[int, ...]
    parts: int = 1
    every: bool = False
    covered: set = field(default_factory=set)


def load_block(checkpoint: Checkpoint, deployment: Deployment, layer: int, rank: int = 0) -> BlockLoad:
    """The prediction for the tensors of one layer's experts. The checkpoint needs tensors, and dimensions in config.json."""
    detection = detect(checkpoint, deployment.release)
    admission = admit(checkpoint, detection, deployment)
    if not admission.accepted:
        return BlockLoad("prepare", admission.error, admission.message)
    routing = route(checkpoint, detection, deployment.release, admission.model_quantization)
    module = next((module for module in routing.modules if module.kind == "experts" and module.layer == layer), None)
    if routing.error or module is None or module.method not in METHODS or checkpoint.architecture not in CLASSES:
        return BlockLoad(known=False)
    case = Case(checkpoint, detection, admission, routing, deployment)
    geometry = checkpoint.geometry
    share = share_of(geometry, deployment.tp, case.ep, rank)
    loading = _Loading(case, module.method, share)
    try:
        for name, shape, dtype in _tensors(checkpoint, layer):
            loading.load(name, shape, dtype)
    except CannotLoad as stop:
        return BlockLoad("load", stop.error, stop.message, module.method)
    result = {"method": module.method, "unwritten": loading.unwritten(), "dropped": tuple(loading.dropped)}
    if module.method == NVFP4_EXPERTS:
        for rule in PROCESS_RULES:
            for finding in rule(case):
                if finding.severity == "fails_to_load":
                    error, _, message = finding.observed.partition(": ")
                    return BlockLoad("process", error, message, **result)
    return BlockLoad(**result)


def share_of(geometry: ExpertGeometry, tp: int, ep: int, rank: int) -> Share:
    """distributed/parallel_state.py: initialize_model_parallel: ranks of one expert group are tp / ep apart."""
    moe_tp = tp // ep
    local = geometry.experts // ep
    return Share(geometry.experts, local, rank // moe_tp * local, geometry.intermediate // moe_tp, moe_tp, rank % moe_tp)


def _tensors(checkpoint: Checkpoint, layer: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """The tensors of the layer's experts, file by file, in the order of their names."""
    wanted = re.compile(rf"(^|\.)layers\.{layer}\..*\bexperts\b")
    for _, names in checkpoint.tensors.shard_names():
        for name in sorted(filter(wanted.search, names)):
            yield name, checkpoint.tensors.shape(name), checkpoint.tensors.dtype(name)


class _Loading:
    """The parameters of one block while the checkpoint's tensors come in."""

    def __init__(self, case: Case, method: str, share: Share):
        self.case, self.method, self.share = case, method, share
        self.gated = case.shape.geometry.gated
        self.projections, self.unmatched = CLASSES[case.checkpoint.architecture]
        self.padded = case.runner in ("flashinfer_trtllm", "flashinfer_trtllm_routed")
        self.width = trtllm_width(share.width, self.gated, case.release, method == NVFP4_EXPERTS) if self.padded else share.width
        self.parameters = self._parameters(case)
        self.dropped: list[str] = []

    def _parameters(self, case: Case) -> dict[str, Parameter]:
        hidden, halves = case.shape.geometry.expert_hidden, 2 if self.gated else 1
        rows, local, everyone = halves * self.width, self.share.local, self.share.experts
        if self.method == PLAIN_EXPERTS:
            return {"w13_weight": Parameter((local, rows, hidden), halves), "w2_weight": Parameter((local, hidden, self.width))}
        if self.method == FP8_EXPERTS:
            return {
                "w13_weight": Parameter((local, rows, hidden), halves),
                "w2_weight": Parameter((local, hidden, self.width)),
                "w13_weight_scale": Parameter((local, halves), halves),
                "w2_weight_scale": Parameter((local,)),
                "w13_input_scale": Parameter((local,)),
                "w2_input_scale": Parameter((local,)),
            }
        group = case.group_size or 16
        return {
            "w13_weight": Parameter((local, rows, hidden // 2), halves),
            "w2_weight": Parameter((local, hidden, self.width // 2)),
            "w13_weight_scale": Parameter((local, rows, hidden // group), halves),
            "w2_weight_scale": Parameter((local, hidden, self.width // group)),
            "w13_weight_scale_2": Parameter((local, halves), halves),
            "w2_weight_scale_2": Parameter((local,)),
            "w13_input_scale": Parameter((everyone, halves), every=True),
            "w2_input_scale": Parameter((everyone,), every=True),
        }

    def load(self, name: str, shape: tuple[int, ...], dtype: str):
        """One tensor, as the model class's load_weights hands it to the block."""
        found = re.search(r"\bexperts\.(\d+)\.(\w+)\.(\w+)$", name)
        mtp = name.startswith("mtp.")
        if found is None or mtp or int(found[1]) >= self.share.experts or found[2] not in self.projections:
            self.dropped.append(name)
            return
        expert, shard, suffix = int(found[1]), self.projections[found[2]], found[3]
        target = f"{'w2' if shard == 'w2' else 'w13'}_{suffix}"
        parameter = self.parameters.get(target)
        if parameter is None:
            if self.unmatched == "raises" and not suffix.endswith(SKIPPED_BY_QWEN3_5):
                block = re.sub(r"^.*?layers\.", "model.layers.", name[: found.start()])
                raise CannotLoad("KeyError", f"'{block}experts.{target}'")
            self.dropped.append(name)
            return
        place = expert if parameter.every else expert - self.share.first
        if not parameter.every and not 0 <= place < self.share.local:
            return  # another rank's
        if suffix == "input_scale":
            _assign(parameter.shape[1:], shape, dtype)
            parameter.covered.add((place, 0))
        elif len(parameter.shape) < 3:
            _assign((), shape, dtype)
            parameter.covered.add((place, 1 if shard == "w3" and parameter.parts == 2 else 0))
        else:
            self._matrix(parameter.shape[1:], shard, shape)
            parameter.covered.add((place, 1 if shard == "w3" and parameter.parts == 2 else 0))

    def _matrix(self, target: tuple[int, ...], shard: str, shape: tuple[int, ...]):
        """FusedMoE._load_w13 and _load_w2: the rank's share of a matrix is cut out and copied."""
        if shard == "w2" and self._modelopt and len(shape) != 2:
            wanted, given = (f"torch.Size([{', '.join(map(str, size))}])" for size in (target, shape))
            raise CannotLoad("ValueError", f"Expected 2D tensors, got expert_data shape {wanted} and loaded_weight shape {given}")
        dim = 1 if shard == "w2" else 0
        size = target[dim] // (2 if dim == 0 and self.gated else 1)
        target = _with(target, dim, size)
        if self.padded:
            start = size * self.share.tp_rank
            there = max(0, min(size, shape[dim] - start))
            target, shape = _with(target, dim, there), _with(shape, dim, there) if there else _with(target, dim, there)
        elif self.case.release.at_least(DERIVES_SHARE):
            part = shape[dim] // self.share.tp
            shape = _with(shape, dim, part)
            if part < size:  # the rest is filled with zeros
                target = _with(target, dim, part)
        else:
            _narrow(shape[dim], size * self.share.tp_rank, size)
            shape = _with(shape, dim, size)
        _copy(target, shape)

    @property
    def _modelopt(self) -> bool:
        return "modelopt" in (self.case.routing.quantization or "")

    def unwritten(self) -> dict[str, tuple[int, ...]]:
        missing = {}
        for name, parameter in self.parameters.items():
            wanted = [{(expert, part) for part in range(parameter.parts)} for expert in range(parameter.shape[0])]
            experts = tuple(expert for expert, parts in enumerate(wanted) if not parts <= parameter.covered)
            if experts:
                missing[name] = experts
        return missing


# From this release a rank's share of a matrix is cut from the matrix's own size, and what is missing is filled with zeros.
DERIVES_SHARE = "0.5.23"


def _with(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _narrow(size: int, start: int, length: int):
    """torch's narrow() of a dimension."""
    if start > size:
        raise CannotLoad("IndexError", f"start out of range (expected to be in range of [-{size}, {size}], but got {start})")
    if start + length > size:
        raise CannotLoad("RuntimeError", f"start ({start}) + length ({length}) exceeds dimension size ({size}).")


def _copy(target: tuple[int, ...], source: tuple[int, ...]):
    """torch's copy_(): the source is stretched to the target, the last dimensions first."""
    for dim in range(1, len(source) + 1):
        a, b = target[-dim], source[-dim]
        if a == 1 and b != 1:
            wide = [max(*sizes) for sizes in zip(target, source, strict=True)]
            raise CannotLoad("RuntimeError", f"output with shape {list(target)} doesn't match the broadcast shape {wide}")
        if a != b and b != 1:
            place = len(target) - dim
            message = f"The size of tensor a ({a}) must match the size of tensor b ({b}) at non-singleton dimension {place}"
            raise CannotLoad("RuntimeError", message)


_TENSORS = {"F32": "torch.FloatTensor", "BF16": "torch.BFloat16Tensor", "U8": "torch.ByteTensor", "F8_E4M3": "CPUFloat8_e4m3fnType"}


def _assign(target: tuple[int, ...], source: tuple[int, ...], dtype: str):
    """torch's parameter[expert] = tensor: dimensions of 1 in front are left out."""
    given = source
    while len(given) > len(target) and given and given[0] == 1:
        given = given[1:]
    if len(given) > len(target):
        kind, sizes = _TENSORS.get(dtype, dtype), ", ".join(map(str, given))
        raise CannotLoad(
            "RuntimeError",
            f"expand({kind}{{[{sizes}]}}, size=[{', '.join(map(str, target))}]): the number of sizes provided ({len(target)}) must be "
            f"greater or equal to the number of dimensions in the tensor ({len(given)})",
        )
    for dim in range(1, len(given) + 1):
        a, b = target[-dim], given[-dim]
        if a != b and b != 1:
            raise CannotLoad(
                "RuntimeError",
                f"The expanded size of the tensor ({a}) must match the existing size ({b}) at non-singleton dimension "
                f"{len(target) - dim}.  Target sizes: {list(target)}.  Tensor sizes: {list(given)}",
            )
