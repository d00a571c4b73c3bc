# SPDX-License-Identifier: Apache-2.0
"""Experts through the registry of transformers: one operator for all that is after the router."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ExpertsInterface, _default_apply_gate, grouped_mm_experts_forward

from . import _modules, _proof, ops
from ._registry import NAME
from ._report import count_call

# What the layout flags of a module have to be. Older versions lack some, and mean these.
_LAYOUT = {
    "is_transposed": (False, "its weights are transposed"),
    "is_concatenated": (True, "its gate and up alternate"),
    "has_bias": (False, "it has biases"),
    "has_gate": (True, "it has no gate"),
    "has_post_expert_norm": (False, "it has a norm after each expert"),
}


def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What transformers' registry holds. What the operator cannot do goes to grouped_mm, and is counted."""
    why = refusal(self)
    if not why and hidden_states.ndim != 2:
        why = "its input is no matrix of tokens"
    if why:
        count_call(self, why)
        old: Tensor = grouped_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
        return old
    kind = _modules.activation(self)
    assert kind is not None  # or it is refused
    # An adapter's weights are computed by each reading.
    return ops.moe_experts(hidden_states, self.gate_up_proj, self.down_proj, top_k_index, top_k_weights, activation=kind)


def is_experts(module: nn.Module) -> bool:
    """Whether a module asks the registry, or looks as if it should."""
    return hasattr(type(module), "_apply_gate") or _modules.is_stack_of_experts(module)


def refusal(module: nn.Module) -> str:
    """Why no operator can do a module's experts, or ""."""
    if not hasattr(type(module), "_apply_gate"):
        return "it does not ask the registry of transformers"
    for flag, (expected, text) in _LAYOUT.items():
        if bool(getattr(module, flag, expected)) != expected:
            return text
    if getattr(type(module), "_apply_gate", None) is not _default_apply_gate:
        return "it has a gate of its own"
    if getattr(module, "_is_expert_parallel", False):
        return "its experts are on several ranks"
    if _modules.activation(module) is None:
        known = ", ".join(sorted(set(_modules.ACTIVATIONS.values())))
        return f"its activation {type(getattr(module, 'act_fn', None)).__name__} is not one of: {known}"
    return ""


def prove(module: Any) -> str:
    """Why a module's experts have to stay, or "". Runs a few of them, with their weights."""
    gate_up, down = module.gate_up_proj.detach(), module.down_proj.detach()
    if gate_up.ndim != 3 or down.ndim != 3 or gate_up.shape[1] != 2 * down.shape[2] or gate_up.shape[2] != down.shape[1]:
        return f"expected weights [E, 2F, H] and [E, H, F], got {list(gate_up.shape)} and {list(down.shape)}"
    total, width = gate_up.shape[0], gate_up.shape[2]
    chosen = min(_modules.num_chosen(getattr(module, "config", None)), 2, total)
    count = min(total, chosen + 2)
    picked = torch.linspace(0, total - 1, count).round().long()
    stack = (gate_up[picked], down[picked])
    generator = torch.Generator().manual_seed(2)
    index = torch.stack([torch.randperm(count, generator=generator)[:chosen] for _ in range(5)])
    shares = torch.softmax(_proof.normal((5, chosen), 3), -1)
    seed = _proof.normal((5, width), 1)
    typical = float((_proof.normal((5, width), 0) @ stack[0][0].float().T).square().mean().sqrt())
    for size in (1.0, 20.0 / max(typical, 1e-6)):  # the larger one takes the gate to where a limit would be seen
        rows = _proof.normal((5, width), 0) * size
        want = _run(module, "eager", stack, rows, index, shares, seed, _proof.REFERENCE)
        for run in _proof.runs(gate_up.dtype):
            got = _run(module, "anabatic", stack, rows, index, shares, seed, run)
            # The input, two weights, the products, the activation, its product, the share, the sum, and the result.
            why = _proof.difference(got, want, run, 9, max(width, down.shape[2]))
            if why:
                return why
            if got.output.dtype != run.inputs:
                return f"in {run} its result would be {got.output.dtype}, not {run.inputs}"
    return ""


def _run(module: nn.Module, implementation: str, stack: tuple[Tensor, Tensor], rows: Tensor, index: Tensor, shares: Tensor,
         seed: Tensor, run: _proof.Run) -> _proof.Result:
    shadow = _proof.Shadow()
    # A parametrized class computes its weights; here they are given, so its base is what runs.
    bare: Any = next(base for base in type(module).__mro__ if not base.__name__.startswith("Parametrized"))
    small: Any = bare.__new__(bare)
    small.__dict__ = {**shadow(module).__dict__}
    weights = {name: nn.Parameter(value if run.parameters is None else value.to(run.parameters))
               for name, value in zip(("gate_up_proj", "down_proj"), stack)}
    small.__dict__.update(_parameters=weights, num_experts=len(stack[0]))
    small._modules.pop("parametrizations", None)
    small.config._experts_implementation_internal = implementation
    x = rows.to(run.inputs, copy=True).requires_grad_()
    scores = shares.clone().requires_grad_()
    leaves = {"its input": x, "the router's weights": scores, **weights}
    with run.context():
        return _proof.measure(lambda: small(x, index, scores if run.autocast else scores.to(run.inputs)), leaves, seed)


ExpertsInterface.register(NAME, forward)
