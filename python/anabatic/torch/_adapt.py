# SPDX-License-Identifier: Apache-2.0
"""One line that makes a model of transformers use our operators, and one that takes it back."""
from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from ..errors import InvalidArgument, Unsupported
from . import _memory, _modules, _packings, _proof
from ._registry import NAME, has_experts
from ._report import PARTS, AdaptReport, AdaptRow, pattern, wait_policy

_RECORD = "_anabatic"
_COUNTER = "_anabatic_calls"
_SEQUENCE = 512  # tokens of a sequence in the shares of FLOPs: attention's part grows with it


def adapt(model: nn.Module, only: str | Iterable[str] | None = None, strict: bool = False, *, keep_memory: bool = True) -> AdaptReport:
    """Makes a model use the operators of anabatic.torch, where each computes what the model's own code does.

    Before a swap stays, old and new run forward and backward on a small input with the model's weights, in fp32 and in bf16.
    Prints and returns a report: what was adapted, and why the rest was not. `only` names parts: "experts", "attention",
    "norms", "mlp", "loss". strict=True raises Unsupported, and changes nothing, if any experts stay. restore() takes it back.

    In training with labels the adapted loss leaves the output without logits. The process keeps the memory that it frees,
    see anabatic.torch.keep_memory, unless keep_memory=False or the environment says how malloc works.
    """
    parts = _parts_of(only)
    _check(model)
    work = _Work(model, parts)
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
        work.decide()
    report = work.report()
    missing = [row for row in report.rows if row.part == "experts" and not row.adapted]
    if strict and missing:
        raise Unsupported("[adapt] expected to adapt all experts, got some that stay; leave out strict=True to adapt the rest\n" + str(report))
    if not any(row.adapted for row in report.rows):
        raise Unsupported(f"[adapt] expected modules for {', '.join(parts)}, got none that can be adapted; see why\n{report}")
    work.apply()
    if keep_memory and not _memory.is_chosen():
        _memory.keep_memory()
        report = replace(report, memory="kept")
    print(report)
    return report


def restore(model: nn.Module) -> None:
    """Gives a model back the classes and implementations that it had before adapt. Its weights never changed."""
    for name, module in model.named_modules():
        if isinstance(module, _modules.Swapped) and not _modules.is_swapped(module):
            raise InvalidArgument(f"[restore] {name}: expected a module that adapt left, got one that was parametrized since; "
                                  "remove the parametrization first")
    target = _outermost(model)
    record: _Record | None = target.__dict__.pop(_RECORD, None)
    if record is not None and "loss" in record.parts:
        from . import _loss
        loss = _loss.of(target)
        if loss is not None:
            loss.remove(target)
    for module in model.modules():
        if _modules.is_swapped(module):
            _modules.swap_back(module)
        module.__dict__.pop(_COUNTER, None)
    _packings.forget(model.parameters())
    if record is not None:
        names = dict(target.named_modules())
        for name, (attention, experts) in record.implementations.items():
            config: Any = names[name].config
            if "attention" in record.parts:
                config._attn_implementation_internal = attention
            if "experts" in record.parts:
                config._experts_implementation_internal = experts


@dataclass
class _Record:
    """What restore needs, on the outermost model of transformers. Names, not objects: it is right in a copy too."""

    parts: set[str] = field(default_factory=set)
    implementations: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)  # attention and experts by submodel
    calls: dict[str, Counter[str]] = field(default_factory=dict)  # by part: calls that went to PyTorch, by reason


@dataclass
class _Group:
    """Modules of a part that share a fate."""

    part: str
    names: list[str]
    modules: list[nn.Module]
    reason: str = ""  # why they stay
    note: str = ""
    apply: Callable[[nn.Module], None] | None = None


class _Work:
    """One call of adapt: what is there, what may be swapped, and then the swaps."""

    def __init__(self, model: nn.Module, parts: tuple[str, ...]) -> None:
        self._model = model
        self._parts = parts
        self._target = _outermost(model)
        self._is_transformers = _is_pretrained(self._target)
        self._names = {module: name for name, module in model.named_modules()}
        self._record = self._target.__dict__.get(_RECORD) or _Record()
        self._groups: list[_Group] = []
        self._flops: dict[nn.Module, float] = {}  # of a token
        self._probe = _ProbeResult()
        self._listed: set[nn.Module] = set()  # experts that are modules of their own

    def decide(self) -> None:
        for module in self._names:
            if isinstance(module, nn.ModuleList) and _modules.is_list_of_experts(module, self._names[module]):
                self._listed.update(child for parent in module for child in parent.modules())
        if self._is_transformers:
            self._drop_stale_loss()
            self._probe = _run_probe(self._target, "attention" in self._parts and "attention" not in self._record.parts,
                                     "loss" in self._parts and not self._has_loss())
        for part in self._parts:
            getattr(self, f"_decide_{part}")()

    def _is_experts(self, module: nn.Module) -> bool:
        if _modules.is_list_of_experts(module, self._names[module]) or _modules.is_stack_of_experts(module):
            return True
        if not has_experts():
            return False
        from . import _experts
        return _experts.is_experts(module)

    def _has_loss(self) -> bool:
        if not self._is_transformers or "loss" not in self._record.parts:
            return False
        from . import _loss
        loss = _loss.of(self._target)
        return loss is not None and loss.is_current(self._target)

    def _drop_stale_loss(self) -> None:
        """Takes off a loss whose head the model no longer has. It was off already."""
        from . import _loss
        loss = _loss.of(self._target)
        if loss is not None and not loss.is_current(self._target):
            loss.remove(self._target)
            self._record.parts.discard("loss")

    def _add(self, part: str, modules: Iterable[nn.Module], reason_of: Callable[[nn.Module], str], **more: Any) -> None:
        """One group a class and reason."""
        found: dict[tuple[type, str], list[nn.Module]] = {}
        for module in modules:
            found.setdefault((_modules.base_of(module), reason_of(module)), []).append(module)
        for (_, reason), members in found.items():
            self._groups.append(_Group(part, [self._names[module] for module in members], members, reason, **more))

    def _decide_experts(self) -> None:
        modules = [module for module in self._names if self._is_experts(module)]
        if not modules:
            return
        if not has_experts() or not self._is_transformers:
            self._add("experts", modules, lambda module: "the registry of experts is in models of transformers from 5.0.0 on")
            return
        from . import _experts
        proved: dict[Any, str] = {}

        def reason(module: Any) -> str:
            if isinstance(module, nn.ModuleList):
                return "they are modules of their own, not one stack"
            form = _experts.form_of(module)
            if isinstance(form, str):
                return form
            if "experts" in self._record.parts:
                return ""
            key = (type(module), form, module.gate_up_proj.shape, module.down_proj.shape, module.gate_up_proj.dtype)
            if key not in proved:
                proved[key] = _guarded(lambda: _experts.prove(module, form))
            return proved[key] or next((why for (kind, *_), why in proved.items() if kind is type(module) and why), "")

        reasons = {module: reason(module) for module in modules}
        self._add("experts", modules, lambda module: reasons[module])

    def _decide_attention(self) -> None:
        if not self._is_transformers:
            return
        seen = self._probe.attention
        by_name = {name: module for module, name in self._names.items()}
        prefix = self._names[self._target]
        modules = {by_name[_join(prefix, name)]: found for name, found in seen.items()}
        reason = self._probe.attention_reason
        if not modules:
            likely = [module for module in self._names if type(module).__name__.endswith("Attention")]
            self._add("attention", likely, lambda module: reason or "it does not ask the registry of transformers")
            return
        first = next((why for found in modules.values() for why in found.refusals), "") or reason
        for module, found in modules.items():
            pairs = (_SEQUENCE + 1) / 2
            self._flops[module] = 7.0 * found.width * found.heads * pairs
        self._add("attention", modules, lambda module: first)
        configs = {id(getattr(module, "config", None)) for module in modules}
        others = [module for module in self._names if type(module).__name__.endswith("Attention") and module not in modules
                  and id(getattr(module, "config", None)) not in configs and not any(child in modules for child in module.modules())]
        self._add("attention", others, lambda module: "it did not ask the registry of transformers in a run on tokens alone")

    def _decide_norms(self) -> None:
        self._decide_swaps("norms", _modules.is_norm, _modules.norm_refusal, _modules.prove_norm,
                           lambda module: (tuple(module._parameters["weight"].shape), module._parameters["weight"].dtype,  # type: ignore
                                           _modules.epsilon(module)))

    def _decide_mlp(self) -> None:
        self._decide_swaps("mlp", lambda module: _modules.is_mlp(module) and module not in self._listed, _modules.mlp_refusal, _modules.prove_mlp,
                           lambda module: (module.gate_proj.weight.shape, module.gate_proj.weight.dtype, _modules.activation(module)))  # type: ignore

    def _decide_swaps(self, part: str, is_one: Callable[[nn.Module], bool], refusal: Callable[[nn.Module], str],
                      prove: Callable[[nn.Module], tuple[type[_modules.Swapped] | None, str]], key_of: Callable[[nn.Module], Any]) -> None:
        modules = [module for module in self._names if is_one(module)]
        reasons: dict[nn.Module, str] = {}
        kinds: dict[type, dict[Any, tuple[type[_modules.Swapped] | None, str]]] = {}
        for module in modules:
            if _modules.is_swapped(module):
                reasons[module] = ""
                continue
            reasons[module] = refusal(module)
            if reasons[module]:
                continue
            proved = kinds.setdefault(type(module), {})
            key = key_of(module)
            if key not in proved:
                try:
                    proved[key] = prove(module)
                except Exception as error:  # a class that looks like another and is not
                    proved[key] = (None, _failure(error))
        for module in modules:
            failed = next((why for kind, why in kinds.get(type(module), {}).values() if kind is None), "")
            reasons[module] = reasons[module] or failed
        self._add(part, modules, lambda module: reasons[module])

        def swap(module: nn.Module) -> None:
            if not _modules.is_swapped(module):
                kind = kinds[type(module)][key_of(module)][0]
                assert kind is not None
                _modules.swap(module, kind)

        for group in self._groups:
            if group.part == part:
                group.apply = swap

    def _decide_loss(self) -> None:
        if not self._is_transformers:
            return
        from . import _loss
        head = _loss.head_of(self._target)
        if head is None:
            return
        reason = "" if self._has_loss() else self._probe.loss_reason
        note = "in training with labels; the output has no logits then"
        if head is not self._target.get_output_embeddings():
            note += ", and off while the head has an adapter"
        self._groups.append(_Group("loss", [self._names[head]], [head], reason, note))

    def report(self) -> AdaptReport:
        flops, others = self._count()
        total = sum(flops.values()) + sum(others.values())
        rows = []
        for group in self._groups:
            share = sum(flops.get(module, 0.0) for module in group.modules) / total if total else 0.0
            rows.append(AdaptRow(group.part, pattern(group.names), len(group.names), share, not group.reason, group.reason or group.note))
        if others:
            names = [self._names[module] for module in others]
            rows.append(AdaptRow("other", pattern(names), len(others), sum(others.values()) / total, False,
                                 "linear layers, which stay with PyTorch" if self._parts == PARTS else "was not asked for, or has no operator"))
        return AdaptReport(tuple(rows), wait_policy(), self._record.calls, "as the environment says" if _memory.is_chosen() else "goes back to the system")

    def _count(self) -> tuple[dict[nn.Module, float], dict[nn.Module, float]]:
        """FLOPs of a token by module, forward and backward: what the report lists, and linear layers that it does not.

        As in docs/measurements: 6 a parameter that a token meets, without the input's embedding and routers, and 7 a pair of
        query and key for each element of both and of value. Sequences have 512 tokens.
        """
        flops = dict(self._flops)
        covered: set[nn.Module] = set()
        for group in self._groups:
            for module in group.modules:
                if group.part == "attention":
                    continue
                covered.update(module.modules())
                if group.part == "experts":
                    flops[module] = 6.0 * self._expert_parameters(module)
                elif group.part in ("mlp", "loss"):
                    flops[module] = 6.0 * sum(_weights(child) for child in module.modules())
        others: dict[nn.Module, float] = {
            module: 6.0 * _weights(module) for module in self._names if _weights(module) and module not in covered
        }
        for module in self._names:
            if module not in covered and module not in self._listed and not isinstance(module, nn.ModuleList) and self._is_experts(module):
                others[module] = 6.0 * self._expert_parameters(module)
        return flops, others

    def _expert_parameters(self, module: nn.Module) -> float:
        chosen = _modules.num_chosen(getattr(module, "config", None) or getattr(self._target, "config", None))
        if isinstance(module, nn.ModuleList):
            return float(chosen * sum(parameter.numel() for parameter in module[0].parameters()))
        stacks = [parameter for parameter in module.parameters() if parameter.ndim == 3]
        return chosen * sum(stack.numel() / max(len(stack), 1) for stack in stacks)

    def apply(self) -> None:
        done = {group.part for group in self._groups if not group.reason}
        new = done - self._record.parts
        if self._is_transformers and not self._record.implementations:
            self._record.implementations = {name: (module.config._attn_implementation, getattr(module.config, "_experts_implementation", None))
                                            for name, module in self._target.named_modules() if _is_pretrained(module)}
        if "experts" in new:
            self._target.set_experts_implementation(NAME)
        if "attention" in new:
            self._target.set_attn_implementation(NAME)
            self._keep_attention_of_others()
        if "loss" in done and not self._has_loss():
            from . import _loss
            _loss.FusedLoss(self._target)
        for group in self._groups:
            if group.apply is not None and not group.reason:
                for module in group.modules:
                    group.apply(module)
            if group.part in ("experts", "attention") and not group.reason:
                counter = self._record.calls.setdefault(group.part, Counter())
                for module in group.modules:
                    module.__dict__[_COUNTER] = counter
        self._record.parts |= done
        self._target.__dict__[_RECORD] = self._record


    def _keep_attention_of_others(self) -> None:
        """Gives models inside the outermost one back what they had where their attention was not proved, as a vision tower's."""
        proved = {id(getattr(module, "config", None)) for group in self._groups if group.part == "attention" and not group.reason
                  for module in group.modules}
        names = dict(self._target.named_modules())
        for name, (attention, _) in self._record.implementations.items():
            config: Any = names[name].config
            if config is not self._target.config and id(config) not in proved:
                config._attn_implementation_internal = attention


@dataclass
class _ProbeResult:
    """What a small run of a shadow of the model showed."""

    attention: dict[str, Any] = field(default_factory=dict)  # what was seen, by name below the outermost model
    attention_reason: str = ""
    loss_reason: str = ""


def _run_probe(target: Any, wants_attention: bool, wants_loss: bool) -> _ProbeResult:
    """Runs a shadow of the model on two sequences of 12 tokens, without a mask and with padding, and compares as it goes."""
    from . import _attention, _loss
    result = _ProbeResult()
    if wants_loss:
        result.loss_reason = _loss.refusal(target)
        wants_loss = not result.loss_reason
    shadow = _proof.Shadow()(target)
    names = {module: name for name, module in shadow.named_modules()}
    before = target.config._attn_implementation
    if before == NAME:
        before = "sdpa" if getattr(target, "_supports_sdpa", False) else "eager"
    if not target._can_set_attn_implementation():
        result.attention_reason = "the model does not ask the registry of transformers"
    for module in names:
        module.training = False
        if _is_pretrained(module):
            module.config._attn_implementation_internal = NAME if not result.attention_reason else before
            module.config._experts_implementation_internal = "eager"  # the fastest for a few tokens
            if isinstance(getattr(module.config, "sliding_window", None), int):
                module.config.sliding_window = min(module.config.sliding_window, 5)  # so that 12 tokens show it
    probe = _attention.Probe(before)
    loss = _loss.LossProbe(shadow) if wants_loss else None
    tokens = torch.randint(0, _vocabulary(target), (2, 12), generator=torch.Generator().manual_seed(0))
    padding = torch.ones(2, 12, dtype=torch.long)
    padding[0, :4] = 0
    def run(**options: Any) -> str:
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad(), _attention.probing(probe):
                shadow(input_ids=tokens, use_cache=False, **options)
        except _attention.Enough:
            return ""
        except Exception as error:
            return f"the model does not run on a small input: {_failure(error)}"
        return ""

    failure = ""
    if loss is not None:
        failure = run(labels=tokens)
        result.loss_reason = loss.reason or failure
        loss.remove(shadow)
    if loss is None or failure:
        failure = run()
    if wants_attention:
        probe.ends_early = True
        failure = failure or run(attention_mask=padding)
    result.attention_reason = result.attention_reason or failure
    result.attention = {names[module]: seen for module, seen in probe.seen.items()}
    return result


def _vocabulary(target: Any) -> int:
    try:
        return int(target.get_input_embeddings().weight.shape[0])
    except (AttributeError, NotImplementedError):
        return 2


def _guarded(prove: Callable[[], str]) -> str:
    try:
        return prove()
    except Exception as error:  # a class that looks like another and is not
        return _failure(error)


def _failure(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160] if text else ''}"


def _weights(module: nn.Module) -> int:
    """Parameters of a linear layer, which GPT-2 calls Conv1D; 0 for all else."""
    is_linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    return int(module.weight.numel()) if is_linear else 0  # type: ignore[union-attr, operator]


def _join(prefix: str, name: str) -> str:
    return ".".join(part for part in (prefix, name) if part)


def _is_pretrained(module: Any) -> bool:
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(module, transformers.PreTrainedModel)


def _outermost(model: nn.Module) -> Any:
    """The first model of transformers inside what wraps it, or what was given."""
    return next((module for module in model.modules() if _is_pretrained(module)), model)


def _parts_of(only: str | Iterable[str] | None) -> tuple[str, ...]:
    if only is None:
        return PARTS
    asked = [only] if isinstance(only, str) else list(only)
    unknown = [name for name in asked if name not in PARTS]
    if unknown or not asked:
        raise InvalidArgument(f"[adapt] expected only= to name some of {', '.join(PARTS)}, got {', '.join(map(repr, unknown)) or 'nothing'}")
    return tuple(part for part in PARTS if part in asked)


def _check(model: Any) -> None:
    """Refuses models whose weights the operators cannot read."""
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"[adapt] expected a torch.nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        if ".ao.nn.quantized" in type(module).__module__:
            raise Unsupported(f"[adapt] {name}: expected parameters in float32 or bfloat16, got a quantized {type(module).__name__}; "
                              "adapt the model before it is quantized")
    for name, parameter in model.named_parameters():
        got, hint = _unreadable(parameter)
        if got:
            raise Unsupported(f"[adapt] {name}: expected a parameter in float32 or bfloat16 on the CPU, got {got}; {hint}")
    models = [(name, module) for name, module in model.named_modules() if _is_pretrained(module)]
    inside = {id(module) for _, module in models[:1] for module in module.modules()}
    for name, module in models:
        if id(module) not in inside:
            raise InvalidArgument(f"[adapt] expected one model, got {models[0][0]} and {name} in a {type(model).__name__}; adapt each")
    config = getattr(_outermost(model), "config", None)
    if getattr(config, "quantization_config", None) is not None:
        raise Unsupported("[adapt] expected parameters in float32 or bfloat16, got a model with a quantization_config; "
                          "load it dequantized")


def _unreadable(parameter: nn.Parameter) -> tuple[str, str]:
    """What is wrong with a parameter and what helps, or two times ""."""
    if parameter.is_meta:
        return "one on the meta device, without values", "load the weights first"
    data = parameter.data
    if type(data) is not torch.Tensor:
        name = type(data).__name__
        return f"a {name}", "adapt whole models, DistributedDataParallel works" if name == "DTensor" else "load it without quantization"
    if data.is_quantized or not (data.is_floating_point() or data.is_complex()) or data.dtype.itemsize == 1:
        return f"a quantized one ({str(data.dtype).removeprefix('torch.')})", "load it dequantized"
    if data.device.type != "cpu":
        return f"one on {data.device}", 'move the model by model.to("cpu")'
    if data.layout != torch.strided:
        return f"one in the layout {data.layout}", "make it dense"
    if data.dtype not in (torch.float32, torch.bfloat16):
        return str(data.dtype).removeprefix("torch."), "convert the model by model.float() or model.bfloat16()"
    return "", ""
