# SPDX-License-Identifier: Apache-2.0
"""torch.compile(backend="anabatic"): what is raised, that it computes the same, how often it compiles, what it refuses."""
import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers.utils.output_capturing import maybe_install_capturing_hooks

import tiny  # noqa: F401
from torch_compiled import WITHOUT_LINEAR, WITHOUT_REGIONS, autocast, compilations, compiled, counted, distance, gradients

import anabatic as ab
import random_models
import tolerance
from anabatic.torch import _masked, ops
from anabatic.torch.compiler import _region_op

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LENGTH = 12
DEEPSEEK = random_models.DEEPSEEK | {"n_group": 2, "topk_group": 1}
# Regions of a model of two layers: of a layer with experts there are two, before its router and after it. The heads of deepseek_v3
# are joined and cut in PyTorch.
REGIONS = {"llama": 2, "mixtral": 4, "qwen3_moe": 4, "deepseek_v3": 5}
# What such a model has of each pattern.
MODELS = {
    "llama": (random_models.COMMON, {"attention": 2, "rms_norm": 5, "gated_mlp": 2}),
    "mixtral": (random_models.MIXTRAL | {"output_router_logits": True}, {"attention": 2, "rms_norm": 5, "moe_experts": 2}),
    "qwen3_moe": (random_models.QWEN3_MOE | {"output_router_logits": True}, {"attention": 2, "rms_norm": 9, "moe_experts": 2}),
    "deepseek_v3": (DEEPSEEK, {"attention": 2, "rms_norm": 9, "gated_mlp": 2, "moe_experts": 1}),
}


def build(name, **more):
    model = random_models.build(name, MODELS[name][0] | {"use_cache": False} | more, eager=False)
    if getattr(model.config, "output_router_logits", False):
        # Its first forward takes a lock, which would break the graph.
        maybe_install_capturing_hooks(model.model)
    return model.train()


class Models(unittest.TestCase):
    def check(self, name, regions=True):
        model = build(name)
        config = model.config
        margin = tolerance.routing_margin(config.num_hidden_layers, config.hidden_size) if random_models.is_moe(config) else 0.0
        tokens, labels = random_models.make_tokens(model, 2, LENGTH, margin=margin)
        arguments = {"input_ids": tokens, "labels": labels}
        bound = tolerance.parity_bounds(config.num_hidden_layers, config.hidden_size, torch.float32)
        function = compiled(model, None if regions else WITHOUT_REGIONS, fullgraph=True)

        gradients(lambda: function(**arguments).loss, model.parameters())
        with counted() as calls:
            found = gradients(lambda: function(**arguments).loss, model.parameters())
        want = gradients(lambda: model(**arguments).loss, model.parameters())
        # Each of the two runs has its own error.
        self.assertLess(distance(found[:1], want[:1]), 2 * bound["logits"])
        self.assertLess(distance(found[1:], want[1:]), 2 * bound["gradient"])
        self.assertEqual(calls.pop("mask_ranges"), 1)
        forward = {op: count for op, count in calls.items() if not op.endswith("_backward")}
        self.assertEqual(calls, forward | {f"{op}_backward": count for op, count in forward.items()})
        self.assertGreater(forward.pop("linear"), 0)  # of the head, whose logits are returned
        expected = dict(MODELS[name][1])
        if regions:
            self.assertEqual(forward["region"], REGIONS[name])
            # Before the head, and in each layer of deepseek_v3 that of keys and values.
            self.assertEqual(forward["rms_norm"], 3 if name == "deepseek_v3" else 1)
        else:
            self.assertEqual(forward, expected | {"masked_attention": expected["attention"]})

        with autocast():
            ours = gradients(lambda: function(**arguments).loss, model.parameters())
        with torch.no_grad():
            function(input_ids=tokens)
            with counted() as calls:
                logits = function(input_ids=tokens).logits
        self.assertLess(distance([logits], [model(input_ids=tokens).logits.detach()]), 2 * bound["logits"])
        if regions:
            self.assertEqual(calls["region"], REGIONS[name])
        else:
            self.assertEqual((calls["moe_experts"], calls["gated_mlp"]), (expected.get("moe_experts", 0), expected.get("gated_mlp", 0)))
        self.assertEqual(compilations(), 3)

        # Experts whose products autocast rounds too. Those of grouped_mm stay in float32.
        if random_models.is_moe(config):
            model.set_experts_implementation("eager")
        with autocast():
            theirs = gradients(lambda: model(**arguments).loss, model.parameters())
        self.assertLess(distance(ours, want), 1.25 * distance(theirs, want))

    def test_llama(self):
        self.check("llama")

    def test_mixtral(self):
        self.check("mixtral")

    def test_qwen3_moe(self):
        self.check("qwen3_moe")

    def test_deepseek_v3(self):
        self.check("deepseek_v3")

    def test_without_regions(self):
        for name in ("llama", "qwen3_moe"):
            self.check(name, regions=False)

    def test_operators_of_adapted_models_are_joined_too(self):
        # Attention stays apart, as its ranges of keys are there already.
        before_attention = {"linear": 3, "rms_norm": 1, "rope": 2}
        for name, is_autocast, operators in (
                ("llama", True, [before_attention, {"add": 2, "linear": 1, "mlp": 1, "rms_norm": 1}]),
                ("qwen3_moe", False, [before_attention | {"rms_norm": 3}, {"add": 1, "linear": 2, "rms_norm": 1}, {"add": 1, "moe_experts": 1}])):
            model = build(name, num_hidden_layers=1)
            tokens = random_models.make_tokens(model, 2, LENGTH, margin=0.0)[0]

            def loss():
                return model(input_ids=tokens, labels=tokens).loss

            bound = tolerance.parity_bounds(1, model.config.hidden_size, torch.bfloat16 if is_autocast else torch.float32)["gradient"]
            with autocast(is_autocast), contextlib.redirect_stdout(io.StringIO()):
                want = gradients(loss, model.parameters())
                ab.torch.adapt(model)
                torch._dynamo.reset()
                found = ab.torch.explain(loss)
                got = gradients(compiled(loss), model.parameters())
            self.assertEqual([region.operators for region in found.regions], operators, name)
            self.assertLess(distance(got, want), 2 * bound, name)

    def test_shares_of_the_work(self):
        for name, layers in (("llama", 1), ("mixtral", 1), ("qwen3_moe", 1), ("deepseek_v3", 2)):
            model = build(name, num_hidden_layers=layers)
            tokens = torch.randint(0, model.config.vocab_size, (2, LENGTH))
            torch._dynamo.reset()
            found = ab.torch.explain(lambda: model(input_ids=tokens, labels=tokens).loss)
            if layers == 2:
                raised = dict(found.raised)
                raised.pop("linear")
                if "mlp" in raised:
                    raised["gated_mlp"] = raised.pop("mlp")
                self.assertEqual(raised, MODELS[name][1] | {"linear_cross_entropy": 1}, name)
            self.assertEqual(found.raised["linear_cross_entropy"], 1)
            self.assertEqual(found.left, [], name)
            self.assertGreaterEqual(found.forward.share, 0.95, name)
            self.assertGreaterEqual(found.backward.share, 0.95, name)
            self.assertEqual(found.torch_attention_calls, 0)
            self.assertEqual(len(found.regions), {"llama": 1, "mixtral": 2, "qwen3_moe": 2, "deepseek_v3": 5}[name], name)

    def test_explanation_names_modules_and_reasons(self):
        model = build("mixtral", num_hidden_layers=1)
        tokens = torch.randint(0, model.config.vocab_size, (2, LENGTH))
        torch._dynamo.reset()
        found = ab.torch.explain(model, input_ids=tokens, labels=tokens, options={"fusions": {"attention": "off"}})
        self.assertIn(("moe_experts", "model.layers.0.mlp.experts", ""), [(site.pattern, site.module, site.reason) for site in found.sites])
        reasons = {site.pattern: site.reason for site in found.left}
        self.assertIn("compile a function that returns the loss alone", reasons["linear_cross_entropy"])
        self.assertEqual(reasons["attention"], "turned off by the options")
        self.assertIn("raised  moe_experts              1 x  model.layers.*.mlp.experts", str(found))
        self.assertTrue(0 < found.forward.share < 1 and 0 < found.backward.share < 1)

    def test_checkpointed_layers_are_raised_too(self):
        model = build("llama", num_hidden_layers=1)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        tokens = torch.randint(0, model.config.vocab_size, (2, LENGTH))
        function = compiled(lambda: model(input_ids=tokens, labels=tokens).loss)
        gradients(function, model.parameters())
        with counted() as calls:
            found = gradients(function, model.parameters())
        # Inside the layer nothing tells that cosines and sines come twice: PyTorch rotates.
        self.assertEqual(calls["region_backward"], 2)
        self.assertGreaterEqual(calls["region"], 2)
        want = gradients(lambda: model(input_ids=tokens, labels=tokens).loss, model.parameters())
        self.assertLess(distance(found, want), 2 * tolerance.parity_bounds(1, model.config.hidden_size, torch.float32)["gradient"])


class Lengths(unittest.TestCase):
    def test_five_lengths_are_two_compilations(self):
        model = build("mixtral", num_hidden_layers=1)
        bound = 2 * tolerance.parity_bounds(1, model.config.hidden_size, torch.float32)["gradient"]
        function = compiled(lambda **batch: model(**batch).loss, fullgraph=True)
        for length in (12, 20, 17, 29, 8):
            tokens = torch.randint(0, model.config.vocab_size, (2, length))
            padding = torch.ones_like(tokens)
            padding[0, :3] = 0
            padding[1, -2:] = 0
            batch = {"input_ids": tokens, "labels": tokens.masked_fill(padding == 0, -100), "attention_mask": padding}
            before = dict(_masked.calls)
            first = function(**batch)
            found = gradients(lambda batch=batch: function(**batch), model.parameters())  # a second forward before the first backward
            want = gradients(lambda batch=batch: model(**batch).loss, model.parameters())
            model.zero_grad()
            first.backward()
            again = [first.detach(), *(parameter.grad for parameter in model.parameters())]
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(found, again)), length)
            self.assertLess(distance(found, want), bound, length)
            self.assertEqual(_masked.calls, {"ours": before["ours"] + 2, "torch": before["torch"]})
        self.assertEqual(compilations(), 2)

    def test_five_lengths_of_inference(self):
        model = build("llama", num_hidden_layers=1).eval()
        bound = 2 * tolerance.parity_bounds(1, model.config.hidden_size, torch.float32)["logits"]
        function = compiled(lambda tokens: model(input_ids=tokens).logits, fullgraph=True)
        with torch.no_grad():
            for length in (12, 20, 17, 29, 8):
                tokens = torch.randint(0, model.config.vocab_size, (2, length))
                self.assertLess(distance([function(tokens)], [model(input_ids=tokens).logits]), bound, length)
        self.assertEqual(compilations(), 2)


class Function(unittest.TestCase):
    """Functions of a few tensors against themselves."""

    def check(self, function, tensors, raised, options=WITHOUT_LINEAR, bound=200 * 2.0**-24, left=()):
        """Sums of at most 200 terms: their bound is that many roundings of fp32."""
        torch._dynamo.reset()
        explained = ab.torch.explain(function, *tensors, options=options)
        self.assertEqual(explained.raised, raised)
        reasons = [site.reason for site in explained.left if site.pattern != "linear"]
        self.assertEqual(len(reasons), len(left), reasons)
        for reason, text in zip(reasons, left):
            self.assertIn(text, reason)
        fast = compiled(function, options)
        results = []
        for each in (fast, function):
            leaves = [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
            outputs = each(*leaves)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            generator = torch.Generator().manual_seed(5)
            sum((output.float() * torch.randn(output.shape, generator=generator)).sum() for output in outputs).backward()
            results.append([*(output.detach() for output in outputs), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
        for found, want in zip(*results):
            self.assertEqual((found.dtype, found.shape), (want.dtype, want.shape))
            self.assertLess(distance([found], [want]), bound)
        return explained


class Patterns(Function):
    def setUp(self):
        torch.manual_seed(0)
        self.x = torch.randn(10, 32)
        self.weights = [torch.randn(48, 32) / 6, torch.randn(48, 32) / 6, torch.randn(32, 48) / 7]

    @staticmethod
    def mlp(x, gate, up, down):
        return functional.linear(functional.silu(functional.linear(x, gate)) * functional.linear(x, up), down)

    def test_norms(self):
        weight = torch.rand(32) + 0.5

        def written_out(x, weight):
            y = x.float()
            return (weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)).tanh()

        def of_gemma(x, weight):
            y = x.float()
            return ((y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)) * (1.0 + weight.float())).type_as(x)

        for function in (written_out, of_gemma, lambda x, weight: functional.rms_norm(x, (32,), weight, 1e-5)):
            self.check(function, [self.x, weight], {"rms_norm": 1})
        # Half of the values come from one more rounding of bf16 in the model.
        for weight in (weight, weight.to(torch.bfloat16)):
            self.check(written_out, [self.x.to(torch.bfloat16), weight], {"rms_norm": 1}, bound=2.0**-7)
        self.check(lambda x: functional.rms_norm(x, (32,), None, 1e-5), [self.x], {}, left=["no weight"])
        self.check(lambda x, weight: written_out(x.double(), weight.double()), [self.x, weight], {}, left=["expected float32 or bfloat16"])

    def test_norm_that_a_write_divides(self):
        def function(x, weight):
            y = x * 1
            scale = torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
            y.add_(1)
            return weight * (y * scale).to(y.dtype)

        def harmless(x, weight):
            y, z = x * 1, torch.zeros(3)
            scale = torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
            z.add_(1)
            return weight * (y * scale).to(y.dtype) + z.sum()

        weight = torch.rand(32) + 0.5
        self.check(harmless, [self.x, weight], {"rms_norm": 1})
        with torch.no_grad():  # the norm's own backward would refuse the write
            torch._dynamo.reset()
            found = ab.torch.explain(function, self.x, weight)
            self.assertEqual(found.raised, {})
            self.assertIn("writes to an operand", found.left[0].reason)
            self.assertLess(distance([compiled(function)(self.x, weight)], [function(self.x, weight)]), 200 * 2.0**-24)

    def test_mlps(self):
        self.check(self.mlp, [self.x, *self.weights], {"mlp": 1})
        self.check(lambda x, a, b, c: self.mlp(x.view(2, 5, 32), a, b, c), [self.x, *self.weights], {"mlp": 1})

        def joined(x, gate_up, down):
            up, gate = reversed(functional.linear(x, gate_up).chunk(2, -1))
            return functional.linear(up * functional.silu(gate), down)

        self.check(joined, [self.x, torch.cat(self.weights[:2]), self.weights[2]], {"mlp": 1})

        def with_bias(x, gate, up, down, bias):
            return functional.linear(functional.silu(functional.linear(x, gate, bias)) * functional.linear(x, up), down)

        self.check(with_bias, [self.x, *self.weights, torch.randn(48)], {"swiglu": 1}, left=["it has a bias"])

    def test_values_that_others_read_stay(self):
        def function(x, gate, up, down):
            inner = functional.silu(functional.linear(x, gate)) * functional.linear(x, up)
            return functional.linear(inner, down), inner

        self.check(function, [self.x, *self.weights], {"swiglu": 1}, left=["has another reader"])
        self.check(lambda gate, up: (functional.silu(gate) * up, functional.silu(gate)), [self.x, self.x * 2], {"swiglu": 1})

        def shared(gate, up):
            silu = functional.silu(gate)
            return silu * up + silu

        self.check(shared, [self.x, self.x * 2], {}, left=["has another reader"])

    def test_writes_of_the_model_stay(self):
        def function(x, gate, up, down):
            mask = torch.zeros(10, 4)
            mask.scatter_(1, torch.arange(10)[:, None] % 4, 1.0)
            out = torch.empty_like(x)
            out[:, :16] = self.mlp(x, gate, up, down)[:, 16:]
            out[:, 16:] = mask.repeat(1, 4)
            return out

        self.check(function, [self.x, *self.weights], {"mlp": 1})

    def test_products(self):
        bias = torch.randn(48)
        self.check(functional.linear, [self.x.view(2, 5, 32), self.weights[0], bias], {"linear": 1}, None)
        self.check(functional.linear, [self.x.view(2, 5, 32), self.weights[0], bias], {})
        for added in (bias, torch.randn(10, 48)):
            self.check(torch.addmm, [added, self.x, torch.randn(32, 48) / 6], {"linear": 1}, None)
        self.check(lambda *tensors: torch.addmm(*tensors, beta=0.5), [bias, self.x, torch.randn(32, 48) / 6], {}, None)

    def test_patterns_can_be_turned_off(self):
        self.check(self.mlp, [self.x, *self.weights], {"swiglu": 1}, {"fusions": {"mlp": "off", "linear": "off"}}, left=["turned off"])
        self.check(self.mlp, [self.x, *self.weights], {}, {"fusions": {"mlp": "off", "fuse_swiglu": "off", "linear": "off"}}, left=["turned off", "turned off"])

    def test_losses(self):
        labels = torch.randint(0, 48, (10,))
        labels[3] = -100
        for reduction in ("mean", "sum"):
            self.check(lambda x, weight, r=reduction: functional.cross_entropy(functional.linear(x, weight).float(), labels, reduction=r) / 3,
                       [self.x, self.weights[0]], {"linear_cross_entropy": 1})
        for options, text in (({"label_smoothing": 0.1}, "label_smoothing"), ({"ignore_index": 0}, "ignore_index"), ({"weight": torch.rand(48)}, "weight")):
            self.check(lambda x, weight, o=options: functional.cross_entropy(functional.linear(x, weight), labels.clamp(min=0), **o),
                       [self.x, self.weights[0]], {}, left=[text])
        self.check(lambda x, weight: functional.cross_entropy(functional.linear(x, weight).tanh(), labels), [self.x, self.weights[0]], {},
                   left=["expected a product of a weight"])

    def test_experts_of_both_chains(self):
        for kind in ("batched_mm", "grouped_mm"):
            model = build("qwen3_moe", num_hidden_layers=1)
            model.set_experts_implementation(kind)
            tokens = torch.randint(0, model.config.vocab_size, (2, LENGTH))
            function = compiled(lambda model=model, tokens=tokens: model(input_ids=tokens, labels=tokens).loss, WITHOUT_REGIONS)
            gradients(function, model.parameters())
            with counted() as calls:
                found = gradients(function, model.parameters())
            self.assertEqual((calls["moe_experts"], calls["moe_experts_backward"]), (1, 1), kind)
            want = gradients(lambda model=model, tokens=tokens: model(input_ids=tokens, labels=tokens).loss, model.parameters())
            self.assertLess(distance(found, want), 2 * tolerance.parity_bounds(1, model.config.hidden_size, torch.float32)["gradient"], kind)

    def test_autocast_to_fp16_is_pytorchs(self):
        model = build("mixtral", num_hidden_layers=1)
        tokens = torch.randint(0, model.config.vocab_size, (2, LENGTH))

        def inside(dtype):
            with torch.autocast("cpu", dtype):
                return model(input_ids=tokens, labels=tokens).loss

        # The experts of grouped_mm compute in float32 there, and their swiglu is one of float32.
        for dtype, raised in ((torch.float16, {"rms_norm": 3, "swiglu": 1}),
                              (torch.bfloat16, {"rms_norm": 3, "moe_experts": 1, "attention": 1, "linear_cross_entropy": 1, "linear": 5})):
            torch._dynamo.reset()
            found = ab.torch.explain(inside, dtype)
            self.assertEqual((found.raised, found.graphs), (raised, 1))
        with torch.autocast("cpu", torch.float16):
            torch._dynamo.reset()
            found = ab.torch.explain(model, input_ids=tokens)
        self.assertIn("expected autocast to bfloat16, got torch.float16", [site.reason for site in found.left])

    def test_experts_of_other_layouts_stay(self):
        model = build("mixtral", num_hidden_layers=1)
        experts = next(module for module in model.modules() if hasattr(module, "gate_up_proj"))
        experts._is_expert_parallel = True
        x, index, weights = torch.randn(6, model.config.hidden_size), torch.tensor([[0, 1], [2, 3]] * 3), torch.rand(6, 2)
        torch._dynamo.reset()
        explained = ab.torch.explain(experts, x, index, weights)
        self.assertEqual(explained.raised.get("moe_experts", 0), 0)
        self.assertIn("moe_experts", [site.pattern for site in explained.left])


class Regions(Function):
    def setUp(self):
        torch.manual_seed(0)
        self.x = torch.randn(2, 5, 32)
        self.norm = torch.rand(32) + 0.5
        self.weights = [torch.randn(48, 32) / 6, torch.randn(48, 32) / 6, torch.randn(32, 48) / 7]

    @staticmethod
    def block(x, norm, gate, up, down):
        return x + Patterns.mlp(functional.rms_norm(x, (32,), norm, 1e-5), gate, up, down)

    def regions(self, function, tensors, raised, number, **more):
        found = self.check(function, tensors, raised, None, **more)
        self.assertEqual([sum(region.operators.values()) for region in found.regions], number)
        return found

    def test_a_norm_an_mlp_and_a_sum(self):
        tensors = [self.x, self.norm, *self.weights]
        found = self.regions(self.block, tensors, {"rms_norm": 1, "mlp": 1}, [3])
        self.assertIn("region     1 x  (model): 1 rms_norm, 1 mlp, 1 add", str(found))
        self.assertEqual((found.forward.share, found.backward.share, found.apart), (1.0, 1.0, []))
        self.assertEqual(self.check(self.block, tensors, {"rms_norm": 1, "mlp": 1}, WITHOUT_REGIONS).regions, [])
        self.regions(lambda x, *rest: self.block(self.block(x.to(torch.bfloat16).float(), *rest), *rest), tensors, {"rms_norm": 2, "mlp": 2}, [3, 3])

    def test_values_that_others_read_are_results(self):
        def function(x, norm, gate, up, down, other):
            y = functional.rms_norm(x, (32,), norm, 1e-5)
            out = x + Patterns.mlp(y, gate, up, down)
            return out.sin(), y.view(10, 32).cos(), functional.linear(y.view(10, 32), other).view(2, 5, 48)

        self.regions(function, [self.x, self.norm, *self.weights, torch.randn(48, 32) / 6], {"rms_norm": 1, "mlp": 1, "linear": 1}, [4])

    def test_no_path_leaves_and_comes_back(self):
        def function(x, norm, gate, up, down):
            y = functional.rms_norm(x, (32,), norm, 1e-5)
            return x + functional.linear((functional.linear(y, gate) + functional.linear(y, up)).tanh(), down)

        self.regions(function, [self.x, self.norm, *self.weights], {"rms_norm": 1, "linear": 3}, [4, 2])

    def test_none_is_on_both_sides_of_a_write(self):
        def function(x, norm, gate, up, down):
            y = functional.rms_norm(x, (32,), norm, 1e-5)
            first = functional.linear(y, gate)
            out = torch.zeros(2, 5, 48)
            out[:, 1:] = 1.0
            return functional.linear(functional.linear(y, up) + first, down) + out[..., :32]

        self.regions(function, [self.x, self.norm, *self.weights], {"rms_norm": 1, "linear": 3}, [2, 4])

    def test_what_stays_apart(self):
        def function(x, norm, gate, bias):
            return functional.linear(functional.rms_norm(x, (32,), norm, 1e-5), gate, bias)

        found = self.regions(function, [self.x, self.norm, self.weights[0], torch.randn(48)], {"rms_norm": 1, "linear": 1}, [])
        self.assertEqual({each.operator: each.reason for each in found.apart},
                         {"linear": "it has a bias", "rms_norm": "nothing that it could be joined with is next to it"})

    def test_a_weight_that_two_layers_share(self):
        def function(x, norm, gate):
            y = functional.rms_norm(x, (32,), norm, 1e-5)
            return functional.linear(y, gate), functional.linear(y * 2, gate)

        self.regions(function, [self.x, self.norm, self.weights[0]], {"rms_norm": 1, "linear": 2}, [2])

    def test_autocast_is_as_exact_as_pytorchs(self):
        tensors = [self.x, self.norm, *self.weights]

        def run(function, cast):
            leaves = [tensor.clone().requires_grad_() for tensor in tensors]
            with autocast(cast):
                out = function(*leaves)
            self.assertEqual(out.dtype, torch.float32)
            out.backward(torch.ones_like(out))
            return [out.detach(), *(leaf.grad for leaf in leaves)]

        want = run(self.block, False)
        ours, theirs = run(compiled(self.block), True), run(self.block, True)
        for found, other, exact in zip(ours, theirs, want):
            self.assertLess(distance([found], [exact]), 1.25 * distance([other], [exact]))

    def test_a_mask_with_gaps(self):
        model = build("llama", num_hidden_layers=1)
        tokens = torch.randint(0, model.config.vocab_size, (2, LENGTH))
        mask = (torch.rand(2, 1, LENGTH, LENGTH) < 0.5).tril()
        mask[..., 0] = True
        function = compiled(lambda mask: model(input_ids=tokens, labels=tokens, attention_mask=mask).loss)
        bound = 2 * tolerance.parity_bounds(1, model.config.hidden_size, torch.float32)["gradient"]
        for each, kind in ((mask, "torch"), (torch.ones_like(mask).tril(), "ours"), (mask.clone(), "torch")):
            before = dict(_masked.calls)
            found = gradients(lambda each=each: function(each), model.parameters())
            self.assertGreater(_masked.calls[kind], before[kind])
            self.assertEqual(sum(_masked.calls.values()) - sum(before.values()), _masked.calls[kind] - before[kind])
            want = gradients(lambda each=each: model(input_ids=tokens, labels=tokens, attention_mask=each).loss, model.parameters())
            self.assertLess(distance(found, want), bound, kind)

    def test_frozen_parameters(self):
        model = build("llama", num_hidden_layers=1)
        tokens = torch.randint(0, model.config.vocab_size, (2, LENGTH))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("q_proj" in name or "mlp.up" in name)
        wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
        function = compiled(lambda: model(input_ids=tokens, labels=tokens).loss)
        found, want = gradients(function, wanted), gradients(lambda: model(input_ids=tokens, labels=tokens).loss, wanted)
        self.assertLess(distance(found, want), 2 * tolerance.parity_bounds(1, model.config.hidden_size, torch.float32)["gradient"])

    def test_graphs_that_are_kept(self):
        tensors = [tensor.clone().requires_grad_() for tensor in (self.x, self.norm, *self.weights)]
        function = compiled(self.block)
        outs = [function(*tensors) for _ in range(3)]  # the third is never differentiated
        seed = torch.randn_like(outs[0])
        first, second = (torch.autograd.grad(outs[place], tensors, seed, retain_graph=True) for place in (1, 0))
        again = torch.autograd.grad(outs[0], tensors, seed)
        for a, b, c in zip(first, second, again):
            self.assertTrue(torch.equal(a, b) and torch.equal(a, c))
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                self.assertTrue(torch.equal(function(*tensors), outs[2]))

    def test_opcheck(self):
        found = self.regions(self.block, [self.x, self.norm, *self.weights], {"rms_norm": 1, "mlp": 1}, [3])
        region = _region_op.by_name(found.regions[0].name)
        arguments = [self.x.view(10, 32), self.norm, *self.weights]
        self.assertEqual([operand.kind for operand in region.structure.operands], ["rows", *["weight"] * 4])
        operator = getattr(torch.ops.anabatic, region.name).default
        torch.library.opcheck(operator, tuple(tensor.clone().requires_grad_() for tensor in arguments))
        leaves = [tensor.clone().requires_grad_() for tensor in arguments]
        gradient, = torch.autograd.grad(operator(*leaves)[0].square().sum(), leaves[0], create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "first derivatives alone"):
            gradient.sum().backward()


class Attention(Function):
    def setUp(self):
        torch.manual_seed(0)
        self.qkv = [torch.randn(2, 4, 10, 8), torch.randn(2, 2, 10, 8), torch.randn(2, 2, 10, 6)]

    @staticmethod
    def attend(mask=None, **options):
        return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True, **options)

    def test_ranges_of_keys(self):
        causal = torch.ones(10, 10, dtype=torch.bool).tril()
        packed = causal.clone()
        packed[4:, :4] = False
        left = (causal & (torch.arange(10) >= 3))[None, None].expand(2, 1, 10, 10)
        before = dict(_masked.calls)
        for mask in (causal, packed[None, None], left):
            self.check(self.attend(mask), self.qkv, {"attention": 1})
        self.assertEqual(_masked.calls["torch"], before["torch"])
        self.assertGreater(_masked.calls["ours"], before["ours"])
        for options in ({}, {"is_causal": True}, {"scale": 0.3}):
            self.check(self.attend(**options), self.qkv, {"attention": 1})
        # Fewer queries than keys: the first sees the first key alone.
        self.check(self.attend(is_causal=True), [self.qkv[0][:, :, :4], *self.qkv[1:]], {"attention": 1})

    def test_flops_are_those_of_each_sequence(self):
        once = 2 * 2 * 4 * 10 * 10 * (8 + 6)  # two sequences, four heads, all pairs of queries and keys, both widths
        for mask, name in ((None, "anabatic::attention"), (torch.ones(10, 10, dtype=torch.bool), "anabatic::masked_attention")):
            torch._dynamo.reset()
            found = ab.torch.explain(self.attend(mask), *(tensor.requires_grad_() for tensor in self.qkv))
            self.assertEqual((dict(found.forward.flops)[name], dict(found.backward.flops)[f"{name}_backward"]), (once, once * 5 // 2))

    def test_a_mask_with_gaps_is_computed_by_torch(self):
        gaps = torch.rand(2, 1, 10, 10) < 0.5
        gaps[..., 0] = True
        backwards = torch.ones(10, 10, dtype=torch.bool).triu()  # a range, but one that begins earlier in other rows
        for mask in (gaps, backwards.flip(0)):
            before = dict(_masked.calls)
            explained = self.check(self.attend(mask), self.qkv, {"attention": 1})
            self.assertEqual(explained.torch_attention_calls, 1)
            self.assertIn("1 calls of attention had a mask that is no range", str(explained))
            self.assertEqual(_masked.calls["ours"], before["ours"])
        with autocast():
            self.check(self.attend(gaps), self.qkv, {"attention": 1}, bound=2.0**-6)

    def test_what_stays(self):
        for mask, text in ((torch.zeros(10, 10), "expected bool"), (torch.ones(2, 4, 10, 10, dtype=torch.bool), "differs between heads")):
            self.check(self.attend(mask), self.qkv, {}, left=[text])
        torch._dynamo.reset()
        self.assertEqual(ab.torch.explain(self.attend(dropout_p=0.5), *self.qkv).left[0].reason, "it has dropout")

    def test_second_derivatives_are_refused(self):
        q = self.qkv[0].requires_grad_()
        mask = torch.ones(2, 1, 10, 10, dtype=torch.bool)
        out = _masked.masked_attention(q, *self.qkv[1:], mask, *_masked.mask_ranges(mask), scale=1.0)
        gradient, = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "first derivatives alone"):
            gradient.sum().backward()

    def test_opcheck(self):
        mask = torch.ones(10, 10, dtype=torch.bool).tril()[None, None].expand(2, 1, 10, 10)
        torch.library.opcheck(torch.ops.anabatic.mask_ranges.default, (mask,))
        for whole in (mask, mask.flip(2)):
            leaves = [tensor.clone().requires_grad_() for tensor in self.qkv]
            torch.library.opcheck(torch.ops.anabatic.masked_attention.default, (*leaves, whole, *_masked.mask_ranges(whole), 0.5, "", 7))


class Others(unittest.TestCase):
    def same(self, model, *arguments, **more):
        function = compiled(model)

        def run(of):
            return gradients(lambda: of(*arguments, **more).loss if more else of(*arguments).square().sum(), model.parameters())

        run(function)
        with counted() as calls:
            found = run(function)
        want = run(model)
        self.assertLess(distance(found, want), 200 * 2.0**-24)
        return calls

    def test_a_convolution_stays_in_pytorch(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 2, 3))
        self.assertEqual(sum(self.same(model, torch.randn(4, 3, 8, 8)).values()), 0)
        torch._dynamo.reset()
        found = ab.torch.explain(model, torch.randn(4, 3, 8, 8))
        self.assertEqual((found.raised, found.forward.share, found.backward.share), ({}, 0.0, 0.0))
        self.assertGreater(found.forward.flops["aten::convolution"], 0)

    def test_an_mlp(self):
        torch.manual_seed(0)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.RMSNorm(32, eps=1e-5)
                self.gate, self.up, self.down = nn.Linear(32, 48, bias=False), nn.Linear(32, 48, bias=False), nn.Linear(48, 32, bias=False)

            def forward(self, x):
                y = self.norm(x)
                return x + self.down(functional.silu(self.gate(y)) * self.up(y))

        model = Net()
        self.assertEqual(self.same(model, torch.randn(20, 32)), {"region": 1, "region_backward": 1})
        torch._dynamo.reset()
        found = ab.torch.explain(model, torch.randn(20, 32))
        self.assertEqual((found.forward.share, found.backward.share), (1.0, 1.0))

    def test_gpt2(self):
        torch.manual_seed(0)
        config = transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=1, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                                         bos_token_id=None, eos_token_id=None, use_cache=False)
        model = transformers.GPT2LMHeadModel(config).train()
        tokens = torch.randint(0, 96, (2, LENGTH))
        calls = self.same(model, input_ids=tokens, labels=tokens)
        self.assertEqual((calls["masked_attention"], calls["masked_attention_backward"]), (1, 1))


class Options(unittest.TestCase):
    def refuse(self, text, options=None, mode=None):
        torch._dynamo.reset()
        with self.assertRaisesRegex(torch._dynamo.exc.BackendCompilerFailed, text) as caught:
            torch.compile(lambda x: x + 1, backend="anabatic", options=options, mode=mode)(torch.ones(2))
        self.assertIsInstance(caught.exception.inner_exception, ab.InvalidArgument)

    def test_unknown_ones_name_the_nearest(self):
        self.refuse(r"\[compile\] options: expected fusions, rest, got 'fusion'; the nearest is 'fusions'", {"fusion": {}})
        self.refuse(r"got 'rmsnorm'; the nearest is 'rms_norm'", {"fusions": {"rmsnorm": "on"}})
        self.refuse(r"expected on, off, got 'of'; the nearest is 'off'", {"fusions": {"mlp": "of"}})
        self.refuse(r"expected eager, inductor, got 'induct'; the nearest is 'inductor'", {"rest": "induct"})
        self.refuse(r"\[compile\] options\['fusions'\]: expected a dict", {"fusions": "off"})
        self.refuse(r"\[compile\] mode: expected none, got 'max-autotune'", None, "max-autotune")

    def test_inductor_runs_the_rest(self):
        torch.manual_seed(0)
        x, weight = torch.randn(10, 32), torch.rand(32, requires_grad=True)

        def function(x):
            return (ops.rms_norm(x, weight, 1e-5).sin() * 2).sum()

        fast = compiled(lambda x: (functional.rms_norm(x, (32,), weight, 1e-5).sin() * 2).sum(), {"rest": "inductor"})
        gradients(lambda: fast(x), [weight])
        with counted() as calls:
            found = gradients(lambda: fast(x), [weight])
        self.assertEqual(calls, {"rms_norm": 1, "rms_norm_backward": 1})
        self.assertLess(distance(found, gradients(lambda: function(x), [weight])), 200 * 2.0**-24)
        with open("/proc/self/maps") as maps:
            self.assertLessEqual(len({line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line}), 1)

    def test_an_installed_package_is_found_without_an_import(self):
        text = (ROOT / "pyproject.toml").read_text()
        point = text.split("[project.entry-points.torch_dynamo_backends]\n")[1].split("\n\n")[0].replace('"', "")
        with tempfile.TemporaryDirectory() as scratch:
            info = pathlib.Path(scratch) / "anabatic-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: anabatic\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{point}\n")
            code = ("import sys, torch\nassert 'anabatic' in torch.compiler.list_backends() and 'anabatic' not in sys.modules\n"
                    "f = torch.compile(lambda x: x * 2, backend='anabatic')\nassert f(torch.ones(2)).sum() == 4 and 'anabatic.torch' in sys.modules")
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                                  env=os.environ | {"PYTHONPATH": os.pathsep.join([scratch, os.environ.get("PYTHONPATH", "")])})
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
