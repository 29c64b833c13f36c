"""The compile matrix: 22 kernels for five architectures, Hopper twice, with an empty cache and then with a full one.

The cold target is held against processor time over two cores, which a busy machine blurs least; the wall time is printed beside it.
"""

import os
import resource
import sys
import tempfile
import time

from helpers.kernels.compile import PARALLEL, claims
from helpers.kernels.matrix import compile_matrix
from helpers.kernels.versions import compile_blocker, here

TARGET_COLD_S, TARGET_WARM_S = 120, 5


def processor_seconds() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in both)


def measure() -> tuple[int, float, float]:
    """(kernels that compiled, processor seconds, wall seconds) of the matrix and its claims."""
    processor, wall = processor_seconds(), time.perf_counter()
    results = compile_matrix()
    claims()
    return sum(result.ok for result in results), processor_seconds() - processor, time.perf_counter() - wall


def main() -> int:
    blocker = compile_blocker(here())
    if blocker:
        print(f"not measured: {blocker}")
        return 0
    with tempfile.TemporaryDirectory() as cache:
        os.environ["NVFP4_CACHE"] = cache
        compiled, processor, wall = measure()
        shared = processor / PARALLEL
        print(f"cold: {compiled} compiled, {processor:.0f} s of processor time, {shared:.0f} s on {PARALLEL} cores; {wall:.0f} s passed")
        again, _, warm = measure()
        print(f"warm: {again} compiled, {warm:.2f} s passed")
    return 0 if shared < TARGET_COLD_S and warm < TARGET_WARM_S and compiled == again else 1


if __name__ == "__main__":
    sys.exit(main())
