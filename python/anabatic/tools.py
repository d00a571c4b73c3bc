# SPDX-License-Identifier: Apache-2.0
"""What needs no run."""
from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import _core
from ._settings import flatten, split_config
from .errors import InvalidArgument
from .training import Config, Path, _Events

if TYPE_CHECKING:
    import numpy


def plan(config: Config = None, overrides: Mapping[str, Any] | None = None) -> _core.PlannedStep:
    """Predicts memory and time of a step from config.json alone, without allocating or running; a PlannedStep.

    Takes what Training takes; only model.path has to be there. BudgetError if no plan fits memory.budget.
    """
    return _core.plan(*split_config(config, overrides))


def info(path: Path) -> dict[str, Any]:
    """What a model directory or a GGUF file holds, as `anabatic info --json` prints it; a dict."""
    found: dict[str, Any] = json.loads(_core.model_info(os.fspath(path)))
    return found


def load_plugin(path: Path) -> dict[str, Any]:
    """Loads and checks a plugin; a dict of its ops and kernels. A run uses it by its keys: {"plugins": [path], "model.replace": [...]}."""
    found = info(path) if os.fspath(path).endswith(".so") else {}
    if "plugin" not in found:
        raise InvalidArgument(f"[plugin] expected a shared library, got {os.fspath(path)}")
    return found


def tokenize(model: Path, files: Path | Iterable[Path], output: Path, **keys: Any) -> dict[str, int]:
    """Writes the token ids of text and JSON files to OUTPUT.bin and OUTPUT.idx, which data.train reads.

    The tokenizer is that of the model directory. `keys` are keys with _ for the dot's place: data_add_bos=False. Returns a
    dict of the numbers of documents, tokens and bytes of text.
    """
    paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    settings: dict[str, Any] = {}
    for name, value in keys.items():
        section, _, key = name.partition("_")
        settings[f"{section}.{key}"] = value
    counts = _core.tokenize_files([os.fspath(path) for path in paths], os.fspath(output), flatten({"model.path": model, **settings}))
    return dict(zip(("documents", "tokens", "text_bytes"), counts))


class Dataset:
    """The samples that data.train becomes, in the order of the files.

    Takes what Training takes; model.path and data.train have to be there. A sample is a dict of int32 arrays without padding:
    input_ids, labels and position_ids, as a collator of transformers makes them. A document that goes on in the next sample
    has no label there for its first token.
    """

    def __init__(self, config: Config = None, overrides: Mapping[str, Any] | None = None) -> None:
        self._data = _core.Dataset(*split_config(config, overrides), _Events())

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, number: int) -> dict[str, numpy.ndarray]:
        if not -len(self) <= number < len(self):
            raise IndexError(f"[dataset] expected a sample below {len(self)}, got {number}")
        return dict(zip(("input_ids", "labels", "position_ids"), self._data.sample(number % len(self))))

    @property
    def num_tokens(self) -> int:
        return self._data.num_tokens

    @property
    def num_documents(self) -> int:
        return self._data.num_documents


class Tokenizer(_core.Tokenizer):
    """A model's tokenizer: a model directory, a GGUF file, or a tokenizer's own file. Ids equal those of Hugging Face
    tokenizers on the same files. encode(text, add_special_tokens=True), decode(ids, skip_special_tokens=True)."""

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        super().__init__(self._path)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[str]]:
        return Tokenizer, (self._path,)
