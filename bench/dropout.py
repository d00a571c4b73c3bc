#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of one model with dropout and without, in alternating rounds.

    dropout.py [--models bench/yardsticks/moe_fine ...] [--rounds 5] [--batch 4] [--sequence 512] [--rate 0.1]
               [--attention 0.1]

Dropout is of what blocks add and of the embedding, and with --attention of attention's probabilities too.

The ratio is to the same round's step without dropout; the median of rounds is printed.
"""
import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import common  # noqa: E402

YARDSTICKS = ("moe_fine", "moe_coarse", "dense")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(common.ROOT / "build/release/anabatic"))
    parser.add_argument("--models", nargs="+", default=[str(common.ROOT / "bench/yardsticks" / name) for name in YARDSTICKS])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--attention", type=float, default=0.0)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    options.no_check, options.rest = True, []
    return options


def measure(options, model):
    sides, seconds = {}, {}
    for name, rate, attention in (("without", 0, 0), ("with", options.rate, options.attention)):
        settings = {"model.path": model, "batch": options.batch, "sequence": options.sequence}
        settings |= {"dropout.residual": rate, "dropout.embedding": rate, "dropout.attention": attention}
        sides[name], seconds[name] = common.Anabatic(options, "step", settings), []
        sides[name].round()
    for _ in range(options.rounds):
        for name, side in sides.items():
            time.sleep(common.SETTLE_SECONDS)
            seconds[name].append(side.round()["seconds"]["total"])
    for side in sides.values():
        side.close()
    ratios = [mine / plain for mine, plain in zip(seconds["with"], seconds["without"])]
    print(
        f"{pathlib.Path(model).name:12} {min(seconds['without']) * 1e3:8.1f} ms, with dropout {options.rate:g}"
        f" {min(seconds['with']) * 1e3:8.1f} ms: {statistics.median(ratios):.3f} x ({min(ratios):.3f} to {max(ratios):.3f})",
        flush=True,
    )


def main():
    options = parse_arguments()
    for model in options.models:
        measure(options, model)


if __name__ == "__main__":
    main()
