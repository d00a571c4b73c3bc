# SPDX-License-Identifier: Apache-2.0
"""Tiny models of transformers, batches and steps for the tests of adapt.

With ANABATIC_TORCH_REFERENCE=1 the operators are those of torch_reference.py. Calls of operators are counted in `calls`.
"""
import contextlib
import io
import os
import pathlib
import sys
import unittest
import warnings
from collections import Counter

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

import torch  # noqa: E402

if os.environ.get("ANABATIC_TORCH_REFERENCE") == "1":
    import torch_reference
    torch_reference.install()

import anabatic.torch  # noqa: E402
import tolerance  # noqa: E402
from anabatic.torch import ops  # noqa: E402
from torch import nn  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, logging  # noqa: E402

warnings.filterwarnings("ignore")
logging.set_verbosity_error()
torch.set_num_threads(1)  # tiny work: waiting for a second thread on a busy machine takes longer than all of it

calls = Counter()


def counted(name, operator):
    def call(*arguments, **options):
        calls[name] += 1
        return operator(*arguments, **options)
    return call


for _name in ("rms_norm", "gated_mlp", "moe_experts", "attention", "linear_cross_entropy"):
    setattr(ops, _name, counted(_name, getattr(ops, _name)))

SIZES = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, max_position_embeddings=128, num_attention_heads=4,
             num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
FAMILIES = {
    "llama": dict(intermediate_size=48),
    "mixtral": dict(intermediate_size=24, num_local_experts=4, output_router_logits=True),
    "qwen3_moe": dict(head_dim=16, moe_intermediate_size=16, intermediate_size=48, num_experts=8, num_experts_per_tok=3,
                      mlp_only_layers=[0], output_router_logits=True),
    "qwen2_moe": dict(moe_intermediate_size=16, shared_expert_intermediate_size=24, intermediate_size=48, num_experts=8,
                      num_experts_per_tok=3, output_router_logits=True),
    "olmoe": dict(intermediate_size=32, num_experts=4, num_experts_per_tok=2, output_router_logits=True),
    "deepseek_v3": dict(num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
                        moe_intermediate_size=16, intermediate_size=48, n_routed_experts=8, num_experts_per_tok=2, num_hidden_layers=3,
                        first_k_dense_replace=1, n_group=2, topk_group=1, n_shared_experts=1),
    "gpt_oss": dict(head_dim=8, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
                    output_router_logits=True, rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "gemma2": dict(head_dim=8, intermediate_size=48, query_pre_attn_scalar=8, sliding_window=8),
}
_MOE = dict(moe_intermediate_size=16, intermediate_size=48, num_experts_per_tok=2)
_LATENT = dict(num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16)
# The other families that the engine has, and parts that stay. (gpt2 has no config like these; transformers lacks pangu_ultra_moe.)
MORE_FAMILIES = {
    "mistral": (dict(intermediate_size=48, sliding_window=8), ""),
    "olmo2": (dict(intermediate_size=48), ""),
    "qwen2": (dict(intermediate_size=48), ""),
    "qwen3": (dict(intermediate_size=48, head_dim=16), ""),
    "deepseek_v2": (dict(_MOE, **_LATENT, n_routed_experts=8, first_k_dense_replace=1, n_group=1, topk_group=1, n_shared_experts=1,
                         topk_method="greedy"), ""),
    "dots1": (dict(_MOE, head_dim=8, n_routed_experts=8, first_k_dense_replace=1, n_group=1, topk_group=1, n_shared_experts=1), ""),
    "ernie4_5_moe": (dict(_MOE, moe_num_experts=8, moe_k=2, moe_num_shared_experts=1, moe_layer_start_index=1), ""),
    "flex_olmo": (dict(intermediate_size=32, num_experts=4, num_experts_per_tok=2), ""),
    "glm4_moe": (dict(_MOE, n_routed_experts=8, head_dim=8, first_k_dense_replace=1, n_group=1, topk_group=1), ""),
    "glm4_moe_lite": (dict(_MOE, **_LATENT, n_routed_experts=8, n_group=1, topk_group=1, n_shared_experts=1,
                           mlp_layer_types=["dense", "sparse"]), ""),
    "granitemoe": (dict(intermediate_size=32, num_local_experts=4, num_experts_per_tok=2), "loss"),
    "granitemoeshared": (dict(intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=24), "loss"),
    "hunyuan_v1_moe": (dict(intermediate_size=32, num_experts=4, moe_topk=2, head_dim=8), ""),
    "minimax_m2": (dict(intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, head_dim=8, rotary_dim=8), ""),
    "solar_open": (dict(_MOE, n_routed_experts=8, head_dim=8, n_group=1, topk_group=1, n_shared_experts=1), ""),
}
# Calls of a training step: norms, MLPs, experts, attention, loss.
CALLS = {
    "llama": (5, 2, 0, 2, 1), "mixtral": (5, 0, 2, 2, 1), "qwen3_moe": (9, 1, 1, 2, 1), "qwen2_moe": (5, 2, 2, 2, 1),
    "olmoe": (9, 0, 2, 2, 1), "deepseek_v3": (13, 3, 2, 3, 1), "gpt_oss": (5, 0, 2, 2, 1), "gemma2": (9, 0, 0, 0, 0),
}
MOE = ("mixtral", "qwen3_moe", "qwen2_moe", "olmoe", "deepseek_v3", "gpt_oss")


def build(name, seed=0, **options):
    """A tiny model. Its experts are eager at first: grouped_mm computes in fp32 under autocast."""
    sizes = FAMILIES[name] if name in FAMILIES else MORE_FAMILIES[name][0]
    config = AutoConfig.for_model(name, **{**SIZES, **sizes, **options})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, **({"experts_implementation": "eager"} if name in MOE else {}))
    with torch.no_grad():
        for key, value in model.named_parameters():  # a norm's weight of 1 would hide a wrong one
            if value.ndim == 1:
                value.add_(torch.randn(value.shape) * 0.2)
            elif "experts" in key or "mlp" in key:
                value.mul_(4.0)  # so that gates leave the part where every activation is a line
    return model.train()


def batch(kind="plain", rows=2, length=20, seed=1):
    ids = torch.randint(1, SIZES["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(seed))
    labels = ids.clone()
    if kind == "packed":
        positions = torch.cat([torch.arange(7), torch.arange(length - 7)])[None].expand(rows, -1)
        return dict(input_ids=ids, labels=labels, position_ids=positions, use_cache=False)
    if kind == "plain":
        return dict(input_ids=ids, labels=labels)
    mask = torch.ones(rows, length, dtype=torch.long)
    padding = slice(0, 6) if kind == "left" else slice(length - 6, length)
    mask[0, padding] = 0
    labels[0, padding] = -100
    if kind == "left":
        labels[0, 6] = -100  # the first place of a document is nobody's target, or padding would be asked for it
    return dict(input_ids=ids, labels=labels, attention_mask=mask)


def step(model, inputs, autocast=False):
    """The output of a training step, and its gradients."""
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        output = model(**inputs)
    output.loss.backward()
    return output, {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def choices(model, inputs, autocast):
    """Which experts each token goes to, in each layer."""
    found = []
    hooks = [module.register_forward_pre_hook(lambda _, given: found.append(given[1].sort(-1).values))
             for module in model.modules() if hasattr(type(module), "_apply_gate")]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return found


def alike(model, adapted, kind):
    """A batch for which bf16 changes no choice of a router, with and without our operators. Another choice is another model."""
    for seed in range(40):
        inputs = batch(kind, seed=seed)
        runs = [choices(*run) for run in ((model, inputs, False), (model, inputs, True), (adapted, inputs, True))]
        if all(torch.equal(*pair) for run in runs[1:] for pair in zip(run, runs[0])):
            return inputs
    raise AssertionError(f"no batch {kind} without a choice that bf16 changes")


def adapt(model, **options):
    """adapt without its print."""
    with contextlib.redirect_stdout(io.StringIO()):
        return anabatic.torch.adapt(model, **options)


def whole(gradients, names):
    return torch.cat([gradients[name].flatten().float() for name in names])


class Case(unittest.TestCase):
    def assert_near(self, got, want, dtype=torch.float32, layers=3, what=""):
        """Two steps are equal within the bounds of a model of that many layers."""
        bounds = tolerance.parity_bounds(layers, SIZES["hidden_size"], dtype)
        self.assertLessEqual(tolerance.relative_error(got[0].loss.detach(), want[0].loss.detach()), bounds["logits"], what)
        self.assertEqual(got[1].keys(), want[1].keys(), what)
        for name, gradient in want[1].items():
            self.assertLessEqual(tolerance.relative_error(got[1][name], gradient), bounds["gradient"], f"{what} {name}")

    def assert_calls(self, name, what=""):
        found = tuple(calls[op] for op in ("rms_norm", "gated_mlp", "moe_experts", "attention", "linear_cross_entropy"))
        self.assertEqual(found, CALLS[name], f"{name} {what}")

    def assert_adapted(self, report, *parts):
        for part in parts:
            self.assertTrue(report.is_adapted(part), f"{part}\n{report}")
