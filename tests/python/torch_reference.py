# SPDX-License-Identifier: Apache-2.0
"""The operators of anabatic.torch.ops in plain torch: what they compute, and a counter of calls per operator.

`install()` puts it in place of anabatic.torch.ops, before anabatic.torch is imported.
"""
import math
import sys
from collections import Counter

import torch
from torch.nn import functional

calls = Counter()


def install():
    sys.modules["anabatic.torch.ops"] = sys.modules[__name__]


def _run_dtype(x):
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def _activation(name):
    return {"silu": functional.silu}[name]


def rms_norm(x, weight, epsilon, *, offset=0.0):
    calls["rms_norm"] += 1
    with torch.autocast("cpu", enabled=False):
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        return (wide * scale * (weight.float() + offset)).to(x.dtype)


def swiglu(gate, up):
    calls["swiglu"] += 1
    return (functional.silu(gate.float()) * up.float()).to(gate.dtype)


def gated_mlp(x, gate, up, down, *, activation="silu"):
    calls["gated_mlp"] += 1
    dtype = _run_dtype(x)
    with torch.autocast("cpu", enabled=False):
        rows = x.to(dtype)
        hidden = _activation(activation)(rows @ gate.to(dtype).T) * (rows @ up.to(dtype).T)
        return (hidden @ down.to(dtype).T).to(x.dtype)


def moe_experts(x, gate_up, down, index, weights, *, activation="silu", alpha=None, limit=None, stacks="rows", gate_bias=None, up_bias=None,
                down_bias=None):
    calls["moe_experts"] += 1
    if index.numel() and (index.min() < 0 or index.max() >= gate_up.shape[0]):
        raise ValueError(f"[moe_experts] expected an index in [0, {gate_up.shape[0]}), got {index.min()} to {index.max()}")
    dtype = _run_dtype(x)
    with torch.autocast("cpu", enabled=False):
        out = torch.zeros(x.shape, dtype=torch.float32)
        for expert, (first, second) in enumerate(zip(gate_up.unbind(0), down.unbind(0))):
            rows, slot = torch.where(index == expert)
            if not len(rows):
                out = out + (first.sum() + second.sum()).float() * 0
                continue
            if stacks == "columns":
                first, second = torch.cat([first[:, ::2], first[:, 1::2]], 1).T, second.T
            gate, up = (x[rows].to(dtype) @ first.to(dtype).T).float().chunk(2, -1)
            if gate_bias is not None:
                gate, up = gate + gate_bias[expert], up + up_bias[expert]
            if activation == "swiglu_clamped":
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
                hidden = gate * torch.sigmoid(alpha * gate) * (up + 1)
            else:
                hidden = _activation(activation)(gate) * up
            share = weights[rows, slot].float()[:, None]
            result = ((hidden * share).to(dtype) @ second.to(dtype).T).float()
            if down_bias is not None:
                result = result + down_bias[expert] * share
            out = out.index_add(0, rows, result)
        return out.to(x.dtype)


def attention(q, k, v, key_begin, key_end, *, sinks=None, window=None, scale=None):
    calls["attention"] += 1
    if not torch.compiler.is_compiling() and key_begin.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError("Inference tensors cannot be saved for backward")
    dtype = _run_dtype(v)
    with torch.autocast("cpu", enabled=False):
        groups = q.shape[1] // k.shape[1]
        keys, values = (t.to(dtype).float().repeat_interleave(groups, 1) for t in (k, v))
        scores = q.to(dtype).float() @ keys.transpose(2, 3) * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
        place = torch.arange(k.shape[2], dtype=torch.int32)
        seen = (place >= key_begin[..., None]) & (place < key_end[..., None])
        if window is not None:
            seen = seen & (place > torch.arange(q.shape[2], dtype=torch.int32)[:, None] - window)
        seen = seen[:, None]
        scores = scores.masked_fill(~seen, -1e30)
        if sinks is not None:
            scores = torch.cat([scores, sinks.float().reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], 1)], -1)
        shares = torch.softmax(scores, -1)[..., :k.shape[2]]
        return (shares.masked_fill(~seen, 0.0) @ values).to(dtype).transpose(1, 2)


def linear_cross_entropy(x, weight, labels, scale):
    calls["linear_cross_entropy"] += 1
    dtype = _run_dtype(x)
    with torch.autocast("cpu", enabled=False):
        logits = (x.to(dtype) @ weight.to(dtype).T).float()
        return functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") * scale
