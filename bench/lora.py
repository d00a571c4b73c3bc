#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A LoRA step against the engine's full step and against PEFT's: forward, loss, backward, clipping and AdamW, rank 16, bf16.

    lora.py --directory SCRATCH [--models bench/yardsticks/moe_coarse ...] [--targets attention,experts attention]
            [--bases auto] [--peers eager grouped_mm] [--rounds 5] [--batch 4] [--sequence 512] [--threads 2]

Every variant is a process of its own; they take turns, a step each. The engine's steps are those of `anabatic bench step`.
PEFT adapts the transformers model, with float32 weights under bf16 autocast; stacks of experts by its target_parameters.
It prints the median step, its ratio to the full step and to PEFT's best, and the peak of resident memory. The engine's
peak is that of `anabatic train`, which the plan predicted; its file of tokens goes to SCRATCH.
"""
import argparse
import json
import pathlib
import sys
import warnings

import frontier
import served

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANK, ALPHA = 16, 32


def make_step(options, experts, targets):
    """One training step of PEFT's adapter on a transformers model, which returns its loss."""
    import peft
    import torch
    import transformers
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(options.model)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32).train()
    stacks = sorted({name.split("layers.")[1].split(".", 1)[1] for name, value in model.named_parameters() if value.ndim == 3})
    if stacks:
        model.set_experts_implementation(experts)
    settings = {"target_modules": [f"{name}_proj" for name in "qkvo"]}
    if "experts" in targets:
        settings["target_parameters"] = stacks
    model = peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, **settings))
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(0, config.vocab_size, (options.batch, options.sequence))

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        return loss.item()

    return step


def engine(options, model, name, keys):
    """A variant of the engine, with the peaks of a run of it."""
    command = [options.binary, "bench", "step", "--serve", "--no_check", "--device.threads", options.threads, "--train.precision", "bf16",
               "--model.path", model, "--batch", options.batch, "--sequence", options.sequence, *keys]
    variant = served.Served(name, command, {})
    variant.predicted, variant.peak_of_run, _ = frontier.train(options, keys)
    return variant


def compare(options, model):
    options.model, options.steps = model, 2
    options.rest = ["--device.threads", str(options.threads), "--train.precision", "bf16", "--train.micro_batch_size", str(options.batch),
                    "--data.sequence_length", str(options.sequence)]
    frontier.write_tokens(options.tokens, json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"])
    full = engine(options, model, "full step", [])
    print(f"{pathlib.Path(model).name}: {options.batch} x {options.sequence} tokens, {options.threads} threads, rank {RANK}")
    for targets in options.targets:
        keys = ["--lora.targets", f"[{targets}]", "--lora.rank", str(RANK), "--lora.alpha", str(ALPHA)]
        ours = [engine(options, model, f"LoRA, base {base}", [*keys, "--lora.base", base]) for base in options.bases]
        peers = [served.Served(f"PEFT, {experts}",
                               [sys.executable, __file__, "--directory", options.directory, "--serve", f"{experts}:{targets}", "--model", model,
                                "--batch", options.batch, "--sequence", options.sequence, "--threads", options.threads],
                               {"OMP_WAIT_POLICY": "PASSIVE"}) for experts in options.peers]
        full.seconds.clear()
        for _ in range(options.rounds):
            for variant in (full, *ours, *peers):
                variant.round()
        best = min((peer.median() for peer in peers), default=float("nan"))
        peak = min((peer.peak for peer in peers), default=float("nan"))
        print(f" {targets}")
        for variant in (full, *ours):
            print(f"  {variant.name:<20} {variant.median():7.3f} s, {variant.median() / full.median():5.2f} of the full step, PEFT takes "
                  f"{best / variant.median():5.2f} x, peak {variant.peak_of_run * 1e-9:5.2f} GB ({variant.predicted * 1e-9:5.2f} predicted), "
                  f"{variant.peak_of_run / peak:4.2f} of PEFT's", flush=True)
        for peer in peers:
            print(f"  {peer.name:<20} {peer.median():7.3f} s, peak {peer.peak * 1e-9:5.2f} GB", flush=True)
        for variant in (*ours, *peers):
            variant.process.kill()
    full.process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/release/anabatic"))
    parser.add_argument("--directory", required=True)
    parser.add_argument("--models", nargs="+", default=[str(ROOT / "bench/yardsticks/moe_coarse")])
    parser.add_argument("--targets", nargs="+", default=["attention,experts", "attention"])
    parser.add_argument("--bases", nargs="+", default=["auto"], help="of lora.base")
    parser.add_argument("--peers", nargs="*", default=["eager", "grouped_mm"], help="experts implementations of transformers")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    for name, value in (("batch", 4), ("sequence", 512), ("threads", 2), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    if options.serve:
        step = make_step(options, *options.serve.split(":"))
        step()
        served.serve(step)
        return
    pathlib.Path(options.directory).mkdir(parents=True, exist_ok=True)
    options.tokens = str(pathlib.Path(options.directory) / "lora_tokens")
    for model in options.models:
        compare(options, model)


if __name__ == "__main__":
    main()
