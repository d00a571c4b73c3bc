# SPDX-License-Identifier: Apache-2.0
"""The two chains that transformers writes for a layer of experts: rows sorted by expert (grouped_mm), and one product a row
(batched_mm)."""
from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from . import _functions
from ._graph import Match, argument, dtype, name_of, same, shape, tensor, without_casts
from ._mlps import gated, halves

_FLOATS = (torch.float32, torch.bfloat16)
_GROUPED = frozenset({"grouped_mm", "_grouped_mm", "grouped_mm_fallback"})


class _Differs(Exception):
    """The graph is not that of the chain."""


def is_grouped(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and _target(node) in _GROUPED


def _target(node: Node) -> str:
    return getattr(node.target, "__name__", "").split(".")[0]


class _Chain:
    """Reads a chain from its end. What it passes goes with it."""

    def __init__(self) -> None:
        self.values: list[Node] = []
        self.helpers: list[Node] = []
        self.writes: list[Node] = []

    def take(self, node: Any, *names: str, helper: bool = False) -> Any:
        if name_of(node) not in names:
            raise _Differs(f"expected {' or '.join(names)}, got {getattr(node, 'name', node)}")
        (self.helpers if helper else self.values).append(node)
        return node

    def uncast(self, node: Any) -> Any:
        node, casts = without_casts(node)
        self.helpers += casts
        return node

    def flat(self, node: Any) -> Any:
        """What a [T * k] was made of by reshape(-1)."""
        return self.take(node, "reshape", "view", "flatten", helper=True).args[0]


def find(node: Any, autocast: torch.dtype | None) -> Match | str | None:
    """autocast: to what, at this node."""
    if name_of(node) != "sum" or argument(node, 1, "dim") not in (1, (1,), [1]) or len(shape(node)) != 2:
        return None
    chain = _Chain()
    try:
        view = chain.take(node.args[0], "view", "reshape")
        rows = view.args[0]
        if len(shape(view)) != 3:
            return None
        grouped = name_of(rows) == "getitem"
        if not grouped and not (name_of(rows) == "mul" and any(name_of(arg) == "squeeze" for arg in rows.args)):
            return None
        if grouped and not (isinstance(rows.args[0], Node) and name_of(rows.args[0]) == "mul"):
            return None
        return (_grouped if grouped else _batched)(node, chain, rows, shape(view)[1], autocast)
    except _Differs as differs:
        return str(differs)


def _weighted(chain: _Chain, node: Any) -> tuple[Any, Any]:
    """The products and the weights of rows, [T * k]."""
    chain.take(node, "mul")
    for out, weights in (node.args[:2], node.args[1::-1]):
        if name_of(weights) == "unsqueeze":
            return out, chain.take(weights, "unsqueeze", helper=True).args[0]
    raise _Differs("expected rows times their weights")


def _grouped(node: Any, chain: _Chain, rows: Any, top_k: Any, autocast: torch.dtype | None) -> Match | str:
    chain.take(rows, "getitem")
    weighted, back = rows.args[:2]
    out, weights = _weighted(chain, weighted)
    perm = weights.args[1] if name_of(weights) == "getitem" else None
    chain.take(weights, "getitem", helper=True)
    weights = chain.flat(weights.args[0])
    # The order back: back[perm] = arange.
    chain.take(back, "empty_like")
    written = [reader for reader in back.users if name_of(reader) == "setitem"]
    if back.args[0] is not perm or len(written) != 1 or written[0].args[1] is not perm or name_of(written[0].args[2]) != "arange":
        raise _Differs("expected rows in the order of their tokens")
    arange = written[0].args[2]
    if not isinstance(arange, Node) or len(arange.args) != 1 or not same(shape(arange)[0], shape(perm)[0]):
        raise _Differs("expected rows in the order of their tokens")
    chain.writes += written
    chain.helpers.append(arange)

    inner, down, offsets = _product(chain, out)
    joined, gate_up, more = _product(chain, _gate(chain, inner))
    if more is not offsets:
        raise _Differs("the two products have different groups")
    selected = chain.uncast(joined)
    chain.take(selected, "getitem")
    x, place = selected.args[:2]
    chain.take(place, "floordiv", helper=True)
    if place.args[0] is not perm or not same(place.args[1], top_k):
        raise _Differs("expected each token k times")

    # perm sorts the experts of rows; offsets count them.
    chain.take(perm, "getitem", helper=True)
    order = chain.take(perm.args[0], "sort", helper=True)
    ids = order.args[0]
    chain.take(offsets, "cumsum", helper=True)
    counts = chain.take(offsets.args[0], "histc", helper=True)
    sorted_ids = chain.uncast(counts.args[0])
    chain.take(sorted_ids, "getitem", helper=True)
    num = shape(gate_up)[0]
    options = {"bins": argument(counts, 1, "bins"), "min": argument(counts, 2, "min"), "max": argument(counts, 3, "max")}
    if perm.args[1] != 1 or sorted_ids.args[1] != 0 or sorted_ids.args[0] is not order or len(order.args) != 1 or order.kwargs:
        raise _Differs("expected rows sorted by expert")
    if argument(offsets, 1, "dim") != 0 or options != {"bins": num, "min": 0, "max": num - 1}:
        raise _Differs(f"expected groups that are all of {num} experts")
    return _finish(node, chain, x, gate_up, down, chain.flat(ids), weights, top_k, autocast)


def _product(chain: _Chain, node: Any) -> tuple[Any, Any, Any]:
    """Rows, weight [E, N, K] and offsets of a grouped product."""
    if not is_grouped(node):
        raise _Differs(f"expected a grouped product, got {getattr(node, 'name', node)}")
    chain.values.append(node)
    weight = node.args[1]
    if name_of(weight) != "transpose":
        raise _Differs("the weights are stored transposed")
    chain.take(weight, "transpose", helper=True)
    if tuple(weight.args[1:]) not in ((-2, -1), (-1, -2), (1, 2), (2, 1)) or argument(node, 3, "bias") is not None:
        raise _Differs("expected the weights of experts, transposed")
    return node.args[0], weight.args[0], argument(node, 2, "offs")


def _gate(chain: _Chain, inner: Any) -> Any:
    """The joined gate and up of silu(gate) * up."""
    found = gated(chain.uncast(inner))
    parts = found and halves(found[0], found[1])
    if not found or not parts:
        raise _Differs("expected silu(gate) * up, both of one product")
    chain.values += [*found[2], *parts[1]]
    return parts[0]


def _batched(node: Any, chain: _Chain, rows: Any, top_k: Any, autocast: torch.dtype | None) -> Match | str:
    out, weights = _weighted(chain, rows)
    weights = chain.flat(weights)
    inner, down, ids = _row_product(chain, out)
    joined, gate_up, more = _row_product(chain, _gate(chain, inner))
    if more is not ids:
        raise _Differs("the two products have different experts")
    repeated = chain.take(chain.uncast(joined), "repeat_interleave")
    if not same(argument(repeated, 1, "repeats"), top_k) or argument(repeated, 2, "dim") != 0:
        raise _Differs("expected each token k times")
    return _finish(node, chain, repeated.args[0], gate_up, down, chain.flat(ids), weights, top_k, autocast)


def _row_product(chain: _Chain, node: Any) -> tuple[Any, Any, Any]:
    """Rows, weight [E, N, K] and the expert of each row of a product that gathers its weights."""
    chain.take(node, "squeeze")
    bmm = chain.take(node.args[0], "bmm")
    if argument(node, 1, "dim") != -1 or name_of(bmm.args[1]) != "unsqueeze":
        raise _Differs("the weights are stored transposed")
    column = chain.take(bmm.args[1], "unsqueeze")
    weight = chain.take(chain.uncast(bmm.args[0]), "getitem")
    if argument(column, 1, "dim") != -1 or tensor(weight.args[1]) is None:
        raise _Differs("expected one product a row")
    return column.args[0], weight.args[0], weight.args[1]


def _finish(node: Any, chain: _Chain, x: Any, gate_up: Any, down: Any, index: Any, weights: Any, top_k: Any,
            autocast: torch.dtype | None) -> Match | str:
    if len(shape(x)) != 2 or len(shape(index)) != 2 or len(shape(weights)) != 2 or len(shape(gate_up)) != 3 or len(shape(down)) != 3:
        return "expected x [T, H], index and weights [T, k] and two stacks of matrices"
    if not same(shape(index)[1], top_k) or not same(shape(weights)[1], top_k):
        return "index and weights are not [T, k]"
    if dtype(index) != torch.int64:
        return f"expected an index of int64, got {dtype(index)}"
    kinds = {dtype(gate_up), dtype(down)}
    if len(kinds) != 1 or not kinds < set(_FLOATS) or dtype(x) not in _FLOATS or dtype(weights) not in _FLOATS:
        return f"expected float32 or bfloat16, got {dtype(x)} and weights of {' and '.join(sorted(map(str, kinds)))}"
    if autocast not in (None, torch.bfloat16):
        return f"expected autocast to bfloat16, got {autocast}"
    if autocast is None and dtype(x) not in kinds:
        return f"expected one dtype, got {dtype(x)} and weights of {next(iter(kinds))}"
    to = dtype(node)

    def build(graph: Graph) -> Node:
        return graph.call_function(_functions.experts, (x, gate_up, down, index, weights, to))

    return Match(node, (x, gate_up, down, index, weights), chain.values, build, chain.helpers, chain.writes)
