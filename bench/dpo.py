# SPDX-License-Identifier: Apache-2.0
"""A step on preferences against a step of fine-tuning on the same rows, and what the reference takes, once.

usage: dpo.py BINARY [--model CONFIG] [--rounds N] [--threads N]
"""

import argparse
import json
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import tempfile

LENGTH, SAMPLES, STEPS = 512, 4, 3
LETTERS = "abcdefghijklmnopqrstuvwxyz ."


def write_model(folder, config):
    """The config, and a tokenizer with a token a letter."""
    folder.mkdir()
    shutil.copy(config, folder / "config.json")
    special = {"id": len(LETTERS), "content": "</s>", "special": True, "normalized": False}
    special |= {key: False for key in ("single_word", "lstrip", "rstrip")}
    vocabulary = {letter: i for i, letter in enumerate(LETTERS)}
    tokenizer = {"version": "1.0", "added_tokens": [special], "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
    for part in ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"):
        tokenizer[part] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))


def write_rows(folder, seed=3):
    """Pairs that fill a sample each: a prompt of a quarter of both rows."""
    draw = random.Random(seed)
    with open(folder / "dpo.jsonl", "w") as pairs, open(folder / "sft.jsonl", "w") as rows:
        for _ in range(SAMPLES * STEPS):
            prompt, chosen, rejected = ("".join(draw.choices(LETTERS, k=k)) for k in (64, 185, 191))
            pairs.write(json.dumps({"prompt": prompt, "chosen": chosen, "rejected": rejected}) + "\n")
            for completion in (chosen, rejected):
                rows.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")


def run(binary, folder, objective, threads, *more):
    output = folder / "run"
    shutil.rmtree(output, ignore_errors=True)
    settings = {
        "model.path": folder / "model",
        "model.init": "random",
        "data.train": folder / f"{objective}.jsonl",
        "data.cache": "none",
        "data.sequence_length": LENGTH,
        "train.objective": objective,
        "train.check_leak": "off",
        "train.micro_batch_size": SAMPLES,
        "train.steps": STEPS,
        "train.precision": "bf16",
        "train.output": output,
        "device.threads": threads,
        "device.calibrate": "false",
    }
    flags = [str(part) for key, value in settings.items() for part in (f"--{key}", value)]
    done = subprocess.run([binary, "train", *flags, *more], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    reference = re.search(r"log-probabilities of (\d+) tokens of data in ([\d.]+) s", done.stdout + done.stderr)
    # The first step meets cold memory.
    return [line["step_time_s"] for line in lines[1:]], float(reference[2]) / STEPS if reference else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--model", default=pathlib.Path(__file__).parent / "yardsticks/moe_coarse/config.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--lora", nargs="*", default=[], help="targets of an adapter")
    given = parser.parse_args()
    more = ["--lora.targets", *given.lora] if given.lora else []
    times = {"sft": [], "dpo": []}
    references = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_model(folder / "model", given.model)
        write_rows(folder)
        for _ in range(given.rounds):
            for objective, seconds in times.items():
                steps, reference = run(given.binary, folder, objective, given.threads, *more)
                seconds += steps
                references += [reference] if reference is not None else []
    sft, dpo, reference = (statistics.median(values) for values in (*times.values(), references))
    print(f"sft {sft:.3f} s a step, dpo {dpo:.3f} s ({dpo / sft:.2f}x), reference {reference:.3f} s ({reference / sft:.2f}x), once")
    sft, dpo, reference = (min(values) for values in (*times.values(), references))
    print(f"least: sft {sft:.3f} s, dpo {dpo:.3f} s ({dpo / sft:.2f}x), reference {reference:.3f} s ({reference / sft:.2f}x)")


if __name__ == "__main__":
    main()
