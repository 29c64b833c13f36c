"""Record what one installed SGLang release knows, into data/: its command line flags, its model types, and which of them lose a
quantisation that stands in the nested config of the language model.

    PYTHONPATH=<folder that holds sglang> <its python> -m helpers.deployment.record 0.5.23

Runs under the release's own Python, with the transformers it pins, so it needs nothing but the standard library and that release.
A flag whose shape did not change keeps one entry and its ``last`` moves on; recording a release twice changes nothing.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "data"
# The flags whose accepted values the suite checks itself; the values of the others are the release's business.
WITH_CHOICES = {"moe_runner_backend", "moe_a2a_backend", "quantization", "deepep_mode", "flashinfer_a2a_dispatch_type"}
# Destinations renamed over time, under the name of today.
RENAMED = {"tensor_parallel_size": "tp_size", "expert_parallel_size": "ep_size", "data_parallel_size": "dp_size"}
TAKES = {None: "one", 0: "none", "+": "many", "*": "many", "?": "optional"}


def flags_of_installed_release() -> dict[str, dict]:
    """flag -> {dest, takes[, choices]} as the installed release's parser has them."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    flags = {}
    for action in parser._actions:
        entry = {"dest": RENAMED.get(action.dest, action.dest), "takes": TAKES[action.nargs]}
        if entry["dest"] in WITH_CHOICES and action.choices is not None:
            entry["choices"] = list(action.choices)
        flags.update(dict.fromkeys(action.option_strings, entry))
    return flags


def merged(table: dict[str, list[dict]], version: str, order: list[str], flags: dict[str, dict]) -> dict[str, list[dict]]:
    """The table with this release recorded: per flag a list of shapes, each with the first and last release that has it."""
    previous = order[order.index(version) - 1] if order.index(version) else None
    for name, shape in flags.items():
        shapes = table.setdefault(name, [])
        for known in shapes:
            if order.index(known["first"]) <= order.index(version) <= order.index(known["last"]):
                break
            if known["last"] == previous and {key: known[key] for key in known if key not in ("first", "last")} == shape:
                known["last"] = version
                break
        else:
            shapes.append({"first": version, "last": version, **shape})
    return dict(sorted(table.items()))


def model_types_of_installed_release() -> list[str]:
    """Every ``model_type`` of a config.json that this release's transformers, with SGLang's own additions, has a class for."""
    import sglang.srt.configs.model_config  # noqa: F401  registers SGLang's own
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return sorted(CONFIG_MAPPING.keys())


# Where multimodal configs keep the language model's.
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")


def lost_sections_of_installed_release() -> dict[str, dict]:
    """model type -> the nested configs whose ``quantization_config`` does not reach the parsed config ("lost"), or cannot be asked.

    get_config copies onto the parsed config what only the language model's has. A config class of SGLang's own is read again after
    that, and what was copied is gone, unless the class copies it itself.
    """
    from sglang.srt.utils.hf_transformers.config import get_config

    types = {}
    with tempfile.TemporaryDirectory() as folder:
        for model_type in model_types_of_installed_release():
            found = {key: _keeps_section(get_config, Path(folder) / f"{model_type}.{key}", model_type, key) for key in NESTED}
            shape = {"lost": [key for key in NESTED if found[key] is False], "unclear": [key for key in NESTED if found[key] is None]}
            if any(shape.values()):
                types[model_type] = {name: keys for name, keys in shape.items() if keys}
    return types


def _keeps_section(get_config: Callable, folder: Path, model_type: str, key: str) -> bool | None:
    """None where the class cannot be made from so little."""
    nested = {"num_attention_heads": 4, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    folder.mkdir(exist_ok=True)  # a type may be listed twice
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": ["X"], key: nested}))
    try:
        return getattr(get_config(str(folder), trust_remote_code=False), "quantization_config", None) is not None
    except Exception:  # noqa: BLE001  a config class may demand anything of what it is not given
        return None


def spans(table: dict[str, dict], version: str, order: list[str], names: list[str]) -> dict[str, dict]:
    """name -> first and last release that has it. A name that went away and came back keeps its whole span."""
    for name in names:
        known = table.setdefault(name, {"first": version, "last": version})
        known["first"] = min(known["first"], version, key=order.index)
        known["last"] = max(known["last"], version, key=order.index)
    return dict(sorted(table.items()))


def written(table: dict) -> str:
    """One name a line, so that a new release is a readable difference."""
    lines = (f"{json.dumps(name)}: {json.dumps(shapes)}" for name, shapes in table.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m helpers.deployment.record RELEASE")
    import tomllib

    version = sys.argv[1]
    order = [entry["version"] for entry in tomllib.loads((DATA / "releases.toml").read_text())["release"]]
    if version not in order:
        sys.exit(f"add {version} to data/releases.toml first")
    _record("flags.json", lambda table: merged(table, version, order, flags_of_installed_release()))
    _record("model_types.json", lambda table: spans(table, version, order, model_types_of_installed_release()))
    _record("lost_sections.json", lambda table: merged(table, version, order, lost_sections_of_installed_release()))


def _record(file: str, add: Callable[[dict], dict]) -> None:
    path = DATA / file
    path.write_text(written(add(json.loads(path.read_text()) if path.exists() else {})))


if __name__ == "__main__":
    main()
