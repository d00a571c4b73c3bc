#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Products with a sparse weight, next to a dense one of the same shape, and the forward against PyTorch's and SciPy's sparse formats.

Shares of the peak count present weights. Peers have f32 weights in BSR and CSR, whose products take no gradient in some versions, so
they run forward alone. A peer that this machine cannot run is left out with its reason.
"""
from common import alternate, parser, timed

import torch
import torch.nn.functional as F

HELP = __doc__
SIDES = {"block32": 32, "block16": 16}


def draw_weight(args):
    """A weight of which each block is kept or not."""
    side = SIDES[args.pattern]
    rows, columns = args.out // side, args.columns // side
    kept = max(1, round(args.density * rows * columns))
    mask = torch.zeros(rows * columns)
    mask[torch.randperm(rows * columns)[:kept]] = 1
    mask = mask.view(rows, columns).repeat_interleave(side, 0).repeat_interleave(side, 1)
    return torch.randn(args.out, args.columns) / args.columns**0.5 * mask


def makers(args):
    weight, x = draw_weight(args), torch.randn(args.rows, args.columns)
    turned = x.t().contiguous()
    side = SIDES[args.pattern]

    def of(prepare, multiply):
        def make():
            operand = prepare()
            return lambda: timed({"forward": lambda: multiply(operand)})

        return make

    def scipy_csr():
        import scipy.sparse

        return scipy.sparse.csr_matrix(weight.numpy())

    return {
        "torch dense fp32": of(lambda: weight, lambda w: F.linear(x, w)),
        "torch dense bf16": of(lambda: (weight.bfloat16(), x.bfloat16()), lambda w: F.linear(w[1], w[0])),
        "torch BSR fp32": of(lambda: weight.to_sparse_bsr((side, side)), lambda w: torch.mm(w, turned)),
        "torch CSR fp32": of(lambda: weight.to_sparse_csr(), lambda w: torch.mm(w, turned)),
        "scipy CSR fp32": of(scipy_csr, lambda w: w @ turned.numpy()),
    }


def main():
    arguments = parser(HELP)
    arguments.add_argument("--pattern", choices=tuple(SIDES), default="block32")
    arguments.add_argument("--density", type=float, default=0.25)
    for name, value in (("rows", 1024), ("out", 1536)):
        arguments.add_argument(f"--{name}", type=int, default=value)
    arguments.add_argument("--in", dest="columns", type=int, default=512)
    args = arguments.parse_args()
    settings = {"pattern": args.pattern, "density": args.density, "rows": args.rows, "in": args.columns, "out": args.out}
    with torch.no_grad():
        alternate(args, "sparse", settings, makers(args), parts=("forward",))


if __name__ == "__main__":
    main()
