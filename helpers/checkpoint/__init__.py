"""What is on disk or on the hub: the two JSON copies, safetensors headers, layer map and expert-block geometry. No weight is read."""

from helpers.checkpoint.checkpoint import Checkpoint
from helpers.checkpoint.describe import fact_rows, module_rows, tensor_rows
from helpers.checkpoint.geometry import ExpertGeometry
from helpers.checkpoint.layer_map import LayerMap
from helpers.checkpoint.names import KINDS, layer_of, module_kind, prefix_family, split_expert
from helpers.checkpoint.read import from_configs, known_checkpoints, open_checkpoint
from helpers.checkpoint.tensor_table import TensorTable

__all__ = [
    "KINDS",
    "Checkpoint",
    "ExpertGeometry",
    "LayerMap",
    "TensorTable",
    "fact_rows",
    "from_configs",
    "known_checkpoints",
    "layer_of",
    "module_kind",
    "module_rows",
    "open_checkpoint",
    "prefix_family",
    "split_expert",
    "tensor_rows",
]
