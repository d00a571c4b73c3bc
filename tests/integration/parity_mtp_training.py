# SPDX-License-Identifier: Apache-2.0
"""20 fp32 steps of AdamW with multi-token prediction and the rule of router biases, against a loop in PyTorch.

usage: parity_mtp_training.py BINARY [MODEL ...]      names of tests/support/random_mtp.py; none: two
"""

import pathlib
import sys
import tempfile

import numpy
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import random_mtp
import tolerance
from parity_training import BETAS, CLIP, DECAY, EPSILON, PEAK, WARMUP, train_anabatic, write_indexed

STEPS, LENGTH, MICRO_BATCH, ACCUMULATION, COEF, RATE = 20, 24, 2, 2, 0.3, 0.01
CHOSEN = ["deepseek_v3", "glm4_moe"]


def make_documents(vocab_size, count, seed):
    """Documents of LENGTH tokens, a sample each, whose next token mostly follows from the last one."""
    generator = numpy.random.default_rng(seed)
    rule = generator.permutation(vocab_size)
    documents = []
    for _ in range(count):
        document = [int(generator.integers(vocab_size))]
        while len(document) < LENGTH:
            follows = generator.random() < 0.8
            document.append(int(rule[document[-1]]) if follows else int(generator.integers(vocab_size)))
        documents.append(numpy.array(document))
    return documents


class RouterCounts:
    """The tokens that each router's experts got."""

    def __init__(self, *modules):
        self.gates = [g for module in modules for g in module.modules() if hasattr(g, "e_score_correction_bias")]
        self.counts = {}
        for gate in self.gates:
            gate.register_forward_hook(self.count)

    def count(self, gate, arguments, output):
        chosen = torch.bincount(output[2].flatten(), minlength=gate.num_experts)
        self.counts[gate] = self.counts.get(gate, 0) + chosen

    def update(self):
        for gate, counts in self.counts.items():
            gate.e_score_correction_bias += RATE * (counts.double().mean() - counts).sign()
        self.counts.clear()


def train_torch(model, mtp, documents):
    parameters = [*model.parameters(), *mtp.layers.parameters()]
    groups = [{"params": [p for p in parameters if p.ndim > 1], "weight_decay": DECAY}]
    groups.append({"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0})
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=BETAS, eps=EPSILON)
    routers = RouterCounts(model, mtp.layers)
    lines = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min(1.0, (step + 1) / WARMUP)
        optimizer.zero_grad()
        line = {"loss": 0.0, "mtp_loss": 0.0}
        for part in range(ACCUMULATION):
            first = (step * ACCUMULATION + part) * MICRO_BATCH
            rows = torch.tensor(numpy.stack(documents[first : first + MICRO_BATCH]))
            loss, of_layers = (value / ACCUMULATION for value in random_mtp.losses(model, mtp, rows, rows))
            (loss + COEF * of_layers).backward()
            line["loss"] += loss.item()
            line["mtp_loss"] += of_layers.item()
        line["grad_norm"] = torch.nn.utils.clip_grad_norm_(parameters, CLIP).item()
        optimizer.step()
        routers.update()
        lines.append(line)
    return lines


def check(binary, folder, name, failures):
    model, mtp = random_mtp.build(name, seed=4)
    source, data = folder / name, folder / f"{name}_data"
    random_mtp.save(model, mtp, source)
    documents = make_documents(model.config.vocab_size, STEPS * ACCUMULATION * MICRO_BATCH, seed=5)
    write_indexed(data, documents)
    ours, checkpoint = train_anabatic(
        binary,
        source,
        folder / f"{name}_run",
        data,
        data__packing="isolated",
        train__steps=STEPS,
        train__mtp_loss_coef=COEF,
        train__router_bias_update_rate=RATE,
        optimizer__schedule="constant",
    )
    want = train_torch(model, mtp, documents)
    bounds = {"loss": tolerance.TRAINING_LOSS, "mtp_loss": tolerance.TRAINING_LOSS, "grad_norm": tolerance.TRAINING_GRADIENT_NORM}
    worst = {key: max(abs(a[key] / b[key] - 1) for a, b in zip(ours, want, strict=True)) for key in bounds}
    print(f"{name}: {want[0]} -> {want[-1]}, largest relative differences {worst}", flush=True)
    for key, bound in bounds.items():
        if not worst[key] <= bound:
            failures.append(f"{name}: {key} differs by {worst[key]:.3g}, allowed {bound}")
        if not want[-1][key] < want[0][key] - 0.3 and key != "grad_norm":
            failures.append(f"{name}: {key} does not fall, so its agreement proves little")
    layers = random_mtp.in_files(mtp.layers.state_dict(), model.config.num_hidden_layers)
    biases = {n: t for n, t in (layers | model.state_dict()).items() if n.endswith("e_score_correction_bias")}
    saved = load_file(checkpoint / "model.safetensors")
    for key, value in biases.items():
        # Sums of rates and of the first values, in f32.
        if not (saved[key] - value).abs().max() <= STEPS * tolerance.UNIT_ROUNDOFF[torch.float32]:
            failures.append(f"{name}: {key} is {saved[key]}, expected {value}")


def main():
    binary, chosen = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or CHOSEN
    torch.set_num_threads(1)
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            check(binary, pathlib.Path(folder), name, failures)
    print("\n".join(failures))
    print(f"{len(chosen)} runs, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
