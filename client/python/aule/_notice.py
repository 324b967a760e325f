# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Wakes coroutines that await tickets: the session's descriptor in their event loops. No thread.

The descriptor is readable while an ended ticket is not reaped. So a loop that finds it readable
reaps all tickets that have ended, also those that nobody awaits. It knows tickets by their methods
only, and copies no output. Any thread, and any number of loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import errors
from ._native import Handle, check, ffi, lib, listed

if TYPE_CHECKING:
    from ._ticket import Ticket
    from .session import Session

UNFRUITFUL = 20  # looks in a row that find nothing to reap
PAUSE_S = 0.005  # after these, before the next look


class _Reader:
    """A duplicate of the descriptor in one loop. It is closed with the session or with the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, notice: Notice) -> None:
        self._loop = loop
        self._fd = os.dup(fd)
        self._notice = weakref.ref(notice)
        self._users = 0
        self._unfruitful = 0

    def __enter__(self) -> None:
        self._users += 1
        if self._users == 1 and self._fd >= 0:
            self._loop.add_reader(self._fd, self._look)

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            self._remove()

    def _look(self) -> None:
        notice = self._notice()
        if notice is not None and notice.reap():
            self._unfruitful = 0
            return
        # Another loop was faster; or a ticket has ended that another thread reaps soon.
        self._unfruitful += 1
        if self._unfruitful >= UNFRUITFUL:
            self._remove()
            self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._users and self._fd >= 0:
            self._loop.add_reader(self._fd, self._look)

    def _remove(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.remove_reader(self._fd)

    def close(self) -> None:
        """Take the descriptor out of the loop and close it. Its thread, or the loop has ended."""
        self._remove()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def retire(self) -> None:
        """Close it from any thread."""
        try:
            self._loop.call_soon_threadsafe(self.close)
        except RuntimeError:  # the loop is closed
            self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)

    @property
    def stale(self) -> bool:
        """Whether the loop has been closed."""
        return self._loop.is_closed()


class Notice:
    """A session's descriptor, and the tickets in flight that it stands for."""

    def __init__(self, session: Session, handle: Handle) -> None:
        fd = ffi.new("int *")
        check(lib.aule_session_fd(handle.pointer, fd))
        self._fd = int(fd[0])
        self._session = weakref.ref(session)
        self._lock = threading.Lock()  # of _readers
        self._reaps = threading.Lock()
        self._readers: dict[asyncio.AbstractEventLoop, _Reader] = {}
        self._flying: dict[int, weakref.ref[Ticket]] = {}  # in no order

    def add(self, ticket: Ticket) -> None:
        """Note a ticket that is submitted now, or awaited."""
        self._flying[id(ticket)] = weakref.ref(ticket)

    def drop(self, ticket: Ticket) -> None:
        """Forget a ticket that was reaped, or that nobody has any more."""
        self._flying.pop(id(ticket), None)

    @contextlib.contextmanager
    def reading(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Reap what ends, while a coroutine of this loop waits; the caller keeps the session."""
        with self._lock:
            reader = self._readers.get(loop)
            if reader is None:
                for closed in [old for old, its in self._readers.items() if its.stale]:
                    self._readers.pop(closed).close()
                reader = self._readers[loop] = _Reader(loop, self._fd, self)
        with reader:
            yield

    def reap(self) -> bool:
        """Reap tickets that have ended, without waiting. False: there was none."""
        if not self._reaps.acquire(blocking=False):
            return True  # another loop does it
        try:
            session = self._session()
            some = session is not None and session._sweep()
            running: int | None = None  # tickets end in the order of their ids
            for reference in listed(self._flying.values()):
                ticket = reference()
                if ticket is None or (running is not None and ticket._id > running):
                    continue
                try:
                    over = ticket._look()
                except errors.AuleError:  # the look's own
                    over = ticket._wake() or None  # a waiter meets it, too
                if over is False:
                    running = ticket._id
                some = some or over is True
            return some
        finally:
            self._reaps.release()

    def close(self) -> None:
        """Wake all who wait, and leave the loops. The session is closed."""
        for reference in listed(self._flying.values()):
            ticket = reference()
            if ticket is not None:
                ticket._wake()
        with self._lock:
            readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.retire()
