#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What blocks of int8 products that fall back cost: times of `anabatic bench gemm`, as multiples of those with fallback off.

Three rows: a fallback of 64 of data in which no block falls back, of data with an outlier in a tenth of the blocks, and a
fallback of 0, by which all blocks do. Rounds alternate. Only blocks of the layer's input fall back: the forward and the weight
gradient pay for them. Exit code 1 where the geometric mean of one of these two, over all sizes, is above what is asked.
"""
import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import common  # noqa: E402

WEIGHTS = ((512, 512), (512, 1536), (1536, 512), (2048, 2048))  # in, out
PARTS = ("forward", "weight_gradient", "total")
OFF = "off"
# Row: fallback, share of blocks with an outlier, most that is asked.
ROWS = {"64, no block": (64, 0, 1.02), "64, a tenth of the blocks": (64, 0.1, 1.15), "0, all blocks": (0, 0, 2.1)}


def cell(args, rows, width, out):
    """Ratios of times to those with fallback off, by row and part."""
    sides = {}
    for name, (fallback, outliers, _) in {OFF: (OFF, 0, None), **ROWS}.items():
        sides[name] = common.Anabatic(args, "gemm", {"rows": rows, "in": width, "out": out, "outliers": outliers,
                                                     "precision.int8.fallback": fallback, **args.clock})
    ratios = {name: {part: [] for part in PARTS} for name in ROWS}
    for _ in range(args.rounds):
        time.sleep(common.SETTLE_SECONDS)
        seconds = {name: side.round()["seconds"] for name, side in sides.items()}
        for name in ROWS:
            for part in PARTS:
                ratios[name][part].append(seconds[name][part] / seconds[OFF][part])
    for side in sides.values():
        side.close()
    return {name: {part: statistics.median(values) for part, values in parts.items()} for name, parts in ratios.items()}


def main():
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--binary", default=str(common.ROOT / "build/release/anabatic"))
    made.add_argument("--rows", type=int, nargs="+", default=[2048, 256])
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--rounds", type=int, default=15)
    made.add_argument("--cpu_time", action="store_true", help="count CPU time of one thread, for a machine that others use too")
    args = made.parse_args()
    args.no_check, args.precision, args.clock = True, "int8", {"cpu_time": True} if args.cpu_time else {}
    cells = []
    for rows in args.rows:
        for width, out in WEIGHTS:
            cells.append(cell(args, rows, width, out))
            for name, parts in cells[-1].items():
                print(f"{rows:5} x {width:4} x {out:4}  fallback {name:25}  " + "  ".join(f"{part} {parts[part]:.2f}x" for part in PARTS),
                      flush=True)
    missed = 0
    for name, (_, _, most) in ROWS.items():
        means = {part: statistics.geometric_mean(each[name][part] for each in cells) for part in PARTS}
        holds = max(means["forward"], means["weight_gradient"]) <= most
        missed += not holds
        print(f"fallback {name}: " + ", ".join(f"{part} {mean:.3f}x" for part, mean in means.items())
              + f"; at most {most}x asked: {'holds' if holds else 'MISSED'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
