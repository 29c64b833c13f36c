"""A cold verdict of the two largest configurations, and a sweep of one checkpoint over releases, runners, all-to-alls and GPUs.

Cold: a process of its own, imports done, from opening the checkpoint to the verdict on the newest release (reading both JSON files,
detection, arguments, every module's route). Sweep: one process, each release routed once before. Time is the process's own CPU time:
nothing here waits, and a busy machine does not blur it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

COLD = {"qwen3.5-397b-v2-config": 0.030, "nvidia--MiniMax-M3-NVFP4": 0.300}
SWEPT = "qwen3.5-397b-v2-config"
TARGET_A_SECOND = 5_000
REPEATS = 5


def cold(name: str) -> dict:
    """Seconds of one cold verdict, in this process."""
    begun = time.process_time()
    from helpers.checkpoint import open_checkpoint
    from helpers.deployment import deployment
    from helpers.stages.verdict import judge

    imported = time.process_time()
    checkpoint = open_checkpoint(name)
    opened = time.process_time()
    judged = judge(checkpoint, deployment(runner="flashinfer_cutedsl"))
    return {
        "import": imported - begun,
        "open": opened - imported,
        "verdict": time.process_time() - imported,
        "outcome": judged.verdict.outcome,
        "modules": len(judged.routing.modules),
    }


def swept(name: str) -> dict:
    """Judgements a second over the whole matrix, in this process."""
    from dataclasses import replace

    from helpers.checkpoint import open_checkpoint
    from helpers.deployment import GPUS, RELEASES, a2a_backends, deployment, runners
    from helpers.stages.verdict import judge, sweep

    checkpoint = open_checkpoint(name)
    asked = [
        replace(deployment(sglang=release.version, tp=8), runner=runner, a2a=a2a, gpu=gpu)
        for release in RELEASES
        for runner in runners(release)
        for a2a in a2a_backends(release)
        for gpu in GPUS
    ]
    for release in RELEASES:
        judge(checkpoint, deployment(sglang=release.version))
    outcomes: dict[str, int] = {}
    begun = time.process_time()
    for judged in sweep(checkpoint, asked):
        outcome = judged.verdict.outcome
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return {"questions": len(asked), "seconds": time.process_time() - begun, "outcomes": outcomes}


def alone(*arguments: str) -> dict:
    """The same in a process of its own."""
    return json.loads(subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cold", metavar="NAME")
    parser.add_argument("--sweep", metavar="NAME")
    asked = parser.parse_args()
    if asked.cold or asked.sweep:
        print(json.dumps(cold(asked.cold) if asked.cold else swept(asked.sweep)))
        return 0
    met = True
    for name, target in COLD.items():
        runs = [alone("--cold", name) for _ in range(REPEATS)]
        verdict, opened, imported = (statistics.median(run[part] for run in runs) for part in ("verdict", "open", "import"))
        met &= verdict < target
        print(
            f"{name}: cold verdict {verdict * 1e3:.1f} ms, of which reading {opened * 1e3:.1f} ms (target under {target * 1e3:.0f} ms); "
            f"{runs[0]['modules']} modules, {runs[0]['outcome']}; imports before it {imported * 1e3:.0f} ms"
        )
    sweeping = max((alone("--sweep", SWEPT) for _ in range(3)), key=lambda run: run["questions"] / run["seconds"])
    rate = sweeping["questions"] / sweeping["seconds"]
    met &= rate >= TARGET_A_SECOND
    counted = ", ".join(f"{outcome} {count}" for outcome, count in sorted(sweeping["outcomes"].items()))
    print(f"{SWEPT}: {sweeping['questions']} deployments, {rate:,.0f} verdicts a second (target {TARGET_A_SECOND:,}): {counted}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
