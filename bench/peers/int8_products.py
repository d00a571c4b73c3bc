#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Int8 products over a grid of sizes: ours, which quantise their operands by blocks, against our bf16 products and torch._int_mm.

torch._int_mm multiplies int8 matrices that are there already, and leaves 32-bit sums without a scale. Rounds alternate. For each
group of rows: the geometric mean and the lowest cell of the share of the int8 peak, and means of the ratios of times.
"""
import argparse
import statistics
import sys
import time

import common

WEIGHTS = ((512, 512), (512, 1536), (1536, 512), (512, 2048), (2048, 512), (1024, 4096), (2048, 2048))  # in, out
PARTS = ("forward", "input_gradient", "weight_gradient")


def torch_products(rows, width, out):
    """The three products of a linear layer, by part."""
    import torch

    def codes(*shape):
        return torch.randint(-127, 128, shape, dtype=torch.int8)

    x, weight, dy = codes(rows, width), codes(width, out), codes(rows, out)
    operands = {"forward": (x, weight), "input_gradient": (dy, weight.t().contiguous()),
                "weight_gradient": (x.t().contiguous(), dy)}
    return lambda: common.timed({part: lambda pair=pair: torch._int_mm(*pair) for part, pair in operands.items()})


def cell(args, rows, width, out):
    settings = {"rows": rows, "in": width, "out": out}
    sides = {}
    for precision in ("int8", "bf16"):
        args.precision = precision
        sides[precision] = common.Anabatic(args, "gemm", settings)
    peers = common.make_peers({"torch": lambda: torch_products(rows, width, out)}) if args.torch else []
    flops = {part["name"]: part["flops"] for part in sides["int8"].header["parts"]}
    shares, bf16, torch = ({part: [] for part in PARTS} for _ in range(3))
    for _ in range(args.rounds):
        time.sleep(common.SETTLE_SECONDS)
        ours, other = sides["int8"].round(), sides["bf16"].round()
        theirs = [peer.round() for peer in peers]
        for part in PARTS:
            seconds = ours["seconds"][part]
            shares[part].append(flops[part] / seconds / ours["peak_flops_per_second"])
            bf16[part].append(other["seconds"][part] / seconds)
            torch[part] += [each[part] / seconds for each in theirs]
    for side in sides.values():
        side.close()
    return [{part: statistics.median(values) for part, values in each.items() if values} for each in (shares, bf16, torch)]


def main():
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--binary", default=str(common.ROOT / "build/release/anabatic"))
    made.add_argument("--rows", type=int, nargs="+", default=[4096, 1024, 256, 64, 16])
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--torch", action="store_true", help="torch._int_mm too")
    args = made.parse_args()
    args.no_check = True
    if args.torch:
        import torch

        torch.set_num_threads(args.threads)
    for rows in args.rows:
        cells = []
        for width, out in WEIGHTS:
            cells.append(cell(args, rows, width, out))
            shares, bf16, theirs = cells[-1]
            print(f"{rows:5} x {width:4} x {out:4}  " + "  ".join(
                f"{part} {shares[part]:6.1%}, {bf16[part]:.2f}x bf16" + (f", {theirs[part]:.2f}x torch" if theirs else "")
                for part in PARTS), flush=True)
        for part in PARTS:
            of_part = [[each[part] for each in column if each] for column in zip(*cells, strict=True)]
            means = [statistics.geometric_mean(column) if column else 0 for column in of_part]
            print(f"{rows:5} rows, {part}: mean {means[0]:.1%}, lowest {min(of_part[0]):.1%} of the int8 peak; {means[1]:.2f}x our bf16"
                  + (f"; {means[2]:.2f}x torch._int_mm" if means[2] else ""), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
