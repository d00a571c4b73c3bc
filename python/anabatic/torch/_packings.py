# SPDX-License-Identifier: Apache-2.0
"""Packings of weights that an optimizer keeps from call to call.

A packing is read only for the weight that it was made of, as it was then: address, shape and version counter are compared at
each use. A write through .data raises no counter. So a sample of the weight's elements is compared too, and a call whose
weight has changed without notice is refused.
"""
from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from ..errors import InvalidArgument

_LEAST_RUNS = 64  # of elements in a sample; a stack has one a matrix at least
_RUN = 16  # elements, a line of the cache


class Weight:
    """A parameter and its packings, by their forms."""

    def __init__(self, parameter: Tensor, name: str) -> None:
        self.parameter = parameter
        self.name = name
        self.address = parameter.data_ptr()  # when it was found
        self._buffers: dict[str, Tensor] = {}
        self._made: set[str] = set()  # forms that are good
        self._version = -1
        self._sample: tuple[Tensor, Tensor] | None = None  # places, and the weight's bits there when its first packing was made
        self._generator = torch.Generator().manual_seed(parameter.numel())
        self._lock = threading.RLock()  # of what is good: a thread that drops waits for one that packs

    def is_read_by(self, tensor: Tensor) -> bool:
        """Whether the tensor is the whole parameter where it lies now."""
        own = self.parameter
        return tensor.data_ptr() == own.data_ptr() and tensor.shape == own.shape and tensor.dtype == own.dtype and tensor.is_contiguous()

    @property
    def num_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def drop(self) -> None:
        """The next uses pack anew."""
        with self._lock:
            self._made.clear()
            self._sample = None

    def forget(self) -> None:
        """Likewise, and their memory goes."""
        with self._lock:
            self.drop()
            self._buffers.clear()

    @torch.no_grad()
    def check(self) -> None:
        """Drops what the version counter says is stale. InvalidArgument where only the sample shows it."""
        with self._lock:
            sample = self._sample
            if self.parameter._version != self._version:
                self.drop()
                self._version = self.parameter._version
                return
        if sample is not None and not torch.equal(self._bits(sample[0]), sample[1]):
            raise InvalidArgument(f"[AdamW] {self.name} {list(self.parameter.shape)}: expected the weight that was packed, got one that has changed "
                                  "without its version counter; call optimizer.refresh() after a write through .data, NumPy or a fused optimizer")

    @torch.no_grad()
    def packing(self, form: str, size: int, pack: Callable[[int], None]) -> Tensor:
        """After check(). One thread packs, and others wait for it. A buffer in use may be packed once more, with equal bits."""
        with self._lock:
            buffer = self._buffers.get(form)
            if buffer is None:
                buffer = self._buffers[form] = torch.empty(size, dtype=torch.uint8)
            if form not in self._made:
                if self._sample is None:
                    places = self._draw()
                    self._sample = places, self._bits(places)
                pack(buffer.data_ptr())
                self._made.add(form)
            return buffer

    def _draw(self) -> Tensor:
        """Runs of elements, one anywhere in each of equal segments; other ones each time."""
        count, own = self.parameter.numel(), self.parameter
        runs = max(_LEAST_RUNS, own.numel() // (own.shape[-1] * own.shape[-2]))
        if count <= runs * _RUN:
            return torch.arange(count)
        segment = count // runs
        starts = torch.arange(runs) * segment + torch.randint(segment - _RUN + 1, (runs,), generator=self._generator)
        return (starts[:, None] + torch.arange(_RUN)).view(-1)

    def _bits(self, places: Tensor) -> Tensor:
        return self.parameter.detach().view(-1).view(torch.int32)[places]


class Store:
    """The weights of one optimizer. Operators find it for as long as it lives."""

    def __init__(self) -> None:
        self._weights: dict[int, Weight] = {}  # by address
        _STORES.add(self)

    def watch(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """These parameters and no others, where they lie now. Packings of those that were there stay good."""
        before = {id(weight.parameter): weight for weight in self._weights.values()}
        self._weights = {}
        for name, parameter in parameters:
            if parameter.dim() < 2 or parameter.numel() == 0 or parameter.is_inference():
                continue
            address, known = parameter.data_ptr(), before.get(id(parameter))
            self._weights[address] = known if known is not None and known.address == address else Weight(parameter, name)

    def find(self, tensor: Tensor) -> Weight | None:
        weight = self._weights.get(tensor.data_ptr())
        return weight if weight is not None and weight.is_read_by(tensor) else None

    def drop(self) -> None:
        for weight in self._weights.values():
            weight.drop()

    def forget(self, parameters: Iterable[Tensor]) -> None:
        forgotten = {id(parameter) for parameter in parameters}
        for weight in self._weights.values():
            if id(weight.parameter) in forgotten:
                weight.forget()

    @property
    def num_bytes(self) -> int:
        return sum(weight.num_bytes for weight in self._weights.values())


_STORES: weakref.WeakSet[Store] = weakref.WeakSet()


def find(tensors: Sequence[Tensor | None]) -> dict[int, Weight]:
    """The weights among operands whose packings are kept, by place."""
    found: dict[int, Weight] = {}
    for store in _STORES:
        for place, tensor in enumerate(tensors):
            if tensor is not None and tensor.dim() > 1 and (weight := store.find(tensor)) is not None:
                weight.check()
                found[place] = weight
    return found


def forget(parameters: Iterable[Tensor]) -> None:
    """Packings of these parameters, whoever keeps them."""
    listed = list(parameters)
    for store in _STORES:
        store.forget(listed)
