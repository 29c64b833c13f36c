"""``python -m helpers sglang …``: build the environments of real releases, see what is there, compare, snapshot."""

import argparse
import os

from helpers.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-commands of ``sglang``."""
    commands = parser.add_subparsers(dest="sglang_command", metavar="COMMAND", required=True)
    made = commands.add_parser("build", help="install real releases, each once, without a GPU", description=_BUILD)
    made.add_argument("releases", nargs="*", metavar="RELEASE", help="default: 0.5.15 0.5.16 0.5.23")
    made.set_defaults(run=_build)
    commands.add_parser("status", help="the releases that can be asked now").set_defaults(run=_status)


def main(args: argparse.Namespace) -> int:
    """The exit code. UsageError and InputError are the caller's to print."""
    return args.run(args)


_BUILD = """\
Install what is missing in $NVFP4_CACHE (default ~/.cache/nvfp4-moe-validation): a base environment with torch once (6.5 GB),
each release's wheel (30 to 100 MB) and the transformers it pins. A build that was interrupted is started again, never used.
NVFP4_TORCH replaces the torch line, NVFP4_PYTHON the interpreter. SGLANG_PYTHON=/path/to/python uses an installation you have.
"""


def _build(args: argparse.Namespace) -> int:
    from helpers.sglang.build import build

    if os.environ.get("SGLANG_PYTHON"):
        raise UsageError("SGLANG_PYTHON is set, so the release installed there is asked and nothing is built; unset it to build")
    build(args.releases, say=lambda line: print(line, flush=True))
    return 0


def _status(args: argparse.Namespace) -> int:
    from helpers.sglang.environments import environments, home

    found = environments()
    for release, environment in found.items():
        print(f"{release:<14} {environment.origin:<14} transformers {environment.transformers or 'as installed'}")
    if not found:
        print(f"no release is built in {home()}: make sglang")
    return 0
