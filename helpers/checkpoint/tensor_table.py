"""The tensors of a checkpoint as columns: what the headers say, one row a tensor, no object per tensor."""

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

# safetensors 0.8 tensor.rs: Dtype. Bits of one element; F4 counts elements, not pairs of them.
DTYPE_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


@dataclass(frozen=True, eq=False)
class TensorTable:
    """Every tensor of a checkpoint, in columns.

    names: row -> name, in the order of files and headers. forms: the distinct (dtype, shape) pairs. form: row -> index into forms.
    starts: row -> first byte, counted from the end of its file's header. shards: file names. shard_rows: first row of each shard, and
    the number of rows. complete: False when a file is missing or its header unreadable, so that the absence of a name proves nothing.
    """

    names: list[str]
    forms: list[tuple[str, tuple[int, ...]]]
    form: list[int]
    starts: array
    shards: list[str]
    shard_rows: list[int]
    complete: bool

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._row

    @cached_property
    def _row(self) -> dict[str, int]:
        return dict(zip(self.names, range(len(self.names)), strict=True))

    def rows(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Every tensor's (name, dtype, shape)."""
        return ((name, *self.forms[form]) for name, form in zip(self.names, self.form, strict=True))

    def dtype(self, name: str) -> str:
        """safetensors' spelling: "U8", "F8_E4M3", "BF16", "F4" …"""
        return self.forms[self.form[self._row[name]]][0]

    def shape(self, name: str) -> tuple[int, ...]:
        """In elements, () for a scalar. Packed U8 counts bytes (two FP4 values each), native F4 counts values."""
        return self.forms[self.form[self._row[name]]][1]

    def offsets(self, name: str) -> tuple[int, int]:
        """The first byte and the byte after the last, counted from the end of its file's header."""
        row = self._row[name]
        start = self.starts[row]
        return start, start + bits_of(*self.forms[self.form[row]]) // 8

    def shard(self, name: str) -> str:
        """The name of the file that holds it."""
        row = self._row[name]
        return next(shard for shard, end in zip(self.shards, self.shard_rows[1:], strict=True) if row < end)

    def repeated(self) -> list[str]:
        """Names that more than one row has."""
        if len(set(self.names)) == len(self.names):
            return []
        return [name for name, times in Counter(self.names).items() if times > 1]

    def shard_names(self) -> Iterator[tuple[str, list[str]]]:
        """(file, names of its tensors) of every file."""
        for shard, first, end in zip(self.shards, self.shard_rows, self.shard_rows[1:], strict=False):
            yield shard, self.names[first:end]

    def bytes_by_dtype(self) -> dict[str, int]:
        """dtype -> bytes of all its tensors."""
        by_dtype: dict[str, int] = {}
        for form, times in Counter(self.form).items():
            dtype, shape = self.forms[form]
            by_dtype[dtype] = by_dtype.get(dtype, 0) + times * bits_of(dtype, shape) // 8
        return by_dtype


def bits_of(dtype: str, shape: tuple[int, ...]) -> int:
    bits = DTYPE_BITS[dtype]
    for size in shape:
        bits *= size
    return bits
