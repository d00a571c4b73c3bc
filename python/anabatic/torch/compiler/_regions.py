# SPDX-License-Identifier: Apache-2.0
"""Joins raised operators, and the sums, casts and views between them, into regions: one operator each.

A region has nodes of one layer of the model, so that layers of one kind share a program. No path leaves it and comes back, and
it has no nodes on both sides of one that writes to memory or changes a state. Its values are rows [T, width]; a tensor of heads
is a view of them.
"""
from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections import Counter
from typing import Any

import torch
from torch.fx import Graph, Node

from . import _functions, _region_op
from ._graph import Places, argument, dtype, is_cast, module_of, name_of, nodes, same, shape, tensor
from ._region_op import Export, Layer, Operand, Structure

_KINDS = {_functions.rms_norm: "rms_norm", _functions.linear: "linear", _functions.mlp: "mlp", _functions.experts: "moe_experts",
          _functions.swiglu: "swiglu", _functions.rope: "rope", _functions.attention_by_mask: "attention",
          _functions.range_attention: "attention"}
_VIEWS = ("view", "reshape", "flatten", "contiguous", "transpose")
_PRODUCTS = ("linear", "mlp", "moe_experts", "attention")
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@dataclasses.dataclass(frozen=True)
class Joined:
    """A region that was made: where, how many operators of each kind, and its own name in torch.ops.anabatic."""

    module: str
    operators: dict[str, int]
    name: str


@dataclasses.dataclass(frozen=True)
class Apart:
    """An operator that is in no region, and why."""

    operator: str
    module: str
    reason: str


def _kind(node: Any) -> str:
    """What a node is in a region, or ""."""
    if not isinstance(node, Node):
        return ""
    if node.op == "call_function" and node.target in _KINDS:
        return _KINDS[node.target]
    name = name_of(node)
    if is_cast(node):
        return "cast"
    return "view" if name in _VIEWS else "add" if name == "add" else ""


def _layer_of(node: Node) -> str:
    """The module up to its first number: one layer of a model."""
    found = re.match(r"(?:.*?\.)??\d+(?=\.|$)", module_of(node))
    return found.group() if found else ""


@dataclasses.dataclass(frozen=True)
class _Form:
    """How a tensor is seen in rows [T, width]: "rows" [..., width], "heads" [B, S, heads, D] or "turned" [B, heads, S, D]."""

    kind: str
    width: int
    heads: int = 1


def _rows(sizes: tuple[Any, ...]) -> str:
    return str(math.prod(sizes))


class _Group:
    """The nodes of a region to be."""

    def __init__(self, layer: str) -> None:
        self.layer = layer
        self.members: list[Node] = []
        self.forms: dict[Node, _Form] = {}
        self.after: set[Node] = set()  # what reads a member, on any path, and is none
        self.rows = ""  # their number, as written
        self.products: torch.dtype | None = None
        self.weights: set[Any] = set()
        self.others: set[Any] = set()  # what is read, and is no weight
        self.ranges: Any = None  # what tells the keys of attention

    def take(self, node: Node, kind: str, autocast: torch.dtype | None) -> str:
        """Makes it a member, or says why not. `autocast` is the dtype of products around it; None: their operands'."""
        if any(source in self.after for source in node.all_input_nodes):
            return "a path leaves the region and comes back"
        if self.members and not any(source in self.forms for source in node.all_input_nodes):
            return "it reads no value of the region"
        found = getattr(self, f"_{kind}")(node)
        if isinstance(found, str):
            return found
        form, weights, rows = found
        if self.rows and rows != self.rows:
            return f"it has {rows} rows, the region {self.rows}"
        others = {source for source in node.all_input_nodes if source not in weights}
        if len(set(weights)) != len(weights) or others & self.weights or set(weights) & (self.weights | self.others | self.forms.keys()):
            return "its weight has another reader in the region"
        if kind in _PRODUCTS:
            # Experts round their operands to it. Their result in torch has the dtype of the weights.
            products = (autocast or dtype(node.args[0])) if kind == "moe_experts" else dtype(node)
            if self.products not in (None, products):
                return f"its products are {products}, those of the region {self.products}"
            self.products = products
        self.rows = rows
        self.weights.update(weights)
        self.others |= others
        self.members.append(node)
        self.forms[node] = form
        return ""

    def form(self, x: Any, kind: str = "rows") -> _Form | None:
        """That of an operand, which becomes `kind` where it comes from outside."""
        if x in self.forms:
            return self.forms[x]
        sizes = shape(x)
        if not sizes or dtype(x) not in _NAMES or not isinstance(sizes[-1], int):
            return None
        if kind == "rows" and len(sizes) in (2, 3):
            return _Form("rows", sizes[-1])
        if kind == "turned" and len(sizes) == 4 and isinstance(sizes[1], int):
            return _Form("turned", sizes[1] * sizes[3], sizes[1])
        return None

    def _linear(self, node: Node) -> Any:
        x, weight, bias, _ = node.args
        form = self.form(x)
        if bias is not None:
            return "it has a bias"
        if form is None or form.kind != "rows" or not _is_weight(weight, 2):
            return "expected rows and a weight"
        return _Form("rows", shape(weight)[0]), [weight], _rows(shape(x)[:-1])

    def _mlp(self, node: Node) -> Any:
        x, gate, up, down, _ = node.args
        form, weights = self.form(x), [weight for weight in (gate, up, down) if weight is not None]
        if form is None or form.kind != "rows" or not all(_is_weight(weight, 2) for weight in weights):
            return "expected rows and weights"
        return _Form("rows", shape(down)[0]), weights, _rows(shape(x)[:-1])

    def _moe_experts(self, node: Node) -> Any:
        x, gate_up, down, index, weights, _ = node.args
        form = self.form(x)
        if form is None or form.kind != "rows" or not _is_weight(gate_up, 3) or not _is_weight(down, 3):
            return "expected rows and stacks of weights"
        if index in self.forms or weights in self.forms:
            return "its router is in the region"
        return form, [gate_up, down], _rows(shape(x)[:-1])

    def _rms_norm(self, node: Node) -> Any:
        x, weight, _, _ = node.args
        form = self.form(x)
        if form is None or not _is_weight(weight, 1) or not isinstance(shape(weight)[0], int):
            return "expected rows and a weight"
        if form.width // form.heads != shape(weight)[0]:
            return "its weight has another width"
        return form, [weight], self._rows_of(x, form)

    def _rope(self, node: Node) -> Any:
        form = self.form(node.args[0], "turned")
        if form is None or form.kind != "turned":
            return "expected heads"
        return form, [], self._rows_of(node, form)

    def _attention(self, node: Node) -> Any:
        by_mask = node.target is _functions.attention_by_mask
        q, k, v = (self.form(x, "turned") for x in node.args[:3])
        ranges = node.args[3]
        if q is None or k is None or v is None or {q.kind, k.kind, v.kind} != {"turned"}:
            return "expected heads"
        if not all(same(shape(x)[axis], shape(node.args[0])[axis]) for x in node.args[1:3] for axis in (0, 2)):
            return "it has other keys than queries"
        if by_mask and ranges in self.forms or self.ranges is not None and self.ranges is not ranges:
            return "it has another mask than the region"
        self.ranges = ranges
        return _Form("turned", v.width // v.heads * q.heads, q.heads), [], self._rows_of(node, q)

    def _swiglu(self, node: Node) -> Any:
        return self._pair(node, node.args[0], node.args[1])

    def _add(self, node: Node) -> Any:
        if node.kwargs or len(node.args) != 2 or dtype(node) not in _NAMES:
            return "it is no plain sum"
        return self._pair(node, *node.args)

    def _pair(self, node: Node, a: Any, b: Any) -> Any:
        forms = self.form(a), self.form(b)
        if None in forms or forms[0] != forms[1] or forms[0].kind != "rows":  # type: ignore[union-attr]
            return "expected rows of one width"
        if len(shape(a)) != len(shape(b)) or not all(same(x, y) for x, y in zip(shape(a), shape(b))):
            return "its operands have different shapes"
        return forms[0], [], _rows(shape(node)[:-1])

    def _cast(self, node: Node) -> Any:
        form = self.form(node.args[0])
        if form is None or dtype(node) not in _NAMES:
            return "expected float32 or bfloat16"
        return form, [], self._rows_of(node, form)

    def _view(self, node: Node) -> Any:
        form, sizes, before = self.form(node.args[0]), shape(node), shape(node.args[0])
        if form is None:
            return "expected rows"
        name = name_of(node)
        if name == "transpose":
            if form.kind == "rows" or node.args[1:] not in ((1, 2), (2, 1)):
                return "it turns no heads"
            form = dataclasses.replace(form, kind="turned" if form.kind == "heads" else "heads")
            return form, [], self._rows_of(node, form)
        if len(sizes) == len(before) and all(same(a, b) for a, b in zip(sizes, before)):
            return form, [], self._rows_of(node, form)
        if form.kind != "turned" and sizes and same(sizes[-1], form.width) and len(sizes) in (2, 3):
            return _Form("rows", form.width), [], _rows(sizes[:-1])
        if form.kind == "rows" and len(sizes) == 4 and isinstance(sizes[2], int) and isinstance(sizes[3], int):
            if sizes[2] * sizes[3] == form.width and len(before) == 3 and all(same(a, b) for a, b in zip(sizes[:2], before[:2])):
                return _Form("heads", form.width, sizes[2]), [], _rows(sizes[:2])
        return "it is no view of rows"

    def _rows_of(self, x: Any, form: _Form) -> str:
        sizes = shape(x)
        return _rows(sizes[:-1]) if form.kind == "rows" else _rows((sizes[0], sizes[1 if form.kind == "heads" else 2]))


def _is_weight(node: Any, ndim: int) -> bool:
    return isinstance(node, Node) and dtype(node) in _NAMES and len(shape(node)) == ndim and all(isinstance(size, int) for size in shape(node))


class _Raiser:
    """Makes a region of a group."""

    def __init__(self, graph: Graph, group: _Group, shared: dict[Any, Node]) -> None:
        self.graph, self.group, self.shared = graph, group, shared
        self.members = set(group.members)
        self.layers: list[Layer] = []
        self.operands: list[Operand] = []
        self.arguments: list[Any] = []
        self.names: dict[Any, str] = {}  # of operands
        self.values: dict[Any, tuple[str, torch.dtype]] = {}  # of members: their layer and its dtype
        self.casts: dict[tuple[str, torch.dtype], str] = {}
        self.dtypes: dict[Node, torch.dtype] = {}
        self.like = self._find_like()

    def _find_like(self) -> Any:
        """A tensor from outside, [B, S, ...], whose rows are sequences as those of the region are; None where nothing tells."""
        wanted = [sizes for node in self.group.members if (sizes := self._sequences(node)) is not None]
        sources = [source for node in self.group.members for source in node.all_input_nodes if source not in self.members]
        for source in sources:
            sizes = shape(source)
            if len(sizes) == 3 and dtype(source) in _NAMES and all(same(a, b) for each in wanted for a, b in zip(each, sizes[:2])):
                return source if wanted else None
        return None

    def _sequences(self, node: Node) -> tuple[Any, Any] | None:
        """The number of sequences and their length as a member shows them."""
        sizes, kind = shape(node), self.group.forms[node].kind
        if kind == "rows":
            return (sizes[0], sizes[1]) if len(sizes) == 3 else None
        return sizes[0], sizes[1 if kind == "heads" else 2]

    def run(self) -> Joined | str:
        exported = [node for node in self.group.members if any(reader not in self.members for reader in node.users)]
        forms = {node: self._export_form(node) for node in exported}
        needs_like = any(_kind(node) in ("attention", "rope") for node in self.group.members)
        if "" in forms.values() or needs_like and self.like is None:
            return "nothing outside tells how its rows are sequences"
        self._choose_dtypes()
        for node in self.group.members:
            self._emit(node)
        exports = []
        for node in exported:
            source, found = self._value(node)
            exports.append(Export(self._cast(source, found, dtype(node)), forms[node], self.group.forms[node].heads))
        structure = Structure(tuple(self.layers), tuple(self.operands), tuple(exports), _NAMES[self.group.products or torch.float32])
        name = self._replace(structure, exported)
        kinds = Counter(_kind(node) for node in self.group.members)
        return Joined(self.group.layer, {kind: count for kind, count in kinds.items() if kind not in ("view", "cast")}, name)

    def _export_form(self, node: Node) -> str:
        if self._sequences(node) is None:
            return "flat"
        return "" if self.like is None else self.group.forms[node].kind

    def _choose_dtypes(self) -> None:
        """Of each layer's result: float32 where torch rounds to bfloat16 and every reader makes float32 of it, and bfloat16 where
        torch keeps float32 and every reader rounds."""
        wants: dict[Node, set[torch.dtype]] = {node: set() for node in self.group.members}

        def want(source: Any, to: torch.dtype) -> None:
            if source in wants:
                wants[source].add(to)

        for node in reversed(self.group.members):
            kind, own = _kind(node), dtype(node)
            assert own is not None
            read = set(wants[node])
            if any(reader not in self.members for reader in node.users):
                read.add(own)
            if kind in ("view", "cast"):
                rounds = kind == "cast" and own == torch.bfloat16 and dtype(node.args[0]) == torch.float32
                for to in read:
                    want(node.args[0], torch.bfloat16 if rounds else to)
                continue
            made = own
            if kind in ("linear", "mlp", "moe_experts") and read == {torch.float32}:
                made = torch.float32
            elif kind in ("rms_norm", "rope") and read == {torch.bfloat16}:
                made = torch.bfloat16
            self.dtypes[node] = made
            if kind in _PRODUCTS:
                for source in node.args[:3 if kind == "attention" else 1]:
                    want(source, self.group.products or own)
            elif kind == "rms_norm":
                want(node.args[0], made if made == dtype(node.args[0]) else torch.float32)
            elif kind == "rope":
                want(node.args[0], made)
            else:
                for source in node.args[:2]:
                    want(source, made)

    def _value(self, x: Any) -> tuple[str, torch.dtype]:
        """Where a value is, and in what dtype."""
        if x in self.values:
            return self.values[x]
        found = dtype(x)
        assert found is not None
        return self._operand(x, "heads" if len(shape(x)) == 4 else "rows", True), found

    def _operand(self, x: Any, kind: str, has_gradient: bool = False, name: str = "") -> str:
        if x not in self.names:
            self.names[x] = name or f"{kind[0]}{len(self.operands)}"
            self.operands.append(Operand(self.names[x], kind, has_gradient))
            self.arguments.append(x)
        return self.names[x]

    def _cast(self, source: str, found: torch.dtype, to: Any) -> str:
        if found == to:
            return source
        if (source, to) not in self.casts:
            width = self._width(source)
            self.casts[source, to] = self._add(Layer("cast", (("x", source),), _NAMES[to], width, (("output", _NAMES[to]),)))
        return self.casts[source, to]

    def _width(self, source: str) -> int:
        if source.startswith("%"):
            return self.layers[int(source[1:])].width
        x = next(x for x, name in self.names.items() if name == source)
        form = self.group.form(x, "turned" if len(shape(x)) == 4 else "rows")
        assert form is not None
        return form.width

    def _add(self, layer: Layer) -> str:
        self.layers.append(layer)
        return f"%{len(self.layers) - 1}"

    def _read(self, x: Any, to: torch.dtype) -> str:
        return self._cast(*self._value(x), to)

    def _emit(self, node: Node) -> None:
        kind, form = _kind(node), self.group.forms[node]
        if kind == "view":
            self.values[node] = self._value(node.args[0])
            return
        if kind == "cast":
            source, found = self._value(node.args[0])
            own = dtype(node)
            assert own is not None
            # A value that torch has rounded already stays as exact as it is.
            rounds = own == torch.bfloat16 and dtype(node.args[0]) == torch.float32
            self.values[node] = (self._cast(source, found, own), own) if rounds else (source, found)
            return
        made = self.dtypes[node]
        operands, attributes, segment = getattr(self, f"_emit_{kind}")(node, made)
        layer = "gated_mlp" if kind == "mlp" and node.args[2] is not None else kind
        width = form.width
        self.values[node] = self._add(Layer(layer, operands, _NAMES[made], width, attributes, segment)), made

    def _weight(self, weight: Any) -> str:
        return self._operand(weight, "weight", True)

    def _emit_linear(self, node: Node, made: torch.dtype) -> Any:
        return (("x", self._value(node.args[0])[0]), ("weight", self._weight(node.args[1]))), (), "attention"

    def _emit_mlp(self, node: Node, made: torch.dtype) -> Any:
        x, gate, up, down, _ = node.args
        names = ("gate_up", "down") if up is None else ("gate", "up", "down")
        weights = (gate, down) if up is None else (gate, up, down)
        return (("x", self._value(x)[0]), *((name, self._weight(weight)) for name, weight in zip(names, weights))), (), ""

    def _emit_moe_experts(self, node: Node, made: torch.dtype) -> Any:
        x, gate_up, down, index, weights, _ = node.args
        return (("x", self._value(x)[0]), ("gate_up", self._weight(gate_up)), ("down", self._weight(down)),
                ("index", self._operand(index, "given")), ("weights", self._operand(weights, "rows", True))), (), ""

    def _emit_rms_norm(self, node: Node, made: torch.dtype) -> Any:
        x, weight, epsilon, _ = node.args
        heads = self.group.forms[node].heads
        attributes = (("epsilon", repr(float(epsilon))), *((("heads", str(heads)),) if heads > 1 else ()))  # type: ignore[arg-type]
        to = made if made == dtype(x) else torch.float32
        return (("x", self._read(x, to)), ("weight", self._weight(weight))), attributes, "attention"

    def _emit_rope(self, node: Node, made: torch.dtype) -> Any:
        x, cos, sin = node.args
        table = self._share(("table", cos, sin), _region_op.rope_table, (cos, sin, self.like))
        form = self.group.forms[node]
        return (("x", self._read(x, made)), ("table", self._operand(table, "given"))), (("head_dim", str(form.width // form.heads)),), "attention"

    def _emit_attention(self, node: Node, made: torch.dtype) -> Any:
        by_mask = node.target is _functions.attention_by_mask
        q, k, v = node.args[:3]
        scale = node.args[5 if by_mask else 4]
        ranges = self._share(("ranges", node.args[3]), _region_op.row_ranges, (node.args[4], self.like)) if by_mask else \
            self._share(("ranges", node.args[3]), _region_op.all_or_earlier, (node.args[3], self.like))
        if ranges not in self.names:
            self._operand(ranges, "given", name="key_begin")
            self.operands.append(Operand("key_end", "given"))  # of the same argument
        if by_mask:
            self._operand(node.args[3], "mask", name="mask")
        heads, kv_heads = shape(q)[1], shape(k)[1]
        width = shape(q)[3]
        attributes = (("num_heads", str(heads)), ("num_kv_heads", str(kv_heads)),
                      ("scale", repr(width**-0.5 if scale is None else scale)))
        reads = tuple((name, self._read(x, made)) for name, x in (("q", q), ("k", k), ("v", v)))
        return (*reads, ("key_begin", "key_begin"), ("key_end", "key_end")), attributes, ""

    def _emit_swiglu(self, node: Node, made: torch.dtype) -> Any:
        return (("gate", self._read(node.args[0], made)), ("up", self._read(node.args[1], made))), (), ""

    def _emit_add(self, node: Node, made: torch.dtype) -> Any:
        return (("a", self._read(node.args[0], made)), ("b", self._read(node.args[1], made))), (), ""

    def _share(self, key: Any, function: Any, arguments: tuple[Any, ...]) -> Node:
        """A node that every region with the same key reads."""
        key = (*key, self.group.rows)
        if key not in self.shared:
            with self.graph.inserting_before(self.group.members[-1]):
                self.shared[key] = self.graph.call_function(function, arguments)
        return self.shared[key]

    def _replace(self, structure: Structure, exported: list[Node]) -> str:
        last = self.group.members[-1]
        number = _region_op.region_of(structure)
        with self.graph.inserting_before(last):
            made = self.graph.call_function(_region_op.region, (number, self.like, tuple(self.arguments)))
            made.meta["nn_module_stack"] = last.meta.get("nn_module_stack")
            parts = []
            for position, node in enumerate(exported):
                part = self.graph.call_function(operator.getitem, (made, position))
                part.meta.update(node.meta)
                parts.append(part)
        # What reads a result comes after it.
        place = last
        before = list(self.graph.nodes)
        for node in before[:before.index(last)]:
            if node in self.group.after:
                place.append(node)
                place = node
        for node, part in zip(exported, parts):
            node.replace_all_uses_with(part, delete_user_cb=lambda user: user not in self.members)
        for node in reversed(self.group.members):
            self.graph.erase_node(node)
        return f"{_region_op.PREFIX}{number}"


def _trim(group: _Group) -> None:
    """Drops views and casts that no layer of the region reads."""
    for node in reversed(list(group.members)):
        if _kind(node) in ("view", "cast") and not any(reader in group.forms for reader in node.users):
            group.members.remove(node)
            del group.forms[node]
            group.after.add(node)


def _groups(graph: Graph, places: Places) -> tuple[list[_Group], dict[Node, str]]:
    """The groups, and why operators are in none."""
    groups: list[_Group] = []
    current: _Group | None = None  # one at a time, so that two never wait for each other
    reasons: dict[Node, str] = {}
    changes = set(places.changes)
    autocast = next(iter(places.autocast.values()), None)
    for node in nodes(graph):
        autocast = places.autocast.get(node, autocast)  # raised nodes are no keys
        if node in changes:
            current = None
            continue
        kind = _kind(node)
        if kind:
            layer = _layer_of(node)
            is_open = current is not None and current.layer == layer
            reason = current.take(node, kind, autocast) if current is not None and is_open else "no region is open"
            if reason and kind not in ("view", "cast", "add"):
                fresh = _Group(layer)
                again = fresh.take(node, kind, autocast)
                if again:
                    reasons[node] = again
                else:
                    current = fresh
                    groups.append(fresh)
        if current is not None and node not in current.forms:
            if any(source in current.forms or source in current.after for source in node.all_input_nodes):
                current.after.add(node)
    return groups, reasons


def join(graph: Graph, places: Places) -> tuple[list[Joined], list[Apart]]:
    """Makes regions of a raised graph."""
    groups, reasons = _groups(graph, places)
    joined: list[Joined] = []
    shared: dict[Any, Node] = {}
    for group in groups:
        _trim(group)
        layers = [node for node in group.members if _kind(node) not in ("view", "cast")]
        reason = "" if len(layers) > 1 else "nothing that it could be joined with is next to it"
        if not reason:
            made = _Raiser(graph, group, shared).run()
            if isinstance(made, Joined):
                joined.append(made)
            else:
                reason = made
        if reason:
            reasons.update({node: reason for node in layers})
    apart = [Apart(_kind(node), module_of(node), reason) for node, reason in reasons.items() if _kind(node) != "add" and not node._erased]
    return joined, apart
