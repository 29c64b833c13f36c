"""Opening a checkpoint by a bundled name, a public configuration's name, a folder, or a hub id."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from helpers.checkpoint.checkpoint import Checkpoint
from helpers.checkpoint.config_copies import CONFIG, QUANT, read_json
from helpers.checkpoint.shards import read_tensors
from helpers.errors import InputError, unknown
from helpers.findings import Finding
from helpers.paths import CHECKPOINTS

# aiconfigurator-core's files that are not the checkpoint's own, by content.
PUBLIC_EXCLUDED = {
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": "its hf_quant_config.json is a stub of 100 bytes",
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": "its hf_quant_config.json is a stub of 88 bytes, its config.json the BF16 model's",
    "nvidia--GLM-5.3-NVFP4": "both files are those of GLM-5.2-NVFP4",
}


def open_checkpoint(name_or_path: str | Path) -> Checkpoint:
    """A bundled or public name, or a folder. UsageError for an unknown name, InputError for what cannot be read."""
    name = str(name_or_path)
    bundled = CHECKPOINTS / name
    if name and "/" not in name and name not in (".", "..") and bundled.is_dir():
        return _open_folder(name, bundled, f"bundled: data/checkpoints/{name}")
    if name in _public():
        return _open_public(name)
    if name in PUBLIC_EXCLUDED:
        raise InputError(
            f"{name}: left out of the public configurations because {PUBLIC_EXCLUDED[name]}; open the real checkpoint's folder"
        )
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        return _open_folder(folder.resolve().name, folder, f"folder: {folder}")
    if folder.exists():
        raise InputError(f"{folder}: a file where a checkpoint's folder is needed; name the folder that has its config.json")
    raise unknown("checkpoint", name, known_checkpoints())


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
    findings: list[Finding] = []
    config, twice = read_json(folder / CONFIG)
    findings += _given_twice(CONFIG, twice)
    hf_quant = None
    if (folder / QUANT).exists():
        hf_quant, twice = read_json(folder / QUANT)
        findings += _given_twice(QUANT, twice)
    tensors, tensor_findings = read_tensors(folder)
    return Checkpoint(name, folder, config, hf_quant, tensors, (*findings, *tensor_findings), source)


def _given_twice(file: str, keys: tuple[str, ...]) -> list[Finding]:
    if not keys:
        return []
    return [
        Finding(
            id="detect.key_given_twice",
            stage="detect",
            severity="note",
            read=file,
            observed=f"given twice in one object: {', '.join(keys[:4])}",
            expected="each key once",
            why="JSON readers differ in which of the two they take; Python's, and so SGLang's, takes the last",
            source=file,
            remedy=f"remove one of the two from {file}",
        )
    ]


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


def _open_public(name: str) -> Checkpoint:
    files = _public()[name]
    config, twice = read_json(files[CONFIG])
    findings = _given_twice(CONFIG, twice)
    hf_quant = None
    if QUANT in files:
        hf_quant, twice = read_json(files[QUANT])
        findings += _given_twice(QUANT, twice)
    return Checkpoint(name, None, config, hf_quant, None, tuple(findings), "public configuration, from aiconfigurator-core")
