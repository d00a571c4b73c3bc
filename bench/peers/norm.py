#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory-bound ops, forward and backward, against PyTorch: rms_norm, residual, rope, swiglu, gather."""
from common import alternate, parser, timed

import torch
import torch.nn.functional as F

HELP = __doc__
OPS = ("rms_norm", "residual", "rope", "swiglu", "gather")


def make_work(args, dtype):
    """Inputs with a gradient and the function over them."""
    def rows():
        return torch.randn(args.rows, args.width).to(dtype).requires_grad_()

    weight = torch.ones(args.width).to(dtype).requires_grad_()
    if args.op == "rms_norm":
        return [rows(), weight], lambda x, w: F.rms_norm(x, (args.width,), w, 1e-5)
    if args.op == "residual":
        def residual(x, other, w):
            total = x + other
            return F.rms_norm(total, (args.width,), w, 1e-5), total

        return [rows(), rows(), weight], residual
    if args.op == "swiglu":
        return [rows(), rows()], lambda gate, up: F.silu(gate) * up
    if args.op == "gather":
        order = torch.argsort(torch.randint(0, 8, (args.rows * args.top_k,)), stable=True) // args.top_k
        return [rows()], lambda x: x.index_select(0, order)
    half = args.head_dim // 2
    angle = torch.outer(torch.arange(args.rows), 10000.0 ** (-torch.arange(half) / half))
    cos, sin = (f(torch.cat((angle, angle), -1)).to(dtype)[:, None] for f in (torch.cos, torch.sin))

    def rope(x):
        heads = x.view(args.rows, -1, args.head_dim)
        turned = torch.cat((-heads[..., half:], heads[..., :half]), -1)
        return (heads * cos + turned * sin).view(args.rows, args.width)

    return [rows()], rope


def runner(args, dtype, compiled):
    def make():
        inputs, function = make_work(args, dtype)
        forward = torch.compile(function, dynamic=False) if compiled else function
        held = {}

        def run_forward():
            y = forward(*inputs)
            held["y"] = y if isinstance(y, tuple) else (y,)

        run_forward()
        gradients = [torch.randn_like(y) for y in held["y"]]

        def run():
            for tensor in inputs:
                tensor.grad = None
            return timed({"forward": run_forward, "backward": lambda: torch.autograd.backward(held["y"], gradients)})

        return run

    return make


def main():
    arguments = parser(HELP)
    arguments.add_argument("--op", choices=OPS, default="rms_norm")
    for name, value in (("rows", 32768), ("width", 512), ("head_dim", 64), ("top_k", 2)):
        arguments.add_argument(f"--{name}", type=int, default=value)
    args = arguments.parse_args()
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    makers = {args.precision: runner(args, dtype, False)}
    if args.compile:
        makers[f"{args.precision} compiled"] = runner(args, dtype, True)
    settings = {"op": args.op, "rows": args.rows, "width": args.width}
    if args.op == "rope":
        settings["head_dim"] = args.head_dim
    if args.op == "gather":
        settings["top_k"] = args.top_k
    alternate(args, "norm", settings, makers)


if __name__ == "__main__":
    main()
