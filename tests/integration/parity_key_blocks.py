# SPDX-License-Identifier: Apache-2.0
"""Block-sparse attention against torch: logits and every gradient of `anabatic gradients` with a pattern against
transformers with SDPA and a boolean mask, and logits against its flex_attention. Rules and masks by heads; grouped
queries, windows, latent attention.

usage: parity_key_blocks.py BINARY
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import parity_models
import random_models as models
import tolerance

ROWS, LENGTH, BLOCK = 2, 45, 4
MODELS = ("llama_plain", "mistral_window", "deepseek_v3_plain")


def allowed(block_mask):
    """bool [heads or 1, LENGTH, LENGTH] of causal pairs whose blocks are listed."""
    places = torch.arange(LENGTH)
    listed = block_mask[:, places // BLOCK][:, :, places // BLOCK]
    return listed & (places[:, None] >= places[None, :])


def rule_mask(local, first, stride):
    blocks = -(-LENGTH // BLOCK)
    i, j = torch.arange(blocks)[:, None], torch.arange(blocks)[None, :]
    return (((i - j < local) & (i >= j)) | (j < first) | ((j + 1) % stride == 0) | (i == j))[None]


def run(binary, directory, tokens, flags):
    output = directory.parent / f"{directory.name}.safetensors"
    command = [binary, "gradients", directory, "--tokens", tokens, "--output", output, "--precision", "fp32",
               "--attention.blocks.size", BLOCK, *flags]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return load_file(output)


def flags_of(mask, folder, name):
    """The flags for a mask that no rule makes."""
    path = folder / f"{name}.npy"
    numpy.save(path, mask.numpy())
    return ["--attention.blocks.file", path]


def logits_by_flex(model, input_ids, mask):
    """By flex_attention's own mask, one layer of PyTorch's after the other."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    heads = model.config.num_attention_heads
    by_heads = mask.expand(heads, -1, -1).contiguous()
    block_mask = create_block_mask(lambda b, h, q, k: by_heads[h, q, k], None, heads, LENGTH, LENGTH, device="cpu")

    def attend(module, query, key, value, attention_mask, scaling=None, **_):
        y = flex_attention(query, key, value, block_mask=block_mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1])
        return y.transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS.register("flex_of_blocks", attend)
    before = model.config._attn_implementation
    model.set_attn_implementation("flex_of_blocks")
    with torch.no_grad():
        logits = model(input_ids, attention_mask=mask[None]).logits.float()
    model.set_attn_implementation(before)
    return logits


def check(binary, folder, name, block_mask, flags, report):
    model_type, config = models.MODELS[name]
    model = models.build(model_type, config)
    model.set_attn_implementation("sdpa")
    layers, hidden = model.config.num_hidden_layers, model.config.hidden_size
    mask = allowed(block_mask)
    window = getattr(model.config, "sliding_window", None)
    if window:
        places = torch.arange(LENGTH)
        mask = mask & (places[:, None] - places[None, :] < window)
    input_ids, labels = models.make_tokens(model, ROWS, LENGTH, margin=tolerance.routing_margin(layers, hidden))
    tokens = folder / f"{name}.tokens.safetensors"
    save_file({"input_ids": input_ids, "labels": labels}, tokens)
    directory = folder / f"{name}_{len(list(folder.iterdir()))}"
    model.save_pretrained(directory)
    ours = run(binary, directory, tokens, flags)
    reference = parity_models.run_torch(model, input_ids, labels, False, attention_mask=mask[None])
    dense = parity_models.run_torch(model, input_ids, labels, False)
    bounds = tolerance.parity_bounds(layers, hidden, torch.float32)
    label = f"{name} {mask.shape[0]}"
    report.require(tolerance.relative_error(dense[1], reference[1]) > 100 * bounds["logits"],
                   f"{label}: all keys give the same logits: proves nothing")
    names = parity_models.tensor_names(directory)
    worst = parity_models.compare(report, label, ours, reference, names, bounds)
    error = report.bounded(f"{label} flex", ours["logits"], logits_by_flex(model, input_ids, mask), bounds["logits"])
    print(f"{label}: {100 * mask.float().mean():.0f} % of all pairs; share of the bounds {worst:.2g}, flex {error:.2g}", flush=True)


def main():
    binary = pathlib.Path(sys.argv[1]).resolve()
    torch.set_num_threads(1)
    report = parity_models.Report()
    blocks = -(-LENGTH // BLOCK)
    generator = torch.Generator().manual_seed(5)
    rule = ["--attention.blocks.local", 1, "--attention.blocks.global", 1, "--attention.blocks.stride", 5]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name in MODELS:
            check(binary, folder, name, rule_mask(1, 1, 5), rule, report)
            heads = models.build(*models.MODELS[name]).config.num_attention_heads
            drawn = (torch.rand(heads, blocks, blocks, generator=generator) < 0.4) | torch.eye(blocks, dtype=torch.bool)
            check(binary, folder, name, drawn, flags_of(drawn, folder, name), report)
    print("\n".join(report.failures))
    print(f"{len(MODELS)} models, {len(report.failures)} failures")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
