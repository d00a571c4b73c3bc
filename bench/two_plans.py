#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of two plans in turn, by `anabatic profile`: the fastest one and that of a budget.

A shared machine may move its cores apart between runs, which shows in the bandwidth of copies; pairs whose copies differ by more than 20 % are left
out of the second line. Machines also drift: of each pair's own ratio the median is printed too.
usage: two_plans.py --binary build/release/anabatic (--budget BYTES | --cut PERCENT OF THE FRAME) [--rounds 4] [--steps 4] [--warmup 1]
       [--second "KEYS OF THE PLAN WITH A BUDGET ALONE"] bench/yardsticks/moe_coarse [KEYS AND FLAGS OF `anabatic train`]
"""
import argparse
import json
import statistics
import subprocess

from frontier import frame_bytes, plan


def profile(options, keys):
    """Seconds of a step and bytes a second of a copy, medians of one run."""
    command = [options.binary, "profile", "--json", "--model.path", options.model, "--model.init", "random", "--steps", str(options.steps),
               "--warmup", str(options.warmup), *options.rest, *keys]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(result.stderr)
    found = json.loads(result.stdout)
    return found["median_step_seconds"], found["copy_bytes_per_second"]


def summary(name, pairs):
    if not pairs:
        return
    whole, cut = (statistics.median(pair[i][0] for pair in pairs) for i in (0, 1))
    of_pairs = statistics.median(pair[1][0] / pair[0][0] for pair in pairs)
    print(f"{name}: {whole:.3f} and {cut:.3f} s, {100 * (cut / whole - 1):+.1f} %, of pairs {100 * (of_pairs - 1):+.1f} % ({len(pairs)} rounds)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--budget", type=int)
    budget.add_argument("--cut", type=int)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--second", default="")
    parser.add_argument("model")
    options, options.rest = parser.parse_known_args()
    whole = plan(options, [])
    keys = [*options.second.split(), "--memory.budget", str(options.budget or whole["peak_bytes"] - frame_bytes(whole) * options.cut // 100)]
    lean = plan(options, keys)
    if isinstance(lean, str):
        raise SystemExit(lean)
    print(f"predicted: {whole['step']['seconds']:.3f} and {lean['step']['seconds']:.3f} s, "
          f"{100 * (lean['step']['seconds'] / whole['step']['seconds'] - 1):+.1f} %; peaks {1e-9 * whole['peak_bytes']:.3f} and {1e-9 * lean['peak_bytes']:.3f} GB")
    pairs = []
    for _ in range(options.rounds):
        pairs.append((profile(options, []), profile(options, keys)))
        print(", ".join(f"{seconds:.3f} s at {1e-9 * copy:.0f} GB/s" for seconds, copy in pairs[-1]), flush=True)
    summary("all", pairs)
    summary("of one speed", [pair for pair in pairs if 1 / 1.2 <= pair[0][1] / pair[1][1] <= 1.2])


if __name__ == "__main__":
    main()
