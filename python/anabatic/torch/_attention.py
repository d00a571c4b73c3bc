# SPDX-License-Identifier: Apache-2.0
"""Attention through the registries of transformers: one for the function, one for the mask.

The mask is the boolean one of sdpa. Once a step it becomes a range of keys for each row; where a row sees no range, and for
what the operator cannot do, the call goes to PyTorch and is counted.
"""
from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from . import _proof, ops
from ._mask import Ranges, ranges_of
from ._masked import mask_ranges, masked_attention
from ._registry import NAME
from ._report import count_call

_DTYPES = (torch.float32, torch.bfloat16)


def mask(*arguments: Any, **options: Any) -> Tensor | None:
    """What transformers' registry of masks holds: None for plain causal attention, else bool [B, 1, S, S]."""
    made: Tensor | None = sdpa_mask(*arguments, **options)
    probe = _active_probe()
    if probe is not None:
        probe.remember_mask(made, arguments, options)
    return made


def forward(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
            scaling: float | None = None, is_causal: bool | None = None, **options: Any) -> tuple[Tensor, Tensor | None]:
    """What transformers' registry holds: query [B, heads, S, width] -> [B, S, heads, width of value]."""
    probe = _active_probe()
    if probe is not None:
        return probe.compare(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **options)
    why = _refusal(module, query, key, value, attention_mask, dropout, options)
    sinks = options.get("s_aux")
    if torch.compiler.is_compiling() and attention_mask is not None and sinks is None and not why:
        # What kind of mask it is shows when the graph runs.
        scale = query.shape[-1]**-0.5 if scaling is None else scaling
        return masked_attention(query, key, value, attention_mask, *mask_ranges(attention_mask), scale=scale), None
    ranges = None if why else _ranges(module, query, attention_mask, is_causal)
    if ranges is None:
        count_call(module, why or "a row of the mask is no range of keys")
        return _by_torch(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **options)
    return _by_operator(query, key, value, ranges, sinks, scaling), None


def _by_operator(query: Tensor, key: Tensor, value: Tensor, ranges: Ranges, sinks: Tensor | None, scale: float | None) -> Tensor:
    if torch.is_autocast_enabled("cpu"):
        # The rotation leaves query and key in fp32, and value is in bf16.
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    return ops.attention(query, key, value, *ranges, sinks=sinks, scale=scale)


def _refusal(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float,
             options: dict[str, Any]) -> str:
    """Why the operator cannot do a call, or ""."""
    if dropout:
        return "dropout"
    for name, text in (("softcap", "a soft cap"), ("position_bias", "a bias of positions"), ("output_attentions", "output_attentions")):
        if options.get(name) is not None and options[name] is not False:
            return text
    if key.shape[2] != query.shape[2]:
        return "keys of a cache"
    if attention_mask is not None and (attention_mask.dtype != torch.bool or attention_mask.ndim != 4 or attention_mask.shape[1] != 1
                                       or attention_mask.shape[2:] != (query.shape[2], key.shape[2])):
        return "a mask that is not bool [B, 1, S, S]"
    if query.dtype not in _DTYPES or value.dtype not in _DTYPES or query.device.type != "cpu":
        return f"{str(query.dtype).removeprefix('torch.')} on {query.device.type}"
    return ""


def _by_torch(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
              **options: Any) -> tuple[Tensor, Tensor | None]:
    """sdpa; the model's own function for what sdpa would refuse or drop without a word."""
    own = getattr(sys.modules.get(type(module).__module__), "eager_attention_forward", None)
    if own is not None and any(options.get(name) is not None for name in ("s_aux", "softcap")):
        if attention_mask is None and query.shape[2] > 1:
            attention_mask = _triangle(query.shape[2], key.shape[2])
        if attention_mask is not None and attention_mask.dtype == torch.bool:
            attention_mask = torch.zeros(attention_mask.shape, dtype=query.dtype).masked_fill(~attention_mask, torch.finfo(query.dtype).min)
        found: tuple[Tensor, Tensor | None] = own(module, query, key, value, attention_mask, **options)
        return found
    result: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    return result


def _triangle(rows: int, keys: int) -> Tensor:
    return torch.ones(rows, keys, dtype=torch.bool).tril()[None, None]


def _ranges(module: nn.Module, query: Tensor, attention_mask: Tensor | None, is_causal: bool | None) -> Ranges | None:
    batch, rows = query.shape[0], query.shape[2]
    if attention_mask is None:
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        begin, end = _plain(rows, bool(causal)) if not torch.compiler.is_compiling() else _make_plain(rows, bool(causal))
        return begin.expand(batch, rows), end.expand(batch, rows)
    found = _of_mask(attention_mask) if not torch.compiler.is_compiling() else _outside_of_graph(attention_mask)
    if found is None:
        return None
    return found[0].expand(batch, rows), found[1].expand(batch, rows)


def _make_plain(rows: int, causal: bool) -> Ranges:
    begin = torch.zeros(1, rows, dtype=torch.int32)
    end = torch.arange(1, rows + 1, dtype=torch.int32)[None] if causal else torch.full((1, rows), rows, dtype=torch.int32)
    return begin, end


@functools.lru_cache(maxsize=16)
def _plain(rows: int, causal: bool) -> Ranges:
    with torch.inference_mode(False):  # what inference mode makes cannot be saved for a backward
        return _make_plain(rows, causal)


def _of_mask(attention_mask: Tensor) -> Ranges | None:
    """The ranges of a mask, once a mask: layers share one tensor, and recomputed layers get it too."""
    version = None if attention_mask.is_inference() else attention_mask._version
    held = attention_mask.__dict__.get("_anabatic_ranges")
    if held is None or held[0] != version:
        held = (version, ranges_of(attention_mask))
        attention_mask._anabatic_ranges = held  # type: ignore[attr-defined]
    found: Ranges | None = held[1]
    return found


@torch.compiler.disable
def _outside_of_graph(attention_mask: Tensor) -> Ranges | None:
    return _of_mask(attention_mask)


@dataclass
class Seen:
    """An attention module that a small run came by."""

    heads: int
    width: int  # of query and key, and of value
    refusals: list[str] = field(default_factory=list)


class Enough(Exception):
    """A shadow has shown all that there is to see."""


class Probe:
    """Compares the operator with what a model used before, call by call, while a shadow of the model runs.

    The shadow goes on with the old result, so that one difference does not become another's.
    """

    def __init__(self, before: str | None) -> None:
        self._before = before or "sdpa"
        self._masks: list[tuple[Tensor | None, Tensor | None]] = []
        self._done: set[tuple[Any, bool]] = set()  # kinds of calls, and whether they had a mask
        self.ends_early = False  # set where the shadow gets padding: raises Enough once each kind of call was seen with a mask
        self.seen: dict[nn.Module, Seen] = {}

    def remember_mask(self, made: Tensor | None, arguments: Any, options: dict[str, Any]) -> None:
        old = ALL_MASK_ATTENTION_FUNCTIONS[self._before](*arguments, **options) if self._before in ALL_MASK_ATTENTION_FUNCTIONS else None
        self._masks.append((made, old))

    def compare(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
                **options: Any) -> tuple[Tensor, Tensor | None]:
        old_mask = next((old for mine, old in reversed(self._masks) if mine is attention_mask), attention_mask)
        record = self.seen.setdefault(module, Seen(query.shape[1], query.shape[3] + value.shape[3]))
        own = getattr(sys.modules.get(type(module).__module__), "eager_attention_forward", None)
        old: Callable[..., Any] | None = ALL_ATTENTION_FUNCTIONS.get(self._before) or own
        if old is None:
            raise RuntimeError(f"the attention {self._before} is not found")
        why = _refusal(module, query, key, value, attention_mask, 0.0, options)
        if self.ends_early and attention_mask is None:
            why = "padding does not reach it as a mask"
        sinks = options.get("s_aux")
        ranges = None if why else _ranges(module, query, attention_mask, options.get("is_causal"))
        if why or ranges is None:
            record.refusals.append(why or "a row of its mask is no range of keys")
        else:
            kind = (type(module), query.shape, key.shape, value.shape, sinks is None, options.get("sliding_window"), query.dtype,
                    options.get("scaling"))
            if (kind, attention_mask is not None) not in self._done:
                self._done.add((kind, attention_mask is not None))
                why = self._prove(module, old, (query, key, value), old_mask, ranges, sinks, options)
                if why:
                    record.refusals.append(why)
        if self.ends_early and all((kind, True) in self._done for kind, _ in self._done):
            raise Enough
        result: tuple[Tensor, Tensor | None] = old(module, query, key, value, old_mask, **options)
        return result

    def _prove(self, module: nn.Module, old: Callable[..., Any], operands: tuple[Tensor, Tensor, Tensor], old_mask: Tensor | None,
               ranges: Ranges, sinks: Tensor | None, options: dict[str, Any]) -> str:
        query, key, value = operands
        seed = _proof.normal((query.shape[0], query.shape[2], query.shape[1], value.shape[3]), 1)
        empty = (ranges[1] <= ranges[0])[:, :, None, None]  # the result of a row that sees nothing is nobody's business
        seed = seed.masked_fill(empty, 0.0)

        def run(kind: _proof.Run, is_old: bool) -> _proof.Result:
            q, k, v = (t.detach().to(kind.inputs, copy=True).requires_grad_() for t in operands)
            leaves = {"query": q, "key": k, "value": v, **({} if sinks is None else {"sinks": sinks})}

            def call() -> Tensor:
                if is_old:
                    additive = old_mask if old_mask is None or old_mask.dtype == torch.bool else old_mask.to(kind.inputs)
                    out: Tensor = old(module, q, k, v, additive, **options)[0]
                else:
                    out = _by_operator(q, k, v, ranges, sinks, options.get("scaling"))
                return out.masked_fill(empty, 0.0)

            with kind.context():
                return _proof.measure(call, leaves, seed)

        want = run(_proof.Run(torch.float32), True)
        for kind in (_proof.Run(torch.float32), _proof.Run(torch.bfloat16), _proof.Run(torch.float32, None, torch.bfloat16)):
            peer = None
            if kind.dtype == torch.bfloat16:
                with contextlib.suppress(RuntimeError):  # some models' own functions cannot mix bf16 with fp32 sinks
                    peer = run(kind, True)
            # Query, key, value, scores, shares, and the result.
            why = _proof.difference(run(kind, False), want, kind, 6, max(query.shape[3], key.shape[2]), peer)
            if why:
                return why
        return ""


_probe: tuple[Probe, int] | None = None  # with its thread: others may train meanwhile


def _active_probe() -> Probe | None:
    if _probe is None or _probe[1] != threading.get_ident():
        return None
    return _probe[0]


@contextlib.contextmanager
def probing(probe: Probe) -> Iterator[None]:
    global _probe
    _probe = (probe, threading.get_ident())
    try:
        yield
    finally:
        _probe = None


AttentionInterface.register(NAME, forward)
# Without this one transformers makes no mask at all, and padding and documents leak without a word.
AttentionMaskInterface.register(NAME, mask)
