# SPDX-License-Identifier: Apache-2.0
"""Optimizers for torch on the library's kernels."""
from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .. import _core
from ..errors import InvalidArgument, Unsupported
from ._packings import Store
from ._register import loaded_openmp

_PROCESS = os.getpid()
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.uint8}
_MOMENTS = ("exp_avg", "exp_avg_sq")
_LEAST_IN_INT8 = 4096  # elements, as in the engine
# Addresses of value, gradient and moments; rows, columns; number of the parameter.
_Row = tuple[int, int, int, int, int, int, int]
# What torch.optim.AdamW has in its groups and this does not do.
_OFF = {"amsgrad": False, "maximize": False, "capturable": False, "differentiable": False, "decoupled_weight_decay": True}


def _matrix(parameter: Tensor) -> tuple[int, int]:
    """Rows and columns of a parameter as one matrix."""
    columns = parameter.shape[-1] if parameter.dim() > 1 else parameter.numel()
    return parameter.numel() // columns if columns else 0, columns


def _decoded(which: int, parameter: Tensor, moment: Tensor) -> Tensor:
    """The values of a moment, whose bytes are int8 where it is not like its parameter."""
    if moment.shape == parameter.shape:
        return moment.float()
    values = torch.empty(parameter.shape)
    _core.decode_moment(which, moment.data_ptr(), values.data_ptr(), *_matrix(parameter))
    return values


def _encoded(which: int, values: Tensor) -> Tensor:
    values = values.float().contiguous()
    rows, columns = _matrix(values)
    moment = torch.zeros(_core.adamw_moment_bytes("int8", rows, columns), dtype=torch.uint8)
    _core.encode_moment(which, values.data_ptr(), moment.data_ptr(), rows, columns)
    return moment


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW in one sweep over memory, with clipping by the global norm.

    Parameters are float32, on the CPU and contiguous. `max_norm` clips gradients as torch.nn.utils.clip_grad_norm_ does, and
    leaves them as they are; `grad_norm` is their norm in the last step. `moments="bf16"` takes half of the memory and is
    rounded stochastically. `moments="int8"` takes a quarter: matrices and stacks of at least 4096 elements have a byte an
    element and a scale for each 16 x 16, all else has fp32.

    A state of torch.optim.AdamW loads into any of them, and so does each into another. torch_state_dict() is what
    torch.optim.AdamW loads; with fp32 moments state_dict() is the same.

    With `keep_packings` operators keep the packings of these parameters from call to call, `packing_bytes` in all, until the
    parameter changes. After a write through .data, NumPy or a fused optimizer of torch call refresh().
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, *, max_norm: float | None = None, moments: str = "fp32",
                 keep_packings: bool = False) -> None:
        if moments not in _DTYPES:
            raise InvalidArgument(f"[AdamW] moments: expected fp32, bf16 or int8, got {moments!r}")
        for name, value, ok in (("lr", float(lr), float(lr) >= 0), ("betas[0]", betas[0], 0 <= betas[0] < 1), ("betas[1]", betas[1], 0 <= betas[1] < 1),
                                ("eps", eps, eps >= 0), ("weight_decay", weight_decay, weight_decay >= 0),
                                ("max_norm", max_norm, max_norm is None or max_norm > 0)):
            if not ok:
                raise InvalidArgument(f"[AdamW] {name}: got {value}, which is out of range")
        self.max_norm = max_norm
        self.moments = moments
        self.grad_norm: float | None = None
        self._sweep: _core.AdamW | None = None
        self._made_for = (0, 0)  # process and threads
        self._store = Store() if keep_packings else None
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "foreach": None, "fused": None, **_OFF})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for place, parameter in enumerate(self.param_groups[-1]["params"]):
            if parameter.dtype != torch.float32 or not parameter.is_cpu or parameter.layout != torch.strided or not parameter.is_contiguous():
                raise Unsupported(f"[AdamW] parameter {place}: expected contiguous float32 on the CPU, got {parameter.dtype} on "
                                  f"{parameter.device}{'' if parameter.layout != torch.strided or parameter.is_contiguous() else ', strided'}")
        self._watch()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "max_norm": self.max_norm, "moments": self.moments, "grad_norm": self.grad_norm, "_sweep": None,
                "_made_for": (0, 0), "_store": self._store is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Loading a state comes here too.
        self._store = Store() if self._store else None
        self._watch()

    @property
    def keep_packings(self) -> bool:
        return self._store is not None

    @property
    def packing_bytes(self) -> int:
        """The memory of the packings that are kept now."""
        return self._store.num_bytes if self._store else 0

    def refresh(self) -> None:
        """Parameters have changed in a way that torch does not count: their packings are dropped."""
        self._watch()
        if self._store:
            self._store.drop()

    def _watch(self) -> None:
        if self._store:
            self._store.watch((group["param_names"][place] if "param_names" in group else f"parameter {place} of group {number}", parameter)
                              for number, group in enumerate(self.param_groups) for place, parameter in enumerate(group["params"]))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for group in state_dict["param_groups"]:
            for name, off in _OFF.items():
                if group.get(name, off) != off:
                    raise Unsupported(f"[AdamW] {name}: expected {off}, got {group[name]}")
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            for which, name in enumerate(_MOMENTS):
                state[name] = self._kept(which, parameter, state[name])

    def torch_state_dict(self) -> dict[str, Any]:
        """The state with all moments as float32 tensors like their parameters."""
        found = self.state_dict()
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, state in found["state"].items():
            found["state"][number] = state = dict(state)
            for which, name in enumerate(_MOMENTS):
                state[name] = _decoded(which, parameters[number], state[name])
        return found

    def _moments_of(self, parameter: Tensor) -> str:
        """How the moments of a parameter are kept."""
        is_large = parameter.dim() > 1 and parameter.numel() >= _LEAST_IN_INT8
        return "fp32" if self.moments == "int8" and not is_large else self.moments

    def _kept(self, which: int, parameter: Tensor, moment: Tensor) -> Tensor:
        """A loaded moment as this optimizer keeps it. super() has made floats of bytes."""
        kind = self._moments_of(parameter)
        if moment.shape != parameter.shape:
            rows, columns = _matrix(parameter)
            expected = _core.adamw_moment_bytes("int8", rows, columns)
            if moment.shape != (expected,):
                raise InvalidArgument(f"[AdamW] {_MOMENTS[which]}: expected shape {list(parameter.shape)}, or {expected} bytes of int8, got "
                                      f"{list(moment.shape)}")
            moment = moment.to(torch.uint8)
            if kind == "int8":
                return moment.contiguous()
            moment = _decoded(which, parameter, moment)
        if kind == "int8":
            return _encoded(which, moment)
        return moment.to(_DTYPES[kind]).contiguous()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        sweep = self._current_sweep()
        groups = [(group, self._rows_of(group)) for group in self.param_groups]
        factor = 1.0
        if self.max_norm is not None:
            squares = math.fsum(sweep.sum_squares(rows) for _, by_step in groups for _, rows in by_step.values())
            self.grad_norm = math.sqrt(squares)
            factor = min(1.0, self.max_norm / (self.grad_norm + 1e-6))
            if not math.isfinite(self.grad_norm):
                raise InvalidArgument(f"[AdamW] expected gradients with a finite norm, got {self.grad_norm}; nothing is updated")
        for group, by_step in groups:
            for (step, moments), (parameters, rows) in by_step.items():
                beta1, beta2 = group["betas"]
                sweep.update(rows, float(group["lr"]), beta1, beta2, group["eps"], group["weight_decay"], moments, step, factor)
                for parameter in parameters:
                    self.state[parameter]["step"] += 1
                torch.autograd.graph.increment_version(parameters)
        self._watch()
        return loss

    def _current_sweep(self) -> _core.AdamW:
        # A forked child has none of the threads: it computes with one.
        is_child = os.getpid() != _PROCESS
        threads = 1 if is_child else torch.get_num_threads()
        if self._sweep is None or self._made_for != (os.getpid(), threads):
            self._sweep = _core.AdamW(threads, "" if is_child else loaded_openmp())
            self._made_for = (os.getpid(), threads)
        return self._sweep

    def _rows_of(self, group: dict[str, Any]) -> dict[tuple[int, str], tuple[list[Tensor], list[_Row]]]:
        """Parameters with a gradient and what the library takes of them, by the number of the step that comes and moments."""
        found: dict[tuple[int, str], tuple[list[Tensor], list[_Row]]] = {}
        for place, parameter in enumerate(group["params"]):
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.dtype != torch.float32 or gradient.layout != torch.strided:
                raise Unsupported(f"[AdamW] gradient of parameter {place}: expected dense float32, got {gradient.dtype}, {gradient.layout}")
            if not gradient.is_contiguous():
                gradient = parameter.grad = gradient.contiguous()
            state, kind, (rows, columns) = self.state[parameter], self._moments_of(parameter), _matrix(parameter)
            if not state:
                state["step"] = torch.tensor(0.0)
                for name in _MOMENTS:
                    state[name] = (torch.zeros(_core.adamw_moment_bytes(kind, rows, columns), dtype=torch.uint8) if kind == "int8" else
                                   torch.zeros_like(parameter, dtype=_DTYPES[kind]))
            step = int(state["step"]) + 1
            parameters, made = found.setdefault((step, kind), ([], []))
            parameters.append(parameter)
            made.append((parameter.data_ptr(), gradient.data_ptr(), state["exp_avg"].data_ptr(), state["exp_avg_sq"].data_ptr(), rows, columns, place))
        return found
