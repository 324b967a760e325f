# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Exceptions: one class for each status of libaule-client, all of them an AuleError.

The text is the library's or the daemon's own sentence, with the values that were wrong.
"""

from __future__ import annotations

import builtins


class AuleError(Exception):
    """The base of all errors of aule. `status` is the number of enum aule_status."""

    status: int = -1

    @property
    def name(self) -> str:
        """The status's name as aule.h has it, such as "NOT_HELD"."""
        return _NAMES.get(self.status, "UNKNOWN")


class InvalidError(AuleError, ValueError):
    """An argument is out of its range, or a tensor has a wrong shape or strides."""

    status = 1


class UnsupportedError(AuleError, NotImplementedError):
    """This library, daemon or device does not do it."""

    status = 2


class DeniedError(AuleError, PermissionError):
    """The caller may not do this."""

    status = 3


class NoMemoryError(AuleError, MemoryError):
    """Out of host, shared or device memory."""

    status = 4


class NoBlocksError(AuleError):
    """The pool has no free block, or not in time."""

    status = 5


class QuotaError(AuleError):
    """The session's own limit is reached."""

    status = 6


class NotHeldError(AuleError):
    """A block is not held by this session."""

    status = 7


class SealedError(AuleError):
    """A block is sealed; sealed contents never change."""

    status = 8


class UnwrittenError(AuleError):
    """A slot is needed that no run has written in its layer."""

    status = 9


class DuplicateSlotError(AuleError, ValueError):
    """A slot occurs twice in one batch."""

    status = 10


class OutOfRangeError(AuleError, IndexError):
    """An id, a length or an offset points outside what it indexes."""

    status = 11


class MisalignedError(AuleError, ValueError):
    """An offset or a stride is no multiple of 16 bytes (LSE: 4)."""

    status = 12


class MismatchError(AuleError, ValueError):
    """The object exists with another identity, shape or element type."""

    status = 13


class NotFoundError(AuleError, LookupError):
    """There is no such object."""

    status = 14


class LimitError(AuleError):
    """A limit is reached; the sentence names its option."""

    status = 15


class BusyError(AuleError):
    """Too many unreaped tickets, or the object is in use."""

    status = 16


class TimeoutError(AuleError, builtins.TimeoutError):
    """The deadline passed; the work may go on."""

    status = 17


class MalformedError(AuleError):
    """A message was truncated, corrupt or oversized."""

    status = 18


class VersionError(AuleError):
    """The versions of library and daemon, or of library and package, do not match."""

    status = 19


class NoSessionError(AuleError, ConnectionError):
    """The connection has no such session; an operator may have ended it."""

    status = 20


class EpochError(AuleError, ConnectionError):
    """The object belongs to an earlier life of the daemon."""

    status = 21


class DaemonGoneError(AuleError, ConnectionError):
    """The daemon is gone or cannot be reached."""

    status = 22


class DeviceLostError(AuleError):
    """The GPU stopped; open the session anew."""

    status = 23


class ForkedError(AuleError):
    """The object was opened before fork(). multiprocessing needs the start method spawn."""

    status = 24


class StoppingError(AuleError, ConnectionError):
    """The daemon is stopping and takes no new work."""

    status = 25


class InternalError(AuleError):
    """A defect in aule; please report it."""

    status = 26


class ClosedError(AuleError, ValueError):
    """This process has closed the session, cache, sequence or step."""


CLASSES: dict[int, type[AuleError]] = {
    cls.status: cls for cls in AuleError.__subclasses__() if cls.status > 0
}
_NAMES: dict[int, str] = {}  # filled by _native, from enum aule_status


def of(status: int, sentence: str) -> AuleError:
    """Make the exception of a status. A newer library's status becomes a plain AuleError."""
    error = CLASSES.get(status, AuleError)(sentence)
    error.status = status
    return error
