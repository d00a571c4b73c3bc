# SPDX-License-Identifier: Apache-2.0
"""Anabatic's operators in PyTorch. Importing it registers names and changes nothing.

    import anabatic.torch

    report = anabatic.torch.adapt(model)    # prints what was adapted, what was not, and why
    optimizer = anabatic.torch.AdamW(model.parameters())
    anabatic.torch.restore(model)

`from_pretrained(..., experts_implementation="anabatic", attn_implementation="anabatic")` works once this is imported.
"""
try:
    import torch as _torch  # noqa: F401
except ImportError as _error:
    raise ImportError("[torch] expected PyTorch, got none; pip install torch") from _error

from . import compiler, nn, ops, optim
from ._adapt import adapt, restore
from ._memory import keep_memory
from ._plugin import load_plugin
from ._registry import register as _register
from ._report import AdaptReport
from .compiler import Explanation, explain
from .optim import AdamW

_register()
compiler.register()

__all__ = ["AdamW", "AdaptReport", "Explanation", "adapt", "compiler", "explain", "keep_memory", "load_plugin", "nn", "ops", "optim", "restore"]
