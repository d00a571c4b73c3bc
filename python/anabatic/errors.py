# SPDX-License-Identifier: Apache-2.0
"""The errors that Anabatic raises. Each is also the kind of error that Python has for it.

The text has the form "[where] expected X, got Y; hint".
"""


class Error(Exception):
    """The base class, and a step that failed: a loss or a gradient that is not finite."""


class InvalidArgument(Error, ValueError):
    """A bad argument, config or file. The text lists every problem."""


class Unsupported(Error, NotImplementedError):
    """A valid request that nothing here can do."""


class ResourceError(Error, OSError):
    """Memory, disk or the operating system failed."""


class BudgetError(Error, MemoryError):
    """No plan fits memory.budget. Raised before anything is allocated."""

    reason: str = ""  # one line
    smallest_bytes: int = 0  # the smallest memory.budget that is enough; 0: unknown


class CommError(Error, ConnectionError):
    """A rank or an exchange between ranks failed."""


class InternalError(Error, RuntimeError):
    """A bug in Anabatic."""
