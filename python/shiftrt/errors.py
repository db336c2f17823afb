# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the library. Ctrl-C raises KeyboardInterrupt, as everywhere in Python."""


class Error(RuntimeError):
    """Something is wrong with a file, a tensor or the machine; the message names it, what was expected and what was found."""


class UsageError(Error, ValueError):
    """A request that makes no sense whatever the files contain.

    Attributes:
        field: the name of the argument or setting that is at fault; empty if no single one is.
        reason: what is wrong, without the name of the field.
    """

    field: str
    reason: str

    def __init__(self, reason: str = "", field: str = ""):
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field, self.reason = field, reason


class OutOfMemory(Error, MemoryError):
    """The memory of a GPU is too small for what was asked.

    Attributes:
        free_bytes: bytes that were free on the GPU when the allocation failed.
    """

    free_bytes: int = 0
