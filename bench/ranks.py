#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs of several ranks against runs of one rank with all threads, of the same global batch, in alternating rounds.

    ranks.py [--models bench/yardsticks/moe_coarse ...] [--ranks 2] [--accumulation 1 4] [--steps 6] [--rounds 5]

Each rank has the micro-batches of --accumulation; the single rank has all of them. A ratio is of one round: tokens a second of the ranks over
those of the single one. It prints the median and the range, and both runs' predicted and measured peak memory.
"""
import argparse
import json
import pathlib
import re
import statistics
import struct
import subprocess
import sys
import tempfile

import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = 700  # tokens


def write_tokens(path, count, vocabulary):
    """Random tokens as PATH.bin and PATH.idx, in Megatron's format."""
    documents = count // DOCUMENT
    numpy.random.default_rng(1).integers(0, vocabulary, documents * DOCUMENT, dtype=numpy.uint16).tofile(f"{path}.bin")
    with open(f"{path}.idx", "wb") as index:
        index.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, documents, documents + 1))
        numpy.full(documents, DOCUMENT, dtype=numpy.int32).tofile(index)
        (numpy.arange(documents, dtype=numpy.int64) * DOCUMENT * 2).tofile(index)
        numpy.arange(documents + 1, dtype=numpy.int64).tofile(index)


def run(options, model, tokens, ranks, accumulation):
    """Median tokens a second without the first step, predicted and measured peak in MiB."""
    with tempfile.TemporaryDirectory() as output:
        command = [options.binary, "train", "--model.path", model, "--model.init", "random", "--data.train", tokens,
                   "--data.sequence_length", options.sequence, "--train.micro_batch_size", options.batch, "--train.precision", "bf16",
                   "--train.gradient_accumulation_steps", accumulation, "--train.steps", options.steps, "--train.save_every", 0,
                   "--parallel.local_ranks", ranks, "--device.threads", options.threads, "--memory.budget", "none",
                   "--train.output", f"{output}/run"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"ranks.py: {' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        lines = [json.loads(line) for line in open(f"{output}/run/metrics.jsonl")]
        peak = re.search(r"predicted peak ([\d.]+ \S+), measured peak ([\d.]+ \S+)", done.stdout)
        return statistics.median(line["tokens_per_second"] for line in lines[1:]), " / ".join(peak.groups()).rstrip(".")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/release/anabatic"))
    parser.add_argument("--models", nargs="+", default=[str(ROOT / f"bench/yardsticks/{name}") for name in ("moe_coarse", "moe_fine")])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--accumulation", type=int, nargs="+", default=[1, 4])
    for name, value in (("batch", 4), ("sequence", 512), ("steps", 6), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    print(f"{options.ranks} ranks and 1 rank on {options.threads} threads, micro-batches of {options.batch} x {options.sequence} tokens")
    with tempfile.TemporaryDirectory() as directory:
        for model in options.models:
            vocabulary = min(json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"], 65535)
            tokens = f"{directory}/{pathlib.Path(model).name}"
            most = options.ranks * max(options.accumulation)
            write_tokens(tokens, (options.steps + 1) * most * options.batch * (options.sequence + DOCUMENT), vocabulary)
            for accumulation in options.accumulation:
                ratios, memory = [], {}
                for _ in range(options.rounds):
                    several, memory["ranks"] = run(options, model, tokens, options.ranks, accumulation)
                    one, memory["one"] = run(options, model, tokens, 1, accumulation * options.ranks)
                    ratios.append(several / one)
                print(f"{pathlib.Path(model).name:<12} {accumulation} micro-batches a rank: {statistics.median(ratios):.2f} "
                      f"({min(ratios):.2f} to {max(ratios):.2f}); peak predicted / measured: {memory['ranks']}, one rank {memory['one']}",
                      flush=True)


if __name__ == "__main__":
    main()
