# SPDX-License-Identifier: Apache-2.0
"""Attention under a boolean mask whose values are known only when it runs.

Where each row of the mask is one range of keys, and ranges never go back, the library computes. Otherwise torch does, in the
same place, so the result is right for every mask. `calls` counts both.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import Unsupported
from ._mask import ranges_of

_LIBRARY = torch.library.Library("anabatic", "FRAGMENT")  # noqa: TOR901
_LIBRARY.define("mask_ranges(Tensor mask) -> (Tensor, Tensor)")
_LIBRARY.define("masked_attention(Tensor q, Tensor k, Tensor v, Tensor mask, Tensor key_begin, Tensor key_end, float scale, "
                'str products="", int needs=7) -> (Tensor, Tensor)')
_LIBRARY.define("masked_attention_backward(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor mask, Tensor key_begin, Tensor key_end, "
                "Tensor output, Tensor saved, float scale, str products, int needs) -> (Tensor, Tensor, Tensor)")

calls = {"ours": 0, "torch": 0}


def _ranges(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Begin and end of each row [B, S], relative to the sequence; -1 everywhere where the mask is something else."""
    shape = (mask.shape[0], mask.shape[2])
    found = ranges_of(mask)
    if found is None:
        return torch.full(shape, -1, dtype=torch.int32), torch.full(shape, -1, dtype=torch.int32)
    # An operator's outputs are its own memory, as large as its fake says.
    return found[0].expand(shape).clone(), found[1].expand(shape).clone()


def _is_range(begin: Tensor) -> bool:
    return begin.numel() == 0 or int(begin[0, 0]) >= 0


def _rows(x: Tensor) -> Tensor:
    """[B, heads, S, width] as [B * S, heads * width]."""
    return x.transpose(1, 2).reshape(x.shape[0] * x.shape[2], x.shape[1] * x.shape[3])


def _operands(q: Tensor, k: Tensor, v: Tensor, begin: Tensor, end: Tensor, scale: float, products: str) -> tuple[Any, ...]:
    batch, heads, _, _ = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    first = torch.arange(batch, dtype=torch.int32, device=begin.device)[:, None] * keys
    return (_rows(q), _rows(k), _rows(v), (begin + first).view(-1), (end + first).view(-1), None, heads, kv_heads, scale, 0, products)


def _by_torch(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Rows, as the library has them."""
    with torch.autocast("cpu", enabled=False):
        out = functional.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return _rows(out)


def _fake(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, begin: Tensor, end: Tensor, scale: float, products: str = "",
          needs: int = 7) -> tuple[Tensor, Tensor]:
    out, saved = torch.ops.anabatic.attention(*_operands(q, k, v, begin, end, scale, products), needs)
    return out, saved


def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, begin: Tensor, end: Tensor, scale: float, products: str = "",
             needs: int = 7) -> tuple[Tensor, Tensor]:
    if _is_range(begin):
        calls["ours"] += 1
        return _fake(q, k, v, mask, begin, end, scale, products, needs)
    calls["torch"] += 1
    out = _by_torch(q, k, v, mask, scale)
    # The buffer has the size that was promised, so that compiled code finds what it expects.
    meta = [t.to("meta") for t in (q, k, v, mask, begin, end)]
    size = torch.ops.anabatic.masked_attention(*meta, scale, products, needs)[1].shape if needs else (0,)
    return out.contiguous(), torch.zeros(size, dtype=torch.uint8)


def _backward(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, begin: Tensor, end: Tensor, output: Tensor, saved: Tensor,
              scale: float, products: str, needs: int) -> tuple[Tensor, Tensor, Tensor]:
    inputs = (q, k, v)
    if _is_range(begin):
        made = torch.ops.anabatic.attention_backward(*_operands(q, k, v, begin, end, scale, products), [output], saved, [gradient], needs, 7 & needs)
        found = iter(made)
        rows = [next(found) if needs >> place & 1 else None for place in range(3)]
        dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) if g is None else
                      g.view(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2).contiguous() for g, x in zip(rows, inputs))
        return dq, dk, dv
    return _gradients(gradient, q, k, v, mask, scale)


def _gradients(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Written out, in float32: autograd does not record inside an operator. Queries of one key head are a group."""
    batch, heads, length, _ = q.shape
    kv_heads = k.shape[1]
    grouped = [x.float().unflatten(1, (kv_heads, heads // kv_heads)) for x in (q, gradient.view(batch, length, heads, -1).transpose(1, 2))]
    query, upstream = grouped
    key, value = k.float()[:, :, None], v.float()[:, :, None]
    whole = mask[(None,) * (4 - mask.dim())].expand(batch, 1, length, k.shape[2])[:, :, None]
    scores = (query @ key.transpose(-1, -2) * scale).masked_fill(~whole, float("-inf"))
    weights = scores.softmax(-1).masked_fill(~whole, 0.0)  # a row without keys is zero
    down = upstream @ value.transpose(-1, -2)
    down = weights * (down - (down * weights).sum(-1, keepdim=True)) * scale
    dq = (down @ key).flatten(1, 2)
    dk = (down.transpose(-1, -2) @ query).sum(2)
    dv = (weights.transpose(-1, -2) @ upstream).sum(2)
    return dq.to(q.dtype).contiguous(), dk.to(k.dtype).contiguous(), dv.to(v.dtype).contiguous()


def _backward_fake(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.rest = (*inputs[6:], *("", 7)[len(inputs) - 7:])
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[:6], *output)


def _differentiate(ctx: Any, gradient: Tensor | None, _: Any) -> tuple[Any, ...]:
    if gradient is None:
        return (None,) * 9
    made = torch.ops.anabatic.masked_attention_backward(gradient, *ctx.saved_tensors, *ctx.rest)
    return (*(g if needed else None for g, needed in zip(made, ctx.needs_input_grad)), *(None,) * 6)


def _cast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, begin: Tensor, end: Tensor, scale: float, products: str = "",
          needs: int = 7) -> tuple[Tensor, Tensor]:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        to = torch.get_autocast_dtype("cpu")
        if to != torch.bfloat16:
            raise Unsupported(f"[masked_attention] expected autocast to bfloat16, got {to}")
        return torch.ops.anabatic.masked_attention(  # type: ignore[no-any-return]
            q.to(to), k.to(to), v.to(to), mask, begin, end, scale, products or "bf16", needs)


def _refuse(*_: Any) -> None:
    raise Unsupported("[masked_attention] expected first derivatives alone, got a second one, which this operator does not have")


_LIBRARY.impl("mask_ranges", _ranges, "CPU")
_LIBRARY.impl("masked_attention", _forward, "CPU")
_LIBRARY.impl("masked_attention_backward", _backward, "CPU")
_LIBRARY.impl("masked_attention", _cast, "AutocastCPU")
torch.library.register_fake("anabatic::mask_ranges", lambda mask: tuple(
    mask.new_empty((mask.shape[0], mask.shape[2]), dtype=torch.int32) for _ in range(2)), lib=_LIBRARY)
torch.library.register_fake("anabatic::masked_attention", _fake, lib=_LIBRARY)
torch.library.register_fake("anabatic::masked_attention_backward", _backward_fake, lib=_LIBRARY)
torch.library.register_autograd("anabatic::masked_attention", _differentiate, setup_context=_setup, lib=_LIBRARY)
torch.library.register_autograd("anabatic::masked_attention_backward", _refuse, lib=_LIBRARY)


def mask_ranges(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Of a boolean mask [B, 1, S, keys]: begin and end of each row's range, int32 [B, S]; all -1 if a row is no range."""
    begin, end = torch.ops.anabatic.mask_ranges(mask)
    return begin, end


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, key_begin: Tensor, key_end: Tensor, *, scale: float) -> Tensor:
    """Softmax attention under a mask that broadcasts to [B, heads, S, keys], with its ranges; [B, S, heads, width of v]."""
    needs = sum(1 << place for place, x in enumerate((q, k, v)) if x.requires_grad) if torch.is_grad_enabled() else 0
    out, _ = torch.ops.anabatic.masked_attention(q, k, v, mask, key_begin, key_end, scale, "", needs)
    return out.view(q.shape[0], q.shape[2], q.shape[1], v.shape[3])  # type: ignore[no-any-return]
