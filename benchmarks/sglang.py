"""How fast real releases answer: argument questions a second of the worker's CPU time, import seconds, memory over many questions.

Asked are the bundled checkpoints with the matrix's launches, as in the comparison. The rate is by CPU time, so that a busy machine
does not blur it; the wall-clock rate stands beside it. `python benchmarks/sglang.py 0.5.16 --memory 10000` asks one release longer.
"""

import argparse
import itertools
import sys
import time
from pathlib import Path

from helpers.checkpoint.folders import folders
from helpers.deployment import release
from helpers.sglang.build import DEFAULT_RELEASES
from helpers.sglang.client import Worker
from helpers.sglang.environments import environments
from helpers.sglang.matrix import argument_questions, checkpoints

TARGETS = {"0.5.18": 250, "": 100}  # a second: up to that release, and later
MAY_GROW = 40  # MiB over --memory questions, after the first tenth of them


def target(version: str) -> int:
    return TARGETS["" if release(version) > release("0.5.18") else "0.5.18"]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def resident_mib(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def measure(version: str, questions: int) -> bool:
    subjects = [checkpoint for checkpoint in checkpoints() if checkpoint.path is not None]
    asked = argument_questions(release(version), subjects, sample=20)
    with folders() as folder, Worker(version) as worker:
        about = worker.start()
        pid = worker.pid
        pairs = [(folder(question.checkpoint), question.deployment) for question in asked]
        for _ in worker.arguments_of(pairs[:: len(pairs) // 100]):  # what is parsed once is parsed
            pass
        rounds = itertools.islice(itertools.cycle(pairs), questions)
        early = None
        cpu, wall = cpu_seconds(pid), time.perf_counter()
        for number, _ in enumerate(worker.arguments_of(rounds), 1):
            if number == questions // 10:
                early = resident_mib(pid)
        cpu, wall = cpu_seconds(pid) - cpu, time.perf_counter() - wall
        grown = resident_mib(pid) - early
    rate, goal = questions / cpu, target(version)
    print(f"{version:<13} import {about['import_seconds']:.1f} s; memory {early:.0f} MiB, {grown:+.0f} over {questions} questions")
    print(f"{'':<13} {rate:.0f} questions a second of CPU time, {questions / wall:.0f} of wall time (target {goal})")
    return rate >= goal and grown <= MAY_GROW


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("releases", nargs="*", help="default: those of 0.5.15 0.5.16 0.5.23 that are built")
    parser.add_argument("--memory", type=int, default=3000, metavar="N", help="questions to ask (default 3000)")
    args = parser.parse_args()
    there = environments()
    wanted = args.releases or [version for version in DEFAULT_RELEASES if version in there]
    if not wanted:
        print("no release is built: make sglang")
    return 0 if all([measure(version, args.memory) for version in wanted]) else 1


if __name__ == "__main__":
    sys.exit(main())
