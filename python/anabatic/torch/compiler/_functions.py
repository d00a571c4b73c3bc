# SPDX-License-Identifier: Apache-2.0
"""What a raised graph calls: operators with the casts and shapes around them. AOTAutograd traces through these."""
from __future__ import annotations

import torch
from torch import Tensor

from .. import ops
from .._masked import masked_attention, mask_ranges


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    return ops.rms_norm(x.to(dtype), weight.to(dtype), epsilon)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return ops.swiglu(gate, up)


def mlp(x: Tensor, gate: Tensor, up: Tensor | None, down: Tensor, dtype: torch.dtype) -> Tensor:
    """gate is that of both where there is no up."""
    return (ops.mlp(x, gate, down) if up is None else ops.gated_mlp(x, gate, up, down)).to(dtype)


def experts(x: Tensor, gate_up: Tensor, down: Tensor, index: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
    return ops.moe_experts(x, gate_up, down, index, weights).to(dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    out = ops.linear(x, weight)
    return (out if bias is None else out + bias.to(out.dtype)).to(dtype)


def turned_linear(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Of a weight [K, N]. The operator copies it, as its rows are the other way round."""
    return linear(x, weight.t(), bias, dtype)


def head_loss(x: Tensor, weight: Tensor, labels: Tensor, reduction: str, dtype: torch.dtype) -> Tensor:
    labels = labels.reshape(-1)
    counted = (labels != -100).sum() if reduction == "mean" else torch.ones(())
    return ops.linear_cross_entropy(x, weight, labels, 1.0 / counted.float()).to(dtype)


def range_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, dtype: torch.dtype) -> Tensor:
    """Of all keys, or of those up to the query's own place; like scaled_dot_product_attention."""
    batch, length, keys = q.shape[0], q.shape[2], k.shape[2]
    begin = torch.zeros((batch, length), dtype=torch.int32)
    end = torch.arange(1, length + 1, dtype=torch.int32).clamp(max=keys) if causal else torch.full((length,), keys, dtype=torch.int32)
    return ops.attention(q, k, v, begin, end.expand(batch, length), scale=scale).transpose(1, 2).to(dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates heads [B, heads, S, D]; cosines and sines [B, S, D]."""
    half = x.shape[-1] // 2
    return x * cos.unsqueeze(1) + torch.cat((-x[..., half:], x[..., :half]), -1) * sin.unsqueeze(1)


def ranges(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The ranges of keys of a mask that broadcasts to [B, 1, S, keys], as it is; once for all layers that share it."""
    return mask_ranges(mask[(None,) * (4 - mask.dim())])


def attention_by_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, found: tuple[Tensor, Tensor], scale: float | None, dtype: torch.dtype) -> Tensor:
    begin, end = (each.expand(q.shape[0], q.shape[2]) for each in found)
    return masked_attention(q, k, v, mask, begin, end, scale=q.shape[-1]**-0.5 if scale is None else scale).transpose(1, 2).to(dtype)
