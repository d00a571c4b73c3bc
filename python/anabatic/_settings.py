# SPDX-License-Identifier: Apache-2.0
"""Configs as the library takes them: a YAML file, and values by key as text."""
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .errors import InvalidArgument


def _text(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, Mapping) and all(isinstance(part, str) for pair in value.items() for part in pair):
        return "{" + ", ".join(f"{name}: {word}" for name, word in value.items()) + "}"
    raise InvalidArgument(f"[config] {key}: expected text, a number, a path, True or False, or a list of these, got {type(value).__name__}")


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, list[str]]:
    """Values by key as lists of text. {"train": {"steps": 10}} is {"train.steps": 10}; a value of None leaves the key out."""
    flat: dict[str, list[str]] = {}
    for name, value in settings.items():
        if not isinstance(name, str):
            raise InvalidArgument(f"[config] expected keys as text, got {name!r}")
        key = prefix + name
        if isinstance(value, Mapping):
            parts = flatten(value, key + ".")
        elif value is None:
            parts = {}
        elif isinstance(value, (list, tuple)):
            parts = {key: [_text(key, item) for item in value]}
        else:
            parts = {key: [_text(key, value)]}
        for part, texts in parts.items():
            if part in flat:
                raise InvalidArgument(f"[config] {part}: expected one value, got two")
            flat[part] = texts
    return flat


def split_config(config: Any, overrides: Mapping[str, Any] | None) -> tuple[dict[str, list[str]], str]:
    """(values by key, YAML file or ""). `config` is a YAML file, a mapping, or None."""
    file = ""
    settings: dict[str, list[str]] = {}
    if isinstance(config, Mapping):
        settings = flatten(config)
    elif isinstance(config, (str, os.PathLike)):
        file = str(os.fspath(config))
    elif config is not None:
        raise InvalidArgument(f"[config] expected a YAML file or a dict, got {type(config).__name__}")
    return settings | flatten(overrides or {}), file
