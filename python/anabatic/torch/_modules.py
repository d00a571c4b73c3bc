# SPDX-License-Identifier: Apache-2.0
"""Norms, MLPs and heads whose class is swapped for a subclass of it.

A subclass is named after what it adds and after its base, "Norm:package/module:Base", and is found here under that name:
pickle and torch.save store no more than it, and a new process makes the same class. Its __name__ is that of the base, since
others look modules up by it.
"""
from __future__ import annotations

import importlib
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from . import _proof, ops

# Activations of operators, by what transformers and torch call them.
ACTIVATIONS = {"SiLU": "silu", "SiLUActivation": "silu"}
_EPSILONS = ("variance_epsilon", "eps", "epsilon")
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def activation(module: nn.Module) -> str | None:
    """The operators' name of a module's activation, or None."""
    return ACTIVATIONS.get(type(getattr(module, "act_fn", None)).__name__)


class Swapped:
    """What a swapped class adds."""

    _anabatic_base: type[nn.Module]


class Norm(Swapped):
    """A norm by root mean square whose result is as wide as its weight, as in Llama."""

    _offset = 0.0
    _widens = True
    weight: Tensor

    def forward(self, x: Tensor | None = None, **options: Any) -> Tensor:
        if x is None or options:
            old: Tensor = self._anabatic_base.forward(self, *(() if x is None else (x,)), **options)  # type: ignore[arg-type]
            return old
        weight = self.weight
        if self._widens and x.dtype != weight.dtype:
            x = x.to(torch.promote_types(x.dtype, weight.dtype))
        return ops.rms_norm(x, weight, epsilon(self), offset=self._offset)


class NormLikeInput(Norm):
    """Its result has its input's type, as in gpt_oss."""

    _widens = False


class NormFromOne(Norm):
    """Its weight is what is added to 1, as in Gemma."""

    _offset = 1.0


class NormFromOneLikeInput(NormFromOne):
    """Both."""

    _widens = False


class Mlp(Swapped):
    """down(activation(gate(x)) * up(x)). Where one of the three is no plain layer now, the module computes as before."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: Tensor | None = None, **options: Any) -> Tensor:
        if x is None or options or any(not_plain(layer) for layer in (self.gate_proj, self.up_proj, self.down_proj)):
            old: Tensor = self._anabatic_base.forward(self, *(() if x is None else (x,)), **options)  # type: ignore[arg-type]
            return old
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))  # as the layers themselves do
        kind = activation(self)  # type: ignore[arg-type]
        assert kind is not None  # as it was proved
        gate, up, down = (cast(Tensor, layer.weight) for layer in (self.gate_proj, self.up_proj, self.down_proj))
        return ops.gated_mlp(x, gate, up, down, activation=kind)


class Head(Swapped):
    """A head that hands its input out while the loss is to be made from it."""

    def forward(self, x: Tensor) -> Tensor:
        handover = self.__dict__.get("_anabatic_handover")
        if handover is not None and handover.is_open:
            handover.given = x
            return x
        old: Tensor = self._anabatic_base.forward(self, x)  # type: ignore[arg-type]
        return old


_KINDS: dict[str, type[Swapped]] = {kind.__name__: kind for kind in (Norm, NormLikeInput, NormFromOne, NormFromOneLikeInput, Mlp, Head)}


_MADE: dict[str, type[nn.Module]] = {}  # one class a name, or pickle would refuse it


def _subclass(kind: type[Swapped], base: type[nn.Module]) -> type[nn.Module]:
    name = ":".join((kind.__name__, base.__module__.replace(".", "/"), base.__qualname__.replace(".", "/")))
    if name not in _MADE or _MADE[name].__dict__["_anabatic_base"] is not base:
        fields = {"__module__": __name__, "__qualname__": name, "__doc__": base.__doc__, "_anabatic_base": base}
        _MADE[name] = type(base.__name__, (kind, base), fields)
    return _MADE[name]


def __getattr__(name: str) -> type[nn.Module]:
    """The class of a stored module. Called once a name is not found."""
    kind, _, rest = name.partition(":")
    module, _, path = rest.partition(":")
    if kind not in _KINDS or not path:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base: Any = importlib.import_module(module.replace("/", "."))
    for part in path.split("/"):
        base = getattr(base, part)
    return _subclass(_KINDS[kind], base)


def swap(module: nn.Module, kind: type[Swapped]) -> None:
    module.__class__ = _subclass(kind, type(module))


def swap_back(module: nn.Module) -> None:
    module.__class__ = base_of(module)


def is_swapped(module: object, kind: type[Swapped] = Swapped) -> bool:
    return "_anabatic_base" in type(module).__dict__ and isinstance(module, kind)


def base_of(module: nn.Module) -> type[nn.Module]:
    found: type[nn.Module] = type(module).__dict__.get("_anabatic_base", type(module))
    return found


def can_swap(module: nn.Module) -> str:
    """Why the class of a module has to stay, or ""."""
    base = base_of(module)
    if parametrize.is_parametrized(module):
        return "its weights are parametrized"
    if "forward" in module.__dict__:
        return "its forward was replaced"
    found: Any = None
    try:
        found = importlib.import_module(base.__module__)
        for part in base.__qualname__.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        pass
    return "" if found is base else f"its class {base.__qualname__} is not found under its name, so it could not be stored"


def not_plain(layer: nn.Module) -> str:
    """Why a linear layer is not just its weight, or ""."""
    if type(layer) is not nn.Linear:
        return f"is a {type(layer).__module__.partition('.')[0]} {type(layer).__name__}"
    if layer.bias is not None:
        return "has a bias"
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        return "has hooks"
    if "forward" in layer.__dict__:
        return "has a forward of its own"
    return ""


def not_plain_head(head: nn.Module) -> str:
    """The same of a head, whose class may be swapped already."""
    if not is_swapped(head, Head):
        return not_plain(head) or can_swap(head)
    if base_of(head) is not nn.Linear or head.bias is not None:
        return "is not just a weight"
    return "has hooks" if head._forward_hooks or head._forward_pre_hooks or head._backward_hooks or head._backward_pre_hooks else ""


def epsilon(module: Any) -> float:
    for name in _EPSILONS:
        value = module.__dict__.get(name)
        if value is not None:
            return float(value)
    return float(torch.finfo(torch.float32).eps)  # what torch.nn.RMSNorm takes for None, in bfloat16 too


def is_norm(module: nn.Module) -> bool:
    """Whether a module may be a norm by root mean square. What it computes is for the proof to say."""
    return base_of(module).__name__.endswith("RMSNorm")


def is_mlp(module: nn.Module) -> bool:
    return all(isinstance(module._modules.get(name), nn.Module) for name in _PROJECTIONS)


def num_chosen(config: Any) -> int:
    """How many experts a token goes to, as a config says; 1 if it does not."""
    for name in ("num_experts_per_tok", "moe_topk", "moe_k", "top_k", "num_selected_experts"):
        found = getattr(config, name, None)
        if isinstance(found, int):
            return found
    return 1


def is_list_of_experts(module: nn.Module, name: str) -> bool:
    """Experts that are modules of their own, as before transformers 5."""
    return isinstance(module, nn.ModuleList) and len(module) > 1 and (name.endswith("experts") or all(is_mlp(child) for child in module))


def is_stack_of_experts(module: nn.Module) -> bool:
    """Experts as parameters [E, ., .], with a forward of their own."""
    return "Expert" in type(module).__name__ and any(value is not None and value.ndim == 3 for value in module._parameters.values())


def norm_refusal(module: nn.Module) -> str:
    """Why no operator can do a norm, before it is tried; or ""."""
    weight = module._parameters.get("weight")
    if weight is None or weight.ndim != 1 or len(module._parameters) != 1 or module._modules:
        return "it has other parameters than one weight"
    if not any(name in module.__dict__ for name in _EPSILONS):
        return f"it has none of {', '.join(_EPSILONS)}"
    return can_swap(module)


def mlp_refusal(module: nn.Module) -> str:
    """Why no operator can do an MLP, before it is tried; or ""."""
    for name in _PROJECTIONS:
        why = not_plain(module._modules[name])  # type: ignore[arg-type]
        if why:
            return f"its {name} {why}"
    more = [name for name in module._modules if name not in (*_PROJECTIONS, "act_fn")]
    if more or any(value is not None for value in module._parameters.values()):
        return f"it has other parts: {', '.join([*more, *module._parameters])}"
    if activation(module) is None:
        known = ", ".join(sorted(set(ACTIVATIONS.values())))
        return f"its activation {type(getattr(module, 'act_fn', None)).__name__} is not one of: {known}"
    return can_swap(module)


def prove_norm(module: nn.Module) -> tuple[type[Swapped] | None, str]:
    """The kind that computes what a norm computes, or None with the reason."""
    why = ""
    for kind in (Norm, NormLikeInput, NormFromOne, NormFromOneLikeInput):
        reason = _prove_norm(module, kind)
        if not reason:
            return kind, ""
        why = why or reason
    return None, why


def _prove_norm(module: nn.Module, kind: type[Swapped]) -> str:
    weight: Any = module.weight
    width = weight.shape[0]
    seed = _proof.normal((2, 3, width), 1)
    for size in (1.0, 1e-3, 1e3):  # the smaller one is about epsilon, the larger one makes it vanish
        rows = _proof.normal((2, 3, width), 0) * size
        want = _run_module(module, None, rows, seed, _proof.REFERENCE)[0]
        for run in _proof.runs(weight.dtype):
            got, dtype = _run_module(module, kind, rows, seed, run)
            # A weight, its square's sum, the root, the product, and the result.
            why = _proof.difference(got, want, run, 5, width)
            expected = _run_module(module, None, rows, seed, run)[1]
            if why or dtype != expected:
                return why or f"in {run} its result would be {dtype}, not {expected}"
    return ""


def prove_mlp(module: nn.Module) -> tuple[type[Swapped] | None, str]:
    """Mlp where it computes what a module computes, or None with the reason."""
    module = _narrow(module)
    gate: Any = module.gate_proj
    width = gate.in_features
    seed = _proof.normal((2, 3, width), 1)
    typical = float((_proof.normal((6, width), 0) @ gate.weight.detach().float().T).square().mean().sqrt())
    for size in (1.0, 20.0 / max(typical, 1e-6)):  # the larger one takes the gate to where a limit would be seen
        rows = _proof.normal((2, 3, width), 0) * size
        want = _run_module(module, None, rows, seed, _proof.REFERENCE)[0]
        for run in _proof.runs(gate.weight.dtype):
            got, dtype = _run_module(module, Mlp, rows, seed, run)
            # The input, three weights, two products, the activation, its product with the other, and the result.
            why = _proof.difference(got, want, run, 9, max(width, gate.weight.shape[0]))
            expected = _run_module(module, None, rows, seed, run)[1]
            if why or dtype != expected:
                return None, why or f"in {run} its result would be {dtype}, not {expected}"
    return Mlp, ""


def _narrow(module: nn.Module) -> nn.Module:
    """A shadow of an MLP with at most 1024 of its hidden columns: what is proved costs little for large models too."""
    shadow: Any = _proof.Shadow()(module)
    rows = shadow.gate_proj.weight.shape[0]
    if rows > 1024:
        picked = torch.linspace(0, rows - 1, 1024).long()
        for name in _PROJECTIONS:
            layer = getattr(shadow, name)
            weight = layer.weight.detach()
            layer.weight = nn.Parameter(weight[:, picked] if name == "down_proj" else weight[picked])
    return shadow  # type: ignore[no-any-return]


def _run_module(module: nn.Module, kind: type[Swapped] | None, rows: Tensor, seed: Tensor, run: _proof.Run) -> tuple[_proof.Result, torch.dtype]:
    shadow = _proof.Shadow(run.parameters)(module)
    if kind is not None:
        swap(shadow, kind)
    x = rows.to(run.inputs, copy=True).requires_grad_()
    leaves = {"its input": x, **{name: value for name, value in shadow.named_parameters()}}
    with run.context():
        result = _proof.measure(lambda: shadow(x), leaves, seed)
    return result, result.output.dtype
