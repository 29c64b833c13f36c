"""NVFP4 decode and encode of one expert's matrix, one thread, against nvidia-modelopt on the same tensor; on a GPU, decode against copying.

Every comparison is of equal bits. The two are measured in turn, best of several, in the thread's own processor time, because other
work on the machine slows both down; targets are ratios. A BF16 clone is the least that touching the same numbers could cost.

    python -m benchmarks nvfp4_codec                  the CPU
    python benchmarks/nvfp4_codec.py cuda [--json F]  a CUDA device (needs torch and triton, not modelopt)
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from helpers.nvfp4.codec import Nvfp4, decode, decode_plain, encode

ROWS, COLS = 2048, 4096  # gate and up of one expert: intermediate 1024, hidden 4096
ROUNDS = 7
DECODE_TARGET, ENCODE_TARGET = 4.0, 2.0
GPU_GB, GPU_TARGET = 1.0, 0.60


def in_turn(*runs: Callable[[], object]) -> list[float]:
    """Best processor time in seconds of each, measured alternately."""
    best = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        for i, run in enumerate(runs):
            begun = time.thread_time()
            run()
            best[i] = min(best[i], time.thread_time() - begun)
    return best


def cpu() -> int:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    torch.set_num_threads(1)
    weight = (torch.randn(ROWS, COLS, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    theirs, scales, g = NVFP4QTensor.quantize(weight, 16)
    ours = encode(weight)
    assert torch.equal(ours.codes, theirs._quantized_data) and torch.equal(ours.scales.view(torch.uint8), scales.view(torch.uint8))

    def modelopt_decode() -> torch.Tensor:
        return theirs.dequantize(torch.bfloat16, scale=scales, double_scale=g, block_sizes={-1: 16})

    assert torch.equal(decode(ours).view(torch.int16), modelopt_decode().view(torch.int16))
    mine, reference, clone = in_turn(lambda: decode(ours), modelopt_decode, weight.clone)
    decoded = report("decode", mine, reference, clone, DECODE_TARGET)
    mine, reference, clone = in_turn(lambda: encode(weight), lambda: NVFP4QTensor.quantize(weight, 16), weight.clone)
    encoded = report("encode", mine, reference, clone, ENCODE_TARGET)
    return 0 if decoded and encoded else 1


def report(what: str, mine: float, reference: float, clone: float, target: float) -> bool:
    met = reference / mine >= target
    elements = ROWS * COLS
    print(f"{what} {ROWS}x{COLS}, one thread, bit-equal: {mine * 1e3:.1f} ms ({elements * 2 / mine / 1e9:.2f} GB/s of BF16)")
    print(f"  nvidia-modelopt: {reference * 1e3:.1f} ms; ratio {reference / mine:.1f} (target: at least {target:g})  {verdict(met)}")
    print(f"  a BF16 clone: {clone * 1e3:.1f} ms; {what} runs at {clone / mine:.0%} of its bandwidth")
    return met


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def gpu_seconds(run: Callable[[], object], times: int = 20) -> float:
    for _ in range(3):
        run()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(times)]
    for begun, ended in marks:
        begun.record()
        run()
        ended.record()
    torch.cuda.synchronize()
    return sorted(begun.elapsed_time(ended) / 1e3 for begun, ended in marks)[times // 2]


def cuda(record: Path | None) -> int:
    """A stack of experts whose codes and scales take GPU_GB; bytes moved are those read and those written."""
    experts = round(GPU_GB * 1e9 / (ROWS * COLS * 9 / 16))
    device = torch.device("cuda")
    codes = torch.randint(0, 256, (experts, ROWS, COLS // 2), dtype=torch.uint8, device=device)
    scales = torch.randint(1, 127, (experts, ROWS, COLS // 16), dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    encoded = Nvfp4(codes, scales, torch.rand(experts, device=device) * 1e-3 + 1e-4)
    out = torch.empty(encoded.shape, dtype=torch.bfloat16, device=device)
    decode(encoded, out=out)
    for expert in (0, experts - 1):
        assert torch.equal(out[expert].view(torch.int16), decode_plain(encoded[expert]).view(torch.int16)), expert
    source = torch.empty(2**31, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / gpu_seconds(lambda: target.copy_(source)) / 1e12
    seconds = gpu_seconds(lambda: decode(encoded, out=out))
    reached = (encoded.nbytes + out.nbytes) / seconds / 1e12
    one = encoded[0]
    plain = gpu_seconds(lambda: decode_plain(one))
    weight = out[0].clone()
    encoding = gpu_seconds(lambda: encode(weight))
    figures = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "encoded_bytes": encoded.nbytes,
        "decode_ms": seconds * 1e3,
        "decode_TB_per_s": reached,
        "copy_TB_per_s": copy,
        "share_of_copy": reached / copy,
        "target": GPU_TARGET,
        "plain_torch_one_expert_ms": plain * 1e3,
        "triton_one_expert_ms": gpu_seconds(lambda: decode(one)) * 1e3,
        "encode_one_expert_ms": encoding * 1e3,
    }
    met = figures["share_of_copy"] >= GPU_TARGET
    print(f"decode of {encoded.nbytes / 1e9:.2f} GB to BF16 on {figures['device']}: {seconds * 1e3:.2f} ms, {reached:.2f} TB/s")
    print(f"  copying: {copy:.2f} TB/s; share {reached / copy:.0%} (target: at least {GPU_TARGET:.0%})  {verdict(met)}")
    print(
        f"  one expert: {figures['triton_one_expert_ms']:.3f} ms, in plain torch {plain * 1e3:.3f} ms; its encode {encoding * 1e3:.3f} ms"
    )
    if record:
        record.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if met else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("where", nargs="?", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, help="where to write the figures (cuda)")
    asked = parser.parse_args()
    return cpu() if asked.where == "cpu" else cuda(asked.json)


if __name__ == "__main__":
    sys.exit(main())
