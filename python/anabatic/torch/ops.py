# SPDX-License-Identifier: Apache-2.0
"""The library's layers as functions of tensors, with autograd, autocast and torch.compile.

torch.ops.anabatic has the operators below them, which take rows and return the buffer of their backward too.
T is a number of tokens, H and F are widths, E is a number of experts. Floats are float32 or bfloat16. A gradient has the
dtype of its parameter. Under torch.autocast("cpu") products are in bfloat16. Operands stay as they are and results are like
them; linear and attention give bfloat16 then.
"""
from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ..errors import InvalidArgument, Unsupported
from ._register import Op, register

_LIBRARY = torch.library.Library("anabatic", "DEF")  # noqa: TOR901


def _like(x: Tensor, *_: Any) -> list[Any]:
    return [(x.shape, x.dtype)]


OPS = (
    Op("rms_norm", ("x", "weight"), ("float epsilon",), _like, rows=("x",), gradients=("x", "weight")),
    Op("add_rms_norm", ("x", "weight", "residual"), ("float epsilon",), lambda x, *_: [(x.shape, x.dtype)] * 2, num_outputs=2,
       rows=("x", "residual"), gradients=("x", "weight", "residual"), saved_outputs=(0,)),
    Op("swiglu", ("gate", "up"), (), _like, rows=("gate", "up"), gradients=("gate", "up")),
    Op("mlp", ("x", "gate_up", "down"), ("str activation",), _like, rows=("x",), gradients=("x", "gate_up", "down"), has_products=True),
    Op("gated_mlp", ("x", "gate", "up", "down"), ("str activation",), _like, rows=("x",), gradients=("x", "gate", "up", "down"), has_products=True),
    Op("linear", ("x", "weight"), (), lambda x, weight: [((x.shape[0], weight.shape[0]), x.dtype)], rows=("x",), gradients=("x", "weight"),
       has_products=True, casts=("x",)),
    Op("moe_experts", ("x", "gate_up", "down", "index", "weights", "gate_bias?", "up_bias?", "down_bias?"),
       ("str activation", "float? alpha", "float? limit", "str stacks"), _like, rows=("x", "index", "weights"),
       gradients=("x", "gate_up", "down", "weights", "gate_bias", "up_bias", "down_bias"), has_products=True),
    Op("grouped_linear", ("x", "weight", "offsets"), (), lambda x, weight, *_: [((x.shape[0], weight.shape[1]), x.dtype)], rows=("x",),
       gradients=("x", "weight"), has_products=True),
    Op("rope", ("x", "table"), ("int head_dim",), _like, rows=("x", "table"), gradients=("x",)),
    Op("attention", ("q", "k", "v", "key_begin", "key_end", "sinks?"), ("int num_heads", "int num_kv_heads", "float scale", "int window"),
       lambda q, k, v, begin, end, sinks, heads, kv_heads, *_: [((q.shape[0], v.shape[1] // kv_heads * heads), q.dtype)],
       rows=("q", "k", "v", "key_begin", "key_end"), gradients=("q", "k", "v", "sinks"), has_products=True, casts=("q", "k", "v"), saved_outputs=(0,)),
    Op("linear_cross_entropy", ("x", "weight", "labels", "scale"), (), lambda x, *_: [((), torch.float32)], rows=("x", "labels"),
       gradients=("x", "weight"), has_products=True),
)
_NAMES = {op.name: op.names for op in OPS}
_CALLS = {op.name: register(_LIBRARY, op) for op in OPS}


def _call(name: str, tensors: tuple[Tensor | None, ...], *attributes: Any) -> Any:
    """The outputs, and perhaps the buffer of the backward."""
    needs = 0
    grad = torch.is_grad_enabled()
    for place, tensor in enumerate(tensors):
        if tensor is None:
            continue
        if not tensor.is_cpu or tensor.layout is not torch.strided:
            raise Unsupported(f"[{name}] {_NAMES[name][place]}: expected a dense tensor on the CPU, got {tensor.layout} on {tensor.device}")
        if grad and tensor.requires_grad:
            needs |= 1 << place
    return _CALLS[name](tensors, attributes, needs)


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def rms_norm(x: Tensor, weight: Tensor, epsilon: float = 1e-6, *, offset: float = 0.0) -> Tensor:
    """x [..., H] over the root of its mean square, times weight [H] + offset; like x."""
    if offset:
        weight = weight + offset
    return cast(Tensor, _call("rms_norm", (_rows(x), weight), epsilon)[0].view(x.shape))


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """The sum x + residual, both [..., H], and the norm of it; both like x."""
    sums, normed, *_ = _call("add_rms_norm", (_rows(x), weight, _rows(residual)), epsilon)
    return sums.view(x.shape), normed.view(x.shape)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, both [..., F]."""
    return cast(Tensor, _call("swiglu", (_rows(gate), _rows(up)))[0].view(gate.shape))


_ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", "swiglu": "swiglu", "swiglu_clamped": "swiglu_clamped"}


def _activation(op: str, name: str) -> str:
    if name not in _ACTIVATIONS:
        raise Unsupported(f"[{op}] activation: expected {', '.join(_ACTIVATIONS)}, got {name}")
    return _ACTIVATIONS[name]


def mlp(x: Tensor, gate_up: Tensor, down: Tensor, *, activation: str = "silu") -> Tensor:
    """down of activation(gate of x) * up of x. x [..., H]; gate_up [2F, H], gate first; down [H, F]; like x."""
    return cast(Tensor, _call("mlp", (_rows(x), gate_up, down), _activation("mlp", activation))[0].view(x.shape))


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, *, activation: str = "silu") -> Tensor:
    """The same with gate and up [F, H] apart."""
    return cast(Tensor, _call("gated_mlp", (_rows(x), gate, up, down), _activation("gated_mlp", activation))[0].view(x.shape))


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., H] times the transpose of weight [N, H]; [..., N], like x."""
    return cast(Tensor, _call("linear", (_rows(x), weight))[0].view(*x.shape[:-1], weight.shape[0]))


def moe_experts(x: Tensor, gate_up: Tensor, down: Tensor, index: Tensor, weights: Tensor, *, activation: str = "silu",
                alpha: float | None = None, limit: float | None = None, stacks: str = "rows", gate_bias: Tensor | None = None,
                up_bias: Tensor | None = None, down_bias: Tensor | None = None) -> Tensor:
    """For each token the sum over its k experts of weights times mlp. Like x.

    x [T, H]; gate_up [E, 2F, H], gate first; down [E, H, F]; index [T, k], integers below E; weights [T, k]. With
    stacks="columns", as gpt_oss has them, gate_up is [E, H, 2F], its columns gate and up in turn, and down [E, F, H].
    gate_bias, up_bias [E, F] and down_bias [E, H]. `alpha` and `limit` are those of "swiglu_clamped",
    (up + 1) * gate * sigmoid(alpha * gate), where gate is at most `limit`, and up is within it both ways.
    """
    kind = _activation("moe_experts", activation)
    if kind != "swiglu_clamped" and (alpha is not None or limit is not None):
        raise InvalidArgument(f"[moe_experts] expected alpha and limit with swiglu_clamped alone, got them with {activation}")
    return cast(Tensor, _call("moe_experts", (x, gate_up, down, index, weights, gate_bias, up_bias, down_bias), kind, alpha, limit, stacks)[0])


def grouped_linear(x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """Rows [offsets[e], offsets[e + 1]) of x [R, K] times weight[e] of [E, N, K]; [R, N]."""
    return cast(Tensor, _call("grouped_linear", (x, weight, offsets))[0])


def rope(x: Tensor, table: Tensor, head_dim: int) -> Tensor:
    """Rotates the heads of x [T, heads * head_dim]. table float32 [T, R]: R / 2 cosines, then as many sines."""
    return cast(Tensor, _call("rope", (x, table), head_dim)[0])


def attention(q: Tensor, k: Tensor, v: Tensor, key_begin: Tensor, key_end: Tensor, *, sinks: Tensor | None = None,
              window: int | None = None, scale: float | None = None) -> Tensor:
    """Softmax attention. q [B, heads, S, width], k and v [B, kv_heads, keys, width of each]; [B, S, heads, width of v].

    key_begin, key_end: integers [B, S]. Row i attends to keys [begin, end) of its sequence; neither decreases with i. With
    `window`, to the last so many of them. sinks [heads]: logits that only the sum of the softmax has.
    """
    batch, heads, length, width = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    if key_begin.shape != (batch, length) or key_end.shape != (batch, length):
        raise InvalidArgument(f"[attention] key_begin, key_end: expected shape {[batch, length]}, got {list(key_begin.shape)} and "
                              f"{list(key_end.shape)}")
    first = torch.arange(batch, dtype=key_begin.dtype)[:, None] * keys
    rows = [t.transpose(1, 2).reshape(t.shape[0] * t.shape[2], t.shape[1] * t.shape[3]) for t in (q, k, v)]
    out = _call("attention", (*rows, (key_begin + first).view(-1), (key_end + first).view(-1), sinks), heads, kv_heads,
                width**-0.5 if scale is None else scale, window or 0)[0]
    return cast(Tensor, out.view(batch, length, heads, v.shape[-1]))


def linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """scale times the sum over rows of the cross-entropy of x weight^T; float32. The logits are never stored.

    x [..., H], weight [V, H], labels [...], integers below V; -100 is ignored. The gradients are made in the
    forward: that of x alone where weight needs none.
    """
    scale = torch.as_tensor(scale, dtype=torch.float32)
    return cast(Tensor, _call("linear_cross_entropy", (_rows(x), weight, labels.reshape(-1), scale))[0])
