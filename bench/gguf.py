# SPDX-License-Identifier: Apache-2.0
"""Writing and reading GGUF, against llama.cpp's package gguf (numpy) and transformers.

usage: gguf.py BINARY write [GIGABYTES]      a bf16 model to Q8_0: `convert` against gguf.quants.quantize
       gguf.py BINARY read FILE              `generate` of one token, whole process, against from_pretrained(gguf_file)

Needs the packages gguf, safetensors, torch and transformers. Files lie in a temporary folder.
"""

import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

# This file has the name of the package.
sys.path = [path for path in sys.path if pathlib.Path(path or ".").resolve() != pathlib.Path(__file__).resolve().parent]

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

HIDDEN, FFN, EXPERTS, VOCAB = 1024, 2048, 8, 32000


def timed(*command):
    begun = time.perf_counter()
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return time.perf_counter() - begun


def write_model(directory, gigabytes):
    """A mixtral of so many gigabytes of bf16."""
    layer = 2 * (EXPERTS * 3 * HIDDEN * FFN + 4 * HIDDEN * HIDDEN)
    layers = max(1, round((gigabytes * 1e9 - 4 * VOCAB * HIDDEN) / layer))
    torch.manual_seed(1)

    def matrix(*shape):
        return torch.randn(shape, dtype=torch.float32).mul_(0.02).to(torch.bfloat16)

    tensors = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN), "lm_head.weight": matrix(VOCAB, HIDDEN),
               "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16)}
    for i in range(layers):
        name = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}{norm}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        for part in "qkvo":
            tensors[f"{name}self_attn.{part}_proj.weight"] = matrix(HIDDEN, HIDDEN)
        tensors[f"{name}block_sparse_moe.gate.weight"] = matrix(EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            for part, shape in (("w1", (FFN, HIDDEN)), ("w2", (HIDDEN, FFN)), ("w3", (FFN, HIDDEN))):
                tensors[f"{name}block_sparse_moe.experts.{expert}.{part}.weight"] = matrix(*shape)
    config = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "dtype": "bfloat16", "vocab_size": VOCAB,
              "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": layers, "num_attention_heads": 16,
              "num_key_value_heads": 16, "num_local_experts": EXPERTS, "num_experts_per_tok": 2}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return (directory / "model.safetensors").stat().st_size


def quantise_in_numpy(file):
    """Values alone: nothing is written, no rows are put in pairs."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize
    begun = time.perf_counter()
    for tensor in load_file(file).values():
        if tensor.ndim > 1:
            quantize(tensor.to(torch.float32).numpy(), GGMLQuantizationType.Q8_0)
    return time.perf_counter() - begun


def write(binary, gigabytes):
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        size = write_model(work / "model", gigabytes)
        file = work / "model" / "model.safetensors"
        load_file(file)  # into the cache
        ours, peer = [], []
        for i in range(3):
            ours.append(timed(binary, "convert", work / "model", work / f"{i}.gguf", "--dtype", "q8_0", "--no-logits"))
            peer.append(quantise_in_numpy(file))
            (work / f"{i}.gguf").unlink()
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        best, other = min(ours), min(peer)
        print(f"{size / 1e9:.2f} GB of bf16 to Q8_0: convert {best:.2f} s, read back and proved; gguf.quants {other:.2f} s; "
              f"{other / best:.1f}x; largest resident set {peak / 1024:.0f} MiB, mapped files included")


def read(binary, file):
    ours = [timed(binary, "generate", "--model.path", file, "--prompt", "a", "--generate.max_new_tokens", "1")
            for _ in range(3)]
    import transformers
    begun = time.perf_counter()
    transformers.AutoModelForCausalLM.from_pretrained(pathlib.Path(file).parent, gguf_file=pathlib.Path(file).name)
    peer = time.perf_counter() - begun
    print(f"{file}: {min(ours):.2f} s to the first token, plan and prompt included; transformers {peer:.1f} s to load")


if __name__ == "__main__":
    if sys.argv[2] == "write":
        write(sys.argv[1], float(sys.argv[3]) if len(sys.argv) > 3 else 1.0)
    else:
        read(sys.argv[1], sys.argv[3])
