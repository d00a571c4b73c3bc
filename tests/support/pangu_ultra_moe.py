# SPDX-License-Identifier: Apache-2.0
"""pangu_ultra_moe, which transformers does not have: its deepseek_v3 with norms around blocks, and no groups or correction bias."""

import json
import pathlib

import torch
from transformers import AutoConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3ForCausalLM, DeepseekV3RMSNorm

# What config.json calls the fields of deepseek_v3.
FIELDS = {
    "q_lora_rank": "attention_q_lora_dim",
    "kv_lora_rank": "attention_kv_lora_dim",
    "qk_nope_head_dim": "attention_qk_dim",
    "qk_rope_head_dim": "attention_qk_rope_dim",
    "v_head_dim": "attention_v_dim",
    "n_routed_experts": "num_routed_experts",
    "n_shared_experts": "num_shared_experts",
    "first_k_dense_replace": "num_dense_layers",
}
SAME = (
    "vocab_size hidden_size intermediate_size moe_intermediate_size num_hidden_layers num_attention_heads num_key_value_heads"
    " routed_scaling_factor num_experts_per_tok norm_topk_prob hidden_act max_position_embeddings rms_norm_eps pad_token_id"
    " bos_token_id eos_token_id tie_word_embeddings initializer_range dtype"
).split()
# Those of the class that the published files bring along.
DEFAULTS = {
    "model_type": "pangu_ultra_moe",
    "vocab_size": 153600,
    "hidden_size": 7680,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_mtp_layers": 1,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_shared_experts": 1,
    "num_routed_experts": 256,
    "routed_scaling_factor": 2.5,
    "attention_kv_lora_dim": 512,
    "attention_q_lora_dim": 1536,
    "attention_qk_rope_dim": 64,
    "attention_v_dim": 128,
    "attention_qk_dim": 128,
    "num_experts_per_tok": 8,
    "num_dense_layers": 3,
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-5,
    "use_cache": True,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "rope_theta": 25600000,
    "attention_dropout": 0.0,
}


class Layer(DeepseekV3DecoderLayer):
    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.make_pangu(config)

    def make_pangu(self, config):
        for name in ("pre_mlp_layernorm", "post_mlp_layernorm"):
            setattr(self, name, DeepseekV3RMSNorm(config.hidden_size, config.rms_norm_eps))
        gate = getattr(self.mlp, "gate", None)
        if gate is not None:  # a bias of 0 that is no part of the model
            del gate.e_score_correction_bias
            gate.e_score_correction_bias = torch.zeros(config.n_routed_experts)

    def forward(self, hidden_states, **kwargs):
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + self.post_attention_layernorm(attended)
        return hidden_states + self.post_mlp_layernorm(self.mlp(self.pre_mlp_layernorm(hidden_states)))


class PanguUltraMoe(DeepseekV3ForCausalLM):
    def add_norms(self):
        for layer in self.model.layers:
            layer.__class__ = Layer
            layer.make_pangu(self.config)
        return self

    def save_pretrained(self, directory, **kwargs):
        super().save_pretrained(directory, **kwargs)
        path = pathlib.Path(directory) / "config.json"
        saved = json.loads(path.read_text())
        config = {name: saved[name] for name in SAME if name in saved}
        config |= {theirs: getattr(self.config, ours) for ours, theirs in FIELDS.items()}
        config |= {"rope_theta": self.config.rope_parameters["rope_theta"], "sandwich_norm": True}
        config |= {"num_mtp_layers": self.config.num_mtp_layers}
        path.write_text(json.dumps(config | {"model_type": "pangu_ultra_moe", "architectures": ["PanguUltraMoEForCausalLM"]}))


def build(config, **kinds):
    """From fields of deepseek_v3."""
    made = AutoConfig.for_model("deepseek_v3", **{"rms_norm_eps": 1e-5, "n_group": 1, "topk_group": 1} | config)
    return PanguUltraMoe._from_config(made, **kinds).add_norms()
