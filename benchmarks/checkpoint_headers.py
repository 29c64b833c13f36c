"""Headers and layer map of a large checkpoint, against the same names, dtypes and shapes read through safetensors.safe_open.

The checkpoint is synthetic and sparse: the real headers, index and configurations of a Qwen3.5-like mixed export (65 layers, 512 experts),
and no weight bytes on the disk. Each reader runs in a process of its own, the two in turn. Ours also validates every offset, every
name's uniqueness and the index, and builds the layer map. The targets are held against processor time, which a busy machine blurs least;
both readers use one thread and read from the page cache.
"""

import argparse
import json
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HIDDEN, INTERMEDIATE, EXPERTS, SHARDS = 4096, 1024, 512, 160
SIZES = (100_000, 200_000, 400_000)
TARGET_RATIO, TARGET_S, TARGET_MB, TARGET_GROWTH = 1.3, 3.0, 600, 1.3
BYTES = {"U8": 1, "F8_E4M3": 1, "F32": 4, "BF16": 2}


def tensors(count: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(name, dtype, shape) of count tensors: whole layers of experts, and attention projections for the remainder."""
    layers, rest = divmod(count, EXPERTS * 12)
    for layer in range(layers):
        for expert in range(EXPERTS):
            for projection, rows, columns in (
                ("gate_proj", INTERMEDIATE, HIDDEN),
                ("up_proj", INTERMEDIATE, HIDDEN),
                ("down_proj", HIDDEN, INTERMEDIATE),
            ):
                module = f"model.language_model.layers.{layer}.mlp.experts.{expert}.{projection}"
                yield f"{module}.weight", "U8", (rows, columns // 2)
                yield f"{module}.weight_scale", "F8_E4M3", (rows, columns // 16)
                yield f"{module}.weight_scale_2", "F32", ()
                yield f"{module}.input_scale", "F32", ()
    for number in range(rest):
        yield f"model.language_model.layers.{number}.self_attn.o_proj.weight", "BF16", (HIDDEN, HIDDEN)


def write_checkpoint(folder: Path, count: int) -> None:
    everything = list(tensors(count))
    each = -(-count // SHARDS)
    weight_map = {}
    for number in range(SHARDS):
        name = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        part = everything[number * each : (number + 1) * each]
        part.sort(key=lambda tensor: (-BYTES[tensor[1]], tensor[0]))  # as safetensors' own writer does
        weight_map.update((tensor[0], name) for tensor in part)
        write_sparse(folder / name, part)
    layers = count // (EXPERTS * 12)
    blocks = {f"model.language_model.layers.{layer}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16} for layer in range(layers)}
    quantization = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "quantized_layers": blocks}
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": {
            "num_hidden_layers": layers,
            "hidden_size": HIDDEN,
            "moe_intermediate_size": INTERMEDIATE,
            "num_experts": EXPERTS,
            "num_experts_per_tok": 10,
        },
        "quantization_config": quantization | {"quant_method": "modelopt"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": dict(sorted(weight_map.items()))}, indent=2)
    )


def write_sparse(path: Path, part: list[tuple[str, str, tuple[int, ...]]]) -> None:
    position = 0
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    for name, dtype, shape in part:
        size = BYTES[dtype]
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + position)


def read_ours(folder: Path) -> int:
    from helpers.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(folder)
    if checkpoint.reading or not checkpoint.layer_map.blocks:
        sys.exit(f"the synthetic checkpoint is not as meant: {checkpoint.reading}")
    return len(checkpoint.tensors)


def read_ours_compared(folder: Path) -> int:
    from helpers.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(folder)
    if checkpoint.findings:
        sys.exit(f"the synthetic checkpoint is not as meant: {checkpoint.findings}")
    return len(checkpoint.tensors)


def read_safe_open(folder: Path) -> int:
    from safetensors import safe_open

    rows = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict: it has no iterator)
                tensor = file.get_slice(name)
                rows.append((name, tensor.get_dtype(), tuple(tensor.get_shape())))
    return len(rows)


READERS = {"ours": read_ours, "ours and all comparisons": read_ours_compared, "safe_open": read_safe_open}


def child(reader: str, folder: str) -> None:
    """Read once in this process, imports included; print [tensors, wall s, processor s, peak MB]."""
    wall, processor = time.perf_counter(), time.process_time()
    count = READERS[reader](Path(folder))
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    print(json.dumps([count, wall, processor, peak]))


def measure(folder: Path, count: int, repeats: int) -> dict[str, list[float]]:
    """reader -> median [wall s, processor s, peak MB], the readers in turn so that a busy machine slows all of them."""
    runs: dict[str, list[list[float]]] = {reader: [] for reader in READERS}
    for _ in range(repeats):
        for reader, done in runs.items():
            command = [sys.executable, __file__, "--child", reader, str(folder)]
            seen, *figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            if seen != count:
                sys.exit(f"{reader} read {seen} tensors of {count}")
            done.append(figures)
    return {reader: [statistics.median(column) for column in zip(*done, strict=True)] for reader, done in runs.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each reader, of which the median counts (default 5)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of tensors")
    parser.add_argument("--write", nargs=2, metavar=("TENSORS", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs=2, metavar=("READER", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return 0
    if options.write:
        write_checkpoint(Path(options.write[1]), int(options.write[0]))
        return 0
    per_tensor, missed = {}, []
    for count in sorted(options.sizes):
        with tempfile.TemporaryDirectory() as folder:
            # In a process of its own: a child's peak memory begins with what its parent had.
            subprocess.run([sys.executable, __file__, "--write", str(count), folder], check=True)
            medians = measure(Path(folder), count, options.repeats)
        (wall, processor, peak), theirs = medians["ours"], medians["safe_open"]
        per_tensor[count] = processor / count
        for reader, (clock, cpu, memory) in medians.items():
            print(f"headers, {count:,} tensors, {reader}: {cpu:.2f} s of processor, {clock:.2f} s by the clock, {memory:.0f} MB")
        print(f"headers, {count:,} tensors: {theirs[1] / processor:.2f} times faster than safe_open ({theirs[0] / wall:.2f} by the clock)")
        if count == max(options.sizes) and (theirs[1] / processor < TARGET_RATIO or processor > TARGET_S or peak > TARGET_MB):
            missed.append(f"{count:,} tensors")
    growth = per_tensor[max(per_tensor)] / per_tensor[min(per_tensor)]
    print(f"headers, growth: {growth:.2f} times the time a tensor at {max(per_tensor):,} as at {min(per_tensor):,} (linear is 1)")
    if growth > TARGET_GROWTH:
        missed.append("growth")
    targets = f"{TARGET_RATIO} times faster, under {TARGET_S:.0f} s and {TARGET_MB} MB, growth at most {TARGET_GROWTH}"
    print(f"targets ({targets}): {'missed for ' + ', '.join(missed) if missed else 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
