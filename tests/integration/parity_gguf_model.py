# SPDX-License-Identifier: Apache-2.0
"""Random models as GGUF files by the names and rules of llama.cpp's own package and converter, against the same models
as Hugging Face directories: every gradient has the same bits, and an exported checkpoint is what transformers loads.

usage: parity_gguf_model.py BINARY
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import gguf
import numpy
import torch
import transformers
from parity_training import write_indexed
from safetensors.torch import load_file, save_file

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

SIZES = {"vocab_size": 40, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
         "rope_theta": 50000.0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
MODELS = [("llama", "llama", {"attention_bias": True}), ("llama", "llama", {"tie_word_embeddings": True}),
          ("mixtral", "llama", {"num_local_experts": 4, "num_experts_per_tok": 2}), ("qwen2", "qwen2", {"head_dim": 8}),
          ("qwen3", "qwen3", {}), ("qwen3_moe", "qwen3moe", EXPERTS)]
GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5,
           "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8.0,
                               "beta_slow": 1.0, "truncate": False, "rope_theta": SIZES["rope_theta"]}}
MODELS.append(("gpt_oss", "gpt-oss", GPT_OSS))
failures = []


def write_hugging_face(directory, model_type, fields, sizes=SIZES):
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(model_type, pad_token_id=None, **{**sizes, **fields})
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    model.save_pretrained(directory)
    return {name: tensor.numpy() for name, tensor in load_file(directory / "model.safetensors").items()}


def in_pairs(rows, num_heads):
    """As LlamaModel.permute of llama.cpp's converter: neighbours in a head rotate together."""
    return rows.reshape(num_heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def split_gpt_oss(tensors):
    """Matrices out x in, gate and up apart, and the names that GptOssModel of the converter gives."""
    split = {}
    for name, tensor in tensors.items():
        block, _, part = name.rpartition(".experts.")
        if name.endswith(".sinks"):
            split[f"{name}.weight"] = tensor
        elif part in ("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias"):
            kind = "bias" if part.endswith("_bias") else "weight"
            rows = tensor if kind == "bias" else tensor.swapaxes(1, 2)
            part = part.removesuffix("_bias")
            halves = {"gate_proj": rows[:, ::2], "up_proj": rows[:, 1::2]} if part == "gate_up_proj" else {part: rows}
            split |= {f"{block}.experts.{half}.{kind}": numpy.ascontiguousarray(each) for half, each in halves.items()}
        else:
            split[name] = tensor
    return split


def with_stacked_experts(tensors):
    """The tensors of all experts of a layer as one, with the converter's name. Those of gpt_oss are one already."""
    stacked = {}
    tensors = split_gpt_oss(tensors)
    for name in sorted(tensors, key=lambda name: [int(part) if part.isdigit() else part for part in name.split(".")]):
        found = re.fullmatch(r"model\.layers\.(\d+)\.(\w+)\.experts\.\d+\.(\w+)\.weight", name)
        if found is None:
            stacked[name] = tensors[name]
            continue
        layer, block, part = found.groups()
        merged = (f"layers.{layer}.feed_forward.experts.{part}.weight" if block == "block_sparse_moe"
                  else f"model.layers.{layer}.mlp.experts.{part}.weight")
        stacked.setdefault(merged, []).append(tensors[name])
    return {name: numpy.stack(each) if isinstance(each, list) else each for name, each in stacked.items()}


def write_gguf(path, architecture, tensors, fields):
    fields = {**SIZES, **fields}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(fields["max_position_embeddings"])
    writer.add_embedding_length(fields["hidden_size"])
    writer.add_block_count(fields["num_hidden_layers"])
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_head_count(fields["num_attention_heads"])
    writer.add_head_count_kv(fields["num_key_value_heads"])
    writer.add_key_length(fields["head_dim"])
    writer.add_value_length(fields["head_dim"])
    writer.add_rope_dimension_count(fields["head_dim"])
    writer.add_rope_freq_base(fields["rope_theta"])
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    writer.add_bos_token_id(fields["bos_token_id"])
    writer.add_eos_token_id(fields["eos_token_id"])
    if "num_experts_per_tok" in fields:
        writer.add_expert_count(4)
        writer.add_expert_used_count(fields["num_experts_per_tok"])
    if "sliding_window" in fields:
        writer.add_sliding_window(fields["sliding_window"])
        writer.add_expert_feed_forward_length(fields["intermediate_size"])
        rope = fields["rope_parameters"]
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if "moe_intermediate_size" in fields:
        writer.add_expert_feed_forward_length(fields["moe_intermediate_size"])
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, fields["num_hidden_layers"])
    for name, tensor in with_stacked_experts(tensors).items():
        heads = {"q_proj": fields["num_attention_heads"], "k_proj": fields["num_key_value_heads"]}.get(name.split(".")[-2])
        if architecture == "llama" and heads is not None:
            tensor = in_pairs(tensor, heads)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), numpy.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gradients(binary, model, tokens, output):
    done = subprocess.run([binary, "gradients", model, "--tokens", tokens, "--output", output, "--precision", "fp32"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"gradients {model}\n{done.stdout}{done.stderr}")
    return load_file(output)


def compare(what, got, want):
    if got.keys() != want.keys():
        failures.append(f"{what}: names differ: {sorted(got.keys() ^ want.keys())}")
    for name in got.keys() & want.keys():
        if not torch.equal(got[name], want[name]):
            failures.append(f"{what}: {name} differs")


def check_export(binary, path, tensors, work):
    """Trains with a learning rate of 0 from the file: the checkpoint has the weights, and transformers loads it."""
    write_indexed(work / "text", [numpy.arange(64) % 40])
    run = work / "run"
    done = subprocess.run([binary, "train", "--model.path", path, "--model.init", "pretrained", "--data.train",
                           work / "text", "--data.sequence_length", "16", "--train.steps", "1",
                           "--train.micro_batch_size", "1", "--optimizer.learning_rate", "0", "--train.precision", "fp32",
                           "--train.output", run], capture_output=True, text=True)
    if done.returncode != 0:
        failures.append(f"train {path}\n{done.stdout}{done.stderr}")
        return
    directory = next(run.rglob("config.json")).parent
    saved = {name: tensor.numpy() for name, tensor in load_file(directory / "model.safetensors").items()}
    if saved.keys() != tensors.keys():
        failures.append(f"export: names differ: {sorted(saved.keys() ^ tensors.keys())}")
    for name in saved.keys() & tensors.keys():
        if not numpy.array_equal(saved[name], tensors[name]):
            failures.append(f"export: {name} differs")
    transformers.AutoModelForCausalLM.from_pretrained(directory)
    theta = json.loads((directory / "config.json").read_text())["rope_theta"]
    if theta != SIZES["rope_theta"]:
        failures.append(f"export: rope_theta is {theta}")


def main(binary):
    compared = 0
    for model_type, architecture, fields in MODELS:
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            tensors = write_hugging_face(work / "model", model_type, fields)
            write_gguf(work / "model.gguf", architecture, tensors, fields)
            ids = torch.arange(32).reshape(2, 16) * 7 % 40
            save_file({"input_ids": ids, "labels": ids.clone()}, work / "tokens.safetensors")
            want = gradients(binary, work / "model", work / "tokens.safetensors", work / "a.safetensors")
            got = gradients(binary, work / "model.gguf", work / "tokens.safetensors", work / "b.safetensors")
            compare(f"{model_type} {fields}", got, want)
            compared += len(want)
            if model_type == "llama" and "attention_bias" in fields:
                check_export(binary, work / "model.gguf", tensors, work)
    print(f"{compared} tensors of {len(MODELS)} models: {len(failures)} failures")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main(sys.argv[1])
