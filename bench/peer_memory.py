#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak resident memory and step time of `anabatic train` in bf16 compared with PyTorch's autocast, the same config and batch: without a budget; in the
leanest plan whose predicted step is 5 % longer at most; and the same with moments in bf16 and updates in the backward, against the step of these
keys without a budget, which is shorter, and against that of the first row.

PyTorch's variants each have a process of their own; the leanest one that finishes is the measure. The rows run in turn, and a time is the median of
rounds, next to that of no budget. Run it with a Python that has torch and transformers.
usage: peer_memory.py --binary build/release/anabatic --directory SCRATCH [--batch 4] [--sequence 512] [--variants eager compiled] [--steps 4] [--rounds 3]
       MODEL...
"""
import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys

from frontier import choices, plan, train, write_tokens

LEAN = ["--optimizer.state_precision", "bf16", "--optimizer.update", "in_backward"]


def run_peer(config, is_compiled, batch, sequence, steps):
    """In a process of its own: the peak and step times of PyTorch, as a line of JSON."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
    from step import runner

    import torch

    step = runner(argparse.Namespace(config=config, batch=batch, sequence=sequence), torch.float32, True, None, is_compiled)()
    seconds = [step()["total"] for _ in range(steps + 1)]
    print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, seconds[1:]]))


def peer(options, model, variant):
    """Peak in bytes and median step in seconds; None where it does not finish."""
    command = [sys.executable, __file__, "--peer", variant, "--batch", str(options.batch), "--sequence", str(options.sequence), "--steps",
               str(options.steps), model]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(f"PyTorch {variant} did not finish: {result.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    peak, seconds = json.loads(result.stdout.splitlines()[-1])
    return peak, statistics.median(seconds)


def leanest(options, keys, than):
    """The smallest budget, to a tenth of a percent of the whole, whose plan keeps all on memory's tier and is predicted to take 5 % longer at most than one of the
    keys `than` without a budget."""
    keys = [*keys, "--memory.optimizer_state", "resident"]
    whole, longest = plan(options, keys), 1.05 * plan(options, than)["step"]["seconds"]
    low, high, is_floor = whole["peak_bytes"] // 4, whole["peak_bytes"], True
    while high - low > whole["peak_bytes"] // 1000:
        budget = (low + high) // 2
        planned = plan(options, [*keys, "--memory.budget", str(budget)])
        is_refused = isinstance(planned, str)
        if not is_refused and planned["step"]["seconds"] <= longest:
            high = budget
        else:
            low, is_floor = budget, is_refused
    if is_floor:  # which `train` finds higher by what it takes itself, measured at its start
        high += 4 << 20
    return [*keys, "--memory.budget", str(high)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary")
    parser.add_argument("--directory")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--variants", nargs="+", default=["eager", "compiled"])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("models", nargs="+")
    options = parser.parse_args()
    if options.peer:
        return run_peer(options.models[0], options.peer == "compiled", options.batch, options.sequence, options.steps)
    if not options.binary or not options.directory:
        parser.error("--binary and --directory are needed")
    pathlib.Path(options.directory).mkdir(parents=True, exist_ok=True)
    options.tokens = str(pathlib.Path(options.directory) / "peer_tokens")
    options.rest = ["--train.micro_batch_size", str(options.batch), "--data.sequence_length", str(options.sequence)]
    for model in options.models:
        options.model = model
        write_tokens(options.tokens, json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"])
        peers = {variant: peer(options, model, variant) for variant in options.variants}
        finished = {variant: found for variant, found in peers.items() if found}
        if not finished:
            raise SystemExit(f"{model}: no variant of PyTorch finished")
        least = min(peak for peak, _ in finished.values())
        print(f"| {pathlib.Path(model).name}, {options.batch} x {options.sequence} | peak | of PyTorch's leanest | step | chosen |\n|---|---|---|---|---|")
        for variant, (peak, seconds) in finished.items():
            print(f"| PyTorch autocast, {variant} | {1e-9 * peak:.3f} GB | {peak / least:.3f}x | {seconds:.3f} s | |", flush=True)
        rows = {"no budget": [], "leanest within 5 %": leanest(options, [], []),
                "bf16 moments, in_backward, within 5 % of the same": leanest(options, LEAN, LEAN),
                "bf16 moments, in_backward, within 5 % of no budget": leanest(options, LEAN, [])}
        runs = {name: [] for name in rows}
        for _ in range(options.rounds):
            for name, keys in rows.items():
                runs[name].append(train(options, keys))
        base = statistics.median(statistics.median(seconds) for _, _, seconds in runs["no budget"])
        for name, keys in rows.items():
            planned = plan(options, keys)
            predicted, measured = runs[name][-1][0], max(peak for _, peak, _ in runs[name])
            median = statistics.median(statistics.median(seconds) for _, _, seconds in runs[name])
            print(f"| {name} | {1e-9 * predicted:.3f} / {1e-9 * measured:.3f} GB | {measured / least:.3f}x | "
                  f"{planned['step']['seconds']:.3f} / {median:.3f} s ({100 * (median / base - 1):+.1f} %) | {choices(planned)} |", flush=True)


if __name__ == "__main__":
    main()
