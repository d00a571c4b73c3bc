# SPDX-License-Identifier: Apache-2.0
"""A tiny Mixtral with a tokenizer of letters, and text for it."""
import json
import logging
import pathlib
import random

logging.getLogger("anabatic").setLevel(logging.ERROR)

LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
CONFIG = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
          "max_position_embeddings": 64, "rope_theta": 10000.0, "bos_token_id": None, "eos_token_id": None}


def write_model(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))
    return folder


def write_text(file, documents=60, seed=0):
    draw = random.Random(seed)
    with open(file, "w") as out:
        for _ in range(documents):
            out.write(json.dumps({"text": "".join(draw.choices(LETTERS, k=draw.randint(8, 40)))}) + "\n")
    return file


def run_settings(folder, **more):
    """Keys of a run in `folder`; `more` with _ for the dot: train_steps=3."""
    folder = pathlib.Path(folder)
    settings = {"model.path": write_model(folder / "model"), "model.init": "random", "data.train": write_text(folder / "text.jsonl"),
                "data.validation": write_text(folder / "held_out.jsonl", 12, 1), "data.sequence_length": 16, "data.cache": "none",
                "train.micro_batch_size": 2, "train.gradient_accumulation_steps": 2, "train.steps": 6, "train.precision": "fp32",
                "train.output": folder / "run", "device.threads": 2, "memory.budget": "none", "optimizer.learning_rate": 1e-2,
                "generate.max_new_tokens": 8, "generate.temperature": 0}
    for name, value in more.items():
        section, _, key = name.partition("_")
        settings[f"{section}.{key}"] = value
    return settings


def arguments(settings):
    """Those that `anabatic train` reads, as flags."""
    return [f"--{key}={value}" for key, value in settings.items() if not key.startswith("generate.")]


def bytes_of(directory):
    """The weights and the training state of a checkpoint."""
    return {file.name: file.read_bytes() for file in sorted(pathlib.Path(directory).glob("*.safetensors"))}
