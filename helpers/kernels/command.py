"""``python -m helpers kernels``: what kernels there are, what compiles for which GPU, and what runs on the one here."""

import argparse
import json
import sys

from helpers.errors import UsageError, unknown
from helpers.kernels import matrix
from helpers.kernels.catalogue import KERNELS, not_offered
from helpers.kernels.compile import LIMIT, Compiled, Question, budget, claims, compile_all, tactics
from helpers.kernels.geometry import NAMED, Block, block_of
from helpers.kernels.targets import TARGETS
from helpers.kernels.versions import compile_blocker, here

_LIST = """\
Every NVFP4 kernel of the CuTe DSL that the suite knows: what it computes, its formats, the GPUs its library names, and why it is not
offered with the packages installed here.
"""
_COMPILE = f"""\
Compile kernels for GPUs that are not here. Without a name: the whole matrix, each kernel in one variant for {", ".join(matrix.COLUMNS)},
compared with the facts recorded for the versions installed. Results are kept in $NVFP4_CACHE/kernels.
exit codes: 0 all compiled (the matrix: all as recorded, and no broken claim); 1 not; 2 usage; 3 nothing can be compiled here
"""
_EXAMPLES = """\
examples:
  python -m helpers kernels compile
  python -m helpers kernels compile b12x_w4a16_moe --arch sm_90a --block deepseek-r1
  python -m helpers kernels compile gather_grouped_gemm --checkpoint /models/x --tp 8 --every-variant --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from helpers.kernels.execute import add_run_arguments
    from helpers.kernels.record import add_record_arguments

    parser.description = __doc__.partition(": ")[2]
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    add = actions.add_parser("list", help="the kernels there are", description=_LIST)
    add.add_argument("--json", action="store_true", help="print one JSON object")
    add.set_defaults(act=_list)

    add = actions.add_parser("compile", help="compile them for any GPU", description=_COMPILE, epilog=_EXAMPLES)
    add.add_argument("kernels", metavar="KERNEL", nargs="*", help="names from `kernels list`")
    add.add_argument("--arch", action="append", default=[], metavar="ARCH", help=f"{', '.join(TARGETS)}; repeatable (default: all)")
    add.add_argument("--block", metavar="NAME", help=f"the experts of {', '.join(NAMED)} (default: {matrix.BLOCK.name})")
    add.add_argument("--checkpoint", metavar="CHECKPOINT", help="the experts of a checkpoint, as one GPU holds them under --tp and --ep")
    add.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel size (default: 1)")
    add.add_argument("--ep", type=int, default=1, metavar="N", help="expert-parallel size (default: 1)")
    add.add_argument("--every-variant", action="store_true", help="every variant that the library accepts, not its first")
    add.add_argument("--software-e2m1", action="store_true", help="with the conversions that Hopper lacks in integer arithmetic")
    add.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help=f"for one compile (default: {LIMIT:g})")
    add.add_argument("--write", action="store_true", help="record the matrix as the facts of the versions installed")
    add.add_argument("--json", action="store_true", help="print one JSON object")
    add.set_defaults(act=_compile)

    add = actions.add_parser("run", help="run them on the GPU here, and check what they compute")
    add_run_arguments(add)
    add.set_defaults(act=_run)
    add = actions.add_parser("record", help="run them and write a file to contribute")
    add_record_arguments(add)
    add.set_defaults(act=_record)


def main(args: argparse.Namespace) -> int:
    """The exit code. UsageError and InputError are the caller's to print."""
    return args.act(args)


def _run(args: argparse.Namespace) -> int:
    from helpers.kernels.execute import run_command

    return run_command(args)


def _record(args: argparse.Namespace) -> int:
    from helpers.kernels.record import record_command

    return record_command(args)


def _list(args: argparse.Namespace) -> int:
    platform = here()
    blocker = compile_blocker(platform)
    # Where the library is not there to be asked, only what is typed is known.
    known = {name: kernel.claim.typed for name, kernel in KERNELS.items()} if blocker else claims()
    rows = [
        {
            "kernel": kernel.name,
            "entry": kernel.entry,
            "computes": kernel.computes,
            "weights": kernel.weights,
            "activations": kernel.activations,
            "layout": kernel.layout,
            "claims": [f"sm_{sm}" for sm in sorted(known[kernel.name])],
            "activation kinds": list(kernel.kinds),
            "shapes": kernel.shapes,
            "needs": list(kernel.needs),
            "sglang": kernel.sglang,
            "reference": kernel.reference,
            "not offered": blocker or not_offered(kernel, platform),
        }
        for kernel in KERNELS.values()
    ]
    if args.json:
        print(json.dumps({"packages": platform.packages(), "kernels": rows}, indent=2))
        return 0
    for row in rows:
        formats = f"{row['weights'] or '-'} x {row['activations']}"
        print(f"{row['kernel']:<26}{formats:<22}{' '.join(row['claims']) or 'claims: not readable here':<32}{row['computes']}")
    if blocker:
        print(f"none is offered here: {blocker}")
    return 0


def _block(args: argparse.Namespace) -> Block:
    if args.checkpoint and args.block:
        raise UsageError("--checkpoint and --block both name the experts: give one of them")
    if args.checkpoint:
        from helpers.checkpoint import open_checkpoint

        return block_of(open_checkpoint(args.checkpoint), args.tp, args.ep)
    if args.tp != 1 or args.ep != 1:
        raise UsageError("--tp and --ep divide the experts of a checkpoint: give --checkpoint with them")
    name = args.block or matrix.BLOCK.name
    if name not in NAMED:
        raise unknown("block", name, NAMED)
    return NAMED[name]


def _questions(args: argparse.Namespace, block: Block) -> list[Question]:
    columns = args.arch or list(TARGETS)
    first = [Question(name, block, arch, software=args.software_e2m1) for name in args.kernels for arch in columns]
    if not args.every_variant:
        return first
    named = {arch: tactics(args.kernels, block, arch) for arch in columns}
    return [
        Question(asked.kernel, block, asked.arch, tactic, asked.software)
        for asked in first
        for tactic, legal in named[asked.arch][asked.kernel].items()
        if legal
    ]


def _compile(args: argparse.Namespace) -> int:
    if args.kernels:
        if args.write:
            raise UsageError("--write records the whole matrix: give no kernel with it")
        questions = _questions(args, _block(args))
        return _report(compile_all(questions, _progress(questions), args.limit), args.json)
    given = [option for option, value in (("--arch", args.arch), ("--block", args.block), ("--checkpoint", args.checkpoint)) if value]
    if given or args.every_variant or args.software_e2m1:
        raise UsageError(f"{(given or ['a variant'])[0]} is for named kernels: name them, e.g. kernels compile b12x_w4a16_moe")
    return _matrix(args)


def _progress(questions: list[Question]):
    seconds = budget(questions)
    if seconds:
        print(f"{len(questions)} compiles, about {seconds:.0f} s on an idle machine; the next time they are kept", file=sys.stderr)
    return lambda done, of: print(f"\r{done} of {of}", end="\n" if done == of else "", file=sys.stderr, flush=True)


def row(result: Compiled) -> dict:
    """One result with plain values."""
    return {
        "kernel": result.question.kernel,
        "column": matrix.column(result),
        "block": result.question.block.name,
        "variant": result.tactic,
        "fact": result.fact,
        "reason": result.reason,
        "seconds": result.seconds,
        "registers": result.registers,
        "stack": result.stack,
        "shared": result.shared,
        "instruction": matrix.proven(result),
        "instructions": dict(result.instructions),
    }


def _report(results: list[Compiled], as_json: bool) -> int:
    rows = [row(result) for result in results]
    if as_json:
        print(json.dumps({"packages": here().packages(), "compiled": rows}, indent=2))
    else:
        for one in rows:
            print(line(one))
    return 0 if rows and all(result.ok for result in results) else 1


def line(one: dict) -> str:
    place = f"{one['kernel']:<26}{one['column']:<24}"
    if one["fact"] != "compiled":
        return f"{place}{one['fact']}: {one['reason']}"
    resources = f"{one['registers']} registers, {one['stack']} B stack, {one['shared']} B shared"
    return f"{place}compiled in {one['seconds']:.1f} s, {resources}: {one['instruction'] or 'plain instructions'} ({one['variant']})"


def _matrix(args: argparse.Namespace) -> int:
    questions, platform = matrix.questions(), here()
    results, known = compile_all(questions, _progress(questions), args.limit), claims()
    verdicts = [matrix.verdict(result, known) for result in results]
    found = matrix.facts(results, known)
    if args.write:
        print(f"recorded: {matrix.write_expected(found, platform)}", file=sys.stderr)
    recorded = matrix.expected(platform)
    changed = matrix.differences(found, recorded) if recorded is not None else []
    bad = [result for result, verdict in zip(results, verdicts, strict=True) if verdict in ("broken claim", "too large")]
    if args.json:
        rows = [row(result) | {"verdict": verdict} for result, verdict in zip(results, verdicts, strict=True)]
        print(
            json.dumps({"packages": platform.packages(), "asserted": recorded is not None, "changed": changed, "compiled": rows}, indent=2)
        )
    else:
        for result, verdict in zip(results, verdicts, strict=True):
            print(f"{verdict:<18}{line(row(result))}")
        asserted = f"{len(changed)} facts changed" if recorded is not None else "no facts are recorded for these versions: nothing asserted"
        print(f"{sum(result.ok for result in results)} of {len(results)} compiled; {len(bad)} broken claims; {asserted}")
        for text in changed:
            print(f"changed: {text}")
    return 1 if changed or bad else 0
