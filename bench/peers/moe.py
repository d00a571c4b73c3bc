#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The MoE layer, router to combine, forward and backward, against PyTorch's formulations of it."""
from common import alternate, parser, timed

import torch
import torch.nn.functional as F

HELP = __doc__


def draw_experts(args):
    """Fixed routing for all peers, by popularity (rank + 1)^-zipf without repetition."""
    popularity = torch.arange(1, args.experts + 1, dtype=torch.float64) ** -args.zipf
    return torch.multinomial(popularity.expand(args.tokens, -1), args.top_k, replacement=False)


class Layer:
    def __init__(self, args, dtype):
        d, f, e = args.hidden, args.intermediate, args.experts
        self.args = args

        def parameter(*shape):
            return (torch.randn(*shape) / shape[-1] ** 0.5).to(dtype).requires_grad_()

        self.gate_up, self.down, self.router = parameter(e, 2 * f, d), parameter(e, d, f), parameter(e, d)
        x = torch.randn(args.tokens, d)
        lead = torch.zeros(args.tokens, e).scatter_(1, draw_experts(args), 4.0)
        x[:, :e] = 0.25 * x[:, :e] + lead
        with torch.no_grad():
            self.router[:, :e] = torch.eye(e, dtype=dtype)
        self.x = x.to(dtype).requires_grad_()

    def route(self):
        scores = F.softmax(F.linear(self.x, self.router).float(), dim=-1)
        weights, experts = torch.topk(scores, self.args.top_k, dim=-1)
        return weights / weights.sum(-1, keepdim=True), experts

    def swiglu(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def sort(self, experts):
        order = torch.argsort(experts.flatten(), stable=True)
        counts = torch.bincount(experts.flatten(), minlength=self.args.experts)
        return order, order // self.args.top_k, counts

    def combine(self, rows, weights, order, token):
        scaled = rows * weights.flatten()[order].unsqueeze(-1).to(rows.dtype)
        return torch.zeros(self.args.tokens, self.args.hidden, dtype=rows.dtype).index_add(0, token, scaled)

    def sorted_chain(self):
        weights, experts = self.route()
        order, token, counts = self.sort(experts)
        rows = self.x[token].split(counts.tolist())
        out = [F.linear(self.swiglu(F.linear(r, self.gate_up[e])), self.down[e]) for e, r in enumerate(rows)]
        return self.combine(torch.cat(out), weights, order, token)

    def mask_loop(self):
        weights, experts = self.route()
        y = None
        for e in range(self.args.experts):
            token, slot = torch.where(experts == e)
            out = F.linear(self.swiglu(F.linear(self.x[token], self.gate_up[e])), self.down[e])
            out = out * weights[token, slot, None].to(out.dtype)
            y = torch.zeros(self.args.tokens, self.args.hidden, dtype=out.dtype) if y is None else y
            y = y.index_add(0, token, out)
        return y

    def grouped_mm(self):
        weights, experts = self.route()
        order, token, counts = self.sort(experts)
        ends = counts.cumsum(0).to(torch.int32)
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else self.x.dtype
        x, gate_up, down = self.x.to(dtype), self.gate_up.to(dtype), self.down.to(dtype)
        hidden = self.swiglu(F.grouped_mm(x[token], gate_up.transpose(-2, -1), offs=ends))
        out = F.grouped_mm(hidden, down.transpose(-2, -1), offs=ends)
        return self.combine(out, weights, order, token)


def runner(args, dtype, form, autocast, compiled):
    def make():
        layer = Layer(args, dtype)
        forward = getattr(layer, form)
        if compiled:
            forward = torch.compile(forward, dynamic=False)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            dy = torch.randn_like(forward())
        held = {}

        def run_forward():
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                held["y"] = forward()

        def run():
            for tensor in (layer.x, layer.router, layer.gate_up, layer.down):
                if not args.accumulate:
                    tensor.grad = None
            return timed({"forward": run_forward, "backward": lambda: held["y"].backward(dy)})

        return run

    return make


def main():
    arguments = parser(HELP)
    for name, value in (("tokens", 1024), ("hidden", 512), ("intermediate", 1536), ("experts", 8), ("top_k", 2)):
        arguments.add_argument(f"--{name}", type=int, default=value)
    arguments.add_argument("--zipf", type=float, default=0.0)
    arguments.add_argument("--accumulate", action="store_true", help="add to gradients rather than assign")
    args = arguments.parse_args()
    variants = [("fp32", torch.float32, False)]
    if args.precision == "bf16":
        variants = [("bf16", torch.bfloat16, False), ("autocast", torch.float32, True)]
    makers = {}
    for word, dtype, autocast in variants:
        for form in ("sorted_chain", "mask_loop", "grouped_mm"):
            makers[f"{word} {form}"] = runner(args, dtype, form, autocast, False)
            if args.compile:
                makers[f"{word} {form} compiled"] = runner(args, dtype, form, autocast, True)
    settings = {name: getattr(args, name) for name in ("tokens", "hidden", "intermediate", "experts", "top_k", "zipf")}
    if args.accumulate:
        settings["accumulate"] = True
    alternate(args, "moe", settings, makers)


if __name__ == "__main__":
    main()
