#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What int8 products cost in loss: the same data, seeds and steps in bf16, fp32 and int8, by the final validation loss.

    precision.py BINARY [--control BINARY] [--model DIRECTORY --train DATA --validation DATA] [--steps 900] [--seeds 3]
                 [--directory SCRATCH] [--json results.json] [-- KEY VALUE ...]

Without a model it is the one of tools/quickstart.sh, which has to have run. Rows: bf16; fp32; int8 as it is by default,
with fallback off and with a fallback of 16; int8 with the head in bf16; and the control. Every row trains each seed once.
Results that the JSON file has are taken from it.

The criterion: the mean paired difference int8 - bf16 is at most max(0.01 nats, 0.5 % of the loss, 2 sd / sqrt(seeds)), sd
that of the paired differences fp32 - bf16. Exit code 1 where int8 by default misses it. Where 2 sd / sqrt(seeds) is above
0.02 the script asks for more seeds. It says nothing of steps beyond those that were run.

The control is int8 with 4 bits, from a build of its own:

    cmake --preset release -B build/control -DANABATIC_TESTS=OFF -DCMAKE_CXX_FLAGS=-DANABATIC_LARGEST_INT8=7
    cmake --build build/control --target anabatic

It must miss the criterion three times over. If it does not, the runs were too short to tell a bad format from a good one,
and the exit code is 1.
"""

import argparse
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "build" / "quickstart"
LEAST_NATS, LEAST_SHARE, MOST_NOISE, LEAST_MISS_OF_CONTROL = 0.01, 0.005, 0.02, 3
CONTROL = "control, 4 bits"
ROWS = {
    "bf16": ["--train.precision", "bf16"],
    "fp32": ["--train.precision", "fp32"],
    "int8": ["--train.precision", "int8"],
    "int8, fallback off": ["--train.precision", "int8", "--precision.int8.fallback", "off"],
    "int8, fallback 16": ["--train.precision", "int8", "--precision.int8.fallback", "16"],
    "int8, head in bf16": ["--train.precision", "int8", "--precision.keep", "head=bf16"],
    CONTROL: ["--train.precision", "int8", "--precision.int8.fallback", "off"],
}


def train(options, row, seed, folder):
    """The last validation loss, by bf16 products whatever the run multiplied."""
    output = folder / f"{row}-{seed}".replace(" ", "_")
    shutil.rmtree(output, ignore_errors=True)
    keys = {
        "model.path": options.model, "model.init": "random", "data.train": options.train, "data.sequence_length": 256,
        "train.micro_batch_size": 4, "train.steps": options.steps, "train.seed": seed, "train.output": output,
        "optimizer.learning_rate": 1e-3, "optimizer.warmup_steps": options.steps // 20,
    }
    flags = [part for key, value in keys.items() for part in (f"--{key}", value)]
    run(options.control if row == CONTROL else options.binary, "train", *flags, *ROWS[row], *options.keys)
    text = run(options.binary, "evaluate", "--model.path", output, "--data.validation", options.validation,
               "--data.sequence_length", 256, "--train.precision", "fp32" if row == "fp32" else "bf16", "--json")
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return {"loss": json.loads(text)["loss"], "training": statistics.mean(step["loss"] for step in steps[-20:])}


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def differences(results, row):
    return [other["loss"] - bf16["loss"] for other, bf16 in zip(results[row], results["bf16"])]


def read_results(options):
    """Rows of lists by seed, from an earlier call of the same steps."""
    if not options.json or not options.json.exists():
        return {}
    read = json.loads(options.json.read_text())
    if read["steps"] != options.steps:
        sys.exit(f"{options.json}: expected runs of {options.steps} steps, found {read['steps']}")
    return read["results"]


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--control", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path, default=QUICKSTART / "model")
    parser.add_argument("--train", type=pathlib.Path, default=QUICKSTART / "data" / "train")
    parser.add_argument("--validation", type=pathlib.Path, default=QUICKSTART / "data" / "validation")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--directory", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:split])
    options.keys = arguments[split + 1 :]
    rows = ["bf16", *(row for row in options.rows if row != "bf16" and (row != CONTROL or options.control))]
    results = {**{row: [] for row in rows}, **read_results(options)}
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.directory or pathlib.Path(scratch)
        for seed in range(1, options.seeds + 1):
            for row in rows:
                if len(results[row]) >= seed:
                    continue
                results[row].append(train(options, row, seed, folder))
                print(f"seed {seed}, {row}: validation {results[row][-1]['loss']:.4f}, training {results[row][-1]['training']:.4f}",
                      flush=True)
                if options.json:
                    options.json.write_text(json.dumps({"steps": options.steps, "results": results}, indent=1))
    return report(rows, results, options.seeds)


def report(rows, results, num_seeds):
    print("\n| row | validation loss, by seed | minus bf16, mean | sd |\n|---|---|---|---|")
    for row in rows:
        losses, by_seed = [result["loss"] for result in results[row]], differences(results, row)
        sd = statistics.stdev(by_seed) if len(by_seed) > 1 else math.nan
        print(f"| {row} | {', '.join(f'{loss:.4f}' for loss in losses)} | {statistics.mean(by_seed):+.4f} | {sd:.4f} |")
    if "int8" not in rows or "fp32" not in rows or num_seeds < 2:
        return 0
    noise = 2 * statistics.stdev(differences(results, "fp32")) / math.sqrt(num_seeds)
    loss = statistics.mean(result["loss"] for result in results["bf16"])
    allowed, found = max(LEAST_NATS, LEAST_SHARE * loss, noise), statistics.mean(differences(results, "int8"))
    holds = found <= allowed
    print(f"\nint8 - bf16: {found:+.4f} nats, allowed {allowed:.4f} (noise {noise:.4f}): {'holds' if holds else 'MISSED'}")
    if noise > MOST_NOISE:
        print(f"the noise is above {MOST_NOISE}: more seeds are needed")
    if CONTROL not in rows:
        print("without --control nothing says that these runs are long enough")
        return 0 if holds else 1
    missed = statistics.mean(differences(results, CONTROL)) / allowed
    is_long_enough = not missed < LEAST_MISS_OF_CONTROL  # a loss that is no number misses it
    print(f"the control misses it {missed:.1f} times: {'long enough' if is_long_enough else 'the runs are TOO SHORT'}")
    return 0 if holds and is_long_enough else 1


if __name__ == "__main__":
    sys.exit(main())
