# SPDX-License-Identifier: Apache-2.0
"""Dropout by the draws of src/spec/dropout.h, in numpy and as a module of torch."""

import numpy
import torch

STEPS, COLUMNS, CALLS = 1 << 16, 128, 16
MASK = numpy.uint64(0xFFFFFFFF)


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC 2011): four words from four arrays of words and two words."""
    words = [numpy.asarray(word, dtype=numpy.uint64) & MASK for word in counter]
    low, high = (numpy.uint64(word) for word in key)
    for _ in range(10):
        first, second = words[0] * numpy.uint64(0xD2511F53), words[2] * numpy.uint64(0xCD9E8D57)
        shift = numpy.uint64(32)
        words = [(second >> shift) ^ words[1] ^ low, second & MASK, (first >> shift) ^ words[3] ^ high, first & MASK]
        low, high = (low + numpy.uint64(0x9E3779B9)) & MASK, (high + numpy.uint64(0xBB67AE85)) & MASK
    return words


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def words_of(value):
    return value & 0xFFFFFFFF, value >> 32


def factors(seed, step, site, first_row, rows, width, rate, head=0):
    """What each element [rows, width] is multiplied by: 0, or 1 / (1 - rate). Attention has a stream a head."""
    key = [int(word) for word in philox([*words_of(step), *words_of(fnv1a("dropout_draws"))], words_of(seed))[:2]]
    row = numpy.arange(first_row, first_row + rows, dtype=numpy.uint64)[:, None]
    column = numpy.arange(width, dtype=numpy.uint64)[None, :]
    one = numpy.ones((rows, width), dtype=numpy.uint64)
    call = column // numpy.uint64(COLUMNS) * numpy.uint64(CALLS) + column % numpy.uint64(2 * CALLS) // numpy.uint64(2)
    low, high = words_of((fnv1a(site) + head) & 0xFFFFFFFFFFFFFFFF)
    words = philox([row * one, call * one, one * numpy.uint64(low), one * numpy.uint64(high)], key)
    which = column % numpy.uint64(COLUMNS) // numpy.uint64(2 * CALLS) * one
    word = numpy.choose(which.astype(numpy.int64), words)
    bits = word >> (column % numpy.uint64(2) * numpy.uint64(16)) & numpy.uint64(0xFFFF)
    threshold = round(rate * STEPS)
    return torch.tensor(numpy.where(bits >= threshold, STEPS / (STEPS - threshold), 0.0), dtype=torch.float32)


class Drawn(torch.nn.Module):
    """In place of torch.nn.Dropout. `place` has seed, step and first_row of the micro-batch."""

    def __init__(self, site, rate, place):
        super().__init__()
        self.site, self.rate, self.place = site, rate, place

    def forward(self, x):
        if not self.training:
            return x
        rows, width = x.shape[:-1].numel(), x.shape[-1]
        return x * factors(site=self.site, rate=self.rate, rows=rows, width=width, **self.place).view(x.shape)


def drawn_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **_):
    """transformers' eager attention of GPT-2, whose probabilities [B, H, T, S] are dropped by our draws."""
    scores = query @ key.transpose(-1, -2) * (query.size(-1) ** -0.5 if scaling is None else scaling)
    probabilities = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
    if dropout > 0:
        batch, heads, rows, keys = probabilities.shape
        kept = [factors(site=module.site, rate=dropout, rows=batch * rows, width=keys, head=head, **module.place) for head in range(heads)]
        probabilities = probabilities * torch.stack(kept).view(heads, batch, rows, keys).transpose(0, 1)
    return (probabilities @ value).transpose(1, 2), probabilities


def draw_gpt2(model, place):
    """Puts these modules into a GPT-2."""
    from transformers.models.gpt2 import modeling_gpt2

    modeling_gpt2.eager_attention_forward = drawn_attention
    body, config = model.transformer, model.config
    body.drop = Drawn("embedding.dropout", config.embd_pdrop, place)
    for i, layer in enumerate(body.h):
        layer.attn.site, layer.attn.place = f"layers.{i}.attention.probabilities.dropout", place
        layer.attn.resid_dropout = Drawn(f"layers.{i}.attention.dropout", config.resid_pdrop, place)
        layer.mlp.dropout = Drawn(f"layers.{i}.mlp.dropout", config.resid_pdrop, place)
