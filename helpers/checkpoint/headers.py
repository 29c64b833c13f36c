"""safetensors headers, and nothing but headers: names, dtypes, shapes and where the bytes are, without reading a weight.

A file's first 8 bytes give the length of a JSON object, name -> {dtype, shape, data_offsets}; the tensors' bytes follow it without a
gap. What safetensors refuses is refused here, with the tensor's name and what to do (a property test compares the two).
"""

import json
import os
from array import array
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

import msgspec

from helpers.checkpoint.files import open_regular, read_exactly
from helpers.checkpoint.tensor_table import DTYPE_BITS, TensorTable

MAX_HEADER_BYTES = 100_000_000  # safetensors refuses a longer one


class HeaderError(ValueError):
    """Why one file's header cannot be used, without the file's name. safetensors refuses such a file too."""


class Entry(msgspec.Struct, gc=False):
    dtype: Literal[tuple(DTYPE_BITS)]
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_ENTRIES = msgspec.json.Decoder(dict[str, Entry])


@dataclass(frozen=True)
class Header:
    """One file's header: name -> entry, and the names that were given twice, of which the last counts."""

    entries: dict[str, Entry]
    twice: tuple[str, ...]


def read_header(path: Path) -> tuple[bytes, int]:
    """(header, bytes that follow it). HeaderError when the length is not possible; InputError when it is not a readable file."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = header_length(read_exactly(file, 8), size)
        return read_exactly(file, length), size - 8 - length


def header_length(first: bytes, size: int) -> int:
    """Bytes of the header of a file of size bytes that begins with first. HeaderError when they are not possible."""
    if size < 8:
        raise HeaderError(f"the file has {size} bytes, and the header's length alone takes 8")
    length = int.from_bytes(first[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise HeaderError(f"the header says it has {length:,} bytes; safetensors accepts {MAX_HEADER_BYTES:,}")
    if length > size - 8:
        raise HeaderError(f"the header says it has {length:,} bytes, and the file has {size - 8:,} left")
    return length


def parse_header(header: bytes) -> Header:
    """HeaderError says what is wrong.

    Every JSON reader drops the first of two equal names silently, and safetensors with them. The count of colons shows it: a tensor
    needs four (its name's and its three keys'), so one colon more means a name, a key or a string that the fast way did not expect,
    and the careful way decides.
    """
    if b"\\" in header:  # an escape may be half of a surrogate pair, which is no text; only the careful way looks for it
        return _parse_carefully(header)
    metadata, tensors = _split_metadata(header)
    try:
        entries = _ENTRIES.decode(tensors)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_carefully(header)
    if tensors.count(b":") != 4 * len(entries) or "__metadata__" in entries or not _strings(metadata):
        return _parse_carefully(header)
    return Header(entries, ())


def _split_metadata(header: bytes) -> tuple[object, bytes]:
    """(metadata, the header without it) when metadata stands first, where safetensors writes it; else ({}, the header)."""
    opening = b'{"__metadata__":'
    if not header.startswith(opening):
        return {}, header
    end = header.find(b"}") + 1
    try:
        metadata = json.loads(header[len(opening) : end])
    except ValueError:  # a brace inside a string, or no JSON at all: the careful way tells
        return {}, header
    if header[end : end + 1] != b",":
        return {}, header
    return metadata, b"".join((b"{", memoryview(header)[end + 1 :]))


def _strings(metadata: object) -> bool:
    """Whether it is an object of strings, and of text: a half of a surrogate pair is neither."""
    if not isinstance(metadata, dict):
        return False
    return all(isinstance(value, str) and not _is_half_a_pair(value + name) for name, value in metadata.items())


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is Python's JSON, not JSON")


class _Pairs(list):
    """A JSON object's (key, value) pairs before duplicates are dropped."""


def _parse_carefully(header: bytes) -> Header:
    try:
        parsed = json.loads(header.decode(), object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
    except RecursionError:
        raise HeaderError("the header is nested too deeply") from None
    except ValueError as error:
        raise HeaderError(f"the header is not JSON ({error})") from None
    if not isinstance(parsed, _Pairs):
        raise HeaderError(f"the header is a JSON {type(parsed).__name__}, not an object")
    if any(_is_half_a_pair(name) for name, _ in parsed):
        raise HeaderError("a tensor's name has half of a surrogate pair")
    metadata = [value for name, value in parsed if name == "__metadata__"]
    if len(metadata) > 1:
        raise HeaderError("__metadata__ is given twice")
    if metadata and metadata[0] is not None and not (isinstance(metadata[0], _Pairs) and _strings(dict(metadata[0]))):
        raise HeaderError("__metadata__ is not an object of strings")
    pairs = [(name, _careful_entry(name, entry)) for name, entry in parsed if name != "__metadata__"]
    entries = dict(pairs)
    if len(entries) == len(pairs):
        return Header(entries, ())
    names = [name for name, _ in pairs]
    return Header(entries, tuple(name for name in entries if names.count(name) > 1))


def _is_half_a_pair(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def _careful_entry(name: str, pairs: object) -> Entry:
    if not isinstance(pairs, _Pairs):
        raise HeaderError(f"tensor {name!r} is {str(pairs)[:40]!r}, not an object")
    entry = dict(pairs)
    keys = [key for key, _ in pairs]
    for key in ("dtype", "shape", "data_offsets"):
        if keys.count(key) != 1:
            raise HeaderError(f"tensor {name!r} has {'no' if key not in entry else 'more than one'} {key}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise HeaderError(f"tensor {name!r} has dtype {str(dtype)[:40]!r}, which safetensors does not know")
    if not _naturals(shape):
        raise HeaderError(f"tensor {name!r} has shape {str(shape)[:60]}, not a list of sizes")
    if not _naturals(offsets) or len(offsets) != 2:
        raise HeaderError(f"tensor {name!r} has data_offsets {str(offsets)[:60]}, not two byte positions")
    return Entry(dtype, tuple(shape), tuple(offsets))


def _naturals(value: object) -> bool:
    return type(value) is list and all(type(number) is int and 0 <= number < 2**64 for number in value)


class _Forms(dict):
    """(dtype, shape) -> its number, in order of appearance. sizes: number -> bytes of such a tensor, a fraction where F4 makes one."""

    def __init__(self):
        super().__init__()
        self.sizes: list[float] = []

    def __missing__(self, form: tuple[str, tuple[int, ...]]) -> int:
        dtype, shape = form
        bits = DTYPE_BITS[dtype] * _elements(dtype, shape)
        self.sizes.append(bits / 8 if bits % 8 else bits // 8)
        self[form] = number = len(self.sizes) - 1
        return number


def _elements(dtype: str, shape: tuple[int, ...]) -> int:
    """safetensors computes in 64 bits and refuses what does not fit, even where a later dimension is 0."""
    elements = 1
    for size in shape:
        elements *= size
        if size < 0 or size >= 2**64 or elements >= 2**64:
            raise HeaderError(f"a tensor of {dtype} has the impossible shape {list(shape)}")
    return elements


class TableBuilder:
    """Collects the headers of a checkpoint's files into one TensorTable."""

    def __init__(self):
        self._forms = _Forms()
        self._names: list[str] = []
        self._form: list[int] = []
        self._starts = array("q")
        self._shards: list[str] = []
        self._shard_rows = [0]

    def add(self, shard: str, header: bytes, data_bytes: int) -> tuple[tuple[str, ...], str]:
        """Take in one file; data_bytes: what follows its header. Returns (names given twice, what is wrong with the layout or "").

        HeaderError when the header cannot be used; then nothing of the file is taken in.
        """
        parsed = parse_header(header)
        entries = parsed.entries.values()
        form = [self._forms[entry.dtype, entry.shape] for entry in entries]
        sizes = list(map(self._forms.sizes.__getitem__, form))
        offsets = [entry.data_offsets for entry in entries]
        starts = [start for start, _ in offsets]
        wrong = "" if _lie_in_order(sizes, offsets, starts, data_bytes) else examine_layout(parsed.entries, sizes, data_bytes)
        try:
            self._starts += array("q", starts)
        except OverflowError:
            raise HeaderError("a data offset needs more than 64 bits") from None
        self._names += parsed.entries
        self._form += form
        self._shards.append(shard)
        self._shard_rows.append(len(self._names))
        return parsed.twice, wrong

    def table(self, complete: bool) -> TensorTable:
        return TensorTable(
            names=self._names,
            forms=list(self._forms),
            form=self._form,
            starts=self._starts,
            shards=self._shards,
            shard_rows=self._shard_rows,
            complete=complete,
        )


def _lie_in_order(sizes: list[float], offsets: list[tuple[int, int]], starts: list[int], data_bytes: int) -> bool:
    """Whether the tensors follow each other from the first byte to the last, each as long as its dtype and shape say."""
    ends = list(accumulate(sizes))
    return starts == [0, *ends][:-1] and [end for _, end in offsets] == ends and (ends or [0])[-1] == data_bytes


def examine_layout(entries: dict[str, Entry], sizes: list[float], data_bytes: int) -> str:
    """The first thing that safetensors would refuse about where the tensors lie; "" when they only stand in another order."""
    position = 0
    for (start, end), name, size in sorted(
        (entry.data_offsets, name, size) for (name, entry), size in zip(entries.items(), sizes, strict=True)
    ):
        if start != position:
            where = "lies before the data" if start < 0 else "overlaps the tensor before it" if start < position else "leaves a hole"
            return f"tensor {name!r} begins at byte {start:,} where {position:,} is expected: it {where}"
        if end < start:
            return f"tensor {name!r} ends at byte {end:,}, before its beginning at {start:,}"
        if end - start != size:
            entry = entries[name]
            return f"tensor {name!r} has {end - start:,} bytes, and {entry.dtype} {list(entry.shape)} takes {size:,}"
        position = end
    if position != data_bytes:
        return f"the tensors take {position:,} bytes, and the file has {data_bytes:,} after its header"
    return ""
