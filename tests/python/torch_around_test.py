# SPDX-License-Identifier: Apache-2.0
"""Adapted models inside what trains them: Trainer, PEFT, DistributedDataParallel, checkpointing, torch.compile."""
import contextlib
import importlib.util
import io
import pathlib
import sys
import tempfile
import unittest

import torch
from torch import nn
from torch_tiny import CALLS, Case, adapt, batch, build, calls, step  # before anabatic.torch

import anabatic.torch
import tolerance
from anabatic.torch import _modules


def ddp_worker(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = build("qwen3_moe")
    adapt(model)
    calls.clear()
    inputs = {name: value[2 * rank: 2 * rank + 2] for name, value in batch(rows=4).items()}
    _, gradients = step(nn.parallel.DistributedDataParallel(model), inputs)
    if rank == 0:
        torch.save(({name.removeprefix("module."): value for name, value in gradients.items()}, dict(calls)), f"{folder}/gradients")
    torch.distributed.destroy_process_group()


class Around(Case):
    def test_distributed_data_parallel(self):
        model = build("qwen3_moe")
        parts = [step(model, {name: value[2 * rank: 2 * rank + 2] for name, value in batch(rows=4).items()})[1] for rank in range(2)]
        with tempfile.TemporaryDirectory() as scratch:
            torch.multiprocessing.spawn(ddp_worker, (scratch,), nprocs=2)
            got, counts = torch.load(f"{scratch}/gradients")
        self.assertEqual(tuple(counts[op] for op in ("rms_norm", "gated_mlp", "moe_experts", "attention", "linear_cross_entropy")), CALLS["qwen3_moe"])
        self.assertEqual(got.keys(), parts[0].keys())
        for name, gradient in got.items():
            want = (parts[0][name] + parts[1][name]) / 2
            self.assertLessEqual(tolerance.relative_error(gradient, want), tolerance.parity_bounds(2, 32, torch.float32)["gradient"], name)

    def test_adapted_inside_a_wrapper(self):
        model = build("mixtral")
        before = step(model, batch())
        report = adapt(nn.Sequential(nn.ModuleDict({"model": model})))
        self.assertEqual(report.part("experts")[0].modules, "*.model.model.layers.*.mlp.experts")
        calls.clear()
        self.assert_near(step(model, batch()), before)
        self.assert_calls("mixtral")

    @unittest.skipUnless(importlib.util.find_spec("trl") and importlib.util.find_spec("datasets"), "trl or its dependencies are not installed")
    def test_a_loss_that_trl_fuses_itself(self):
        from trl.trainer.utils import add_fused_lm_head
        inputs = batch("left") | {"fused_lm_head": True}
        plain = build("qwen3_moe")
        add_fused_lm_head(plain)
        want = step(plain, inputs)
        for order in ("before", "after"):
            model = build("qwen3_moe")
            if order == "before":
                adapt(model)
            add_fused_lm_head(model)
            if order == "after":
                adapt(model)
            calls.clear()
            got = step(model, inputs)
            self.assert_near(got, want)
            self.assertEqual((calls["linear_cross_entropy"], calls["moe_experts"], got[0].keys()), (0, 1, want[0].keys()), order)

    def test_checkpointing_recomputes_the_same(self):
        for reentrant in (False, True):
            model = build("qwen3_moe", output_router_logits=False)
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            if reentrant:
                model.enable_input_require_grads()
            before = step(model, batch("left"))
            adapt(model)
            calls.clear()
            self.assert_near(step(model, batch("left")), before)
            self.assertEqual((calls["moe_experts"], calls["attention"], calls["linear_cross_entropy"]), (2, 4, 1))

    def test_frozen_parameters(self):
        model, plain = build("mixtral"), build("mixtral")
        for each in (model, plain):
            for name, value in each.named_parameters():
                value.requires_grad_("layers.0.mlp" in name)
        adapt(model)
        self.assert_near(step(model, batch()), step(plain, batch()))

    def test_compiles(self):
        gap = batch("left")
        gap["attention_mask"][1, 5] = 0  # keys that are no range: PyTorch computes
        for inputs in (batch(), batch("left"), gap):
            model = build("llama")
            before = step(model, inputs)
            adapt(model)
            torch._dynamo.reset()
            self.addCleanup(torch._dynamo.reset)
            got = step(torch.compile(model, backend="eager", fullgraph=True), inputs)
            self.assert_near((got[0], {name.removeprefix("_orig_mod."): value for name, value in got[1].items()}), before)
            self.assertIsNone(got[0].get("logits"))


@unittest.skipUnless(importlib.util.find_spec("accelerate"), "accelerate is not installed")
class Trained(Case):
    """Loss curves of transformers' Trainer."""

    def train(self, adapted, name="qwen3_moe", resume=False, **options):
        from transformers import Trainer, TrainingArguments

        def sample(number):
            generator = torch.Generator().manual_seed(number)
            ids = torch.randint(1, 96, (12 + number % 5,), generator=generator)
            return {"input_ids": ids, "labels": ids.clone()}

        def collate(samples):
            length = max(len(each["input_ids"]) for each in samples)

            def pad(key, value):
                return torch.stack([nn.functional.pad(each[key], (0, length - len(each[key])), value=value) for each in samples])
            return {"input_ids": pad("input_ids", 0), "labels": pad("labels", -100), "attention_mask": (pad("input_ids", 0) > 0).long()}

        model = build(name)
        report = adapt(model) if adapted else None
        with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
            options = dict(per_device_train_batch_size=4, max_steps=4, logging_steps=1, use_cpu=True, report_to=[], disable_tqdm=True,
                           save_strategy="steps" if resume else "no", save_steps=2, learning_rate=1e-3, seed=0) | options
            trainer = Trainer(model=model, args=TrainingArguments(output_dir=scratch, **options), data_collator=collate,
                              train_dataset=[sample(number) for number in range(32)], eval_dataset=[sample(number) for number in range(4)],
                              compute_metrics=lambda found: {"width": float(next(each.shape[-1] for each in found.predictions if each.ndim == 3))})
            calls.clear()
            trainer.train()
            losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
            if resume:
                trainer.train(resume_from_checkpoint=str(pathlib.Path(scratch) / "checkpoint-2"))
            counts = dict(calls)
            evaluated = trainer.evaluate()
        self.assertEqual(evaluated["eval_width"], 96)  # logits are there where metrics need them
        return losses + [evaluated["eval_loss"]], counts, report

    def compare(self, dtype=torch.float32, fused=True, **options):
        want, _, _ = self.train(False, **options)
        got, counts, _ = self.train(True, **options)
        self.assertTrue(counts.get("moe_experts") and counts.get("attention") and bool(counts.get("linear_cross_entropy")) == fused, counts)
        bound = tolerance.TRAINING_LOSS if dtype == torch.float32 else tolerance.parity_bounds(2, 32, dtype)["logits"]
        self.assertEqual(len(got), len(want))
        for mine, theirs in zip(got, want):
            self.assertLessEqual(abs(mine - theirs), bound * abs(theirs), (got, want))

    def test_plain(self):
        self.compare()

    def test_bf16(self):
        self.compare(torch.bfloat16, bf16=True)

    def test_accumulation_and_checkpointing(self):
        for reentrant in (False, True):
            self.compare(gradient_accumulation_steps=2, gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": reentrant})

    def test_save_and_resume_with_workers(self):
        self.compare(resume=True, dataloader_num_workers=2)

    def test_label_smoothing_gets_logits(self):
        self.compare(fused=False, label_smoothing_factor=0.1)


@unittest.skipUnless(importlib.util.find_spec("peft"), "peft is not installed")
class Adapters(Case):
    """LoRA by PEFT, adapted before and after: the same losses, gradients and calls."""

    def lora(self, model, **options):
        from peft import LoraConfig, get_peft_model
        torch.manual_seed(3)
        model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **options))
        torch.manual_seed(5)
        for name, value in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(value, std=0.05)
        return model.train()

    def check(self, name, expected, **options):
        want = step(self.lora(build(name), **options), batch("left"))
        for order in ("before", "after"):
            model = build(name)
            if order == "before":
                adapt(model)
            model = self.lora(model, **options)
            if order == "after":
                adapt(model)
            calls.clear()
            self.assert_near(step(model, batch("left")), want, what=order)
            self.assertEqual(tuple(calls[op] for op in ("rms_norm", "gated_mlp", "moe_experts", "attention", "linear_cross_entropy")), expected, order)
            merged = model.merge_and_unload()
            calls.clear()
            merged(**batch("left"))
            self.assertEqual(calls["linear_cross_entropy"], 1, "the head is plain again")
            if order == "before":
                self.assert_calls(name, "merged")
            anabatic.torch.restore(merged)
            self.assertFalse(any(_modules.is_swapped(module) for module in merged.modules()))
            self.assertNotEqual(merged.config._attn_implementation, "anabatic")

    def test_on_attention(self):
        self.check("qwen3_moe", CALLS["qwen3_moe"], target_modules=["q_proj", "v_proj"])

    def test_on_experts(self):
        self.check("qwen3_moe", CALLS["qwen3_moe"], target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])

    def test_on_head_and_mlp(self):
        self.check("llama", (5, 0, 0, 2, 0), target_modules=["lm_head", "up_proj"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
