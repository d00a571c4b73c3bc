# SPDX-License-Identifier: Apache-2.0
"""Layers of multi-token prediction after those of a random model, as transformers computes them, and in files."""

import re

import random_models as models
import torch
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel

# name -> (model_type, config, layers)
MODELS = {
    "deepseek_v3": ("deepseek_v3", models.DEEPSEEK | {"n_group": 3, "topk_group": 2, "attention_bias": True}, 2),
    "glm4_moe": ("glm4_moe", models.GLM4_MOE | {"use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": True}, 1),
    "pangu_ultra_moe": ("pangu_ultra_moe", models.PANGU | {"n_shared_experts": 2, "tie_word_embeddings": True}, 1),
    "glm4_moe_lite": ("glm4_moe_lite", models.GLM4_MOE_LITE | {"q_lora_rank": None, "qk_nope_head_dim": 10}, 1),
}


def build(name, seed=0):
    """A model and its layers of multi-token prediction."""
    model_type, config, layers = MODELS[name]
    model = models.build(model_type, config, seed)
    model.config.num_mtp_layers = layers
    model.config.mtp_mlp_layer_types = ["sparse"] * layers if hasattr(model.config, "mlp_layer_types") else None
    mtp = MtpModel(model, layers).float()
    models.fill(mtp.layers, seed + 1)
    return model, mtp


def cross_entropy(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def losses(model, mtp, input_ids, labels):
    """Of the model, and the mean of its layers of multi-token prediction. A row of input_ids is a document."""
    hidden = model.get_decoder()(input_ids).last_hidden_state
    loss = cross_entropy(model.lm_head(hidden)[:, :-1], labels[:, 1:])
    of_layers = []
    for depth in range(1, mtp.num_mtp_layers + 1):
        length = input_ids.shape[1] - depth
        positions = torch.arange(length)[None]
        hidden = mtp.forward_layer(depth - 1, hidden[:, :length], positions, None, input_ids=input_ids[:, depth:])
        of_layers.append(cross_entropy(mtp._project_to_logits(hidden)[:, :-1], labels[:, depth + 1 :]))
    return loss, sum(of_layers) / len(of_layers)


def margins(model, mtp, input_ids):
    """For every row of tokens the smallest margin of the layers' routers, as models.router_margins has it."""
    found = []

    def measure(gate, arguments, output):
        logits = output[0].view(len(input_ids), -1, gate.num_experts)
        found.append(models.choice_margins(model.config, logits, gate.e_score_correction_bias).min(dim=1).values)

    hooks = [module.register_forward_hook(measure) for module in mtp.layers.modules() if hasattr(module, "num_group")]
    with torch.no_grad():
        losses(model, mtp, input_ids, input_ids)
    for hook in hooks:
        hook.remove()
    assert len(found) == mtp.num_mtp_layers
    return torch.stack(found).min(dim=0).values


def in_files(tensors, num_layers, fused=False):
    """Tensors of mtp.layers by the names that files have for them."""
    found = {}
    for name, tensor in tensors.items():
        layer, rest = re.fullmatch(r"(\d+)\.(.*)", name).groups()
        rest = rest.removeprefix("mtp_block.")
        if rest.startswith("post_norm."):
            rest = "shared_head.norm." + rest.removeprefix("post_norm.")
        place = f"model.layers.{num_layers + int(layer)}."
        if fused or "mlp.experts." not in rest:
            found[place + rest] = tensor
            continue
        block, part = rest.rsplit(".", 1)
        for expert, matrix in enumerate(tensor):
            parts = zip(("gate_proj", "up_proj"), matrix.chunk(2)) if part == "gate_up_proj" else [(part, matrix)]
            for its_name, its in parts:
                found[f"{place}{block}.{expert}.{its_name}.weight"] = its.contiguous()
    return found


def save(model, mtp, directory, fused=False, **more):
    model.save_pretrained(directory, **({"save_original_format": False} if fused else {}))
    file = directory / "model.safetensors"
    layers = in_files(mtp.layers.state_dict(), model.config.num_hidden_layers, fused)
    save_file({n: t.contiguous() for n, t in (load_file(file) | layers | more).items()}, file, {"format": "pt"})
