# SPDX-License-Identifier: Apache-2.0
"""Small random models of every family, saved as transformers saves them, and tokens to run through them."""

import pangu_ultra_moe
import torch
import transformers

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

COMMON = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": None,
    "bos_token_id": None,
}
MIXTRAL = COMMON | {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN3 = COMMON | {"head_dim": 8}
QWEN2_MOE = COMMON | {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 36,
}
DOTS1 = COMMON | {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "sliding_window": None,
}
QWEN3_MOE = QWEN3 | {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
DEEPSEEK = COMMON | {
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
GLM4_MOE = DOTS1 | {"n_group": 2, "topk_group": 1, "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}}
del GLM4_MOE["sliding_window"]
SOLAR_OPEN = COMMON | {
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_group": 3,
    "topk_group": 2,
    "head_dim": 8,
}
del SOLAR_OPEN["intermediate_size"]
GLM4_MOE_LITE = DEEPSEEK | {"routed_scaling_factor": 1.8}
del GLM4_MOE_LITE["first_k_dense_replace"]
PANGU = DEEPSEEK | {"rope_parameters": {"rope_theta": 25600000.0, "rope_type": "default"}}
MINIMAX_M2 = MIXTRAL | {"num_local_experts": 6, "head_dim": 8}
HUNYUAN = COMMON | {"num_experts": 6, "moe_topk": 2, "head_dim": 8, "pad_token_id": None}
GPT_OSS = COMMON | {"head_dim": 8, "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 5}
ERNIE = COMMON | {
    "moe_num_experts": 6,
    "moe_k": 3,
    "moe_intermediate_size": 24,
    "moe_num_shared_experts": 1,
    "pad_token_id": None,
}
OLMO2 = COMMON | {"pad_token_id": None}
GPT2 = {
    "vocab_size": 61,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
OLMOE = OLMO2 | {"num_experts": 6, "num_experts_per_tok": 3}
AUX = {"output_router_logits": True, "router_aux_loss_coef": 0.3}
ALL_OF_FIVE = {"num_experts": 5, "num_experts_per_tok": 5}
NARROW = {"hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 3}
ODD_ATTENTION = {"num_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": True}
GRANITE = MIXTRAL | {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 3.0,
}


def rope(rope_type, **parameters):
    return {"rope_type": rope_type, "rope_theta": 5000.0, **parameters}


# name -> (model_type, config). Each family has a plain one and odd ones.
MODELS = {
    "dots1_plain": ("dots1", DOTS1 | {"norm_topk_prob": True, "routed_scaling_factor": 2.5}),
    "dots1_groups": (
        "dots1",
        DOTS1
        | {
            "n_routed_experts": 6,
            "n_group": 3,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "norm_topk_prob": True,
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "max_window_layers": 1,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "dots1_bare_scores": (
        "dots1",
        DOTS1
        | {
            "num_key_value_heads": 1,
            "routed_scaling_factor": 0.7,
            "num_experts_per_tok": 1,
            "head_dim": 12,
            "rope_parameters": rope("yarn", factor=2.0, original_max_position_embeddings=32),
        },
    ),
    "llama_plain": ("llama", COMMON),
    "llama_odd": (
        "llama",
        COMMON
        | {"attention_bias": True, "mlp_bias": True, "head_dim": 10, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    ),
    "llama_llama3": (
        "llama",
        COMMON
        | {
            "num_key_value_heads": 1,
            "rope_parameters": rope(
                "llama3",
                factor=4.0,
                low_freq_factor=1.0,
                high_freq_factor=3.0,
                original_max_position_embeddings=16,
            ),
        },
    ),
    "llama_dynamic": (
        "llama",
        COMMON | {"max_position_embeddings": 16, "rope_parameters": rope("dynamic", factor=2.0)},
    ),
    "llama_padding": ("llama", COMMON | {"pad_token_id": 5}),
    "llama_gelu": ("llama", COMMON | {"hidden_act": "gelu"}),
    "mistral_window": ("mistral", COMMON | {"sliding_window": 5, "hidden_size": 36, "head_dim": 12}),
    "mistral_linear": (
        "mistral",
        COMMON | {"sliding_window": None, "rope_parameters": rope("linear", factor=3.0), "tie_word_embeddings": True},
    ),
    "qwen2_plain": ("qwen2", COMMON),
    "qwen2_odd": (
        "qwen2",
        COMMON
        | {
            "num_key_value_heads": 1,
            "use_sliding_window": True,
            "sliding_window": 5,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "tie_word_embeddings": True,
            "rope_parameters": rope("yarn", factor=2.0, original_max_position_embeddings=32),
        },
    ),
    "qwen2_moe_plain": ("qwen2_moe", QWEN2_MOE | {"shared_expert_intermediate_size": 48}),
    "qwen2_moe_odd": (
        "qwen2_moe",
        QWEN2_MOE
        | {
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "shared_expert_intermediate_size": 20,
            "num_key_value_heads": 1,
            "num_hidden_layers": 4,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 3,
            "mlp_only_layers": [1],
            "tie_word_embeddings": True,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.3,
        },
    ),
    "qwen2_moe_sparse_step": (
        "qwen2_moe",
        QWEN2_MOE
        | {
            "qkv_bias": False,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "hidden_size": 36,
            "head_dim": 10,
            "num_experts": 3,
            "num_experts_per_tok": 1,
            "use_sliding_window": True,
            "sliding_window": 7,
            "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": rope("yarn", factor=2.0, original_max_position_embeddings=32),
        },
    ),
    "qwen2_moe_all_experts": (
        "qwen2_moe",
        QWEN2_MOE | {"num_experts_per_tok": 6, "hidden_act": "gelu", "output_router_logits": True},
    ),
    "qwen3_plain": ("qwen3", QWEN3),
    "qwen3_odd": (
        "qwen3",
        QWEN3
        | {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 1,
            "num_hidden_layers": 3,
            "tie_word_embeddings": True,
            "rope_parameters": rope("yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=16.0),
        },
    ),
    "mixtral_plain": ("mixtral", MIXTRAL | {"output_router_logits": True, "router_aux_loss_coef": 0.3}),
    "mixtral_odd": (
        "mixtral",
        MIXTRAL
        | {
            "sliding_window": 6,
            "tie_word_embeddings": True,
            "num_local_experts": 5,
            "num_experts_per_tok": 3,
            "head_dim": 12,
            "rope_parameters": rope("yarn", factor=2.0, original_max_position_embeddings=32, attention_factor=1.2),
        },
    ),
    "mixtral_gelu_tanh": ("mixtral", MIXTRAL | {"hidden_act": "gelu_pytorch_tanh"}),
    "mixtral_relu2": ("mixtral", MIXTRAL | {"hidden_act": "relu2"}),
    "olmo2_plain": ("olmo2", OLMO2),
    "olmo2_odd": ("olmo2", OLMO2 | ODD_ATTENTION | {"head_dim": 10, "rope_parameters": rope("linear", factor=3.0)}),
    "olmo2_padding": ("olmo2", OLMO2 | NARROW | {"pad_token_id": 5, "hidden_act": "gelu", "rms_norm_eps": 1e-2}),
    "deepseek_v2_plain": ("deepseek_v2", DEEPSEEK | {"n_shared_experts": 2}),
    "deepseek_v2_groups": (
        "deepseek_v2",
        DEEPSEEK
        | {
            "q_lora_rank": None,
            "topk_method": "group_limited_greedy",
            "n_group": 3,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": rope(
                "yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=0.9
            ),
        },
    ),
    "deepseek_v3_plain": ("deepseek_v3", DEEPSEEK | {"n_group": 3, "topk_group": 2}),
    "deepseek_v3_odd": (
        "deepseek_v3",
        DEEPSEEK
        | {
            "n_group": 2,
            "topk_group": 1,
            "n_shared_experts": 2,
            "attention_bias": True,
            "rope_interleave": False,
            "norm_topk_prob": False,
            "qk_nope_head_dim": 10,
            "v_head_dim": 6,
            "rope_parameters": rope("linear", factor=3.0, mscale_all_dim=1.2),
        },
    ),
    "deepseek_v3_no_latent_query": (
        "deepseek_v3",
        DEEPSEEK
        | {
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 1,
            "norm_topk_prob": False,
            "first_k_dense_replace": 0,
            "tie_word_embeddings": True,
        },
    ),
    "glm4_moe_plain": ("glm4_moe", GLM4_MOE),
    "glm4_moe_odd": (
        "glm4_moe",
        GLM4_MOE
        | {
            "attention_bias": True,
            "use_qk_norm": True,
            "head_dim": 12,
            "partial_rotary_factor": 0.34,
            "n_shared_experts": 2,
            "routed_scaling_factor": 1.6,
        },
    ),
    "glm4_moe_bare": (
        "glm4_moe",
        GLM4_MOE
        | {"n_group": 1, "num_experts_per_tok": 1, "norm_topk_prob": False, "tie_word_embeddings": True, "first_k_dense_replace": 0},
    ),
    "gpt2_plain": ("gpt2", GPT2),
    # Odd heads, and a scale of its own in each layer.
    "gpt2_odd": (
        "gpt2",
        GPT2
        | {
            "n_embd": 35,
            "n_head": 5,
            "n_layer": 3,
            "n_inner": 45,
            "n_positions": 40,
            "activation_function": "gelu",
            "layer_norm_epsilon": 1e-2,
            "scale_attn_by_inverse_layer_idx": True,
            "tie_word_embeddings": False,
        },
    ),
    "gpt2_unscaled": (
        "gpt2",
        GPT2
        | {
            "n_embd": 36,
            "n_head": 1,
            "n_inner": 17,
            "n_positions": 31,
            "pad_token_id": 5,
            "activation_function": "gelu_pytorch_tanh",
            "scale_attn_weights": False,
            "scale_attn_by_inverse_layer_idx": True,
            "reorder_and_upcast_attn": True,
        },
    ),
    "solar_open_odd": (
        "solar_open",
        SOLAR_OPEN
        | {
            "num_key_value_heads": 1,
            "head_dim": 12,
            "attention_bias": True,
            "n_shared_experts": 2,
            "routed_scaling_factor": 2.5,
            "rope_parameters": rope("yarn", factor=2.0, original_max_position_embeddings=32),
        },
    ),
    "solar_open_bare": (
        "solar_open",
        SOLAR_OPEN
        | NARROW
        | {
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 0.7,
            "tie_word_embeddings": True,
            "pad_token_id": 5,
        },
    ),
    "solar_open_all_experts": (
        "solar_open",
        SOLAR_OPEN
        | {
            "n_routed_experts": 5,
            "num_experts_per_tok": 5,
            "n_group": 1,
            "topk_group": 1,
            "hidden_act": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-3,
            "rope_parameters": rope("linear", factor=3.0),
        },
    ),
    "glm4_moe_lite_plain": ("glm4_moe_lite", GLM4_MOE_LITE),
    "glm4_moe_lite_odd": (
        "glm4_moe_lite",
        GLM4_MOE_LITE
        | {
            "num_hidden_layers": 3,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "n_group": 3,
            "topk_group": 2,
            "n_shared_experts": 2,
            "attention_bias": True,
            "rope_interleave": False,
            "qk_nope_head_dim": 10,
            "v_head_dim": 6,
            "rope_parameters": rope("yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=0.9),
        },
    ),
    "glm4_moe_lite_one": (
        "glm4_moe_lite",
        GLM4_MOE_LITE
        | {
            "q_lora_rank": None,
            "num_experts_per_tok": 1,
            "norm_topk_prob": False,
            "tie_word_embeddings": True,
            "mlp_layer_types": ["sparse", "sparse"],
        },
    ),
    "pangu_ultra_moe_plain": ("pangu_ultra_moe", PANGU),
    "pangu_ultra_moe_odd": (
        "pangu_ultra_moe",
        PANGU
        | {
            "q_lora_rank": None,
            "qk_nope_head_dim": 10,
            "v_head_dim": 6,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "norm_topk_prob": False,
            "routed_scaling_factor": 0.7,
            "tie_word_embeddings": True,
        },
    ),
    "pangu_ultra_moe_all_experts": (
        "pangu_ultra_moe",
        PANGU | {"num_experts_per_tok": 6, "first_k_dense_replace": 0, "hidden_act": "gelu", "pad_token_id": 5},
    ),
    "minimax_m2_plain": ("minimax_m2", MINIMAX_M2),
    "minimax_m2_odd": (
        "minimax_m2",
        MINIMAX_M2 | AUX | {"num_key_value_heads": 1, "head_dim": 12, "rotary_dim": 4, "num_experts_per_tok": 5},
    ),
    "minimax_m2_tied": (
        "minimax_m2",
        MINIMAX_M2 | NARROW | {"head_dim": 10, "rotary_dim": 6, "tie_word_embeddings": True, "pad_token_id": 5},
    ),
    "hunyuan_v1_moe_plain": ("hunyuan_v1_moe", HUNYUAN),
    "hunyuan_v1_moe_odd": (
        "hunyuan_v1_moe",
        HUNYUAN
        | ODD_ATTENTION
        | {
            "num_experts": 5,
            "moe_topk": 3,
            "head_dim": 12,
            "rope_parameters": rope("dynamic", factor=1.0, alpha=50.0),
        },
    ),
    # A context that is shorter than the tokens, so that a rope without alpha depends on their number.
    "hunyuan_v1_moe_all_experts": (
        "hunyuan_v1_moe",
        HUNYUAN
        | NARROW
        | {
            "num_experts": 4,
            "moe_topk": 4,
            "hidden_act": "gelu",
            "pad_token_id": 5,
            "max_position_embeddings": 16,
            "rope_parameters": rope("dynamic", factor=2.0),
        },
    ),
    "ernie4_5_moe_plain": ("ernie4_5_moe", ERNIE | AUX),
    "ernie4_5_moe_odd": (
        "ernie4_5_moe",
        ERNIE
        | AUX
        | {
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "head_dim": 12,
            "tie_word_embeddings": False,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 2,
            "moe_layer_interval": 2,
            "moe_num_shared_experts": 2,
            "moe_norm_min": 0.6,
            "rope_parameters": rope("linear", factor=3.0),
        },
    ),
    "ernie4_5_moe_one": (
        "ernie4_5_moe",
        ERNIE
        | NARROW
        | {
            "moe_k": 1,
            "moe_num_shared_experts": 0,
            "moe_layer_start_index": 0,
            "moe_norm_min": 0.9,
            "pad_token_id": 5,
        },
    ),
    "gpt_oss_plain": ("gpt_oss", GPT_OSS),
    "gpt_oss_odd": (
        "gpt_oss",
        GPT_OSS
        | AUX
        | {
            "num_key_value_heads": 1,
            "head_dim": 12,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "swiglu_limit": 0.8,
            "swiglu_alpha": 1.3,
            "tie_word_embeddings": True,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": rope("yarn", factor=4.0, original_max_position_embeddings=16, truncate=False),
        },
    ),
    "gpt_oss_all_experts": (
        "gpt_oss",
        GPT_OSS
        | NARROW
        | {
            "attention_bias": False,
            "num_local_experts": 4,
            "num_experts_per_tok": 4,
            "pad_token_id": 5,
            "sliding_window": 30,
            "swiglu_limit": 1.5,
            "rope_parameters": rope("default"),
        },
    ),
    "gpt_oss_one": ("gpt_oss", GPT_OSS | AUX | {"num_experts_per_tok": 1, "sliding_window": 1, "swiglu_limit": 0.4}),
    "ernie4_5_moe_biased": (
        "ernie4_5_moe",
        ERNIE | {"use_bias": True, "num_hidden_layers": 3, "moe_num_experts": 5, "moe_k": 2, "hidden_act": "gelu"},
    ),
    "olmoe_plain": ("olmoe", OLMOE | AUX),
    "olmoe_odd": ("olmoe", OLMOE | ODD_ATTENTION | ALL_OF_FIVE | {"norm_topk_prob": True, "clip_qkv": 3.0}),
    "olmoe_one": (
        "olmoe",
        OLMOE
        | NARROW
        | {
            "num_experts_per_tok": 1,
            "clip_qkv": 3.5,
            "pad_token_id": 5,
            "rope_parameters": rope("yarn", factor=2.0, original_max_position_embeddings=32),
        },
    ),
    "flex_olmo_plain": ("flex_olmo", OLMOE | AUX),
    "flex_olmo_odd": ("flex_olmo", OLMOE | ODD_ATTENTION | ALL_OF_FIVE | {"norm_topk_prob": True, "head_dim": 10}),
    # The norm after the block takes the weight of a single expert away: the router has the auxiliary loss alone.
    "flex_olmo_one": (
        "flex_olmo",
        OLMOE
        | NARROW
        | AUX
        | {"num_experts_per_tok": 1, "pad_token_id": 5, "rope_parameters": rope("dynamic", factor=2.0)},
    ),
    "granitemoe_plain": ("granitemoe", GRANITE),
    "granitemoe_odd": (
        "granitemoe",
        MIXTRAL | ODD_ATTENTION | AUX | {"num_local_experts": 5, "num_experts_per_tok": 5, "head_dim": 12},
    ),
    "granitemoe_one": (
        "granitemoe",
        GRANITE
        | NARROW
        | AUX
        | {
            "num_experts_per_tok": 1,
            "rope_parameters": rope("yarn", factor=2.0, original_max_position_embeddings=32),
        },
    ),
    "granitemoeshared_plain": ("granitemoeshared", GRANITE | AUX | {"shared_intermediate_size": 24}),
    "granitemoeshared_odd": (
        "granitemoeshared",
        GRANITE
        | ODD_ATTENTION
        | {"num_local_experts": 5, "num_experts_per_tok": 5, "shared_intermediate_size": 7, "hidden_act": "gelu"},
    ),
    "granitemoeshared_none": ("granitemoeshared", GRANITE | NARROW | {"pad_token_id": 5}),
    "qwen3_moe_plain": ("qwen3_moe", QWEN3_MOE | {"norm_topk_prob": True}),
    "qwen3_moe_odd": (
        "qwen3_moe",
        QWEN3_MOE
        | {
            "norm_topk_prob": False,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
            "attention_bias": True,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 7,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.2,
        },
    ),
}


# Run by the slow suite only.
SLOW = {
    "gpt_oss_all_experts",
    "gpt_oss_one",
    "gpt_oss_plain",
    "gpt2_plain",
    "gpt2_unscaled",
    "ernie4_5_moe_one",
    "ernie4_5_moe_plain",
    "hunyuan_v1_moe_all_experts",
    "hunyuan_v1_moe_plain",
    "glm4_moe_bare",
    "glm4_moe_lite_one",
    "glm4_moe_lite_plain",
    "pangu_ultra_moe_all_experts",
    "pangu_ultra_moe_plain",
    "glm4_moe_plain",
    "solar_open_all_experts",
    "solar_open_bare",
    "minimax_m2_plain",
    "minimax_m2_tied",
    "dots1_bare_scores",
    "dots1_plain",
    "deepseek_v2_plain",
    "deepseek_v3_no_latent_query",
    "deepseek_v3_plain",
    "flex_olmo_one",
    "flex_olmo_plain",
    "granitemoe_one",
    "granitemoe_plain",
    "granitemoeshared_none",
    "granitemoeshared_plain",
    "olmo2_padding",
    "olmo2_plain",
    "olmoe_one",
    "olmoe_plain",
}


def build(model_type, config, seed=0, eager=True):
    """A model in fp32 whose every parameter matters: weights well above the usual start, norms and biases random."""
    kinds = {"attn_implementation": "eager", "experts_implementation": "eager"} if eager else {}
    if model_type == "pangu_ultra_moe":
        return fill(pangu_ultra_moe.build(config, **kinds).float(), seed)
    made = transformers.AutoConfig.for_model(model_type, **config)
    return fill(transformers.AutoModelForCausalLM.from_config(made, **kinds).float(), seed)


def fill(model, seed):
    """Such values for every parameter of a module."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight") or name.split(".")[-2].startswith("ln_"):
                parameter.copy_(1 + 0.2 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(noise * (1.5 if "gate.w" in name or "router" in name else 1.0) / parameter.shape[-1] ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
    return model


def choice_values(config, logits, bias):
    """What a router compares, per expert, in units of logits: a score moves at most a quarter as far."""
    if bias is None:
        return logits
    scores = logits.softmax(-1) if config.model_type == "ernie4_5_moe" else logits.sigmoid()
    return 4 * (scores + bias)


def group_values(config, values, bias):
    """The values of groups of experts, and `values` with those outside the chosen groups barred; nothing without groups."""
    groups, chosen = getattr(config, "n_group", None) or 1, getattr(config, "topk_group", None) or 1
    if groups == chosen or getattr(config, "topk_method", "") == "greedy":
        return None, values
    grouped = values.unflatten(-1, (groups, -1))
    of_groups = grouped.topk(min(2, grouped.shape[-1])).values.sum(-1) / 2 if bias is not None else grouped.max(-1).values
    barred = torch.ones_like(of_groups).scatter(-1, of_groups.topk(chosen).indices, 0).bool()
    return of_groups, grouped.masked_fill(barred[..., None], float("-inf")).flatten(-2)


def gap_behind(values, k):
    """The distance between the k-th largest value and the next; infinite where there is none."""
    ordered = values.sort(dim=-1, descending=True).values
    if k == ordered.shape[-1]:
        return torch.full(ordered.shape[:-1], float("inf"))
    return ordered[..., k - 1] - ordered[..., k]


def choice_margins(config, logits, bias):
    """For every token the relative distance between the last chosen expert, or group of experts, and the next."""
    of_groups, values = group_values(config, choice_values(config, logits, bias), bias)
    gap = gap_behind(values, config.num_experts_per_tok)
    if bias is not None and getattr(config, "output_router_logits", False):
        # The auxiliary loss counts the best of the bare scores.
        gap = torch.minimum(gap, gap_behind(logits, config.num_experts_per_tok))
    if of_groups is not None:
        gap = torch.minimum(gap, gap_behind(of_groups, config.topk_group))
    return gap / logits.norm(dim=-1)


def router_margins(model, input_ids):
    """For every row of tokens the smallest relative distance between the last chosen expert, or group of experts, and the
    next; infinite for dense models."""
    config = model.config
    with torch.no_grad():
        outputs = model(input_ids, **({"output_router_logits": True} if is_moe(config) else {}))
    margins = torch.full((input_ids.shape[0],), float("inf"))
    layers = getattr(outputs, "router_logits", None) or ()
    biases = [m.e_score_correction_bias for m in model.modules() if hasattr(m, "e_score_correction_bias")]
    for layer, bias in zip(layers, biases or [None] * len(layers), strict=True):
        logits = layer.view(*input_ids.shape, -1).float()
        margins = torch.minimum(margins, choice_margins(config, logits, bias).flatten(1).min(dim=1).values)
    return margins


def clip_margins(model, input_ids):
    """For every row of tokens the smallest relative distance of a query, key or value from the limit that clips it;
    infinite for models without a limit. Beyond the limit there is no gradient."""
    margins = torch.full((input_ids.shape[0],), float("inf"))
    limit = getattr(model.config, "clip_qkv", None)
    if limit is None:
        return margins

    def measure(module, arguments, output):
        distance = ((output.abs() - limit).abs() / limit).flatten(1).min(dim=1).values
        margins.copy_(torch.minimum(margins, distance))

    clipped = [m for name, m in model.named_modules() if name.endswith(("q_norm", "k_norm", "v_proj"))]
    hooks = [module.register_forward_hook(measure) for module in clipped]
    with torch.no_grad():
        model(input_ids)
    for hook in hooks:
        hook.remove()
    return margins


def is_moe(config):
    return hasattr(config, "num_experts_per_tok")


def make_tokens(model, num_rows, length, seed=1, margin=0.0, padding_id=None, more_margins=None):
    """input_ids and labels [num_rows, length], int64, some labels -100. Rows are chosen among many so that decisions of
    routers and limits have `margin`: two implementations must agree on them before anything else can be compared.
    `more_margins` gives those of other decisions, for every row of tokens."""
    generator = torch.Generator().manual_seed(seed)
    candidates = torch.randint(0, model.config.vocab_size, (200 * num_rows, length), generator=generator)
    if padding_id is not None:
        candidates[:, 3] = padding_id
    margins = torch.minimum(router_margins(model, candidates), clip_margins(model, candidates))
    if more_margins is not None:
        margins = torch.minimum(margins, more_margins(candidates))
    best = margins.argsort(descending=True, stable=True)[:num_rows].sort().values
    if margins[best].min() < margin:
        raise SystemExit(f"no {num_rows} rows with a margin of {margin}: best {margins.max():.4f}")
    input_ids = candidates[best]
    labels = input_ids.clone()
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = -100
    return input_ids, labels
