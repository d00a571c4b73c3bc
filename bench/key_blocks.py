#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Block-sparse attention next to dense attention, forward and backward. Both take turns, a round each, and each round has its own peak.

The share of the peak counts the pairs of rows and keys that the lists leave. The limit is (1.15 density + 0.035) x the dense time.
usage: key_blocks.py --binary build/release/anabatic [--sequence 8192] [--heads 8] [--rounds 7] [--blocks 64 128] [--head_dims 64 128]
       [--densities 0.5 0.25 0.1] [KEYS AND FLAGS OF `anabatic bench attention`]
"""
import argparse
import statistics

import served


class Bench(served.Served):
    """Attention of one form."""

    def __init__(self, options, head_dim, *flags):
        command = [options.binary, "bench", "attention", "--serve", "--json", "--no_check", "--sequence", options.sequence, "--heads", options.heads,
                   "--head_dim", head_dim, *flags, *options.rest]
        self.flops, self.shares = 0, []
        super().__init__(" ".join(map(str, command)), command, {})

    def read(self):
        line = super().read()
        if "parts" in line:
            self.flops = line["parts"][0]["flops"]
        else:
            self.shares.append(self.flops / line["seconds"]["total"] / line["peak_flops_per_second"])
        return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--sequence", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--blocks", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--head_dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--densities", type=float, nargs="+", default=[0.5, 0.25, 0.1])
    options, options.rest = parser.parse_known_args()
    print("| head, block | density | dense, of peak | sparse, of peak | time, of dense | limit |\n|---|---|---|---|---|---|", flush=True)
    for head_dim in options.head_dims:
        for block in options.blocks:
            for wanted in options.densities:
                dense, sparse = Bench(options, head_dim), Bench(options, head_dim, "--blocks", block, "--density", wanted)
                for _ in range(options.rounds):
                    dense.round()
                    sparse.round()
                density = sparse.flops / dense.flops
                ratio = statistics.median(b / a for a, b in zip(dense.seconds, sparse.seconds))
                print(f"| {head_dim}, {block} | {density:.3f} | {100 * statistics.median(dense.shares):.0f} % | "
                      f"{100 * statistics.median(sparse.shares):.0f} % | {ratio:.3f} | {1.15 * density + 0.035:.3f} |", flush=True)
                for bench in (dense, sparse):
                    bench.process.stdin.close()
                    bench.process.wait()


if __name__ == "__main__":
    main()
