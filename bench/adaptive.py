#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `train.precision: adaptive` costs: its steps and those of int8 in turn, in one process; its samples; a change of plan.

usage: adaptive.py [--models bench/yardsticks/moe_coarse ...] [--rounds 34] [--every 8] [--asked-every 32] [--error 0.005] [--threads 2]
       with the package on PYTHONPATH

- step: the time of int8 over that of an adaptive step, with a budget that no product exceeds; the median of rounds, then with samples added.
- sampling: what a step that samples takes in addition to the median of others, as a share of `--asked-every` steps. It samples every `--every`.
- change: the time from the end of a step to the beginning of the next one, in a run whose products exceed `--error`, where the plan changes.

Exit code 1 where sampling takes more than 0.5 %, adaptive reaches less than 0.97 of int8, or a change takes more than 2 s, or none happens.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

import anabatic
from frontier import write_tokens

LEAST_SPEED, MOST_SAMPLING, MOST_CHANGE_SECONDS = 0.97, 0.005, 2.0
SKIPPED = 2  # the first steps


def keys(options, model, directory, name, steps, **others):
    return {"model.path": model, "model.init": "random", "data.train": str(directory / "tokens"), "train.output": str(directory / name),
            "train.steps": steps, "train.save_every": 0, "device.threads": options.threads, "memory.budget": "none",
            "train.precision": "adaptive"} | {key.replace("__", "."): value for key, value in others.items()}


def steps_in_turn(options, model, directory):
    """Seconds of steps of int8 and adaptive, by number."""
    runs = {
        "int8": anabatic.Training(keys(options, model, directory, "int8", options.rounds + 1) | {"train.precision": "int8"}),
        "adaptive": anabatic.Training(keys(options, model, directory, "adaptive", options.rounds + 1, precision__adaptive__error=1,
                                           precision__adaptive__every=options.every)),
    }
    seconds = {name: [] for name in runs}
    for number in range(options.rounds):
        names = list(runs) if number % 2 == 0 else list(reversed(runs))
        for name in names:
            seconds[name].append(next(runs[name]).step_time_s)
    for run in runs.values():
        run.close()
    return seconds["int8"], seconds["adaptive"]


def change_seconds(options, model, directory):
    """Seconds of each change of plan beyond its step, and how many products it moved."""
    every = 2
    run = anabatic.Training(keys(options, model, directory, "changes", 4 * every, precision__adaptive__error=options.error,
                                 precision__adaptive__every=every, precision__adaptive__lock=every, precision__adaptive__high_share=1))
    beyond = {}
    for number in range(1, 4 * every):
        begin = time.perf_counter()
        beyond[number] = -next(run).step_time_s
        beyond[number] += time.perf_counter() - begin
    run.close()
    lines = [json.loads(line) for line in (directory / "changes" / "adaptive.jsonl").read_text().splitlines()]
    moved = {}
    for line in lines:
        if "denied" not in line and {line["from"], line["to"]} & {"bf16", "fp32"}:
            moved[line["step"]] = moved.get(line["step"], 0) + 1
    return [(beyond[step], count) for step, count in moved.items() if step in beyond]


def measure(options, model):
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        write_tokens(directory / "tokens", json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"])
        int8, adaptive = steps_in_turn(options, model, directory)
        changes = change_seconds(options, model, directory)
    numbers = range(SKIPPED, options.rounds)
    samples = [adaptive[i] for i in numbers if (i + 1) % options.every == 0]
    others = [i for i in numbers if (i + 1) % options.every != 0]
    plain = statistics.median(adaptive[i] for i in others)
    sampling = (statistics.median(samples) - plain) / (options.asked_every * plain)
    speed = statistics.median(int8[i] / adaptive[i] for i in others)
    with_samples = speed / (1 + max(sampling, 0))
    print(f"{pathlib.Path(model).name}: int8 {statistics.median(int8[i] for i in others):.3f} s, adaptive {plain:.3f} s: "
          f"{speed:.3f} as fast, {with_samples:.3f} with samples; sampling {100 * sampling:.2f} % of {options.asked_every} steps")
    for seconds, count in changes:
        print(f"  a change of plan that moved {count} products: {seconds:.2f} s")
    if not changes:
        print("  no change of plan: lower --error")
    return (with_samples >= LEAST_SPEED and sampling <= MOST_SAMPLING and bool(changes)
            and max(seconds for seconds, _ in changes) <= MOST_CHANGE_SECONDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    yardsticks = pathlib.Path(__file__).resolve().parent / "yardsticks"
    parser.add_argument("--models", nargs="+", default=[str(yardsticks / name) for name in ("moe_coarse", "moe_fine", "dense")])
    parser.add_argument("--rounds", type=int, default=34)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--asked-every", type=int, default=32)
    parser.add_argument("--error", type=float, default=0.005)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    sys.exit(0 if all([measure(options, model) for model in options.models]) else 1)


if __name__ == "__main__":
    main()
