# SPDX-License-Identifier: Apache-2.0
"""What the tests of torch.compile share: compiling afresh, counting compilations and operator calls, comparing gradients."""
import collections
import contextlib
import math
import pathlib
import re
import sys

import torch
import torch._dynamo.utils
import transformers

import anabatic.torch  # noqa: F401

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
transformers.logging.set_verbosity_error()
WITHOUT_REGIONS = {"fusions": {"region": "off"}}
WITHOUT_LINEAR = {"fusions": {"linear": "off"}}


def compiled(function, options=None, **more):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(function, backend="anabatic", options=options, **more)


def compilations():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def gradients(loss, parameters):
    """A loss and its gradients, as one list of tensors."""
    parameters = list(parameters)
    for parameter in parameters:
        parameter.grad = None
    loss = loss()
    loss.backward()
    return [loss.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters)]


def distance(found, want):
    """The norm of all differences, relative to that of all that is wanted."""
    norms = [sum(tensor.double().square().sum() for tensor in tensors) for tensors in ([a.double() - b for a, b in zip(found, want)], want)]
    return math.sqrt(norms[0] / norms[1])


def worst(found, want):
    """The largest distance of one tensor. One below a thousandth of all of them is compared with that: it may be zero but for rounding."""
    least = math.sqrt(sum(tensor.double().square().sum() for tensor in want)) / 1000
    return max((a.double() - b).norm().item() / max(b.double().norm().item(), least) for a, b in zip(found, want))


@contextlib.contextmanager
def counted():
    """Calls of our operators inside, those of regions as one. A compilation calls fakes, which count too: run what is compiled before."""
    calls = collections.Counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        yield calls
    for event in profile.key_averages():
        if event.key.startswith("anabatic::"):
            calls[re.sub(r"region_\d+", "region", event.key.removeprefix("anabatic::"))] += event.count


def autocast(enabled=True):
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)
