# SPDX-License-Identifier: Apache-2.0
"""Writes the golden rope frequencies of tests/unit/spec from transformers' own functions.

python tests/support/make_rope_golden.py > tests/unit/spec/rope_golden.txt
"""
import torch
from transformers import MixtralConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.mixtral.modeling_mixtral import MixtralRotaryEmbedding

THETA = {"rope_theta": 10000.0}
YARN = {**THETA, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {
    "rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}
# name, head_dim, max_position_embeddings, longest sequence, rope_parameters
CASES = [
    ("default", 64, 4096, 128, {**THETA, "rope_type": "default"}),
    ("default_large_theta", 128, 32768, 128, {"rope_theta": 1e6, "rope_type": "default"}),
    ("default_odd_width", 18, 512, 16, {"rope_theta": 5000.5, "rope_type": "default"}),
    ("linear", 64, 4096, 128, {**THETA, "rope_type": "linear", "factor": 2.5}),
    ("dynamic_short", 64, 2048, 128, {**THETA, "rope_type": "dynamic", "factor": 2.0}),
    ("dynamic_at_limit", 64, 2048, 2048, {**THETA, "rope_type": "dynamic", "factor": 2.0}),
    ("dynamic_long", 64, 2048, 6000, {**THETA, "rope_type": "dynamic", "factor": 2.0}),
    ("llama3", 128, 131072, 128, LLAMA3),
    ("llama3_narrow", 16, 1024, 64,
     {**LLAMA3, "rope_theta": 10000.0, "original_max_position_embeddings": 256, "factor": 4.0}),
    ("yarn", 128, 8192, 128, YARN),
    ("yarn_not_truncated", 128, 8192, 128, {**YARN, "truncate": False}),
    ("yarn_mscale", 64, 8192, 128, {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8}),
    ("yarn_mscale_alone", 64, 8192, 128, {**YARN, "mscale": 1.0}),
    ("yarn_attention_factor", 64, 8192, 128, {**YARN, "attention_factor": 0.75}),
    ("yarn_betas", 64, 8192, 128, {**YARN, "beta_fast": 16.0, "beta_slow": 2.0}),
    ("yarn_narrow", 8, 128, 64, {**YARN, "factor": 2.0, "original_max_position_embeddings": 64}),
]
FIELDS = {
    "rope_theta": "theta", "factor": "factor",
    "original_max_position_embeddings": "original_max_position",
    "attention_factor": "attention_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow",
    "mscale": "mscale", "mscale_all_dim": "mscale_all_dim", "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor", "truncate": "truncate",
}


def attribute(value):
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def main():
    print("# Written by tests/support/make_rope_golden.py.")
    for name, head_dim, max_position, length, parameters in CASES:
        config = MixtralConfig(
            hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim,
            max_position_embeddings=max_position, rope_parameters=dict(parameters))
        variant = parameters["rope_type"]
        compute = ROPE_INIT_FUNCTIONS.get(variant, MixtralRotaryEmbedding.compute_default_rope_parameters)
        inverse, scale = compute(config, device=torch.device("cpu"), seq_len=length)
        words = [f"case {name}", f"length={length}", f'rope_variant="{variant}"',
                 f"rotary_dim={head_dim}", f"max_position={max_position}"]
        words += [f"{FIELDS[key]}={attribute(value)}" for key, value in parameters.items() if key in FIELDS]
        print(" ".join(words))
        print("scale", f"{scale:.9g}")
        print("inverse", *(f"{value:.9g}" for value in inverse.tolist()))


if __name__ == "__main__":
    main()
