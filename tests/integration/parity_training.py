# SPDX-License-Identifier: Apache-2.0
"""50 fp32 steps of `anabatic train` against a loop in PyTorch: same weights, same batches, same losses, and with dropout
the same draws. Then that transformers loads what was saved, and a model that started from a config alone.

usage: parity_training.py BINARY [MODEL_NAME...]
"""

import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import dropout
import random_models as models
import tolerance

STEPS, WARMUP, LENGTH, MICRO_BATCH, ACCUMULATION = 50, 5, 24, 2, 2
PEAK, FLOOR, BETAS, EPSILON, DECAY, CLIP = 2e-3, 2e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
CHOSEN = ["llama_odd", "mixtral_plain", "qwen3_moe_odd", "gpt2_dropout"]
DROPOUT = {"resid_pdrop": 0.2, "embd_pdrop": 0.1, "attn_pdrop": 0.15}
MODELS = models.MODELS | {"gpt2_dropout": ("gpt2", models.MODELS["gpt2_plain"][1] | DROPOUT)}


def write_indexed(prefix, documents):
    """Megatron's .bin/.idx: the tokens of all documents in a row; sizes, byte offsets and document bounds."""
    sizes = numpy.array([len(d) for d in documents], dtype=numpy.int32)
    tokens = numpy.concatenate(documents).astype(numpy.uint16)
    tokens.tofile(f"{prefix}.bin")
    offsets = numpy.concatenate([[0], numpy.cumsum(sizes[:-1], dtype=numpy.int64) * 2]).astype(numpy.int64)
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1))
        for part in (sizes, offsets, numpy.arange(len(sizes) + 1, dtype=numpy.int64)):
            file.write(part.tobytes())
    return tokens.astype(numpy.int64)


def make_documents(vocab_size, num_tokens, seed):
    """Documents whose next token mostly follows from the last one, so that there is something to learn."""
    generator = numpy.random.default_rng(seed)
    rule = generator.permutation(vocab_size)
    documents, total = [], 0
    while total < num_tokens:
        document = [int(generator.integers(vocab_size))]
        for _ in range(int(generator.integers(4, 60))):
            follows = generator.random() < 0.8
            document.append(int(rule[document[-1]]) if follows else int(generator.integers(vocab_size)))
        documents.append(numpy.array(document))
        total += len(document)
    return documents


def learning_rate(step):
    if step <= WARMUP:
        return PEAK * step / WARMUP
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return FLOOR + (PEAK - FLOOR) * 0.5 * (1 + math.cos(math.pi * progress))


def train_torch(model, stream):
    """Losses and gradient norms of each step. Sample i is stream[i·L .. i·L+L], one token more for the targets."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}],
        lr=PEAK,
        betas=BETAS,
        eps=EPSILON,
    )
    moe = models.is_moe(model.config)
    place = {"seed": 0, "step": 0, "first_row": 0}
    if model.config.model_type == "gpt2":
        dropout.draw_gpt2(model, place)
    losses, norms, sample = [], [], 0
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        total = 0.0
        for i in range(ACCUMULATION):
            place.update(step=step, first_row=i * MICRO_BATCH * LENGTH)
            begins = [(sample + b) * LENGTH for b in range(MICRO_BATCH)]
            sample += MICRO_BATCH
            rows = torch.tensor(numpy.stack([stream[b : b + LENGTH + 1] for b in begins]))
            result = model(rows[:, :-1], **({"output_router_logits": True} if moe else {}))
            loss = torch.nn.functional.cross_entropy(result.logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
            loss = loss / (ACCUMULATION * MICRO_BATCH * LENGTH)
            total += loss.item()
            if moe:
                config = model.config
                aux = load_balancing_loss_func(result.router_logits, config.num_local_experts, config.num_experts_per_tok)
                loss = loss + config.router_aux_loss_coef / ACCUMULATION * aux
            loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(total)
    return losses, norms


def run(binary, *arguments):
    done = subprocess.run([str(binary), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
    return done.stdout


def train_anabatic(binary, model, output, data, **more):
    settings = {
        "model.path": model,
        "model.init": "pretrained",
        "data.train": data,
        "data.sequence_length": LENGTH,
        "data.packing": "concatenated",
        "data.shuffle": "false",
        "train.steps": STEPS,
        "train.micro_batch_size": MICRO_BATCH,
        "train.gradient_accumulation_steps": ACCUMULATION,
        "train.precision": "fp32",
        "train.balance_loss": "all_layers",
        "train.output": output,
        "optimizer.learning_rate": PEAK,
        "optimizer.min_learning_rate": FLOOR,
        "optimizer.epsilon": EPSILON,
        "optimizer.weight_decay": DECAY,
        "optimizer.clip_grad_norm": CLIP,
        "optimizer.schedule": "cosine",
        "optimizer.warmup_steps": WARMUP,
    } | {key.replace("__", "."): value for key, value in more.items()}
    flags = [part for key, value in settings.items() for part in (f"--{key}", value)]
    run(binary, "train", *flags, "--optimizer.betas", *BETAS)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return lines, output / (output / "latest").read_text().strip()


def load_checked(directory, failures):
    """Loaded by transformers without a tensor missing, surplus or of another shape."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[key]:
            failures.append(f"{directory}: transformers reports {key} {sorted(info[key])}")
    return model


def compare_logits(binary, directory, model, failures):
    """A saved model gives the same logits here and there."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, model.config.vocab_size, (2, LENGTH), generator=generator)
    tokens, output = directory / "tokens.in", directory / "gradients.out"
    save_file({"input_ids": ids, "labels": ids.clone()}, tokens)
    run(binary, "gradients", directory, "--tokens", tokens, "--output", output, "--precision", "fp32")
    with torch.no_grad():
        want = model.float()(ids).logits
    bound = tolerance.parity_bounds(model.config.num_hidden_layers, model.config.hidden_size, torch.float32)["logits"]
    error = tolerance.relative_error(load_file(output)["logits"], want)
    if not error <= bound:
        failures.append(f"{directory}: logits of the saved model differ by {error:.3g}, allowed {bound:.3g}")


def check_training(binary, folder, name, failures):
    model_type, config = MODELS[name]
    model = models.build(model_type, config, seed=4)
    source = folder / name
    model.save_pretrained(source)
    needed = STEPS * ACCUMULATION * MICRO_BATCH * LENGTH + 1
    stream = write_indexed(folder / f"{name}_data", make_documents(config["vocab_size"], needed, seed=5))
    ours, checkpoint = train_anabatic(binary, source, folder / f"{name}_run", folder / f"{name}_data")
    losses, norms = train_torch(model.train(), stream)
    if [line["step"] for line in ours] != list(range(1, STEPS + 1)):
        failures.append(f"{name}: expected steps 1 to {STEPS}, got {[line['step'] for line in ours]}")
        return
    worst = {"loss": 0.0, "grad_norm": 0.0, "learning_rate": 0.0}
    rates = [learning_rate(step) for step in range(1, STEPS + 1)]
    for key, wants in (("loss", losses), ("grad_norm", norms), ("learning_rate", rates)):
        for line, want in zip(ours, wants):
            worst[key] = max(worst[key], abs(line[key] - want) / abs(want))
    print(f"{name}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, largest relative differences {worst}", flush=True)
    if not losses[-1] < losses[0] - 0.5:
        failures.append(f"{name}: the loss does not fall, so its agreement proves little: {losses[0]} to {losses[-1]}")
    if not worst["loss"] <= tolerance.TRAINING_LOSS:
        failures.append(f"{name}: losses differ by {worst['loss']:.3g}, allowed {tolerance.TRAINING_LOSS}")
    if not worst["grad_norm"] <= tolerance.TRAINING_GRADIENT_NORM:
        failures.append(f"{name}: gradient norms differ by {worst['grad_norm']:.3g}")
    if not worst["learning_rate"] <= tolerance.UNIT_ROUNDOFF[torch.float32]:
        failures.append(f"{name}: learning rates differ by {worst['learning_rate']:.3g}")
    compare_logits(binary, checkpoint, load_checked(checkpoint, failures), failures)


def check_random_start(binary, folder, name, failures):
    """From a config alone, with a learning rate of 0: the checkpoint holds the start."""
    model_type, config = MODELS[name]
    source = folder / f"{name}_config"
    made = transformers.AutoConfig.for_model(model_type, **config, initializer_range=0.05)
    made.save_pretrained(source)
    data = folder / f"{name}_start_data"
    write_indexed(data, make_documents(config["vocab_size"], 500, seed=6))
    _, checkpoint = train_anabatic(
        binary,
        source,
        folder / f"{name}_start",
        data,
        model__init="random",
        train__steps=1,
        optimizer__learning_rate=0,
        optimizer__min_learning_rate=0,
    )
    model = load_checked(checkpoint, failures)
    for key, value in model.named_parameters():
        if key.endswith("norm.weight"):
            holds = bool((value == 1).all())
        elif key.endswith("bias"):
            holds = bool((value == 0).all())
        else:  # five standard errors of a deviation
            holds = abs(value.std().item() / 0.05 - 1) < 5 / math.sqrt(2 * value.numel())
        if not holds:
            failures.append(f"{name}: {key} does not start as transformers starts it: deviation {value.std():.4f}")
    compare_logits(binary, checkpoint, model, failures)


def main():
    binary, chosen = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or CHOSEN
    torch.set_num_threads(1)
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            check_training(binary, pathlib.Path(folder), name, failures)
            if MODELS[name][0] != "gpt2":  # whose matrices start in several ways
                check_random_start(binary, pathlib.Path(folder), name, failures)
    print("\n".join(failures))
    print(f"{len(chosen)} runs, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
