# SPDX-License-Identifier: Apache-2.0
"""What patterns ask of a graph of Dynamo, and the replacement of what they find.

Nodes are named by what they compute, whether they call a function or a method. Only names of this table match, and none of
them writes to memory. Shapes may hold symbols: `same` compares them without a guard.
"""
from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.nn import functional

_FUNCTIONS: dict[Any, str] = {
    operator.mul: "mul", torch.mul: "mul", operator.add: "add", torch.add: "add", operator.pow: "pow", torch.pow: "pow",
    operator.getitem: "getitem", operator.floordiv: "floordiv", operator.setitem: "setitem", torch.square: "square", torch.mean: "mean",
    torch.rsqrt: "rsqrt", torch.sort: "sort", torch.histc: "histc", torch.cumsum: "cumsum", torch.empty_like: "empty_like",
    torch.arange: "arange", torch.bmm: "bmm", torch.chunk: "chunk", torch.sum: "sum", torch.transpose: "transpose",
    torch.reshape: "reshape", torch.flatten: "flatten", torch.unsqueeze: "unsqueeze", torch.squeeze: "squeeze",
    torch.repeat_interleave: "repeat_interleave", torch.nn.functional.silu: "silu", functional.linear: "linear",
    torch.addmm: "addmm", functional.scaled_dot_product_attention: "attention", functional.cross_entropy: "cross_entropy", functional.rms_norm: "rms_norm",
    torch.rms_norm: "rms_norm", torch.cat: "cat", torch.neg: "neg", operator.neg: "neg", torch.cos: "cos", torch.sin: "sin",
}
_METHODS = frozenset({"mul", "add", "pow", "square", "mean", "rsqrt", "sort", "cumsum", "chunk", "sum", "transpose", "view", "reshape", "flatten",
                      "unsqueeze", "squeeze", "repeat_interleave", "to", "float", "type_as", "type", "contiguous", "expand", "bmm", "bfloat16", "neg", "cos", "sin"})
# The least number of arguments by place; calls that name them are left alone.
_LEAST = {"mul": 2, "add": 2, "pow": 2, "floordiv": 2, "getitem": 2, "setitem": 3, "linear": 2, "addmm": 3, "bmm": 2,
          "attention": 0, "cross_entropy": 0, "rms_norm": 0}
_CASTS = ("to", "float", "type_as", "type", "bfloat16")
_STATE = ("_enter_autocast", "_exit_autocast", "_set_grad_enabled", "_enter_inference_mode", "_exit_inference_mode")


def name_of(node: Any) -> str:
    """What a node computes, or "" for what no pattern reads."""
    if not isinstance(node, Node):
        return ""
    name = ""
    if node.op == "call_function":
        name = _FUNCTIONS.get(node.target, "")
    elif node.op == "call_method" and node.target in _METHODS:
        name = str(node.target)
    return name if len(node.args) >= _LEAST.get(name, 1) else ""


def tensor(node: Any) -> Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def dtype(node: Any) -> torch.dtype | None:
    value = tensor(node)
    return None if value is None else value.dtype


def shape(node: Any) -> tuple[Any, ...]:
    value = tensor(node)
    return () if value is None else tuple(value.shape)


def same(a: Any, b: Any) -> bool:
    """Equal as written. Symbols of two dimensions that happen to agree are not."""
    return type(a) is type(b) and (a == b if isinstance(a, int) else str(a) == str(b))


def argument(node: Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def is_cast(node: Any) -> bool:
    """A node that changes at most the dtype."""
    return name_of(node) in _CASTS


def without_casts(node: Any) -> tuple[Any, list[Node]]:
    """What was cast, and the casts, last first."""
    casts = []
    while is_cast(node):
        casts.append(node)
        node = node.args[0]
    return node, casts


def module_of(node: Node) -> str:
    """The dotted name of the innermost module that made a node."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = re.sub(r"\['?(\w+)'?\]", r".\1", re.sub(r"^L\['\w+'\](\[\d+\])?", "", stack[-1][0] if stack else ""))
    return path.replace("._modules", "").strip(".")


@dataclasses.dataclass
class Match:
    """What a pattern found at `last`.

    `values` are worth replacing only if nothing else reads them. `helpers` are cheap: each goes if nothing else reads it.
    `writes` have no readers and write to one of the values.
    """

    last: Node
    operands: Sequence[Any]
    values: Sequence[Node]
    build: Callable[[Graph], Node]
    helpers: Sequence[Node] = ()
    writes: Sequence[Node] = ()
    where: Node | None = None  # whose module names it, if not that of `last`


class Places:
    """The order of a graph's nodes, and which of them write to memory or change a state."""

    def __init__(self, graph: Graph) -> None:
        self.order = {node: place for place, node in enumerate(graph.nodes)}
        self.changes = [node for node in graph.nodes if _changes(node)]
        # What autocast turns products into at each node, inside the caller's autocast and the graph's own.
        self.autocast: dict[Node, torch.dtype | None] = {}
        states: list[torch.dtype | None] = [torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None]
        for node in graph.nodes:
            if _name(node) == "_enter_autocast":
                device, to, enabled = (*node.args, *(None, None, None))[:3]
                states.append(states[-1] if device != "cpu" else None if enabled is False else to or torch.get_autocast_dtype("cpu"))
            elif _name(node) == "_exit_autocast" and len(states) > 1:
                states.pop()
            self.autocast[node] = states[-1]

    def obstacle(self, match: Match) -> str:
        """Why an operator at the place of the last node would not compute what the nodes do; "" if it does."""
        own = {*match.values, *match.helpers, *match.writes, match.last}
        for value in match.values:
            for reader in value.users:
                if reader not in own:
                    return f"{value.name} has another reader, {reader.name}"
        first = min(self.order[node] for node in (*match.values, match.last))
        roots = {_root(operand) for operand in match.operands if isinstance(operand, Node)}
        for node in self.changes:
            if not first < self.order[node] < self.order[match.last] or node in own:
                continue
            if _name(node) in _STATE:
                return f"{node.name} is between its nodes"
            if _root(node.args[0] if node.args else None) in roots:
                return f"{node.name} writes to an operand between its nodes"
        return ""


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _changes(node: Node) -> bool:
    if node.op not in ("call_method", "call_function"):
        return False
    name = _name(node)
    inplace = name.endswith("_") and not name.endswith("__") or name in _STATE or "out" in node.kwargs or bool(node.kwargs.get("inplace"))
    return inplace or node.target is operator.setitem or node.op == "call_function" and node.target in _IN_PLACE


_IN_PLACE = frozenset(getattr(operator, name) for name in dir(operator) if name.startswith("i") and hasattr(operator, f"__{name}__") and
                      name not in ("inv", "invert", "index", "is_", "is_not"))


def _root(node: Any) -> Any:
    """The first of the nodes that a value may be a view of."""
    while isinstance(node, Node) and node.op in ("call_method", "call_function") and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def nodes(graph: Graph) -> Iterator[Node]:
    """Those that call something, as they were before the first replacement; the ones that went are left out."""
    for node in list(graph.nodes):
        if node.op in ("call_function", "call_method") and not node._erased:
            yield node


def replace(graph: Graph, places: Places, match: Match) -> None:
    """Puts an operator in the place of a match. Erases what it replaced and nothing else: other nodes may write to memory."""
    last = match.last
    with graph.inserting_before(last):
        made = match.build(graph)
    made.meta.update(last.meta)
    places.order[made] = places.order[last]
    last.replace_all_uses_with(made)
    graph.erase_node(last)
    for node in match.writes:
        graph.erase_node(node)
    for node in sorted({*match.values, *match.helpers}, key=lambda node: -places.order[node]):
        if not node.users and not node._erased:
            graph.erase_node(node)
