# SPDX-License-Identifier: Apache-2.0
"""What the back end makes of a model: what is raised, what stays and why, and whose kernels do the work."""
from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from .. import _masked
from ._flops import PREFIX, count
from ._lower import lower
from ._options import read
from ._raise import PATTERNS, Site, raise_graph
from ._regions import Apart, Joined


@dataclasses.dataclass
class Work:
    """FLOPs of products and calls of operators, by name, in one direction."""

    flops: Counter[str] = dataclasses.field(default_factory=Counter)
    calls: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Of the FLOPs, the part in our kernels; 1 where there are none."""
        total = sum(self.flops.values())
        return sum(flops for name, flops in self.flops.items() if name.startswith(PREFIX)) / total if total else 1.0


@dataclasses.dataclass
class Explanation:
    """The result of `explain`; prints as a table."""

    sites: list[Site] = dataclasses.field(default_factory=list)
    regions: list[Joined] = dataclasses.field(default_factory=list)
    apart: list[Apart] = dataclasses.field(default_factory=list)  # operators that are in no region, and why
    forward: Work = dataclasses.field(default_factory=Work)
    backward: Work = dataclasses.field(default_factory=Work)
    graphs: int = 0
    torch_attention_calls: int = 0  # masks that were no ranges when the model ran

    @property
    def raised(self) -> dict[str, int]:
        """How often each pattern was raised."""
        return dict(Counter(site.pattern for site in self.sites if not site.reason))

    @property
    def left(self) -> list[Site]:
        return [site for site in self.sites if site.reason]

    def __str__(self) -> str:
        lines = [f"{self.graphs} graph{'' if self.graphs == 1 else 's'}. Our kernels have {self.forward.share:.1%} of the forward's FLOPs" +
                 (f" and {self.backward.share:.1%} of the backward's." if self.backward.calls else ".")]
        for title, done in (("raised", True), ("left", False)):
            groups = Counter((site.pattern, re.sub(r"\d+", "*", site.module) or "(model)", site.reason) for site in self.sites if bool(site.reason) != done)
            for (pattern, module, reason), number in sorted(groups.items(), key=lambda item: (list(PATTERNS).index(item[0][0]), item[0])):
                lines.append(f"  {title:6}  {pattern:20}  {number:4} x  {module}" + (f": {reason}" if reason else ""))
        regions = Counter((re.sub(r"\d+", "*", region.module) or "(model)", ", ".join(f"{count} {name}" for name, count in region.operators.items()))
                          for region in self.regions)
        lines += [f"  region  {number:4} x  {module}: {operators}" for (module, operators), number in regions.items()]
        alone = Counter((each.operator, re.sub(r"\d+", "*", each.module) or "(model)", each.reason) for each in self.apart)
        lines += [f"  apart   {name:20}  {number:4} x  {module}: {reason}" for (name, module, reason), number in alone.items()]
        for title, work in (("forward", self.forward), ("backward", self.backward)):
            for name, flops in work.flops.most_common():
                if flops:
                    lines.append(f"  {title:8}  {name:44}  {work.calls[name]:4} calls  {flops / 1e9:10.4f} GFLOP")
        if self.torch_attention_calls:
            lines.append(f"  {self.torch_attention_calls} calls of attention had a mask that is no range of keys a row. PyTorch computed them.")
        return "\n".join(lines)


def _add(work: Work, found: Mapping[str, Sequence[int]]) -> None:
    for name, (flops, calls) in found.items():
        work.flops[name] += flops
        work.calls[name] += calls


def explain(model: Callable[..., Any], *args: Any, options: Mapping[str, Any] | None = None, **kwargs: Any) -> Explanation:
    """Compiles a model or a function for these arguments and runs its forward once.

    `options` are those of torch.compile. Gradients are on or off, and autocast too, as they are for the caller.
    """
    chosen = read(None, options)
    result = Explanation()

    def watch(forward: GraphModule, backward: GraphModule | None) -> None:
        sequences: dict[Any, int] = {}
        found, ahead = count(forward, sequences)
        _add(result.forward, found)
        if backward is not None:
            _add(result.backward, count(backward, sequences)[0])
            if ahead:
                result.backward.flops[f"{PREFIX}linear_cross_entropy"] += ahead

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        result.graphs += 1
        raised = raise_graph(gm, chosen.patterns)
        result.sites += raised.sites
        result.regions += raised.regions
        result.apart += raised.apart
        return lower(gm, inputs, "eager", watch)

    before = _masked.calls["torch"]
    torch.compile(getattr(model, "_orig_mod", model), backend=backend, dynamic=False)(*args, **kwargs)
    result.torch_attention_calls = _masked.calls["torch"] - before
    return result
