# SPDX-License-Identifier: Apache-2.0
"""Multi-token prediction: the objective and every gradient of `anabatic gradients` against transformers' MtpModel, in both
spellings and in bf16; the same of an adapter of PEFT's; what `convert` keeps; what `gradients` computes without it.

usage: parity_mtp.py BINARY [MODEL ...]      names of tests/support/random_mtp.py; none: all
"""

import functools
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
from parity_lora import make_adapter
from parity_models import Report, check_total, compare, measured_bounds, tensor_names

COEF, ROWS, LENGTH = 0.7, 3, 16


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def run_gradients(binary, directory, tokens, precision, *more):
    output = directory.parent / "gradients.safetensors"
    run(binary, "gradients", directory, "--tokens", tokens, "--output", output, "--precision", precision, *more)
    return load_file(output)


def run_torch(model, mtp, input_ids, labels, autocast):
    """Objective, logits, gradients by the names of the module's parameters, and the losses of the model and of its layers."""
    for module in (model, mtp):
        module.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss, of_layers = random_mtp.losses(model, mtp, input_ids, labels)
        with torch.no_grad():
            logits = model(input_ids).logits.float()
    objective = loss + COEF * of_layers
    objective.backward()
    of_mtp = {n: p.grad for n, p in mtp.layers.named_parameters()}
    gradients = {n: p.grad for n, p in model.named_parameters()}
    gradients |= random_mtp.in_files(of_mtp, model.config.num_hidden_layers, fused=True)
    return objective.detach(), logits, gradients, loss.detach(), of_layers.detach()


def check(binary, folder, name, report):
    model, mtp = random_mtp.build(name)
    layers, hidden = model.config.num_hidden_layers, model.config.hidden_size
    depth = layers + mtp.num_mtp_layers
    margin, more_margins = tolerance.routing_margin(depth, hidden), functools.partial(random_mtp.margins, model, mtp)
    input_ids, labels = models.make_tokens(model, ROWS, LENGTH, margin=margin, more_margins=more_margins)
    tokens = folder / f"{name}.tokens"
    save_file({"input_ids": input_ids, "labels": labels}, tokens)
    reference, peer = (run_torch(model, mtp, input_ids, labels, autocast) for autocast in (False, True))
    bounds, most = (tolerance.parity_bounds(depth, hidden, dtype) for dtype in (torch.float32, torch.bfloat16))
    shares = {}
    for fused in (False, True):
        directory = folder / f"{name}{'_fused' if fused else ''}"
        # Copies that files may hold.
        copies = {f"model.layers.{layers}.embed_tokens.weight": model.get_input_embeddings().weight.detach()}
        copies[f"model.layers.{layers}.shared_head.head.weight"] = model.lm_head.weight.detach().clone()
        random_mtp.save(model, mtp, directory, fused, **copies if fused else {})
        names = tensor_names(directory) - copies.keys()
        ours = run_gradients(binary, directory, tokens, "fp32", "--train.mtp_loss_coef", COEF)
        shares[directory.name] = compare(report, directory.name, ours, reference[:3], names, bounds)
        if fused:
            continue
        rounded = run_gradients(binary, directory, tokens, "bf16", "--train.mtp_loss_coef", COEF)
        of_bf16 = measured_bounds(reference, peer, names, bounds, most)
        shares["bf16"] = compare(report, f"{name} bf16", rounded, reference[:3], names, of_bf16)
        check_total(f"{name} bf16", rounded, reference, peer, names, report)
    check_without(binary, folder / name, tokens, reference[3], bounds, report)
    check_adapter(binary, folder, name, report)
    check_convert(binary, folder, name, report)
    print(f"{name}: loss {reference[3]:.3f}, of layers {reference[4]:.3f}; shares of the bounds:", shares, flush=True)


def check_without(binary, directory, tokens, loss, bounds, report):
    """By default the numbers are those of transformers' model, which drops the layers."""
    plain = run_gradients(binary, directory, tokens, "fp32")
    report.bounded(f"{directory.name} without", plain["loss"], loss, bounds["logits"])
    report.require(not any("eh_proj" in n for n in plain), f"{directory.name}: gradients of layers that are left out")


def check_adapter(binary, folder, name, report):
    """The layers stay as they are; the gradient of their loss reaches the adapter below."""
    model, mtp = random_mtp.build(name)
    source, adapter = folder / name, folder / f"{name}.adapter"
    adapted = make_adapter(model)  # its modules take the place of the model's own
    adapted.save_pretrained(adapter)
    depth, hidden = model.config.num_hidden_layers + mtp.num_mtp_layers, model.config.hidden_size
    # The margin of fp32 alone, whose rounding moves scores far less than that of bf16.
    margin = tolerance.routing_margin(depth, hidden) / 100
    more_margins = functools.partial(random_mtp.margins, model, mtp)
    input_ids, labels = models.make_tokens(adapted, ROWS, LENGTH, margin=margin, more_margins=more_margins)
    tokens = folder / f"{name}.adapter_tokens"
    save_file({"input_ids": input_ids, "labels": labels}, tokens)
    ours = run_gradients(binary, source, tokens, "fp32", "--train.mtp_loss_coef", COEF, "--adapter", adapter)
    loss, of_layers = random_mtp.losses(model, mtp, input_ids, labels)
    (loss + COEF * of_layers).backward()
    bounds = tolerance.parity_bounds(depth, hidden, torch.float32)
    report.bounded(f"{name} adapter: objective", ours["loss"], (loss + COEF * of_layers).detach(), bounds["logits"])
    want = {f"grad.{n.replace('.default', '')}": p.grad for n, p in adapted.named_parameters() if p.requires_grad}
    found = {n for n in ours if n.startswith("grad.")}
    report.require(found == want.keys(), f"{name} adapter: gradients of {sorted(found ^ want.keys())[:6]}")
    for key in found & want.keys():
        report.bounded(f"{name} adapter: {key}", ours[key], want[key], bounds["gradient"])


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
