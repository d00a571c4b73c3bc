# SPDX-License-Identifier: Apache-2.0
"""What transformers makes of a checkpoint's files: the dtype it loads, the tokens it puts around a text, where it stops,
and the text that it generates greedily, against `anabatic generate` without a word about precision.

usage: parity_files.py BINARY
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, processors

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

LETTERS = list("abcdefghijklmnopqrstuvwxyz .")
SPECIAL = ["<|endoftext|>", "<|im_end|>", "<s>"]
SENTENCES = ["the cat sat on the mat.", "a dog ran over the hill.", "many waters cannot quench love."]
failures = []


def check(what, got, want):
    if got != want:
        failures.append(what)
        print(f"{what}:\n  got  {got!r}\n  want {want!r}")


def run(binary, *arguments):
    done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
    return done.stdout


def write_tokenizer(directory, config, bos_in_front):
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(LETTERS)}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(SPECIAL)
    if bos_in_front:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config})
    )


def write_model(directory, dtype, initializer_range=0.04, **fields):
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=initializer_range,
        pad_token_id=None,
        **fields,
    )
    transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(directory)


def set_fields(file, **fields):
    json_object = json.loads(file.read_text())
    json_object.update(fields)
    file.write_text(json.dumps(json_object))


def train(binary, model, folder, *more):
    text = folder / "text.jsonl"
    text.write_text("".join(json.dumps({"text": sentence}) + "\n" for sentence in SENTENCES))
    output = folder / f"{model.name}.run"
    run(
        binary, "train", "--model.path", model, "--data.train", text, "--data.sequence_length", 96,
        "--train.micro_batch_size", 1, "--train.precision", "fp32", "--train.output", output, "--device.threads", 1,
        "--optimizer.learning_rate", "3e-3", *more,
    )  # fmt: skip
    return output / (output / "latest").read_text().strip()


def generate_with_transformers(directory, prompt, tokens):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)[0]
    return tokenizer.decode(ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def generate(binary, directory, prompt, tokens):
    return run(
        binary, "generate", "--model.path", directory, "--prompt", prompt, "--generate.temperature", 0,
        "--generate.max_new_tokens", tokens, "--device.threads", 1,
    )  # fmt: skip


def check_greedy_text_of_fp32(binary, folder):
    model = folder / "random"
    write_model(model, torch.float32, 0.2, bos_token_id=30, eos_token_id=None)
    write_tokenizer(model, {"bos_token": "<s>"}, bos_in_front=True)
    for prompt in ["the cat", "<s>the cat", "q", "love is."]:
        want = generate_with_transformers(model, prompt.removeprefix("<s>"), 60)
        check(f"greedy text after {prompt!r}", generate(binary, model, prompt, 60), want)


def check_eos(binary, folder):
    model = folder / "eos"
    write_model(model, torch.float32, bos_token_id=28, eos_token_id=28)
    write_tokenizer(model, {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}, bos_in_front=False)
    trained = train(binary, model, folder, "--train.steps", 200)
    config = transformers.AutoConfig.from_pretrained(trained)
    generation = transformers.GenerationConfig.from_pretrained(trained)
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained)
    check("eos of the exported files", [config.eos_token_id, generation.eos_token_id, tokenizer.eos_token_id], [29] * 3)
    for sentence in SENTENCES:
        check("transformers stops", generate_with_transformers(trained, sentence[:6], 60), sentence[6:])
        check("generate stops", generate(binary, trained, sentence[:6], 60), sentence[6:])


def check_bos(binary, folder):
    """A tokenizer that names its BOS only in add_bos_token, which transformers 5 does not read."""
    model = folder / "bos"
    write_model(model, torch.float32, bos_token_id=30, eos_token_id=29)
    fields = {"bos_token": "<s>", "eos_token": "<|im_end|>", "add_bos_token": True}
    write_tokenizer(model, fields, bos_in_front=False)
    trained = train(binary, model, folder, "--train.steps", 200)
    ids = transformers.AutoTokenizer.from_pretrained(trained)("ab").input_ids
    check("bos of the exported tokenizer", ids, [30, 0, 1])
    for sentence in SENTENCES:
        check("transformers goes on", generate_with_transformers(trained, sentence[:6], 60), sentence[6:])


def check_dtype(binary, folder):
    cases = [
        ("fp32_says_bf16", torch.float32, "bfloat16", (), torch.float32),
        ("fp16_says_fp32", torch.float16, "float32", (), torch.float16),
        ("bf16_saved_wide", torch.bfloat16, "bfloat16", ("--train.save_dtype", "fp32"), torch.float32),
    ]
    for name, stored, said, more, want in cases:
        model = folder / name
        write_model(model, stored, bos_token_id=30, eos_token_id=29)
        write_tokenizer(model, {"bos_token": "<s>", "eos_token": "<|im_end|>"}, bos_in_front=True)
        for keys in [("dtype",), ("torch_dtype",), ("dtype", "torch_dtype")]:
            file = model / "config.json"
            fields = {k: v for k, v in json.loads(file.read_text()).items() if k not in ("dtype", "torch_dtype")}
            file.write_text(json.dumps({**fields, **{key: said for key in keys}}))
            trained = train(binary, model, folder, "--train.steps", 1, "--train.resume", "never", *more)
            check(f"{name} {keys}: config", transformers.AutoConfig.from_pretrained(trained).dtype, want)
            loaded = transformers.AutoModelForCausalLM.from_pretrained(trained)
            check(f"{name} {keys}: loaded", loaded.dtype, want)
            held = {tensor.dtype for tensor in load_file(trained / "model.safetensors").values()}
            check(f"{name} {keys}: held", held, {want})


def check_mixed_dtypes(binary, folder):
    model = folder / "mixed"
    write_model(model, torch.bfloat16, bos_token_id=30, eos_token_id=29)
    write_tokenizer(model, {"bos_token": "<s>", "eos_token": "<|im_end|>"}, bos_in_front=True)
    tensors = load_file(model / "model.safetensors")
    wide = {name: tensor.float() if "norm" in name else tensor for name, tensor in tensors.items()}
    save_file(wide, model / "model.safetensors", metadata={"format": "pt"})
    set_fields(model / "config.json", dtype="float32")
    trained = train(binary, model, folder, "--train.steps", 1)
    check("mixed: config", transformers.AutoConfig.from_pretrained(trained).dtype, torch.bfloat16)
    held = {name: tensor.dtype for name, tensor in load_file(trained / "model.safetensors").items()}
    check("mixed: held", held, {name: tensor.dtype for name, tensor in wide.items()})


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for case in [check_greedy_text_of_fp32, check_eos, check_bos, check_dtype, check_mixed_dtypes]:
            case(binary, folder)
    if failures:
        raise SystemExit(f"{len(failures)} checks failed")
    print("transformers agrees with every exported file")


if __name__ == "__main__":
    main()
