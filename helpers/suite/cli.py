"""The command line: ``python -m helpers``, installed as ``nvfp4-moe``.

Exit codes: 0 yes, 1 no, 2 asked wrongly, 3 something could not be read or went wrong; `run` adds 4, 124 and 138 (see its
help). Every error is one line on stderr. Each command imports what it needs when it is called: `preflight` must answer
before a reader has looked up.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from helpers.errors import InputError, UsageError, unknown
from helpers.findings import LEGEND

PROGRAM = "python -m helpers"

EXAMPLES = f"""\
examples:
  {PROGRAM} preflight qwen3.5-moe-mixed --sglang 0.5.15 --runner flashinfer_cutedsl
  {PROGRAM} preflight /models/my-export --launch 'python -m sglang.launch_server --model-path /models/my-export --tp 8'
  {PROGRAM} run                     every notebook on the bundled default checkpoint
  {PROGRAM} checkpoints             the names that stand for a checkpoint
"""

PREFLIGHT_HELP = f"""\
Say whether a checkpoint passes SGLang's detect, admit and route stages on a release, runner and GPU, and why not.
CHECKPOINT is a folder (config.json is enough), a name from `{PROGRAM} checkpoints`, or a hub id, of which only the JSON files and
the safetensors headers are read. Nothing of a checkpoint is executed.

outcomes, worst first:
""" + "\n".join(f"  {outcome:<24}{meaning}" for outcome, meaning in LEGEND.items())

PREFLIGHT_EXAMPLES = f"""\
exit codes: 0 serves, or an outcome that --expect names; 1 anything else; 2 usage; 3 unreadable input

examples:
  {PROGRAM} preflight qwen3.5-moe-mixed
  {PROGRAM} preflight qwen3.5-moe-mixed --sglang 0.5.15 --runner flashinfer_cutedsl --expect refused
  {PROGRAM} preflight ./export --a2a deepep --tp 8 --ep 8 --gpu H200 --env SGLANG_CUTEDSL_MOE_NVFP4_DISPATCH=1 --json
  {PROGRAM} preflight ./export --sglang 0.5.16 --launch @launch.sh
"""

RUN_HELP = """\
Run notebooks headless through papermill, each in a process of its own, and write runs/<stamp>/ (executed notebooks,
index.html, result.json, env.json, junit.xml) and the link runs/latest. NOTEBOOK is a name (02_admit), a number (02) or a
path; without one, all of them run, the last one after the others.
"""

RUN_EXAMPLES = f"""\
exit codes: 0 all checks passed; 1 a check failed; 2 usage; 3 error; 4 something was not run, under --strict;
124 a time limit was reached; 138 a kernel died; 130 interrupted. The first of 130, 138, 124, 3, 1, 4 that applies.

examples:
  {PROGRAM} run
  {PROGRAM} run 02 07 -p checkpoint=/models/my-export -p sglang=0.5.15 -p runner=flashinfer_cutedsl -p expect=refused
  {PROGRAM} run --jobs 1 --strict --out /tmp/evidence
"""


class Parser(argparse.ArgumentParser):
    def __init__(self, **kwargs):
        # An abbreviated option would change its meaning on the day another one with the same beginning is added.
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def error(self, message: str):
        raise UsageError(f"{message} (see {self.prog} --help)")


def parser(argv: Sequence[str]) -> tuple[Parser, dict[str, Parser]]:
    top = Parser(prog=PROGRAM, description="Will this NVFP4 mixture-of-experts checkpoint serve on SGLang?", epilog=EXAMPLES)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    made = {}

    def command(name: str, func: Callable[[argparse.Namespace], int], summary: str, description: str = "", examples: str = "") -> Parser:
        made[name] = commands.add_parser(name, help=summary, description=description or summary, epilog=examples)
        made[name].set_defaults(func=func)
        return made[name]

    add = command("preflight", preflight, "the verdict for one checkpoint, in the terminal", PREFLIGHT_HELP, PREFLIGHT_EXAMPLES)
    add.add_argument("checkpoint", metavar="CHECKPOINT")
    add.add_argument("--sglang", metavar="RELEASE", help="SGLang release (default: the newest one known)")
    add.add_argument("--runner", metavar="NAME", help="--moe-runner-backend (default: auto)")
    add.add_argument("--a2a", metavar="NAME", help="--moe-a2a-backend (default: none)")
    add.add_argument("--quantization", metavar="NAME", help="--quantization (default: not given)")
    for size, meaning in (("tp", "tensor"), ("ep", "expert"), ("dp", "data")):
        add.add_argument(f"--{size}", type=int, metavar="N", help=f"{meaning}-parallel size (default: 1)")
    add.add_argument("--gpu", metavar="NAME", help="a name or alias of data/gpus.toml, e.g. B200, H200, sm_120 (default: B200)")
    add.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help="environment variable of the server; repeatable")
    add.add_argument("--launch", metavar="CMD|@FILE", help="your own sglang command line instead of the flags above")
    add.add_argument("--expect", metavar="OUTCOME,…", default="", help="exit 0 for these outcomes instead of serves")
    add.add_argument("--json", action="store_true", help="print one JSON object")

    add = command("run", run, "run notebooks headless and write a report", RUN_HELP, RUN_EXAMPLES)
    add.add_argument("notebooks", metavar="NOTEBOOK", nargs="*")
    add.add_argument("-p", "--parameter", metavar="NAME=VALUE", action="append", default=[], help="notebook parameter; repeatable")
    add.add_argument("--strict", action="store_true", help="exit 4 when a check was not run")
    add.add_argument("--jobs", type=int, metavar="N", help="notebooks at a time (default: one a processor core)")
    add.add_argument("--out", type=Path, metavar="DIR", help="where the run goes (default: runs/<stamp>, linked as runs/latest)")

    add = command("sglang", sglang, "real SGLang releases: install them, ask them, compare them with the model here")
    if argv[:1] == ["sglang"]:
        from helpers.sglang.command import add_arguments

        add_arguments(add)
    add = command("vllm", vllm, "the second consumer: install one real vLLM release, ask it about a checkpoint")
    if argv[:1] == ["vllm"]:
        from helpers.vllm.command import add_arguments

        add_arguments(add)
    add = command("audit", audit, "read a checkpoint's NVFP4 weights and say what is wrong with them")
    if argv[:1] == ["audit"]:
        from helpers.nvfp4.audit.command import add_arguments  # imports torch

        add_arguments(add)
    add = command("kernels", kernels, "NVFP4 kernels of the CuTe DSL: compile them for any GPU, run them on the one here")
    if argv[:1] == ["kernels"]:
        from helpers.kernels.command import add_arguments

        add_arguments(add)
    command("checkpoints", checkpoints, "the names that stand for a checkpoint")
    command("releases", releases, "the SGLang releases the suite knows, with their pins")
    command("gpus", gpus, "the GPUs a deployment can be judged for")
    return top, made


def preflight(args: argparse.Namespace) -> int:
    from helpers.suite import preflight

    return preflight.main(args)


def run(args: argparse.Namespace) -> int:
    from helpers.suite import runner

    return runner.main(args)


def sglang(args: argparse.Namespace) -> int:
    from helpers.sglang import command

    return command.main(args)


def vllm(args: argparse.Namespace) -> int:
    from helpers.vllm import command

    return command.main(args)


def audit(args: argparse.Namespace) -> int:
    from helpers.nvfp4.audit import command

    return command.main(args)


def kernels(args: argparse.Namespace) -> int:
    from helpers.kernels import command

    return command.main(args)


def checkpoints(args: argparse.Namespace) -> int:
    from helpers.checkpoint import known_checkpoints

    _table([(name, description) for name, description in known_checkpoints().items()])
    return 0


def releases(args: argparse.Namespace) -> int:
    from helpers.deployment import RELEASES

    fields = ("version", "date", "torch", "transformers", "flashinfer", "cutlass_dsl")
    _table([("sglang", *fields[1:])] + [tuple(str(getattr(release, field)) for field in fields) for release in RELEASES])
    return 0


def gpus(args: argparse.Namespace) -> int:
    from helpers.deployment import GPUS

    rows = [(gpu.key, gpu.name, gpu.arch, f"{gpu.memory_mib / 1024:.0f} GiB") for gpu in GPUS]
    _table([("gpu", "name", "arch", "memory"), *rows])
    return 0


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def parse(argv: Sequence[str]) -> argparse.Namespace:
    top, commands = parser(argv)
    args, extra = top.parse_known_args(argv)
    if args.command == "run":
        # argparse does not put a name that follows an option with the names before it.
        args.notebooks += [name for name in extra if not name.startswith("-")]
        extra = [option for option in extra if option.startswith("-")]
    if extra:
        known = [option for action in commands[args.command]._actions for option in action.option_strings]
        raise unknown("option", extra[0].partition("=")[0], known)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        code = args.func(args)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _failed(error, 2)
    except (InputError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader of our output has gone (`| head`). Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        return _failed(error, 3)
    except KeyboardInterrupt:
        return _failed("interrupted", 130)


def _failed(reason: object, code: int) -> int:
    print(f"{PROGRAM}: error: {' '.join(str(reason).split())}", file=sys.stderr)
    return code
