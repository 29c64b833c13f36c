"""What the bytes of one NVFP4 matrix say, read in pieces into one buffer: memory does not grow with the matrix, and never with the file.

A block's 16 codes are 8 bytes, one 64-bit word, so questions about a block ("does it hold a 6?") are a few bitwise operations.
"""

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from helpers.errors import InputError
from helpers.nvfp4.audit.plan import Job, Part
from helpers.nvfp4.codec import Nvfp4, decode
from helpers.nvfp4.elements import BLOCK, E2M1_VALUES

PIECE = 1 << 18  # bytes worked on at once: with what is computed from them they stay in a core's cache
STRETCH = 1 << 15  # bytes of codes read for every SAMPLE of them, when only a sample is read
SAMPLE = 16

NAN_BYTES = (0x7F, 0xFF)
SATURATED = 0x7E
WORD = BLOCK // 2
_LOW_BITS = np.uint64(0x1111111111111111)
_MAGNITUDES = np.uint64(0x7777777777777777)


@dataclass(frozen=True, slots=True)
class MatrixStats:
    """One matrix. Counts of blocks unless said; ``examined`` of ``blocks`` had their codes read, all had their scales read.

    zero, nan, negative, saturated (448), subnormal, smallest (2**-9): block scales that are so. codes: counts of the 16 codes.
    no_six: blocks without a code of magnitude 6; empty: blocks of zeros only. rms: of the decoded weights, over the sample.
    code_bits, scale_bits: entropies. crc: of the scales and of how
    often each byte of codes occurs, so that equal matrices have equal ones, and others practically never. sqnr_db: against the
    original, None without one. global_scale and input_scale: multipliers on decode (amax/2688), whatever the file's convention.
    """

    module: str
    layer: int | None
    expert: int | None
    projection: str
    blocks: int
    examined: int
    zero: int
    nan: int
    negative: int
    saturated: int
    subnormal: int
    smallest: int
    largest_scale: float
    codes: tuple[int, ...]
    no_six: int
    empty: int
    rms: float
    code_bits: float
    scale_bits: float
    global_scale: float
    input_scale: float | None
    crc: int
    sqnr_db: float | None


class Reader:
    """Reads parts of files into buffers. A file that ends early, or shrinks while it is read, is an error that names the tensor."""

    def __init__(self):
        self._open: dict[str, int] = {}
        self._buffer = np.empty(PIECE, np.uint8)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def into(self, buffer: np.ndarray, part: Part, start: int = 0) -> np.ndarray:
        """Fill ``buffer`` from byte ``start`` of the part on."""
        if part.file not in self._open:
            try:
                self._open[part.file] = os.open(part.file, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise InputError(f"{part.tensor}: {part.file} cannot be opened ({error.strerror})") from error
        view, position = memoryview(buffer).cast("B"), 0
        while position < len(view):
            got = os.preadv(self._open[part.file], [view[position:]], part.offset + start + position)
            if got == 0:
                where = part.offset + start + position
                raise InputError(
                    f"{part.tensor} {part.dtype} {part.shape} in {part.file}: the file ends at byte {where:,}, and the tensor's "
                    f"{part.nbytes:,} bytes go to {part.offset + part.nbytes:,}; download the file again"
                )
            position += got
        return buffer

    def all(self, part: Part) -> np.ndarray:
        return self.into(np.empty(part.nbytes, np.uint8), part)

    def pieces(self, part: Part, ranges: list[tuple[int, int]], unit: int) -> Iterator[np.ndarray]:
        """The bytes of the ranges (start, end), in pieces of whole units; a piece is good until the next one."""
        step = max(PIECE // unit, 1) * unit
        if step > len(self._buffer):
            self._buffer = np.empty(step, np.uint8)
        for start, end in ranges:
            for position in range(start, end, step):
                yield self.into(self._buffer[: min(step, end - position)], part, position)

    def scalar(self, part: Part | None) -> float | None:
        return None if part is None else float(self.into(np.empty(4, np.uint8), replace(part, shape=())).view(np.float32)[0])


def scan(job: Job, reader: Reader, full: bool) -> MatrixStats:
    """Read all block scales, all codes (full) or one stretch in SAMPLE of them, and say what they are."""
    scales = reader.all(job.scales)
    scale_counts = _counts(scales)
    ranges = sample_ranges(job)
    code_bytes, no_six, empty = np.zeros(256, np.int64), 0, 0
    for piece in reader.pieces(job.codes, [(0, job.codes.nbytes)] if full else ranges, _unit(job)):
        code_bytes += _counts(piece)
        without, zeros = _blocks(piece, job)
        no_six, empty = no_six + int(without), empty + int(zeros)
    codes = code_bytes.reshape(16, 16).sum(0) + code_bytes.reshape(16, 16).sum(1)
    g = reader.scalar(job.global_scale)
    g = _reciprocal(g) if job.reciprocal else g
    inputs = reader.scalar(job.input_scale)
    inputs = _reciprocal(inputs) if job.reciprocal and inputs is not None else inputs
    values = scale_values()
    present = scale_counts[: NAN_BYTES[0]].nonzero()[0]
    return MatrixStats(
        module=job.module,
        layer=job.layer,
        expert=job.expert,
        projection=job.projection,
        blocks=len(scales),
        examined=int(code_bytes.sum()) // WORD,
        zero=int(scale_counts[0x00] + scale_counts[0x80]),
        nan=int(scale_counts[list(NAN_BYTES)].sum()),
        negative=int(scale_counts[0x81:0xFF].sum()),
        saturated=int(scale_counts[SATURATED]),
        subnormal=int(scale_counts[1:8].sum()),
        smallest=int(scale_counts[1]),
        largest_scale=float(values[present[-1]]) if len(present) else 0.0,
        codes=tuple(codes.tolist()),
        no_six=no_six,
        empty=empty,
        rms=_rms(job, reader, scales, ranges, g),
        code_bits=entropy(codes),
        scale_bits=entropy(scale_counts),
        global_scale=g,
        input_scale=inputs,
        crc=zlib.crc32(code_bytes, zlib.crc32(scales)),
        sqnr_db=sqnr(job, reader) if job.original is not None and 0 < g < float("inf") else None,
    )


def sample_ranges(job: Job) -> list[tuple[int, int]]:
    """Byte ranges of the codes, one stretch in SAMPLE, whole blocks: at a place within each that looks random and is always the same."""
    unit = _unit(job)
    stretch = max(STRETCH // unit, 1) * unit
    total = job.codes.nbytes
    if total <= stretch:
        return [(0, total)]
    period = stretch * SAMPLE
    generator = np.random.default_rng(total)
    ranges = []
    for start in range(0, total, period):
        slack = (min(period, total - start) - stretch) // unit
        first = start + unit * int(generator.integers(0, slack + 1)) if slack > 0 else start
        ranges.append((first, min(first + stretch, total)))
    return ranges


def _unit(job: Job) -> int:
    """Fewest bytes of codes that are whole blocks."""
    return WORD if job.packed_axis == -1 else WORD * job.codes.shape[-1]


def _counts(data: np.ndarray) -> np.ndarray:
    return torch.bincount(torch.from_numpy(data), minlength=256).numpy()


def _blocks(piece: np.ndarray, job: Job) -> tuple[int, int]:
    """(blocks without a code of magnitude 6, blocks of zeros)."""
    if job.packed_axis == -1:
        words = piece.view(np.uint64)
        ones = words >> np.uint64(1)
        ones &= words
        ones &= words >> np.uint64(2)
        ones &= _LOW_BITS
        return len(words) - np.count_nonzero(ones), len(words) - np.count_nonzero(words & _MAGNITUDES)
    columns = job.codes.shape[-1]
    rows = piece.reshape(-1, WORD, columns)
    sixes = np.bitwise_or.reduce(rows & (rows >> 1) & (rows >> 2) & 0x11, axis=1)
    anything = np.bitwise_or.reduce(rows & 0x77, axis=1)
    return sixes.size - np.count_nonzero(sixes), anything.size - np.count_nonzero(anything)


def _rms(job: Job, reader: Reader, scales: np.ndarray, ranges: list[tuple[int, int]], g: float) -> float:
    """Root mean square of the decoded weights of the sample; scales that are NaN count as zero, they are reported on their own."""
    squares, blocks = 0.0, 0
    weights = np.nan_to_num(scale_values()) ** 2
    for start, end in ranges:
        piece = reader.into(np.empty(end - start, np.uint8), job.codes, start)
        if job.packed_axis == -1:
            energy = code_energy()[piece].reshape(-1, WORD) @ np.ones(WORD, np.float32)
        else:
            energy = code_energy()[piece].reshape(-1, WORD, job.codes.shape[-1]).sum(1).ravel()
        squares += float(weights[scales[start // WORD : end // WORD]] @ energy)
        blocks += len(energy)
    return float(np.sqrt(squares / (blocks * BLOCK)) * g)


@cache
def scale_values() -> np.ndarray:
    """float64 value of each E4M3 byte."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()


@cache
def code_energy() -> np.ndarray:
    """float32 [256]: sum of the squares of the two codes in a byte."""
    squares = np.array(E2M1_VALUES, np.float32) ** 2
    return (squares[None, :] + squares[:, None]).ravel()


def entropy(counts: np.ndarray) -> float:
    """Bits a symbol."""
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def _reciprocal(value: float) -> float:
    return 1 / value if value else float("inf")


def sqnr(job: Job, reader: Reader) -> float:
    """Decibels of the original's energy over that of its difference to the decoded weights, a piece of whole rows at a time."""
    original, codes = job.original, job.codes
    rows, k = codes.shape[0], 2 * codes.shape[1]
    if job.packed_axis != -1 or original.shape != (rows, k):
        raise InputError(f"{original.tensor} in {original.file}: shape {original.shape}, expected {(rows, k)} beside {codes.tensor}")
    dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[original.dtype]
    g = torch.tensor(reader.scalar(job.global_scale))
    recipe = "compressed_tensors" if job.reciprocal else "modelopt"
    signal = noise = 0.0
    step = max(PIECE // k, 1)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        piece = [
            torch.from_numpy(reader.into(np.empty((count, part.nbytes // rows), np.uint8), part, first * (part.nbytes // rows)))
            for part in (codes, job.scales, original)
        ]
        decoded = decode(Nvfp4(piece[0], piece[1].view(torch.float8_e4m3fn), g, recipe), torch.float32)
        weights = piece[2].view(dtype).float()
        signal += float(weights.double().square().sum())
        noise += float((weights - decoded).double().square().sum())
    return float("inf") if noise == 0 else float(10 * np.log10(signal / noise)) if signal else float("-inf")
