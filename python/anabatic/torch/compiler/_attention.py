# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention without a mask, causal, or under a boolean mask that all heads share."""
from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from . import _functions
from ._graph import Match, argument, dtype, name_of, same, shape

_FLOATS = (torch.float32, torch.bfloat16)
_EACH = slice(None, None, None)


def _once(node: Any) -> tuple[Any, list[Node]]:
    """Keys or values before each of their heads was repeated for its queries, and the nodes that did."""
    if name_of(node) != "reshape" or name_of(node.args[0]) != "expand" or name_of(node.args[0].args[0]) != "getitem":
        return node, []
    expand = node.args[0]
    spread = expand.args[0]
    x = spread.args[0]
    if spread.args[1] != (_EACH, _EACH, None, _EACH, _EACH) or len(shape(x)) != 4 or len(shape(expand)) != 5 or len(shape(node)) != 4:
        return node, []
    heads, each = shape(x)[1], shape(expand)[2]
    if not isinstance(heads, int) or not isinstance(each, int) or shape(node)[1] != heads * each or shape(expand)[1] != heads:
        return node, []
    return x, [node, expand, spread]


def find(node: Any, known: dict[Node, Node]) -> Match | str | None:
    """known: the ranges of masks that other layers of this graph have."""
    if name_of(node) != "attention":
        return None
    q, k, v = (argument(node, place, name) for place, name in enumerate(("query", "key", "value")))
    mask, dropout, causal, scale = (argument(node, place, name, default) for place, name, default in (
        (3, "attn_mask", None), (4, "dropout_p", 0.0), (5, "is_causal", False), (6, "scale", None)))
    if any(len(shape(x)) != 4 for x in (q, k, v)):
        return "expected queries, keys and values [B, heads, S, width]"
    if not isinstance(dropout, (int, float)) or dropout:
        return "it has dropout"
    if not isinstance(causal, bool) or not (scale is None or isinstance(scale, (int, float))):
        return "its causality or scale is no constant"
    if any(dtype(x) not in _FLOATS for x in (q, k, v, node)) or dtype(node) != torch.bfloat16 and len({dtype(x) for x in (q, k, v)}) != 1:
        return f"expected float32 or bfloat16, got {dtype(q)}, {dtype(k)}, {dtype(v)}"
    reason = _mask_reason(mask, k)
    if reason:
        return reason
    (once_k, repeats), (once_v, more) = _once(k), _once(v)
    if same(shape(once_k)[1], shape(once_v)[1]):
        k, v, repeats = once_k, once_v, [*repeats, *more]
    else:
        repeats = []
    heads, kv_heads = shape(q)[1], shape(k)[1]
    if not isinstance(heads, int) or not isinstance(kv_heads, int) or heads % kv_heads:
        return "the heads of queries are no multiple of those of keys"
    scale = None if scale is None else float(scale)

    def build(graph: Graph) -> Node:
        if mask is None:
            return graph.call_function(_functions.range_attention, (q, k, v, causal, scale, dtype(node)))
        if mask not in known:
            known[mask] = graph.call_function(_functions.ranges, (mask,))
        return graph.call_function(_functions.attention_by_mask, (q, k, v, mask, known[mask], scale, dtype(node)))

    return Match(node, (q, k, v) if mask is None else (q, k, v, mask), [], build, repeats)


def _mask_reason(mask: Any, k: Any) -> str:
    if mask is None:
        return ""
    if dtype(mask) != torch.bool:
        return f"its mask is {dtype(mask)}, expected bool"
    if len(shape(mask)) not in (2, 4):
        return "expected a mask [B, 1, S, keys] or [S, keys]"
    if not same(shape(mask)[-1], shape(k)[2]):
        return "all keys share its mask"
    return "" if len(shape(mask)) == 2 or shape(mask)[1] == 1 and isinstance(shape(mask)[1], int) else "its mask differs between heads"
