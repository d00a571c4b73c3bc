#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What outliers cost the gradients of experts in int8, and what blocks in 16 bits give back.

    outliers.py BINARY [--where hidden|input] [--model DIRECTORY] [--data PREFIX] [--factor 30] [--channels 2]
                [--sequence 256] [--batch 4]

Takes a trained model of the Mixtral kind, by default the newest checkpoint of tools/quickstart.sh, and tokens of its data.
With `hidden`, channels of every expert's up projection are multiplied by the factor, and the columns of down that read them
divided by it. With `input`, it is channels of the norm in front of the experts, and the columns of gate, up and the router.
So the model computes the same function, but a few elements of each row that a product reads outweigh the others. `hidden`
also spreads the weights of a tile of up, which no fallback mends; `input` does so to no weight by more than the factor down.
Gradients are those of `anabatic gradients`, in units of the weights as trained; errors are shares of the norm of those in
fp32.

Exit code 1 where the outliers raise the error of experts by less than 1.3 times with fallback off, for then they show
nothing; and where a fallback of 64 closes less than 40 % of what they cost, or one of 16 less than 80 %.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy
from safetensors.numpy import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "build" / "quickstart"
LEAST_RISE = 1.3
LEAST_CLOSED = {"64": 0.4, "16": 0.8}
FALLBACKS = ["off", "64", "32", "16", "0"]
EXPERTS = {"gate": ".w1.weight", "up": ".w3.weight", "down": ".w2.weight"}


def newest_checkpoint(run):
    return run / (run / "latest").read_text().strip() if (run / "latest").exists() else run


def scale_channels(where, name, tensor, channels, factor):
    """Multiplies the part of a weight that makes the outliers, divides the part that reads them. True for an expert's."""
    times, over = numpy.s_[:channels], numpy.s_[:, :channels]
    made, read = {
        "hidden": (r"experts\.\d+\.w3\.weight$", r"experts\.\d+\.w2\.weight$"),
        "input": (r"post_attention_layernorm\.weight$", r"(experts\.\d+\.w[13]|block_sparse_moe\.gate)\.weight$"),
    }[where]
    if re.search(made, name):
        tensor[times] *= numpy.float32(factor)
    elif re.search(read, name):
        tensor[over] /= numpy.float32(factor)
    else:
        return False
    return ".experts." in name


def plant(options, model, output):
    """`model` with outliers, as a directory of its own."""
    shutil.copytree(model, output)
    found = 0
    for path in output.glob("model*.safetensors"):
        tensors = load_file(path)
        for name, tensor in tensors.items():
            found += scale_channels(options.where, name, tensor, options.channels, options.factor)
        save_file(tensors, path, metadata={"format": "pt"})
    if found == 0:
        sys.exit(f"{model}: expected experts with names of Mixtral (experts.N.w3.weight), found none")
    for left in ("checksums.json", "anabatic.manifest.json", "training_state.json", "training_state.safetensors"):
        (output / left).unlink(missing_ok=True)


def write_tokens(options, path):
    values = numpy.fromfile(options.data.with_suffix(".bin"), dtype=numpy.uint16)[: options.batch * options.sequence]
    ids = values.reshape(options.batch, options.sequence).astype(numpy.int64)
    save_file({"input_ids": ids, "labels": ids}, path)  # as transformers has labels: not shifted


def gradients(options, folder, model, unit, *flags):
    """Those of experts, of channels times the factor in units of the weights as trained."""
    output = folder / "gradients.safetensors"
    command = [options.binary, "gradients", model, "--tokens", folder / "tokens.safetensors", "--output", output, *flags]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    found = {name: tensor.astype(numpy.float64) for name, tensor in load_file(output).items() if ".experts." in name}
    for name, tensor in found.items():
        scale_channels(options.where, name, tensor, options.channels, unit)
    return found


def error(got, want, part=""):
    names = [name for name in want if name.endswith(part)]
    difference = sum(numpy.square(got[name] - want[name]).sum() for name in names)
    return (difference / sum(numpy.square(want[name]).sum() for name in names)) ** 0.5


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--where", choices=["hidden", "input"], default="hidden")
    parser.add_argument("--model", type=pathlib.Path, default=QUICKSTART / "run-1")
    parser.add_argument("--data", type=pathlib.Path, default=QUICKSTART / "data" / "train")
    parser.add_argument("--factor", type=float, default=30)
    parser.add_argument("--channels", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    model = newest_checkpoint(options.model)
    int8 = ("--precision", "int8", "--precision.int8.fallback")
    rows, totals = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        planted = folder / "model"
        plant(options, model, planted)
        write_tokens(options, folder / "tokens.safetensors")
        for name, path, unit in (("as trained", model, 1), ("outliers", planted, options.factor)):
            want = gradients(options, folder, path, unit, "--precision", "fp32")
            for format, flags in (("bf16", ("--precision", "bf16")), *((f"int8, fallback {k}", (*int8, k)) for k in FALLBACKS)):
                got = gradients(options, folder, path, unit, *flags)
                rows[name, format] = [error(got, want, part) for part in EXPERTS.values()]
                totals[name, format] = error(got, want)
    what = {"hidden": "channels of every expert", "input": "channels of the experts' input"}[options.where]
    print(f"{options.channels} {what} times {options.factor:g}: error of experts' gradients\n")
    print(f"| model | format | {' | '.join(EXPERTS)} | experts | closed |\n|---|---|---|---|---|---|---|")
    before, raised = totals["as trained", "int8, fallback off"], totals["outliers", "int8, fallback off"]
    rise, closed = raised / before, {}
    for (name, format), row in rows.items():
        closed[name, format] = (raised - totals[name, format]) / (raised - before) if raised > before else 0
        share = f"{closed[name, format]:.0%}" if name == "outliers" and format.startswith("int8") else ""
        print(f"| {name} | {format} | {' | '.join(f'{x:.2%}' for x in row)} | {totals[name, format]:.2%} | {share} |")
    print(f"\nthe outliers raise the error {rise:.2f} times{'' if rise >= LEAST_RISE else ': TOO LITTLE to show anything'}")
    holds = rise >= LEAST_RISE
    for fallback, least in LEAST_CLOSED.items():
        share = closed["outliers", f"int8, fallback {fallback}"]
        print(f"a fallback of {fallback} closes {share:.0%}, at least {least:.0%} asked: {'holds' if share >= least else 'MISSED'}")
        holds = holds and share >= least
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
