# SPDX-License-Identifier: Apache-2.0
"""silu(gate) * up, and the whole MLP around it: down of silu(gate of x) * up of x."""
from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from . import _functions
from ._graph import Match, argument, dtype, name_of, same, shape, tensor, without_casts

_FLOATS = (torch.float32, torch.bfloat16)


def gated(node: Any) -> tuple[Any, Any, list[Node]] | None:
    """gate and up of silu(gate) * up, and its nodes."""
    if name_of(node) != "mul":
        return None
    for silu, up in (node.args[:2], node.args[1::-1]):
        if name_of(silu) == "silu" and not silu.kwargs.get("inplace") and isinstance(up, Node):
            return silu.args[0], up, [node, silu]
    return None


def halves(gate: Any, up: Any) -> tuple[Node, list[Node]] | None:
    """What gate and up are the first and the second half of in the last dimension, and the nodes between."""
    if name_of(gate) != "getitem" or name_of(up) != "getitem" or gate.args[1] != 0 or up.args[1] != 1:
        return None
    chunk = gate.args[0]
    if chunk is not up.args[0] or name_of(chunk) != "chunk" or argument(chunk, 1, "chunks") != 2 or argument(chunk, 2, "dim", 0) != -1:
        return None
    whole = chunk.args[0]
    return (whole, [gate, up, chunk]) if isinstance(shape(whole)[-1], int) and shape(whole)[-1] % 2 == 0 else None


def find_swiglu(node: Any) -> Match | str | None:
    found = gated(node)
    if found is None:
        return None
    gate, up, values = found
    if dtype(gate) not in _FLOATS or dtype(gate) != dtype(up) or dtype(node) != dtype(gate):
        return f"expected one dtype, float32 or bfloat16, got {dtype(gate)} and {dtype(up)}"
    if len(shape(gate)) != len(shape(up)) or not all(same(a, b) for a, b in zip(shape(gate), shape(up))):
        return "gate and up have different shapes"
    if len(shape(gate)) < 2:
        return "expected rows, got a vector"

    def build(graph: Graph) -> Node:
        return graph.call_function(_functions.swiglu, (gate, up))

    return Match(node, (gate, up), values[1:], build)


def find_mlp(node: Any) -> Match | str | None:
    if name_of(node) != "linear":
        return None
    inner, casts = without_casts(node.args[0])
    found = gated(inner)
    if found is None:
        return None
    gate, up, values = found
    joined = halves(gate, up)
    if joined is not None:
        linears, between = [joined[0]], joined[1]
    else:
        linears, between = [gate, up], []
    if any(name_of(linear) != "linear" for linear in linears):
        return "gate and up are no products of a weight"
    if any(argument(linear, 2, "bias") is not None for linear in (*linears, node)):
        return "it has a bias"
    x, weights, down = linears[0].args[0], [linear.args[1] for linear in linears], node.args[1]
    if any(linear.args[0] is not x for linear in linears):
        return "gate and up have different inputs"
    if any(tensor(weight) is None or len(shape(weight)) != 2 for weight in (*weights, down)):
        return "expected weights with two dimensions"
    if not same(shape(weights[0])[0], shape(weights[-1])[0]):
        return "gate and up have different widths"
    reason = product_dtypes(node, x, weights[0], weights[-1], down)
    if reason:
        return reason

    def build(graph: Graph) -> Node:
        return graph.call_function(_functions.mlp, (x, weights[0], weights[1] if len(weights) == 2 else None, down, dtype(node)))

    return Match(node, (x, *weights, down), [*casts, *values, *between, *linears], build, where=inner)


def product_dtypes(node: Any, x: Any, *weights: Any) -> str:
    """Why an operator with products may not take the place of torch's: their dtypes are not those of a run, or of autocast."""
    kinds = {dtype(weight) for weight in weights}
    if len(kinds) != 1 or not kinds < set(_FLOATS) or dtype(x) not in _FLOATS or dtype(node) not in _FLOATS:
        return f"expected float32 or bfloat16, got {dtype(x)} and weights of {' and '.join(sorted(map(str, kinds)))}, result {dtype(node)}"
    if not (dtype(x) in kinds and dtype(node) == dtype(x)) and dtype(node) != torch.bfloat16:
        return f"{dtype(x)} and weights of {next(iter(kinds))} give {dtype(node)}, which autocast to bfloat16 does not"
    return ""
