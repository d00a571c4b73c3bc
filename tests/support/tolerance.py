# SPDX-License-Identifier: Apache-2.0
"""The only place where Python tests compute a tolerance; tolerance.h holds the same bounds for C++ tests."""

import math

import torch

UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
# torch's own bf16 run rounds at other places than ours, so its error is a yardstick, not a bound.
WORSE_THAN_PEER = 2.0
# The same for one tensor, whose error in torch's run may be small by chance.
WORSE_THAN_PEER_TENSOR = 4.0
# Losses of two fp32 runs from the same weights on the same batches, relative.
TRAINING_LOSS = 1e-4
# A gradient's error is about its own size times that of a loss, and a norm sums all of them.
TRAINING_GRADIENT_NORM = 1e-3
# Logits of a small model with an adapter, relative.
ADAPTER_LOGITS = 2e-5
# A tensor of an adapter after 20 fp32 steps: its largest error over its largest element.
TRAINED_ADAPTER = 1e-3
# For each gradient of a pretrained model, fp32 against double: its largest error over its largest
# element.
REAL_MODEL_GRADIENT = 1e-4
# Its logits in fp32, over the largest one.
REAL_MODEL_LOGIT = 5e-5
# Sums of a continuation's log-probabilities, absolute: fp32 on both sides, but for the softmax of
# the other one. PyTorch's in fp32 alone is off by up to 2e-5 a token of SmolLM2-135M-Instruct.
TASK_LOG_PROBABILITY = 1e-4
# Log-probabilities of llama.cpp by the type of the weights. It rounds activations to that of bf16
# weights, and to 8 bits where weights are in MXFP4.
LLAMA_CPP_LOG_PROBABILITY = {"f32": 1e-3, "bf16": 2e-2, "mxfp4": 2e-2}


def parity_bounds(num_layers, hidden_size, dtype):
    """‖got - want‖₂ <= bound · ‖want‖₂ for logits and for each gradient of a whole model.

    Each layer rounds about eight tensors on the residual's way, and their errors are independent, so they add as a
    random walk; a sum of K products has error √K·u. A gradient goes the way twice and rests on a forward that is off
    already.
    """
    tensors_per_layer, confidence = 8, 4
    walk = math.sqrt(tensors_per_layer * (num_layers + 1))
    per_tensor = UNIT_ROUNDOFF[dtype] + math.sqrt(hidden_size) * UNIT_ROUNDOFF[torch.float32]
    logits = confidence * walk * per_tensor
    return {"logits": logits, "gradient": 3 * logits}


def routing_margin(num_layers, hidden_size):
    """How far the last chosen expert's logit must stand above the next one, as a share of the norm of the token's
    logits, so that bf16 errors do not change the choice: one deviation of the logits' whole error vector, of which two
    of the logits hold a part."""
    return parity_bounds(num_layers, hidden_size, torch.bfloat16)["logits"] / 4


def relative_error(got, want):
    """‖got - want‖₂ / ‖want‖₂ in double; 0 for two zeroes, infinite for NaN or anything against zero."""
    got, want = got.double(), want.double()
    if got.shape != want.shape or not torch.isfinite(got).all():
        return math.inf
    difference, size = (got - want).norm().item(), want.norm().item()
    if size == 0:
        return 0.0 if difference == 0 else math.inf
    return difference / size


def largest_relative_error(got, want):
    """The largest error over the largest element, in double; infinite for NaN or another shape."""
    got, want = got.double(), want.double()
    if got.shape != want.shape or not torch.isfinite(got).all():
        return math.inf
    return ((got - want).abs().max() / want.abs().max()).item()
