# SPDX-License-Identifier: Apache-2.0
"""Files of a bf16 model with 64 experts a layer, in and out, alternately with transformers.

usage: files.py BINARY [ROUNDS]

Written: `convert` of the directory, which reads, writes, hashes and reads back, against save_pretrained, which only writes.
Loaded: `evaluate` of 16 tokens, which also starts, plans and computes, against from_pretrained alone.
Hashed: `check manifest`, which reads and hashes every tensor of the result again: what the manifest costs.
Needs the packages safetensors, torch and transformers. Files lie in a temporary folder.
"""

import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import torch
import transformers
from safetensors.torch import save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/integration"))
from parity_training import write_indexed  # noqa: E402

HIDDEN, WIDTH, EXPERTS, LAYERS, VOCAB, HEADS = 512, 256, 64, 6, 8000, 8


def write_model(directory):
    torch.manual_seed(1)

    def matrix(*shape):
        return torch.randn(shape).mul_(0.02).to(torch.bfloat16)

    def ones(size):
        return torch.ones(size, dtype=torch.bfloat16)

    tensors = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN), "lm_head.weight": matrix(VOCAB, HIDDEN),
               "model.norm.weight": ones(HIDDEN)}
    for i in range(LAYERS):
        name = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}{norm}.weight"] = ones(HIDDEN)
        for part in "qkvo":
            tensors[f"{name}self_attn.{part}_proj.weight"] = matrix(HIDDEN, HIDDEN)
        for part in "qk":
            tensors[f"{name}self_attn.{part}_norm.weight"] = ones(HIDDEN // HEADS)
        tensors[f"{name}mlp.gate.weight"] = matrix(EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            for part, shape in (("gate", (WIDTH, HIDDEN)), ("up", (WIDTH, HIDDEN)), ("down", (HIDDEN, WIDTH))):
                tensors[f"{name}mlp.experts.{expert}.{part}_proj.weight"] = matrix(*shape)
    config = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "dtype": "bfloat16", "vocab_size": VOCAB,
              "hidden_size": HIDDEN, "intermediate_size": 1024, "moe_intermediate_size": WIDTH, "num_experts": EXPERTS,
              "num_experts_per_tok": 8, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": HEADS, "head_dim": HIDDEN // HEADS, "norm_topk_prob": True,
              "max_position_embeddings": 512, "tie_word_embeddings": False}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return (directory / "model.safetensors").stat().st_size


def timed(work):
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def call(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)


def main(binary, rounds):
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        size = write_model(work / "model")
        write_indexed(work / "text", [numpy.arange(16)])
        peer = transformers.AutoModelForCausalLM.from_pretrained(work / "model", dtype=torch.bfloat16)
        times = {"convert": [], "save_pretrained": [], "check manifest": [], "evaluate": [], "from_pretrained": []}
        for _ in range(rounds):
            times["convert"].append(timed(lambda: call(binary, "convert", work / "model", work / "ours", "--no-logits")))
            times["save_pretrained"].append(timed(lambda: peer.save_pretrained(work / "peers")))
            times["check manifest"].append(timed(lambda: call(binary, "check", "manifest", work / "ours")))
            times["evaluate"].append(timed(lambda: call(
                binary, "evaluate", "--model.path", work / "model", "--data.validation", work / "text",
                "--data.sequence_length", 16, "--train.micro_batch_size", 1)))
            times["from_pretrained"].append(timed(
                lambda: transformers.AutoModelForCausalLM.from_pretrained(work / "model", dtype=torch.bfloat16)))
            shutil.rmtree(work / "ours")
            shutil.rmtree(work / "peers")
        print(f"{size / 1e6:.0f} MB of bf16, medians of {rounds} rounds:")
        for name, seconds in times.items():
            print(f"  {name:16} {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")
        pairs = statistics.median(a / b for a, b in zip(times["convert"], times["save_pretrained"]))
        print(f"  convert is {pairs:.2f}x of save_pretrained, median of pairs")
        pairs = statistics.median(a / b for a, b in zip(times["from_pretrained"], times["evaluate"]))
        print(f"  from_pretrained is {pairs:.1f}x of evaluate, {size / 1e9 / min(times['evaluate']):.2f} GB/s at most")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5)
