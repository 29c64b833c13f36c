"""The real load of a checkpoint's expert blocks, for a notebook: what is loaded, where each tensor went, and the proof."""

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from helpers.checkpoint import Checkpoint
from helpers.deployment import Deployment
from helpers.errors import InputError
from helpers.findings import Finding, ordered
from helpers.nvfp4.layouts import join_w13, shuffle_rows
from helpers.nvfp4.processed import LAYOUTS, Layout
from helpers.nvfp4.proof import Proof
from helpers.sglang.loading import LoadAnswer, LoadWorker
from helpers.sglang.proof import findings, prove_load
from helpers.stages.verdict import Judgement


@dataclass(frozen=True)
class Loaded:
    """One block as one rank of the release loaded it, its proof, or why there is none to make, and what load and proof find."""

    rank: int
    answer: LoadAnswer
    proof: Proof | None
    unproved: str
    findings: tuple[Finding, ...]


def reason_not_to(judgement: Judgement) -> str:
    """Why nothing can be loaded, whatever the real releases are; "" when something can."""
    if judgement.checkpoint.tensors is None:
        return f"only the configuration of {judgement.checkpoint.name} is here, no tensors"
    if not judgement.admission.accepted:
        return "the arguments are refused, so no weights are loaded"
    return "" if one_of_each_kind(judgement.checkpoint, judgement.routing.modules) else "no block of experts is routed"


def one_of_each_kind(checkpoint: Checkpoint, modules: Iterable) -> tuple[int, ...]:
    """The first layer of every kind of expert block, by algorithm and method, from the modules of a routing."""
    geometry = checkpoint.geometry
    kinds: dict[tuple, int] = {}
    for module in modules:
        if module.kind == "experts" and geometry is not None and module.layer in geometry.moe_layers and "mtp" not in module.prefix:
            kinds.setdefault((module.algo, module.method), module.layer)
    return tuple(sorted(kinds.values()))


Case = tuple[Checkpoint, Deployment, Sequence[int]]


def load(cases: Mapping[str, Case]) -> dict[str, tuple[Loaded, ...]]:
    """name -> what became of the case: the layers' experts, as the first and the last rank of the deployment load them.

    One process a release, which takes about 10 seconds to start; then a second a block.
    """
    found = {}
    for version in dict.fromkeys(asked.release.version for _, asked, _ in cases.values()):
        with tempfile.TemporaryDirectory() as into, LoadWorker(version) as worker:
            for name, (checkpoint, asked, layers) in cases.items():
                if asked.release.version == version:
                    ranks = dict.fromkeys((0, asked.tp - 1))
                    questions = ((layer, rank) for layer in layers for rank in ranks)
                    answers = ((worker.load(checkpoint, asked, layer, rank, into), rank) for layer, rank in questions)
                    found[name] = tuple(_loaded(checkpoint, answer, rank) for answer, rank in answers)
    return {name: found[name] for name in cases}


def _loaded(checkpoint: Checkpoint, answer: LoadAnswer, rank: int) -> Loaded:
    proof, reason = None, ""
    try:
        proof = prove_load(checkpoint, answer)
    except InputError as error:
        reason = str(error)
    return Loaded(rank, answer, proof, reason, findings(checkpoint, answer, proof))


def all_findings(loads: Iterable[Loaded]) -> tuple[Finding, ...]:
    return ordered(dict.fromkeys(finding for loaded in loads for finding in loaded.findings))


# Tables -----------------------------------------------------------------------------------------------------------------


def blocks(loads: Iterable[Loaded]) -> list[dict]:
    """One row a block and rank: what it became."""
    return [
        {
            "layer": loaded.answer.layer,
            "rank": loaded.rank,
            "step reached": "done" if loaded.answer.accepted else f"{loaded.answer.step}: {loaded.answer.error}",
            "method": loaded.answer.method,
            "runner of the block": loaded.answer.runner,
            "experts held": len(loaded.answer.share.get("experts", ())) or None,
            "done here instead of on a GPU": ", ".join(loaded.answer.replaced) or None,
            "proof": loaded.unproved or _words(loaded.proof),
            "seconds": f"{loaded.answer.seconds:.1f}",
        }
        for loaded in loads
    ]


def _words(proof: Proof) -> str:
    if proof.output is None:
        return "no output to compare"
    return (
        "every bit"
        if proof.exact and not proof.faults
        else f"{', '.join(proof.faults)}; output off by {float(proof.output.relative_l2):.2g}"
    )


def accounting(checkpoint: Checkpoint, answer: LoadAnswer) -> list[dict]:
    """Where every tensor of the checkpoint went, equal names under one pattern: the block's, and what was read and written nowhere."""
    block = f"{answer.source}."
    groups: Counter[tuple[str, str]] = Counter()
    for name, places in answer.tensors.items():
        if name.startswith(block) or not places:
            groups[_pattern(name), _places(places)] += 1
    groups.update(
        (_pattern(name), "never read") for name in checkpoint.tensors.names if name.startswith(block) and name not in answer.tensors
    )
    return [{"tensors": pattern, "number": count, "written to": place} for (pattern, place), count in groups.items()]


def _pattern(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def _places(places: Sequence) -> str:
    if not places:
        return "nowhere: read and dropped"
    found = (parameter.rpartition(".")[2] + (f", as {shard}" if shard else "") for parameter, _, shard in places)
    return "; ".join(dict.fromkeys(found))


def forms(answer: LoadAnswer) -> list[dict]:
    """The block's tensors before and after processing: dtype and shape."""

    def text(form: Sequence | None) -> str | None:
        return f"{form[0]} {list(form[1])}" if form else None

    names = list(dict.fromkeys([*answer.before, *answer.after]))
    return [{"tensor": name, "built": text(answer.before.get(name)), "processed": text(answer.after.get(name))} for name in names]


def compared(proof: Proof) -> list[dict]:
    """The proof, a row for everything that was compared."""
    rows = [
        {
            "what": row.what,
            "of": row.projection,
            "compared": f"{row.compared:,}",
            "different": f"{row.differing:,}",
            "because": "; ".join(row.faults) or None,
        }
        for row in proof.rows
    ]
    if proof.output is not None:
        distance = None if proof.exact else f"{float(proof.output.relative_l2):.2g} of the output's size"
        rows.append(
            {
                "what": "output of the reference layer",
                "of": "all",
                "compared": "all",
                "different": "no" if proof.exact else "yes",
                "because": distance,
            }
        )
    return rows


def layouts() -> list[dict]:
    """How each runner holds a block."""
    return [
        {"runner": name, "layout": layout.words, "factors of gate, up, down": ", ".join(layout.factors)} for name, layout in LAYOUTS.items()
    ]


# For the figure ---------------------------------------------------------------------------------------------------------


def rows_of(layout: Layout, rows: int) -> torch.Tensor:
    """Which row lies where in the first matrix of a layout: gate's rows 0 to rows - 1, up's from rows on. Marlin's tiles keep the order."""
    gate, up = torch.arange(rows).view(-1, 1), torch.arange(rows, 2 * rows).view(-1, 1)
    joined = join_w13(gate, up, layout.order)
    return (shuffle_rows(joined) if layout.shuffled else joined).flatten()
