"""The matrix: every kernel for every architecture in one variant, what came out against what its library claims.

The facts of the pinned versions are kept in data/kernels and compared by a test; under other versions nothing is asserted.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from helpers.kernels.catalogue import KERNELS, not_offered
from helpers.kernels.compile import Compiled, Question, compile_all
from helpers.kernels.geometry import NAMED, Block
from helpers.kernels.targets import TARGETS
from helpers.kernels.versions import Platform
from helpers.paths import DATA

BLOCK = NAMED["qwen3.5-397b"]
HOPPER = "sm_90a"
# Column of the matrix in which the conversions that Hopper lacks are done in integer arithmetic.
SOFTWARE = f"{HOPPER} + software E2M1"
COLUMNS = (HOPPER, SOFTWARE, *(arch for arch in TARGETS if arch != HOPPER))

# What a square of claim and fact says.
VERDICTS = {
    "as claimed": "claimed, and compiles",
    "more than claimed": "not claimed, and compiles",
    "broken claim": "claimed, and does not compile",
    "not for it": "not claimed, and does not compile",
    "too large": "compiles, and asks for more shared memory than a block may have",
    "not offered": "a package that it needs is not here",
}


def questions(block: Block = BLOCK, kernels: Iterable[str] = KERNELS, columns: Sequence[str] = COLUMNS) -> list[Question]:
    return [Question(name, block, _arch(column), software=column == SOFTWARE) for name in kernels for column in columns]


def _arch(column: str) -> str:
    return HOPPER if column == SOFTWARE else column


def column(result: Compiled) -> str:
    return SOFTWARE if result.question.software else result.question.arch


def compile_matrix(progress: Callable[[int, int], None] | None = None) -> list[Compiled]:
    """Of the reference block, Qwen3.5-397B's."""
    return compile_all(questions(), progress)


def verdict(result: Compiled, claims: dict[str, frozenset[int]]) -> str:
    """One of VERDICTS."""
    if result.fact == "not offered":
        return result.fact
    if result.too_large:
        return "too large"
    claimed = TARGETS[result.question.arch].sm in claims[result.question.kernel]
    if result.ok:
        return "as claimed" if claimed else "more than claimed"
    return "broken claim" if claimed else "not for it"


def proven(result: Compiled) -> str:
    """The instruction that proves what the kernel does, "" when the assembly has none of the kind."""
    pattern = re.compile(KERNELS[result.question.kernel].proof)
    return next((name for name, _ in result.instructions if pattern.search(name)), "")


def facts(results: Iterable[Compiled], claims: dict[str, frozenset[int]]) -> dict[str, dict]:
    """kernel -> what is asserted about it: the claim, a fact a column, and the columns whose assembly has the proving instruction.
    Nothing is asserted about a kernel that is not offered.
    """
    found: dict[str, dict] = {}
    for result in results:
        if result.fact == "not offered":
            continue
        name = result.question.kernel
        entry = found.setdefault(name, {"claims": sorted(claims[name]), "facts": {}, "proven": []})
        entry["facts"][column(result)] = result.fact
        if proven(result):
            entry["proven"].append(column(result))
    return found


def path(platform: Platform) -> Path:
    return DATA / "kernels" / f"flashinfer-{platform.flashinfer}-cutlass-dsl-{platform.cutlass_dsl}.toml"


def expected(platform: Platform) -> dict[str, dict] | None:
    """The facts recorded for these versions, of the kernels that are offered; None when there are none."""
    try:
        recorded = tomllib.loads(path(platform).read_text())
    except FileNotFoundError:
        return None
    return {name: entry for name, entry in recorded.items() if name not in KERNELS or not not_offered(KERNELS[name], platform)}


def write_expected(found: dict[str, dict], platform: Platform) -> Path:
    """For the maintainer who moves to other versions, and reads the difference."""
    lines = [f"# Block: {BLOCK}. Written by `python -m helpers kernels compile --write`."]
    for name, entry in found.items():
        lines += ["", f"[{name}]", f"claims = {entry['claims']}", f"proven = {list(entry['proven'])}".replace("'", '"'), f"[{name}.facts]"]
        lines += [f'"{where}" = "{fact}"' for where, fact in entry["facts"].items()]
    path(platform).parent.mkdir(exist_ok=True)
    path(platform).write_text("\n".join(lines) + "\n")
    return path(platform)


def differences(found: dict[str, dict], recorded: dict[str, dict]) -> list[str]:
    """One line a fact that is not as recorded, over everything that either has."""
    lines = []
    for name in dict.fromkeys([*found, *recorded]):
        now, then = _flat(found.get(name)), _flat(recorded.get(name))
        lines += [
            f"{name}: {key}: {then.get(key)} → {now.get(key)}" for key in dict.fromkeys([*now, *then]) if now.get(key) != then.get(key)
        ]
    return lines


def _flat(entry: dict | None) -> dict[str, str]:
    if entry is None:
        return {}
    return {"claims": str(entry["claims"]), "proven": str(sorted(entry["proven"]))} | entry["facts"]
