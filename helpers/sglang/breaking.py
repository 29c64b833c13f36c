"""Breaks the model's rules one at a time, to see that the comparison with the releases would notice.

Two kinds of break. An admission rule (every name that helpers.stages.admission gives to a refusal, a decision or a variable it
sets) stops doing what it does. A condition in the code that names and routes a checkpoint is turned round.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from helpers.stages import admission, admit, detect, methods, names, quant_config, route
from helpers.stages.admission.resolution import Resolution

ROUTING = (detect, names, methods, quant_config)


@contextmanager
def watched(seen: set[tuple[str, str]]) -> Iterator[None]:
    """While it lasts, every (rule, what it did) goes into `seen`: "refuse", "decide FIELD" or "export VARIABLE"."""
    with _replaced(lambda rule, action: seen.add((rule, action)) or False):
        yield


@contextmanager
def without(rule: str, action: str) -> Iterator[None]:
    """While it lasts, this rule does not do this."""
    with _replaced(lambda *what: what == (rule, action)):
        yield


@contextmanager
def _replaced(silenced: Callable[[str, str], bool]) -> Iterator[None]:
    originals = {name: getattr(Resolution, name) for name in ("decide", "export", "refuse")}

    def decide(self, rule, field, *rest):
        if not silenced(rule, f"decide {field}"):
            originals["decide"](self, rule, field, *rest)

    def export(self, rule, variable, *rest):
        if not silenced(rule, f"export {variable}"):
            originals["export"](self, rule, variable, *rest)

    def refuse(self, rule, *rest):
        if not silenced(rule, "refuse"):
            originals["refuse"](self, rule, *rest)

    for name, function in (("decide", decide), ("export", export), ("refuse", refuse)):
        setattr(Resolution, name, function)
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(Resolution, name, function)


def named_rules() -> set[tuple[str, str]]:
    """Every (rule, action) that the admission code writes down with a literal name."""
    files = [*Path(admission.__file__).parent.glob("*.py"), Path(admit.__file__)]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    found = set()
    for call in calls:
        first, second = ([argument.value if isinstance(argument, ast.Constant) else None for argument in call.args] + [None, None])[:2]
        action = {"decide": f"decide {second}", "export": f"export {second}", "refuse": "refuse", "check": "refuse"}.get(call.func.attr)
        if action and first:
            found.add((first, action))
    return found


# Functions that word findings and steps; they decide nothing that is compared.
WORDING = ("_with_findings", "_taken_for_w4afp8", "_meta_step", "_layers_anywhere", "_keys")


@dataclass(frozen=True)
class Condition:
    """One `if` (or conditional expression) of a function. place: ``detect.py:211 _modelopt_name``. text: the condition."""

    function: FunctionType
    index: int
    place: str
    text: str


def conditions() -> list[Condition]:
    """Every condition in the functions that name and route a checkpoint."""
    functions = [function for module in ROUTING for function in _functions(module) if function.__name__ not in WORDING]
    return [condition for function in functions for condition in _conditions(function)]


def deciding_functions() -> dict[str, list[Condition]]:
    """The same by function, ``names.py LayerAlgorithms.resolve``: one that decides something has a condition that can be turned round."""
    grouped: dict[str, list[Condition]] = {}
    for condition in conditions():
        file, _, name = condition.place.partition(" ")
        grouped.setdefault(f"{file.split(':')[0]} {name}", []).append(condition)
    return grouped


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions and methods written in the module's file, not those that dataclasses made."""
    values = list(vars(module).values())
    values += [entry for value in values if isinstance(value, type) for entry in vars(value).values()]
    for value in values:
        value = getattr(value, "fget", None) or getattr(value, "func", None) or value
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, FunctionType) and value.__code__.co_filename == module.__file__:
            yield value


def _conditions(function: FunctionType) -> Iterator[Condition]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    first = function.__code__.co_firstlineno
    for index, node in enumerate(_tests(tree)):
        place = f"{function.__module__.rsplit('.', 1)[-1]}.py:{first + node.lineno - 1} {function.__qualname__}"
        yield Condition(function, index, place, ast.unparse(node.test))


def _tests(tree: ast.AST) -> list:
    return [node for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp)]


@contextmanager
def turned_round(condition: Condition) -> Iterator[None]:
    """While it lasts, the condition holds where it did not, and the other way round."""
    function = condition.function
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    node = _tests(tree)[condition.index]
    node.test = ast.UnaryOp(ast.Not(), node.test)
    tree.body[0].decorator_list = []
    code = compile(ast.fix_missing_locations(tree), function.__code__.co_filename, "exec")
    original = function.__code__
    function.__code__ = _inner(code, original)
    try:
        forget()
        yield
    finally:
        function.__code__ = original
        forget()


def _inner(code: CodeType, original: CodeType) -> CodeType:
    found = next(constant for constant in code.co_consts if isinstance(constant, CodeType) and constant.co_name == original.co_name)
    if found.co_freevars != original.co_freevars:
        raise ValueError(f"{original.co_qualname} is a closure: it cannot be replaced in place")
    return found


def forget() -> None:
    """Empties what detect and route remember."""
    for module in (detect, route, admit, methods, names, quant_config):
        for value in vars(module).values():
            if callable(getattr(value, "cache_clear", None)):
                value.cache_clear()
