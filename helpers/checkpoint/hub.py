"""A checkpoint on the Hugging Face hub, without downloading a weight: its JSON files, and the headers of its shards by byte range.

244 GB are examined for the price of their headers (some 50 MB). These are kept by commit, so that one run's notebooks fetch them once.
"""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident

from helpers.checkpoint.checkpoint import Checkpoint
from helpers.checkpoint.config_copies import CONFIG, MAX_CONFIG_BYTES, QUANT, read_copies
from helpers.errors import InputError, UsageError

FIRST_BYTES = 2**17  # most headers are shorter, and one request then is enough
TIMEOUT_S = 30
CONNECTIONS = 8


def open_hub(name: str, instead: str = "") -> Checkpoint:
    """name: ``org/model`` or ``org/model@revision``. InputError when there is no such model, no network or no access.

    instead: the name of public configurations of the same model, offered when the hub cannot help.
    """
    from huggingface_hub import HfApi, hf_hub_download

    repo, _, revision = name.partition("@")
    with _one_line(name, instead):
        info = HfApi().model_info(repo, revision=revision or None, files_metadata=True, timeout=TIMEOUT_S)
        if not re.fullmatch(r"[0-9a-f]{40}", info.sha or ""):  # it becomes a folder's name here
            raise InputError(f"{name}: the hub answers with the commit {info.sha!r}, which is none; check HF_ENDPOINT")
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or () if "/" not in file.rfilename}
        if CONFIG not in sizes:
            raise InputError(f"{name}: the hub has this repository, and it has no config.json; name a model's repository")

        def download(file: str, limit: int) -> Path:
            if sizes[file] > limit:
                raise InputError(f"{name}: {file} has {sizes[file]:,} bytes, more than the {limit:,} that such a file may have")
            return Path(hf_hub_download(repo, file, revision=info.sha))

        quant = download(QUANT, MAX_CONFIG_BYTES) if QUANT in sizes else None
        config, hf_quant, findings = read_copies(download(CONFIG, MAX_CONFIG_BYTES), quant)
        tensors, tensor_findings = _read_tensors(repo, info.sha, sizes, download)
    return Checkpoint(name, None, config, hf_quant, tensors, (*findings, *tensor_findings), f"hub: {repo}@{info.sha}")


def _read_tensors(repo: str, commit: str, sizes: dict[str, int], download: Callable[[str, int], Path]) -> tuple:
    from helpers.checkpoint.headers import header_length
    from helpers.checkpoint.shards import INDEX, MAX_INDEX_BYTES, build_table, read_index_shards

    present = sorted(file for file in sizes if file.endswith(".safetensors"))
    if not present:
        return None, []
    named = read_index_shards(download(INDEX, MAX_INDEX_BYTES)) if INDEX in sizes else None
    wanted = [file for file in present if named is None or file in named]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        fetched = dict(zip(wanted, pool.map(lambda file: _fetch_prefix(repo, commit, file, sizes[file]), wanted), strict=True))

    def read(shard: str) -> tuple[bytes, int]:
        length = header_length(fetched[shard], sizes[shard])
        return fetched[shard][8 : 8 + length], sizes[shard] - 8 - length

    return build_table(present, named, read)


def _fetch_prefix(repo: str, commit: str, file: str, size: int) -> bytes:
    """A file's first bytes: its header whole, or what shows that it has none."""
    from helpers.checkpoint.headers import HeaderError, header_length

    kept = _cache() / repo.replace("/", "--") / commit / f"{file}.header"
    if kept.exists():
        return kept.read_bytes()
    prefix = _fetch(repo, commit, file, 0, min(FIRST_BYTES, size))
    try:
        end = 8 + header_length(prefix, size)
    except HeaderError:
        return prefix  # build_table says what is wrong with it
    if end > len(prefix):
        prefix += _fetch(repo, commit, file, len(prefix), end)
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_name(f"{kept.name}.{os.getpid()}.{get_ident()}")
    partial.write_bytes(prefix[:end])
    partial.replace(kept)
    return prefix[:end]


def _fetch(repo: str, commit: str, file: str, start: int, end: int) -> bytes:
    """The bytes from start up to end. Streamed and cut off, for a server that ignores the range and sends 5 GB of weights."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    headers = {**build_hf_headers(), "Range": f"bytes={start}-{end - 1}"}
    with get_session().stream("GET", hf_hub_url(repo, file, revision=commit), headers=headers, timeout=TIMEOUT_S) as response:
        hf_raise_for_status(response)
        skip = 0 if response.status_code == 206 else start
        data = b""
        for chunk in response.iter_bytes():
            data += chunk
            if len(data) >= skip + end - start:
                break
    data = data[skip : skip + end - start]
    if len(data) < end - start:
        raise OSError(f"{file}: the server sent {len(data):,} of {end - start:,} bytes")
    return data


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "nvfp4-moe-validation" / "hub"


@contextmanager
def _one_line(name: str, instead: str) -> Iterator[None]:
    """The hub's errors, each in one line with what to do."""
    from huggingface_hub import constants, errors

    otherwise = f"or open its configurations alone: {instead}" if instead else "or name a folder that has the checkpoint"
    hub = constants.ENDPOINT
    try:
        yield
    except errors.HFValidationError:
        raise UsageError(f"no folder {name[:200]!r}, and the hub has no such ids; name a folder, or a model as org/name") from None
    except errors.GatedRepoError:
        raise InputError(f"{name}: access is restricted; accept its terms on {hub} and log in (hf auth login), {otherwise}") from None
    except errors.RepositoryNotFoundError:
        raise InputError(f"{name}: no folder here and no model on {hub} that you may see; check the spelling, {otherwise}") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{name}: the model has no such revision; name a branch, tag or commit after the @, or leave it out") from None
    except (errors.HTTPError, OSError) as error:  # errors.HTTPError: httpx's in huggingface-hub 1, httpx2's in 2
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{name}: no folder here, and {hub} cannot be read ({reason}); check the network, {otherwise}") from error
