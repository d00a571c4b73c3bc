#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of one model with each activation, of equal FLOPs, in alternating rounds: each against SwiGLU's.

    activations.py [--models bench/yardsticks/moe_fine ...] [--rounds 5] [--batch 4] [--sequence 512]

A row is a value of hidden_act. The ratio is to the same round's step of silu; the median of rounds is printed.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import common  # noqa: E402

ACTIVATIONS = {"silu": "swiglu", "gelu_pytorch_tanh": "geglu_tanh", "gelu": "geglu", "relu2": "reglu2"}
YARDSTICKS = ("moe_fine", "moe_coarse", "dense")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(common.ROOT / "build/release/anabatic"))
    parser.add_argument("--models", nargs="+", default=[str(common.ROOT / "bench/yardsticks" / name) for name in YARDSTICKS])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    options.no_check, options.rest = True, []
    return options


def measure(options, model, folder):
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    sides, seconds = {}, {name: [] for name in ACTIVATIONS}
    for name in ACTIVATIONS:
        directory = folder / f"{pathlib.Path(model).name}.{name}"
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config | {"hidden_act": name}))
        settings = {"model.path": str(directory), "batch": options.batch, "sequence": options.sequence}
        sides[name] = common.Anabatic(options, "step", settings)
        sides[name].round()
    for _ in range(options.rounds):
        for name, side in sides.items():
            time.sleep(common.SETTLE_SECONDS)
            seconds[name].append(side.round()["seconds"]["total"])
    for side in sides.values():
        side.close()
    for name, activation in ACTIVATIONS.items():
        ratios = [mine / silu for mine, silu in zip(seconds[name], seconds["silu"])]
        print(
            f"{pathlib.Path(model).name:12} {activation:11} {min(seconds[name]) * 1e3:8.1f} ms"
            f" {statistics.median(ratios):.3f} x swiglu ({min(ratios):.3f} to {max(ratios):.3f})",
            flush=True,
        )


def main():
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            measure(options, model, pathlib.Path(folder))


if __name__ == "__main__":
    main()
