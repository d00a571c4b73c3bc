# SPDX-License-Identifier: Apache-2.0
"""What torch.compile(..., options=) may say."""
from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import InvalidArgument
from ._raise import PATTERNS

RESTS = ("eager", "inductor")


@dataclasses.dataclass(frozen=True)
class Options:
    patterns: dict[str, bool]
    rest: str


def _unknown(what: str, name: object, known: Iterable[str]) -> InvalidArgument:
    known = list(known)
    nearest = difflib.get_close_matches(str(name), known, 1, 0.0)
    return InvalidArgument(f"[compile] {what}: expected {', '.join(known)}, got {name!r}; the nearest is {nearest[0]!r}")


def read(mode: object, options: Mapping[str, Any] | None) -> Options:
    if mode not in (None, "default"):
        raise InvalidArgument(f"[compile] mode: expected none, got {mode!r}; options={{'rest': 'inductor'}} is what there is")
    patterns, rest = dict(PATTERNS), "eager"
    for name, value in (options or {}).items():
        if name == "rest":
            if value not in RESTS:
                raise _unknown("options['rest']", value, RESTS)
            rest = str(value)
        elif name == "fusions":
            if not isinstance(value, Mapping):
                raise InvalidArgument(f"[compile] options['fusions']: expected a dict of 'on' and 'off' by name, got {value!r}")
            for fusion, state in value.items():
                pattern = str(fusion).removeprefix("fuse_")
                if pattern not in PATTERNS:
                    raise _unknown("options['fusions']", fusion, PATTERNS)
                if state not in ("on", "off"):
                    raise _unknown(f"options['fusions'][{fusion!r}]", state, ("on", "off"))
                patterns[pattern] = state == "on"
        else:
            raise _unknown("options", name, ("fusions", "rest"))
    return Options(patterns, rest)
