"""Which safetensors files belong to a checkpoint, and their tensors as one table.

The files are those that SGLang loads: all ``*.safetensors`` of the folder, less those that ``model.safetensors.index.json`` does not
name (sglang 0.5.16 weight_utils.py: filter_duplicate_safetensors_files). What SGLang would pass over in silence is a finding here.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from helpers.checkpoint.files import read_limited, without_gc
from helpers.checkpoint.headers import HeaderError, TableBuilder, read_header
from helpers.checkpoint.names import some
from helpers.checkpoint.tensor_table import TensorTable
from helpers.errors import InputError
from helpers.findings import Finding

INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 2**30  # 400,000 tensors take 43 MB
LOADER = "sglang 0.5.16 weight_utils.py: filter_duplicate_safetensors_files"
MISSING_FILES_IGNORED = ("0.5.11", "0.5.12", "0.5.12.post1", "0.5.13", "0.5.13.post1", "0.5.14", "0.5.15", "0.5.15.post1", "0.5.16")
MISSING_FILES_REFUSED = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")


class _Index(msgspec.Struct):
    weight_map: msgspec.Raw
    metadata: msgspec.Raw = msgspec.Raw(b"")


def read_tensors(folder: Path) -> tuple[TensorTable | None, list[Finding]]:
    """(table, findings); the table is None for a folder without safetensors files, which is valid: configurations only.

    InputError for what must not be read or cannot be: an index that is none, an entry that leads out of the folder, a file that is
    not a regular file.
    """
    present = sorted(path.name for path in folder.glob("*.safetensors"))
    index = folder / INDEX
    named = read_index_shards(index) if index.is_symlink() or index.exists() else None
    if not present:
        return None, _no_weights(folder, named)
    return build_table(present, named, lambda shard: read_header(_inside(folder, shard)))


def build_table(present: list[str], named: set[str] | None, read: Callable[[str], tuple[bytes, int]]) -> tuple[TensorTable, list[Finding]]:
    """(table, findings) of the files that are present; named: those that the index names, None without an index.

    read: file name -> (header, bytes that follow it), or HeaderError.
    """
    shards, findings, complete = _choose(present, named)
    builder = TableBuilder()
    with without_gc():
        for shard in shards:
            try:
                twice, wrong = builder.add(shard, *read(shard))
            except HeaderError as error:
                complete = False
                findings.append(_refused(shard, str(error)))
                continue
            if wrong:
                findings.append(_refused(shard, wrong))
            if twice:
                findings.append(_given_twice(shard, twice))
        table = builder.table(complete)
        return table, findings + _in_two_shards(table)


def read_index_shards(index: Path) -> set[str]:
    """The file names that an index maps tensors to. InputError for a broken index or a name that is more than a file's name."""
    raw = read_limited(index, MAX_INDEX_BYTES)
    shards = _scan_shards(raw)
    if shards is None:
        shards = set(parse_index(raw, index).values())
    for shard in sorted(shards):
        if "/" in shard or "\\" in shard or "\0" in shard or shard in ("", ".", ".."):
            raise InputError(f"{index}: maps a tensor to {shard!r}, which is not a file of this folder; restore the model's own index")
    return shards


def _scan_shards(raw: bytes) -> set[str] | None:
    """The distinct values of weight_map without building its 400,000 keys; None when only a full parse can be sure.

    A value follows a colon and a quote. A key that ends in a colon would be mistaken for that, and what lies between it and the next
    quote for a value; it then holds the punctuation between two strings, which no shard's name does. Strings without escapes that all
    belong to pairs make four quotes a pair, besides those of the two keys around them.
    """
    if b"\\" in raw:
        return None
    try:
        index = msgspec.json.decode(raw, type=_Index)
        values = re.findall(rb':\s*"([^"]*)"', index.weight_map)
        shards = {value.decode() for value in set(values)}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    metadata = bytes(index.metadata)
    quotes = 4 * len(values) + 2 + (metadata.count(b'"') + 2 if metadata else 0)
    if raw.count(b'"') != quotes or bytes(memoryview(index.weight_map)[:1]) != b"{" or set(":,{}") & set("".join(shards)):
        return None
    return shards


def parse_index(raw: bytes, index: Path) -> dict[str, str]:
    """weight_map: tensor name -> file name."""
    try:
        parsed = json.loads(raw.decode())
    except RecursionError:
        raise InputError(f"{index}: nested too deeply to be an index; restore the model's own index") from None
    except ValueError as error:
        raise InputError(f"{index}: not JSON ({error}); download it again") from error
    weight_map = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise InputError(f"{index}: has no weight_map from tensor names to file names; restore the model's own index")
    return weight_map


def _inside(folder: Path, shard: str) -> Path:
    """The shard's path. InputError when it is a link that leads nowhere, in a circle, or to another kind of place than the model's.

    A link may leave the folder for its own hub cache (snapshots/<commit>/x -> ../../blobs/<hash>) and for nothing else: a checkpoint
    from a stranger must not make us read other files.
    """
    path = folder / shard
    if not path.is_symlink():
        return path
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a circle of links"
        raise InputError(f"{path}: the link cannot be followed ({reason}); download the file again") from error
    home = folder.resolve()
    allowed = [home] + ([home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [])
    if not any(target.is_relative_to(root) for root in allowed):
        raise InputError(f"{path}: a link out of the checkpoint, to {target}; put the file itself there")
    return path


def _choose(present: list[str], named: set[str] | None) -> tuple[list[str], list[Finding], bool]:
    """(files to read, findings, whether they are all of the checkpoint's)."""
    if named is None:
        # A Mistral repository has both; SGLang reads the second (filter_duplicate_safetensors_files).
        files = [name for name in present if name != "consolidated.safetensors"] if len(present) == 2 else present
        missing = _gaps(files)
        return files, (_missing(missing, "the numbers in the files' names") if missing else []), not missing
    findings = []
    missing = sorted(named - set(present))
    unnamed = [name for name in present if name not in named]
    if missing:
        findings += _missing(missing, INDEX)
    if unnamed:
        findings.append(_unnamed(unnamed))
    return [name for name in present if name in named], findings, not missing


def _gaps(files: list[str]) -> list[str]:
    """File names that ``x-00001-of-00004.safetensors`` implies and that are not there. Counts from 0 where a file 0 exists."""
    have = set(files)
    gaps = []
    for stem, total in {match.groups() for name in files if (match := re.fullmatch(r"(.*-)\d{5}-of-(\d{5})\.safetensors", name))}:
        first = 0 if f"{stem}00000-of-{total}.safetensors" in have else 1
        gaps += [
            name
            for number in range(first, min(int(total), 10_000) + first)
            if (name := f"{stem}{number:05d}-of-{total}.safetensors") not in have
        ]
    return sorted(gaps)


def _no_weights(folder: Path, named: set[str] | None) -> list[Finding]:
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if not named and not pickles:
        return []
    what = f"an index of {len(named)} files, none of them here" if named else f"pickled weights only ({some(pickles)})"
    return [
        Finding(
            id="load.no_safetensors",
            stage="load",
            severity="note",
            read=INDEX if named else pickles[0],
            observed=what,
            expected="*.safetensors files, or configurations only",
            why="the weights' headers cannot be examined; pickles are never opened, because opening one executes it",
            source=LOADER,
            remedy="download the *.safetensors files into the folder to have them examined",
        )
    ]


def _missing(files: list[str], implied_by: str) -> list[Finding]:
    """Up to 0.5.16 no release looks whether the index's files are there; without an index none does at all."""

    def finding(severity: str, why: str, source: str, releases: tuple[str, ...]) -> Finding:
        return Finding(
            id="load.shard_missing",
            stage="load",
            severity=severity,
            read=implied_by,
            observed=f"missing: {some(files)}",
            expected="every file of the checkpoint",
            why=why,
            source=source,
            remedy=f"download {some(files)} into the folder",
            releases=releases,
        )

    silent = "SGLang loads the files that are there and does not look for the others; their parameters keep whatever the memory held"
    if implied_by != INDEX:
        return [finding("wrong_output", silent, LOADER, ())]
    refused = "the loader compares the folder with the index, and the server exits"
    return [
        finding("fails_to_load", refused, LOADER.replace("0.5.16", "0.5.17"), MISSING_FILES_REFUSED),
        finding("wrong_output", silent, LOADER, MISSING_FILES_IGNORED),
    ]


def _unnamed(files: list[str]) -> Finding:
    return Finding(
        id="load.shard_not_in_index",
        stage="load",
        severity="note",
        read=INDEX,
        observed=f"files that the index does not name: {some(files)}",
        expected="an index that names every file",
        why="SGLang does not load them",
        source=LOADER,
        remedy="remove the files, or add their tensors to the index",
    )


def _refused(shard: str, reason: str) -> Finding:
    return Finding(
        id="load.file_refused",
        stage="load",
        severity="fails_to_load",
        read=shard,
        observed=reason,
        expected="a whole safetensors file",
        why="safetensors refuses the file, and the server exits while it loads the weights",
        source="safetensors 0.8 tensor.rs: read_metadata, validate",
        remedy=f"download {shard} again",
    )


def _given_twice(shard: str, names: tuple[str, ...]) -> Finding:
    return Finding(
        id="load.tensor_given_twice",
        stage="load",
        severity="abstained",
        read=shard,
        observed=f"given twice in one header: {some(names)}",
        expected="each tensor once",
        why="safetensors takes the last of the two and says nothing; which one was meant is not in the file",
        source="safetensors 0.8 tensor.rs: HashMetadata",
        remedy=f"download {shard} again, or write it anew",
    )


def _in_two_shards(table: TensorTable) -> list[Finding]:
    names = table.repeated()
    if not names:
        return []
    return [
        Finding(
            id="load.tensor_in_two_files",
            stage="load",
            severity="abstained",
            read=some(shard for shard, held in table.shard_names() if names[0] in held),
            observed=f"in more than one file: {some(names)}",
            expected="each tensor in one file",
            why="SGLang loads both, and the one that comes last stays; whether they are equal is not in the headers",
            source="sglang 0.5.16 weight_utils.py: safetensors_weights_iterator",
            remedy="remove the file that does not belong to the checkpoint",
        )
    ]
