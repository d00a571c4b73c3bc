# SPDX-License-Identifier: Apache-2.0
"""`convert` to GGUF against llama.cpp's own package: names and shapes of its converter, bytes of its `quantize`, and the
directory that comes back is the one that went in.

usage: parity_gguf_export.py BINARY
"""

import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
import torch
import transformers
from gguf.quants import quantize
from parity_gguf_model import EXPERTS, GPT_OSS, SIZES, in_pairs, with_stacked_experts, write_hugging_face

SIZES = SIZES | {"hidden_size": 64, "num_attention_heads": 8, "head_dim": 8, "intermediate_size": 96}
EXPERTS = EXPERTS | {"moe_intermediate_size": 32}
MODELS = [("mixtral", "llama", {"num_local_experts": 4, "num_experts_per_tok": 2}), ("qwen3_moe", "qwen3moe", EXPERTS),
          ("qwen2", "qwen2", {"tie_word_embeddings": True, "intermediate_size": 80}), ("llama", "llama", {}),
          ("gpt_oss", "gpt-oss", GPT_OSS | {"rope_parameters": GPT_OSS["rope_parameters"] | {"beta_fast": 32.0}})]
failures = []


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def expected_tensors(architecture, tensors, fields):
    """By the names of llama.cpp's converter, rows of llama in pairs."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, SIZES["num_hidden_layers"])
    expected = {}
    for name, tensor in with_stacked_experts(tensors).items():
        heads = {"q_proj": SIZES["num_attention_heads"], "k_proj": SIZES["num_key_value_heads"]}.get(name.split(".")[-2])
        if architecture == "llama" and heads is not None:
            tensor = in_pairs(tensor, heads)
        expected[names.get_name(name, try_suffixes=(".weight", ".bias"))] = numpy.ascontiguousarray(tensor)
    return expected


def type_of(name, tensor, asked):
    is_matrix = tensor.ndim > 1 and not name.endswith((".bias", "ffn_gate_inp.weight"))
    if not is_matrix or (asked == "mxfp4" and not name.endswith("_exps.weight")):
        return gguf.GGMLQuantizationType.F32
    if asked in ("q8_0", "q4_0") and tensor.shape[-1] % 32 != 0:
        return gguf.GGMLQuantizationType.F16
    return gguf.GGMLQuantizationType[asked.upper()]


def compare_file(what, path, expected, asked):
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    if found.keys() != expected.keys():
        failures.append(f"{what}: names differ: {sorted(found.keys() ^ expected.keys())}")
    for name in found.keys() & expected.keys():
        kind = type_of(name, expected[name], asked)
        want = quantize(expected[name], kind)
        if found[name].tensor_type != kind:
            failures.append(f"{what}: {name} is {found[name].tensor_type}, expected {kind}")
        elif found[name].data.tobytes() != want.tobytes():
            failures.append(f"{what}: {name} has other bytes")
    return len(found)


def main(binary):
    compared = 0
    for model_type, architecture, fields in MODELS:
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            tensors = write_hugging_face(work / "model", model_type, fields, SIZES)
            expected = expected_tensors(architecture, tensors, fields)
            for asked in ("f32", "bf16", "f16", "q8_0", "q4_0", *(["mxfp4"] if model_type == "gpt_oss" else [])):
                path = work / f"{asked}.gguf"
                run(binary, "convert", work / "model", path, "--dtype", asked, "--no-logits")
                compared += compare_file(f"{model_type} {asked}", path, expected, asked)
            run(binary, "convert", work / "f32.gguf", work / "back", "--no-logits")
            models = [transformers.AutoModelForCausalLM.from_pretrained(work / each) for each in ("model", "back")]
            want, got = (model.state_dict() for model in models)
            ropes = [{"beta_fast": 32.0, "beta_slow": 1.0} | model.config.rope_parameters for model in models]
            if ropes[0] != ropes[1]:
                failures.append(f"{model_type}: {ropes[1]} comes back")
            for name in want.keys() | got.keys():
                if name not in want or name not in got or not torch.equal(want[name], got[name]):
                    failures.append(f"{model_type}: {name} does not come back")
    print(f"{compared} tensors of {len(MODELS)} models: {len(failures)} failures")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main(sys.argv[1])
