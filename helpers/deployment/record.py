"""Record what one installed SGLang release knows: its command line flags and its model types, into data/.

    PYTHONPATH=<folder that holds sglang> <its python> -m helpers.deployment.record 0.5.23

Runs under the release's own Python, with the transformers it pins, so it needs nothing but the standard library and that release.
A flag whose shape did not change keeps one entry and its ``last`` moves on; recording a release twice changes nothing.
"""

import argparse
import json
import sys
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


def _record(file: str, add: Callable[[dict], dict]) -> None:
    path = DATA / file
    path.write_text(written(add(json.loads(path.read_text()) if path.exists() else {})))


if __name__ == "__main__":
    main()
