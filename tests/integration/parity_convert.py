# SPDX-License-Identifier: Apache-2.0
"""`convert` and `check manifest` on models that transformers saved: transformers loads what was written, tensor for tensor.
Experts of gpt_oss in MXFP4 are what transformers and the package gguf make of them, read and written.
Upcycled models have the dense model's logits in transformers.

usage: parity_convert.py BINARY [MODEL ...]      names of tests/support/random_models.py, mxfp4, upcycle; none: a few, and those two
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
import torch
import transformers
from gguf.quants import dequantize, quantize
from parity_training import write_indexed
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import random_models as models  # noqa: E402
import tolerance  # noqa: E402

FEW = ["deepseek_v3_odd", "glm4_moe_lite_odd", "granitemoe_plain"]

# Dense models, what they become, and how.
UPCYCLED = {
    "llama_plain": ("mixtral", "experts=4,top_k=2"),
    "mistral_window": ("mixtral", "experts=3,top_k=1,granularity=2"),
    "qwen2_plain": ("qwen2_moe", "experts=4,top_k=2,granularity=2"),
    "qwen3_plain": ("qwen3_moe", "experts=3,top_k=3"),
}


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def check(binary, folder, name):
    model = models.build(*models.MODELS[name]).eval()
    source, result, reference = folder / name, folder / f"{name}.out", folder / f"{name}.safetensors"
    model.save_pretrained(source, max_shard_size="60KB")
    run(sys.executable, ROOT / "tools/reference_logits.py", source, reference)
    run(binary, "convert", source, result, *(["--experts", "fused"] if models.is_moe(model.config) else []))
    run(binary, "check", "manifest", result, "--against", source, "--reference", reference)
    want = model.state_dict()
    got = transformers.AutoModelForCausalLM.from_pretrained(result, dtype=torch.float32).state_dict()
    assert want.keys() == got.keys(), f"{name}: {sorted(want.keys() ^ got.keys())} are missing or surplus"
    for key in want:
        assert torch.equal(want[key], got[key]), f"{name}: {key} differs"
    print(f"{name}: {len(want)} tensors equal", flush=True)


def rounded(weights):
    """Experts [E, in, out] as MXFP4 of their out x in matrices holds them."""
    kind = gguf.GGMLQuantizationType.MXFP4
    rows = weights.transpose(1, 2).contiguous().float().numpy()
    return torch.from_numpy(dequantize(quantize(rows, kind), kind)).reshape(rows.shape).transpose(1, 2).contiguous()


def dequantised(tensors, dtype):
    """The tensors of files with every expert as transformers' own dequantisation gives it."""
    values = {}
    for name, tensor in tensors.items():
        if name.endswith("_blocks"):
            scales = tensors[name.removesuffix("_blocks") + "_scales"]
            values[name.removesuffix("_blocks")] = convert_moe_packed_tensors(tensor, scales, dtype=dtype)
        elif not name.endswith("_scales"):
            values[name] = tensor
    return values


def require_equal(what, got, want):
    """To the bit, the signs of zeros included."""
    assert got.keys() == want.keys(), f"{what}: {sorted(want.keys() ^ got.keys())} are missing or surplus"
    for key in want:
        bits = torch.int16 if want[key].dtype == torch.bfloat16 else torch.int32
        assert got[key].dtype == want[key].dtype and got[key].shape == want[key].shape, f"{what}: {key} is of another type"
        assert torch.equal(got[key].view(bits), want[key].view(bits)), f"{what}: {key} differs"


def write_published(folder):
    """A model whose files are as OpenAI's: everything in bf16 but the experts, whose elements and scales are random."""
    model = models.build("gpt_oss", models.GPT_OSS | {"hidden_size": 64, "intermediate_size": 32}).to(torch.bfloat16)
    model.save_pretrained(folder)
    tensors, generator = {}, torch.Generator().manual_seed(9)
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, columns, rows = tensor.shape
            tensors[f"{name}_blocks"] = torch.randint(
                256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator)
            tensors[f"{name}_scales"] = torch.randint(
                118, 125, (experts, rows, columns // 32), dtype=torch.uint8, generator=generator)
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
        "quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return tensors


def load_dequantised(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, quantization_config=transformers.Mxfp4Config(dequantize=True)).eval()


def check_mxfp4_read(binary, folder):
    source, numbers, same = folder / "published", folder / "numbers", folder / "same"
    want = dequantised(write_published(source), torch.bfloat16)
    run(binary, "convert", source, numbers)
    require_equal("mxfp4 read", load_file(numbers / "model.safetensors"), want)
    require_equal("mxfp4 in transformers", dict(load_dequantised(source, torch.bfloat16).state_dict()), want)
    run(binary, "convert", source, same, "--dtype", "mxfp4")
    got = dequantised(load_file(same / "model.safetensors"), torch.bfloat16)
    for key in want:
        assert torch.equal(got[key], want[key]), f"mxfp4 again: {key} differs"
    # What trains and evaluates reads the same weights.
    ids = torch.arange(32).reshape(2, 16) * 7 % 61
    save_file({"input_ids": ids, "labels": ids.clone()}, folder / "tokens.safetensors")
    for name in ("published", "numbers"):
        run(binary, "gradients", folder / name, "--tokens", folder / "tokens.safetensors", "--output",
            folder / f"{name}.gradients", "--precision", "fp32")
    require_equal("mxfp4 gradients", load_file(folder / "published.gradients"), load_file(folder / "numbers.gradients"))
    write_indexed(folder / "text", [numpy.arange(64) % 61])
    evaluate = [run(binary, "evaluate", "--model.path", folder / name, "--data.validation", folder / "text",
                    "--data.sequence_length", 16) for name in ("published", "numbers")]
    assert evaluate[0] == evaluate[1], f"mxfp4 evaluate: {evaluate}"
    run(binary, "train", "--model.path", source, "--model.init", "pretrained", "--data.train", folder / "text",
        "--data.sequence_length", 16, "--train.steps", 1, "--train.micro_batch_size", 1, "--optimizer.learning_rate", 0,
        "--train.precision", "fp32", "--train.output", folder / "run")
    checkpoint = next((folder / "run").rglob("config.json")).parent
    trained = load_file(checkpoint / "model.safetensors")  # AdamW's update by 0 takes the signs of zeros
    require_equal("mxfp4 train", {key: tensor + 0.0 for key, tensor in trained.items()},
                  {key: tensor + 0.0 for key, tensor in want.items()})
    run(binary, "check", "manifest", checkpoint, "--against", source)
    print(f"mxfp4: {len(want)} tensors as transformers dequantises them", flush=True)


def check_mxfp4_written(binary, folder):
    source, result, reference = folder / "plain", folder / "mxfp4", folder / "mxfp4.safetensors"
    fields = {"hidden_size": 64, "intermediate_size": 96, "num_local_experts": 5}
    models.build(models.MODELS["gpt_oss_odd"][0], models.MODELS["gpt_oss_odd"][1] | fields).save_pretrained(source)
    run(binary, "convert", source, result, "--dtype", "mxfp4", "--shard_size", "60KB")
    want = load_file(source / "model.safetensors")
    want = {name: rounded(tensor) if name.endswith(("gate_up_proj", "down_proj")) else tensor for name, tensor in want.items()}
    model = load_dequantised(result, torch.float32)
    got = {name: tensor for name, tensor in model.state_dict().items() if name in want}
    require_equal("mxfp4 written", {name: tensor + 0.0 for name, tensor in got.items()},
                  {name: tensor + 0.0 for name, tensor in want.items()})
    run(sys.executable, ROOT / "tools/reference_logits.py", result, reference)
    run(binary, "check", "manifest", result, "--against", source, "--reference", reference)
    print(f"mxfp4: {len(want)} tensors written as the package gguf rounds them", flush=True)


def check_upcycled(binary, folder, name, model_type, options):
    model = models.build(*models.MODELS[name]).eval()
    source, result = folder / name, folder / f"{name}.upcycled"
    model.save_pretrained(source)
    run(binary, "convert", source, result, "--upcycle", options)
    mixture = transformers.AutoModelForCausalLM.from_pretrained(
        result, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    assert mixture.config.model_type == model_type, f"{name}: became {mixture.config.model_type}, expected {model_type}"
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, model.config.vocab_size, (3, 24), generator=generator)
    with torch.no_grad():
        want, got = (each(tokens).logits for each in (model, mixture))
    error = tolerance.relative_error(got, want)
    bound = tolerance.parity_bounds(model.config.num_hidden_layers, model.config.hidden_size, torch.float32)["logits"]
    assert error <= bound, f"{name} as {model_type}, {options}: logits are off by {error:.3g}, allowed {bound:.3g}"
    print(f"{name} as {model_type}, {options}: logits are off by {error:.2g} (allowed {bound:.2g})", flush=True)


def main():
    binary, chosen = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or [*FEW, "mxfp4", "upcycle"]
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            if name == "mxfp4":
                check_mxfp4_read(binary, pathlib.Path(folder))
                check_mxfp4_written(binary, pathlib.Path(folder))
            elif name == "upcycle":
                for dense, mixture in UPCYCLED.items():
                    check_upcycled(binary, pathlib.Path(folder), dense, *mixture)
            else:
                check(binary, pathlib.Path(folder), name)


if __name__ == "__main__":
    main()
