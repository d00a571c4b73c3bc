# SPDX-License-Identifier: Apache-2.0
"""Experts through the registry of transformers: one operator for all that is after the router."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ExpertsInterface, _default_apply_gate, grouped_mm_experts_forward

from . import _modules, _proof, ops
from ._registry import NAME
from ._report import count_call

# What the layout flags of a module have to be. Older versions lack some, and mean these.
_LAYOUT = {
    "has_gate": (True, "it has no gate"),
    "has_post_expert_norm": (False, "it has a norm after each expert"),
}
_CLAMPED: dict[Callable[..., Any], bool] = {}  # gates of modules' own: whether they are the operator's clamped one


@dataclass(frozen=True)
class Form:
    """What a module asks of the operator."""

    activation: str
    by_columns: bool  # stacks are transposed, and gate and up alternate
    has_bias: bool
    alpha: float | None = None
    limit: float | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        biases = ("gate_up_proj_bias", "down_proj_bias") if self.has_bias else ()
        return ("gate_up_proj", "down_proj", *biases)

    def parts(self, gate_up: Tensor) -> tuple[Tensor, Tensor]:
        """Gate and up along the last dimension."""
        if self.by_columns:
            return gate_up[..., ::2], gate_up[..., 1::2]
        gate, up = gate_up.chunk(2, -1)
        return gate, up


def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What transformers' registry holds. What the operator cannot do goes to grouped_mm, and is counted."""
    form = form_of(self)
    why = form if isinstance(form, str) else "" if hidden_states.ndim == 2 else "its input is no matrix of tokens"
    if isinstance(form, str) or why:
        count_call(self, why)
        old: Tensor = grouped_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
        return old
    options: dict[str, Any] = {}
    if form.has_bias:
        gate, up = form.parts(self.gate_up_proj_bias)
        options = {"gate_bias": gate, "up_bias": up, "down_bias": self.down_proj_bias}
    if form.by_columns:
        options["stacks"] = "columns"
    if form.alpha is not None:
        options.update(alpha=form.alpha, limit=form.limit)
    # An adapter's weights are computed by each reading.
    return ops.moe_experts(hidden_states, self.gate_up_proj, self.down_proj, top_k_index, top_k_weights, activation=form.activation, **options)


def is_experts(module: nn.Module) -> bool:
    """Whether a module asks the registry, or looks as if it should."""
    return hasattr(type(module), "_apply_gate") or _modules.is_stack_of_experts(module)


def form_of(module: Any) -> Form | str:
    """What a module asks of the operator, or why no operator can do it."""
    gate = getattr(type(module), "_apply_gate", None)
    if gate is None:
        return "it does not ask the registry of transformers"
    for flag, (expected, text) in _LAYOUT.items():
        if bool(getattr(module, flag, expected)) != expected:
            return text
    if getattr(module, "_is_expert_parallel", False):
        return "its experts are on several ranks"
    by_columns = bool(getattr(module, "is_transposed", False))
    if by_columns == bool(getattr(module, "is_concatenated", True)):
        return "its weights are transposed, with gate before up" if by_columns else "its gate and up alternate by rows"
    has_bias = bool(getattr(module, "has_bias", False))
    if gate is not _default_apply_gate:
        alpha, limit = (getattr(module, name, getattr(module, f"swiglu_{name}", None)) for name in ("alpha", "limit"))
        if not isinstance(alpha, float) or not isinstance(limit, float):
            return "it has a gate of its own"
        form = Form("swiglu_clamped", by_columns, has_bias, alpha, limit)
        return form if _is_clamped(module, gate, form) else "it has a gate of its own"
    if by_columns:
        return "its weights are transposed, and its gate does not take what alternates"
    kind = _modules.activation(module)
    if kind is None:
        known = ", ".join(sorted(set(_modules.ACTIVATIONS.values())))
        return f"its activation {type(getattr(module, 'act_fn', None)).__name__} is not one of: {known}"
    return Form(kind, by_columns, has_bias)


def _is_clamped(module: Any, gate: Callable[..., Any], form: Form) -> bool:
    """Whether a gate is the clamped one, by its values from below the limits to above them."""
    if gate not in _CLAMPED:
        if torch.compiler.is_compiling():
            return False  # nothing of it belongs into the caller's graph
        assert form.alpha is not None and form.limit is not None
        one = torch.linspace(-3.0 * form.limit, 3.0 * form.limit, 41)
        wanted_gate, wanted_up = one.repeat_interleave(41), one.repeat(41)
        given = torch.stack([wanted_gate, wanted_up], -1) if form.by_columns else torch.stack([wanted_gate, wanted_up])
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            got = gate(module, given.reshape(1, -1))
            low = wanted_gate.clamp(max=form.limit)
            want = (wanted_up.clamp(-form.limit, form.limit) + 1) * low * torch.sigmoid(form.alpha * low)
        _CLAMPED[gate] = _proof.relative_error(got.reshape(-1), want) <= _proof.bound(4, 1, torch.float32, False)
    return _CLAMPED[gate]


def prove(module: Any, form: Form) -> str:
    """Why a module's experts have to stay, or "". Runs a few of them, with their weights."""
    gate_up, down = module.gate_up_proj.detach(), module.down_proj.detach()
    outputs, inputs = (2, 1) if form.by_columns else (1, 2)
    if gate_up.ndim != 3 or down.ndim != 3 or gate_up.shape[outputs] != 2 * down.shape[inputs] or gate_up.shape[inputs] != down.shape[outputs]:
        layout = "[E, H, 2F] and [E, F, H]" if form.by_columns else "[E, 2F, H] and [E, H, F]"
        return f"expected weights {layout}, got {list(gate_up.shape)} and {list(down.shape)}"
    total, width = gate_up.shape[0], gate_up.shape[inputs]
    chosen = min(_modules.num_chosen(getattr(module, "config", None)), 2, total)
    count = min(total, chosen + 2)
    picked = torch.linspace(0, total - 1, count).round().long()
    weights = {name: getattr(module, name).detach()[picked] for name in form.parameters}
    generator = torch.Generator().manual_seed(2)
    index = torch.stack([torch.randperm(count, generator=generator)[:chosen] for _ in range(5)])
    shares = torch.softmax(_proof.normal((5, chosen), 3), -1)
    seed = _proof.normal((5, width), 1)
    one = weights["gate_up_proj"][0].float()
    typical = float((_proof.normal((5, width), 0) @ (one if form.by_columns else one.T)).square().mean().sqrt())
    for size in (1.0, 20.0 / max(typical, 1e-6)):  # the larger one takes the gate to where a limit would be seen
        rows = _proof.normal((5, width), 0) * size
        want = _run(module, "eager", weights, rows, index, shares, seed, _proof.REFERENCE)
        for run in _proof.runs(gate_up.dtype):
            got = _run(module, "anabatic", weights, rows, index, shares, seed, run)
            # The input, two weights, the products, the activation, its product, the share, the sum, and the result.
            why = _proof.difference(got, want, run, 9, max(width, down.shape[inputs]))
            if why:
                return why
            if got.output.dtype != run.inputs:
                return f"in {run} its result would be {got.output.dtype}, not {run.inputs}"
    return ""


def _run(module: nn.Module, implementation: str, given: dict[str, Tensor], rows: Tensor, index: Tensor, shares: Tensor,
         seed: Tensor, run: _proof.Run) -> _proof.Result:
    shadow = _proof.Shadow()
    # A parametrized class computes its weights; here they are given, so its base is what runs.
    bare: Any = next(base for base in type(module).__mro__ if not base.__name__.startswith("Parametrized"))
    small: Any = bare.__new__(bare)
    small.__dict__ = {**shadow(module).__dict__}
    weights = {name: nn.Parameter(value if run.parameters is None else value.to(run.parameters)) for name, value in given.items()}
    small.__dict__.update(_parameters=weights, num_experts=len(given["gate_up_proj"]))
    small._modules.pop("parametrizations", None)
    small.config._experts_implementation_internal = implementation
    x = rows.to(run.inputs, copy=True).requires_grad_()
    scores = shares.clone().requires_grad_()
    leaves = {"its input": x, "the router's weights": scores, **weights}
    with run.context():
        return _proof.measure(lambda: small(x, index, scores if run.autocast else scores.to(run.inputs)), leaves, seed)


ExpertsInterface.register(NAME, forward)
