"""Configs that were written, not exported: what ModelOpt does not write on a CPU, or not at this size.

Each folder holds JSON files only. The geometry is that of the published model named in the function; where a quantisation map
exists in a real export it is scaled up from that export and not typed in.
"""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONFIG, HF_QUANT = "config.json", "hf_quant_config.json"
LAYER_NUMBER = re.compile(r"(?<=\.layers\.)\d+(?=\.)")

DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "dtype": "bfloat16",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 163840,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
}

DEEPSEEK_V4_FLASH = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "dtype": "bfloat16",
    "expert_dtype": "fp4",
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_hash_layers": 3,
    "num_nextn_predict_layers": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "topk_method": "noaux_tc",
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "compress_rope_theta": 160000,
    "rope_theta": 10000,
    "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536},
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20,
    "sliding_window": 128,
    "swiglu_limit": 10.0,
    "hidden_act": "silu",
    "max_position_embeddings": 1048576,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
}

QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}


def qwen35_397b_v2() -> dict[str, dict]:
    """nvidia/Qwen3.5-397B-A17B-NVFP4-V2 at full size: the JSON files of the tiny export with its four-layer period repeated to 60.

    Same model, same recipe, so every key kind, field and order is the exporter's. Added by hand: the multi-token-prediction block,
    which the published model has and transformers 5 does not build; the recipe leaves it in BF16, and the exporter lists it as ignored.
    """
    layers = 60
    config, hf_quant = (json.loads((HERE / "qwen3.5-moe-mixed" / name).read_text()) for name in (CONFIG, HF_QUANT))
    period = config["text_config"]["num_hidden_layers"]
    config["text_config"] |= {
        "hidden_size": 4096,
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
        "num_hidden_layers": layers,
        "layer_types": config["text_config"]["layer_types"] * (layers // period),
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 64,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
        },
        "max_position_embeddings": 262144,
        "vocab_size": 248320,
        "mtp_num_hidden_layers": 1,
    }
    config["vision_config"] |= {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": 4096,
        "patch_size": 16,
    }
    quantization = config["quantization_config"]
    quantization["quantized_layers"] = repeated(quantization["quantized_layers"], period, layers)
    for group in quantization["config_groups"].values():
        group["targets"] = sorted(repeated(dict.fromkeys(group["targets"]), period, layers))
    hf_quant["quantization"]["quantized_layers"] = repeated(hf_quant["quantization"]["quantized_layers"], period, layers)
    quantization["ignore"] = ["mtp.layers.0*", "mtp*"]
    hf_quant["quantization"]["exclude_modules"] = ["mtp.layers.0*", "mtp*"]
    quantization["producer"]["version"] = hf_quant["producer"]["version"] = "0.45.0.dev173+g52f1ccbee"
    return {CONFIG: config, HF_QUANT: hf_quant}


def repeated(by_module: dict[str, object], period: int, layers: int) -> dict[str, object]:
    """The map of a model of `period` layers, as a model of `layers` layers with that period has it, in the same module order."""
    out = {}
    for layer in range(layers):
        for name, value in by_module.items():
            if LAYER_NUMBER.search(name).group() == str(layer % period):
                out[LAYER_NUMBER.sub(str(layer), name)] = copy.deepcopy(value)
    return out


def deepseek_v4_hybrid() -> dict[str, dict]:
    """nvidia/DeepSeek-V4-Flash-NVFP4: block FP8 as DeepSeek publishes it, with the experts replaced by NVFP4 and named beside it."""
    experts = {f"layers.{layer}.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16} for layer in range(43)}
    excluded = ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"]
    producer = {"name": "modelopt", "version": "dsv4-nvfp4-experts"}
    nvfp4 = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    inline = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
        "quant_algo": "MIXED_PRECISION",
        "moe_quant_algo": "NVFP4",
        "group_size": 16,
        "kv_cache_quant_algo": None,
        "config_groups": {"group_0": {"input_activations": nvfp4, "weights": nvfp4, "targets": ["Linear"]}},
        "quantized_layers": experts,
        "ignore": excluded,
        "producer": producer,
    }
    beside = {
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "quantized_layers": experts,
        "exclude_modules": excluded,
    }
    return {CONFIG: DEEPSEEK_V4_FLASH | {"quantization_config": inline}, HF_QUANT: {"producer": producer, "quantization": beside}}


def w4afp8_bare() -> dict[str, dict]:
    """nvidia/DeepSeek-R1-0528-W4AFP8: the words MIXED_PRECISION and nothing else, which SGLang takes for INT4 experts with FP8."""
    return {CONFIG: DEEPSEEK_V3, HF_QUANT: {"quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None}}}


def compressed_tensors_nvfp4() -> dict[str, dict]:
    """Qwen3-30B-A3B in NVFP4 as llm-compressor publishes it: one copy, another vocabulary, another loader."""
    nvfp4 = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": 16, "strategy": "tensor_group"}
    inline = {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "quantization_status": "compressed",
        "version": "0.20.1",
        "config_groups": {
            "group_0": {
                "format": "nvfp4-pack-quantized",
                "targets": ["Linear"],
                "weights": nvfp4 | {"dynamic": False},
                "input_activations": nvfp4 | {"dynamic": "local"},
                "output_activations": None,
            }
        },
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "kv_cache_scheme": None,
    }
    return {CONFIG: QWEN3_30B | {"quantization_config": inline}}


AUTHORED: dict[str, Callable[[], dict[str, dict]]] = {
    "qwen3.5-397b-v2-config": qwen35_397b_v2,
    "deepseek-v4-hybrid-config": deepseek_v4_hybrid,
    "w4afp8-bare-config": w4afp8_bare,
    "compressed-tensors-nvfp4-config": compressed_tensors_nvfp4,
}


def write_authored(name: str, folder: Path) -> None:
    """Write the JSON files of one authored config into `folder`, which must not exist."""
    folder.mkdir()
    for file, content in AUTHORED[name]().items():
        (folder / file).write_text(json.dumps(content, indent=2) + "\n")
