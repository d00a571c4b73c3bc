# SPDX-License-Identifier: Apache-2.0
"""The head with its cross-entropy loss, and single products of a weight."""
from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from . import _functions
from ._graph import Match, argument, dtype, is_cast, name_of, same, shape, tensor
from ._mlps import product_dtypes

_VIEWS = ("view", "reshape", "flatten", "contiguous")


def find_loss(node: Any) -> Match | str | None:
    if name_of(node) != "cross_entropy":
        return None
    logits, labels = argument(node, 0, "input"), argument(node, 1, "target")
    if len(shape(logits)) != 2 or len(shape(labels)) != 1 or dtype(labels) != torch.int64:
        return "expected rows of logits and one label of int64 each"
    defaults: tuple[tuple[int, str, Any], ...] = ((2, "weight", None), (3, "size_average", None), (4, "ignore_index", -100), (5, "reduce", None),
                                                  (7, "label_smoothing", 0.0))
    for place, name, default in defaults:
        if argument(node, place, name, default) != default:
            return f"expected {name} {default}, got {argument(node, place, name, default)}"
    reduction = argument(node, 6, "reduction", "mean")
    if reduction not in ("mean", "sum"):
        return f"expected reduction mean or sum, got {reduction}"
    values: list[Node] = []
    while is_cast(logits) or name_of(logits) in _VIEWS:
        values.append(logits)
        logits = logits.args[0]
        if not same(shape(logits)[-1], shape(node.args[0])[-1]):
            return "the logits are no rows of a product"
    if name_of(logits) != "linear":
        return f"the logits come from {getattr(logits, 'name', logits)}, expected a product of a weight"
    x, weight = logits.args[:2]
    if argument(logits, 2, "bias") is not None:
        return "the head has a bias"
    if any(reader.op == "output" for reader in logits.users):
        return "the logits are returned too; compile a function that returns the loss alone"
    if tensor(weight) is None or len(shape(weight)) != 2 or not isinstance(shape(weight)[0], int):
        return "expected a weight [V, H]"
    reason = product_dtypes(logits, x, weight)
    if reason:
        return reason

    def build(graph: Graph) -> Node:
        return graph.call_function(_functions.head_loss, (x, weight, labels, reduction, dtype(node)))

    return Match(node, (x, weight, labels), [*values, logits], build, where=logits)


def find_linear(node: Any) -> Match | str | None:
    """linear, and addmm of a weight [K, N], which GPT-2 calls Conv1D."""
    is_turned = name_of(node) == "addmm"
    if is_turned:
        bias, x, weight = node.args[:3]
        if node.kwargs:
            return "it scales what it adds"
    elif name_of(node) == "linear":
        x, weight, bias = argument(node, 0, "input"), argument(node, 1, "weight"), argument(node, 2, "bias")
    else:
        return None
    if len(shape(x)) < 2 or tensor(weight) is None or len(shape(weight)) != 2:
        return "expected rows and a weight with two dimensions"
    reason = product_dtypes(node, x, weight)
    if reason:
        return reason

    def build(graph: Graph) -> Node:
        return graph.call_function(_functions.turned_linear if is_turned else _functions.linear, (x, weight, bias, dtype(node)))

    return Match(node, [each for each in (x, weight, bias) if isinstance(each, Node)], [], build)
