# SPDX-License-Identifier: Apache-2.0
"""The name "anabatic" among the implementations that transformers knows."""
from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

NAME = "anabatic"
_HOME = "transformers.modeling_utils"  # has from_pretrained, which asks the registries


def has_experts() -> bool:
    """Whether transformers has a registry of experts (from 5.0.0 on)."""
    return importlib.util.find_spec("transformers") is not None and importlib.util.find_spec("transformers.integrations.moe") is not None


def register() -> None:
    """Registers what transformers asks for by name, now or as soon as it is imported: that takes seconds.

    Nothing changes for models that do not ask.
    """
    if _HOME in sys.modules:
        _register_now()
    elif not any(isinstance(finder, _Later) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Later())


class _Later(importlib.abc.MetaPathFinder):
    """Finds one module as all others do, and registers after it has run."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != _HOME:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _register_now()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def _register_now() -> None:
    """The modules register when they are imported. One that is being imported, and imports transformers, does it at its end."""
    try:
        from . import _attention  # noqa: F401
    except ImportError:
        return  # transformers before 4.53 has no registry of masks
    if has_experts():
        from . import _experts  # noqa: F401
