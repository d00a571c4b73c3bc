# SPDX-License-Identifier: Apache-2.0
"""torch.compile(backend="anabatic") on ten architectures that are no yardsticks: they compute the same as in eager, compile as
often as they should, and run in our kernels as far as that is promised."""
import dataclasses
import sys
import unittest
from collections.abc import Callable

import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers.utils.output_capturing import maybe_install_capturing_hooks

import tiny  # noqa: F401
from torch_compiled import autocast, compilations, compiled, distance, gradients, worst

import anabatic as ab
import random_models
import tolerance

torch.set_num_threads(1)  # tiny work: waiting for a second thread on a busy machine takes longer than all of it
WIDTH, LAYERS, VOCABULARY = 32, 2, 61
LENGTHS = (12, 20, 17, 29, 8)
TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
ENCODER = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 64, "hidden_dropout_prob": 0.0,
           "attention_probs_dropout_prob": 0.0}


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x, labels=None):
        logits = self.layers(x)
        return logits if labels is None else functional.cross_entropy(logits, labels)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 24, LAYERS, batch_first=True)
        self.head = nn.Linear(24, 10)

    def forward(self, x, labels=None):
        logits = self.head(self.lstm(x)[0])
        return logits if labels is None else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 8, 3, stride=2), nn.AdaptiveAvgPool2d(1))

    def forward(self, x, labels=None):
        logits = self.layers(x).flatten(1)
        return logits if labels is None else functional.cross_entropy(logits, labels)


def tokens_of(rows, length):
    tokens = torch.randint(0, VOCABULARY, (rows, length))
    return {"input_ids": tokens, "labels": tokens}


def padded_tokens(rows, length):
    """With some places masked out at the end, as encoders are trained."""
    batch = tokens_of(rows, length)
    mask = torch.ones_like(batch["input_ids"])
    mask[0, -3:] = 0
    return batch | {"attention_mask": mask, "labels": batch["labels"].masked_fill(mask == 0, -100)}


def images(rows, length):
    """A length is one of the batch: all images have as many patches."""
    rows = rows * length // 4
    return {"pixel_values": torch.randn(rows, 3, 16, 16), "labels": torch.randint(0, 5, (rows,))}


def small_images(rows, length):
    return {"x": torch.randn(rows, 3, length, 12), "labels": torch.randint(0, 8, (rows,))}


def rows_of(rows, length):
    return {"x": torch.randn(rows * length, WIDTH), "labels": torch.randint(0, 10, (rows * length,))}


def sequences(rows, length):
    return {"x": torch.randn(rows, length, WIDTH), "labels": torch.randint(0, 10, (rows, length))}


@dataclasses.dataclass
class Architecture:
    make: Callable
    batch: Callable
    raised: dict  # how often each pattern is raised in training
    share: float = 0.0  # of FLOPs in our kernels at least, forward and backward each
    compilations: tuple = (2, 3, 3)  # of five lengths, then of another number of sequences; of both in inference


def of(model, config, **sizes):
    return lambda: model(config(**sizes))


ARCHITECTURES = {
    "gpt2": Architecture(of(transformers.GPT2LMHeadModel, transformers.GPT2Config, n_embd=WIDTH, n_layer=LAYERS, n_head=4, n_positions=64,
                            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **TOKENS), tokens_of,
                         {"attention": 2, "linear": 9}, 1.0, (4, 6, 3)),  # transformers breaks the graph before its loss
    "bert": Architecture(of(transformers.BertForMaskedLM, transformers.BertConfig, max_position_embeddings=64, **ENCODER, **TOKENS), padded_tokens,
                         {"attention": 2, "linear": 14}, 1.0),
    "t5": Architecture(of(transformers.T5ForConditionalGeneration, transformers.T5Config, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=LAYERS,
                          num_heads=4, dropout_rate=0.0, use_cache=False, decoder_start_token_id=0, **TOKENS | {"pad_token_id": 0}), tokens_of,
                       {"rms_norm": 12, "linear_cross_entropy": 1, "linear": 32}),  # a bias of positions keeps its attention
    "vit": Architecture(of(transformers.ViTForImageClassification, transformers.ViTConfig, image_size=16, patch_size=4, num_labels=5, **ENCODER), images,
                        {"attention": 2, "linear": 13}, compilations=(2, 2, 2)),
    "gemma2": Architecture(of(transformers.Gemma2ForCausalLM, transformers.Gemma2Config, hidden_size=WIDTH, intermediate_size=64,
                              num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=8,
                              query_pre_attn_scalar=8, use_cache=False, **TOKENS), tokens_of,
                           {"rms_norm": 9, "linear": 15}),  # a soft cap keeps its attention and its loss
    "phi": Architecture(of(transformers.PhiForCausalLM, transformers.PhiConfig, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=LAYERS,
                           num_attention_heads=4, max_position_embeddings=64, use_cache=False, **TOKENS), tokens_of, {"attention": 2, "linear": 13}, 1.0),
    "olmoe": Architecture(of(transformers.OlmoeForCausalLM, transformers.OlmoeConfig, hidden_size=WIDTH, intermediate_size=24,
                             num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2, num_experts=6, num_experts_per_tok=2,
                             output_router_logits=True, use_cache=False, **TOKENS), tokens_of,
                          {"moe_experts": 2, "attention": 2, "rms_norm": 9, "linear_cross_entropy": 1, "linear": 10}, 1.0),
    "mlp": Architecture(Mlp, rows_of, {"linear": 3}, 1.0, (2, 2, 2)),
    "lstm": Architecture(Lstm, sequences, {}, compilations=(0, 0, 0)),  # PyTorch compiles no function with an LSTM
    "convolution": Architecture(Convolution, small_images, {}),
}


def build(name):
    torch.manual_seed(0)
    model = ARCHITECTURES[name].make()
    if getattr(model.config if hasattr(model, "config") else None, "output_router_logits", False):
        maybe_install_capturing_hooks(model.model)  # else the first forward breaks the graph
    return model.train()


def is_t5(model):
    return isinstance(model, transformers.T5ForConditionalGeneration)


def loss_of(model, batch):
    out = model(**batch)
    return out if isinstance(out, torch.Tensor) else out.loss


def logits_of(model, batch):
    batch = {"decoder_input_ids" if name == "labels" else name: value for name, value in batch.items() if name != "labels" or is_t5(model)}
    out = model(**batch)
    return out if isinstance(out, torch.Tensor) else out.logits


class Models(unittest.TestCase):
    BOUNDS = tolerance.parity_bounds(LAYERS, WIDTH, torch.float32)

    def check(self, name):
        with self.subTest("training"):
            self.check_training(name)
        with self.subTest("inference"):
            self.check_inference(name)
        with self.subTest("autocast"):
            self.check_autocast(name)
        with self.subTest("shares"):
            self.check_shares(name)

    def check_training(self, name):
        model, architecture = build(name), ARCHITECTURES[name]
        function = compiled(lambda batch: loss_of(model, batch))
        counts = []
        for rows, lengths in ((2, LENGTHS), (3, LENGTHS[:2])):
            for length in lengths:
                batch = architecture.batch(rows, length)
                found = gradients(lambda batch=batch: function(batch), model.parameters())
                want = gradients(lambda batch=batch: loss_of(model, batch), model.parameters())
                # Each of the two runs has its own error.
                self.assertLess(distance(found[:1], want[:1]), 2 * self.BOUNDS["logits"], (rows, length))
                self.assertLess(worst(found[1:], want[1:]), 2 * self.BOUNDS["gradient"], (rows, length))
            counts.append(compilations())
        self.assertEqual(tuple(counts), architecture.compilations[:2])

    def check_inference(self, name):
        model, architecture = build(name).eval(), ARCHITECTURES[name]
        function = compiled(lambda batch: logits_of(model, batch))
        with torch.no_grad():
            for rows, lengths in ((2, LENGTHS), (3, LENGTHS[:2])):
                for length in lengths:
                    batch = architecture.batch(rows, length)
                    self.assertLess(distance([function(batch)], [logits_of(model, batch)]), 2 * self.BOUNDS["logits"], (rows, length))
        self.assertEqual(compilations(), architecture.compilations[2])

    def check_autocast(self, name):
        model, architecture = build(name), ARCHITECTURES[name]
        batch = architecture.batch(2, LENGTHS[0])
        if name == "olmoe":
            # bf16 shall change no choice of a router.
            tokens, labels = random_models.make_tokens(model, 2, LENGTHS[0], margin=tolerance.routing_margin(LAYERS, WIDTH))
            batch = {"input_ids": tokens, "labels": labels}
        function = compiled(lambda batch: loss_of(model, batch))
        with autocast():
            ours = gradients(lambda: function(batch), model.parameters())
        want = gradients(lambda: loss_of(model, batch), model.parameters())
        if name == "olmoe":
            model.set_experts_implementation("eager")  # whose products autocast rounds too
        with autocast():
            theirs = gradients(lambda: loss_of(model, batch), model.parameters())
        self.assertLess(distance(ours, want), 1.25 * distance(theirs, want))

    def check_shares(self, name):
        model, architecture = build(name), ARCHITECTURES[name]
        torch._dynamo.reset()
        found = ab.torch.explain(lambda batch: loss_of(model, batch), architecture.batch(2, LENGTHS[0]))
        self.assertEqual(found.raised, architecture.raised, found)
        self.assertGreaterEqual(found.forward.share, architecture.share, found)
        self.assertGreaterEqual(found.backward.share, architecture.share, found)


for _name in ARCHITECTURES:
    setattr(Models, f"test_{_name}", lambda self, name=_name: self.check(name))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
