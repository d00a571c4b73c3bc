#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Matrix products over a grid of sizes, each a share of the peak probed in its own run: geometric mean and lowest cell by rows.

usage: gemm_grid.py [--binary build/release/anabatic] [--rows 4096 1024 256 64 16] [FLAGS OF `anabatic bench`, such as --device.threads 1]
"""
import argparse
import json
import statistics
import subprocess

WEIGHTS = ((512, 512), (512, 1536), (1536, 512), (512, 2048), (2048, 512), (1024, 4096), (2048, 2048))  # in, out
PARTS = {"forward": "forward and input-gradient", "input_gradient": "forward and input-gradient", "weight_gradient": "weight-gradient"}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", default="build/release/anabatic")
    arguments.add_argument("--rows", type=int, nargs="+", default=[4096, 1024, 256, 64, 16])
    options, rest = arguments.parse_known_args()
    peaks = []
    for rows in options.rows:
        shares = {}
        for width, out in WEIGHTS:
            command = [options.binary, "bench", "gemm", "--json", "--no_check", "--rows", str(rows), "--in", str(width), "--out", str(out), *rest]
            result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            peaks.append(result["peak_flops_per_second"])
            cells = {part["name"]: part["peak_share"] for part in result["parts"]}
            for part, group in PARTS.items():
                shares.setdefault(group, []).append(cells[part])
            print(f"{rows:5} x {width:4} x {out:4}  " + "  ".join(f"{part} {cells[part]:6.1%}" for part in PARTS), flush=True)
        for group, cells in shares.items():
            print(f"{rows:5} rows, {group}: mean {statistics.geometric_mean(cells):.1%}, lowest {min(cells):.1%}", flush=True)
    print(f"peak {min(peaks) / 1e9:.0f} to {max(peaks) / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
