# SPDX-License-Identifier: Apache-2.0
"""Adapters that `lora convert --format gguf` wrote, applied by llama.cpp to the GGUF file of their base: 40 greedy tokens
and log-probabilities are those of the model that `lora merge` writes.

usage: parity_gguf_adapter.py BINARY [NAME ...]

llama.cpp comes with the package xllamacpp. The adapters are trained here for a few steps, far enough to change the text.
"""

import pathlib
import sys
import tempfile

from gguf import GGUFReader
from parity_llama_cpp import MODELS, ROOT, LlamaCpp, compare_greedy, failures, run, write_model

RANK, ALPHA = 3, 6
# name in MODELS -> what the adapter is of, besides attention, experts, shared experts and MLPs
ADAPTERS = {
    "llama_llama3": {},
    "mixtral": {"targets": ["all", "router", "embedding", "head"], "share_gate_up": "false"},
    "qwen2moe": {"targets": ["all", "router"], "rslora": "true"},
    "granitemoeshared": {"targets": ["all", "router"]},
    "gpt-oss": {"targets": ["all", "router"]},
}


def train(binary, base, output, lora):
    settings = {"targets": ["all"], "rank": RANK, "alpha": ALPHA} | lora
    flags = [word for key, value in settings.items()
             for word in (f"--lora.{key}", *(value if isinstance(value, list) else [value]))]
    run(binary, "train", "--model.path", base, "--data.train", ROOT / "README.md", "--train.output", output, "--train.steps", 12,
        "--data.sequence_length", 64, "--train.micro_batch_size", 2, "--train.precision", "fp32",
        "--optimizer.learning_rate", 0.03, "--optimizer.warmup_steps", 0, "--optimizer.schedule", "constant", *flags)


def check_file(name, path, architecture, lora):
    reader = GGUFReader(path)
    scale = RANK**0.5 if lora.get("rslora") else 1
    want = {"general.type": "adapter", "general.architecture": architecture, "adapter.type": "lora",
            "adapter.lora.alpha": ALPHA * scale}
    for key, value in want.items():
        found = reader.fields[key].contents()
        if not (found == value or (isinstance(value, float) and abs(found - value) < 1e-6 * value)):
            failures.append(f"{name}: {key} is {found!r}, expected {value!r}")
    return len(reader.tensors) // 2


def check(name, binary):
    model_type, fields, tokenizer, kind = MODELS[name]
    lora = ADAPTERS[name]
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        base, adapter, file = work / "model", work / "adapter", work / "adapter.gguf"
        write_model(base, model_type, fields, tokenizer)
        train(binary, base, adapter, lora)
        run(binary, "convert", base, work / "base.gguf", "--format", "gguf", "--dtype", kind, "--no-logits")
        run(binary, "lora", "convert", adapter, file, "--format", "gguf", "--model.path", base)
        run(binary, "lora", "merge", base, adapter, work / "merged", "--dtype", "f32", "--no-logits")
        architecture = GGUFReader(work / "base.gguf").fields["general.architecture"].contents()
        count = check_file(name, file, architecture, lora)
        plain = LlamaCpp(work / "base.gguf")
        before = plain.greedy(plain.tokenize("hello World, it is 12 o'clock"))[0]
        server = LlamaCpp(work / "base.gguf", file)
        if server.greedy(server.tokenize("hello World, it is 12 o'clock"))[0] == before:
            failures.append(f"{name}: the adapter changes no token")
        worst = compare_greedy(name, binary, work / "merged", server, work, kind)
    print(f"{name}: {count} weights with an adapter, log-probabilities within {worst:.1e}", flush=True)


def main():
    for name in sys.argv[2:] or ADAPTERS:
        check(name, pathlib.Path(sys.argv[1]).resolve())
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
