"""Audit of a synthetic NVFP4 checkpoint of random bytes: speed a core, and memory that does not grow with the checkpoint.

    python -m benchmarks nvfp4_audit                 1 GB
    python benchmarks/nvfp4_audit.py --gigabytes 20  the size the target is written for; needs the disk space, removed afterwards

Speed is bytes of weights over processor time of one process (other work on the machine makes wall times longer), the file in the page
cache if it fits. Memory is the anonymous memory (RssAnon) of the audit and its processes together, as /proc says, every 20 ms.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HIDDEN, INTERMEDIATE, EXPERTS = 4096, 1024, 64
SHARD_GB = 4.0
FULL_TARGET, SAMPLED_TARGET, MEMORY_TARGET = 0.5, 1.0, 1024
CHUNK = 8 << 20


def write_checkpoint(folder: Path, gigabytes: float) -> int:
    """Experts of random bytes until there are so many gigabytes; returns the bytes of codes and block scales."""
    matrices = [("gate_proj", INTERMEDIATE, HIDDEN), ("up_proj", INTERMEDIATE, HIDDEN), ("down_proj", HIDDEN, INTERMEDIATE)]
    an_expert = sum(rows * cols * 9 // 16 for _, rows, cols in matrices)
    experts = max(round(gigabytes * 1e9 / an_expert), 1)
    a_shard = max(round(SHARD_GB * 1e9 / an_expert), 1)
    for shard, first in enumerate(range(0, experts, a_shard)):
        tensors = []
        for number in range(first, min(first + a_shard, experts)):
            for projection, rows, cols in matrices:
                name = f"model.layers.{number // EXPERTS}.mlp.experts.{number % EXPERTS}.{projection}"
                tensors += [(f"{name}.weight", "U8", (rows, cols // 2)), (f"{name}.weight_scale", "F8_E4M3", (rows, cols // 16))]
                tensors += [(f"{name}.weight_scale_2", "F32", ()), (f"{name}.input_scale", "F32", ())]
        write_shard(folder / f"model-{shard + 1:05d}.safetensors", tensors)
    layers = -(-experts // EXPERTS)
    config = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": layers, "hidden_size": HIDDEN, "num_experts": EXPERTS}
    config |= {"moe_intermediate_size": INTERMEDIATE, "num_experts_per_tok": 8}
    (folder / "config.json").write_text(json.dumps(config))
    return experts * an_expert


def write_shard(path: Path, tensors: list[tuple[str, str, tuple[int, ...]]]) -> None:
    order = sorted(tensors, key=lambda tensor: (tensor[1] != "F32", tensor[1], tensor[0]))
    header, position = {}, 0
    for name, dtype, shape in order:
        size = 4 if dtype == "F32" else shape[0] * shape[1]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    scalars = sum(1 for _, dtype, _ in order if dtype == "F32")
    with open(path, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.write(bytes.fromhex("17b7d138") * scalars)  # 1e-4
        left = position - 4 * scalars
        while left:
            file.write(os.urandom(min(CHUNK, left)))
            left -= min(CHUNK, left)


def run(folder: str, how: str, processes: int) -> None:
    """In a process of its own: audit, and print seconds of processor time and the bytes audited."""
    import torch

    from helpers.checkpoint import open_checkpoint
    from helpers.nvfp4.audit import audit, print_progress

    torch.set_num_threads(1)
    checkpoint = open_checkpoint(folder)
    begun, wall = time.process_time(), time.perf_counter()
    result = audit(checkpoint, full=how == "full", processes=processes, progress=print_progress if processes > 1 else None)
    print(json.dumps([result.bytes, time.process_time() - begun, time.perf_counter() - wall, len(result.matrices)]))


def measure(folder: Path, how: str, processes: int) -> tuple[float, float, float, float]:
    """(bytes, processor seconds, wall seconds, peak anonymous MiB of the process and its children)."""
    child = subprocess.Popen([sys.executable, __file__, "--run", folder, how, str(processes)], stdout=subprocess.PIPE, text=True)
    peak = 0.0
    stopped = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stopped.wait(0.02):
            peak = max(peak, sum(map(anonymous, descendants(child.pid))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = child.communicate()
    stopped.set()
    watcher.join()
    if child.returncode:
        sys.exit(child.returncode)
    size, processor, wall, _ = json.loads(out.splitlines()[-1])
    return size, processor, wall, peak


def descendants(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        try:
            found += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
        except FileNotFoundError:
            continue  # ended meanwhile
    return found


def anonymous(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="where to write the checkpoint (default: the temporary directory)")
    parser.add_argument("--run", nargs=3, metavar=("FOLDER", "HOW", "PROCESSES"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run:
        run(asked.run[0], asked.run[1], int(asked.run[2]))
        return 0
    met = []
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        size = write_checkpoint(Path(folder), asked.gigabytes)
        print(f"{size / 1e9:.1f} GB of random codes and scales")
        for how, target in (("full", FULL_TARGET), ("sampled", SAMPLED_TARGET)):
            size, processor, wall, peak = measure(Path(folder), how, 1)
            rate = size / processor / 1e9
            met.append(rate >= target)
            print(f"{how}: {rate:.2f} GB/s of processor time (target: at least {target:g})  {verdict(met[-1])}")
            print(f"  {wall:.1f} s of wall time, {peak:.0f} MiB anonymous")
        size, _, wall, peak = measure(Path(folder), "full", 2)
        met.append(peak < MEMORY_TARGET)
        print(f"full, 2 processes: {peak:.0f} MiB anonymous together (target: under {MEMORY_TARGET})  {verdict(met[-1])}; {wall:.1f} s")
    return 0 if all(met) else 1


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
