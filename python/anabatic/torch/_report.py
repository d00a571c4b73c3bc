# SPDX-License-Identifier: Apache-2.0
"""What adapt did to a model: a value, and a table."""
from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

PARTS = ("experts", "attention", "norms", "mlp", "loss")


@dataclass(frozen=True)
class AdaptRow:
    """Modules of one kind, and what became of them."""

    part: str  # one of PARTS, or "other": what no operator of ours does
    modules: str  # their names, with * for the numbers of layers
    count: int
    share: float  # of the step's FLOPs
    adapted: bool
    reason: str = ""  # why not; for an adapted row, what to know about it


def count_call(module: nn.Module, why: str) -> None:
    """Counts a call of an adapted module that went to PyTorch, for AdaptReport.calls."""
    if torch.compiler.is_compiling():
        return  # a counter would be a guard
    calls: Counter[str] | None = module.__dict__.get("_anabatic_calls")
    if calls is not None:
        calls[why] += 1


@dataclass(frozen=True)
class AdaptReport:
    """What adapt did to a model. str() is a table; `rows` are its lines."""

    rows: tuple[AdaptRow, ...]
    wait_policy: str  # OMP_WAIT_POLICY, or "unset"
    calls: Mapping[str, Counter[str]] = field(default_factory=dict)  # by part: calls that PyTorch did, by reason; counts on
    memory: str = ""  # what becomes of memory that the process frees

    def part(self, name: str) -> tuple[AdaptRow, ...]:
        return tuple(row for row in self.rows if row.part == name)

    def is_adapted(self, name: str) -> bool:
        """Whether every module of a part is adapted, and there is one."""
        rows = self.part(name)
        return bool(rows) and all(row.adapted for row in rows)

    @property
    def share(self) -> float:
        """The share of the step's FLOPs that is adapted."""
        return sum(row.share for row in self.rows if row.adapted)

    def __str__(self) -> str:
        header = ("part", "modules", "count", "FLOPs", "adapted")
        lines = [header] + [(row.part, row.modules, str(row.count), f"{row.share:.1%}", _verdict(row)) for row in self.rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(header) - 1)]
        texts = ["  ".join([*(cell.ljust(width) for cell, width in zip(line, widths)), line[-1]]).rstrip() for line in lines]
        texts.append(f"{self.share:.1%} of the step's FLOPs are adapted. OMP_WAIT_POLICY: {_describe(self.wait_policy)}. Freed memory: {self.memory}")
        for part, reasons in self.calls.items():
            texts += [f"{part}: {count} calls went to PyTorch: {reason}" for reason, count in reasons.items()]
        return "\n".join(texts)

    __repr__ = __str__


def _verdict(row: AdaptRow) -> str:
    return ("yes" if row.adapted else "no") + (f": {row.reason}" if row.reason else "")


def _describe(policy: str) -> str:
    if policy.upper() == "PASSIVE":
        return policy
    return f"{policy}; PyTorch's waiting threads spin, set it to PASSIVE before Python starts"


def wait_policy() -> str:
    return os.environ.get("OMP_WAIT_POLICY", "unset")


def pattern(names: Iterable[str]) -> str:
    """Names of modules as patterns: * for numbers, and {a,b} for several in one place."""
    places: dict[str, set[str]] = {}
    for name in names:
        parent, _, last = re.sub(r"(?<![^.])\d+(?![^.])", "*", name).rpartition(".")
        places.setdefault(parent, set()).add(last)
    found = []
    for parent, lasts in sorted(places.items()):
        text = next(iter(lasts)) if len(lasts) == 1 else "{" + ",".join(sorted(lasts)) + "}"
        found.append(f"{parent}.{text}" if parent else text or "(the model)")
    return " ".join(found)
