"""What the argument rules read of a checkpoint. All of it comes from the two JSON copies, and from tensor headers where said."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from helpers.checkpoint import Checkpoint
from helpers.stages.detect import Detection, inline_section

# model_loader/weight_utils.py: _ROUTED_EXPERT_KEY_RE
_ROUTED_EXPERT = re.compile(r"\.experts\.\d+\.(?:w[123]|down_proj|up_proj|gate_proj)\.weight$")


@dataclass(frozen=True, eq=False)
class Facts:
    """A checkpoint as SGLang's per-architecture rules see it: through ``hf_config``, never through hf_quant_config.json."""

    checkpoint: Checkpoint
    detection: Detection

    @cached_property
    def architecture(self) -> str:
        return self.checkpoint.architecture

    @cached_property
    def declared(self) -> Mapping | None:
        """config.json's own quantization_config after ModelConfig has written quant_method back into it; None without one.

        One inside the nested config counts where the config class lets it through.
        """
        inline = inline_section(self.checkpoint, self.detection.release)
        return self.detection.parsed if isinstance(inline, Mapping) else None

    @property
    def text_quantization(self) -> object:
        """quantization_config of the text part, which is the whole config for a text-only model."""
        return self.checkpoint.text_config.get("quantization_config")

    @cached_property
    def quant_method(self) -> str | None:
        """What fills ``server_args.quantization``. None for a checkpoint that only has hf_quant_config.json.

        utils/common.py: get_quantization_config.
        """
        return self.declared.get("quant_method") if self.declared is not None else None

    @cached_property
    def layers(self) -> Mapping:
        """quantized_layers of config.json's copy."""
        layers = (self.declared or {}).get("quantized_layers")
        return layers if isinstance(layers, Mapping) else {}

    @property
    def hybrid_nvfp4(self) -> bool:
        """FP8 with NVFP4 experts by one top-level key: ``ModelConfig.nvfp4_moe_meta`` is set."""
        return self.detection.nvfp4_moe_meta is not None

    @cached_property
    def has_w4a16_experts(self) -> bool:
        """A W4A16_NVFP4 entry whose name contains ".experts", whatever its case. qwen3_moe.py: _mixed_precision_moe_quant_algos."""
        return any(
            ".experts" in name and isinstance(entry, Mapping) and str(entry.get("quant_algo", "")).upper() == "W4A16_NVFP4"
            for name, entry in self.layers.items()
        )

    @cached_property
    def has_w4a16_experts_nemotron(self) -> bool:
        """The same question as Nemotron-H asks it: per-expert names (".experts.") and the exact text."""
        return any(".experts." in name and entry.get("quant_algo") == "W4A16_NVFP4" for name, entry in self.layers.items())

    @cached_property
    def file_quantization(self) -> Mapping:
        """``ModelConfig.hf_quant_config`` as the megamoe budget reads it."""
        return self.declared or {}

    @cached_property
    def has_fp4_experts(self) -> bool:
        """``ModelConfig.is_fp4_experts``: MXFP4 experts beside FP8, said by a key, or for DeepSeek V4 by a header; there yes if unread.

        configs/deepseek_v4.py: try_detect_fp4_experts. SGLANG_DSV4_FP4_EXPERTS, which overrides it, is not followed.
        """
        declared = self.declared or {}
        if (said := declared.get("routed_experts_quant_method")) is not None or self.architecture != "DeepseekV4ForCausalLM":
            mimo = self.architecture in ("MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM")
            return said == "mxfp4" or (mimo and str(declared.get("store_dtype") or "").lower() == "mxfp4")
        tensors = self.checkpoint.tensors
        probed = next((tensors.dtype(name) for name in tensors or () if _ROUTED_EXPERT.search(name)), None)
        return probed != "F8_E4M3"

    @cached_property
    def has_fp8_experts(self) -> bool:
        """The first expert weight of the first shard that has one is F8_E4M3. utils/common.py: has_fp8_weights_in_checkpoint."""
        tensors = self.checkpoint.tensors
        if tensors is None:
            return False
        for _, start, end in sorted(zip(tensors.shards, tensors.shard_rows[:-1], tensors.shard_rows[1:], strict=True)):
            for name in tensors.names[start:end]:
                if "experts" in name and "weight" in name:
                    return tensors.dtype(name) == "F8_E4M3"
        return False
