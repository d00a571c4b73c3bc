# SPDX-License-Identifier: Apache-2.0
"""Multiplications and additions of the products in graphs of AOTAutograd. Everything else counts as nothing."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.flop_counter import flop_registry

from ._region_op import PREFIX as REGION
from ._region_op import Structure, by_name

PREFIX = "anabatic::"


def _value(argument: Any) -> Any:
    if isinstance(argument, Node):
        return argument.meta.get("val")
    if isinstance(argument, (list, tuple)):
        return [_value(each) for each in argument]
    return argument


def _number(size: Any) -> int:
    """A symbol counts as what it was when the graph was made."""
    return size if isinstance(size, int) else int(size.node.hint)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(map(_number, value.shape))


def _attention(q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> int:
    """Of all pairs of queries and keys, as torch counts it too. [B, heads, S, width] each."""
    return 2 * math.prod(q[:3]) * k[2] * (q[3] + v[3])


def _key_begin(operator: str) -> int | None:
    """The place of this operand of attention, which a region may have."""
    base = operator.removesuffix("_backward")
    if base.startswith(REGION):
        names = [operand.name for operand in by_name(base).structure.operands]
        return names.index("key_begin") if "key_begin" in names else None
    return 3 if base == "attention" else None


def _num_sequences(begin: Any) -> int:
    """Those that the rows of an attention are of: its key_begin is a view of [B, S]. 1 where the graph does not tell."""
    whole = _value(begin.args[0]) if isinstance(begin, Node) and begin.args else None
    return _number(whole.shape[0]) if isinstance(whole, torch.Tensor) and whole.dim() == 2 else 1


def _ours(name: str, values: Sequence[Any], num_sequences: int) -> tuple[int, int]:
    """Of one of our operators, and of what its backward computes but counts here."""
    backward = name.endswith("_backward")
    base = name.removesuffix("_backward")
    if base == "masked_attention":
        q, k, v = (_shape(value) for value in (values[1:4] if backward else values[:3]))
        once = _attention(q, k, v)
        return (once * 5 // 2, 0) if backward else (once, 0)
    if base == "attention":
        q, k, v = (_shape(value) for value in values[:3])
        heads, kv_heads = values[6], values[7]
        once = 2 * q[0] * (k[0] // num_sequences) * (q[1] + v[1] // kv_heads * heads)
        return (once * 5 // 2, 0) if backward else (once, 0)
    if base.startswith(REGION):
        return _region(by_name(base).structure, values, num_sequences, backward), 0
    if base not in ("mlp", "gated_mlp", "moe_experts", "linear", "grouped_linear", "linear_cross_entropy"):
        return 0, 0
    x, weight = _shape(values[0]), _shape(values[1])
    rows = x[0]
    if base == "moe_experts":
        rows *= _shape(values[3])[1]
    first = 2 * rows * weight[-1] * weight[-2]
    second = first // 2 if base in ("mlp", "moe_experts") else 0
    needs = values[-1]
    if base == "gated_mlp":  # x, gate, up and down: three products of one size
        wanted = needs & 1, needs & 2, needs & 4, needs & 8
        return (first * (1 + 2 * bool(wanted[0]) + sum(map(bool, wanted[1:]))) if backward else 3 * first, 0)
    if base == "linear_cross_entropy":
        # The forward makes the gradients too.
        return (0, 0) if backward else (first, first * (needs & 3).bit_count())
    if not backward:
        return first + second, 0
    gradients = (second if second else 0) + (first if needs & 1 else 0) + (first if needs & 2 else 0) + (second if needs & 4 else 0)
    return gradients, 0


def _region(structure: Structure, values: Sequence[Any], num_sequences: int, backward: bool) -> int:
    """The sum over its layers."""
    known = {operand.name: (_shape(value), bool(values[-1] >> place & 1)) for place, (operand, value) in enumerate(zip(structure.operands, values))}
    rows = next(known[operand.name][0][0] for operand in structure.operands if operand.kind in ("rows", "heads", "given"))
    total = 0
    for number, layer in enumerate(structure.layers):
        operands = [known[source] for _, source in layer.operands]
        wanted = sum(1 << place for place, (_, needed) in enumerate(operands) if needed)
        tensors = [torch.empty(sizes, device="meta") for sizes, _ in operands]
        attributes: list[Any] = []
        if layer.layer == "attention":
            attributes = [None, int(layer.attribute("num_heads")), int(layer.attribute("num_kv_heads"))]
        if not backward or wanted:
            name = f"{layer.layer}_backward" if backward else layer.layer
            total += _ours(name, [*tensors, *attributes, wanted], num_sequences)[0]
        known[f"%{number}"] = ((rows, layer.width), wanted > 0)
    return total


def count(module: GraphModule, sequences: dict[Any, int]) -> tuple[dict[str, list[int]], int]:
    """FLOPs and calls by operator; FLOPs of a backward that a forward has made.

    sequences: their number by shapes of attention, which a forward's graph tells and its backward's does not.
    """
    found: dict[str, list[int]] = {}
    ahead = 0
    for node in module.graph.nodes:
        target = node.target
        if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
            continue
        name = target.name().rsplit(".", 1)[0] if target.name().count(".") else target.name()
        values = _value(list(node.args))
        if name.startswith(PREFIX):
            base = name.removeprefix(PREFIX)
            num_sequences = 1
            place = _key_begin(base)
            if place is not None:
                shapes = (base.removesuffix("_backward"), tuple(_shape(value) for value in values[:3]))
                num_sequences = sequences.setdefault(shapes, _num_sequences(node.args[place]))
            flops, made = _ours(base, _all(target, values), num_sequences)
            ahead += made
        else:
            flops = _theirs(name, target, values, node)
        row = found.setdefault(name, [0, 0])
        row[0] += flops
        row[1] += 1
    return found, ahead


def _all(target: torch._ops.OpOverload, values: list[Any]) -> list[Any]:
    """With what the schema's defaults stand for."""
    return [*values, *(argument.default_value for argument in target._schema.arguments[len(values):])]


def _theirs(name: str, target: torch._ops.OpOverload, values: list[Any], node: Node) -> int:
    if name.startswith("aten::_scaled_dot_product_flash_attention_for_cpu"):
        backward = name.endswith("_backward")
        q, k, v = (_shape(value) for value in (values[1:4] if backward else values[:3]))
        return _attention(q, k, v) * (5 if backward else 2) // 2
    if "grouped_mm" in name:
        rows, weight = _shape(values[0]), _shape(values[1])
        if len(weight) == 2:  # the gradient of a stack of weights: its groups are of rows
            return 2 * rows[0] * rows[1] * weight[1]
        return 2 * rows[0] * weight[1] * weight[2] * (2 if name.endswith("_backward") else 1)
    formula = flop_registry.get(target.overloadpacket)
    if formula is None:
        return 0
    return int(formula(*_plain(values), **_plain(dict(node.kwargs)), out_val=_plain(node.meta.get("val"))))


def _plain(value: Any) -> Any:
    """Fake tensors without symbols."""
    if isinstance(value, torch.Tensor):
        return torch.empty(_shape(value), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(each) for each in value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value
