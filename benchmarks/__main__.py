"""`make bench`: run every script of this folder (or those named), each in a process of its own, and say which targets were met.

A script prints what it measures and exits with 0 when its targets are met. Figures of different scripts are not compared:
each measures ratios within its own run.
"""

import subprocess
import sys
import time
from pathlib import Path

from helpers.errors import UsageError, unknown


def main(asked: list[str]) -> int:
    scripts = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.py")) if not path.stem.startswith("_")}
    for name in asked:
        if name not in scripts:
            raise unknown("benchmark", name, scripts)
    failed = []
    for name in asked or scripts:
        print(f"== {name}", flush=True)
        begun = time.perf_counter()
        if subprocess.run([sys.executable, scripts[name]], check=False).returncode:
            failed.append(name)
        print(f"   {time.perf_counter() - begun:.0f} s", flush=True)
    print(f"targets missed in: {', '.join(failed)}" if failed else "all targets met")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"python -m benchmarks: error: {error}")
