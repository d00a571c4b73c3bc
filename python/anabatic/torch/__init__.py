# SPDX-License-Identifier: Apache-2.0
"""Anabatic's operators for PyTorch. Importing it registers names and changes nothing."""
try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("anabatic.torch needs PyTorch, which is not installed: pip install torch") from error

from . import nn, ops, optim
from .optim import AdamW

__all__ = ["AdamW", "nn", "ops", "optim"]
