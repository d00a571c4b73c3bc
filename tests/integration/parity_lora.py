# SPDX-License-Identifier: Apache-2.0
"""Adapters against PEFT, on small random models of every family: files of PEFT's read here (logits, and the gradient of
every tensor), 20 steps of AdamW from one file, what was trained loaded by PEFT and merged by both. Adapters of embeddings
and heads too, also where these are one tensor. And 20 steps with dropout, by the same draws.

usage: parity_lora.py BINARY [MODEL_NAME...]
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

import numpy
import parity_training as training
import peft
import torch
import transformers
from peft.utils.save_and_load import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import dropout
import random_models as models
import tolerance

ROWS, LENGTH, STEPS, MICRO_BATCH, RATE, DECAY, CLIP = 3, 24, 20, 2, 5e-3, 0.1, 1.0
# With Adam's usual 1e-8, an element whose gradient is only rounding noise moves by a whole learning rate, on both sides
# in a direction of its own. That noise says nothing about adapters.
EPSILON = 1e-4
TRAINED = ["mixtral_plain", "qwen2_moe_plain", "deepseek_v3_plain", "gpt_oss_plain", "granitemoe_plain"]
# (model, modules of PEFT's adapter, our targets): embeddings with a row for padding and a multiplier, positions, a head
# of its own and one that is the embedding.
TABLES = [
    ("llama_padding", ["embed_tokens", "lm_head", "q_proj"], ["embedding", "head"]),
    ("granitemoe_plain", ["embed_tokens", "q_proj"], ["embedding"]),
    ("gpt2_plain", ["wte", "wpe"], ["embedding"]),
    ("llama_odd", ["embed_tokens"], ["embedding", "attention"]),
    ("llama_odd", ["lm_head"], ["head"]),
]
RANK, ALPHA = 4, 6.0
# Modules of a layer, each with the name of those that read the same rows, whose draws they share.
DROPPED = {"q_proj": "attention.q", "k_proj": "attention.q", "v_proj": "attention.q", "o_proj": "attention.o"} | {
    "gate_proj": "mlp.gate", "up_proj": "mlp.gate", "down_proj": "mlp.down"}


def build(name):
    model_type, config = models.MODELS[name]
    return models.build(model_type, config, seed=4)


def linears(model, *ends):
    return [n for n, m in model.named_modules() if n.endswith(ends) and hasattr(m, "weight") and m.weight.ndim == 2]


def stacks(model):
    names = sorted({n.split("layers.")[1].split(".", 1)[1] for n, p in model.named_parameters() if p.ndim == 3})
    return [n for n in names if n.endswith(("gate_up_proj", "down_proj"))]


ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "c_attn", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")


def make_adapter(model, seed=3, **more):
    """An adapter of attention and experts, or of MLPs, with B drawn too."""
    attention = sorted({n.rsplit(".", 1)[1] for n in linears(model, *ATTENTION)})
    settings = {"r": RANK, "lora_alpha": ALPHA, "target_modules": attention, "lora_dropout": 0.0}
    if stacks(model):
        settings["target_parameters"] = stacks(model)
    config = peft.LoraConfig(**settings | more)
    adapted = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(seed)
    for key, value in adapted.named_parameters():
        if "lora_B" in key or "lora_embedding" in key:
            value.data = 0.05 * torch.randn(value.shape, generator=generator)
    return adapted


def of_adapter(adapted):
    return get_peft_model_state_dict(adapted, save_embedding_layers=False)


def load_adapter(source, adapter, failures):
    """The model with an adapter that PEFT loads; every tensor of the file has to arrive."""
    model = transformers.AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager", experts_implementation="eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = peft.PeftModel.from_pretrained(model, adapter)
    # PEFT recommends this wherever an adapter is of an embedding or head that are one tensor.
    texts = [str(w.message) for w in caught if "ensure_weight_tying" not in str(w.message)]
    failures += [f"{adapter}: PEFT warns: {text}" for text in texts if "adapter" in text]
    stored, held = load_file(adapter / "adapter_model.safetensors"), of_adapter(loaded)
    if set(stored) != set(held):
        failures.append(f"{adapter}: PEFT has other tensors than the file: {sorted(set(stored) ^ set(held))[:6]}")
    failures += [f"{adapter}: {k} differs in PEFT" for k in set(stored) & set(held) if not torch.equal(stored[k], held[k])]
    return loaded


def gradients(binary, source, adapter, tokens, output):
    flags = ["--adapter", adapter] if adapter else []
    training.run(
        binary, "gradients", source, "--tokens", tokens, "--output", output, "--train.precision", "fp32", *flags
    )
    return load_file(output)


def compare_logits(what, got, want, failures):
    error = tolerance.relative_error(got, want)
    if not error <= tolerance.ADAPTER_LOGITS:
        failures.append(f"{what}: logits differ by {error:.3g}")
    return error


def check_reading(binary, folder, name, adapted, source, adapter, failures):
    """PEFT's file here: loss, logits and the gradient of each of its tensors."""
    layers, hidden = adapted.config.num_hidden_layers, adapted.config.hidden_size
    ids, labels = models.make_tokens(adapted, ROWS, LENGTH, margin=tolerance.routing_margin(layers, hidden) / 100)
    tokens = folder / f"{name}.tokens"
    save_file({"input_ids": ids, "labels": labels}, tokens)
    ours = gradients(binary, source, adapter, tokens, folder / f"{name}.gradients")
    adapted.zero_grad(set_to_none=True)
    result = adapted(ids, labels=labels)
    result.loss.backward()
    worst = compare_logits(f"{name}: PEFT's adapter here", ours["logits"], result.logits.detach(), failures)
    found = {n.removeprefix("grad."): v for n, v in ours.items() if n.startswith("grad.")}
    want = {n.replace(".default", ""): p.grad for n, p in adapted.named_parameters() if p.requires_grad}
    if set(found) != set(want):
        failures.append(f"{name}: gradients of {sorted(set(found) ^ set(want))[:6]} are missing or surplus")
    bound = tolerance.parity_bounds(layers, hidden, torch.float32)["gradient"]
    largest = 0.0
    for key in sorted(set(found) & set(want)):
        error = tolerance.relative_error(found[key], want[key])
        largest = max(largest, error / bound)
        if not error <= bound:
            failures.append(f"{name}: grad.{key} differs by {error:.3g}, allowed {bound:.3g}")
    return worst, largest, ids, tokens


def train_peft(adapted, stream, place):
    """A decay of all of A and B, which are matrices. `place` says to dropout which step it is."""
    trained = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=training.BETAS, eps=EPSILON, weight_decay=DECAY)
    losses, sample = [], 0
    for step in range(1, STEPS + 1):
        place["step"] = step
        begins = [(sample + i) * LENGTH for i in range(MICRO_BATCH)]
        sample += MICRO_BATCH
        rows = torch.tensor(numpy.stack([stream[b : b + LENGTH + 1] for b in begins]))
        optimizer.zero_grad()
        logits = adapted(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_here(binary, source, output, data, **lora):
    settings = {
        "model.path": source,
        "data.train": data,
        "data.sequence_length": LENGTH,
        "data.packing": "concatenated",
        "data.shuffle": "false",
        "train.steps": STEPS,
        "train.micro_batch_size": MICRO_BATCH,
        "train.precision": "fp32",
        "train.balance_coef": 0,
        "train.output": output,
        "optimizer.learning_rate": RATE,
        "optimizer.epsilon": EPSILON,
        "optimizer.weight_decay": DECAY,
        "optimizer.clip_grad_norm": CLIP,
        "optimizer.schedule": "constant",
        "optimizer.warmup_steps": 0,
    } | {f"lora.{key}": value for key, value in lora.items()}
    flags = [part for key, value in settings.items() for part in (f"--{key}", *(value if isinstance(value, list) else [value]))]
    training.run(binary, "train", *flags, "--optimizer.betas", *training.BETAS)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines], output / (output / "latest").read_text().strip()


def check_training(binary, folder, name, adapted, source, adapter, failures, place=None):
    """20 steps from one file: losses, and every tensor of what they save."""
    stream = training.write_indexed(
        folder / f"{name}_data",
        training.make_documents(adapted.config.vocab_size, STEPS * MICRO_BATCH * LENGTH + 1, seed=5),
    )
    losses, checkpoint = train_here(binary, source, folder / f"{name}_run", folder / f"{name}_data", **{"from": adapter})
    want = train_peft(adapted, stream, place or {})
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, want, strict=True))
    if not worst <= tolerance.TRAINING_LOSS:
        failures.append(f"{name}: losses differ by {worst:.3g}, allowed {tolerance.TRAINING_LOSS}")
    start = load_file(adapter / "adapter_model.safetensors")
    saved, held = load_file(checkpoint / "adapter_model.safetensors"), of_adapter(adapted)
    if set(saved) != set(held):
        failures.append(f"{name}: saved tensors differ from PEFT's: {sorted(set(saved) ^ set(held))[:6]}")
    largest = max(tolerance.largest_relative_error(saved[k], held[k]) for k in set(saved) & set(held))
    moved = min(tolerance.largest_relative_error(saved[k], start[k]) for k in set(saved) & set(start))
    if not moved > 10 * tolerance.TRAINED_ADAPTER:
        failures.append(f"{name}: a tensor has moved by {moved:.3g} of its largest element: its agreement proves little")
    if not largest <= tolerance.TRAINED_ADAPTER:
        failures.append(f"{name}: a trained tensor differs by {largest:.3g} of its largest element")
    return worst, largest, checkpoint


def cannot_be_merged(adapted):
    """PEFT would change both an embedding and a head that are one tensor."""
    ends = ("wte.lora_embedding_A.default", "embed_tokens.lora_embedding_A.default", "lm_head.lora_A.default.weight")
    return adapted.config.tie_word_embeddings and any(n.endswith(ends) for n, _ in adapted.named_parameters())


def check_refusal(name, words, failures, *command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode == 0 or words not in done.stderr:
        failures.append(f"{name}: expected an error with '{words}', got {done.returncode}: {done.stderr}")


def check_writing(binary, folder, name, source, checkpoint, ids, tokens, failures):
    """What was trained here, in PEFT, and merged by both."""
    loaded = load_adapter(source, checkpoint, failures)
    ours = gradients(binary, source, checkpoint, tokens, folder / f"{name}.out")["logits"]
    with torch.no_grad():
        worst = compare_logits(f"{name}: our adapter in PEFT", ours, loaded(ids).logits, failures)
    if cannot_be_merged(loaded):
        check_refusal(name, "one tensor (tie_word_embeddings)", failures, binary, "lora", "merge", source, checkpoint, folder / "no")
        return worst
    merged = folder / f"{name}_merged"
    training.run(binary, "lora", "merge", source, checkpoint, merged)
    with torch.no_grad():
        logits = training.load_checked(merged, failures)(ids).logits
    compare_logits(f"{name}: merged here", ours, logits, failures)
    theirs = folder / f"{name}_peft_merged"
    loaded.merge_and_unload().save_pretrained(theirs)
    compare_logits(
        f"{name}: merged by PEFT",
        ours,
        gradients(binary, theirs, None, tokens, folder / f"{name}.merged")["logits"],
        failures,
    )
    return worst


def check_fresh(binary, folder, name, source, ids, tokens, failures, **lora):
    """Every kind of weight that this model has, drawn and trained here."""
    label = "_".join([name, *(f"{key}_{value}" for key, value in lora.items() if key != "targets")])
    _, checkpoint = train_here(binary, source, folder / f"{label}_run", folder / f"{name}_data", **lora)
    return check_writing(binary, folder, label, source, checkpoint, ids, tokens, failures)


def check_per_expert(binary, folder, name, source, ids, tokens, failures):
    """The spelling of transformers 4, which PEFT converts where it loads."""
    lora = {"targets": ["attention", "experts"], "rank": 3, "share_gate_up": "false"}
    _, checkpoint = train_here(binary, source, folder / f"{name}_v4_run", folder / f"{name}_data", **lora)
    converted = folder / f"{name}_v4"
    training.run(binary, "lora", "convert", checkpoint, converted, "--format", "peft_per_expert", "--model.path", source)
    ours = gradients(binary, source, converted, tokens, folder / f"{name}.v4.out")["logits"]
    model = transformers.AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad():
        want = peft.PeftModel.from_pretrained(model, converted)(ids).logits
    compare_logits(f"{name}: an adapter for each expert", ours, want, failures)


def check_model(binary, folder, name, failures):
    model = build(name)
    source, adapter = folder / name, folder / f"{name}_adapter"
    model.save_pretrained(source)
    adapted = make_adapter(model)
    adapted.save_pretrained(adapter)
    read, gradient, ids, tokens = check_reading(binary, folder, name, adapted, source, adapter, failures)
    loss, trained, checkpoint = check_training(binary, folder, name, adapted.train(), source, adapter, failures)
    written = check_writing(binary, folder, name, source, checkpoint, ids, tokens, failures)
    targets = ["all"] + (["router"] if models.is_moe(model.config) else [])
    fresh = [check_fresh(binary, folder, name, source, ids, tokens, failures, targets=targets, rank=3)]
    if models.is_moe(model.config):
        own = {"targets": ["attention", "experts"], "share_gate_up": "false"}
        fresh.append(check_fresh(binary, folder, name, source, ids, tokens, failures, rslora="true", **own))
    # PEFT 0.21 converts no such adapter of qwen2_moe itself, only of models that are spelled like it.
    if name.startswith(("mixtral", "deepseek")):
        check_per_expert(binary, folder, name, source, ids, tokens, failures)
    print(
        f"{name}: logits {read:.2g} read, {written:.2g} written, {max(fresh):.2g} fresh; gradients {gradient:.2g} of their"
        f" bound; 20 steps: losses {loss:.2g}, tensors {trained:.2g}",
        flush=True,
    )


def check_tables(binary, folder, name, modules, targets, failures):
    """Adapters of embeddings and heads. PEFT adds the weights below to its file."""
    model = build(name)
    source, adapter = folder / name, folder / f"{name}_adapter"
    model.save_pretrained(source)
    adapted = make_adapter(model, target_modules=modules, target_parameters=None)
    adapted.save_pretrained(adapter)
    read, gradient, ids, tokens = check_reading(binary, folder, name, adapted, source, adapter, failures)
    loss, trained, checkpoint = check_training(binary, folder, name, adapted.train(), source, adapter, failures)
    written = check_writing(binary, folder, name, source, checkpoint, ids, tokens, failures)
    fresh = check_fresh(binary, folder, name, source, ids, tokens, failures, targets=targets, rank=3)
    tensors = load_file(adapter / "adapter_model.safetensors")
    copies = [key for key in tensors if key.endswith(".base_layer.weight")]
    if len(copies) != len({"embed_tokens", "lm_head"} & set(modules)):
        failures.append(f"{name}: PEFT adds the weights {copies}")
    for key in copies:
        save_file(tensors | {key: tensors[key] + (torch.arange(tensors[key].numel()) == 7).view_as(tensors[key])},
                  adapter / "adapter_model.safetensors", {"format": "pt"})
        check_refusal(name, f"{key}: expected", failures, binary, "lora", "info", adapter, "--model.path", source)
    print(
        f"{name}, {' '.join(modules)}: logits {read:.2g} read, {written:.2g} written, {fresh:.2g} fresh; gradients"
        f" {gradient:.2g} of their bound; 20 steps: losses {loss:.2g}, tensors {trained:.2g}",
        flush=True,
    )


def check_dropout(binary, folder, name, failures):
    """Every adapter of a layer reads rows with dropout; files say so here and there."""
    model, rate, place = build(name), 0.2, {"seed": 0, "step": 0, "first_row": 0}
    source, adapter = folder / name, folder / f"{name}_adapter"
    model.save_pretrained(source)
    adapted = make_adapter(model, target_modules=list(DROPPED), lora_dropout=rate).train()
    adapted.save_pretrained(adapter)
    for key, module in adapted.named_modules():
        if key.endswith("lora_dropout"):
            layer, owner = key.split("layers.")[1].split(".")[0], key.split(".")[-2]
            module["default"] = dropout.Drawn(f"layers.{layer}.{DROPPED[owner]}.lora_dropout", rate, place)
    worst, largest, checkpoint = check_training(binary, folder, f"{name}_dropout", adapted, source, adapter, failures, place)
    print(f"{name} with dropout: losses differ by {worst:.3g}, trained tensors by {largest:.3g}", flush=True)
    if json.loads((checkpoint / "adapter_config.json").read_text())["lora_dropout"] != rate:
        failures.append(f"{name}: the adapter that was trained does not say its dropout")


def empty(folder):
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def main():
    binary, chosen = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or TRAINED
    torch.set_num_threads(1)
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            check_model(binary, pathlib.Path(folder), name, failures)
            empty(pathlib.Path(folder))
        for name, modules, targets in [] if sys.argv[2:] else TABLES:
            check_tables(binary, pathlib.Path(folder), name, modules, targets, failures)
            empty(pathlib.Path(folder))
        if not sys.argv[2:]:
            check_dropout(binary, pathlib.Path(folder), "llama_plain", failures)
    print("\n".join(failures))
    print(f"{len(chosen)} models, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
