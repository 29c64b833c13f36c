"""``python -m helpers sglang …``: build the environments of real releases, see what is there, compare, snapshot."""

import argparse
import os

from helpers.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-commands of ``sglang``."""
    commands = parser.add_subparsers(dest="sglang_command", metavar="COMMAND", required=True)
    made = commands.add_parser("build", help="install real releases, each once, without a GPU", description=_BUILD)
    made.add_argument("releases", nargs="*", metavar="RELEASE", help="numbers, or 'all' known ones; default: 0.5.15 0.5.16 0.5.23")
    made.add_argument("--load", action="store_true", help="with FlashInfer and the CuTe DSL, which loading needs (the defaults have them)")
    made.set_defaults(run=_build)
    made = commands.add_parser("compare", help="hold the model equal to real releases", description=_COMPARE)
    made.add_argument("--releases", nargs="*", default=[], metavar="RELEASE", help="'all', or numbers; default: 0.5.15 0.5.16 0.5.23")
    made.add_argument("--sample", type=int, default=40, help="launches drawn for each checkpoint beside the whole tables (default 40)")
    made.add_argument("--mutants", type=int, default=2, help="variations of each checkpoint (default 2); 0: published ones only")
    made.set_defaults(run=_compare)
    made = commands.add_parser("snapshot", help="record a release's answers and say what changed", description=_SNAPSHOT)
    made.add_argument("release", metavar="RELEASE", help="known or newer, e.g. 0.5.24")
    made.set_defaults(run=_snapshot)
    made = commands.add_parser("load", help="let a real release load one layer's experts", description=_LOAD)
    made.add_argument("checkpoint", metavar="CHECKPOINT", help="a bundled name or a folder with *.safetensors")
    made.add_argument("--layer", type=int, required=True, metavar="N", help="a layer with experts, from 0")
    made.add_argument("--rank", type=int, default=0, metavar="N", help="the rank that loads (default 0)")
    made.add_argument("--release", default="0.5.23", help="default 0.5.23")
    made.add_argument("--into", metavar="FOLDER", help="write the values after loading and after processing there")
    for name in ("runner", "a2a", "quantization", "gpu"):
        made.add_argument(f"--{name}", default=None)
    for name in ("tp", "ep"):
        made.add_argument(f"--{name}", type=int, default=1)
    made.set_defaults(run=_load)
    commands.add_parser("status", help="the releases that can be asked now").set_defaults(run=_status)


def main(args: argparse.Namespace) -> int:
    """The exit code. UsageError and InputError are the caller's to print."""
    return args.run(args)


_BUILD = """\
Install what is missing in $NVFP4_CACHE (default ~/.cache/nvfp4-moe-validation): a base environment with torch once (6.5 GB),
each release's wheel (30 to 100 MB), the transformers it pins, and for the three defaults its FlashInfer and CuTe DSL (400 to 500 MB).
A build that was interrupted is started again, never used.
NVFP4_TORCH replaces the torch line, NVFP4_PYTHON the interpreter. SGLANG_PYTHON=/path/to/python uses an installation you have.
"""


_COMPARE = """\
Ask helpers.stages and the real releases the same questions: every bundled and public checkpoint with every runner, all-to-all,
flag and GPU, a sample of all combinations, and variations of the checkpoints. Prints what differs, by cause.
exit codes: 0 they agree; 1 they do not
"""


def _releases(given: list[str]) -> list[str]:
    from helpers.deployment import RELEASES
    from helpers.sglang.build import DEFAULT_RELEASES

    if given == ["all"]:
        return [release.version for release in RELEASES]
    return given or list(DEFAULT_RELEASES)


def _compare(args: argparse.Namespace) -> int:
    from helpers.deployment import release
    from helpers.sglang.differential import compare_releases
    from helpers.sglang.oracle import askable

    there, _ = askable([release(name).version for name in _releases(args.releases)], "required")
    report = compare_releases([release(name) for name in there], args.sample, args.mutants, lambda line: print(line, flush=True))
    for group in report.groups():
        print(f"{len(group)} like this: {group[0]}")
    for name, found in report.explained.items():
        print(f"known: {name} ({len(found)} times)")
    print(report.last_line)
    return 1 if report.disagreements else 0


_SNAPSHOT = """\
What a maintainer runs on the day of a release: builds it if it is not there, asks it a fixed matrix of launches over every bundled
and public checkpoint, records the answers in data/recorded/sglang, and prints what changed against the newest known older release.
"""


def _snapshot(args: argparse.Namespace) -> int:
    from helpers.sglang import snapshot
    from helpers.sglang.build import build
    from helpers.sglang.environments import environments

    old = snapshot.before(snapshot.release_of(args.release))
    recorded = snapshot.read(old.version) if old else None
    wanted = [args.release] if recorded or old is None else [old.version, args.release]
    missing = [version for version in wanted if version not in environments()]
    if missing:
        build(missing, say=lambda line: print(line, flush=True))
    for version in wanted:
        new = snapshot.record(version, say=lambda line: print(line, flush=True))
        print(f"recorded: {snapshot.write(new)}")
        recorded = recorded or new
    if old is not None:
        said = snapshot.changes(recorded, new)
        print(f"\nsglang {old} → {args.release}: " + (f"{len(said)} changes" if said else "no change in this matrix"))
        for number, line in enumerate(said, 1):
            print(f"{number}. {line}")
    return 0


def _build(args: argparse.Namespace) -> int:
    from helpers.sglang.build import build

    if os.environ.get("SGLANG_PYTHON"):
        raise UsageError("SGLANG_PYTHON is set, so the release installed there is asked and nothing is built; unset it to build")
    build(_releases(args.releases), say=lambda line: print(line, flush=True), load=args.load)
    return 0


_LOAD = """\
The release builds its own model as shapes and the layer's experts in memory, loads the checkpoint's tensors and brings them into the
runner's layout. Says where every tensor went, what got no value, and which steps a GPU would have done.
exit codes: 0 it loads; 1 it does not
"""


def _load(args: argparse.Namespace) -> int:
    from pathlib import Path

    from helpers.checkpoint import open_checkpoint
    from helpers.deployment import deployment
    from helpers.sglang.loading import LoadWorker

    given = {name: value for name in ("runner", "a2a", "quantization", "gpu") if (value := getattr(args, name)) is not None}
    launch = deployment(sglang=args.release, tp=args.tp, ep=args.ep, **given)
    if args.into:
        Path(args.into).mkdir(parents=True, exist_ok=True)
    with LoadWorker(args.release) as worker:
        answer = worker.load(open_checkpoint(args.checkpoint), launch, args.layer, args.rank, into=args.into)
    for line in answer.lines():
        print(line)
    return 0 if answer.accepted else 1


def _status(args: argparse.Namespace) -> int:
    from helpers.sglang.environments import environments, home

    found = environments()
    for release, environment in found.items():
        print(f"{release:<14} {environment.origin:<14} transformers {environment.transformers or 'as installed'}")
    if not found:
        print(f"no release is built in {home()}: make sglang")
    return 0
