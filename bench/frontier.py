#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What memory costs in time: `anabatic train` under budgets that are shares of the peak of the plan that keeps everything.

Budgets run in turn, so that each meets the same hours of a shared machine; a share that cannot be kept is printed with its reason.
usage: frontier.py --binary build/release/anabatic --directory SCRATCH [--shares 100 90 80 70 60 50] [--rounds 2] [--steps 3]
       bench/yardsticks/moe_coarse [KEYS AND FLAGS OF `anabatic train`]
"""
import argparse
import array
import json
import pathlib
import random
import shutil
import statistics
import struct
import subprocess


def write_tokens(path, vocabulary, documents=16, length=8192):
    """Random tokens as .bin and .idx (u16, one document after another), which train reads without a tokenizer."""
    rng = random.Random(1)
    with open(f"{path}.bin", "wb") as file:
        for _ in range(documents):
            array.array("H", [rng.randrange(3, vocabulary) for _ in range(length)]).tofile(file)
    with open(f"{path}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, documents, documents + 1))
        array.array("i", [length] * documents).tofile(file)
        array.array("q", [2 * length * i for i in range(documents)]).tofile(file)
        array.array("q", range(documents + 1)).tofile(file)


def plan(options, keys):
    result = subprocess.run([options.binary, "plan", options.model, "--json", *options.rest, *keys], capture_output=True, text=True, check=False)
    if result.returncode not in (0, 3):
        raise SystemExit(result.stderr)
    return json.loads(result.stdout) if result.returncode == 0 else result.stderr.strip()


def train(options, keys, init="random", keep=None):
    """Peaks, and step times without those of the first step, of one run. Its last checkpoint goes to `keep`, if given."""
    output = pathlib.Path(options.directory) / "frontier_run"
    shutil.rmtree(output, ignore_errors=True)
    command = [options.binary, "train", "--model.path", options.model, "--model.init", init, "--data.train", options.tokens,
               "--train.output", str(output), "--train.steps", str(options.steps), *options.rest, *keys]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(result.stderr)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    if keep:
        shutil.move(max(output.glob("step-*")), keep)
    shutil.rmtree(output)
    return lines[-1]["planned_memory_bytes"], lines[-1]["peak_memory_bytes"], [line["step_time_s"] for line in lines[1:]]


def choices(planned):
    """What is not kept where the fastest plan has it, kinds of values over all layers together."""
    kinds = {}
    for choice in planned["recompute"]:
        name = choice["name"]
        kind = name.split(".", 2)[-1] if name.startswith("layers.") else name
        if choice["how"] != "recompute":
            kind += " on disk" if choice["how"] == "disk" else " as " + choice["how"]
        kinds[kind] = kinds.get(kind, 0) + 1
    texts = [f"{kind} x{count}" for kind, count in kinds.items()]
    if not any(row["name"] == "packings" and "transposed" in row["what"] for row in planned["table"]):
        texts.insert(0, "second packings")
    if planned["optimizer_state"]["tier"] == "disk":
        texts.insert(0, f"moments on disk (costs {planned['step']['disk_seconds']:.2f} s)")
    return ", ".join(texts) or "none"


def frame_bytes(planned):
    """Of values at the peak, with the arena's slack: gradients that share the arena are none of it."""
    frame = ("saved activations", "scratch", "workspaces", "arena slack")
    return sum(row["bytes"] for row in planned["table"] if row["name"] in frame)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--shares", type=int, nargs="+", default=[100, 90, 80, 70, 60, 50])
    parser.add_argument("--cuts", type=int, nargs="+", help="budgets that take so many percent of the frame instead of shares of the peak")
    parser.add_argument("--with_gradients", action="store_true", help="cuts are of the arena, gradients that share it included")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--predict", action="store_true", help="plans alone, no run")
    parser.add_argument("model")
    options, options.rest = parser.parse_known_args()
    options.tokens = str(pathlib.Path(options.directory) / "frontier_tokens")
    vocabulary = json.loads((pathlib.Path(options.model) / "config.json").read_text())["vocab_size"]
    pathlib.Path(options.directory).mkdir(parents=True, exist_ok=True)
    write_tokens(options.tokens, vocabulary)

    whole = plan(options, [])
    rows = []
    budgets = [(f"{share} %", whole["peak_bytes"] * share // 100 if share < 100 else 0) for share in options.shares]
    if options.cuts:
        cuttable = whole["arena"]["bytes"] if options.with_gradients else frame_bytes(whole)
        budgets = [("whole", 0)] + [(f"-{cut} %", whole["peak_bytes"] - cuttable * cut // 100) for cut in options.cuts]
    for name, budget in budgets:
        keys = ["--memory.budget", str(budget)] if budget else []
        rows.append({"name": name, "keys": keys, "plan": plan(options, keys), "peaks": [], "seconds": []})
    for _ in range(0 if options.predict else options.rounds):
        for row in rows:
            if isinstance(row["plan"], str):
                continue
            predicted, measured, seconds = train(options, row["keys"])
            row["peaks"].append((predicted, measured))
            row["seconds"] += seconds
    print("| budget | chosen | predicted / measured peak | predicted / measured step | of the plan that keeps all |")
    print("|---|---|---|---|---|")
    for row in rows:
        planned = row["plan"]
        if isinstance(planned, str):
            print(f"| {row['name']} | {planned} | | | |")
            continue
        peaks = [f"{1e-9 * planned['peak_bytes']:.3f}", "-"]
        seconds = [f"{planned['step']['seconds']:.2f}", "-"]
        ratios = [f"{planned['step']['seconds'] / whole['step']['seconds']:.3f}", "-"]
        if row["peaks"]:
            peaks = [f"{1e-9 * max(peak[i] for peak in row['peaks']):.3f}" for i in (0, 1)]
            seconds[1] = f"{statistics.median(row['seconds']):.2f}"
            ratios[1] = f"{statistics.median(row['seconds']) / statistics.median(rows[0]['seconds']):.3f}"
        print(f"| {row['name']} | {choices(planned)} | {peaks[0]} / {peaks[1]} GB | {seconds[0]} / {seconds[1]} s | {ratios[0]} / {ratios[1]} |")


if __name__ == "__main__":
    main()
