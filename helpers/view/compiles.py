"""What came of compiling kernels, as tables and as the cells of a matrix."""

from collections.abc import Iterable, Mapping

from helpers.kernels import matrix
from helpers.kernels.catalogue import KERNELS
from helpers.kernels.compile import Compiled
from helpers.kernels.targets import TARGETS
from helpers.kernels.versions import Platform
from helpers.suite.checks import check, not_run
from helpers.view.markup import Markup, code, table
from helpers.view.palette import GREEN, GREY, ORANGE, PAPER, SKY, VERMILION, Mark

MARKS = {
    "as claimed": Mark("●", "claimed, and compiles", GREEN),
    "more than claimed": Mark("+", "not claimed, and compiles", SKY),
    "broken claim": Mark("✖", "claimed, and does not compile", VERMILION),
    "too large": Mark("▲", "compiles, and asks for too much shared memory", ORANGE),
    "not offered": Mark("○", "a package that it needs is not here", GREY),
    "not for it": Mark("–", "not claimed, and does not compile", PAPER),
}
assert set(MARKS) == set(matrix.VERDICTS)

Claims = Mapping[str, frozenset[int]]


def packages(here: Platform) -> Markup:
    rows = [{"package": name, "version": version or "not here"} for name, version in here.packages().items()]
    rows.append({"package": "GPU", "version": here.gpu or "none, and none is needed"})
    return table(rows, "What compiles here")


def cells(results: Iterable[Compiled], claims: Claims) -> dict[tuple[str, str], str]:
    """(kernel, column) -> the verdict of claim and fact."""
    return {(result.question.kernel, matrix.column(result)): matrix.verdict(result, claims) for result in results}


def compiled(results: Iterable[Compiled], caption: str) -> Markup:
    """One row a compile that succeeded."""
    rows = [
        {
            "kernel": result.question.kernel,
            "GPU": matrix.column(result),
            "seconds": f"{result.seconds:.1f}",
            "registers": _or_unknown(result.registers),
            "spilled, B": _or_unknown(result.stack),
            "shared, B": _or_unknown(result.shared),
            "proving instruction": code(matrix.proven(result) or "none of its kind"),
        }
        for result in results
        if result.ok
    ]
    return table(rows, caption)


def _or_unknown(number: int | None) -> str:
    return "?" if number is None else str(number)


def reasons(results: Iterable[Compiled], caption: str) -> Markup:
    """One row a reason, with the kernels and GPUs it stands for."""
    groups: dict[str, dict[str, list[str]]] = {}
    for result in results:
        if not result.ok:
            groups.setdefault(result.reason, {}).setdefault(result.question.kernel, []).append(matrix.column(result))
    rows = [
        {"said": code(reason), "of": "; ".join(f"{kernel}: {', '.join(columns)}" for kernel, columns in found.items())}
        for reason, found in groups.items()
    ]
    return table(rows, caption)


def catalogue(claims: Claims) -> Markup:
    """What each kernel computes, and who says for which GPUs it is."""
    rows = [
        {
            "kernel": kernel.name,
            "computes": kernel.computes + (f" (SGLang: {kernel.sglang})" if kernel.sglang else ""),
            "formats": " × ".join(filter(None, (kernel.weights, kernel.activations))),
            "claims": ", ".join(f"SM{sm}" for sm in sorted(claims[kernel.name])),
            "says who": kernel.claim.source or f"annotation of {kernel.claim.reads.partition(':')[2]}",
        }
        for kernel in KERNELS.values()
    ]
    return table(rows, "The kernels")


def first_claimed(results: Iterable[Compiled], claims: Claims) -> list[Compiled]:
    """Of each kernel the compile for the first GPU it claims."""
    found: dict[str, Compiled] = {}
    for result in results:
        if TARGETS[result.question.arch].sm in claims[result.question.kernel]:
            found.setdefault(result.question.kernel, result)
    return list(found.values())


def one(result: Compiled) -> Markup:
    """One compile: what came out, or why nothing did, and its telling instructions."""
    if not result.ok:
        return table([{"fact": result.fact, "said": code(result.reason)}])
    facts = compiled([result], f"Variant: {result.tactic}")
    return facts + table([{"instruction": code(name), "times": count} for name, count in result.instructions], "Telling instructions")


def variants(legal: Mapping[str, Mapping[str, bool]], results: Mapping[str, Compiled]) -> Markup:
    """One row a kernel: how many of its variants the library accepts for a block of experts, and how the first of them compiled."""
    rows = [
        {
            "kernel": kernel,
            "variants accepted": f"{sum(accepted.values())} of {len(accepted)}",
            "first accepted": next((name for name, is_legal in accepted.items() if is_legal), "–"),
            "compiled": "yes" if results[kernel].ok else code(results[kernel].reason),
        }
        for kernel, accepted in legal.items()
    ]
    return table(rows, "Variants that the library accepts for these experts")


def asserted(id: str, reason: str, observed: object, expected: object, why: str) -> None:
    """A check, or the card that says why it was not run: reason is "" when it can be."""
    if reason:
        not_run(id, reason)
    else:
        check(id, observed, expected, why)
