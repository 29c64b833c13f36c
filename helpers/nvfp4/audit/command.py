"""``python -m helpers audit CHECKPOINT``: the audit in a terminal, for checkpoints that take minutes."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from helpers.checkpoint import open_checkpoint
from helpers.errors import UsageError
from helpers.findings import PROVABLE
from helpers.nvfp4.audit.report import METRICS, bits_a_weight, findings, metric, worst
from helpers.nvfp4.audit.run import audit, print_progress

DESCRIPTION = """\
Read every NVFP4 matrix of a checkpoint in a stream and say what is wrong with the weights: NaN, zero and saturated scales, unusable
global scales, dead and duplicated experts, scales and codes of different blocks, and signal to noise when the original is given.
Progress on stderr, in bytes and seconds left. Nothing is loaded whole, downloaded or executed.
"""
EXAMPLES = """\
exit codes: 0 nothing proven against the weights; 1 something; 2 usage; 3 unreadable input

examples:
  python -m helpers audit qwen3.5-moe-mixed
  python -m helpers audit /models/x --processes 8 --record runs/x.audit    stopped, it goes on from there
  python -m helpers audit /models/x-nvfp4 --original /models/x --worst sqnr
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder with *.safetensors files, or a bundled name")
    parser.add_argument("--original", metavar="FOLDER", help="the checkpoint before quantisation: true signal to noise of each matrix")
    parser.add_argument("--sampled", action="store_true", help="all scales, and one stretch of codes in 16: several times faster")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="how many processes read (default: 1)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep what is done in FILE and go on from it")
    parser.add_argument(
        "--worst", default="gaussian", metavar="METRIC", help=f"list the ten worst by {', '.join(METRICS)} (default: gaussian)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object with every matrix")


def main(args: argparse.Namespace) -> int:
    """The exit code. UsageError and InputError are the caller's to print."""
    if args.processes < 1:
        raise UsageError(f"--processes {args.processes}: must be at least 1")
    by = metric(args.worst)
    original = open_checkpoint(args.original) if args.original else None
    checkpoint = open_checkpoint(args.checkpoint)
    result = audit(
        checkpoint,
        full=not args.sampled,
        processes=args.processes,
        original=original,
        record=args.record,
        progress=print_progress,
    )
    # What reading the headers found belongs here too: a missing shard's weights were not audited.
    found = [*(finding for finding in checkpoint.findings if finding.stage == "load"), *findings(result)]
    listed = worst(result, by.name)
    if args.json:
        whole = {"checkpoint": result.checkpoint, "full": result.full, "bytes": result.bytes}
        whole |= {"findings": [asdict(finding) for finding in found], "matrices": [asdict(matrix) for matrix in result.matrices]}
        json.dump(whole, sys.stdout)
        print()
    else:
        print(f"{len(result.matrices):,} NVFP4 matrices, {result.bytes / 1e9:.2f} GB, {result.seconds:.1f} s", end="; ")
        print(f"{bits_a_weight(result):.2f} bits of information a weight, of 4.5 stored")
        for finding in found:
            print(f"\n{finding.severity}  {finding.id}")
            for name in ("read", "observed", "expected", "why", "source", "remedy"):
                print(f"  {name:<9}{_printable(getattr(finding, name))}")
        print(f"\nworst by {by.what}")
        for module, value in listed:
            print(f"  {value:<10.4g} {_printable(module)}")
    return 1 if any(finding.severity in PROVABLE for finding in found) else 0


def _printable(text: str) -> str:
    """A tensor's name must not move the cursor."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
