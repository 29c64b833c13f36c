"""The header reader against safetensors itself: what the library's writer writes is read, and what the library refuses is refused."""

import json
import struct

import numpy
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from helpers.checkpoint.headers import MAX_HEADER_BYTES, HeaderError, TableBuilder, read_header
from helpers.checkpoint.tensor_table import DTYPE_BITS
from helpers.errors import InputError

NAMES = st.one_of(
    st.sampled_from(
        ["a", "model.layers.0.mlp.experts.3.gate_proj.weight", "a:b", "{", "}", ":", 'quote"', "back\\slash", "é", "\u0000", ""]
    ),
    st.text(max_size=12),
).filter(lambda name: name != "__metadata__")
NUMPY = {"BOOL": "bool", "U8": "u1", "I8": "i1", "I16": "i2", "U16": "u2", "F16": "f2", "I32": "i4", "F32": "f4", "I64": "i8", "F64": "f8"}


def ours(header: bytes, data: bytes) -> dict | None:
    """name -> (dtype, shape), None when refused."""
    builder = TableBuilder()
    try:
        _, wrong = builder.add("file", header, len(data))
    except HeaderError:
        return None
    return None if wrong else {name: (dtype, shape) for name, dtype, shape in builder.table(True).rows()}


def theirs(header: bytes, data: bytes) -> dict | None:
    try:
        tensors = safetensors.deserialize(struct.pack("<Q", len(header)) + header + data)
    except safetensors.SafetensorError:
        return None
    return {name: (tensor["dtype"], tuple(tensor["shape"])) for name, tensor in tensors}


@given(
    st.dictionaries(NAMES, st.tuples(st.sampled_from(list(NUMPY)), st.lists(st.integers(0, 5), max_size=3)), max_size=6),
    st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=1, max_size=2),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_reads_what_the_librarys_writer_writes(tensors, metadata):
    blob = save({name: numpy.ones(shape, NUMPY[dtype]) for name, (dtype, shape) in tensors.items()}, metadata)
    length = int.from_bytes(blob[:8], "little")
    read = ours(blob[8 : 8 + length], blob[8 + length :])
    assert read == {name: (dtype, tuple(shape)) for name, (dtype, shape) in tensors.items()}


@st.composite
def broken_files(draw):
    """(header, data): a valid file with some things wrong, as text, so that JSON's own freedom (order, duplicates, spaces) is in it."""
    entries, position = [], 0
    for name in draw(st.lists(NAMES, max_size=4)):
        dtype = draw(st.sampled_from(list(DTYPE_BITS)))
        shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 8]), max_size=2))
        bits = DTYPE_BITS[dtype]
        for dimension in shape:
            bits *= dimension
        start, end = position, position + bits // 8
        position = end
        fields = {"dtype": json.dumps(dtype), "shape": json.dumps(shape), "data_offsets": f"[{start},{end}]"}
        change = draw(st.sampled_from([None] * 8 + ["dtype", "shape", "data_offsets", "drop", "twice", "extra"]))
        if change in fields:
            fields[change] = draw(st.sampled_from(WRONG[change])).format(start=start, end=end)
        elif change == "drop":
            del fields[draw(st.sampled_from(list(fields)))]
        parts = [f'"{key}":{value}' for key, value in fields.items()]
        if change == "twice":
            parts.append(parts[draw(st.integers(0, len(parts) - 1))])
        if change == "extra":
            parts.append(draw(st.sampled_from(['"x":1', '"y":{"z":[1,":"]}'])))
        entries.append(f"{json.dumps(name)}:{{{','.join(parts)}}}")
    if draw(st.booleans()):
        metadata = draw(
            st.sampled_from(['{"format":"pt"}', "{}", "null", '{"a":"}"}', '{"a":1}', '{"a":"b:c"}', "[]", '{"a":"b","a":"c"}'])
        )
        entries.insert(draw(st.sampled_from([0, 0, 0, len(entries)])), f'"__metadata__":{metadata}')
    if entries and draw(st.integers(0, 9)) == 0:
        entries.append(draw(st.sampled_from(entries)))
    header = ("{" + ",".join(entries) + "}").encode()
    if draw(st.integers(0, 7)) == 0:
        place = draw(st.integers(0, len(header)))
        header = (
            header[:place] + draw(st.sampled_from([b" ", b"\n", b"0", b"]", b"{", b'"', b"\\", b"\xff", b".", b"NaN"])) + header[place:]
        )
    return header, b"\0" * max(0, position + draw(st.sampled_from([0, 0, 0, 0, 1, -1])))


WRONG = {
    "dtype": ['"F7"', '"u8"', "8", "null", '"F4"', '"I64"'],
    "shape": ["[-1]", "[-1,-1]", "[2.0]", "[true]", "null", '"x"', "{{}}", "[18446744073709551615,2]", "[4294967296,4294967296,0]", "[8]"],
    "data_offsets": [
        "[{end},{start}]",
        "[{start}]",
        "[{start},{end},{end}]",
        "[-1,{end}]",
        "[1,{end}]",
        "[{start},99]",
        "null",
        "[0.0,{end}]",
    ],
}


@given(broken_files())
@settings(max_examples=600, deadline=None, derandomize=True)  # the same on every machine; 20,000 random ones agreed as well
def test_refuses_exactly_what_safetensors_refuses(file):
    assert ours(*file) == theirs(*file)


def entry(dtype="U8", shape=(8,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def complaint(header, data_bytes=8) -> str:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    try:
        return TableBuilder().add("file", raw, data_bytes)[1]
    except HeaderError as error:
        return str(error)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"a": entry(dtype="F7")}, "tensor 'a' has dtype 'F7', which safetensors does not know"),
        ({"a": entry(shape=(7,))}, "tensor 'a' has 8 bytes, and U8 [7] takes 7"),
        ({"a": entry(dtype="F4", shape=(15,))}, "tensor 'a' has 8 bytes, and F4 [15] takes 7.5"),
        ({"a": entry(offsets=(-1, 7))}, "tensor 'a' begins at byte -1 where 0 is expected: it lies before the data"),
        ({"a": entry(offsets=(0, 9))}, "tensor 'a' has 9 bytes, and U8 [8] takes 8"),
        ({"a": entry(offsets=(0, -8))}, "tensor 'a' ends at byte -8, before its beginning at 0"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, "tensor 'b' begins at byte 4 where 8 is expected: it overlaps the tensor before it"),
        ({"a": entry(offsets=(2, 10))}, "tensor 'a' begins at byte 2 where 0 is expected: it leaves a hole"),
        ({"a": entry(shape=(4,), offsets=(0, 4))}, "the tensors take 4 bytes, and the file has 8 after its header"),
        ({"a": entry(), "b": entry(offsets=(8, 16))}, "the tensors take 16 bytes, and the file has 8 after its header"),
        ({"a": entry(shape=(-8,))}, "a tensor of U8 has the impossible shape [-8]"),
        ({"a": entry(shape=(2**63, 2**63))}, f"a tensor of U8 has the impossible shape [{2**63}, {2**63}]"),
        ({"a": {"dtype": "U8", "shape": [8]}}, "tensor 'a' has no data_offsets"),
        ({"a": 1}, "tensor 'a' is '1', not an object"),
        (b'{"a":{"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]}}', "tensor 'a' has more than one dtype"),
        (b'{"\\ud800":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', "a tensor's name has half of a surrogate pair"),
        (b'{"__metadata__":{"a":"\\ud800"}}', "__metadata__ is not an object of strings"),
        (b"[]", "the header is a JSON list, not an object"),
        (b'{"a":', "the header is not JSON (Expecting value: line 1 column 6 (char 5))"),
        (b"\xff\xfe", "the header is not JSON ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte)"),
        (b'{"a":' * 100_000, "the header is nested too deeply"),
        ({"__metadata__": {"format": 1}, "a": entry()}, "__metadata__ is not an object of strings"),
        (b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":NaN}}', "the header is not JSON (NaN is Python's JSON, not JSON)"),
        (
            b'{"__metadata__":{"a":"b"} "a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}',
            "the header is not JSON (Expecting ',' delimiter: line 1 column 27 (char 26))",
        ),
    ],
)
def test_says_what_is_wrong_and_where(header, says):
    assert complaint(header) == says


def test_a_name_given_twice_is_told_though_json_readers_keep_only_the_last():
    raw = b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    builder = TableBuilder()
    assert builder.add("file", raw, 8) == (("a",), "")
    assert list(builder.table(True).rows()) == [("a", "F32", (2,))]


def test_native_f4_counts_elements_and_packed_u8_counts_bytes():
    builder = TableBuilder()
    header = {"native": entry("F4", (2, 16), (0, 16)), "packed": entry("U8", (2, 8), (16, 32))}
    assert builder.add("file", json.dumps(header).encode(), 32) == ((), "")
    table = builder.table(True)
    assert (table.dtype("native"), table.shape("native"), table.offsets("native")) == ("F4", (2, 16), (0, 16))
    assert (table.dtype("packed"), table.shape("packed"), table.offsets("packed")) == ("U8", (2, 8), (16, 32))
    assert table.bytes_by_dtype() == {"F4": 16, "U8": 16}


def test_tensors_in_another_order_than_the_bytes_are_fine():
    builder = TableBuilder()
    header = {"b": entry(offsets=(8, 16)), "empty": entry(shape=(0,), offsets=(8, 8)), "a": entry()}
    assert builder.add("file", json.dumps(header).encode(), 16) == ((), "")
    assert builder.table(True).offsets("b") == (8, 16)


def test_a_refused_file_leaves_nothing_behind():
    builder = TableBuilder()
    builder.add("good", json.dumps({"a": entry()}).encode(), 8)
    with pytest.raises(HeaderError):
        builder.add("bad", json.dumps({"b": entry(dtype="F7")}).encode(), 8)
    table = builder.table(False)
    assert (table.names, table.shards, table.shard_rows, list(table.starts)) == (["a"], ["good"], [0, 1], [0])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file has 0 bytes, and the header's length alone takes 8"),
        (b"\1" * 7, "the file has 7 bytes, and the header's length alone takes 8"),
        (struct.pack("<Q", 100) + b"{}", "the header says it has 100 bytes, and the file has 2 left"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}", "the header says it has 100,000,001 bytes; safetensors accepts 100,000,000"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "the header says it has 18,446,744,073,709,551,615 bytes; safetensors accepts 100,000,000"),
    ],
)
def test_an_impossible_length(tmp_path, content, says):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(HeaderError) as caught:
        read_header(tmp_path / "x.safetensors")
    assert str(caught.value) == says


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(InputError, match="not a regular file"):
        read_header(tmp_path)
