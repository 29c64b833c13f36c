#!/usr/bin/env python3
"""Make the bundled checkpoints: tiny real NVIDIA ModelOpt exports, on a CPU, offline, and the authored configs.

A real export is a randomly initialised transformers model (tiny_models.py), quantised by nvidia-modelopt with a recipe that ships
in its wheel and written by its unified Hugging Face export. Needs the `exports` extra: nvidia-modelopt 0.47.0, transformers 5.12.1.
Authored configs (authored_configs.py) need no extra.
"""

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from authored_configs import AUTHORED, write_authored

from helpers.errors import UsageError, unknown

HERE = Path(__file__).resolve().parent

# Recipes of the modelopt 0.47.0 wheel (modelopt_recipes/).
QWEN35_V2 = "huggingface/qwen3_5_moe/ptq/nvfp4_experts_mse-fp8_rest-kv_fp8"
QWEN36_W4A16 = "huggingface/qwen3_5_moe/ptq/w4a16_nvfp4-fp8_attn-kv_fp8_cast"
NEMOTRON_SUPER = "models/nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16/ptq/nvfp4-max-calib"
NVFP4 = "general/ptq/nvfp4_default-kv_fp8"
NVFP4_EXPERTS = "general/ptq/nvfp4_experts_only-kv_fp8"
NVFP4_MLP = "general/ptq/nvfp4_mlp_only-kv_fp8"
NVFP4_W4A16 = "general/ptq/nvfp4_weight_only-kv_fp8_cast"


def unchanged(rules: list[dict]) -> list[dict]:
    """The recipe as it ships."""
    return rules


def any_prefix(rules: list[dict]) -> list[dict]:
    """NVIDIA's Qwen3.5 recipe finds experts below `language_model`; other architectures have no such part in their names."""
    return [{**rule, "quantizer_name": rule["quantizer_name"].replace("*language_model*mlp.", "*mlp.")} for rule in rules]


def fp8_experts_in_layer_1(rules: list[dict]) -> list[dict]:
    """The same scheme with one layer's experts in per-tensor FP8, as sensitivity searches produce. The last matching rule wins."""
    fp8 = {"num_bits": (4, 3), "axis": None}
    return any_prefix(rules) + [{"quantizer_name": f"*layers.1.mlp.experts.*{kind}_quantizer", "cfg": fp8} for kind in ("weight", "input")]


@dataclass(frozen=True)
class Export:
    """One real export.

    model: a function of tiny_models.py; recipe: a name ModelOpt's load_recipe takes; edit: what is done to the recipe's rules before
    use; repair: undo the names that ModelOpt 0.47.0 corrupts (see repair_names).
    """

    model: str
    recipe: str
    edit: Callable[[list[dict]], list[dict]] = unchanged
    repair: bool = False


EXPORTS = {
    "qwen3.5-moe-mixed": Export("qwen3_5_moe", QWEN35_V2),
    "qwen3.5-moe-w4a16-mixed": Export("qwen3_5_moe", QWEN36_W4A16),
    "qwen3-moe-mixed": Export("qwen3_moe", QWEN35_V2, any_prefix),
    "qwen3-moe-mixed-fp8-layer": Export("qwen3_moe", QWEN35_V2, fp8_experts_in_layer_1),
    "qwen3-moe-nvfp4": Export("qwen3_moe", NVFP4),
    "qwen3-moe-nvfp4-experts": Export("qwen3_moe", NVFP4_EXPERTS),
    "qwen3-moe-w4a16": Export("qwen3_moe", NVFP4_W4A16),
    "deepseek-v3-mixed": Export("deepseek_v3", QWEN35_V2, any_prefix),
    "nemotron-h-nvfp4": Export("nemotron_h", NVFP4_EXPERTS),
    "nemotron-h-nvfp4-repaired": Export("nemotron_h", NVFP4_EXPERTS, repair=True),
    "nemotron-h-mixed": Export("nemotron_h", NEMOTRON_SUPER),
    "nemotron-h-mixed-repaired": Export("nemotron_h", NEMOTRON_SUPER, repair=True),
    "minimax-m2-nvfp4": Export("minimax_m2", NVFP4_EXPERTS),
    "llama4-nvfp4": Export("llama4", NVFP4_EXPERTS),
    "gpt-oss-nvfp4": Export("gpt_oss", NVFP4_MLP),
    "glm-moe-dsa-nvfp4": Export("glm_moe_dsa", NVFP4_MLP),
    "gemma4-nvfp4": Export("gemma4", NVFP4_EXPERTS),
}


def fp4_fake_quantize(x, amax, global_amax=None, quantize_block_scales=True, fp8_max=448.0, out_dtype=None, pass_through_bwd=False):
    """NVFP4 round trip of `x` [..., block] with given block maxima, for which ModelOpt has a Triton kernel only.

    A recipe's mean-square search compares candidate block scales with it; what is exported is packed by ModelOpt itself.
    Which neighbour a tie goes to does not matter here: both are equally far.
    """
    import torch

    levels = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    scale = amax.float().reshape(-1, 1) / levels[-1]
    if quantize_block_scales:
        unit = (scale.max() if global_amax is None else global_amax.float() / levels[-1]) / fp8_max
        scale = (scale / unit).clamp(max=fp8_max).to(torch.float8_e4m3fn).float() * unit
    blocks = x.float().reshape(len(scale), -1)
    magnitude = torch.where(scale > 0, blocks.abs() / scale, 0.0)
    nearest = levels[torch.bucketize(magnitude, (levels[1:] + levels[:-1]) / 2)]
    return (nearest.copysign(blocks) * scale).reshape(x.shape).to(out_dtype or x.dtype)


def export(spec: Export, folder: Path) -> None:
    """Build the model, calibrate on random tokens, quantise and export into `folder`, which must not exist."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the same result with and without a GPU
    os.environ["HF_HUB_OFFLINE"] = "1"
    import modelopt.torch.quantization as mtq
    import tiny_models
    import torch
    from modelopt.recipe import load_recipe
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.nn.modules import tensor_quantizer

    torch.set_num_threads(1)  # else the order of additions, hence the input scales, depends on the number of cores
    tensor_quantizer.static_blockwise_fp4_fake_quant = fp4_fake_quantize

    torch.manual_seed(0)
    model_class, config = getattr(tiny_models, spec.model)()
    config.architectures = [model_class.__name__]
    config.dtype = torch.bfloat16
    config._attn_implementation = "eager"
    model = model_class(config).to(torch.bfloat16).eval()

    recipe = load_recipe(spec.recipe).quantize.model_dump()
    recipe["quant_cfg"] = spec.edit(recipe["quant_cfg"])
    batches = torch.randint(4, tiny_models.VOCABULARY, (4, 2, 32))

    def calibrate(quantised):
        for tokens in batches:
            quantised(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)

    with torch.no_grad():
        model = mtq.quantize(model, recipe, forward_loop=calibrate)
        export_hf_checkpoint(model, export_dir=folder)
    if spec.repair:
        repair_names(folder)


def repair_names(folder: Path) -> None:
    """Cut ModelOpt 0.47.0's leaked placeholder out of every module name in both JSON files; tensors are right as they are.

    For architectures whose names transformers 5 rewrites on saving (nemotron_h), the exporter marks the end of a module name with
    a placeholder while it maps names back, and its own mapping rewrites the placeholder, so that it is never removed:
    `lm_head.\\u0000backbone.pt_name_sentinel`.
    """
    for name in ("config.json", "hf_quant_config.json"):
        path = folder / name
        path.write_text(path.read_text().replace(r".\u0000backbone.pt_name_sentinel", ""))


def make(name: str, out: Path) -> Path:
    """Make one checkpoint in `out`, replacing a folder of that name there only when the new one is complete."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".making-") as scratch:
        made = Path(scratch) / name
        if name in AUTHORED:
            write_authored(name, made)
        else:
            with contextlib.redirect_stdout(sys.stderr):  # ModelOpt prints its progress
                export(EXPORTS[name], made)
        target = out / name
        if target.exists():
            shutil.rmtree(target)
        return made.rename(target)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to make (all)")
    parser.add_argument("--out", type=Path, default=HERE, help="write here, replacing checkpoints of the same name (this script's folder)")
    parser.add_argument("--list", action="store_true", help="print the names and how each is made, and make nothing")
    options = parser.parse_args(arguments)
    known = {name: f"real export, {spec.recipe}" + (", names repaired" if spec.repair else "") for name, spec in EXPORTS.items()}
    known |= dict.fromkeys(AUTHORED, "authored config")
    if options.list:
        for name, how in known.items():
            print(f"{name:28} {how}")
        return 0
    try:
        for name in options.names:
            if name not in known:
                raise unknown("checkpoint", name, known)
    except UsageError as error:
        print(f"make.py: {error}", file=sys.stderr)
        return 2
    for name in options.names or known:
        folder = make(name, options.out)
        print(f"{name:28} {sum(file.stat().st_size for file in folder.iterdir()) / 1e3:7.0f} kB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
