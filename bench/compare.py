#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a suite of `anabatic bench` and shows what became slower.

    compare.py --store bench/results.json              measure, and compare with what is stored for this CPU and thread count
    compare.py --store bench/results.json --update     the same, and keep the new results
    compare.py --base OTHER_BINARY                     two builds in turn, round by round, in one run

Results are shares of the peak (or of the copy) probed in the same rounds, so that runs on a busy or another day compare;
with --base they are ratios of times measured in turn. A case that is more than 10 % slower is named; the exit code is 1
when the geometric mean is more than 2 % slower.
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import common  # noqa: E402

CASE_LIMIT, MEAN_LIMIT = 1.10, 1.02


def gemm_cases():
    return {f"gemm {rows} x {k} x {n}": ("gemm", {"rows": rows, "in": k, "out": n})
            for rows in (16, 64, 1024) for k, n in ((512, 512), (512, 2048), (2048, 512), (4096, 512))}


QUICK = {
    "gemm 1024 x 512 x 512": ("gemm", {"rows": 1024, "in": 512, "out": 512}),
    "moe coarse, 256 rows": ("moe", {"tokens": 1024, "experts": 8, "intermediate": 1536, "top_k": 2}),
    "attention 2048, heads of 64": ("attention", {"sequence": 2048, "heads": 8}),
    "rms_norm": ("norm", {"op": "rms_norm"}),
    "loss 512": ("loss", {"tokens": 512}),
    "optimizer": ("optimizer", {"matrices": 2}),
}
FULL = {
    **gemm_cases(),
    "moe coarse, 256 rows": QUICK["moe coarse, 256 rows"],
    "moe coarse, 16 rows": ("moe", {"tokens": 64, "experts": 8, "intermediate": 1536, "top_k": 2}),
    "moe coarse, 256 rows, zipf": ("moe", {"tokens": 1024, "experts": 8, "intermediate": 1536, "top_k": 2, "zipf": 1.2}),
    "moe fine, 256 rows": ("moe", {"tokens": 2048, "experts": 64, "intermediate": 256, "top_k": 8}),
    "moe fine, 16 rows": ("moe", {"tokens": 128, "experts": 64, "intermediate": 256, "top_k": 8}),
    **{f"attention {s}, heads of {d}": ("attention", {"sequence": s, "heads": h, "head_dim": d})
       for s in (2048, 8192) for d, h in ((64, 8), (128, 4))},
    "attention 2048, 192/128": ("attention", {"sequence": 2048, "heads": 4, "head_dim": 192, "v_head_dim": 128}),
    "attention 4 x 512": ("attention", {"batch": 4, "sequence": 512, "heads": 8}),
    "attention, documents of 64": ("attention", {"sequence": 4096, "documents": 64, "heads": 8}),
    **{op: ("norm", {"op": op, "rows": 65536}) for op in ("rms_norm", "residual", "rope", "swiglu", "gather")},
    "loss 2048": ("loss", {"tokens": 2048}),
    "loss 2048, half ignored": ("loss", {"tokens": 2048, "ignored": 0.5}),
    "optimizer": ("optimizer", {"matrices": 4}),
    **{f"step {name}": ("step", {"model.path": str(common.ROOT / "bench/yardsticks" / name), "batch": 4, "sequence": 512})
       for name in ("moe_coarse", "moe_fine", "dense")},
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(common.ROOT / "build/release/anabatic"))
    parser.add_argument("--base", help="another build of the binary, to take turns with")
    parser.add_argument("--store", type=pathlib.Path, help="JSON of earlier results")
    parser.add_argument("--update", action="store_true", help="keep the new results in --store")
    parser.add_argument("--suite", choices=("quick", "full"), default="quick")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    if args.update and not args.store:
        parser.error("--update needs --store")
    return args


def run_rounds(args, kind, settings):
    """Rounds of the binary, and of the base in turn with it when there is one; the header of the binary."""
    sides = [common.Anabatic(args, kind, settings)]
    if args.base:
        sides.append(common.Anabatic(argparse.Namespace(**{**vars(args), "binary": args.base}), kind, settings))
    rounds = [[] for _ in sides]
    for _ in range(args.rounds):
        for side, entries in zip(sides, rounds):
            time.sleep(common.SETTLE_SECONDS)
            entries.append(side.round())
    for side in sides:
        side.close()
    return sides[0].header, rounds


def score(header, entries):
    """The whole as a share of the peak, or of the copy where FLOPs say nothing."""
    part = header["parts"][0]
    amount, probe = ("flops", "peak_flops_per_second") if part["flops"] else ("bytes", "copy_bytes_per_second")
    shares = [part[amount] / entry["seconds"]["total"] / entry[probe] for entry in entries]
    return {"share": statistics.median(shares), "of": "peak" if part["flops"] else "copy",
            "seconds": statistics.median(entry["seconds"]["total"] for entry in entries)}


def machine(header, args):
    commit = subprocess.run(["git", "-C", str(common.ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return {"cpu": header["cpu"], "threads": header["threads"], "precision": header["precision"],
            "binary": subprocess.run([args.binary, "--version"], capture_output=True, text=True).stdout.strip(),
            "commit": commit.stdout.strip(), "date": time.strftime("%Y-%m-%d")}


def verdict(slowdowns):
    """Prints the summary of {case: time / earlier time}; the process's exit code."""
    if not slowdowns:
        return 0
    mean = math.exp(statistics.fmean(math.log(value) for value in slowdowns.values()))
    for name, value in slowdowns.items():
        if value > CASE_LIMIT:
            print(f"slower: {name}: {100 * (value - 1):.1f} %")
    print(f"geometric mean of {len(slowdowns)} cases: {mean:.3f} x the earlier time")
    return 1 if mean > MEAN_LIMIT else 0


def main():
    args = parse_arguments()
    stored = json.loads(args.store.read_text()) if args.store and args.store.exists() else {}
    slowdowns, results, where = {}, {}, None
    for name, (kind, settings) in (FULL if args.suite == "full" else QUICK).items():
        if args.only not in name:
            continue
        header, rounds = run_rounds(args, kind, settings)
        where = where or machine(header, args)
        key = f"{where['cpu']}, {where['threads']} threads, {where['precision']}"
        result = results[name] = score(header, rounds[0])
        line = f"{name:<32} {1e3 * result['seconds']:10.3f} ms {100 * result['share']:6.1f} % of {result['of']}"
        before = stored.get(key, {}).get("cases", {}).get(name)
        if args.base:
            pairs = zip(rounds[0], rounds[1])
            slowdowns[name] = statistics.median(a["seconds"]["total"] / b["seconds"]["total"] for a, b in pairs)
        elif before:
            slowdowns[name] = before["share"] / result["share"]
        if name in slowdowns:
            line += f"  {slowdowns[name]:.3f} x the earlier time"
        print(line, flush=True)
    if args.update and results:
        kept = stored.setdefault(key, {"cases": {}})
        kept["machine"] = where
        kept["cases"].update(results)
        args.store.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    return verdict(slowdowns)


if __name__ == "__main__":
    sys.exit(main())
