"""Breaks the model's rules one at a time, to see that the comparison with the releases would notice.

Two kinds of break. An admission rule (every name that helpers.stages.admission gives to a refusal, a decision or a variable it
sets) stops doing what it does. A condition in the code that admits, names and routes a checkpoint is turned round.
"""

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from helpers.stages import admission, admit, compressed, detect, methods, modules, names, quant_config, route
from helpers.stages.admission import a2a, allowlists, attention, budget, facts, families, model_config, resolution, sizes, speculative
from helpers.stages.admission.resolution import Resolution

ROUTING = (detect, names, methods, quant_config, compressed, modules, route)
ADMISSION = (admit, a2a, allowlists, attention, budget, facts, families, model_config, resolution, sizes, speculative)


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


# Functions that word findings and steps, or name parts of the checkpoint for them; they decide nothing that is compared.
WORDING = (
    "_with_findings",
    "_in_text_config_alone",
    "_taken_for_w4afp8",
    "_meta_step",
    "_layers_anywhere",
    "_keys",
    "_unknown_page",
    "steps",
    "_module_route",
)
WORDING += ("blocks", "draft_algorithms", "_algorithm", "linear", "lm_head")


@dataclass(frozen=True)
class Condition:
    """One `if` (or conditional expression). place: ``detect.py _modelopt_name``. text: the condition; number: which one of that text."""

    place: str
    text: str
    number: int

    def __str__(self):
        return f"{self.place}: {self.text}" + (f" #{self.number}" if self.number > 1 else "")


@dataclass
class Wiring:
    """The conditions of some functions while they are wired. seen: those that were asked. turned: the one that is turned round."""

    conditions: tuple[Condition, ...] = ()
    seen: set[Condition] = field(default_factory=set)
    turned: Condition | None = None

    def answer(self, index: int, value: object) -> bool:
        """What the wired code goes by, in place of `value`."""
        condition = self.conditions[index]
        self.seen.add(condition)
        return bool(value) != (condition is self.turned)

    def turn(self, condition: Condition | None) -> None:
        """From now on this condition holds where it does not, and the other way round; None: all as written. Nothing counts as seen."""
        self.turned = condition
        self.seen.clear()
        forget()


@contextmanager
def wired(*sources: ModuleType) -> Iterator[Wiring]:
    """While it lasts, every condition in the functions of these modules tells the wiring that it is asked, and can be turned round."""
    wiring = Wiring()
    functions = [function for module in sources for function in _functions(module) if function.__name__ not in WORDING]
    originals = [(function, function.__code__) for function in functions]
    try:
        for function in functions:
            _wire(function, wiring)
        forget()
        yield wiring
    finally:
        for function, code in originals:
            function.__code__ = code
            function.__globals__.pop(_WIRE, None)
        forget()


_WIRE = "__condition__"


def _wire(function: FunctionType, wiring: Wiring) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    place = f"{function.__module__.rsplit('.', 1)[-1]}.py {function.__qualname__}"
    found, texts = [], Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp):
            text = ast.unparse(node.test)
            texts[text] += 1
            index = ast.Constant(len(wiring.conditions) + len(found))
            found.append(Condition(place, text, texts[text]))
            node.test = ast.Call(ast.Name(_WIRE, ast.Load()), [index, node.test], [])
    if not found:
        return
    wiring.conditions += tuple(found)
    tree.body[0].decorator_list = []
    code = compile(ast.fix_missing_locations(tree), function.__code__.co_filename, "exec")
    function.__globals__[_WIRE] = wiring.answer
    function.__code__ = _inner(code, function.__code__)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions and methods written in the module's file, not those that dataclasses made."""
    values = list(vars(module).values())
    values += [entry for value in values if isinstance(value, type) for entry in vars(value).values()]
    for value in dict.fromkeys(map(_undecorated, values)):
        if isinstance(value, FunctionType) and value.__code__.co_filename == module.__file__:
            yield value


def _undecorated(value: object) -> object:
    value = getattr(value, "fget", None) or getattr(value, "func", None) or value
    return inspect.unwrap(value) if callable(value) else id(value)


def _inner(code: CodeType, original: CodeType) -> CodeType:
    found = next(constant for constant in code.co_consts if isinstance(constant, CodeType) and constant.co_name == original.co_name)
    if found.co_freevars != original.co_freevars:
        raise ValueError(f"{original.co_qualname} is a closure: it cannot be replaced in place")
    return found


def forget() -> None:
    """Empties what the stages remember."""
    for module in (*ROUTING, *ADMISSION):
        for value in vars(module).values():
            if callable(getattr(value, "cache_clear", None)):
                value.cache_clear()
