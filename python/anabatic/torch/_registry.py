# SPDX-License-Identifier: Apache-2.0
"""The name "anabatic" among the implementations that transformers knows."""
from __future__ import annotations

import importlib.util

NAME = "anabatic"


def has_experts() -> bool:
    """Whether transformers has a registry of experts (from 5.0.0 on)."""
    return importlib.util.find_spec("transformers") is not None and importlib.util.find_spec("transformers.integrations.moe") is not None


def register() -> None:
    """Registers what transformers asks for by name. Nothing changes for models that do not ask."""
    if importlib.util.find_spec("transformers") is None:
        return
    try:
        from . import _attention
    except ImportError:
        return  # transformers before 4.53 has no registry of masks
    _attention.register(NAME)
    if has_experts():
        from . import _experts
        _experts.register(NAME)
