"""Record one installed SGLang release's command line flags into data/flags.json.

    PYTHONPATH=<folder that holds sglang> <its python> -m helpers.deployment.record 0.5.23

Runs under the release's own Python, so it needs nothing but the standard library and that release. A flag whose shape did
not change keeps one entry and its ``last`` moves on; recording a release twice changes nothing.
"""

import argparse
import json
import sys
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


def written(table: dict[str, list[dict]]) -> str:
    """One flag a line, so that a new release is a readable difference."""
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
    path = DATA / "flags.json"
    table = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(written(merged(table, version, order, flags_of_installed_release())))


if __name__ == "__main__":
    main()
