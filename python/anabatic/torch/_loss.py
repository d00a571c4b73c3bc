# SPDX-License-Identifier: Apache-2.0
"""Head and loss as one operator.

In training with labels the head hands its input out, and the model's loss function makes loss and gradients from it. The
state is an object on the model; hooks and loss are its bound methods, so that deep copies have their own.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import InternalError, Unsupported
from . import _modules, _proof, ops

_NAME = "_anabatic_loss"


class Handover:
    """Whether a head hands its input out now, and what it gave."""

    def __init__(self) -> None:
        self.is_open = False
        self.given: Tensor | None = None


def head_of(model: Any) -> nn.Module | None:
    """The layer under a model's head, also where an adapter wraps it."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    while head is not None and isinstance(getattr(head, "base_layer", None), nn.Module):
        head = head.base_layer
    return head


class FusedLoss:
    """The loss of a model, with its head."""

    def __init__(self, model: Any, always: bool = False) -> None:
        head: Any = head_of(model)
        self._head = head
        self._handover = Handover()
        self._old = model.loss_function
        self._had_own = "_loss_function" in model.__dict__
        self._names = list(inspect.signature(type(model).forward).parameters)[1:]
        self._always = always  # also outside of training: for the proof
        self.has_run = False
        if not _modules.is_swapped(self._head, _modules.Head):
            _modules.swap(self._head, _modules.Head)
        self._head._anabatic_handover = self._handover
        model.loss_function = self.loss
        self._hooks = [model.register_forward_pre_hook(self.before, with_kwargs=True),
                       model.register_forward_hook(self.after, with_kwargs=True, always_call=True)]
        setattr(model, _NAME, self)

    def remove(self, model: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        if model.__dict__.get("_loss_function") == self.loss:
            if self._had_own:
                model.loss_function = self._old
            else:
                del model._loss_function
        if _modules.is_swapped(self._head, _modules.Head):
            _modules.swap_back(self._head)
        self._head.__dict__.pop("_anabatic_handover", None)
        delattr(model, _NAME)

    def is_current(self, model: Any) -> bool:
        """Whether the head is the one that this was made for: a model that is given more tokens gets a new one."""
        return head_of(model) is self._head

    def before(self, model: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        given = {**dict(zip(self._names, arguments)), **options}
        keep = given.get("logits_to_keep", 0)
        returns_dict = given.get("return_dict")
        self._handover.given = None
        self._handover.is_open = bool(
            ((model.training and torch.is_grad_enabled()) or self._always) and given.get("labels") is not None
            and isinstance(keep, int) and keep == 0
            and (returns_dict if returns_dict is not None else getattr(model.config, "return_dict", True))
            and model.get_output_embeddings() is self._head and not _modules.not_plain_head(self._head))

    def after(self, model: Any, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> Any:
        was_used, was_lost = not self._handover.is_open and self.has_run, self._handover.is_open and self._handover.given is not None
        self._close()
        if was_lost and output is not None:
            raise InternalError("[adapt] expected the model to ask its loss_function for the loss, got a forward that makes its own; "
                                "restore(model), then adapt without the loss")
        if was_used and hasattr(output, "items"):
            self.has_run = False
            return type(output)(**{name: value for name, value in output.items() if name != "logits"})
        self.has_run = False
        return None

    def loss(self, logits: Tensor, labels: Any = None, vocab_size: int | None = None, num_items_in_batch: Any = None,
             ignore_index: int = -100, shift_labels: Tensor | None = None, **options: Any) -> Any:
        """Takes the place of ForCausalLMLoss; what the head gave stands where logits did."""
        given = self._handover.given
        if not self._handover.is_open or given is None:
            return self._old(logits, labels, vocab_size, num_items_in_batch=num_items_in_batch, ignore_index=ignore_index,
                             shift_labels=shift_labels, **options)
        self._close()
        if logits is not given:
            raise Unsupported("[adapt] expected the loss to get what the head gave, got another tensor: the model changes its logits; "
                              "restore(model), then adapt without the loss")
        self.has_run = True
        if shift_labels is None:
            shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()
        targets = shift_labels.reshape(-1)
        if ignore_index != -100:
            targets = torch.where(targets == ignore_index, -100, targets)
        count = num_items_in_batch if num_items_in_batch is not None else (targets != -100).sum()
        weight = self._head.weight
        if torch.compiler.is_compiling():  # a value that is read breaks the graph
            return ops.linear_cross_entropy(given.reshape(-1, given.shape[-1]), weight, targets, 1.0) / count
        total = float(count)
        if total == 0 or (vocab_size is not None and vocab_size != weight.shape[0]):
            return self._old(functional.linear(given, weight), labels, vocab_size, num_items_in_batch=num_items_in_batch,
                             ignore_index=ignore_index, shift_labels=shift_labels, **options)
        return ops.linear_cross_entropy(given.reshape(-1, given.shape[-1]), weight, targets, 1.0 / total)

    def _close(self) -> None:
        self._handover.is_open = False
        self._handover.given = None


def of(model: nn.Module) -> FusedLoss | None:
    found: FusedLoss | None = model.__dict__.get(_NAME)
    return found


def refusal(model: Any) -> str:
    """Why head and loss have to stay, before they are tried; or ""."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    head = head_of(model)
    if head is None:
        return "the model has no head"
    why = _modules.not_plain_head(head)
    if why:
        return f"its head {why}"
    if getattr(model, "loss_function", None) is not ForCausalLMLoss:
        return f"its loss is {getattr(getattr(model, 'loss_function', None), '__name__', 'of another kind')}"
    return ""


def prove(rows: Tensor, head: Any, labels: Tensor, old: Callable[..., Any]) -> str:
    """Why head and loss have to stay, or "". Takes at most 1024 rows of the head: a vocabulary is no small input."""
    count, length = head.weight.shape
    picked = torch.linspace(0, count - 1, min(count, 1024)).long()
    part = head.weight.detach()[picked]
    labels = labels % len(picked)
    targets = functional.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
    scale = 1.0 / float((targets != -100).sum())

    def run(kind: _proof.Run, is_old: bool) -> _proof.Result:
        x = rows.detach().to(kind.inputs, copy=True).requires_grad_()
        weight = nn.Parameter(part if kind.parameters is None else part.to(kind.parameters))

        def call() -> Tensor:
            if is_old:
                found: Tensor = old(functional.linear(x, weight), labels, weight.shape[0])
                return found
            return ops.linear_cross_entropy(x.reshape(-1, length), weight, targets, scale)

        with kind.context():
            return _proof.measure(call, {"its input": x, "its weight": weight}, torch.ones(()))

    want = run(_proof.REFERENCE, True)
    for kind in _proof.runs(head.weight.dtype):
        # The input, the weight, the logits, their exponentials, and the sum.
        why = _proof.difference(run(kind, False), want, kind, 5, length)
        if why:
            return why
    return ""


class LossProbe(FusedLoss):
    """Proves the operator with what the head of a shadow gets, and goes on with the old loss."""

    def __init__(self, model: Any) -> None:
        model.set_output_embeddings(head_of(model))  # without its adapter: the loss is off while there is one
        super().__init__(model, always=True)
        self.reason = "the model does not ask its loss_function for the loss"

    def loss(self, logits: Tensor, labels: Tensor | None = None, vocab_size: int | None = None, **options: Any) -> Any:  # type: ignore[override]
        given = self._handover.given
        self._close()
        if given is None or labels is None:
            self.reason = "the model's head is not called for the loss"
            return self._old(logits, labels, vocab_size, **options)
        if logits is not given:
            self.reason = "the model changes its logits between head and loss"
            return logits.sum() * 0
        self.reason = prove(given, self._head, labels, self._old)
        return self._old(functional.linear(given, self._head.weight), labels, vocab_size, **options)
