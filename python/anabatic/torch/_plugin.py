# SPDX-License-Identifier: Apache-2.0
"""Operators of plugins in torch: torch.ops.anabatic_plugin.NAME, with autograd, autocast and torch.compile."""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import InvalidArgument, Unsupported
from ..tools import load_plugin as _load
from ._register import _DTYPES, _HOST, _ROWS, Op, Spec, _dtype, _signature, register

_LIBRARY = torch.library.Library("anabatic_plugin", "DEF")  # noqa: TOR901
_TORCH_DTYPES = {name: dtype for dtype, name in _DTYPES.items()}
_KINDS = {bool: "bool", int: "int", float: "float", str: "str"}
_LOADED: dict[str, dict[str, Callable[..., Any]]] = {}


def _attribute(op: str, name: str, value: Any) -> str:
    if type(value) not in _KINDS:
        raise Unsupported(f"[{op}] attribute {name}: expected true, false, a number or text, got {json.dumps(value)}")
    return f"{_KINDS[type(value)]} {name}={json.dumps(value) if isinstance(value, str) else value}"


class _Outputs:
    """Shapes and dtypes of the outputs, as the plugin infers them. Only the number of rows may be a symbol of torch."""

    def __init__(self, names: Sequence[str], rows: Sequence[str]) -> None:
        self.names, self.rows = names, rows
        self.op: Op | None = None
        self.known: dict[Any, list[tuple[list[tuple[int, int]], torch.dtype]]] = {}

    def _infer(self, shapes: list[tuple[int, ...]], dtypes: list[str | None], attributes: tuple[Any, ...]) -> list[Any]:
        assert self.op is not None
        return _HOST.layers().outputs(_signature(self.op, shapes, dtypes, attributes, 0))

    def __call__(self, *arguments: Any) -> list[Spec]:
        tensors, attributes = arguments[:len(self.names)], arguments[len(self.names):]
        assert self.op is not None
        dtypes = [_dtype(self.op, name, tensor) for name, tensor in zip(self.names, tensors)]
        rows = next((tensor.shape[0] for name, tensor in zip(self.names, tensors) if name in self.rows and tensor.dim()), None)
        if rows is None or isinstance(rows, int):
            shapes = [tuple(map(int, tensor.shape)) for tensor in tensors]
            return [(tuple(shape), _TORCH_DTYPES[dtype]) for _, dtype, shape in self._infer(shapes, dtypes, attributes)]
        fixed = [tuple(map(int, tensor.shape[1 if name in self.rows else 0:])) for name, tensor in zip(self.names, tensors)]
        key = (tuple(fixed), tuple(dtypes), attributes)
        if key not in self.known:
            one, two = (self._infer([((blocks * _ROWS, *shape) if name in self.rows else shape) for name, shape in zip(self.names, fixed)],
                                    dtypes, attributes) for blocks in (1, 2))
            # Each dimension is a formula of the rows: first + each * rows.
            self.known[key] = [([(2 * a - b, (b - a) // _ROWS) for a, b in zip(first, second)], _TORCH_DTYPES[dtype])
                               for (_, dtype, first), (_, _, second) in zip(one, two)]
        return [(tuple(base + each * rows if each else base for base, each in dims), dtype) for dims, dtype in self.known[key]]


def _make(op: dict[str, Any]) -> Callable[..., Any]:
    name, inputs = op["name"], op["inputs"]
    names = tuple(one["name"] for one in inputs)
    rows = tuple(one["name"] for one in inputs if one["kind"] in ("activation", "index"))
    attributes = tuple(_attribute(name, key, value) for key, value in op["attributes"].items())
    num_outputs = len(op["outputs"])
    outputs = _Outputs(names, rows)
    differentiable = ("activation", "weight") if op["has_gradient"] else ()
    row = Op(name, names, attributes, outputs, rows, tuple(one["name"] for one in inputs if one["kind"] in differentiable),
             num_outputs=num_outputs, saved_outputs=tuple(range(num_outputs)), registered=f"{name}_with_saved")
    outputs.op = row
    call = register(_LIBRARY, row)
    floats = [place for place, one in enumerate(inputs) if one["kind"] != "index"]
    wanted = [(torch.int32, torch.int64) if one["dtypes"] == ["i32"] else (torch.float32, torch.bfloat16) for one in inputs]

    def function(*arguments: Any, **keywords: Any) -> Any:
        tensors = arguments[:len(names)]
        values = (*arguments[len(names):], *(keywords.get(key, op["attributes"][key]) for key in list(op["attributes"])[len(arguments) - len(names):]))
        needs = 0
        for place, tensor in enumerate(tensors):
            if not tensor.is_cpu or tensor.layout is not torch.strided:
                raise Unsupported(f"[{name}] {names[place]}: expected a dense tensor on the CPU, got {tensor.layout} on {tensor.device}")
            if tensor.dtype not in wanted[place]:
                names_of_dtypes = " or ".join(map(str, wanted[place]))
                raise InvalidArgument(f"[{name}] {names[place]}: expected {names_of_dtypes}, got {tensor.dtype}".replace("torch.", ""))
            if torch.is_grad_enabled() and tensor.requires_grad and place in floats:
                if not op["has_gradient"]:
                    raise Unsupported(f"[{name}] {names[place]} requires a gradient, which this operator does not have")
                needs |= 1 << place
        made = call(tensors, tuple(values), needs)
        return made[0] if num_outputs == 1 else tuple(made[:num_outputs])

    tensors_schema = ", ".join(f"Tensor {one}" for one in names)
    results = "Tensor" if num_outputs == 1 else f"({', '.join(['Tensor'] * num_outputs)})"
    _LIBRARY.define(f"{name}({tensors_schema}{''.join(f', {attribute}' for attribute in attributes)}) -> {results}")
    _LIBRARY.impl(name, function, "CompositeImplicitAutograd")
    made = getattr(torch.ops.anabatic_plugin, name)
    made.__doc__ = f"{op['signature']}\n\n{op['summary']}"
    return made  # type: ignore[no-any-return]


def load_plugin(path: str | os.PathLike[str]) -> dict[str, Callable[..., Any]]:
    """Loads a plugin and makes torch.ops.anabatic_plugin.NAME of each of its operators; those by name.

    A weight's gradient has the weight's dtype. Kernels of the plugin serve anabatic.torch.ops; a plugin of kernels alone has
    no operators. Loading a file twice gives what the first time gave.
    """
    facts = _load(path)
    file = facts["plugin"]
    if file not in _LOADED:
        taken = {op: other for other, ops in _LOADED.items() for op in ops}
        for op in facts["ops"]:
            if op["name"] in taken:
                raise InvalidArgument(f"[plugin] {file}: {taken[op['name']]} has an op {op['name']} too")
        _HOST.load_plugin(file)
        _LOADED[file] = {op["name"]: _make(op) for op in facts["ops"]}
    return dict(_LOADED[file])
