# SPDX-License-Identifier: Apache-2.0
"""Whether a new forward may take the place of an old one: both run on a small input, forward and backward.

The runs take shadows: copies of the modules that share the weights' memory, but no hooks, gradients or flags.
"""
from __future__ import annotations

import contextlib
import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# The unit roundoff of a type with p bits is 2^-p.
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}

# How much worse than PyTorch's own result one tensor may be, whose error there may be small by chance.
WORSE_THAN_PEER = 4.0

_HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
          "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks",
          "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")


@dataclass(frozen=True)
class Run:
    """Types of a run: of its inputs, of its parameters (None: their own), and of autocast (None: off)."""

    inputs: torch.dtype
    parameters: torch.dtype | None = None
    autocast: torch.dtype | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest type that a run rounds to."""
        return torch.bfloat16 if torch.bfloat16 in (self.inputs, self.autocast) else torch.float32

    def context(self) -> contextlib.AbstractContextManager[Any]:
        if self.autocast is None:
            return torch.autocast("cpu", enabled=False)
        return torch.autocast("cpu", dtype=self.autocast)

    def __str__(self) -> str:
        name = str(self.autocast or self.inputs).removeprefix("torch.")
        return f"{name} autocast" if self.autocast else name


REFERENCE = Run(torch.float32, torch.float32)


def runs(dtype: torch.dtype) -> list[Run]:
    """The runs that a module with parameters of `dtype` is proved in: fp32, and those of training."""
    if dtype == torch.bfloat16:
        return [REFERENCE, Run(torch.bfloat16)]
    return [REFERENCE, Run(torch.float32, None, torch.bfloat16), Run(torch.bfloat16, None, torch.bfloat16)]


def bound(roundings: int, length: int, dtype: torch.dtype, backward: bool) -> float:
    """‖got - want‖₂ <= bound · ‖want‖₂ for a chain of `roundings` tensors and sums of `length` products.

    Errors of independent roundings add as a random walk, and a sum of K fp32 products has error √K·u. A gradient goes the
    way twice and rests on a forward that is off already. Four deviations.
    """
    once = 4 * math.sqrt(roundings) * (UNIT_ROUNDOFF[dtype] + math.sqrt(length) * UNIT_ROUNDOFF[torch.float32])
    return 3 * once if backward else once


def relative_error(got: Tensor, want: Tensor) -> float:
    """‖got - want‖₂ / ‖want‖₂, summed in double; 0 for two zeroes, infinite for NaN or anything against zero."""
    if got.shape != want.shape:
        return math.inf
    difference, size = norm(got.float() - want.float()), norm(want)
    if not math.isfinite(difference):
        return math.inf
    if size == 0:
        return 0.0 if difference == 0 else math.inf
    return difference / size


def norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64))


@dataclass(frozen=True)
class Result:
    """An output with its gradients, by name."""

    output: Tensor
    gradients: dict[str, Tensor | None]


def measure(forward: Callable[[], Tensor], leaves: dict[str, Tensor], seed: Tensor) -> Result:
    """The output of `forward` and the gradients of its product with `seed`, without touching .grad."""
    with torch.enable_grad():
        output = forward()
        wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        found = torch.autograd.grad(output, list(wanted.values()), seed.to(output.dtype), allow_unused=True)
    return Result(output.detach(), dict(zip(wanted, found)))


def difference(got: Result, want: Result, run: Run, roundings: int, length: int, peer: Result | None = None) -> str:
    """What is too far off, or "". `want` is of fp32, and `run` says where `got` was made.

    Where values amplify a rounding, as large scores do in a softmax, PyTorch's own result of that run, `peer`, shows how
    much: an error may then be 4 times as large as its.
    """
    others = {} if peer is None else {"its output": peer.output, **{f"its gradient of {name}": value for name, value in peer.gradients.items()}}
    pairs: list[tuple[str, Tensor | None, Tensor | None]] = [("its output", got.output, want.output)]
    pairs += [(f"its gradient of {name}", got.gradients.get(name), gradient) for name, gradient in want.gradients.items()]
    for place, (name, mine, theirs) in enumerate(pairs):
        if theirs is None:
            if mine is not None and bool(mine.ne(0).any()):
                return f"in {run} {name} is not zero as it should be"
            continue
        if not math.isfinite(norm(theirs)):
            return f"in {run} {name} is not finite before it is adapted"
        limit = bound(roundings, length, run.dtype, place > 0)
        other = others.get(name)
        if other is not None and math.isfinite(norm(other)):
            limit = max(limit, WORSE_THAN_PEER * relative_error(other, theirs))
        error = relative_error(mine, theirs) if mine is not None else relative_error(torch.zeros_like(theirs), theirs)
        if not error <= limit:
            return f"in {run} {name} is off by {error:.1e}, at most {limit:.1e} is allowed"
    return ""


class Shadow:
    """Copies modules without their weights. Modules, parameters and configs that are shared stay shared among the copies."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype
        self._modules: dict[int, nn.Module] = {}
        self._parameters: dict[int, nn.Parameter] = {}
        self._configs: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that no id is used twice

    def __call__(self, module: nn.Module) -> Any:
        if id(module) in self._modules:
            return self._modules[id(module)]
        self._kept.append(module)
        mine = type(module).__new__(type(module))
        self._modules[id(module)] = mine
        fields = dict(module.__dict__)
        fields.pop("forward", None)
        fields.pop("_output_capturing_hooks_installed", None)
        for name in [name for name in fields if name.startswith("_anabatic")]:
            del fields[name]
        fields.update({name: OrderedDict() for name in _HOOKS if name in fields})
        fields["_parameters"] = {name: self.parameter(value) for name, value in module._parameters.items()}
        fields["_buffers"] = {name: self._buffer(value) for name, value in module._buffers.items()}
        fields["_modules"] = {name: None if child is None else self(child) for name, child in module._modules.items()}
        for name, value in fields.items():
            if hasattr(value, "to_dict") and hasattr(value, "model_type"):
                fields[name] = copy.deepcopy(value, self._configs)
            elif isinstance(value, nn.Module):
                fields[name] = self(value)
        mine.__dict__ = fields
        return mine

    def parameter(self, value: Tensor | None) -> nn.Parameter | None:
        """A leaf with its own gradient and the same memory, if the type is the same."""
        if value is None:
            return None
        if id(value) not in self._parameters:
            self._kept.append(value)
            data = value.detach()
            if self._dtype is not None and data.is_floating_point():
                data = data.to(self._dtype)
            self._parameters[id(value)] = nn.Parameter(data, requires_grad=data.is_floating_point())
        return self._parameters[id(value)]

    def _buffer(self, value: Tensor | None) -> Tensor | None:
        if value is None:
            return None
        return value.clone() if self._dtype is None or not value.is_floating_point() else value.to(self._dtype, copy=True)


def normal(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32).to(dtype)
