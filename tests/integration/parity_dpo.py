# SPDX-License-Identifier: Apache-2.0
"""Preferences against trl.DPOTrainer, on small random models: ten steps from the same weights on pairs of uneven
lengths, some of them truncated, with and without an adapter, as strings and as messages.

usage: parity_dpo.py BINARY [CASE...]
"""

import json
import pathlib
import random
import sys
import tempfile

import datasets
import parity_training as training
import peft
import tokenizers
import torch
import transformers
import trl

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import random_models as models
import tolerance

STEPS, RATE, DECAY, CLIP, BETA, LENGTH, PAIRS = 10, 1e-3, 0.1, 1.0, 0.3, 60, 12
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
CASES = {
    "sigmoid": {},
    "hinge": {"loss": "hinge"},
    "ipo": {"loss": "ipo"},
    "means": {"trl_loss": "sigmoid_norm", "keys": {"dpo.length_normalized": "true"}},
    "keep_end": {"truncation": "keep_end"},
    "messages": {"is_chat": True},
    "adapter": {"has_adapter": True},
    "adapter_of_experts": {"model": "mixtral_plain", "has_adapter": True},
    "experts": {"model": "mixtral_plain"},
}


def write_tokenizer(folder):
    """A token a letter."""
    letters = {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyz .")}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[]))
    tokenizer.decoder = tokenizers.decoders.Fuse()
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    return made


def words(draw, most):
    return " ".join("".join(draw.choice("abcdefgh") for _ in range(draw.randint(1, 5))) for _ in range(draw.randint(1, most)))


def make_pairs(is_chat, seed=8):
    """Most fit into half a sample of tokens; some do not."""
    draw, pairs = random.Random(seed), []
    for _ in range(PAIRS):
        prompt, chosen, rejected = words(draw, 3), words(draw, 5), words(draw, 7)
        if is_chat:
            pairs.append(
                {
                    "prompt": [{"role": "user", "content": prompt[:6]}],
                    "chosen": [{"role": "assistant", "content": chosen[:9]}],
                    "rejected": [{"role": "assistant", "content": rejected[:12]}],
                }
            )
        else:
            pairs.append({"prompt": prompt + " ", "chosen": chosen, "rejected": rejected})
    return pairs


def count_tokens(pairs, tokenizer, is_chat):
    """Those of both rows of each pair."""

    def count(pair, field):
        if is_chat:
            return len(tokenizer.apply_chat_template(pair["prompt"] + pair[field], return_dict=True)["input_ids"])
        return len(tokenizer(pair["prompt"] + pair[field] + tokenizer.eos_token)["input_ids"])

    return [[count(pair, field) for field in ("chosen", "rejected")] for pair in pairs]


def count_samples(lengths):
    """The samples of LENGTH tokens that best fit, decreasing, takes."""
    rooms = []
    for length in sorted((sum(min(row, LENGTH // 2) for row in pair) for pair in lengths), reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else LENGTH) - length)
    return len(rooms)


class InOrder(trl.DPOTrainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def train_trl(model, tokenizer, pairs, folder, case):
    settings = trl.DPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=PAIRS,
        max_steps=STEPS,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        adam_beta1=training.BETAS[0],
        adam_beta2=training.BETAS[1],
        adam_epsilon=training.EPSILON,
        weight_decay=DECAY,
        max_grad_norm=CLIP,
        beta=BETA,
        loss_type=[case.get("trl_loss", case.get("loss", "sigmoid"))],
        max_length=LENGTH // 2,
        truncation_mode=case.get("truncation", "keep_start"),
        logging_steps=1,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        seed=1,
    )
    trainer = InOrder(
        model=model, args=settings, train_dataset=datasets.Dataset.from_list(pairs), processing_class=tokenizer
    )
    trainer.train()
    return [line for line in trainer.state.log_history if "loss" in line]


def train_here(binary, source, folder, data, num_samples, case, adapter):
    settings = {
        "model.path": source,
        "data.train": data,
        "data.cache": folder / "cache",
        "data.sequence_length": LENGTH,
        "data.truncation": case.get("truncation", "keep_start"),
        "data.shuffle": "false",
        "train.objective": "dpo",
        "train.steps": STEPS,
        # Routers' losses are of whole micro-batches.
        "train.micro_batch_size": num_samples if "model" in case else 1,
        "train.gradient_accumulation_steps": 1 if "model" in case else num_samples,
        "train.precision": "fp32",
        "train.balance_loss": "all_layers",
        "train.output": folder / "run",
        "dpo.beta": BETA,
        "dpo.loss": case.get("loss", "sigmoid"),
        "optimizer.learning_rate": RATE,
        "optimizer.epsilon": training.EPSILON,
        "optimizer.weight_decay": DECAY,
        "optimizer.clip_grad_norm": CLIP,
        "optimizer.schedule": "constant",
        "optimizer.warmup_steps": 0,
    } | case.get("keys", {})
    if adapter:
        settings["lora.from"] = adapter
    if "model" not in case:
        settings["train.balance_loss"] = "none"
    flags = [part for key, value in settings.items() for part in (f"--{key}", value)]
    training.run(binary, "train", *flags, "--optimizer.betas", *training.BETAS)
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def build(name):
    model_type, config = models.MODELS[name]
    return models.build(model_type, config, seed=4)


def make_adapter(model, folder):
    """Fresh: B is zero, as only then the policy is the reference."""
    experts = [n for n, p in model.named_parameters() if p.ndim == 3]
    config = peft.LoraConfig(
        r=4,
        lora_alpha=6.0,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        target_parameters=sorted({n.split("layers.")[1].split(".", 1)[1] for n in experts}) or None,
    )
    adapted = peft.get_peft_model(model, config)
    adapted.save_pretrained(folder / "adapter")
    return adapted, folder / "adapter"


def compare(name, ours, theirs, failures):
    """Losses, and what the logs say of pairs."""
    names = {
        "loss": "loss",
        "accuracy": "rewards/accuracies",
        "margin": "rewards/margins",
        "chosen_reward": "rewards/chosen",
        "rejected_reward": "rewards/rejected",
        "chosen_log_probability": "logps/chosen",
        "rejected_log_probability": "logps/rejected",
    }
    if name in ("means", "ipo"):  # trl logs sums there
        names = {"loss": "loss", "accuracy": "rewards/accuracies"}
    worst = 0.0
    for step, (got, want) in enumerate(zip(ours, theirs, strict=True), 1):
        for key, of_trl in names.items():
            # Before the first update no pair has a margin but that of roundings.
            if step == 1 and key == "accuracy":
                continue
            value = got[key]
            if key == "loss" and "aux_loss" in want:
                value += 0.3 * got["aux_loss"]
            error = abs(value - want[of_trl]) / max(abs(want[of_trl]), 1.0)
            worst = max(worst, error)
            if not error <= tolerance.TRAINING_LOSS:
                failures.append(f"{name}: step {step}: {key} is {value:.7g}, trl's {want[of_trl]:.7g}")
    if not abs(ours[-1]["loss"] - ours[0]["loss"]) > 100 * tolerance.TRAINING_LOSS:
        failures.append(f"{name}: the loss goes from {ours[0]['loss']} to {ours[-1]['loss']}: its agreement proves little")
    return worst


def check(binary, folder, name, case, failures):
    source = folder / "model"
    build(case.get("model", "llama_plain")).save_pretrained(source)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    tokenizer = write_tokenizer(source)
    pairs = make_pairs(case.get("is_chat", False))
    data = folder / "pairs.jsonl"
    data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    lengths = count_tokens(pairs, tokenizer, case.get("is_chat", False))
    num_samples = count_samples(lengths)
    rows = [row for pair in lengths for row in pair]
    if not (len(set(rows)) > 2 and max(rows) > LENGTH // 2):
        failures.append(f"{name}: expected uneven rows, and some that are truncated, got {rows}")
    adapter = None
    if case.get("has_adapter"):
        model, adapter = make_adapter(model, folder)
    theirs = train_trl(model, tokenizer, pairs, folder, case)
    ours = train_here(binary, source, folder, data, num_samples, case, adapter)
    if any(line["pairs"] != PAIRS for line in ours):
        failures.append(f"{name}: expected {PAIRS} pairs a step, got {[line['pairs'] for line in ours]}")
    worst = compare(name, ours, theirs, failures)
    print(f"{name}: {PAIRS} pairs in {num_samples} samples, losses from {ours[0]['loss']:.4f} to", end=" ")
    print(f"{ours[-1]['loss']:.4f}, differ by {worst:.2g}", flush=True)


def main():
    binary, chosen = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or list(CASES)
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    failures = []
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            check(binary, pathlib.Path(folder), name, CASES[name], failures)
    print("\n".join(failures))
    print(f"{len(chosen)} cases, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
