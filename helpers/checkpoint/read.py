"""Opening a checkpoint by a bundled name, a public configuration's name, a folder, or a hub id."""

import os
import re
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from helpers.checkpoint.checkpoint import Checkpoint
from helpers.checkpoint.config_copies import CONFIG, QUANT, read_copies
from helpers.errors import InputError, UsageError, unknown
from helpers.paths import CHECKPOINTS

HUB_ID = re.compile(r"(?!.*(?:--|\.\.))[\w-][\w.-]*/[\w-][\w.-]*(?:@[\w./-]+)?", re.ASCII)

WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth")

# aiconfigurator-core's files that are not the checkpoint's own, by content.
PUBLIC_EXCLUDED = {
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": "its hf_quant_config.json is a stub of 100 bytes",
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": "its hf_quant_config.json is a stub of 88 bytes, its config.json the BF16 model's",
    "nvidia--GLM-5.3-NVFP4": "both files are those of GLM-5.2-NVFP4",
}


def open_checkpoint(name_or_path: str | Path) -> Checkpoint:
    """A bundled or public name, a folder, or a hub id (``org/name`` or ``org/name@revision``).

    UsageError for a name that nothing has, InputError for what cannot be read. A folder wins over a hub id of the same spelling.
    """
    name = str(name_or_path)
    try:
        return _open(name)
    except OSError as error:
        raise InputError(f"{name[:200]}: cannot be read ({error.strerror or error}); check the path and its permissions") from error


def _open(name: str) -> Checkpoint:
    if re.fullmatch(r"[\w.-]+", name) and name.strip(".") and (CHECKPOINTS / name / CONFIG).exists():
        return _open_folder(name, CHECKPOINTS / name, f"bundled: data/checkpoints/{name}")
    if name in _public():
        return _open_public(name)
    if name in PUBLIC_EXCLUDED:
        raise InputError(f"{name}: not among the public configurations: {PUBLIC_EXCLUDED[name]}; open the real checkpoint's folder")
    folder = Path(os.path.expanduser(name))
    if name and folder.is_dir():
        return _open_folder(folder.resolve().name, folder, f"folder: {folder}")
    if name and folder.exists():
        raise InputError(f"{folder}: a file where a checkpoint's folder is needed; name the folder that has its config.json")
    if HUB_ID.fullmatch(name):
        from helpers.checkpoint.hub import open_hub  # not at every start: it brings a thread pool

        public = name.partition("@")[0].replace("/", "--")
        return open_hub(name, instead=public if public in _public() else "")
    if "/" in name or name.startswith((".", "~")) or not name:
        raise UsageError(f"no folder {name!r}; name a checkpoint's folder, a hub id (org/name), or a bundled one such as {_few_known()}")
    known = known_checkpoints()
    if not get_close_matches(name, known, cutoff=0.5):
        raise UsageError(f"unknown checkpoint {name!r}; name a folder, a hub id (org/name), or a bundled one such as {_few_known()}")
    raise unknown("checkpoint", name, known)


def _few_known() -> str:
    return ", ".join(list(known_checkpoints())[:8])


def from_configs(name: str, config: dict, hf_quant: dict | None = None) -> Checkpoint:
    """A checkpoint that is only its configurations, in memory. Costs next to nothing until something is asked of it."""
    return Checkpoint(name=name, path=None, config=config, hf_quant=hf_quant)


def known_checkpoints() -> dict[str, str]:
    """name -> one line about it: the bundled ones, and the public configurations when aiconfigurator-core is installed."""
    known = {}
    if CHECKPOINTS.is_dir():
        for folder in sorted(CHECKPOINTS.iterdir()):
            if (folder / CONFIG).is_file():
                known[folder.name] = "bundled export" if any(folder.glob("*.safetensors")) else "bundled configuration"
    for name, files in _public().items():
        known[name] = f"public configuration ({' and '.join(file for file in files)}), from aiconfigurator-core"
    return known


def _open_folder(name: str, folder: Path, source: str) -> Checkpoint:
    if not (folder / CONFIG).exists():
        raise InputError(f"{folder}: has no config.json; name a checkpoint's folder, or download its config.json into this one")
    quant = folder / QUANT
    config, hf_quant, findings = read_copies(folder / CONFIG, quant if quant.exists() or quant.is_symlink() else None)
    if not any(file.endswith(WEIGHTS) for file in os.listdir(folder)):
        return Checkpoint(name, folder, config, hf_quant, None, tuple(findings), source)
    from helpers.checkpoint.shards import read_tensors  # not for configurations alone: the parser costs 15 ms to import

    tensors, tensor_findings = read_tensors(folder)
    return Checkpoint(name, folder, config, hf_quant, tensors, (*findings, *tensor_findings), source)


def _open_public(name: str) -> Checkpoint:
    files = _public()[name]
    config, hf_quant, findings = read_copies(files[CONFIG], files.get(QUANT))
    return Checkpoint(name, None, config, hf_quant, None, tuple(findings), "public configuration, from aiconfigurator-core")


@cache
def _public() -> dict[str, dict[str, Path]]:
    """name -> {file: path} of the public NVFP4 configurations; empty without aiconfigurator-core. The package is not imported."""
    spec = find_spec("aiconfigurator_core")
    folders = spec.submodule_search_locations or [] if spec else []
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(path for folder in folders for path in Path(folder, "model_configs").glob(f"*NVFP4_{CONFIG}")):
        name = path.name.removesuffix(f"_{CONFIG}")
        if name not in PUBLIC_EXCLUDED:
            quant = path.with_name(f"{name}_{QUANT}")
            found[name] = {CONFIG: path} | ({QUANT: quant} if quant.exists() else {})
    return found
