# SPDX-License-Identifier: Apache-2.0
"""What every comparison shares: our side served round by round, peers in turn with it, medians, one table, one JSON object.

Import this before torch: it removes the variables that would slow PyTorch down.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_NUM_THREADS")
if any(name in os.environ for name in UNSET):  # libraries read them as the process starts
    for name in UNSET:
        os.environ.pop(name, None)
    os.execv(sys.executable, [sys.executable, *sys.argv])

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROUND_SECONDS = 10e-3
SETTLE_SECONDS = 30e-3  # spinning threads of the side before go to sleep


def parser(description, precisions=("fp32", "bf16")):
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--binary", default=str(ROOT / "build/release/anabatic"))
    made.add_argument("--precision", choices=precisions, default="bf16")
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--rounds", type=int, default=7)
    made.add_argument("--compile", action="store_true", help="torch.compile variants too")
    made.add_argument("--no_check", action="store_true", help="do not compare our side with ref first")
    made.add_argument("--json", metavar="FILE", help="write the results here")
    return made


class Anabatic:
    """`anabatic bench KIND --serve`: checked against ref, then one round a call."""

    name = "anabatic"

    def __init__(self, args, kind, settings):
        command = [args.binary, "bench", kind, "--serve", "--device.threads", str(args.threads),
                   "--train.precision", args.precision]
        if getattr(args, "no_check", False):
            command.append("--no_check")
        for key, value in settings.items():
            command += [f"--{key}"] if value is True else [f"--{key}", str(value)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.header = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"anabatic bench ended with exit code {self.process.wait()}")
        return json.loads(line)

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Peer:
    """`run()` does the work once and returns seconds by part, {"total": ...} at least."""

    def __init__(self, name, run):
        self.name, self.run = name, run
        seconds = self.run()["total"]
        if seconds < 1:  # the first run also pays for compilation and cold pages
            seconds = self.run()["total"]
        self.repeats = max(1, min(1000, round(ROUND_SECONDS / max(seconds, 1e-9))))

    def round(self):
        sums = {}
        for _ in range(self.repeats):
            for part, seconds in self.run().items():
                sums[part] = sums.get(part, 0.0) + seconds
        return {part: seconds / self.repeats for part, seconds in sums.items()}


def timed(parts):
    """{"forward": f, "backward": g} run in order; seconds of each and of all."""
    seconds = {}
    for name, work in parts.items():
        begin = time.perf_counter()
        work()
        seconds[name] = time.perf_counter() - begin
    seconds["total"] = sum(seconds.values())
    return seconds


def make_peers(makers):
    """Peers that this PyTorch can run; the reason is printed for one that it cannot."""
    peers = []
    for name, make in makers.items():
        try:
            peers.append(Peer(name, make()))
        except Exception as error:  # whatever a library raises is its reason
            print(f"left out: {name}: {type(error).__name__}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
    return peers


def alternate(args, kind, settings, makers, parts=None):
    """Rounds of ours and every peer in turn; prints the table and returns the result. `parts`: those that peers have of ours; None: all."""
    import torch

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    ours = Anabatic(args, kind, settings)
    peers = make_peers(makers)
    rounds, times = [], {peer.name: [] for peer in peers}
    for _ in range(args.rounds):
        time.sleep(SETTLE_SECONDS)
        rounds.append(ours.round())
        for peer in peers:
            time.sleep(SETTLE_SECONDS)
            times[peer.name].append({part: seconds for part, seconds in peer.round().items() if parts is None or part in parts})
    ours.close()
    result = summarize(ours.header, rounds, times)
    print_table(result, args)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    return result


def summarize(header, rounds, times):
    result = {"kind": header["kind"], "precision": header["precision"], "threads": header["threads"], "cpu": header["cpu"],
              "settings": header["settings"], "rounds": len(rounds), "parts": {}}
    for key in ("peak_flops_per_second", "copy_bytes_per_second"):
        result[key] = statistics.median(entry[key] for entry in rounds)
    for part in header["parts"]:
        name = part["name"]
        seconds = [entry["seconds"][name] for entry in rounds]
        row = {"seconds": statistics.median(seconds), "peers": {}}
        if part["flops"]:
            row["peak_share"] = statistics.median(
                part["flops"] / s / entry["peak_flops_per_second"] for s, entry in zip(seconds, rounds))
        if part["bytes"]:
            row["copy_share"] = statistics.median(
                part["bytes"] / s / entry["copy_bytes_per_second"] for s, entry in zip(seconds, rounds))
        for peer, entries in times.items():
            if not entries or name not in entries[0]:
                continue
            theirs = [entry[name] for entry in entries]
            row["peers"][peer] = {"seconds": statistics.median(theirs),
                                  "speedup": statistics.median(t / s for t, s in zip(theirs, seconds))}
        result["parts"][name] = row
    return result


def print_table(result, args):
    sizes = " ".join(f"{key}={value}" for key, value in result["settings"].items())
    print(f"{result['kind']} {result['precision']} {args.threads} threads, {result['rounds']} rounds: {sizes}")
    print(f"peak {result['peak_flops_per_second'] * 1e-9:.1f} GFLOP/s, copy {result['copy_bytes_per_second'] * 1e-9:.2f} GB/s")
    for name, row in result["parts"].items():
        shares = [f"{100 * row[key]:.1f}% of {word}" for key, word in (("peak_share", "peak"), ("copy_share", "copy")) if key in row]
        print(f"  {name:<16} {row['seconds'] * 1e3:10.3f} ms  {', '.join(shares)}")
        for peer, entry in sorted(row["peers"].items(), key=lambda item: item[1]["seconds"]):
            print(f"    {peer:<32} {entry['seconds'] * 1e3:10.3f} ms  {entry['speedup']:.2f}x our time")
