# SPDX-License-Identifier: Apache-2.0
"""Replaces in a graph of Dynamo what the library computes, and writes down what it replaced and what it left."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch.fx import Graph, GraphModule, Node

from . import _attention, _experts, _mlps, _norms, _own, _products, _regions, _rope
from ._graph import Match, Places, module_of, nodes, replace
from ._regions import Apart, Joined

_Find = Callable[[Node], "Match | str | None"]

REGION = "region"  # which joins what the others have raised

# In this order: what is larger comes first. Each is on unless the options turn it off.
PATTERNS: dict[str, bool] = {
    "moe_experts": True,
    "attention": True,
    "rms_norm": True,
    "linear_cross_entropy": True,
    "mlp": True,
    "swiglu": True,
    "linear": True,
    REGION: True,
}


@dataclasses.dataclass(frozen=True)
class Site:
    """A place in the model that a pattern found. reason: why it stayed; "" if it was raised."""

    pattern: str
    module: str
    reason: str = ""


@dataclasses.dataclass
class Raised:
    """What became of a graph."""

    sites: list[Site] = dataclasses.field(default_factory=list)
    regions: list[Joined] = dataclasses.field(default_factory=list)
    apart: list[Apart] = dataclasses.field(default_factory=list)  # operators that are in no region


def raise_graph(module: GraphModule, patterns: dict[str, bool]) -> Raised:
    """Raises a graph and those inside it, such as the body of a checkpoint."""
    found = Raised()
    for part in module.modules():
        if isinstance(part, GraphModule):
            _raise_one(part, patterns, found)
    return found


def _raise_one(module: GraphModule, patterns: dict[str, bool], result: Raised) -> None:
    graph = module.graph
    places = Places(graph)
    masks: dict[Node, Node] = {}
    finders: dict[str, _Find] = {
        "moe_experts": lambda node: _experts.find(node, places.autocast.get(node)),
        "attention": lambda node: _attention.find(node, masks),
        "rms_norm": _norms.find,
        "linear_cross_entropy": _products.find_loss,
        "mlp": _mlps.find_mlp,
        "swiglu": _mlps.find_swiglu,
        "linear": _products.find_linear,
    }
    sites: list[Site] = []
    for pattern in PATTERNS:
        for node in nodes(graph) if pattern in finders else ():
            found = finders[pattern](node)
            if found is None:
                continue
            where = module_of(found.where or node if isinstance(found, Match) else node)
            reason = found if isinstance(found, str) else places.obstacle(found)
            if not patterns[pattern]:
                reason = "turned off by the options"
            if not reason and isinstance(found, Match):
                replace(graph, places, found)
            sites.append(Site(pattern, where, reason))
        if pattern == "moe_experts":
            sites += _other_experts(graph_nodes=list(nodes(graph)), known={site.module for site in sites})
    if patterns[REGION]:
        _join(graph, places, result)
    graph.lint()
    module.recompile()
    result.sites += sites


def _join(graph: Graph, places: Places, result: Raised) -> None:
    _own.drop_questions(graph)
    # Views before what they are of: they are the larger match.
    for node in reversed(list(nodes(graph))):
        match = None if node._erased else _rope.find(node) or _own.find(node)
        if match is not None and not places.obstacle(match):
            replace(graph, places, match)
    joined, apart = _regions.join(graph, places)
    result.regions += joined
    result.apart += apart


def _other_experts(graph_nodes: list[Node], known: set[str]) -> list[Site]:
    """Grouped products that belong to no chain."""
    left = {module_of(node) for node in graph_nodes if _experts.is_grouped(node)} - known
    return [Site("moe_experts", module, "its grouped products are no chain of gated experts") for module in sorted(left)]

