"""The Checkpoint: what a folder, a hub repository or a pair of configurations says, before anything is decided about it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from helpers.checkpoint.compare import copies_disagree, geometry_against_shapes, map_against_tensors, names_that_match_nothing
from helpers.checkpoint.config_copies import copies_read_by_sglang, inline_quantization, text_config
from helpers.checkpoint.geometry import ExpertGeometry, read_geometry
from helpers.checkpoint.layer_map import LayerMap, layer_maps
from helpers.checkpoint.tensor_modules import TensorModules
from helpers.checkpoint.tensor_table import TensorTable
from helpers.findings import Finding


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Immutable, compared and hashed by identity, so that a result can be cached per checkpoint. Everything derived is lazy.

    name: what the user called it. path: the folder, None when there is none (public configurations, in-memory pairs). config and
    hf_quant: the parsed JSON files, never changed by anyone; hf_quant is None when there is no such file. tensors: None when only
    configurations exist, which is valid input. reading: findings made while reading; ``findings`` has these and the comparisons.
    source: where it came from, in words.
    """

    name: str
    path: Path | None
    config: dict
    hf_quant: dict | None = None
    tensors: TensorTable | None = None
    reading: tuple[Finding, ...] = ()
    source: str = "in memory"

    @property
    def architecture(self) -> str:
        """The first of config.json's architectures, "" when it names none."""
        names = self.config.get("architectures")
        return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""

    @cached_property
    def text_config(self) -> dict:
        return text_config(self.config)

    @property
    def inline_quant(self) -> dict | None:
        return inline_quantization(self.config)

    @cached_property
    def geometry(self) -> ExpertGeometry | None:
        return read_geometry(self.config)

    @cached_property
    def layer_maps(self) -> dict[str, LayerMap]:
        """copy ("config.json", "hf_quant_config.json") -> what it says, for the copies that exist."""
        return layer_maps(self.config, self.hf_quant)

    @cached_property
    def copies_read(self) -> tuple[str, str, str]:
        """(copy that names the quantisation, copy that the layers are built from, why) as SGLang reads them."""
        return copies_read_by_sglang(self.config, self.hf_quant)

    @cached_property
    def layer_map(self) -> LayerMap:
        """The map of the copy that SGLang builds the layers from."""
        return self.layer_maps.get(self.copies_read[1]) or next(iter(self.layer_maps.values()), LayerMap(copy="none"))

    @cached_property
    def modules(self) -> TensorModules | None:
        """What each module is by its tensors; None without tensors."""
        return None if self.tensors is None else TensorModules(self.tensors)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What reading found, and what comparing the copies with each other and with the tensors found."""
        found = copies_disagree(self.layer_maps, self.copies_read)
        if self.tensors is not None and self.modules is not None:
            found += map_against_tensors(self.layer_map, self.modules, self.geometry)
            if self.tensors.complete:
                found += names_that_match_nothing(self.layer_map, self.modules)
            if self.geometry is not None:
                found += geometry_against_shapes(self.geometry, self.modules, self.tensors.complete)
        return (*self.reading, *found)
