# SPDX-License-Identifier: Apache-2.0
"""adapt and restore: models of transformers with our operators compute what they did before, and copies and files of them too."""
import contextlib
import copy
import inspect
import io
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch
from torch import nn
from torch_tiny import FAMILIES, HERE, MORE_FAMILIES, SIZES, Case, adapt, alike, batch, build, calls, choices, step, whole  # before anabatic.torch

import anabatic as ab
import anabatic.torch
import tolerance
from anabatic.torch import _attention, _modules
from transformers import (AutoModelForCausalLM, BertConfig, BertForMaskedLM, CLIPVisionConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlavaConfig, LlavaForConditionalGeneration)


class Families(Case):
    def check(self, name):
        model = build(name)
        adapted = copy.deepcopy(model)
        report = adapt(adapted)
        kinds = {kind: alike(model, adapted, kind) for kind in ("plain", "left", "right", "packed")}
        before = {kind: step(model, inputs) for kind, inputs in kinds.items()}
        torchs = {kind: step(model, inputs, autocast=True) for kind, inputs in kinds.items()}
        model = adapted
        for kind, inputs in kinds.items():
            calls.clear()
            after = step(model, inputs)
            self.assert_calls(name, kind)
            self.assert_near(after, before[kind], what=f"{name} {kind}")
            fused = report.is_adapted("loss")
            self.assertEqual(after[0].get("logits") is None, fused)
            if FAMILIES[name].get("output_router_logits"):
                self.assertEqual(len(after[0].router_logits), len(before[kind][0].router_logits))
                self.assertGreater(len(after[0].router_logits), 0)
                self.assertLessEqual(tolerance.relative_error(after[0].aux_loss, before[kind][0].aux_loss),
                                     tolerance.parity_bounds(2, 32, torch.float32)["logits"])
            calls.clear()
            ours = step(model, inputs, autocast=True)
            self.assert_calls(name, f"{kind} autocast")
            names = list(before[kind][1])
            exact = whole(before[kind][1], names)
            error = tolerance.relative_error(whole(ours[1], names), exact)
            allowed = 1.25 * tolerance.relative_error(whole(torchs[kind][1], names), exact)
            self.assertLessEqual(error, allowed, f"{name} {kind} under autocast")
        self.assertEqual({part: dict(reasons) for part, reasons in report.calls.items() if reasons}, {})
        return report

    def test_llama(self):
        self.assert_adapted(self.check("llama"), "attention", "norms", "mlp", "loss")

    def test_mixtral(self):
        self.assert_adapted(self.check("mixtral"), "experts", "attention", "norms", "loss")

    def test_qwen3_moe(self):
        self.assert_adapted(self.check("qwen3_moe"), "experts", "attention", "norms", "mlp", "loss")

    def test_qwen2_moe(self):
        self.assert_adapted(self.check("qwen2_moe"), "experts", "attention", "norms", "mlp", "loss")

    def test_olmoe(self):
        self.assert_adapted(self.check("olmoe"), "experts", "attention", "norms", "loss")

    def test_deepseek_v3(self):
        self.assert_adapted(self.check("deepseek_v3"), "experts", "attention", "norms", "mlp", "loss")

    def test_gpt_oss(self):
        self.assert_adapted(self.check("gpt_oss"), "experts", "attention", "norms", "loss")

    def test_gemma2_keeps_all_but_its_norms(self):
        report = self.check("gemma2")
        self.assert_adapted(report, "norms")
        reasons = {part: report.part(part)[0].reason for part in ("attention", "mlp", "loss")}
        self.assertEqual(reasons["attention"], "a soft cap")
        self.assertIn("activation", reasons["mlp"])
        self.assertEqual(reasons["loss"], "the model changes its logits between head and loss")

    def test_all_other_families_of_the_engine(self):
        bounds = tolerance.parity_bounds(3, SIZES["hidden_size"], torch.float32)
        for name, (_, stays) in MORE_FAMILIES.items():
            with self.subTest(name):
                model = build(name)
                before = {kind: step(model, batch(kind)) for kind in ("plain", "left", "packed")}
                report = adapt(model, strict=True)
                self.assertEqual({row.part for row in report.rows if not row.adapted} - {"other"}, {stays} - {""}, report)
                for kind, want in before.items():
                    calls.clear()
                    got = step(model, batch(kind))
                    self.assertEqual(got[1].keys(), want[1].keys())
                    names = list(want[1])
                    self.assertLessEqual(tolerance.relative_error(whole(got[1], names), whole(want[1], names)), bounds["gradient"], kind)
                    parts = {"experts": "moe_experts", "norms": "rms_norm", "mlp": "gated_mlp", "loss": "linear_cross_entropy"}
                    self.assertEqual(set(calls), {parts.get(row.part, row.part) for row in report.rows if row.adapted}, kind)
                self.assertEqual(sum(sum(reasons.values()) for reasons in report.calls.values()), 0)

    def test_bfloat16_parameters(self):
        wide, model = build("qwen3_moe"), build("qwen3_moe").bfloat16()
        adapted = copy.deepcopy(model)
        adapt(adapted)
        for seed in range(40):
            inputs = batch("left", seed=seed)
            runs = [choices(each, inputs, False) for each in (wide, model, adapted)]
            if all(torch.equal(*pair) for run in runs[1:] for pair in zip(run, runs[0])):
                break
        exact, theirs = step(wide, inputs), step(model, inputs)
        calls.clear()
        ours = step(adapted, inputs)
        self.assert_calls("qwen3_moe")
        names = list(exact[1])
        error, allowed = (tolerance.relative_error(whole(found[1], names), whole(exact[1], names)) for found in (ours, theirs))
        self.assertLessEqual(error, 1.25 * allowed)
        self.assertEqual({gradient.dtype for gradient in ours[1].values()}, {torch.bfloat16})

    def test_tied_head_and_sliding_window(self):
        model = build("mixtral", tie_word_embeddings=True, sliding_window=8)
        before = step(model, batch())
        adapt(model)
        calls.clear()
        self.assert_near(step(model, batch()), before)
        self.assert_calls("mixtral")


class OtherModels(Case):
    """Models that nothing here was written for: each is adapted where the proof lets it, and says why elsewhere."""

    def near(self, model, inputs, **options):
        model.train()
        before = step(model, inputs)
        report = adapt(model, **options)
        calls.clear()
        after = step(model, inputs)
        bounds = tolerance.parity_bounds(2, 32, torch.float32)
        self.assertLessEqual(tolerance.relative_error(after[0].loss.detach(), before[0].loss.detach()), bounds["logits"])
        # All gradients as one: that of an encoder's bias of keys is zero but for rounding.
        names = list(before[1])
        self.assertLessEqual(tolerance.relative_error(whole(after[1], names), whole(before[1], names)), bounds["gradient"])
        self.assertTrue(all(row.adapted or row.reason for row in report.rows), report)
        self.assertAlmostEqual(sum(row.share for row in report.rows), 1.0)
        return report

    def test_an_encoder(self):
        config = BertConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        report = self.near(BertForMaskedLM(config), batch("right"))
        self.assert_adapted(report, "attention")
        self.assertEqual((calls["attention"], report.part("loss")[0].reason), (2, "its head has a bias"))

    def test_linear_layers_under_another_name_count(self):
        config = GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0,
                            bos_token_id=1, eos_token_id=2)
        report = self.near(GPT2LMHeadModel(config), batch())
        self.assert_adapted(report, "attention", "loss")
        self.assertGreater(report.part("other")[0].share, 0.1)

    def test_experts_with_a_forward_of_their_own_stay(self):
        FAMILIES["llama4_text"] = dict(intermediate_size=48, intermediate_size_mlp=48, num_local_experts=4, head_dim=8)
        model = build("llama4_text")
        del FAMILIES["llama4_text"]
        report = self.near(model, batch())
        self.assertEqual([row.reason for row in report.part("experts")], ["it does not ask the registry of transformers"])
        with self.assertRaises(ab.Unsupported):
            adapt(copy.deepcopy(model), strict=True)

    def test_a_vision_tower_keeps_its_attention(self):
        text = LlamaConfig(**SIZES, intermediate_size=48)
        vision = CLIPVisionConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=8, patch_size=4)
        model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_id=95))
        inputs = batch()
        inputs["input_ids"] = inputs["input_ids"].clamp(max=94)
        report = self.near(model, inputs)
        self.assertEqual({row.modules: row.adapted for row in report.part("attention")},
                         {"model.language_model.layers.*.self_attn": True, "model.vision_tower.encoder.layers.*.self_attn": False})
        self.assertEqual([model.config.text_config._attn_implementation, model.config.vision_config._attn_implementation], ["anabatic", "sdpa"])
        anabatic.torch.restore(model)
        self.assertEqual(model.config.text_config._attn_implementation, "sdpa")

    def test_two_models_in_one_module(self):
        with self.assertRaisesRegex(ab.InvalidArgument, "expected one model, got policy and reference in a ModuleDict; adapt each"):
            adapt(nn.ModuleDict({"policy": build("llama"), "reference": build("llama")}))

    def test_another_default_type_and_autocast_outside(self):
        model = build("mixtral")
        torch.set_default_dtype(torch.bfloat16)
        self.addCleanup(torch.set_default_dtype, torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
            report = adapt(model)
        self.assert_adapted(report, "experts", "attention", "norms", "loss")


class Report(Case):
    def test_is_a_value_and_a_table(self):
        self.enterContext(mock.patch.dict(os.environ, OMP_WAIT_POLICY="PASSIVE"))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            report = anabatic.torch.adapt(build("qwen3_moe"))
        self.assertEqual(printed.getvalue().strip(), str(report))
        self.assertIn("OMP_WAIT_POLICY: PASSIVE", str(report))
        self.assertIn("model.layers.*.mlp.experts", str(report))
        self.assertAlmostEqual(sum(row.share for row in report.rows), 1.0)
        self.assertTrue(all(row.adapted or row.reason for row in report.rows), report)
        experts, = report.part("experts")
        self.assertEqual((experts.count, experts.adapted), (1, True))

    def test_memory_is_kept_unless_the_caller_or_the_environment_says_otherwise(self):
        model = build("llama")
        self.assertIn("Freed memory: kept", str(adapt(model)))
        self.assertEqual(adapt(model, keep_memory=False).memory, "goes back to the system")
        for name, value in (("MALLOC_MMAP_MAX_", "3"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=0")):
            os.environ[name] = value
            self.assertEqual(adapt(model).memory, "as the environment says")
            os.environ.pop(name)

    def test_kept_memory_is_not_cleared_again(self):
        code = '''if True:
            import resource, sys, torch, anabatic.torch
            anabatic.torch.keep_memory(sys.argv[1] == "kept")
            for _ in range(3):  # what is freed may be a few bytes too small for the next block, which then is new
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                for _ in range(5):
                    torch.empty(16 << 20).fill_(1)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        '''
        kept, returned = (int(subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, check=True).stdout)
                          for how in ("kept", "returned"))
        self.assertLess(kept, returned / 4)

    def test_counts_flops(self):
        model = build("mixtral")
        report = adapt(model)
        pairs = 7 * (8 + 8) * 4 * 513 / 2 * 2
        experts = 6 * 2 * 2 * (3 * 24 * 32)
        total = pairs + experts + 6 * (96 * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32))
        self.assertAlmostEqual(report.part("experts")[0].share, experts / total)
        self.assertAlmostEqual(report.part("attention")[0].share, pairs / total)

    def test_only_selects_parts(self):
        for part in ("experts", "attention", "norms", "mlp", "loss"):
            model = build("qwen3_moe")
            before = step(model, batch("left"))
            report = adapt(model, only=part)
            self.assertEqual({row.part for row in report.rows}, {part, "other"} if part != "norms" else {"norms", "other"})
            calls.clear()
            self.assert_near(step(model, batch("left")), before)
            self.assertEqual(set(calls), {{"experts": "moe_experts", "norms": "rms_norm", "mlp": "gated_mlp", "loss": "linear_cross_entropy"}.get(part, part)})
        with self.assertRaisesRegex(ab.InvalidArgument, r"expected only= to name some of .*, got 'norm'"):
            adapt(build("llama"), only=["norm"])

    def test_strict_refuses_experts_that_stay_and_changes_nothing(self):
        model = build("gpt_oss")
        for layer in model.model.layers:
            layer.mlp.experts.is_concatenated = True
        classes = [type(module) for module in model.modules()]
        with self.assertRaisesRegex(ab.Unsupported, r"\[adapt\] expected to adapt all experts"):
            adapt(model, strict=True)
        self.assertEqual([type(module) for module in model.modules()], classes)
        self.assertEqual(model.config._attn_implementation, "eager")
        self.assertTrue(adapt(build("mixtral"), strict=True))

    def test_nothing_to_adapt_is_an_error(self):
        with self.assertRaisesRegex(ab.Unsupported, "got none that can be adapted"):
            adapt(nn.Sequential(nn.Linear(3, 3)))
        with self.assertRaisesRegex(ab.Unsupported, "changes its logits"):
            adapt(build("gemma2"), only="loss")

    def test_twice_changes_nothing(self):
        model = build("qwen3_moe")
        first = adapt(model)
        classes, hooks = [type(module) for module in model.modules()], len(model._forward_hooks)
        second = adapt(model)
        self.assertEqual(second.rows, first.rows)
        self.assertEqual([type(module) for module in model.modules()], classes)
        self.assertEqual(len(model._forward_hooks), hooks)
        calls.clear()
        step(model, batch())
        self.assert_calls("qwen3_moe")

    def test_parts_one_after_the_other(self):
        model = build("qwen3_moe")
        before = step(model, batch("left"))
        for part in ("norms", "loss", "experts", "mlp", "attention"):
            adapt(model, only=part)
        calls.clear()
        step(model, batch("left"))
        self.assert_calls("qwen3_moe")
        anabatic.torch.restore(model)
        self.assertTrue(all(torch.equal(value, before[1][name]) for name, value in step(model, batch("left"))[1].items()))


class WrongRMSNorm(nn.Module):
    """A norm that takes the mean off."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))
        self.eps = 1e-6

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class StoppedRMSNorm(nn.RMSNorm):
    """A norm whose gradients alone are others: none goes through its scale."""

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps).detach() * self.weight


class LimitedMlp(nn.Module):
    """An MLP whose limit shows only where values are large."""

    def __init__(self, width, hidden, drop=0.0, limit=7.0):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(hidden, width, bias=False)
        self.act_fn = nn.SiLU()
        self.drop, self.limit = drop, limit

    def forward(self, x):
        hidden = self.act_fn(self.gate_proj(x).clamp(max=self.limit)) * self.up_proj(x)
        return self.down_proj(nn.functional.dropout(hidden, self.drop, self.training))


def gate_without_limit(self, gate_up):
    gate, up = gate_up[..., ::2], gate_up[..., 1::2].clamp(-self.limit, self.limit)
    return (up + 1) * gate * torch.sigmoid(gate * self.alpha)


class Proof(Case):
    def test_leaves_alone_what_computes_something_else(self):
        good = nn.RMSNorm(16)
        model = nn.ModuleDict({"good": good, "wrong": WrongRMSNorm(16), "limited": LimitedMlp(16, 24), "plain": LimitedMlp(16, 24, limit=1e9),
                               "dropping": LimitedMlp(16, 24, drop=0.5, limit=1e9)})
        for name in ("limited", "dropping"):
            with self.assertRaisesRegex(ab.Unsupported, "is off by"):
                adapt(model[name])
        with self.assertRaisesRegex(ab.Unsupported, "its gradient of its input is off by"):
            adapt(StoppedRMSNorm(16, eps=1e-6))
        report = adapt(nn.ModuleDict({name: model[name] for name in ("good", "wrong", "plain")}))
        self.assertEqual({row.modules: row.adapted for row in report.rows if row.part != "other"}, {"good": True, "wrong": False, "plain": True})
        self.assertIn("is off by", next(row.reason for row in report.rows if row.modules == "wrong"))
        self.assertTrue(_modules.is_swapped(good))

    def test_proves_a_wide_mlp_by_a_part_of_it(self):
        plain = LimitedMlp(8, 1500, limit=1e9)
        x = torch.randn(3, 8)
        want = plain(x)
        self.assert_adapted(adapt(plain), "mlp")
        self.assertLessEqual(tolerance.relative_error(plain(x), want), tolerance.parity_bounds(1, 1500, torch.float32)["logits"])
        with self.assertRaisesRegex(ab.Unsupported, "is off by"):
            adapt(LimitedMlp(8, 1500))

    def test_experts_in_a_list_stay(self):
        block = nn.Module()
        block.norm, block.experts = nn.RMSNorm(8), nn.ModuleList(LimitedMlp(8, 12, limit=1e9) for _ in range(3))
        report = adapt(block)
        self.assertEqual([(row.part, row.adapted) for row in report.rows], [("experts", False), ("norms", True)])
        with self.assertRaises(ab.Unsupported):
            adapt(block, strict=True)

    def test_leaves_no_trace(self):
        model = build("mixtral")
        seen = []
        for module in model.modules():
            module.register_forward_hook(lambda *_: seen.append(1))
        state = torch.get_rng_state()
        adapt(model)
        self.assertEqual((seen, torch.equal(torch.get_rng_state(), state)), ([], True))
        self.assertTrue(all(value.grad is None and value.requires_grad for value in model.parameters()))
        self.assertTrue(all(module.training for module in model.modules()))

    def test_a_gate_of_its_own_is_refused(self):
        model = build("mixtral")
        experts = model.model.layers[0].mlp.experts
        kind = type(experts)
        experts.__class__ = type("GatedExperts", (kind,), {"_apply_gate": lambda self, x: kind._apply_gate(self, x) * 2})
        report = adapt(model)
        self.assertEqual(sorted(row.reason for row in report.part("experts")), ["", "it has a gate of its own"])
        model = build("gpt_oss")  # one that differs beyond its limit alone
        experts = model.model.layers[0].mlp.experts
        kind = type(experts)
        experts.__class__ = type("GatedExperts", (kind,), {"_apply_gate": gate_without_limit})
        report = adapt(model)
        self.assertEqual(sorted(row.reason for row in report.part("experts")), ["", "it has a gate of its own"])


class Attention(Case):
    def test_ranges_of_masks(self):
        place = torch.arange(6)
        causal = place <= place[:, None]
        begin, end = _attention.ranges_of(causal[None, None])
        self.assertEqual((begin.tolist(), end.tolist()), ([[0] * 6], [[1, 2, 3, 4, 5, 6]]))
        window = causal & (place > place[:, None] - 2)
        self.assertEqual(_attention.ranges_of(window[None, None])[0].tolist(), [[0, 0, 1, 2, 3, 4]])
        padded = causal & (place >= 2)
        begin, end = _attention.ranges_of(padded[None, None])
        self.assertEqual((end - begin).tolist(), [[0, 0, 1, 2, 3, 4]])
        self.assertEqual(begin.dtype, torch.int32)
        holed = causal.clone()
        holed[5, 2] = False
        self.assertIsNone(_attention.ranges_of(holed[None, None]))
        both = torch.stack([causal, padded])[:, None]
        self.assertEqual(_attention.ranges_of(both)[0].shape, (2, 6))
        # Two documents, and padding that sees nothing: no range may go back.
        packed = causal & ((place < 2) == (place < 2)[:, None]) & (place < 4) & (place < 4)[:, None]
        begin, end = _attention.ranges_of(packed[None, None])
        self.assertEqual((begin.tolist(), end.tolist()), ([[0, 0, 2, 2, 4, 4]], [[1, 2, 3, 4, 4, 4]]))
        self.assertIsNone(_attention.ranges_of((place < 6 - place[:, None])[None, None]))
        self.assertIsNone(_attention.ranges_of((place == (5 - place)[:, None])[None, None]))

    def test_padding_that_sees_nothing(self):
        model = build("llama")
        place = torch.arange(20)
        packed = ((place <= place[:, None]) & ((place < 7) == (place < 7)[:, None]) & (place < 15) & (place < 15)[:, None])[None, None].repeat(2, 1, 1, 1)
        inputs = {**batch(), "attention_mask": packed}
        inputs["labels"] = inputs["input_ids"].masked_fill(place >= 15, -100)
        before = step(model, inputs)
        report = adapt(model)
        self.assert_near(step(model, inputs), before)
        self.assertEqual(report.calls["attention"], {})

    def test_calls_that_go_to_torch_are_counted(self):
        model = build("llama")
        inputs = batch()
        mask = torch.ones(20, 20, dtype=torch.bool).tril()[None, None].repeat(2, 1, 1, 1)
        mask[:, :, 10:, 3] = False
        before = step(model, inputs | {"attention_mask": mask})
        report = adapt(model, only="attention")
        calls.clear()
        self.assert_near(step(model, inputs | {"attention_mask": mask}), before)
        self.assertEqual((calls["attention"], dict(report.calls["attention"])), (0, {"a row of the mask is no range of keys": 2}))
        self.assertIn("2 calls went to PyTorch: a row of the mask is no range of keys", str(report))

    def test_dropout_goes_to_torch(self):
        model = build("llama", attention_dropout=0.5)
        report = adapt(model, only="attention")
        calls.clear()
        step(model, batch())
        self.assertEqual((calls["attention"], report.calls["attention"]["dropout"]), (0, 2))
        model.eval()(**batch())
        self.assertEqual(calls["attention"], 2)

    def test_sinks_keep_their_meaning_where_torch_computes(self):
        model = build("gpt_oss", output_router_logits=False).eval()
        mask = torch.ones(20, 20, dtype=torch.bool).tril()[None, None].repeat(2, 1, 1, 1)
        mask[:, :, 10:, 3] = False
        additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        inputs = {"input_ids": batch()["input_ids"]}
        want = model(attention_mask={kind: additive for kind in ("full_attention", "sliding_attention")}, **inputs).logits
        report = adapt(model, only="attention")
        got = model(attention_mask={kind: mask for kind in ("full_attention", "sliding_attention")}, **inputs).logits
        self.assertLessEqual(tolerance.relative_error(got, want), tolerance.parity_bounds(2, 32, torch.float32)["logits"])
        self.assertEqual(sum(report.calls["attention"].values()), 2)

    def test_inference_mode_before_training(self):
        model = build("llama")
        kinds = [batch("left", length=23), batch(length=23)]  # a length of its own: ranges without a mask are kept by length
        before = [step(model, inputs) for inputs in kinds]
        adapt(model)
        with torch.inference_mode():
            for inputs in kinds:
                model(**inputs)
        for inputs, want in zip(kinds, before):
            self.assert_near(step(model, inputs), want)

    def test_generates_the_same_tokens(self):
        model = build("qwen3_moe", output_router_logits=False).eval()
        inputs = {name: batch("left")[name] for name in ("input_ids", "attention_mask")}
        want = model.generate(**inputs, max_new_tokens=5, do_sample=False)
        report = adapt(model)
        calls.clear()
        self.assertTrue(torch.equal(model.generate(**inputs, max_new_tokens=5, do_sample=False), want))
        self.assertEqual(calls["attention"], 2)
        self.assertEqual(dict(report.calls["attention"]), {"keys of a cache": 8})


class Loss(Case):
    def setUp(self):
        self.model = build("llama")
        self.before = self.model(**batch())
        adapt(self.model, only="loss")
        calls.clear()

    def test_options_of_the_loss(self):
        inputs = batch()
        shifted = nn.functional.pad(inputs["labels"], (0, 1), value=-100)[..., 1:].contiguous()
        other = inputs["labels"].masked_fill(torch.arange(20) < 5, 7)
        for options in ({"num_items_in_batch": 17}, {"num_items_in_batch": torch.tensor(17)}, {"shift_labels": shifted},
                        {"labels": other, "ignore_index": 7}):
            plain = build("llama")
            self.assert_near(step(self.model, inputs | options), step(plain, inputs | options), what=str(options))
        self.assertEqual(calls["linear_cross_entropy"], 4)

    def test_no_label_at_all(self):
        inputs = batch() | {"labels": torch.full((2, 20), -100)}
        got, want = self.model(**inputs).loss, build("llama")(**inputs).loss
        self.assertEqual(torch.isnan(got), torch.isnan(want))

    def test_logits_are_there_where_they_are_asked_for(self):
        inputs = batch()
        for output in (self.model.eval()(**inputs), self.model.train()(input_ids=inputs["input_ids"])):
            self.assertLessEqual(tolerance.relative_error(output.logits, self.before.logits), tolerance.parity_bounds(2, 32, torch.float32)["logits"])
        with torch.no_grad():
            self.assertIsNotNone(self.model(**inputs).logits)
        self.assertEqual(self.model(**inputs, return_dict=False)[1].shape, (2, 20, 96))
        self.assertEqual(calls["linear_cross_entropy"], 0)
        with self.assertRaises(Exception):
            self.model(**{**inputs, "labels": torch.zeros(3, 7, dtype=torch.long)})
        calls.clear()
        self.assertIsNotNone(self.model(input_ids=inputs["input_ids"]).logits)
        self.assertEqual(calls["linear_cross_entropy"], 0)
        self.assertIsNone(self.model(**inputs).get("logits"))
        self.assertEqual(calls["linear_cross_entropy"], 1)

    def test_labels_by_position(self):
        names = list(inspect.signature(self.model.forward).parameters)
        inputs = batch()
        output = self.model(*[inputs.get(name) for name in names[:names.index("labels") + 1]])
        self.assertEqual((calls["linear_cross_entropy"], output.get("logits")), (1, None))

    def test_a_head_with_more_tokens_is_another_head(self):
        self.model.resize_token_embeddings(104)
        self.assertIsNotNone(self.model(**batch()).logits)
        self.assertEqual(calls["linear_cross_entropy"], 0)
        adapt(self.model, only="loss")
        calls.clear()
        self.assertIsNone(self.model(**batch()).get("logits"))
        self.assertEqual(calls["linear_cross_entropy"], 1)
        anabatic.torch.restore(self.model)
        self.assertIs(type(self.model.lm_head), nn.Linear)
        self.assertEqual((len(self.model._forward_hooks), "_loss_function" in self.model.__dict__), (0, False))

    def test_a_hook_on_the_head_sees_logits(self):
        seen = []
        self.model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[-1]))
        self.model(**batch())
        self.assertEqual((seen, calls["linear_cross_entropy"]), ([96], 0))

    def test_changed_logits_are_refused(self):
        for name, options in (("granite", dict(intermediate_size=48, logits_scaling=3.0)), ("cohere", dict(intermediate_size=48))):
            FAMILIES[name] = options
            model = build(name)
            del FAMILIES[name]
            before = step(model, batch())
            report = adapt(model)
            self.assertEqual(report.part("loss")[0].reason, "the model changes its logits between head and loss")
            self.assert_adapted(report, "attention")
            self.assert_near(step(model, batch()), before)


class Copies(Case):
    def test_deepcopy_follows(self):
        model = build("qwen3_moe")
        adapt(model)
        other = copy.deepcopy(model)
        want = step(other, batch("left"))
        with torch.no_grad():
            for value in model.parameters():
                value.mul_(1.5)
        calls.clear()
        got = step(other, batch("left"))
        self.assert_calls("qwen3_moe")
        self.assert_near(got, want)
        self.assertTrue(all(value.grad is None for value in model.parameters()))
        anabatic.torch.restore(other)
        self.assertFalse(any(_modules.is_swapped(module) for module in other.modules()))
        calls.clear()
        step(model, batch())
        self.assert_calls("qwen3_moe")

    def test_pickle_and_torch_save(self):
        # Once router logits were recorded, transformers' own hooks cannot be pickled.
        model = build("qwen3_moe", output_router_logits=False)
        adapt(model)
        want = step(model, batch("left"))
        with tempfile.TemporaryDirectory() as scratch:
            file = pathlib.Path(scratch) / "model.pt"
            torch.save(model, file)
            stored = torch.load(file, weights_only=False)
            for other in (stored, pickle.loads(pickle.dumps(model))):
                calls.clear()
                self.assert_near(step(other, batch("left")), want)
                self.assert_calls("qwen3_moe")
            code = ("import sys; sys.path.insert(0, sys.argv[2]); import torch_tiny as t\n"
                    "output, _ = t.step(t.torch.load(sys.argv[1], weights_only=False), t.batch('left'))\n"
                    "print(repr(output.loss.item()), t.calls['moe_experts'], t.calls['rms_norm'])")
            done = subprocess.run([sys.executable, "-c", code, file, HERE], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            loss, experts, norms = done.stdout.split()
            self.assertAlmostEqual(float(loss), want[0].loss.item(), places=5)
            self.assertEqual((experts, norms), ("1", "9"))

    def test_save_pretrained_and_back(self):
        model = build("qwen3_moe")
        before = step(model, batch())
        adapt(model)
        with tempfile.TemporaryDirectory() as scratch:
            model.save_pretrained(scratch)
            self.assertNotIn("anabatic", (pathlib.Path(scratch) / "config.json").read_text())
            plain = AutoModelForCausalLM.from_pretrained(scratch, experts_implementation="eager").train()
            self.assertEqual([type(module) for module in plain.modules()], [type(module) for module in build("qwen3_moe").modules()])
            again = step(plain, batch())
            self.assertTrue(all(torch.equal(value, before[1][name]) for name, value in again[1].items()))
            named = AutoModelForCausalLM.from_pretrained(scratch, experts_implementation="anabatic", attn_implementation="anabatic").train()
            calls.clear()
            self.assert_near(step(named, batch("left")), step(plain, batch("left")))
            self.assertEqual(dict(calls), {"moe_experts": 1, "attention": 2})

    def test_experts_by_name_go_to_grouped_mm_where_the_layout_is_another(self):
        model = build("gpt_oss")
        before = step(model, batch())
        model.set_experts_implementation("anabatic")
        model.model.layers[0].mlp.experts.is_concatenated = True
        calls.clear()
        self.assert_near(step(model, batch()), before)
        self.assertEqual(dict(calls), {"moe_experts": 1})

    def test_experts_on_several_ranks_go_to_grouped_mm_and_are_counted(self):
        model = build("mixtral")
        before = step(model, batch())
        report = adapt(model, only="experts")
        model.model.layers[0].mlp.experts._is_expert_parallel = True
        calls.clear()
        self.assert_near(step(model, batch()), before)
        self.assertEqual((calls["moe_experts"], dict(report.calls["experts"])), (1, {"its experts are on several ranks": 1}))


class Names(Case):
    """Those that from_pretrained takes, in processes where transformers was not imported before."""

    ASK = """
from unittest import mock
from anabatic.torch import ops
config = transformers.AutoConfig.for_model("mixtral", vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
                                           num_attention_heads=2, num_key_value_heads=2, num_local_experts=2)
model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="anabatic", attn_implementation="anabatic")
with mock.patch.object(ops, "moe_experts", wraps=ops.moe_experts) as experts, mock.patch.object(ops, "attention", wraps=ops.attention) as attention:
    model(torch.ones(1, 4, dtype=torch.long), attention_mask=torch.tensor([[0, 1, 1, 1]]))
assert (experts.call_count, attention.call_count) == (1, 1)
"""

    def run_code(self, code):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_import_leaves_transformers_alone_until_it_is_imported(self):
        self.run_code("import sys, torch, anabatic.torch\nassert 'transformers' not in sys.modules\n"
                      "import importlib.util, transformers\nassert importlib.util.find_spec('transformers.modeling_utils')\n" + self.ASK +
                      "assert not any(type(finder).__module__.startswith('anabatic') for finder in sys.meta_path)")

    def test_transformers_may_be_there_before(self):
        self.run_code("import torch, transformers.modeling_utils, anabatic.torch\n" + self.ASK)


class Restore(Case):
    def test_to_the_bit(self):
        for name in FAMILIES:
            model = build(name)
            fresh = copy.deepcopy(model)
            adapt(model)
            step(model, batch("left"))
            anabatic.torch.restore(model)
            for (path, got), want in zip(model.named_modules(), fresh.modules()):
                self.assertIs(type(got), type(want), path)
                self.assertEqual({key for key in got.__dict__ if "anabatic" in key}, set(), path)
                self.assertNotIn("forward", got.__dict__)
            for attribute in ("_attn_implementation", "_experts_implementation"):
                self.assertEqual(getattr(model.config, attribute), getattr(fresh.config, attribute))
            self.assertIs(model.loss_function, fresh.loss_function)
            calls.clear()
            got, want = step(model, batch("left")), step(fresh, batch("left"))
            self.assertEqual(sum(calls.values()), 0)
            self.assertTrue(torch.equal(got[0].loss, want[0].loss) and torch.equal(got[0].logits, want[0].logits), name)
            self.assertTrue(all(torch.equal(value, want[1][key]) for key, value in got[1].items()), name)

    def test_of_a_model_that_was_not_adapted(self):
        anabatic.torch.restore(build("llama"))

    def test_after_a_parametrization_says_what_to_do(self):
        model = build("llama")
        adapt(model)
        nn.utils.parametrize.register_parametrization(model.model.norm, "weight", nn.Identity())
        calls.clear()
        step(model, batch())
        self.assertEqual(calls["rms_norm"], 5)
        with self.assertRaisesRegex(ab.InvalidArgument, r"model\.norm: .*remove the parametrization"):
            anabatic.torch.restore(model)
        nn.utils.parametrize.remove_parametrizations(model.model.norm, "weight")
        anabatic.torch.restore(model)


class BadInput(Case):
    def refused(self, model, text):
        with self.assertRaisesRegex(ab.Unsupported, text):
            adapt(model)

    def test_names_the_parameter_and_what_was_expected(self):
        expected = r"\[adapt\] {}: expected a parameter in float32 or bfloat16 on the CPU, got {}"
        self.refused(build("llama").half(), expected.format(r"model\.embed_tokens\.weight", "float16; convert"))
        self.refused(build("llama").double(), expected.format(r"model\.embed_tokens\.weight", "float64; convert"))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(build("llama").config)
        self.refused(model, expected.format(r"model\.embed_tokens\.weight", "one on the meta device, without values; load"))
        model = build("llama")
        model.model.norm.weight = nn.Parameter(torch.zeros(32, dtype=torch.int8), requires_grad=False)
        self.refused(model, expected.format(r"model\.norm\.weight", r"a quantized one \(int8\); load"))

    def test_quantized_layers(self):
        model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4)), {nn.Linear})
        self.refused(model, r"\[adapt\] 0: expected parameters in float32 or bfloat16, got a quantized Linear")

    def test_dtensor(self):
        from torch.distributed.tensor import DTensor, Replicate, init_device_mesh
        with tempfile.TemporaryDirectory() as scratch:
            torch.distributed.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=0, world_size=1)
            try:
                norm = nn.RMSNorm(4)
                mesh = init_device_mesh("cpu", (1,))
                norm.weight = nn.Parameter(DTensor.from_local(torch.ones(4), mesh, [Replicate()]))
                self.refused(norm, r"\[adapt\] weight: .*got a DTensor; adapt whole models")
            finally:
                torch.distributed.destroy_process_group()

    def test_what_is_no_module(self):
        with self.assertRaisesRegex(ab.InvalidArgument, r"expected a torch\.nn\.Module, got str"):
            adapt("model")

    def test_import_without_torch_says_what_to_install(self):
        code = "import sys; sys.modules['torch'] = None\nimport anabatic.torch"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertIn("ImportError: [torch] expected PyTorch, got none; pip install torch", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
