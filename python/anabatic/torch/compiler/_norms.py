# SPDX-License-Identifier: Apache-2.0
"""Norms: weight * (x * rsqrt(mean(x ** 2) + epsilon)), as models write it out, and torch's rms_norm."""
from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from . import _functions
from ._graph import Match, argument, dtype, name_of, same, shape, tensor, without_casts

_FLOATS = (torch.float32, torch.bfloat16)


def find(node: Any) -> Match | str | None:
    if name_of(node) == "rms_norm":
        return _whole(node)
    if name_of(node) != "mul":
        return None
    for weight, rest in (node.args[:2], node.args[1::-1]):
        normed, casts = without_casts(rest)
        found = _chain(normed)
        if found is not None:
            return _written_out(node, weight, normed, casts, *found)
    return None


def _whole(node: Any) -> Match | str:
    x, widths, weight, epsilon = (argument(node, place, name) for place, name in enumerate(("input", "normalized_shape", "weight", "eps")))
    if tensor(weight) is None:
        return "it has no weight"
    if len(widths) != 1 or epsilon is None:
        return "expected one dimension and a given epsilon"
    return _match(node, x, weight, epsilon, [], [])


def _chain(normed: Any) -> tuple[Any, Any, list[Node], list[Node]] | None:
    """x, epsilon and the nodes of x * rsqrt(mean(x ** 2, -1) + epsilon)."""
    if name_of(normed) != "mul":
        return None
    for x, scale in (normed.args[:2], normed.args[1::-1]):
        if name_of(scale) != "rsqrt" or name_of(scale.args[0]) != "add":
            continue
        mean, epsilon = scale.args[0].args[:2]
        if name_of(mean) != "mean" or argument(mean, 1, "dim") not in (-1, (-1,), [-1]) or argument(mean, 2, "keepdim") is not True:
            continue
        square = mean.args[0]
        squared = {"square": lambda: True, "pow": lambda: square.args[1] == 2, "mul": lambda: square.args[0] is square.args[1]}.get(name_of(square))
        if squared is None or not squared() or not isinstance(epsilon, float):
            continue
        (a, casts), (b, more) = without_casts(x), without_casts(square.args[0])
        if a is b and dtype(x) == dtype(square.args[0]):
            return a, epsilon, [scale, scale.args[0], mean, square], [*casts, *more]
    return None


def _written_out(node: Any, weight: Any, normed: Any, casts: list[Node], x: Any, epsilon: float, inner: list[Node],
                 helpers: list[Node]) -> Match | str:
    if tensor(weight) is None or len(shape(weight)) != 1 or not same(shape(weight)[0], shape(x)[-1]):
        return "what it is multiplied by is no weight of its width"
    if dtype(normed) != torch.float32:
        return f"it computes in {dtype(normed)}, expected float32"
    return _match(node, x, weight, epsilon, [*casts, normed, *inner], helpers)


def _match(node: Any, x: Any, weight: Any, epsilon: float, values: list[Node], helpers: list[Node]) -> Match | str:
    to = dtype(node)
    if to not in _FLOATS or dtype(x) not in _FLOATS or dtype(weight) not in _FLOATS:
        return f"expected float32 or bfloat16, got {dtype(x)}, weight {dtype(weight)}, result {to}"

    def build(graph: Graph) -> Node:
        return graph.call_function(_functions.rms_norm, (x, weight, epsilon, to))

    return Match(node, (x, weight), values, build, helpers)
