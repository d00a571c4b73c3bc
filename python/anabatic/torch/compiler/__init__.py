# SPDX-License-Identifier: Apache-2.0
"""torch.compile(model, backend="anabatic", options={...}): the library's operators in the place of what models write out.

Dynamo hands over a graph of torch's functions. Patterns replace parts of it by our operators, which carry autograd
(`_raise`). AOTAutograd makes the graphs of forward and backward, and PyTorch runs what is left of them (`_lower`).
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from torch.fx import GraphModule

from ._explain import Explanation, explain
from ._lower import lower
from ._options import read
from ._raise import raise_graph

__all__ = ["Explanation", "anabatic", "explain"]

_GROUP = "torch_dynamo_backends"
_log = logging.getLogger("anabatic")


def anabatic(gm: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None,
             options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """The back end. options: "fusions", a dict of "on" and "off" by pattern; "rest", "eager" or "inductor"."""
    chosen = read(mode, options)
    raised = raise_graph(gm, chosen.patterns)
    for site in raised.sites:
        _log.debug("[compile] %s in %s %s", site.pattern, site.module or "the model", f"stays: {site.reason}" if site.reason else "is raised")
    for region in raised.regions:
        _log.debug("[compile] a region in %s of %s", region.module or "the model", ", ".join(f"{count} {name}" for name, count in region.operators.items()))
    return lower(gm, example_inputs, chosen.rest)


def register() -> None:
    """Makes the name known to torch.compile where no installed package does."""
    if any(point.name == "anabatic" for point in entry_points(group=_GROUP)):
        return
    from torch._dynamo.backends.registry import _COMPILER_FNS, register_backend

    if "anabatic" not in _COMPILER_FNS:
        register_backend(anabatic, name="anabatic")
