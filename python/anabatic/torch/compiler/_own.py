# SPDX-License-Identifier: Apache-2.0
"""Operators of ours that the traced model calls itself, as an adapted one does, as the functions that patterns put there."""
from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from . import _functions
from ._graph import Match, dtype, name_of, same, shape

_QUESTIONS = ("is_cpu", "layout", "requires_grad")  # what an operator asks of its operands while it is traced


def find(node: Node) -> Match | None:
    """The result of such an operator; of rows that were [..., H] before, the view that gives them that shape again.

    Nothing may read its other output, the buffer of its backward."""
    first: Any = node.args[0] if name_of(node) == "view" else node
    source = first.args[0] if name_of(first) == "getitem" and first.args[1] == 0 else None
    if not isinstance(source, Node) or source.target not in _FORMS or source.kwargs:
        return None
    made = _FORMS[source.target](*source.args[:-1])  # without which gradients are needed
    if made is None:
        return None
    function, (x, *rest) = made
    values = [source]
    if first is not node:
        before = x.args[0] if name_of(x) == "reshape" else x
        if function is _functions.experts or not _alike(node, before):
            return None
        values, x = [first, source], before

    def build(graph: Graph) -> Node:
        return graph.call_function(function, (x, *rest, dtype(first)))

    return Match(node, [each for each in (x, *rest) if isinstance(each, Node)], values, build)


def _alike(a: Any, b: Any) -> bool:
    return len(shape(a)) == len(shape(b)) and all(same(x, y) for x, y in zip(shape(a), shape(b)))


def drop_questions(graph: Graph) -> None:
    """Erases reads of a tensor's kind that nothing uses. Each would keep its tensor from living inside a region alone."""
    for node in reversed(graph.nodes):
        if node.op == "call_function" and node.target is builtins.getattr and not node.users and node.args[1] in _QUESTIONS:
            graph.erase_node(node)


def _rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    return _functions.rms_norm, (x, weight, epsilon)


def _mlp(x: Any, gate_up: Any, down: Any, activation: str, products: str) -> Any:
    return (_functions.mlp, (x, gate_up, None, down)) if (activation, products) == ("swiglu", "") else None


def _gated_mlp(x: Any, gate: Any, up: Any, down: Any, activation: str, products: str) -> Any:
    return (_functions.mlp, (x, gate, up, down)) if (activation, products) == ("swiglu", "") else None


def _moe_experts(x: Any, gate_up: Any, down: Any, index: Any, weights: Any, *rest: Any) -> Any:
    is_plain = rest == (None, None, None, "swiglu", None, None, "rows", "")  # biases, activation and its constants, layout, products
    return (_functions.experts, (x, gate_up, down, index, weights)) if is_plain else None


_FORMS: dict[Any, Callable[..., Any]] = {
    torch.ops.anabatic.rms_norm: _rms_norm,
    torch.ops.anabatic.mlp: _mlp,
    torch.ops.anabatic.gated_mlp: _gated_mlp,
    torch.ops.anabatic.moe_experts: _moe_experts,
}
