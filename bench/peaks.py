#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured peaks of `anabatic train`: each model in these precisions under three budgets, with two micro-batches a step, with updates
in the backward, and started from the weights of a run before.

A row fails where they differ by more than max(2 %, 16 MiB), or the measured one is above by more than max(1 %, 8 MiB); the exit code counts those.
usage: peaks.py --binary build/release/anabatic --directory SCRATCH [--steps 2] [--shares 100 80 60] [--precisions bf16 fp32] --models MODEL... [KEYS AND FLAGS OF `anabatic train`]
"""
import argparse
import json
import pathlib
import shutil
import sys

from frontier import plan, train, write_tokens

MIB = 1 << 20


def runs(options):
    """Names and keys, each with its share of the peak of the plan that keeps everything."""
    for precision in options.precisions:
        keys = ["--train.precision", precision]
        for share in options.shares:
            yield f"{precision}, {share} %" if share != 100 else precision, keys, share
        yield f"{precision}, two micro-batches", [*keys, "--train.gradient_accumulation_steps", "2"], 100
        scale = ["--precision.loss_scale", "1024"] if precision in ("fp16", "mixed") else []  # a dynamic one may skip steps
        yield f"{precision}, in_backward", [*keys, *scale, "--optimizer.update", "in_backward"], 100


def verdict(predicted, measured):
    if abs(predicted - measured) > max(0.02 * predicted, 16 * MIB):
        return "FAILS: differs by more than max(2 %, 16 MiB)"
    if measured - predicted > max(0.01 * predicted, 8 * MIB):
        return "FAILS: above by more than max(1 %, 8 MiB)"
    return "holds"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--shares", type=int, nargs="+", default=[100, 80, 60])
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--models", nargs="+", required=True, help="directories that hold a config.json")
    options, options.rest = parser.parse_known_args()
    options.tokens = str(pathlib.Path(options.directory) / "peaks_tokens")
    pathlib.Path(options.directory).mkdir(parents=True, exist_ok=True)
    failures = 0

    def report(name, predicted, measured):
        nonlocal failures
        said = verdict(predicted, measured)
        failures += said != "holds"
        print(f"| {name} | {predicted / MIB:.1f} | {measured / MIB:.1f} | {(measured - predicted) / MIB:+.1f} | {said} |", flush=True)

    print("| run | predicted MiB | measured MiB | difference | |\n|---|---|---|---|---|")
    for model in options.models:
        label = pathlib.Path(model).name
        options.model = model
        write_tokens(options.tokens, json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"])
        for name, keys, share in runs(options):
            if share != 100:
                whole = plan(options, keys)
                keys = [*keys, "--memory.budget", str(whole["peak_bytes"] * share // 100)]
            report(f"{label}, {name}", *train(options, keys)[:2])
        # From weights, of which a run of one step makes some.
        weights = pathlib.Path(options.directory) / "peaks_weights"
        shutil.rmtree(weights, ignore_errors=True)
        train(options, [], keep=weights)
        options.model = str(weights)
        report(f"{label}, bf16, from weights", *train(options, [], init="pretrained")[:2])
        shutil.rmtree(weights)
    sys.exit(min(failures, 100))


if __name__ == "__main__":
    main()
