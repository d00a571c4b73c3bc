# SPDX-License-Identifier: Apache-2.0
"""Tiny models with their losses and gradients from torch, for machines without torch.

usage: make_model_goldens.py OUTPUT_DIRECTORY

Writes NAME/{config.json,model.safetensors,tokens.safetensors,expected.txt} for each model. A line of expected.txt is
`TENSOR NORM PROJECTION`: the 2-norm of the gradient, and its product with cos(0), cos(1), ... in row-major order, which
tells a permuted or transposed gradient from the right one. `loss` and `logits` are lines like the others.
"""

import pathlib
import re
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
import parity_models
import random_models

TINY = {
    "vocab_size": 13,
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": 32,
    "bos_token_id": None,
    "eos_token_id": None,
}
GOLDENS = {
    "llama": (
        "llama",
        TINY
        | {
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": random_models.rope("dynamic", factor=2.0),
            "max_position_embeddings": 8,
        },
    ),
    "mixtral": (
        "mixtral",
        TINY
        | {
            "num_local_experts": 3,
            "num_experts_per_tok": 2,
            "sliding_window": 4,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.3,
        },
    ),
    "qwen3_moe": (
        "qwen3_moe",
        TINY
        | {
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 4,
            "mlp_only_layers": [0],
            "rope_parameters": random_models.rope("yarn", factor=2.0, original_max_position_embeddings=16),
        },
    ),
}
FUSED = {"qwen3_moe"}


def line(name, values):
    flat = values.double().flatten()
    projection = flat @ torch.arange(len(flat), dtype=torch.float64).cos()
    return f"{name} {flat.norm().item():.9e} {projection.item():.9e}"


def write_golden(directory, name, model_type, config):
    shutil.rmtree(directory, ignore_errors=True)
    model = random_models.build(model_type, config, seed=11)
    model.save_pretrained(directory, save_original_format=name not in FUSED)
    for surplus in directory.glob("generation_config.json"):
        surplus.unlink()
    config_file = directory / "config.json"
    # The version of the writer says nothing about the model.
    config_file.write_text(re.sub(r'\s*"transformers_version": "[^"]*",', "", config_file.read_text()))
    input_ids, labels = random_models.make_tokens(model, 2, 12, seed=12, margin=0.05)
    save_file({"input_ids": input_ids, "labels": labels}, directory / "tokens.safetensors")
    loss, logits, gradients = parity_models.run_torch(model, input_ids, labels, autocast=False)
    lines = [line("loss", loss), line("logits", logits)]
    for tensor in sorted(load_file(directory / "model.safetensors")):
        lines.append(line(f"grad.{tensor}", parity_models.gradient_of_file_tensor(tensor, gradients)))
    (directory / "expected.txt").write_text("\n".join(lines) + "\n")


def main():
    output = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    for name, (model_type, config) in GOLDENS.items():
        write_golden(output / name, name, model_type, config)


if __name__ == "__main__":
    main()
