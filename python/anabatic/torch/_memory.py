# SPDX-License-Identifier: Apache-2.0
"""Whether the process keeps the memory that it frees.

glibc gives large blocks back to the system. Gradients and activations are such blocks, freed and taken again in each step, and
the system clears each page of them anew: up to a quarter of a step's processor time.
"""
from __future__ import annotations

import ctypes
import os

from ..errors import Unsupported

# Parameters of mallopt, and their defaults: <malloc.h>.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_DEFAULTS = {_TRIM_THRESHOLD: 128 << 10, _MMAP_MAX: 65536}
_OWN = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def is_chosen() -> bool:
    """Whether the environment says what malloc does."""
    return any(name in os.environ for name in _OWN) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")


def keep_memory(keep: bool = True) -> None:
    """Freed memory stays with the process, for what is allocated next. Its peak hardly changes. False: as glibc does it.

    It holds for the whole process. Unsupported where malloc is not glibc's.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        raise Unsupported("[keep_memory] expected glibc's malloc, got a C library without mallopt") from None
    for parameter, default in _DEFAULTS.items():
        value = default if not keep else -1 if parameter == _TRIM_THRESHOLD else 0
        if mallopt(parameter, value) != 1:
            raise Unsupported(f"[keep_memory] expected a malloc that takes mallopt({parameter}, {value}), got one that does not")
