#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Causal attention, forward and backward, against PyTorch's SDPA: as it is, with V padded to the head size of Q, and with
one call a document where documents are packed."""
from common import alternate, parser, timed

import torch
import torch.nn.functional as F

HELP = __doc__


def document_lengths(args):
    """Uniform in [1, 2·mean - 1], cut at the end of a sequence."""
    if not args.documents:
        return [args.sequence] * args.batch
    lengths = []
    for _ in range(args.batch):
        left = args.sequence
        while left > 0:
            lengths.append(min(left, int(torch.randint(1, 2 * args.documents, ()))))
            left -= lengths[-1]
    return lengths


def runner(args, dtype, pads_v, compiled):
    def make():
        lengths = document_lengths(args)
        batched = len(set(lengths)) == 1
        shapes = [(len(lengths), lengths[0])] if batched else [(1, length) for length in lengths]
        work = []
        for batch, length in shapes:
            q, k, v = (torch.randn(batch, heads, length, width).to(dtype).requires_grad_()
                       for heads, width in ((args.heads, args.head_dim), (args.kv_heads, args.head_dim),
                                            (args.kv_heads, args.v_head_dim)))
            work.append((q, k, v, torch.randn(batch, args.heads, length, args.v_head_dim).to(dtype)))

        def attend(q, k, v):
            if pads_v:
                v = F.pad(v, (0, args.head_dim - args.v_head_dim))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=args.heads != args.kv_heads)
            return y[..., : args.v_head_dim]

        forward = torch.compile(attend, dynamic=False) if compiled else attend
        held = {}

        def run_forward():
            held["y"] = [forward(q, k, v) for q, k, v, _ in work]

        def run_backward():
            for y, (_, _, _, dy) in zip(held["y"], work):
                y.backward(dy)

        def run():
            for tensors in work:
                for tensor in tensors[:3]:
                    tensor.grad = None
            return timed({"forward": run_forward, "backward": run_backward})

        return run

    return make


def main():
    arguments = parser(HELP)
    for name, value in (("batch", 1), ("sequence", 2048), ("documents", 0), ("heads", 8), ("kv_heads", 0), ("head_dim", 64),
                        ("v_head_dim", 0)):
        arguments.add_argument(f"--{name}", type=int, default=value)
    args = arguments.parse_args()
    args.kv_heads = args.kv_heads or args.heads
    args.v_head_dim = args.v_head_dim or args.head_dim
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    makers = {f"sdpa {args.precision}": runner(args, dtype, False, False)}
    if args.v_head_dim != args.head_dim:
        makers[f"sdpa {args.precision} padded"] = runner(args, dtype, True, False)
    if args.compile:
        makers[f"sdpa {args.precision} compiled"] = runner(args, dtype, args.v_head_dim != args.head_dim, True)
    names = ("batch", "sequence", "documents", "heads", "kv_heads", "head_dim", "v_head_dim")
    alternate(args, "attention", {name: getattr(args, name) for name in names}, makers)


if __name__ == "__main__":
    main()
