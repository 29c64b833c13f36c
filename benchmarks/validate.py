"""The whole suite headless: our runner against the same notebooks one after another through plain papermill.

Target: under 60 s on two cores with the environment in place, and at least 1.6 times faster. Both are measured twice, in
turns, because other work on the machine slows them down; the better time of each counts. Our time includes everything that
`make validate` does: checking the parameters, the record and the report.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from helpers.paths import NOTEBOOKS, ROOT

ROUNDS = 2
SECONDS = 60.0
RATIO = 1.6


def one_after_another(folder: Path) -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        subprocess.run(
            [sys.executable, "-m", "papermill", path, folder / path.name, "--no-progress-bar", "--log-level", "ERROR"],
            cwd=NOTEBOOKS,
            check=True,
        )


def ours(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "helpers", "run", "--out", folder / "run"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def seconds(run: Callable[[Path], None]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        run(Path(folder))
        return time.perf_counter() - begun


def main() -> int:
    times = [(seconds(one_after_another), seconds(ours)) for _ in range(ROUNDS)]
    plain, suite = (min(column) for column in zip(*times, strict=True))
    met = suite < SECONDS and plain / suite >= RATIO
    print(f"plain papermill, one after another: {plain:.1f} s")
    print(f"python -m helpers run, {os.cpu_count()} cores: {suite:.1f} s (target: under {SECONDS:.0f} s)")
    print(f"ratio: {plain / suite:.2f} (target: at least {RATIO})  {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
