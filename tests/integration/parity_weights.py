# SPDX-License-Identifier: Apache-2.0
"""30 fp32 steps of `anabatic train` on tokens with uneven weights against PyTorch: the loss of a step is one weighted
mean over its micro-batches, and routers balance every token.

usage: parity_weights.py BINARY [MODEL_NAME...]
"""

import pathlib
import struct
import sys
import tempfile

import numpy
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import parity_training as training
import random_models as models
import tolerance

STEPS = 30
CHOSEN = ["llama_odd", "mixtral_plain"]
TABLE = numpy.array([1, 0, 0.3, 2.5], dtype=numpy.float32)


def crc32c(data):
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def write_weights(prefix, places, num_documents):
    """PREFIX.weights: the place of each token's weight in a table of 256."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    table = numpy.zeros(256, dtype=numpy.float32)
    table[: len(TABLE)] = TABLE
    header = b"ANBWGHT1" + struct.pack("<QQII", len(places), num_documents, crc32c(index), len(TABLE))
    pathlib.Path(f"{prefix}.weights").write_bytes(header + table.tobytes() + places.astype(numpy.uint8).tobytes())


def train_torch(model, tokens, weights):
    """Losses and gradient norms of each step; sample i is row i of both."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": training.DECAY}, {"params": plain, "weight_decay": 0.0}],
        lr=training.PEAK,
        betas=training.BETAS,
        eps=training.EPSILON,
    )
    moe = models.is_moe(model.config)
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate(step + 1)
        optimizer.zero_grad()
        size = training.MICRO_BATCH * training.ACCUMULATION
        whole = weights[step * size : (step + 1) * size, 1:].sum()
        total = 0.0
        for part in range(training.ACCUMULATION):
            begin = step * size + part * training.MICRO_BATCH
            rows, of_rows = tokens[begin : begin + training.MICRO_BATCH], weights[begin : begin + training.MICRO_BATCH]
            result = model(rows, **({"output_router_logits": True} if moe else {}))
            each = torch.nn.functional.cross_entropy(
                result.logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten(), reduction="none"
            )
            loss = (each * of_rows[:, 1:].flatten()).sum() / whole
            total += loss.item()
            if moe:
                config = model.config
                aux = load_balancing_loss_func(result.router_logits, config.num_local_experts, config.num_experts_per_tok)
                loss = loss + config.router_aux_loss_coef / training.ACCUMULATION * aux
            loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), training.CLIP).item())
        optimizer.step()
        losses.append(total)
    return losses, norms


def check(binary, folder, name, failures):
    model_type, config = models.MODELS[name]
    model = models.build(model_type, config, seed=4)
    model.save_pretrained(folder / name)
    count = STEPS * training.MICRO_BATCH * training.ACCUMULATION
    generator = numpy.random.default_rng(8)
    rule = generator.permutation(config["vocab_size"])
    rows = generator.integers(config["vocab_size"], size=(count, training.LENGTH))
    for place in range(1, training.LENGTH):
        follows = generator.random(count) < 0.8
        rows[:, place] = numpy.where(follows, rule[rows[:, place - 1]], rows[:, place])
    places = generator.integers(len(TABLE), size=rows.shape)
    places[0] = 1  # a sample without any trained token
    data = folder / f"{name}_data"
    training.write_indexed(data, list(rows))
    write_weights(data, places.flatten(), count)
    ours, _ = training.train_anabatic(
        binary,
        folder / name,
        folder / f"{name}_run",
        data,
        train__objective="sft",
        train__steps=STEPS,
        data__packing="isolated",
        optimizer__schedule="cosine",
    )
    losses, norms = train_torch(model.train(), torch.tensor(rows), torch.tensor(TABLE[places]))
    worst = {"loss": 0.0, "grad_norm": 0.0}
    for key, wants in (("loss", losses), ("grad_norm", norms)):
        for line, want in zip(ours, wants, strict=True):
            worst[key] = max(worst[key], abs(line[key] - want) / abs(want))
    print(f"{name}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, largest relative differences {worst}", flush=True)
    if not worst["loss"] <= tolerance.TRAINING_LOSS:
        failures.append(f"{name}: losses differ by {worst['loss']:.3g}, allowed {tolerance.TRAINING_LOSS}")
    if not worst["grad_norm"] <= tolerance.TRAINING_GRADIENT_NORM:
        failures.append(f"{name}: gradient norms differ by {worst['grad_norm']:.3g}")


def main():
    binary, chosen = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or CHOSEN
    training.STEPS = STEPS  # of the schedule
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
