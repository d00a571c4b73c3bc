#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`anabatic.Training` against the binary: the same run, in turn; median step and peak memory of each, and their ratio.

usage: python.py [--binary build/release/anabatic] [--models bench/yardsticks/moe_coarse ...] [--rounds 3] [--steps 6]
       with the package on PYTHONPATH
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from frontier import write_tokens

SCRIPT = """
import json, sys, anabatic
for _ in anabatic.Training(json.loads(sys.argv[1])): pass
"""


def train(command, output):
    """Seconds of the steps after the first, and the peak in bytes."""
    subprocess.run(command, check=True, capture_output=True)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line["step_time_s"] for line in lines[1:]], lines[-1]["peak_memory_bytes"]


def measure(options, model, directory):
    vocabulary = json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"]
    write_tokens(directory / "tokens", vocabulary)
    times, peaks = {"binary": [], "python": []}, {"binary": [], "python": []}
    for number in range(options.rounds):
        for kind in times:
            output = directory / f"{kind}{number}"
            keys = {"model.path": model, "model.init": "random", "data.train": str(directory / "tokens"), "train.steps": str(options.steps),
                    "train.output": str(output), "device.threads": "2", "memory.budget": "none"}
            command = ([options.binary, "train", *(f"--{key}={value}" for key, value in keys.items())] if kind == "binary" else
                       [sys.executable, "-c", SCRIPT, json.dumps(keys)])
            seconds, peak = train(command, output)
            times[kind] += seconds
            peaks[kind].append(peak)
    steps = {kind: statistics.median(of) for kind, of in times.items()}
    memory = {kind: statistics.median(of) for kind, of in peaks.items()}
    print(f"{pathlib.Path(model).name}: binary {steps['binary']:.3f} s, {memory['binary'] / 1e9:.3f} GB; Python {steps['python']:.3f} s, "
          f"{memory['python'] / 1e9:.3f} GB; ratios {steps['python'] / steps['binary']:.3f} and {memory['python'] / memory['binary']:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/anabatic")
    parser.add_argument("--models", nargs="+", default=["bench/yardsticks/moe_coarse", "bench/yardsticks/moe_fine", "bench/yardsticks/dense"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    for model in options.models:
        with tempfile.TemporaryDirectory() as scratch:
            measure(options, model, pathlib.Path(scratch))


if __name__ == "__main__":
    main()
