"""Recorded runs: a run's results as JSON, with everything that says where they come from, and whether they are still of this code.

``record_command`` is ``python -m helpers kernels record``: it runs everything that this machine can run and writes a file that is
ready for a pull request. A record names the git blob of every source the results depend on; it is stale when one has changed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from helpers.errors import InputError, UsageError
from helpers.kernels.execute import Gpu
from helpers.paths import DATA, ROOT, git_blob

FOLDER = DATA / "recorded"
MOST_BYTES = 300_000
PACKAGES = ("torch", "triton", "flashinfer-python", "nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-cu13")
# What a result depends on; not what plans, shows or stores it.
SOURCES = {
    "notebooks": ("06_run.ipynb",),
    "helpers/kernels": (
        "cases.py",
        "checks.py",
        "e2m1_sm90.py",
        "flashinfer_moe.py",
        "flashinfer_quantise.py",
        "inputs.py",
        "measure.py",
        "runners.py",
        "torch_moe.py",
    ),
    "helpers/nvfp4": ("codec.py", "compare.py", "elements.py", "gpu.py", "layouts.py", "moe.py", "recipes.py"),
}
# What the results of several GPUs depend on as well.
SHARED_SOURCE = "helpers/kernels/parallel.py"


def versions() -> dict[str, str]:
    """Of what is installed; absent packages are left out."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def blobs() -> dict[str, str]:
    """Path from the repository's root -> the id git gives the file as it is now."""
    paths = [f"{folder}/{name}" for folder, names in SOURCES.items() for name in names] + [SHARED_SOURCE]
    return {path: git_blob(ROOT / path) for path in paths}


def changed(record: dict) -> tuple[str, ...]:
    """Sources that are not what they were when it was recorded; empty when the record holds for this code."""
    now = blobs()
    return tuple(path for path, blob in record["blobs"].items() if now.get(path) != blob)


def make(gpu: Gpu, results: Sequence[dict], clocks: Sequence[dict], parallel: Sequence[dict] = ()) -> dict:
    """A record, plain JSON types. clocks: as ``measure.clocks`` found them before and after."""
    return {
        "what": "notebooks/06_run.ipynb",
        "gpu": asdict(gpu),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions(),
        "clocks": list(clocks),
        "blobs": {path: blob for path, blob in blobs().items() if parallel or path != SHARED_SOURCE},
        "results": list(results),
        "parallel": list(parallel),
    }


def path_for(gpu_name: str) -> Path:
    """data/recorded/kernels_h200.json for "NVIDIA H200"."""
    key = re.sub(r"[^a-z0-9]+", "_", gpu_name.lower().removeprefix("nvidia")).strip("_")
    return FOLDER / f"kernels_{key}.json"


def write(record: dict, path: Path) -> None:
    """One line a result, so that a difference can be read. InputError above the size that the repository takes."""
    lists = {name: value for name, value in record.items() if name in ("results", "parallel")}
    head = json.dumps({name: value for name, value in record.items() if name not in lists}, indent=1)
    parts = [f' "{name}": [\n' + ",\n".join(f"  {json.dumps(each)}" for each in value) + "\n ]" for name, value in lists.items()]
    text = head.removesuffix("\n}") + ",\n" + ",\n".join(parts) + "\n}\n"
    if len(text) > MOST_BYTES:
        raise InputError(f"{path}: {len(text):,} bytes, more than the {MOST_BYTES:,} of a record; record fewer tokens or kernels")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def read(path: Path) -> dict:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not {"gpu", "date", "versions", "blobs", "results"} <= found.keys():
            raise ValueError("it lacks gpu, date, versions, blobs or results")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a record of kernels: {error}; record again with `python -m helpers kernels record`") from None
    return found


def recorded() -> list[dict]:
    """Every record in the repository, oldest first."""
    return sorted((read(path) for path in FOLDER.glob("kernels_*.json")), key=lambda record: record["date"])


def label(record: dict) -> str:
    """One line that every table and figure of a record carries."""
    found = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    stale = changed(record)
    note = f"; STALE: {len(stale)} of its sources changed since, e.g. {stale[0]}" if stale else ""
    return f"Recorded on {record['gpu']['name']}, driver {record['gpu']['driver']}, {record['date']}: {found}{note}"


# Command line --------------------------------------------------------------------------------------------------------


def add_record_arguments(parser) -> None:
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: data/recorded/kernels_<gpu>.json")
    parser.add_argument("--tokens", default="", metavar="N,…", help="numbers of tokens (default: 1 to 4096)")
    parser.add_argument("--blocks", default="", metavar="NAME,…", help="geometries (default: all named ones)")
    parser.add_argument("--shared", action="store_true", help="run only what several GPUs share, and add it to the record there is")
    parser.add_argument("--json", action="store_true", help="print the record as well")


def record_command(args) -> int:
    """0 when every result is right, 1 otherwise; the file is written in both cases."""
    from helpers.kernels import execute
    from helpers.kernels.geometry import NAMED
    from helpers.kernels.inputs import MOST_TOKENS

    gpu, (kernels, why) = execute.gpu_here(), execute.able()
    if gpu is None or why:
        raise UsageError(f"nothing to record: {why}; `python -m helpers kernels run` checks what a CPU can")
    chosen = execute.blocks(args.blocks) if args.blocks else tuple(NAMED.values())
    path = args.out or path_for(gpu.name)
    if args.shared:
        record = _with_shared(read(path), path, gpu, chosen)
    else:
        tokens = execute.numbers(args.tokens, MOST_TOKENS) if args.tokens else execute.TOKENS
        record = _everything(gpu, execute.everything(kernels, chosen, tokens), chosen)
    write(record, path)
    print(json.dumps(record) if args.json else f"{path}: {len(record['results'])} results, {len(record['parallel'])} of several GPUs")
    return 0 if all(result["right"] for result in (*record["results"], *record["parallel"])) else 1


def _everything(gpu: Gpu, cases: Sequence[dict], chosen: Iterable) -> dict:
    from helpers.kernels import execute, measure

    print(execute.budget(cases), file=sys.stderr)
    before, found = measure.clocks(), []
    for result in execute.results(cases):
        found.append(result)
        print(execute.line(result), file=sys.stderr, flush=True)
    return make(gpu, found, (before, measure.clocks()), _parallel(gpu, chosen))


def _with_shared(record: dict, path: Path, gpu: Gpu, chosen: Iterable) -> dict:
    if gpu.count < 2 or gpu.name != record["gpu"]["name"]:
        raise UsageError(f"--shared needs two GPUs or more of the record's kind, {record['gpu']['name']}; here: {gpu.count} x {gpu.name}")
    if changed(record):
        raise UsageError(f"{path} is not of this code ({', '.join(changed(record)[:3])} changed): record everything, without --shared")
    return record | {"parallel": _parallel(gpu, chosen), "blobs": blobs()}


def _parallel(gpu: Gpu, chosen: Iterable) -> list[dict]:
    if gpu.count < 2:
        return []
    from helpers.kernels import parallel

    return parallel.everything(chosen, gpu.count)
