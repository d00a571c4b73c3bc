# SPDX-License-Identifier: Apache-2.0
"""Modules over anabatic.torch.ops."""
from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from . import ops


class RMSNorm(nn.Module):
    """x [..., width] over the root of its mean square, times a weight."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


def _draw(*shape: int) -> nn.Parameter:
    bound = 1 / math.sqrt(shape[-1])
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)), x [..., width]. gate_up [2 * inner, width] has gate first."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up = _draw(2 * inner, width)
        self.down = _draw(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        return ops.mlp(x, self.gate_up, self.down)

    def extra_repr(self) -> str:
        return f"{self.down.shape[0]}, {self.down.shape[1]}"


class Experts(nn.Module):
    """num_experts MLPs, of which each token x [tokens, width] has those of index [tokens, k], times weights [tokens, k]."""

    def __init__(self, num_experts: int, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up = _draw(num_experts, 2 * inner, width)
        self.down = _draw(num_experts, width, inner)

    def forward(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        return ops.moe_experts(x, self.gate_up, self.down, index, weights)

    def extra_repr(self) -> str:
        return f"{self.down.shape[0]}, {self.down.shape[1]}, {self.down.shape[2]}"
