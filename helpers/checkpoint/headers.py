"""safetensors headers, and nothing but headers: names, dtypes, shapes and where the bytes would be, without reading a weight.

A file's first 8 bytes give the length of a JSON object, name -> {dtype, shape, data_offsets}; the tensors' bytes follow it without a
gap. Headers are read strictly and stored as columns, so that 400,000 tensors cost a few hundred bytes each and well under a second.
"""

import gc
import json
import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Literal

import msgspec

from helpers.checkpoint.files import open_regular, read_exactly

# safetensors 0.8 (tensor.rs: Dtype): bits of one element. F4 counts elements, not pairs of them.
DTYPE_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
MAX_HEADER_BYTES = 100_000_000  # safetensors refuses a longer one


class HeaderError(ValueError):
    """What is wrong with one file's header, without the file's name. safetensors refuses such a file too."""


class _Entry(msgspec.Struct, gc=False):
    dtype: Literal[tuple(DTYPE_BITS)]
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_ENTRIES = msgspec.json.Decoder(dict[str, _Entry])


@dataclass(frozen=True)
class Layout:
    """One way in which a file's tensors do not lie where its header says: kind is "size", "overlap", "hole", "truncated" or "trailing"."""

    kind: str
    shard: str
    tensor: str
    observed: str
    expected: str


@dataclass(frozen=True, eq=False)
class TensorTable:
    """Every tensor of a checkpoint, one row each, in columns.

    names: row -> name. forms: the distinct (dtype, shape) pairs. form: row -> index into forms. starts and ends: row -> byte offsets
    as the header has them, counted from the end of the header. shards: file names; shard_rows: first row of each, and the end.
    complete: False when a file was missing or its header unreadable, so that a name's absence proves nothing.
    """

    names: list[str]
    forms: list[tuple[str, tuple[int, ...]]]
    form: array
    starts: array
    ends: array
    shards: list[str]
    shard_rows: list[int]
    complete: bool = True
    layout: tuple[Layout, ...] = ()
    repeated: tuple[tuple[str, str], ...] = field(default=())

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
        """(name, dtype, shape) of every tensor, in file order."""
        forms = self.forms
        return ((name, *forms[form]) for name, form in zip(self.names, self.form, strict=True))

    def dtype(self, name: str) -> str:
        """safetensors' own spelling: "U8", "F8_E4M3", "BF16", "F4" …"""
        return self.forms[self.form[self._row[name]]][0]

    def shape(self, name: str) -> tuple[int, ...]:
        """In elements; () for a scalar. Packed U8 counts bytes (two FP4 values each), native F4 counts values."""
        return self.forms[self.form[self._row[name]]][1]

    def offsets(self, name: str) -> tuple[int, int]:
        """First byte and the byte after the last, counted from the end of its file's header."""
        row = self._row[name]
        return self.starts[row], self.ends[row]

    def shard(self, name: str) -> str:
        """The name of the file that holds it."""
        row = self._row[name]
        return next(shard for shard, end in zip(self.shards, self.shard_rows[1:], strict=True) if row < end)

    def bytes_by_dtype(self) -> dict[str, int]:
        """dtype -> bytes of all tensors of it, from the offsets."""
        totals: dict[int, int] = {}
        for form, start, end in zip(self.form, self.starts, self.ends, strict=True):
            totals[form] = totals.get(form, 0) + end - start
        by_dtype: dict[str, int] = {}
        for form, total in totals.items():
            dtype = self.forms[form][0]
            by_dtype[dtype] = by_dtype.get(dtype, 0) + total
        return by_dtype


class _Forms(dict):
    """(dtype, shape) -> its index, numbered as they come; .bits[index] is the tensor's size."""

    def __init__(self):
        super().__init__()
        self.bits: list[int] = []

    def __missing__(self, form: tuple[str, tuple[int, ...]]) -> int:
        dtype, shape = form
        bits = DTYPE_BITS[dtype]
        for size in shape:
            bits *= size
        self[form] = index = len(self.bits)
        self.bits.append(bits)
        return index


class TableBuilder:
    """Collects shards into one TensorTable."""

    def __init__(self):
        self._forms = _Forms()
        self._names: list[str] = []
        self._form, self._starts, self._ends = array("l"), array("q"), array("q")
        self._shards: list[str] = []
        self._shard_rows = [0]
        self._layout: list[Layout] = []
        self._repeated: list[tuple[str, str]] = []
        self._complete = True

    def missing(self) -> None:
        """A file that belongs to the checkpoint could not be read, so the table will not be complete."""
        self._complete = False

    def add(self, shard: str, header: bytes, data_bytes: int) -> None:
        """One file: its header without the 8 length bytes, and how many bytes follow it. HeaderError when it is no header."""
        entries, repeated = parse_header(header)
        if not entries:
            names, forms, starts, ends = [], [], (), ()
        else:
            names = list(entries)
            values = list(entries.values())
            forms = [self._forms[entry.dtype, entry.shape] for entry in values]
            starts, ends = zip(*[entry.data_offsets for entry in values], strict=True)
        try:
            start_column, end_column = array("q", starts), array("q", ends)
        except OverflowError:
            raise HeaderError("a data offset does not fit 64 bits") from None
        sizes = [self._forms.bits[form] / 8 for form in forms]
        in_order = starts and starts[0] == 0 and list(accumulate(sizes)) == list(ends) and starts[1:] == ends[:-1]
        if not ((in_order or not names) and (ends[-1] if names else 0) == data_bytes):
            self._layout += examine_layout(shard, names, sizes, starts, ends, data_bytes)
        self._names += names
        self._form.extend(forms)
        self._starts += start_column
        self._ends += end_column
        self._shards.append(shard)
        self._shard_rows.append(len(self._names))
        self._repeated += [(name, shard) for name in repeated]

    def table(self) -> TensorTable:
        return TensorTable(
            names=self._names,
            forms=list(self._forms),
            form=self._form,
            starts=self._starts,
            ends=self._ends,
            shards=self._shards,
            shard_rows=self._shard_rows,
            complete=self._complete,
            layout=tuple(self._layout),
            repeated=tuple(self._repeated),
        )


def read_header(path: Path) -> tuple[bytes, int]:
    """(header, bytes that follow it). HeaderError when the length says what the file cannot hold; InputError when not a file."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(read_exactly(file, 8), "little")
        if size < 8:
            raise HeaderError(f"the file has {size} bytes, and the length of a header alone takes 8")
        if length > size - 8:
            raise HeaderError(f"the header says {length:,} bytes, and the file has {size - 8:,} after that number")
        if length > MAX_HEADER_BYTES:
            raise HeaderError(f"the header says {length:,} bytes, more than the {MAX_HEADER_BYTES:,} that safetensors accepts")
        return read_exactly(file, length), size - 8 - length


def parse_header(header: bytes) -> tuple[dict[str, _Entry], list[str]]:
    """(name -> entry, names given twice). HeaderError says what is wrong.

    The fast way must be exact about duplicate names, which every JSON reader drops silently: without a backslash each string of the
    header takes two quotes, and a tensor takes ten (its name, three keys, its dtype), so any string beyond that shows in the count.
    Whatever the fast way does not understand goes to the careful one.
    """
    metadata, tensors = _split_metadata(header)
    if b"\\" not in header:
        try:
            entries = _ENTRIES.decode(tensors)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return _parse_carefully(header)
        if tensors.count(b'"') == 10 * len(entries) and metadata is not None and _plain(entries):
            return entries, []
    return _parse_carefully(header)


def _plain(entries: dict[str, _Entry]) -> bool:
    return "__metadata__" not in entries


def _split_metadata(header: bytes) -> tuple[dict | None, bytes]:
    """(metadata, the header without it) when metadata comes first, as the writer puts it; ({}, header) when there is none."""
    opening = b'{"__metadata__":'
    if not header.startswith(opening):
        return {}, header
    end = header.find(b"}") + 1
    try:
        metadata = json.loads(header[len(opening) : end])
    except ValueError:
        return None, header  # a brace inside a string, or no JSON at all
    rest = header[end:].lstrip()
    return metadata, b"{" + rest.removeprefix(b",")


def _parse_carefully(header: bytes) -> tuple[dict[str, _Entry], list[str]]:
    repeated: list[str] = []

    def pairs(items: list[tuple[str, object]]) -> dict:
        made = dict(items)
        if len(made) != len(items):
            seen = [name for name, _ in items]
            repeated.extend(name for name in made if seen.count(name) > 1)
        return made

    try:
        parsed = json.loads(header.decode(), object_pairs_hook=pairs)
    except RecursionError:
        raise HeaderError("the header is nested too deeply") from None
    except ValueError as error:
        raise HeaderError(f"the header is not JSON ({error})") from None
    if not isinstance(parsed, dict):
        raise HeaderError(f"the header is a JSON {type(parsed).__name__}, not an object")
    metadata = parsed.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise HeaderError("__metadata__ is not an object of strings")
    return {name: _careful_entry(name, entry) for name, entry in parsed.items()}, repeated


def _careful_entry(name: str, entry: object) -> _Entry:
    if not isinstance(entry, dict):
        raise HeaderError(f"tensor {name!r} is {str(entry)[:40]!r}, not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if dtype not in DTYPE_BITS:
        raise HeaderError(f"tensor {name!r} has dtype {str(dtype)[:40]!r}, which safetensors does not know")
    if not _naturals(shape):
        raise HeaderError(f"tensor {name!r} has shape {str(shape)[:60]}, not a list of sizes")
    if not _naturals(offsets) or len(offsets) != 2:
        raise HeaderError(f"tensor {name!r} has data_offsets {str(offsets)[:60]}, not two byte positions")
    return _Entry(dtype, tuple(shape), tuple(offsets))


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 2**64 for number in value)


def examine_layout(shard: str, names, sizes, starts, ends, data_bytes: int) -> list[Layout]:
    """What is wrong with where a file's tensors lie: the first of each kind. Empty when nothing is."""
    wrong: dict[str, Layout] = {}

    def note(kind: str, tensor: str, observed: str, expected: str) -> None:
        wrong.setdefault(kind, Layout(kind, shard, tensor, observed, expected))

    position = 0
    for start, end, name, size in sorted(zip(starts, ends, names, sizes, strict=True)):
        if end - start != size:
            note("size", name, f"{end - start:,} bytes", f"{size:,.10g} bytes for its dtype and shape")
        if start < position:
            note("overlap", name, f"begins at byte {start:,}", f"at or after {position:,}, where the one before it ends")
        elif start > position:
            note("hole", name, f"begins at byte {start:,}", f"at {position:,}, where the one before it ends")
        position = max(position, end)
    if position > data_bytes:
        note("truncated", "", f"{data_bytes:,} bytes after the header", f"{position:,}")
    elif position < data_bytes:
        note("trailing", "", f"{data_bytes:,} bytes after the header", f"{position:,}")
    return list(wrong.values())


@contextmanager
def without_gc():
    """The collector would walk hundreds of thousands of new objects again and again, and none of them is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
