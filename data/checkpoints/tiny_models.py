"""Randomly initialised transformers models of real architectures, shrunk until an export fits in a repository.

Each function returns (model class, config). The sizes keep the shapes that decide something: hidden sizes divide by 128,
gated experts have an intermediate size that divides by 64 (what SGLang's NVFP4 scale swizzle wants on one rank, and no
longer gets at higher tensor parallelism), nemotron_h (80, not gated) and gemma4 (176) do not, as their large models do not.
Eight experts allow every expert parallelism up to 8.

A fine-tuned or requantised model keeps the fields of the published config.json that transformers itself no longer reads. Some of
them SGLang does read, and a model built from defaults would lack them, so they are given here (see the comments).
"""

from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GlmMoeDsaConfig,
    GlmMoeDsaForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY = 128
COMMON = dict(vocab_size=VOCABULARY, hidden_size=128, max_position_embeddings=512, tie_word_embeddings=False)
ATTENTION = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=32)
# Multi-head latent attention, the shape of deepseek_v3 and of glm_moe_dsa.
LATENT = dict(
    num_attention_heads=4, num_key_value_heads=4, q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32
)
DEEPSEEK_EXPERTS = dict(
    moe_intermediate_size=64,
    n_routed_experts=8,
    num_experts_per_tok=2,
    n_shared_experts=1,
    # Published fields (see above).
    moe_layer_freq=1,
    scoring_func="sigmoid",
    topk_method="noaux_tc",
)


def qwen3_5_moe():
    """Three linear-attention layers, then one of full attention; vision tower and text_config nesting as in the large models."""
    text = dict(
        **COMMON,
        **ATTENTION,
        num_hidden_layers=4,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=2,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        # Published fields (see above).
        full_attention_interval=4,
        attn_output_gate=True,
        mamba_ssm_dtype="float32",
        mlp_only_layers=[],
    )
    vision = dict(
        depth=1,
        hidden_size=16,
        intermediate_size=32,
        num_heads=2,
        out_hidden_size=128,
        patch_size=8,
        num_position_embeddings=16,
        deepstack_visual_indexes=[],
    )
    return Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeConfig(text_config=text, vision_config=vision)


def qwen3_moe(layers=2, intermediate=128):
    return Qwen3MoeForCausalLM, Qwen3MoeConfig(
        **COMMON,
        **ATTENTION,
        num_hidden_layers=layers,
        intermediate_size=256,
        moe_intermediate_size=intermediate,
        num_experts=8,
        num_experts_per_tok=2,
    )


def deepseek_v3():
    """One dense layer, then two of experts, as first_k_dense_replace 3 does in the large model."""
    return DeepseekV3ForCausalLM, DeepseekV3Config(
        **COMMON, **LATENT, **DEEPSEEK_EXPERTS, num_hidden_layers=3, intermediate_size=256, first_k_dense_replace=1, n_group=2, topk_group=1
    )


def glm_moe_dsa():
    return GlmMoeDsaForCausalLM, GlmMoeDsaConfig(
        **COMMON,
        **LATENT,
        **DEEPSEEK_EXPERTS,
        num_hidden_layers=3,
        intermediate_size=256,
        mlp_layer_types=["dense", "sparse", "sparse"],
        index_n_heads=2,
        index_head_dim=32,
        index_topk=16,
    )


def nemotron_h():
    """Mamba, expert, mamba, attention, expert. Experts have no gate: up and down only."""
    return NemotronHForCausalLM, NemotronHConfig(
        **COMMON,
        **ATTENTION,
        hybrid_override_pattern="MEM*E",
        moe_intermediate_size=80,
        moe_shared_expert_intermediate_size=160,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=16,
        n_groups=2,
        chunk_size=16,
        use_mamba_kernels=False,
    )


def minimax_m2():
    return MiniMaxM2ForCausalLM, MiniMaxM2Config(
        **COMMON,
        **ATTENTION,
        num_hidden_layers=2,
        intermediate_size=64,
        num_local_experts=8,
        num_experts_per_tok=2,
        rotary_dim=16,
        # Published fields (see above).
        scoring_func="sigmoid",
        use_routing_bias=True,
        use_qk_norm=True,
        qk_norm_type="per_layer",
    )


def llama4():
    """Experts stay fused in three-dimensional tensors on export."""
    return Llama4ForCausalLM, Llama4TextConfig(
        **COMMON,
        **ATTENTION,
        num_hidden_layers=2,
        intermediate_size=64,
        intermediate_size_mlp=256,
        num_local_experts=4,
        interleave_moe_layer_step=1,
        attention_chunk_size=256,
        no_rope_layers=[1, 0],
    )


def gpt_oss():
    """Fused experts with biases."""
    return GptOssForCausalLM, GptOssConfig(
        **COMMON,
        **ATTENTION,
        num_hidden_layers=2,
        intermediate_size=64,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"],
        swiglu_limit=7.0,  # a published field (see above)
    )


def gemma4():
    """A dense MLP beside the experts in every layer; intermediate 176 is the large model's 704 at tensor parallelism 4."""
    return Gemma4ForCausalLM, Gemma4TextConfig(
        **COMMON,
        **ATTENTION,
        global_head_dim=32,
        num_hidden_layers=2,
        intermediate_size=64,
        moe_intermediate_size=176,
        num_experts=4,
        top_k_experts=2,
        enable_moe_block=True,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"],
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=VOCABULARY,
        num_kv_shared_layers=0,
    )
