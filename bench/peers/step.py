#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A whole training step of a Hugging Face model, forward, loss, backward, clipping and fused AdamW, against PyTorch.

In bf16 and int8 the peers are `autocast` (float32 parameters, bfloat16 arithmetic: what Anabatic's bf16 promises) and,
with --all, `bf16` (everything in bfloat16, which is faster and not how models are trained).
"""
import warnings

from common import alternate, parser, timed

import torch
from transformers import AutoConfig, AutoModelForCausalLM

HELP = __doc__
warnings.filterwarnings("ignore")


def runner(args, dtype, autocast, experts, compiled):
    def make():
        config = AutoConfig.from_pretrained(args.config)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
        if experts:
            model.set_experts_implementation(experts)
        model = model.to(dtype).train()
        if compiled:
            model.forward = torch.compile(model.forward)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        tokens = torch.randint(0, config.vocab_size, (args.batch, args.sequence))

        def step():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            loss.item()

        return lambda: timed({"step": step})

    return make


def main():
    arguments = parser(HELP, ("fp32", "bf16", "int8"))
    arguments.add_argument("config", help="a model directory, such as bench/yardsticks/moe_coarse")
    arguments.add_argument("--batch", type=int, default=4)
    arguments.add_argument("--sequence", type=int, default=512)
    arguments.add_argument("--experts", nargs="*", default=["grouped_mm"], help="of eager, batched_mm, grouped_mm")
    arguments.add_argument("--all", action="store_true", help="bf16 parameters too")
    args = arguments.parse_args()
    is_moe = any(hasattr(AutoConfig.from_pretrained(args.config), key)
                 for key in ("num_local_experts", "num_experts", "n_routed_experts"))
    variants = [("fp32", torch.float32, False)]
    if args.precision != "fp32":
        variants = [("autocast", torch.float32, True)] + ([("bf16", torch.bfloat16, False)] if args.all else [])
    makers = {}
    for word, dtype, autocast in variants:
        for experts in args.experts if is_moe else [None]:
            name = f"{word} {experts}" if experts else word
            makers[name] = runner(args, dtype, autocast, experts, False)
            if args.compile:
                makers[f"{name} compiled"] = runner(args, dtype, autocast, experts, True)
    alternate(args, "step", {"model.path": args.config, "batch": args.batch, "sequence": args.sequence}, makers)


if __name__ == "__main__":
    main()
