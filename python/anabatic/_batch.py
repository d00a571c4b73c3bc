# SPDX-License-Identifier: Apache-2.0
"""A batch of the caller as rows of token ids, labels and lengths of documents."""
from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgument

if TYPE_CHECKING:
    import numpy

_KEYS = {"input_ids": "input_ids", "tokens": "input_ids", "labels": "labels", "attention_mask": "attention_mask",
         "position_ids": "position_ids", "positions": "position_ids"}


def _array(name: str, values: object) -> numpy.ndarray:
    import numpy
    array = numpy.asarray(values)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.dtype.kind not in "iub":
        raise InvalidArgument(f"[batch] {name}: expected integers of shape [sequences, tokens], got {array.dtype} of shape {list(array.shape)}")
    if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
        raise InvalidArgument(f"[batch] {name}: expected numbers of 32 bits, got {array.min()} to {array.max()}")
    return array.astype(numpy.int32)


def _lengths(row: int, positions: numpy.ndarray) -> list[int]:
    """Lengths of the documents of a row. Each begins with position 0 and counts up from there."""
    import numpy
    begins = numpy.flatnonzero(positions == 0)
    expected = numpy.arange(len(positions), dtype=numpy.int32)
    if len(begins) and begins[0] == 0:
        expected = expected - numpy.repeat(begins, numpy.diff([*begins, len(positions)])).astype(numpy.int32)
    wrong = numpy.flatnonzero(positions != expected)
    if len(wrong):
        raise InvalidArgument(f"[batch] position_ids, sequence {row}: expected positions that count up from 0 in each document, "
                              f"got {positions[wrong[0]]} at place {wrong[0]}, where {expected[wrong[0]]} would follow")
    return numpy.diff([*begins, len(positions)]).tolist()


def rows_of(batch: Mapping[str, Any]) -> list[tuple[numpy.ndarray, numpy.ndarray | None, list[int]]]:
    """Rows (tokens, labels or None, lengths of documents) of a dict as collators of transformers make it.

    input_ids (or tokens) [B, L]; labels [B, L], where -100 is ignored; attention_mask [B, L] of ones and zeros, whose ones are
    in one piece; position_ids (or positions) [B, L], which restart at 0 where a document begins.
    """
    import numpy
    arrays = {}
    for name, values in batch.items():
        if name not in _KEYS:
            near = difflib.get_close_matches(str(name), _KEYS, 1)
            raise InvalidArgument(f"[batch] expected {', '.join(_KEYS)}, got '{name}'" + (f"; did you mean {near[0]}?" if near else ""))
        if _KEYS[name] in arrays:
            raise InvalidArgument(f"[batch] expected {_KEYS[name]} once, got it as '{name}' too")
        if values is not None:
            arrays[_KEYS[name]] = _array(name, values)
    if "input_ids" not in arrays:
        raise InvalidArgument(f"[batch] expected input_ids, got {', '.join(batch) or 'nothing'}")
    tokens = arrays["input_ids"]
    for name, array in arrays.items():
        if array.shape != tokens.shape:
            raise InvalidArgument(f"[batch] {name}: expected the shape of input_ids, {list(tokens.shape)}, got {list(array.shape)}")
    rows = []
    for row in range(len(tokens)):
        place = slice(0, tokens.shape[1])
        if "attention_mask" in arrays:
            ones = numpy.flatnonzero(arrays["attention_mask"][row])
            if len(ones) and ones[-1] - ones[0] + 1 != len(ones):
                raise InvalidArgument(f"[batch] attention_mask, sequence {row}: expected ones in one piece, got zeros between them")
            place = slice(ones[0], ones[-1] + 1) if len(ones) else slice(0, 0)
        length = place.stop - place.start
        if length == 0:
            continue  # padding alone
        labels = arrays["labels"][row][place] if "labels" in arrays else None
        documents = _lengths(row, arrays["position_ids"][row][place]) if "position_ids" in arrays else [length]
        rows.append((numpy.ascontiguousarray(tokens[row][place]), None if labels is None else numpy.ascontiguousarray(labels), documents))
    return rows
