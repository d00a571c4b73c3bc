# SPDX-License-Identifier: Apache-2.0
"""Trains the quickstart's model with each kind of balance loss and prints how evenly its experts are used.

usage: bench/balance.py --binary build/release/anabatic --home build/quickstart --output FOLDER [--steps 1479]
           [--kinds layer all_layers none] [--seeds 0 1 2] [--threads 0]

HOME is what tools/quickstart.sh leaves: HOME/model with a config and a tokenizer, HOME/data with tokens. Every run trains
with the quickstart's settings; what it gives (expert loads over the last 100 steps, the loss on held-out chapters) is kept in
FOLDER/KIND-SEED-STEPS.json, and a run that has such a file is skipped. KIND:C is KIND with the coefficient C.
"""

import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

LINE = re.compile(r"^ +(\d+) +([\d.]+) +([\d.]+) +(\d+) *$")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=pathlib.Path("build/release/anabatic"))
    parser.add_argument("--home", type=pathlib.Path, default=pathlib.Path("build/quickstart"))
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=1479)
    parser.add_argument("--kinds", nargs="+", default=["layer", "all_layers", "none"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=0)
    return parser.parse_args()


def loads_of(text):
    """The table under the last heading: a layer's max/mean, min/mean and experts below 10 % of the mean."""
    table = text[text.rindex("expert load over the last ") :].splitlines()
    matches = [LINE.match(line) for line in table]
    return [[float(m[2]), float(m[3]), int(m[4])] for m in matches if m]


def train(arguments, kind, seed):
    """Trains once, or reads what an earlier run gave."""
    kept = arguments.output / f"{kind.replace(':', '-')}-{seed}-{arguments.steps}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    run = kept.with_suffix(".run")
    shutil.rmtree(run, ignore_errors=True)
    name, _, coefficient = kind.partition(":")
    home, data = arguments.home, arguments.home / "data"
    settings = {
        "model.path": home / "model",
        "model.init": "random",
        "data.train": data / "train",
        "data.validation": data / "validation",
        "data.sequence_length": 256,
        "train.micro_batch_size": 8,
        "train.precision": "bf16",
        "train.output": run,
        "train.steps": arguments.steps,
        "train.seed": seed,
        "train.balance_loss": name,
        "optimizer.learning_rate": 2e-3,
        "optimizer.warmup_steps": 20,
        "optimizer.min_learning_rate": 1e-4,
        "device.threads": arguments.threads,
    }
    if coefficient:
        settings["train.balance_coef"] = coefficient
    flags = [str(part) for key, value in settings.items() for part in (f"--{key}", value)]
    done = subprocess.run([str(arguments.binary), "train", *flags], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{kind}, seed {seed}: train ended with {done.returncode}\n{done.stdout[-2000:]}")
    validation = [json.loads(line) for line in (run / "validation.jsonl").read_text().splitlines()]
    result = {"loss": validation[-1]["loss"], "layers": loads_of(done.stdout)}
    kept.write_text(json.dumps(result) + "\n")
    shutil.rmtree(run)
    return result


def main():
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    print(f"{arguments.steps} steps, mean of seeds {arguments.seeds}; loads over the last 100 steps\n")
    print("| balance loss | layer | max/mean | min/mean (worst seed) | below 10 % of the mean | held-out loss |")
    print("|---|---|---|---|---|---|")
    for kind in arguments.kinds:
        results = [train(arguments, kind, seed) for seed in arguments.seeds]
        losses = [result["loss"] for result in results]
        loss = f"{statistics.mean(losses):.4f} ({', '.join(f'{value:.4f}' for value in losses)})"
        for layer, rows in enumerate(zip(*(result["layers"] for result in results))):
            largest, smallest, below = (statistics.mean(row[i] for row in rows) for i in range(3))
            worst = min(row[1] for row in rows)
            print(f"| `{kind}` | {layer} | {largest:.2f} | {smallest:.2f} ({worst:.2f}) | {below:.1f} | {loss} |", flush=True)
            loss = ""
    return 0


if __name__ == "__main__":
    sys.exit(main())
