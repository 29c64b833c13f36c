"""A routing arranged for a figure: one row a module name, one column a layer."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerGrid:
    """names: rows, top to bottom. layers: columns. cells: (name, layer) -> ModuleRoute. outside: modules of no layer."""

    names: tuple[str, ...]
    layers: tuple[int, ...]
    cells: Mapping[tuple[str, int], object]
    outside: tuple[object, ...]

    @property
    def algorithms(self) -> tuple[str | None, ...]:
        """Every algorithm in the grid once, most frequent first."""
        return tuple(algo for algo, _ in Counter(module.algo for module in self.cells.values()).most_common())

    def runs(self, name: str) -> list[tuple[int, int, str | None]]:
        """A row as (first column, number of columns, algorithm) of neighbouring layers with one algorithm; gaps are left out."""
        found: list[tuple[int, int, str | None]] = []
        for column, layer in enumerate(self.layers):
            module = self.cells.get((name, layer))
            if module is None:
                continue
            start, length, algo = found[-1] if found else (-1, 0, None)
            if start + length == column and length and algo == module.algo:
                found[-1] = (start, length + 1, algo)
            else:
                found.append((column, 1, module.algo))
        return found

    def by_layer(self) -> dict[tuple[str, str], object]:
        """(layer, module) -> ModuleRoute for an explorer: layers in order, modules of no layer under "none"."""
        inside = {(str(layer), name): module for (name, layer), module in sorted(self.cells.items(), key=lambda item: item[0][1])}
        return inside | {("none", module.prefix): module for module in self.outside}

    def rows(self) -> list[dict]:
        """The grid as a table: one row for each module name, algorithm and method, with the layers that have it."""
        groups: dict[tuple, list[int]] = {}
        for (name, layer), module in sorted(self.cells.items(), key=lambda item: (self.names.index(item[0][0]), item[0][1])):
            groups.setdefault((name, module.algo, module.method), []).append(layer)
        inside = [
            {"module": name, "layers": spans(layers), "count": len(layers), "algorithm": algo, "method": method}
            for (name, algo, method), layers in groups.items()
        ]
        outside = [
            {"module": module.prefix, "layers": None, "count": 1, "algorithm": module.algo, "method": module.method}
            for module in self.outside
        ]
        return inside + outside


def grid(modules: Iterable) -> LayerGrid:
    """Arrange ModuleRoutes. The layers of the main stack lend the columns; a second stack (MTP, vision) keeps its own rows."""
    modules = list(modules)
    split = {module.prefix: _split(module.prefix, module.layer) for module in modules}
    stacks = Counter(stack for stack, name in split.values() if name)
    main = stacks.most_common(1)[0][0] if stacks else ""
    cells, outside, order = {}, [], {}
    for module in modules:
        stack, name = split[module.prefix]
        if not name:
            outside.append(module)
            continue
        row = name if stack == main else f"{stack}: {name}"
        order.setdefault(row, (stack != main, len(order)))
        cells[row, module.layer] = module
    names = tuple(sorted(order, key=order.__getitem__))
    return LayerGrid(names, tuple(sorted({layer for _, layer in cells})), cells, tuple(outside))


def _split(prefix: str, layer: int | None) -> tuple[str, str]:
    """``model.layers.3.mlp.experts``, 3 -> ("model.layers", "mlp.experts"); a module of no layer has no name."""
    head, found, tail = prefix.partition(f".{layer}.")
    return (head, tail) if found and layer is not None else (prefix, "")


def spans(numbers: Iterable[int]) -> str:
    """``[0, 1, 2, 5]`` -> ``0-2, 5``."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs(numbers))


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of every run of consecutive numbers, in order."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
