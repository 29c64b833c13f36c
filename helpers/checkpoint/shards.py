"""Which safetensors files a folder has, and their tensors as one table, with findings where SGLang or safetensors would stumble."""

from pathlib import Path

from helpers.checkpoint.headers import HeaderError, TableBuilder, TensorTable, read_header, without_gc
from helpers.findings import Finding

INDEX = "model.safetensors.index.json"


def read_tensors(folder: Path) -> tuple[TensorTable | None, list[Finding]]:
    """(table, findings); (None, []) for a folder without safetensors files: configurations only, which is valid."""
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    if not shards:
        return None, []
    findings = []
    builder = TableBuilder()
    with without_gc():
        for shard in shards:
            try:
                builder.add(shard, *read_header(folder / shard))
            except HeaderError as error:
                builder.missing()
                findings.append(_header_invalid(shard, str(error)))
        return builder.table(), findings


def _header_invalid(shard: str, reason: str) -> Finding:
    return Finding(
        id="load.header_invalid",
        stage="load",
        severity="fails_to_load",
        read=shard,
        observed=reason,
        expected="a safetensors header",
        why="safetensors refuses the file, and the server exits while it loads the weights",
        source="safetensors 0.8 tensor.rs: SafeTensors::read_metadata",
        remedy=f"download {shard} again",
    )
