# SPDX-License-Identifier: Apache-2.0
"""Logits and every gradient of `anabatic gradients` against transformers and torch, on small random models of every
family, in fp32 and bf16 and in both spellings of expert weights.

usage: parity_models.py BINARY [--slow | MODEL_NAME...]
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import random_models as models
import tolerance

ROWS, LENGTH = 3, 24


def run_gradients(binary, directory, tokens, precision):
    output = directory.parent / f"{directory.name}.{precision}.safetensors"
    command = [binary, "gradients", directory, "--tokens", tokens, "--output", output, "--precision", precision]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return load_file(output)


def run_torch(model, input_ids, labels, autocast, **more):
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        result = model(input_ids, labels=labels, **more)
    result.loss.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        gradients[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
    return result.loss.detach(), result.logits.detach().float(), gradients


EXPERT = re.compile(r"(.*)\.(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(\w+)\.weight")


# What files call the parameters of granitemoe.
GRANITE = {
    ".block_sparse_moe.input_linear.weight": ".block_sparse_moe.experts.gate_up_proj",
    ".block_sparse_moe.output_linear.weight": ".block_sparse_moe.experts.down_proj",
    ".block_sparse_moe.router.layer.weight": ".block_sparse_moe.router.weight",
}


def gradient_of_file_tensor(name, gradients):
    """The gradient of a tensor in a model file, from those of the module's parameters, where experts are fused."""
    for end, parameter in GRANITE.items():
        if name.endswith(end):
            return gradients[name.removesuffix(end) + parameter]
    expert = EXPERT.fullmatch(name)
    if not expert:
        return gradients[name if name in gradients else name.replace(".block_sparse_moe.", ".mlp.")]
    fused, index = f"{expert[1]}.mlp.experts.", int(expert[2])
    if expert[3] in ("w2", "down_proj"):
        return gradients[fused + "down_proj"][index]
    half = gradients[fused + "gate_up_proj"][index].chunk(2)
    return half[0] if expert[3] in ("w1", "gate_proj") else half[1]


def tensor_names(directory):
    """Those that have gradients: no buffers."""
    names = set()
    for file in directory.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            names |= set(opened.keys())
    return {name for name in names if not name.endswith("e_score_correction_bias")}


class Report:
    def __init__(self):
        self.failures = []

    def require(self, holds, text):
        if not holds:
            self.failures.append(text)

    def bounded(self, what, got, want, bound):
        error = tolerance.relative_error(got, want)
        self.require(error <= bound, f"{what}: relative error {error:.3g}, allowed {bound:.3g}")
        return error


def measured_bounds(reference, peer, names, least, most):
    """What a bf16 run may be off by: a multiple of what torch's own bf16 run is off by, tensor by tensor. A vector has
    few elements, so its error is small by chance more often: the largest one of all layers stands for each. `least`
    and `most` are bounds of logits and of gradients."""

    def bound(kind, measured):
        return min(tolerance.WORSE_THAN_PEER_TENSOR * measured + least[kind], most[kind])

    measured, of_vectors = {}, {}
    for name in names:
        got, want = (gradient_of_file_tensor(name, run[2]) for run in (peer, reference))
        measured[name] = tolerance.relative_error(got, want)
        if want.dim() == 1:
            anywhere = re.sub(r"\d+", "*", name)
            of_vectors[anywhere] = max(of_vectors.get(anywhere, 0.0), measured[name])
    bounds = {"logits": bound("logits", tolerance.relative_error(peer[1], reference[1]))}
    for name in names:
        bounds[name] = bound("gradient", of_vectors.get(re.sub(r"\d+", "*", name), measured[name]))
    return bounds


def compare(report, label, ours, reference, names, bounds):
    """Returns the largest error of a gradient, as a share of its bound; every tensor of the files must have one, and
    nothing else."""
    loss, logits, gradients = reference
    report.bounded(f"{label} loss", ours["loss"], loss, bounds["logits"])
    report.bounded(f"{label} logits", ours["logits"], logits, bounds["logits"])
    found = {name.removeprefix("grad.") for name in ours if name.startswith("grad.")}
    report.require(found == names, f"{label}: gradients of {sorted(found ^ names)} are missing or surplus")
    report.require(len(ours) == len(found) + 2, f"{label}: expected loss, logits and gradients, got {sorted(ours)}")
    worst = 0.0
    for name in sorted(found & names):
        want = gradient_of_file_tensor(name, gradients)
        report.require(want.norm() > 0 or "experts" in name, f"{label}: the gradient of {name} is 0: proves nothing")
        bound = bounds.get(name, bounds.get("gradient"))
        worst = max(worst, report.bounded(f"{label} grad.{name}", ours[f"grad.{name}"], want, bound) / bound)
    return worst


def total_error(ours, reference, names):
    """Of all gradients as one vector."""
    got = torch.cat([ours[f"grad.{n}"].flatten() for n in sorted(names)])
    want = torch.cat([gradient_of_file_tensor(n, reference[2]).flatten() for n in sorted(names)])
    return tolerance.relative_error(got, want)


def check_total(label, ours, reference, peer, names, report):
    """The error of all gradients together against that of torch's autocast; returns both."""
    our_error = total_error(ours, reference, names)
    peer_error = total_error({f"grad.{n}": gradient_of_file_tensor(n, peer[2]) for n in names}, reference, names)
    report.require(
        our_error <= tolerance.WORSE_THAN_PEER * peer_error,
        f"{label}: error of all gradients {our_error:.3g}, torch's autocast has {peer_error:.3g}",
    )
    return our_error, peer_error


def check_model(binary, folder, name, report):
    model_type, config = models.MODELS[name]
    model = models.build(model_type, config)
    layers, hidden = model.config.num_hidden_layers, model.config.hidden_size
    margin = tolerance.routing_margin(layers, hidden)
    input_ids, labels = models.make_tokens(model, ROWS, LENGTH, margin=margin, padding_id=config.get("pad_token_id"))
    tokens = folder / f"{name}.tokens.safetensors"
    save_file({"input_ids": input_ids, "labels": labels}, tokens)
    reference = run_torch(model, input_ids, labels, autocast=False)
    peer = run_torch(model, input_ids, labels, autocast=True)

    directory = folder / name
    # A few tensors a shard, so that the index is read too.
    model.save_pretrained(directory, max_shard_size="40KB")
    names = tensor_names(directory)
    exact_bounds = tolerance.parity_bounds(layers, hidden, torch.float32)
    exact = run_gradients(binary, directory, tokens, "fp32")
    worst = compare(report, f"{name} fp32", exact, reference, names, exact_bounds)

    rounded = run_gradients(binary, directory, tokens, "bf16")
    most = tolerance.parity_bounds(layers, hidden, torch.bfloat16)
    bounds = measured_bounds(reference, peer, names, exact_bounds, most)
    worst_rounded = compare(report, f"{name} bf16", rounded, reference, names, bounds)
    our_error, peer_error = check_total(f"{name} bf16", rounded, reference, peer, names, report)
    print(
        f"{name}: shares of the bounds: fp32 {worst:.2g}, bf16 {worst_rounded:.2g}; largest bf16 bound"
        f" {max(bounds.values()):.2g}; all gradients {our_error:.3g} (torch {peer_error:.3g})",
        flush=True,
    )
    if models.is_moe(model.config):
        check_fused(binary, folder, name, model, tokens, exact, report)
    if name in ("llama_llama3", "mixtral_plain", "qwen3_moe_plain", "olmoe_plain", "granitemoe_plain"):
        check_old_config(binary, directory, tokens, exact, report)
    given = ("llama_plain", "mistral_window", "qwen3_plain", "mixtral_plain", "qwen3_moe_odd", "olmoe_odd")
    if name in given or name in ("flex_olmo_plain", "granitemoeshared_plain", "gpt2_odd"):
        check_given(binary, folder, name, model, input_ids, labels, names, report)


def check_fused(binary, folder, name, model, tokens, exact, report):
    """The fused spelling gives the same numbers, laid out as transformers lays its parameters out."""
    directory = folder / f"{name}_fused"
    model.save_pretrained(directory, save_original_format=False)
    names = tensor_names(directory)
    report.require(any(n.endswith("experts.gate_up_proj") for n in names), f"{name}: save_pretrained did not fuse")
    fused = run_gradients(binary, directory, tokens, "fp32")
    found = {n.removeprefix("grad.") for n in fused if n.startswith("grad.")}
    report.require(found == names, f"{name} fused: gradients of {sorted(found ^ names)} are missing or surplus")
    gradients = {n: fused[f"grad.{n}"] for n in found}
    report.require(torch.equal(fused["logits"], exact["logits"]), f"{name} fused: other logits than per expert")
    for key in exact:
        if key.startswith("grad."):
            same = torch.equal(gradient_of_file_tensor(key.removeprefix("grad."), gradients), exact[key])
            report.require(same, f"{name} fused: {key} differs from the per-expert spelling")


def given_tensors(input_ids, labels, has_window):
    """Masks and positions as users give them: padding on the right, on the left and between, positions that start again."""
    rows, length = input_ids.shape
    column = torch.arange(length)
    right, left = (column < length - 7)[None].repeat(rows, 1), (column >= 5)[None].repeat(rows, 1)
    right[0], left[1] = True, True
    between = right.clone()
    between[1:, 4:6] = False
    counted = (left.long().cumsum(-1) - 1).clamp(min=0)
    restarted = torch.cat([torch.arange(10), torch.arange(3, length - 7)])[None]

    def ignored(mask):
        made = labels.clone()
        made[~mask] = -100
        made[:, 1:][~mask[:, :-1]] = -100  # padding predicts nothing
        return made

    yield "right", ignored(right), {"attention_mask": right.long()}
    yield "left", ignored(left), {"attention_mask": left.long(), "position_ids": counted}
    yield "restarted", labels, {"position_ids": restarted.repeat(rows, 1)}
    yield "one row of positions", labels, {"position_ids": (column + 9)[None]}
    if not has_window:
        yield "between", ignored(between), {"attention_mask": between}


def check_given(binary, folder, name, model, input_ids, labels, names, report):
    """attention_mask and position_ids in addition to the tokens."""
    layers, hidden = model.config.num_hidden_layers, model.config.hidden_size
    bounds = tolerance.parity_bounds(layers, hidden, torch.float32)
    tokens = folder / f"{name}.given.safetensors"
    for label, given_labels, given in given_tensors(input_ids, labels, getattr(model.config, "sliding_window", None)):
        save_file({"input_ids": input_ids, "labels": given_labels} | {n: v.contiguous() for n, v in given.items()}, tokens)
        ours = run_gradients(binary, folder / name, tokens, "fp32")
        masks = {n: v.long() if n == "attention_mask" else v for n, v in given.items()}
        reference = run_torch(model, input_ids, given_labels, False, **masks)
        mask = masks.get("attention_mask", torch.ones_like(input_ids)).bool()
        report.require(not ours["logits"][~mask].any(), f"{name} {label}: logits at padding are not zero")
        reference[1][~mask] = 0
        compare(report, f"{name} {label} fp32", ours, reference, names, bounds)


def check_old_config(binary, directory, tokens, exact, report):
    """The config as transformers 4 wrote it."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    kind = parameters.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **parameters}
    config["torch_dtype"] = config.pop("dtype")
    if config["model_type"] == "qwen3_moe" and "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    path.write_text(json.dumps(config))
    old = run_gradients(binary, directory, tokens, "fp32")
    same = old.keys() == exact.keys() and all(torch.equal(old[key], exact[key]) for key in exact)
    report.require(same, f"{directory.name}: the older spelling of config.json gives other numbers")


def main():
    binary, chosen = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    if not chosen:
        chosen = [name for name in models.MODELS if name not in models.SLOW]
    elif chosen == ["--slow"]:
        chosen = [name for name in models.MODELS if name in models.SLOW]
    torch.set_num_threads(1)
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            check_model(binary, pathlib.Path(folder), name, report)
    print("\n".join(report.failures))
    print(f"{len(chosen)} models, {len(report.failures)} failures")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
