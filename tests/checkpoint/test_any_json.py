"""Whatever JSON a stranger puts into the two files: an answer or one line, never a traceback."""

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.checkpoint import fact_rows, from_configs, geometry, module_rows, open_checkpoint
from helpers.errors import InputError

NAMES = ["model.layers.0.mlp.experts", "m.experts.1.w1", "lm_head", "*", "re:(", "re:(?i)M.*", "[", "", "\u0000", "a\nb", "model.layers.1*"]
ALGORITHMS = ["NVFP4", "nvfp4", "FP8", "MXFP8", "W4A16_NVFP4", "MIXED_PRECISION", "other"]
SCALARS = st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | st.sampled_from([*NAMES, *ALGORITHMS])
ANY = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3), max_leaves=5
)
ENTRY = st.fixed_dictionaries({"quant_algo": st.sampled_from(ALGORITHMS)}, optional={"group_size": st.integers(0, 32)})
SCHEME = st.fixed_dictionaries({"num_bits": st.sampled_from([4, 8])}, optional={"type": st.just("float"), "group_size": st.just(16)})
GROUP = st.fixed_dictionaries({"targets": st.lists(st.sampled_from(NAMES))}, optional={"weights": SCHEME, "input_activations": SCHEME})
GOOD_QUANT = {
    "quant_method": st.sampled_from(["modelopt", "fp8", "compressed-tensors"]),
    "quant_algo": st.sampled_from(ALGORITHMS),
    "quantized_layers": st.dictionaries(st.sampled_from(NAMES), ENTRY, max_size=3),
    "ignore": st.lists(st.sampled_from(NAMES), max_size=3),
    "exclude_modules": st.lists(st.sampled_from(NAMES), max_size=3),
    "config_groups": st.dictionaries(st.sampled_from("ab"), GROUP, max_size=2),
    "group_size": st.integers(0, 32),
    "kv_cache_scheme": SCHEME,
    "producer": st.fixed_dictionaries({"version": st.just("0.47.0")}),
}
# One key wrong at most: with more, the first would hide the others.
QUANT = st.builds(
    lambda good, wrong: good | wrong,
    st.fixed_dictionaries({}, optional=GOOD_QUANT),
    st.dictionaries(st.sampled_from([*GOOD_QUANT, "moe_quant_algo", "kv_cache_quant_algo"]), ANY, max_size=1),
)
SIZES = ("EXPERTS", "INTERMEDIATE", "TOP_K", "SHARED", "SHARED_INTERMEDIATE", "EXPERT_HIDDEN", "ACTIVATION", "LAYERS", "MTP_LAYERS")
RULES = ("hidden_size", "model_type", "hybrid_override_pattern", "layers_block_type", "mlp_layer_types", "moe_layer_freq", "moe_layers")
MORE_RULES = ("mlp_only_layers", "first_k_dense_replace", "decoder_sparse_step", "interleave_moe_layer_step", "enable_moe_block")
KEYS = [*RULES, *MORE_RULES, *(key for keys in SIZES for key in getattr(geometry, keys))]
GOOD_TEXT = {"num_experts": 4, "num_experts_per_tok": 1, "hidden_size": 8, "moe_intermediate_size": 8, "num_hidden_layers": 2}
CONFIG = st.builds(
    lambda wrong, nested, quant, architectures: (
        ({"text_config": GOOD_TEXT | wrong} if nested else GOOD_TEXT | wrong)
        | {"quantization_config": quant, "architectures": architectures}
    ),
    st.dictionaries(st.sampled_from(KEYS), ANY, max_size=1),
    st.booleans(),
    QUANT | QUANT | QUANT | ANY,
    st.just(["A"]) | ANY,
)
FILE = st.none() | st.fixed_dictionaries({"quantization": QUANT | QUANT | ANY}) | QUANT


@given(CONFIG, FILE)
@settings(max_examples=500, deadline=None, derandomize=True)
def test_configurations_alone(config, hf_quant):
    checkpoint = from_configs("x", config, hf_quant)
    for ask in (
        lambda: checkpoint.architecture,
        lambda: checkpoint.copies_read,
        lambda: checkpoint.layer_map.kinds(),
        lambda: [checkpoint.layer_map.algorithm(name) for name in NAMES],
        lambda: checkpoint.geometry,
        lambda: [check_one_line(finding) for finding in checkpoint.findings],
        lambda: module_rows(checkpoint) + fact_rows(checkpoint),
    ):
        try:
            ask()
        except InputError as error:
            assert "\n" not in str(error)


def check_one_line(finding):
    assert not [field for field in vars(finding).values() if isinstance(field, str) and "\n" in field]


REAL = open_checkpoint("qwen3-moe-mixed")


@given(CONFIG, FILE)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_configurations_beside_tensors_that_they_do_not_fit(config, hf_quant):
    checkpoint = type(REAL)("x", None, config, hf_quant, REAL.tensors)
    try:
        for finding in checkpoint.findings:
            check_one_line(finding)
        assert module_rows(checkpoint)
    except InputError as error:
        assert "\n" not in str(error)
