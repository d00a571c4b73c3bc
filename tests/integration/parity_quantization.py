# SPDX-License-Identifier: Apache-2.0
"""Weights that were trained on a grid, as readers of others decode the files of an export: the bits that our reader gives. Files
of GGUF are compared with what gguf.quants makes of the fp32 weights too.

usage: parity_quantization.py BINARY                    gguf and, for MXFP4, transformers
       parity_quantization.py BINARY --compressed       the package compressed-tensors, and transformers with it
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from parity_training import make_documents, write_indexed
from safetensors.torch import load_file

SIZES = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "num_experts_per_tok": 2, "initializer_range": 0.02,
         "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
MIXTRAL = SIZES | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4,
                   "rms_norm_eps": 1e-5, "rope_theta": 10000.0}  # fmt: skip
GPT_OSS = SIZES | {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_local_experts": 4, "head_dim": 16,
                   "sliding_window": 8, "rope_scaling": None, "hidden_act": "silu", "rms_norm_eps": 1e-5}  # fmt: skip
GRIDS = {"q8_0": [], "q4_0": []}
PACKED = {"int8_channel": [], "int4_group": ["--quantization.group", "32", "--quantization.activations", "int8_token"], "mxfp4": []}
failures = []


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def train(binary, work, config, grid, arguments):
    """A checkpoint of a few steps on the grid."""
    model = work / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))
    write_indexed(work / "tokens", make_documents(config["vocab_size"], 4000, 3))
    output = work / f"run_{config['model_type']}_{grid}"
    run(binary, "train", "--model.path", model, "--model.init", "random", "--data.train", work / "tokens", "--train.output", output,
        "--train.steps", 4, "--data.sequence_length", 32, "--optimizer.warmup_steps", 1, "--train.precision", "bf16",
        "--quantization.enable", "true", "--quantization.format", grid, *arguments)  # fmt: skip
    return output / (output / "latest").read_text().strip()


def compare(what, got, want):
    if got.shape != want.shape or got.tobytes() != want.tobytes():
        failures.append(f"{what}: other bits, {numpy.abs(got - want).max() if got.shape == want.shape else got.shape}")
    return 1


def decoded(binary, exported, work):
    """What our reader gives, in fp32."""
    back = work / f"{exported.name}_back"
    run(binary, "convert", exported, back, "--dtype", "f32", "--no-logits")
    return {name: tensor.numpy() for name, tensor in load_file(back / "model.safetensors").items()}


def stacked(tensors, layer, part):
    """The experts of a layer, as GGUF files have them."""
    names = [f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{part}.weight" for expert in range(4)]
    return numpy.stack([tensors[name] for name in names])


def check_gguf(binary, work, grid):
    import gguf
    from gguf.quants import dequantize, quantize

    checkpoint = train(binary, work, MIXTRAL, grid, GRIDS[grid])
    run(binary, "convert", checkpoint, work / f"{grid}.gguf", "--no-logits")
    ours = decoded(binary, work / f"{grid}.gguf", work)
    weights = {name: tensor.float().numpy() for name, tensor in load_file(checkpoint / "model.safetensors").items()}
    kind = gguf.GGMLQuantizationType[grid.upper()]
    count = 0
    for tensor in gguf.GGUFReader(work / f"{grid}.gguf").tensors:
        is_expert = "_exps" in tensor.name
        if (tensor.tensor_type == kind) != is_expert:
            failures.append(f"{grid}: {tensor.name} is {tensor.tensor_type.name}")
        if not is_expert:
            continue
        layer, part = int(tensor.name.split(".")[1]), {"gate": "w1", "down": "w2", "up": "w3"}[tensor.name.split("_")[1]]
        values = dequantize(tensor.data, kind)
        count += compare(f"{grid}: {tensor.name} by our reader", stacked(ours, layer, part), values)
        count += compare(f"{grid}: {tensor.name} of the weights", dequantize(quantize(stacked(weights, layer, part), kind), kind), values)
    return count


def check_gpt_oss(binary, work):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    checkpoint = train(binary, work, GPT_OSS, "mxfp4", [])
    run(binary, "convert", checkpoint, work / "oss", "--format", "mxfp4", "--no-logits")
    ours, files = decoded(binary, work / "oss", work), load_file(work / "oss" / "model.safetensors")
    count = 0
    for name in files:
        if not name.endswith("_blocks"):
            continue
        weight = name.removesuffix("_blocks")
        values = convert_moe_packed_tensors(files[name], files[f"{weight}_scales"], dtype=torch.float32)
        count += compare(f"mxfp4: {weight}", ours[weight], values.contiguous().numpy())
    return count


def check_packed(binary, work, grid):
    import transformers
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    checkpoint = train(binary, work, MIXTRAL, grid, PACKED[grid])
    exported = work / grid
    run(binary, "convert", checkpoint, exported, "--format", "compressed-tensors", "--no-logits")
    ours, files = decoded(binary, exported, work), load_file(exported / "model.safetensors")
    said = json.loads((exported / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate({key: said[key] for key in said if key != "quant_method"})
    scheme = config.config_groups["group_0"]
    tokens = scheme.input_activations
    expected = ("token", 8, True, True) if "--quantization.activations" in PACKED[grid] else None
    if (tokens and (str(tokens.strategy), tokens.num_bits, tokens.dynamic, tokens.symmetric)) != expected:
        failures.append(f"{grid}: activations {tokens}")
    compressor = BaseCompressor.get_value_from_registry(said["format"])
    count = 0
    for name in files:
        if not name.endswith(".weight_packed"):
            continue
        module = name.removesuffix(".weight_packed")
        state = {part: files[f"{module}.{part}"] for part in ("weight_packed", "weight_scale", "weight_shape") if f"{module}.{part}" in files}
        values = compressor.decompress(state, scheme)["weight"].to(torch.bfloat16)
        want = torch.from_numpy(ours[f"{module}.weight"]).to(torch.bfloat16)
        count += compare(f"{grid}: {module}", want.float().numpy(), values.float().numpy())
        if any(module.endswith(ignored) for ignored in said["ignore"]):
            failures.append(f"{grid}: {module} is packed, and ignored")
    print(f"{grid}: {transformers.__version__}, {count} weights", flush=True)
    return count


def main(binary, packed):
    count = 0
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        if packed:
            for grid in PACKED:
                count += check_packed(binary, work, grid)
        else:
            for grid in GRIDS:
                count += check_gguf(binary, work, grid)
            count += check_gpt_oss(binary, work)
    print(f"{count} comparisons: {len(failures)} failures")
    if failures or count == 0:
        sys.exit("\n".join(failures) or "nothing was compared")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve(), "--compressed" in sys.argv[2:])
