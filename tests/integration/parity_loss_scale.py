# SPDX-License-Identifier: Apache-2.0
"""The dynamic loss scale and the number of updates against torch.amp.GradScaler, over random sequences of steps whose
gradients overflow.

usage: parity_loss_scale.py TRACE_BINARY
"""

import random
import subprocess
import sys

import torch

# Chances of an overflow, and steps. The scale grows beyond float, falls to 0, and does both.
SEQUENCES = [(0.0, 250_000), (0.0003, 20_000), (0.002, 12_000), (0.02, 4_000), (0.5, 1_000), (1.0, 200)]


class CountedSteps(torch.optim.Optimizer):
    """Counts its steps."""

    def __init__(self, parameter):
        super().__init__([parameter], {})
        self.count = 0

    def step(self):
        self.count += 1


def torch_trace(overflows):
    scaler = torch.amp.GradScaler("cpu")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = CountedSteps(parameter)
    scaler.scale(torch.zeros(1))  # makes its state
    trace = []
    for i, overflow in enumerate(overflows, 1):
        parameter.grad = torch.full((1,), float("inf") if overflow else 1.0)
        scaler.step(optimizer)
        scaler.update()
        trace.append((scaler.get_scale(), optimizer.count - i))
    return trace


def our_trace(binary, overflows):
    steps = "".join("1" if overflow else "0" for overflow in overflows)
    lines = subprocess.run([binary], input=steps, capture_output=True, text=True, check=True).stdout.splitlines()
    return [(float(scale), int(updates)) for scale, updates in map(str.split, lines)]


def main():
    seed = random.randrange(2**32)
    generator = random.Random(seed)
    for chance, count in SEQUENCES:
        overflows = [generator.random() < chance for _ in range(count)]
        got, want = our_trace(sys.argv[1], overflows), torch_trace(overflows)
        if len(got) != len(want):
            sys.exit(f"seed {seed}, chance {chance}: expected {len(want)} steps, got {len(got)}")
        for step, (ours, theirs) in enumerate(zip(got, want), 1):
            if ours != theirs:
                sys.exit(f"seed {seed}, chance {chance}, step {step}: expected {theirs} as torch, got {ours}")
        print(f"chance {chance}: {count} steps, {sum(overflows)} skipped, last scale {want[-1][0]}")


main()
