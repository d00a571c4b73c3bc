#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Step time with the optimizer state on disk against resident, in turn, with the disk's own rate probed around each.

The bound that a disk sets is what a step moves (every moment read and written once) over the rates of the probes.
usage: disk.py --binary build/release/anabatic --directory SCRATCH [--rounds 3] --model.path bench/yardsticks/moe_fine
       --model.init random --train.micro_batch_size 4 --data.sequence_length 512 [KEYS AND FLAGS OF `anabatic profile`]
"""
import argparse
import json
import re
import statistics
import subprocess


def call(arguments):
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(result.stderr)
    return result.stdout


def probe(options):
    """GB/s read and written, as `anabatic doctor` says them."""
    out = call([options.binary, "doctor", "--memory.swap_directory", options.directory])
    line = next(line for line in out.splitlines() if line.startswith("disk "))
    found = re.search(r"([\d.]+) GB/s read, ([\d.]+) GB/s written", line)
    if not found:
        raise SystemExit(line)
    return float(found[1]), float(found[2])


def profile(options, tier):
    tiers = ["--memory.optimizer_state", tier, "--memory.swap_directory", options.directory]
    return json.loads(call([options.binary, "profile", "--json", *options.rest, *tiers]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    options, options.rest = parser.parse_known_args()
    times = {"resident": [], "disk": []}
    reads, writes, on_disk = [], [], []
    for _ in range(options.rounds):
        for tier, list_of_times in times.items():
            read, written = probe(options)
            reads.append(read)
            writes.append(written)
            result = profile(options, tier)
            list_of_times.append(result["median_step_seconds"])
            if tier == "disk":
                on_disk.append(result)
    resident, disk = (statistics.median(times[tier]) for tier in ("resident", "disk"))
    moved, busy, waited = (
        statistics.median(result[key] for result in on_disk) for key in ("disk_bytes", "disk_seconds", "disk_waited_seconds")
    )
    read, written = statistics.median(reads), statistics.median(writes)
    bound = 1e-9 * moved / 2 * (1 / read + 1 / written)
    pairs = statistics.median(b / a for a, b in zip(times["resident"], times["disk"]))
    print(
        f"resident {resident:.2f} s, disk {disk:.2f} s ({disk / resident:.2f}x; median of pairs {pairs:.2f}x) a step, "
        f"medians of {options.rounds} runs each"
    )
    print(f"a step moved {1e-9 * moved:.2f} GB in {busy:.2f} s and waited {waited:.2f} s for it")
    print(f"probes of the disk {read:.2f} GB/s read, {written:.2f} GB/s written: its bound {bound:.2f} s")
    print(f"max(1.05 x resident, bound) = {max(1.05 * resident, bound):.2f} s")
    print("all:", json.dumps({**times, "read": reads, "written": writes}))


if __name__ == "__main__":
    main()
