"""Explorers: choose among results that are already computed. A callback looks a result up and shows it, nothing more.

The default selection is displayed beside the controls as plain HTML, so a page without widgets is complete. Nothing is
computed, checked or caught in a callback, because an exception there never reaches the notebook.
"""

from collections.abc import Callable, Mapping, Sequence

import ipywidgets
from IPython.display import display

from helpers.view.markup import Markup, escape

HINT = "Choose above (in JupyterLab) to see another selection here; the default stays below."


class Explorer:
    """Dropdowns over the keys of ``results``, and the HTML of the selected one.

    controls: the name of each entry of a key. results: what was computed, by key. render: a result's HTML. A later control
    offers only what exists under the earlier ones, so every selection has a result.
    """

    def __init__(
        self,
        controls: Sequence[str],
        results: Mapping[tuple[str, ...], object],
        render: Callable[[object], Markup],
        default: tuple[str, ...],
    ):
        if default not in results:
            raise ValueError(f"the default selection {default} has no result")
        self.results, self.render, self.default = results, render, default
        self.view = ipywidgets.HTML(f"<em>{escape(HINT)}</em>")
        self.dropdowns = [ipywidgets.Dropdown(description=name, style={"description_width": "initial"}) for name in controls]
        self._filling = False
        self._offer(0, default)
        for position, dropdown in enumerate(self.dropdowns):
            dropdown.observe(lambda change, position=position: self._chosen(position), names="value")

    @property
    def selection(self) -> tuple[str, ...]:
        return tuple(dropdown.value for dropdown in self.dropdowns)

    def _offer(self, position: int, wanted: tuple[str, ...]) -> None:
        """Fill the controls from ``position`` on with what exists under the earlier ones, keeping ``wanted`` where it does."""
        self._filling = True
        for index in range(position, len(self.dropdowns)):
            before = self.selection[:index]
            options = list(dict.fromkeys(key[index] for key in self.results if key[:index] == before))
            self.dropdowns[index].options = options
            self.dropdowns[index].value = wanted[index] if wanted[index] in options else options[0]
        self._filling = False

    def _chosen(self, position: int) -> None:
        if not self._filling:
            self._offer(position + 1, self.selection)
            self.view.value = self.page("Chosen", self.selection).source

    def page(self, title: str, key: tuple[str, ...]) -> Markup:
        """The result of one selection under a line that names it."""
        chosen = ", ".join(f"{dropdown.description} {value}" for dropdown, value in zip(self.dropdowns, key, strict=True))
        return Markup(f"<p><b>{escape(title)}:</b> {escape(chosen)}</p>", f"{title}: {chosen}") + self.render(self.results[key])

    def show(self) -> None:
        """Display the controls with an empty view, and the default selection as HTML under them."""
        controls = ipywidgets.HBox(self.dropdowns, layout=ipywidgets.Layout(flex_flow="row wrap"))
        display(ipywidgets.VBox([controls, self.view]))
        display(self.page("Default", self.default))
