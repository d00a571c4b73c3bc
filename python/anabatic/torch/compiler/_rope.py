# SPDX-License-Identifier: Apache-2.0
"""Rotations of heads as models write them out: x * cos + rotate_half(x) * sin, with cosines and sines [B, S, D], each of which comes twice."""
from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from . import _functions
from ._graph import Match, argument, dtype, is_cast, name_of, same, shape, tensor

_FLOATS = (torch.float32, torch.bfloat16)


def find(node: Any) -> Match | None:
    if name_of(node) != "add" or len(shape(node)) != 4 or dtype(node) not in _FLOATS or node.kwargs:
        return None
    straight, turned = node.args[:2]
    if name_of(straight) != "mul" or name_of(turned) != "mul":
        return None
    (x, cos), (rotated, sin) = straight.args[:2], turned.args[:2]
    if name_of(rotated) != "cat" or argument(rotated, 1, "dim") != -1 or len(rotated.args[0]) != 2:
        return None
    negative, first = rotated.args[0]
    if name_of(negative) != "neg" or name_of(first) != "getitem" or name_of(negative.args[0]) != "getitem":
        return None
    second = negative.args[0]
    half = shape(x)[-1] // 2 if len(shape(x)) == 4 and isinstance(shape(x)[-1], int) else 0
    if first.args != (x, (..., slice(None, half, None))) or second.args != (x, (..., slice(half, None, None))):
        return None
    tables = [_table(of, function) for of, function in ((cos, "cos"), (sin, "sin"))]
    if None in tables or dtype(x) not in _FLOATS or not all(same(a, b) for a, b in zip(shape(node), shape(x))):
        return None
    if not same(shape(tables[0])[-1], shape(x)[-1]) or not same(shape(tables[0])[-2], shape(x)[-2]):
        return None

    def build(graph: Graph) -> Node:
        return graph.call_function(_functions.rope, (x, *tables))

    return Match(node, (x, *tables), [straight, turned, rotated, negative, first, second], build, [cos, sin])


def _table(node: Any, function: str) -> Node | None:
    """The table [B, S, D] behind one that all heads share, if its second part repeats its first."""
    if name_of(node) != "unsqueeze" or argument(node, 1, "dim") != 1 or len(shape(node)) != 4:
        return None
    table: Any = node.args[0]
    of = table
    while is_cast(of) or name_of(of) == "mul" and isinstance(of.args[1], float):
        of = of.args[0]
    if name_of(of) != function:
        return None
    angles = of.args[0]
    if name_of(angles) != "cat" or argument(angles, 1, "dim") != -1 or len(angles.args[0]) != 2 or angles.args[0][0] is not angles.args[0][1]:
        return None
    value = tensor(table)
    return table if value is not None and not value.requires_grad else None
