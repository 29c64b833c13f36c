"""`-p name=value`: everything that can be wrong with the values is found before a notebook runs.

papermill warns about an unknown parameter and runs with the default, and converts by the look of a value (0.50 becomes a
number): here an unknown name is an error, and the notebook's own annotation says what a value is.
"""

import ast
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path

import papermill

from helpers.checkpoint import known_checkpoints, open_checkpoint
from helpers.deployment import deployment
from helpers.errors import UsageError, unknown
from helpers.stages.verdict import judge
from helpers.suite import expectation
from helpers.suite.notebooks import Notebook
from helpers.suite.preflight import resolved

# Whether notebooks also ask the real SGLang: never, where a release is installed, or as an error where it is not.
ORACLE = ("off", "auto", "required")
# Parameters that are a path and nothing else.
FOLDERS = ("results", "original")
KINDS = {"str": str, "int": int, "float": float, "bool": {"true": True, "false": False, "True": True, "False": False}.__getitem__}


def assign(given: Sequence[str], notebooks: Sequence[Notebook]) -> dict[str, dict[str, object]]:
    """Notebook name -> its parameters, from the texts ``name=value``. A notebook gets only those that it has.

    UsageError: not of that form, a name that none of the notebooks has, a value of the wrong type, or a value that
    helpers.deployment, helpers.checkpoint or `expect` does not know. InputError: a checkpoint that cannot be read.
    """
    pairs = dict(_pair(text) for text in given)
    known = {notebook.name: declared(notebook) for notebook in notebooks}
    names = dict.fromkeys(name for parameters in known.values() for name in parameters)
    assigned: dict[str, dict[str, object]] = {notebook.name: {} for notebook in notebooks}
    for name, value in pairs.items():
        if name not in names:
            raise unknown("parameter", name, names)
        for notebook, parameters in known.items():
            if name in parameters:
                assigned[notebook][name] = _converted(name, value, parameters[name]["inferred_type_name"])
    _validate({name: value for values in assigned.values() for name, value in values.items()})
    return {notebook: _portable(values) for notebook, values in assigned.items()}


def declared(notebook: Notebook) -> dict[str, dict]:
    """papermill's own reading of the parameters cell: name -> inferred_type_name, default (source text), help."""
    return papermill.inspect_notebook(str(notebook.path).replace("{", "{{").replace("}", "}}"))


def default_values(notebook: Notebook) -> dict[str, object]:
    return {name: ast.literal_eval(parameter["default"]) for name, parameter in declared(notebook).items()}


def ask(defaults: Mapping[str, Mapping[str, object]], given: Mapping[str, Mapping[str, object]]) -> tuple[dict | None, dict | None]:
    """The question that all notebooks together answer, and what its arguments resolve to; None where no notebook asks one."""
    values = {name: value for parameters in (*defaults.values(), *given.values()) for name, value in parameters.items()}
    if "checkpoint" not in values:
        return None, None
    asked = deployment(**{name: value for name, value in values.items() if name in inspect.signature(deployment).parameters})
    judgement = judge(open_checkpoint(str(values["checkpoint"])), asked)
    return {"checkpoint": judgement.checkpoint.name} | asked.to_dict(), resolved(judgement)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"parameter {text!r}: write NAME=VALUE")
    return name, value


def _converted(name: str, value: str, kind: str) -> object:
    if kind not in KINDS:
        raise UsageError(f"parameter {name}: its type {kind!r} cannot be given on the command line")
    try:
        return KINDS[kind](value)
    except (ValueError, KeyError):
        raise UsageError(f"parameter {name}={value}: not a value of type {kind}") from None


def _validate(values: Mapping[str, object]) -> None:
    flags = inspect.signature(deployment).parameters
    deployment(**{name: value for name, value in values.items() if name in flags})
    expectation.parse(str(values.get("expect", "")))
    if values.get("oracle", "off") not in ORACLE:
        raise unknown("value of oracle", values["oracle"], ORACLE)
    if "checkpoint" in values:
        open_checkpoint(str(values["checkpoint"]))


def _portable(values: dict[str, object]) -> dict[str, object]:
    """Kernels run in notebooks/, so a path given relative to where the user stands is made absolute; a hub id is none."""
    checkpoint, launch = str(values.get("checkpoint", "")), str(values.get("launch", ""))
    absolute = {name: str(Path(str(values[name])).resolve()) for name in FOLDERS if values.get(name)}
    if checkpoint and checkpoint not in known_checkpoints() and Path(checkpoint).exists():
        absolute["checkpoint"] = str(Path(checkpoint).resolve())
    if launch.startswith("@"):
        absolute["launch"] = f"@{Path(launch[1:]).expanduser().resolve()}"
    return values | absolute
