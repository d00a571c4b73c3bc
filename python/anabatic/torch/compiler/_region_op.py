# SPDX-License-Identifier: Apache-2.0
"""Regions as operators of torch: several layers over rows [T, width], one program forward and one backward.

Regions of one structure, such as the layers of a model, are one operator: it is made where the structure is first seen.
"""
from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from .. import _masked, ops
from .._register import Call, Op, register

_LIBRARY = torch.library.Library("anabatic", "FRAGMENT")  # noqa: TOR901
PREFIX = "region_"
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclasses.dataclass(frozen=True)
class Layer:
    """A node of a region. Operands are named as those of the region, or "%3" for the result of node 3."""

    layer: str
    operands: tuple[tuple[str, str], ...]
    result: str  # bf16 or fp32
    width: int  # of the result
    attributes: tuple[tuple[str, str], ...] = ()
    segment: str = ""

    def attribute(self, name: str) -> str:
        return dict(self.attributes)[name]


@dataclasses.dataclass(frozen=True)
class Operand:
    """How an argument of the region becomes rows. kind: "rows", "heads" [B, heads, S, width], "weight", "mask", or "given" as
    rows."""

    name: str
    kind: str
    has_gradient: bool = False


@dataclasses.dataclass(frozen=True)
class Export:
    """A result: which node's, and how its rows are seen."""

    source: str
    form: str  # "flat" [T, width], "rows" [B, S, width], "heads" [B, S, heads, width], "turned" [B, heads, S, width]
    heads: int = 1


@dataclasses.dataclass(frozen=True)
class Structure:
    layers: tuple[Layer, ...]
    operands: tuple[Operand, ...]
    exports: tuple[Export, ...]
    products: str  # bf16 or fp32

    @functools.cached_property
    def outputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(export.source for export in self.exports))

    def node(self, source: str) -> Layer:
        return self.layers[int(source[1:])]


class _Detour:
    """Taken where a mask is no range of keys a row: layers one by one, and PyTorch's attention."""

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.names = [operand.name for operand in structure.operands]
        self.begin = self.names.index("key_begin")
        self.count = sum(layer.layer == "attention" for layer in structure.layers)

    def _is_taken(self, tensors: Sequence[Any]) -> bool:
        begin = tensors[self.begin]
        return begin.numel() > 0 and int(begin[0]) < 0

    def forward(self, tensors: Sequence[Any]) -> list[Tensor] | None:
        taken = self._is_taken(tensors)
        _masked.calls["torch" if taken else "ours"] += self.count
        return self._run(tensors) if taken else None

    def _run(self, tensors: Sequence[Any]) -> list[Tensor]:
        with torch.autocast("cpu", enabled=False):
            values: dict[str, Any] = dict(zip(self.names, tensors))
            for number, layer in enumerate(self.structure.layers):
                operands = {name: values[source] for name, source in layer.operands}
                values[f"%{number}"] = self._one(layer, operands, values["mask"]).to(_DTYPES[layer.result])
            return [values[output] for output in self.structure.outputs]

    def backward(self, tensors: Sequence[Any], gradients: Sequence[Tensor | None], wanted: int) -> list[Tensor] | None:
        if not self._is_taken(tensors):
            return None
        # Autograd records nothing inside an operator unless its keys are let in again.
        include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        for key in (DispatchKey.AutogradCPU, DispatchKey.AutogradFunctionality, DispatchKey.ADInplaceOrView):
            exclude = exclude.remove(key)
        leaves = [tensor.detach().requires_grad_() if wanted >> place & 1 else tensor for place, tensor in enumerate(tensors)]
        with torch._C._ForceDispatchKeyGuard(include, exclude), torch.enable_grad():
            outputs = self._run(leaves)
            given = [(output, gradient) for output, gradient in zip(outputs, gradients) if gradient is not None]
            sources = [leaf for place, leaf in enumerate(leaves) if wanted >> place & 1]
            made = torch.autograd.grad([output for output, _ in given], sources, [gradient for _, gradient in given], allow_unused=True)
        return [torch.zeros_like(source) if gradient is None else gradient.contiguous() for source, gradient in zip(sources, made)]

    def _one(self, layer: Layer, of: dict[str, Any], mask: Tensor) -> Tensor:
        to = _DTYPES[self.structure.products]
        if layer.layer == "add":
            return of["a"] + of["b"]  # type: ignore[no-any-return]
        if layer.layer == "cast":
            return of["x"]  # type: ignore[no-any-return]
        if layer.layer == "rms_norm":
            heads = of["x"].unflatten(-1, (-1, of["weight"].shape[0]))
            return ops.rms_norm(heads, of["weight"], float(layer.attribute("epsilon"))).flatten(-2)
        if layer.layer == "rope":
            return ops.rope(of["x"], of["table"], int(layer.attribute("head_dim")))
        if layer.layer == "swiglu":
            return ops.swiglu(of["gate"], of["up"])
        if layer.layer == "linear":
            return ops.linear(of["x"].to(to), of["weight"])
        if layer.layer == "mlp":
            return ops.mlp(of["x"].to(to), of["gate_up"], of["down"])
        if layer.layer == "gated_mlp":
            return ops.gated_mlp(of["x"].to(to), of["gate"], of["up"], of["down"])
        if layer.layer == "moe_experts":
            return ops.moe_experts(of["x"].to(to), of["gate_up"], of["down"], of["index"], of["weights"])
        return _attention(layer, of["q"].to(to), of["k"].to(to), of["v"].to(to), mask)


def _attention(layer: Layer, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Of rows under a mask that broadcasts to [B, 1, S, S], in float32."""
    heads, kv_heads, length = int(layer.attribute("num_heads")), int(layer.attribute("num_kv_heads")), mask.shape[-1]
    query, key, value = (x.float().view(-1, length, number, x.shape[1] // number).transpose(1, 2)
                         for x, number in ((q, heads), (k, kv_heads), (v, kv_heads)))
    scores = query @ key.repeat_interleave(heads // kv_heads, 1).transpose(-1, -2) * float(layer.attribute("scale"))
    weights = scores.masked_fill(~mask, torch.finfo(torch.float32).min).softmax(-1).masked_fill(~mask, 0.0)  # a row without keys is zero
    return (weights @ value.repeat_interleave(heads // kv_heads, 1)).transpose(1, 2).flatten(0, 1).flatten(1)


def _nodes_text(structure: Structure) -> str:
    nodes = []
    for layer in structure.layers:
        node: dict[str, Any] = {"layer": layer.layer, "operands": layer.operands, "result": layer.result}
        if layer.attributes:
            node["attributes"] = dict(layer.attributes)
        if layer.segment:
            node["segment"] = layer.segment
        nodes.append(node)
    return json.dumps(nodes)


class Region:
    """An operator of torch for one structure."""

    def __init__(self, structure: Structure, number: int) -> None:
        self.structure, self.name = structure, f"{PREFIX}{number}"
        names = [operand.name for operand in structure.operands]
        rows = [operand.name for operand in structure.operands if operand.kind in ("rows", "heads", "given")]
        first = names.index(rows[0])
        results = [(structure.node(output).width, _DTYPES[structure.node(output).result]) for output in structure.outputs]
        has_mask = "mask" in names
        constants = (("nodes", _nodes_text(structure)), ("outputs", json.dumps(structure.outputs)), ("products", structure.products))
        self.op = Op("region", tuple(names), (), lambda *tensors: [((tensors[first].shape[0], width), dtype) for width, dtype in results],
                     rows=tuple(rows), gradients=tuple(operand.name for operand in structure.operands if operand.has_gradient),
                     num_outputs=len(results), saved_outputs=tuple(range(len(results))), registered=self.name, constants=constants,
                     extra=("mask",) if has_mask else (), detour=_Detour(structure) if has_mask else None)
        self.call: Call = register(_LIBRARY, self.op)


_known: dict[Structure, Region] = {}
_by_number: list[Region] = []


def region_of(structure: Structure) -> int:
    """The number of its operator."""
    if structure not in _known:
        _known[structure] = Region(structure, len(_by_number))
        _by_number.append(_known[structure])
    return _by_number.index(_known[structure])


def by_name(name: str) -> Region:
    return _by_number[int(name.removeprefix(PREFIX))]


def _rows_of(tensor: Tensor, kind: str) -> Tensor:
    if kind == "rows":
        return tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])
    if kind == "heads":
        return tensor.transpose(1, 2).reshape(tensor.shape[0] * tensor.shape[2], tensor.shape[1] * tensor.shape[3])
    return tensor


def _seen(rows: Tensor, export: Export, like: Tensor | None) -> Tensor:
    if export.form == "flat" or like is None:
        return rows
    batch, length = like.shape[:2]
    if export.form == "rows":
        return rows.view(batch, length, rows.shape[1])
    heads = rows.view(batch, length, export.heads, rows.shape[1] // export.heads)
    return heads if export.form == "heads" else heads.transpose(1, 2)


def region(number: int, like: Tensor | None, arguments: Sequence[Any]) -> tuple[Tensor, ...]:
    """What a raised graph calls. like [B, S, ...] tells how rows are sequences. An argument of ranges is the pair of them."""
    structure = _by_number[number].structure
    flat = [tensor for argument in arguments for tensor in (argument if isinstance(argument, (tuple, list)) else (argument,))]
    tensors = [_rows_of(tensor, operand.kind) for tensor, operand in zip(flat, structure.operands)]
    grad = torch.is_grad_enabled()
    needs = sum(1 << place for place, tensor in enumerate(tensors) if grad and tensor.requires_grad)
    found = dict(zip(structure.outputs, _by_number[number].call(tensors, (), needs)))
    return tuple(_seen(found[export.source], export, like) for export in structure.exports)


def rope_table(cos: Tensor, sin: Tensor, like: Tensor) -> Tensor:
    """Of cosines and sines [B or 1, S, D], of which all come twice: cosines, then sines, a row."""
    half = cos.shape[-1] // 2
    table = torch.cat((cos[..., :half], sin[..., :half]), -1).float()
    return table.expand(like.shape[0], like.shape[1], 2 * half).reshape(-1, 2 * half)


def row_ranges(found: tuple[Tensor, Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
    """Ranges of each sequence as ranges of rows; what is no range stays below zero in the first row."""
    batch, length = like.shape[:2]
    first = torch.arange(batch, dtype=torch.int32)[:, None] * length
    begin, end = ((each.expand(batch, length) + first).view(-1) for each in found)
    return begin, end


def all_or_earlier(causal: bool, like: Tensor) -> tuple[Tensor, Tensor]:
    """The ranges of all keys, or of those up to a query's own place."""
    batch, length = like.shape[:2]
    end = torch.arange(1, length + 1, dtype=torch.int32) if causal else torch.full((length,), length, dtype=torch.int32)
    return row_ranges((torch.zeros((1, length), dtype=torch.int32), end[None]), like)
