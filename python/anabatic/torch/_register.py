# SPDX-License-Identifier: Apache-2.0
"""Layers of the library as operators of torch.

A row (Op) says what an operator takes and gives. From it come the operator, its backward operator, their fakes, autograd,
autocast and the refusals. The forward returns the outputs and one buffer of bytes with what its backward reads.
"""
from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from .. import _core
from ..errors import InternalError, InvalidArgument, Unsupported
from . import _packings

_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64"}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_ROWS = 64  # the buffer's size is that of so many rows at once, so that it is a formula of their number

Spec = tuple[Sequence[Any], torch.dtype]


class Detour(Protocol):
    """Another way to compute a call, which its operands may ask for. Both give None where they do not."""

    def forward(self, tensors: Sequence[Any]) -> list[torch.Tensor] | None: ...

    def backward(self, tensors: Sequence[Any], gradients: Sequence[torch.Tensor | None], wanted: int) -> list[torch.Tensor] | None: ...


@dataclasses.dataclass(frozen=True)
class Op:
    name: str
    operands: tuple[str, ...]  # of the layer, in order; "sinks?" may be None
    attributes: tuple[str, ...]  # as in a schema: "float epsilon"
    outputs: Callable[..., list[Spec]]  # from operands and attributes: shape and dtype of each
    rows: tuple[str, ...]  # operands whose first dimension is the number of rows
    gradients: tuple[str, ...]  # operands that have one
    num_outputs: int = 1
    has_products: bool = False  # which autocast makes bf16
    casts: tuple[str, ...] = ()  # operands that autocast makes bf16 too, and with them the outputs
    saved_outputs: tuple[int, ...] = ()  # outputs that the backward reads too
    registered: str = ""  # its name in torch where that is another one
    constants: tuple[tuple[str, str], ...] = ()  # attributes of the layer that every call has
    extra: tuple[str, ...] = ()  # operands that the layer does not take, but the detour does
    detour: Detour | None = None

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(operand.rstrip("?") for operand in self.operands)

    @functools.cached_property
    def masks(self) -> int:
        """A bit for each operand that has a gradient."""
        return sum(1 << self.names.index(name) for name in self.gradients)


@functools.cache
def loaded_openmp() -> str:
    """The file of the OpenMP runtime that torch computes with; "" if it is none of GNU's."""
    with open("/proc/self/maps") as maps:
        files = {line.split(None, 5)[5].strip() for line in maps if "libgomp" in line}
    own = os.path.dirname(torch.__file__)
    return min(files, key=lambda file: (not file.startswith(own), file), default="")


class _Host:
    """The layers of this process, on torch's own threads."""

    def __init__(self) -> None:
        self.made: _core.Layers | None = None
        self.threads = 0

    def load_plugin(self, path: str) -> None:
        self.layers().load_plugin(path)

    def layers(self) -> _core.Layers:
        """With as many threads as torch has now."""
        threads = torch.get_num_threads()
        if self.made is None:
            self.made = _core.Layers(threads, loaded_openmp())
        elif threads != self.threads:
            self.made.set_threads(threads)
        self.threads = threads
        return self.made


_HOST = _Host()


def _dtype(op: Op, operand: str, tensor: torch.Tensor | None) -> str | None:
    """None where the layer has no such operand."""
    if tensor is None or operand in op.extra:
        return None
    name = _DTYPES.get(tensor.dtype)
    if name is None:
        raise InvalidArgument(f"[{op.name}] {operand}: expected float32, bfloat16, int32 or int64, got {tensor.dtype}".replace("torch.", ""))
    return name


def _signature(op: Op, shapes: Sequence[tuple[int, ...] | None], dtypes: Sequence[str | None], attributes: Sequence[Any],
               needs: int, packed: Sequence[int] = ()) -> _core.LayerSignature:
    words = dict(op.constants)
    for declared, value in zip(op.attributes, attributes):
        if value is not None and value != "":
            words[declared.split()[1].split("=")[0]] = repr(value) if isinstance(value, float) else str(value)
    inputs = [(name, dtype, list(shape)) for name, shape, dtype in zip(op.names, shapes, dtypes) if shape is not None and dtype is not None]
    wanted = [name for name in op.gradients if needs >> op.names.index(name) & 1 and shapes[op.names.index(name)] is not None]
    return _core.LayerSignature(op.name, words, inputs, wanted, [op.names[place] for place in packed])


@dataclasses.dataclass(frozen=True)
class _Packing:
    place: int  # of its weight among the operands
    form: str
    size: int
    is_read: tuple[bool, bool]  # by the forward and by the backward


@dataclasses.dataclass(frozen=True)
class _Known:
    signature: _core.LayerSignature
    size: int  # bytes of the buffer
    packings: tuple[_Packing, ...]

    def packed(self, weights: dict[int, _packings.Weight], in_backward: bool) -> list[torch.Tensor | None]:
        """The packings that a call reads, made where the store has none."""
        return [weights[packing.place].packing(packing.form, packing.size, functools.partial(
            _HOST.layers().pack, self.signature, number, weights[packing.place].address)) if packing.is_read[in_backward] else None
            for number, packing in enumerate(self.packings)]


def _probe(op: Op, shapes: Sequence[Any], dtypes: Sequence[str | None], attributes: Sequence[Any], needs: int) -> tuple[int, int]:
    sizes = []
    for blocks in (1, 2):
        probe = [(blocks * _ROWS, *shape[1:]) if shape is not None and name in op.rows else shape for name, shape in zip(op.names, shapes)]
        signature = _signature(op, probe, dtypes, attributes, needs)
        if set(_HOST.layers().saved_outputs(signature)) - set(op.saved_outputs):
            raise InternalError(f"[{op.name}] the backward reads an output that is not kept")
        sizes.append(_HOST.layers().saved_bytes(signature))
    each = sizes[1] - sizes[0]
    return sizes[0] - each, each


class _Memory:
    """What is known of the calls of one operator, by their types."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.known: dict[Any, _Known] = {}
        self.probed: dict[Any, tuple[int, int]] = {}

    def size(self, tensors: Sequence[torch.Tensor | None], attributes: Sequence[Any], needs: int) -> Any:
        """Bytes of the buffer; symbolic where the number of rows is."""
        op = self.op
        if not needs & op.masks:
            return 0
        # Only the number of rows may be a symbol: torch compiles again for other widths.
        shapes = [None if tensor is None or name in op.extra else (*tensor.shape[:1], *map(int, tensor.shape[1:])) if name in op.rows else
                  tuple(map(int, tensor.shape)) for name, tensor in zip(op.names, tensors)]
        dtypes = [_dtype(op, name, tensor) for name, tensor in zip(op.names, tensors)]
        fixed = tuple(shape[1:] if shape is not None and name in op.rows else shape for name, shape in zip(op.names, shapes))
        key = (fixed, tuple(dtypes), tuple(attributes), needs)
        if key not in self.probed:
            self.probed[key] = _probe(op, shapes, dtypes, attributes, needs)
        base, each = self.probed[key]
        rows = next(shape[0] for name, shape in zip(op.names, shapes) if name in op.rows and shape is not None)
        return base + each * ((rows + _ROWS - 1) // _ROWS)

    def find(self, tensors: Sequence[torch.Tensor | None], attributes: tuple[Any, ...], needs: int, packed: tuple[int, ...]) -> _Known:
        key = (*[None if tensor is None else (tensor.dtype, tensor.shape) for tensor in tensors], attributes, needs, packed)
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= 4096:
                self.known.clear()
            shapes = [None if tensor is None else tuple(tensor.shape) for tensor in tensors]
            dtypes = [_dtype(self.op, name, tensor) for name, tensor in zip(self.op.names, tensors)]
            signature = _signature(self.op, shapes, dtypes, attributes, needs, packed)
            packings = tuple(_Packing(self.op.names.index(name), form, size, (in_forward, in_backward))
                             for name, form, size, in_forward, in_backward in _HOST.layers().packings(signature)) if packed else ()
            found = self.known[key] = _Known(signature, self.size(tensors, attributes, needs), packings)
        return found


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _contiguous(tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [tensor if tensor is None or tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.data_ptr() % 64 == 0 else tensor.clone()


Call = Callable[[Sequence[Any], tuple[Any, ...], int], tuple[torch.Tensor, ...]]


def register(library: torch.library.Library, op: Op) -> Call:
    """Makes the operator of a row. Returns a call of it by operands, attributes and the bits of operands that need gradients.

    That call goes around torch's dispatcher where nothing but autograd and autocast listens there: it costs a third.
    """
    memory = _Memory(op)
    name = op.registered or op.name
    namespace = getattr(torch.ops, library.ns)
    num = len(op.operands)
    tensors_schema = ", ".join(f"Tensor{'?' if operand.endswith('?') else ''} {operand.rstrip('?')}" for operand in op.operands)
    attribute_schema = "".join(f", {attribute}" for attribute in op.attributes) + (', str products=""' if op.has_products else "")
    required_schema = re.sub(r"=[^,]*", "", attribute_schema)
    results = ", ".join(["Tensor"] * (op.num_outputs + 1))
    library.define(f"{name}({tensors_schema}{attribute_schema}, int needs=-1) -> ({results})")
    library.define(f"{name}_backward({tensors_schema}{required_schema}, Tensor[] outputs, Tensor saved, "
                   "Tensor?[] gradients, int needs, int wanted) -> Tensor[]")
    row = dataclasses.replace(op, attributes=(*op.attributes, *(("str products",) if op.has_products else ())))
    memory.op = row
    num_attributes = len(row.attributes)
    all_gradients = row.masks

    def split(arguments: Sequence[Any]) -> tuple[Sequence[Any], tuple[Any, ...], int]:
        rest = list(arguments[num:])
        if len(rest) < num_attributes + 1:  # what the schema's defaults stand for
            rest += [""] * (num_attributes - len(rest)) + [-1]
        needs = rest[num_attributes]
        return arguments[:num], tuple(rest[:num_attributes]), all_gradients if needs < 0 else needs & all_gradients

    def of_layer(values: Sequence[Any], tensors: Sequence[Any] | None = None) -> list[Any]:
        """Those of the operands that the layer gets."""
        present = values if tensors is None else tensors
        return [value for value, tensor, operand in zip(values, present, row.names) if tensor is not None and operand not in row.extra]

    def specs(tensors: Sequence[Any], attributes: Sequence[Any]) -> list[Spec]:
        return row.outputs(*tensors, *attributes[:len(op.attributes)])

    def forward(*arguments: Any) -> tuple[torch.Tensor, ...]:
        return compute(*split(arguments))

    def compute(tensors: Sequence[Any], attributes: tuple[Any, ...], needs: int) -> tuple[torch.Tensor, ...]:
        weights = _packings.find(tensors)
        known = memory.find(tensors, attributes, needs, tuple(weights))
        made = None if row.detour is None else row.detour.forward(tensors)
        if made is not None:
            # The buffer has the size that was promised, so that compiled code finds what it expects.
            return (*made, torch.zeros(known.size, dtype=torch.uint8))
        held, packed = _contiguous(of_layer(tensors)), known.packed(weights, False)
        layers = _HOST.layers()
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in specs(tensors, attributes)]
        saved = torch.empty(known.size, dtype=torch.uint8)
        layers.forward(known.signature, [_address(t) for t in held], [output.data_ptr() for output in outputs],
                       saved.data_ptr(), known.size, [_address(t) for t in packed])
        return (*outputs, saved)

    def forward_fake(*arguments: Any) -> tuple[torch.Tensor, ...]:
        tensors, attributes, needs = split(arguments)
        made = tensors[0].new_empty
        return (*(made(shape, dtype=dtype) for shape, dtype in specs(tensors, attributes)),
                made((memory.size(tensors, attributes, needs),), dtype=torch.uint8))

    def backward(*arguments: Any) -> list[torch.Tensor]:
        return compute_gradients(arguments[:num], tuple(arguments[num:num + num_attributes]), *arguments[num + num_attributes:])

    def compute_gradients(tensors: Sequence[Any], attributes: tuple[Any, ...], outputs: Sequence[torch.Tensor], saved: torch.Tensor,
                          gradients: Sequence[torch.Tensor | None], needs: int, wanted: int) -> list[torch.Tensor]:
        by_detour = None if row.detour is None else row.detour.backward(tensors, gradients, wanted)
        if by_detour is not None:
            return by_detour
        held, given = _contiguous(of_layer(tensors)), [g if g is None else _aligned(g.contiguous()) for g in gradients]
        weights = _packings.find(tensors)
        known = memory.find(tensors, attributes, needs, tuple(weights))
        packed = known.packed(weights, True)
        made = {name: torch.empty(tensors[place].shape, dtype=tensors[place].dtype)
                for place, name in enumerate(row.names) if wanted >> place & 1}
        present = of_layer(row.names, tensors)
        addresses = [0] * row.num_outputs
        for place, output in zip(row.saved_outputs, outputs):
            addresses[place] = output.data_ptr()
        _HOST.layers().backward(known.signature, [_address(t) for t in held], addresses, saved.data_ptr(),
                                [_address(g) for g in given], [_address(made.get(name)) for name in present], [_address(t) for t in packed])
        return list(made.values())

    def backward_fake(*arguments: Any) -> list[torch.Tensor]:
        tensors, wanted = arguments[:num], arguments[-1]
        return [torch.empty_like(tensors[place], memory_format=torch.contiguous_format) for place in range(num) if wanted >> place & 1]

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Sequence[torch.Tensor]) -> None:
        tensors, ctx.attributes, ctx.needs = split(inputs)
        ctx.mark_non_differentiable(output[-1])
        keep(ctx, tensors, output)

    def keep(ctx: Any, tensors: Sequence[Any], output: Sequence[torch.Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *(output[place] for place in row.saved_outputs), output[-1])

    def differentiate(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        done = gradients_of(ctx, list(gradients[:-1]), ctx.needs_input_grad[:num], backward_op)
        return (*done, *[None] * (len(ctx.needs_input_grad) - num))

    def gradients_of(ctx: Any, gradients: list[torch.Tensor | None], needed: Sequence[bool],
                     operator: Callable[..., list[torch.Tensor]]) -> list[torch.Tensor | None]:
        wanted = sum(1 << place for place in range(num) if needed[place]) & all_gradients
        if wanted & ~ctx.needs:
            raise InvalidArgument(f"[{op.name}] expected `needs` to name each operand that requires a gradient, got {ctx.needs}")
        if not wanted or all(gradient is None for gradient in gradients):
            return [None] * num
        *kept, saved = ctx.saved_tensors
        made = iter(operator(*kept[:num], *ctx.attributes, kept[num:], saved, gradients, ctx.needs, wanted))
        return [next(made) if wanted >> place & 1 else None for place in range(num)]

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, attributes: tuple[Any, ...], needs: int, *tensors: Any) -> Any:  # type: ignore[override]
            output = compute(tensors, attributes, needs)
            ctx.attributes, ctx.needs = attributes, needs
            keep(ctx, tensors, output)
            return output[0] if row.num_outputs == 1 else output[:-1]

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
            # Where a second derivative may follow, the operator is asked, which refuses it.
            operator = backward_op if torch.is_grad_enabled() else backward
            return None, None, *gradients_of(ctx, list(gradients), ctx.needs_input_grad[2:], operator)

    Eager.__name__ = op.name

    def call(tensors: Sequence[Any], attributes: tuple[Any, ...], needs: int) -> tuple[torch.Tensor, ...]:
        if row.has_products:
            attributes = (*attributes, "")
        plain = not (torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._functorch.maybe_current_level() or
                     any(tensor is not None and type(tensor) not in _PLAIN for tensor in tensors))
        if not plain:
            return forward_op(*tensors, *attributes, needs)  # type: ignore[no-any-return]
        if row.has_products and torch.is_autocast_enabled("cpu"):
            tensors, attributes = cast_all(tensors, attributes)
        needs &= all_gradients
        if not needs:
            return compute(tensors, attributes, 0)
        output = Eager.apply(attributes, needs, *tensors)  # type: ignore[no-untyped-call]
        return (output,) if row.num_outputs == 1 else output

    def refuse_second(ctx: Any, *_: Any) -> None:
        raise Unsupported(f"[{op.name}] expected first derivatives alone, got a second one, which this operator does not have")

    def refuse_batched(*_: Any) -> None:
        raise Unsupported(f"[{op.name}] expected no torch.vmap around this operator: it takes all rows at once")

    def cast_all(tensors: Sequence[Any], attributes: tuple[Any, ...]) -> tuple[list[Any], tuple[Any, ...]]:
        dtype = torch.get_autocast_dtype("cpu")
        if dtype != torch.bfloat16:
            raise Unsupported(f"[{op.name}] expected autocast to bfloat16, got {dtype}")
        made = [tensor.to(dtype) if name in row.casts and tensor is not None else tensor for name, tensor in zip(row.names, tensors)]
        return made, (*attributes[:-1], attributes[-1] or "bf16")

    def cast(*arguments: Any) -> tuple[torch.Tensor, ...]:
        attributes, needs = list(arguments[num:num + num_attributes]), arguments[num + num_attributes:]
        attributes += [""] * (num_attributes - len(attributes))
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            tensors, values = cast_all(arguments[:num], tuple(attributes))
            return forward_op(*tensors, *values, *needs)  # type: ignore[no-any-return]

    qualified = f"{library.ns}::{name}"
    library.impl(name, forward, "CPU")
    library.impl(f"{name}_backward", backward, "CPU")
    torch.library.register_fake(qualified, forward_fake, lib=library)
    torch.library.register_fake(f"{qualified}_backward", backward_fake, lib=library)
    forward_op = getattr(namespace, name)
    backward_op = getattr(namespace, f"{name}_backward").default
    torch.library.register_autograd(qualified, differentiate, setup_context=setup_context, lib=library)
    torch.library.register_autograd(f"{qualified}_backward", refuse_second, lib=library)
    for each in (qualified, f"{qualified}_backward"):
        torch.library.register_vmap(each, refuse_batched, lib=library)
    if op.has_products:
        library.impl(name, cast, "AutocastCPU")
    return call
