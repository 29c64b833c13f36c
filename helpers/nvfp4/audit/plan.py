"""What an audit reads: for every NVFP4 matrix of a checkpoint, where its codes, block scales and global scales lie in which file."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from helpers.checkpoint import Checkpoint, TensorTable, layer_of, split_expert
from helpers.errors import InputError

ALGORITHMS = ("NVFP4", "W4A16_NVFP4")
CODES = ("weight", "weight_packed")
GLOBALS = ("weight_scale_2", "weight_global_scale")
INPUTS = ("input_scale", "input_global_scale")
DTYPE_BYTES = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F16": 2, "F32": 4}


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of one file: tensor's name, file, absolute byte offset, safetensors dtype, shape (of bytes for packed codes)."""

    tensor: str
    file: str
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Job:
    """One matrix. module: its name, of a fused stack with the expert's number. projection: gate, up, down, gate_up or the last name.

    packed_axis: the axis of K, -1 (codes [N, K/2]) or -2 (fused experts: codes [K/2, N]). reciprocal: the stored global scales are
    2688/amax (compressed-tensors). original: the same weights before quantisation, when given.
    """

    module: str
    layer: int | None
    expert: int | None
    projection: str
    packed_axis: int
    reciprocal: bool
    codes: Part
    scales: Part
    global_scale: Part
    input_scale: Part | None
    original: Part | None = None

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes


class Files:
    """Absolute offsets: a table counts them from the end of a header, whose length the file's first eight bytes give."""

    def __init__(self, checkpoint: Checkpoint):
        if checkpoint.tensors is None or checkpoint.path is None:
            raise InputError(f"{checkpoint.name}: only configurations, no weights to audit; give the folder with its *.safetensors files")
        self.table: TensorTable = checkpoint.tensors
        self.folder = Path(checkpoint.path)
        self._data: dict[str, int] = {}

    def part(self, name: str) -> Part:
        shard = self.table.shard(name)
        if shard not in self._data:
            with open(self.folder / shard, "rb") as file:
                self._data[shard] = 8 + int.from_bytes(file.read(8), "little")
        dtype, shape = self.table.dtype(name), self.table.shape(name)
        if dtype == "F4":  # counts values; everything here counts bytes
            dtype, shape = "U8", (*shape[:-1], shape[-1] // 2)
        return Part(name, str(self.folder / shard), self._data[shard] + self.table.offsets(name)[0], dtype, shape)


def plan(checkpoint: Checkpoint, original: Checkpoint | None = None) -> list[Job]:
    """Every NVFP4 matrix, in the order of its codes on the disk. original: the unquantised checkpoint, for true signal to noise.

    InputError for a matrix whose tensors do not fit together, naming tensor, file, shape and the shape it should have.
    """
    files = Files(checkpoint)
    modules = checkpoint.modules
    jobs = []
    for module, algorithm in modules.algorithms.items():
        tensors = {suffix: (dtype, shape) for suffix, dtype, shape in modules.tensors(module)}
        if algorithm.startswith("incomplete") and ("NVFP4" in algorithm or tensors.keys() & set(GLOBALS)):
            raise InputError(f"{module} in {files.folder}: {algorithm}; export the model again, or download the missing file")
        if algorithm in ALGORITHMS or _shaped_like_nvfp4(tensors):
            jobs += _jobs(module, set(tensors), files)
    if original is not None:
        sources = Files(original)
        jobs = [replace(job, original=_original(job, sources)) for job in jobs]
    return sorted(jobs, key=lambda job: (job.codes.file, job.codes.offset))


def _shaped_like_nvfp4(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> bool:
    """A packed weight with a scale for each 16 of its values and a global scale: NVFP4, whatever type the scales were written in."""
    dtype, shape = tensors.get("weight", tensors.get("weight_packed", ("", ())))
    _, scales = tensors.get("weight_scale", ("", ()))
    return dtype == "U8" and len(shape) == 2 and scales == (shape[0], shape[1] // 8) and bool(tensors.keys() & set(GLOBALS))


def _jobs(module: str, suffixes: set[str], files: Files) -> Iterator[Job]:
    block, _, last = module.rpartition(".")
    fused = f"{module}.weight" not in files.table and f"{module}.weight_packed" not in files.table
    prefix = f"{block}.{last}_" if fused else f"{module}."

    def part(kinds: tuple[str, ...]) -> Part | None:
        found = next((kind for kind in kinds if kind in suffixes), None)
        if found is None:
            return None
        return files.part(f"{block}.{last}" if fused and found == "weight" else prefix + found)

    codes, scales, g, inputs = part(CODES), part(("weight_scale",)), part(GLOBALS), part(INPUTS)
    job = Job(
        module=module,
        layer=layer_of(module),
        expert=found[1] if (found := split_expert(module)) else None,
        projection=_projection(last),
        packed_axis=-2 if fused else -1,
        reciprocal=g.tensor.endswith("weight_global_scale"),
        codes=codes,
        scales=scales,
        global_scale=g,
        input_scale=inputs,
    )
    _check(job)
    if len(codes.shape) == 2:
        yield job
        return
    for expert in range(codes.shape[0]):
        yield replace(
            job,
            module=f"{module}[{expert}]",
            expert=expert,
            codes=_row(codes, expert),
            scales=_row(scales, expert),
            global_scale=_row(g, expert),
        )


PROJECTIONS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down", "gate_up_proj": "gate_up"}


def _projection(last: str) -> str:
    return PROJECTIONS.get(last, last)


def _row(part: Part, index: int) -> Part:
    """Element ``index`` along the first dimension; a scalar serves them all."""
    if not part.shape or part.shape == (1,):
        return part
    inner = replace(part, shape=part.shape[1:])
    return replace(inner, offset=part.offset + index * inner.nbytes)


def _check(job: Job) -> None:
    codes, scales = job.codes, job.scales
    axis = job.packed_axis % len(codes.shape)
    blocks, odd = divmod(codes.shape[axis], 8)
    if odd:
        raise InputError(
            f"{codes.tensor} in {codes.file}: shape {codes.shape} holds K={2 * codes.shape[axis]}, not a multiple of the block of 16"
        )
    if not codes.nbytes:
        raise InputError(f"{codes.tensor} in {codes.file}: shape {codes.shape}: an expert without weights")
    expected = (*codes.shape[:axis], blocks, *codes.shape[axis + 1 :])
    if scales.dtype != "F8_E4M3" or scales.shape != expected:
        raise InputError(
            f"{scales.tensor} in {scales.file}: {scales.dtype} {scales.shape}, expected F8_E4M3 {expected} beside {codes.shape}"
        )
    for part in (job.global_scale, job.input_scale):
        if part is not None and part.dtype != "F32":
            raise InputError(f"{part.tensor} in {part.file}: {part.dtype} {part.shape}, expected an F32 scalar")


def _original(job: Job, sources: Files) -> Part | None:
    """The unquantised weights [rows, K] of a job: under the same name, or as one expert's rows of a fused stack."""
    if f"{job.module}.weight" in sources.table:
        return sources.part(f"{job.module}.weight")
    found = split_expert(job.module)
    if found is None:
        return None
    block, expert, _ = found
    name, half = {"gate": ("gate_up_proj", 0), "up": ("gate_up_proj", 1), "down": ("down_proj", None)}.get(job.projection, (None, None))
    if name is None or f"{block}.{name}" not in sources.table:
        return None
    matrix = _row(sources.part(f"{block}.{name}"), expert)
    if half is None:
        return matrix
    rows = matrix.shape[0] // 2
    one = replace(matrix, shape=(rows, matrix.shape[1]))
    return replace(one, offset=matrix.offset + half * one.nbytes)
