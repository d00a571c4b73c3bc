#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Head and cross-entropy, forward and backward, against PyTorch's linear and cross_entropy."""
from common import alternate, parser, timed

import torch
import torch.nn.functional as F

HELP = __doc__


def runner(args, dtype, autocast, widens, compiled):
    def make():
        x = torch.randn(args.tokens, args.hidden).to(dtype).requires_grad_()
        weight = (torch.randn(args.vocabulary, args.hidden) / args.hidden**0.5).to(dtype).requires_grad_()
        labels = torch.randint(0, args.vocabulary, (args.tokens,))
        labels[torch.rand(args.tokens) < args.ignored] = -100

        def loss():
            logits = F.linear(x, weight)
            return F.cross_entropy(logits.float() if widens else logits, labels)

        forward = torch.compile(loss, dynamic=False) if compiled else loss

        def work():
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                value = forward()
            value.backward()

        def run():
            x.grad = weight.grad = None
            return timed({"work": work})

        return run

    return make


def main():
    arguments = parser(HELP)
    for name, value in (("tokens", 2048), ("hidden", 512), ("vocabulary", 32000)):
        arguments.add_argument(f"--{name}", type=int, default=value)
    arguments.add_argument("--ignored", type=float, default=0.0)
    args = arguments.parse_args()
    variants = [("fp32", torch.float32, False, False)]
    if args.precision == "bf16":
        variants = [("bf16", torch.bfloat16, False, False), ("bf16 fp32 logits", torch.bfloat16, False, True),
                    ("autocast", torch.float32, True, True)]
    makers = {}
    for word, dtype, autocast, widens in variants:
        makers[word] = runner(args, dtype, autocast, widens, False)
        if args.compile:
            makers[f"{word} compiled"] = runner(args, dtype, autocast, widens, True)
    alternate(args, "loss", {name: getattr(args, name) for name in ("tokens", "hidden", "vocabulary", "ignored")}, makers)


if __name__ == "__main__":
    main()
