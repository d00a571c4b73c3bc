# SPDX-License-Identifier: Apache-2.0
"""Multi-token prediction: the objective and every gradient of `anabatic gradients` against transformers' MtpModel, in both
spellings; what `convert` keeps; what `gradients` computes without it.

usage: parity_mtp.py BINARY [MODEL ...]      names of tests/support/random_mtp.py; none: all
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import random_models as models
import random_mtp
import tolerance
from parity_models import Report, gradient_of_file_tensor, tensor_names

COEF, ROWS, LENGTH = 0.7, 3, 16


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def run_gradients(binary, directory, tokens, *more):
    output = directory.parent / "gradients.safetensors"
    run(binary, "gradients", directory, "--tokens", tokens, "--output", output, "--precision", "fp32", *more)
    return load_file(output)


def check(binary, folder, name, report):
    model, mtp = random_mtp.build(name)
    layers, hidden = model.config.num_hidden_layers, model.config.hidden_size
    input_ids, labels = models.make_tokens(model, ROWS, LENGTH, margin=tolerance.routing_margin(layers, hidden))
    tokens = folder / f"{name}.tokens"
    save_file({"input_ids": input_ids, "labels": labels}, tokens)
    loss, of_layers = random_mtp.losses(model, mtp, input_ids, labels)
    (loss + COEF * of_layers).backward()
    gradients = {n: p.grad for n, p in model.named_parameters()}
    bounds = tolerance.parity_bounds(layers + mtp.num_mtp_layers, hidden, torch.float32)
    worst = 0.0
    for fused in (False, True):
        directory = folder / f"{name}{'_fused' if fused else ''}"
        # Copies that files may hold.
        copies = {f"model.layers.{layers}.embed_tokens.weight": model.get_input_embeddings().weight.detach()}
        copies[f"model.layers.{layers}.shared_head.head.weight"] = model.lm_head.weight.detach()
        random_mtp.save(model, mtp, directory, fused, **copies if fused else {})
        ours = run_gradients(binary, directory, tokens, "--train.mtp_loss_coef", COEF)
        label = directory.name
        report.bounded(f"{label} objective", ours["loss"], (loss + COEF * of_layers).detach(), bounds["logits"])
        own = {n: p.grad for n, p in mtp.layers.named_parameters()}
        want = random_mtp.in_files(own, layers, fused)
        found = {n.removeprefix("grad.") for n in ours if n.startswith("grad.")}
        names = tensor_names(directory) - copies.keys()
        report.require(found == names, f"{label}: gradients of {sorted(found ^ names)} are missing or surplus")
        for key in sorted(found & names):
            expected = want[key] if key in want else gradient_of_file_tensor(key, gradients)
            report.require(expected.norm() > 0 or "experts" in key, f"{label}: the gradient of {key} is 0: proves nothing")
            worst = max(worst, report.bounded(f"{label} {key}", ours[f"grad.{key}"], expected, bounds["gradient"]))
    check_without(binary, folder / name, tokens, loss.detach(), bounds, report)
    check_convert(binary, folder, name, report)
    print(f"{name}: loss {loss:.3f}, of layers {of_layers:.3f}, worst relative error of a gradient {worst:.2g}", flush=True)


def check_without(binary, directory, tokens, loss, bounds, report):
    """By default the numbers are those of transformers' model, which drops the layers."""
    plain = run_gradients(binary, directory, tokens)
    report.bounded(f"{directory.name} without", plain["loss"], loss, bounds["logits"])
    report.require(not any("eh_proj" in n for n in plain), f"{directory.name}: gradients of layers that are left out")


def check_convert(binary, folder, name, report):
    """Both spellings hold every tensor, and the way back is the same files' values."""
    source, fused, back = folder / name, folder / f"{name}.fused", folder / f"{name}.back"
    run(binary, "convert", source, fused, "--experts", "fused")
    run(binary, "check", "manifest", fused, "--against", source)
    run(binary, "convert", fused, back, "--experts", "separate")
    want, got = (load_file(directory / "model.safetensors") for directory in (source, back))
    report.require(want.keys() == got.keys(), f"{name}: convert loses {sorted(want.keys() ^ got.keys())}")
    for key in want.keys() & got.keys():
        report.require(torch.equal(want[key], got[key]), f"{name}: convert changes {key}")


def main():
    binary, chosen = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or list(random_mtp.MODELS)
    torch.set_num_threads(1)
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            check(binary, pathlib.Path(folder), name, report)
    print("\n".join(report.failures))
    print(f"{len(chosen)} models, {len(report.failures)} failures")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
