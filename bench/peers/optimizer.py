#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gradient norm, clip and AdamW on fp32 weights, with a bf16 copy in bf16, against PyTorch's fused and foreach AdamW."""
from common import alternate, parser, timed

import torch

HELP = __doc__


def runner(args, has_copies, compiled, **options):
    def make():
        parameters = [torch.randn(args.out, getattr(args, "in")).requires_grad_() for _ in range(args.matrices)]
        copies = [p.detach().to(torch.bfloat16) for p in parameters] if has_copies else []
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter) * 1e-3
        optimizer = torch.optim.AdamW(parameters, lr=1e-7, betas=(0.9, 0.95), weight_decay=0.1, **options)

        def work():
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            with torch.no_grad():
                for copy, parameter in zip(copies, parameters):
                    copy.copy_(parameter)

        step = torch.compile(work) if compiled else work
        return lambda: timed({"work": step})

    return make


def main():
    arguments = parser(HELP)
    for name, value in (("matrices", 4), ("out", 2048), ("in", 2048)):
        arguments.add_argument(f"--{name}", type=int, default=value)
    args = arguments.parse_args()
    has_copies = args.precision == "bf16"
    makers = {"fused": runner(args, has_copies, False, fused=True), "foreach": runner(args, has_copies, False, foreach=True)}
    if args.compile:
        makers["foreach compiled"] = runner(args, has_copies, True, foreach=True)
    alternate(args, "optimizer", {name: getattr(args, name) for name in ("matrices", "out", "in")}, makers)


if __name__ == "__main__":
    main()
