# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Tickets: queued runs, how threads and coroutines wait for them, and when outputs are copied.

It knows neither shapes nor batches. Any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from . import errors
from ._cuda import Sent, follow
from ._native import (
    BUSY,
    OK,
    SLICE_MS,
    TIMEOUT,
    Handle,
    check,
    error,
    ffi,
    lib,
    milliseconds,
    sliced,
)
from ._tensors import Array

if TYPE_CHECKING:
    from .session import Session

_STAYS = (TIMEOUT, int(lib.AULE_LIMIT), int(lib.AULE_NO_MEMORY))  # a wait's failure may be its own

FIRST_LOOK_S, LAST_LOOK_S = 0.0002, 0.01  # between looks at a ticket older than the descriptor

_new_ticket = ffi.typeof("struct aule_ticket *")
_new_result = ffi.typeof("struct aule_run_result *")
_result_size = ffi.sizeof("struct aule_run_result")
_wait = lib.aule_ticket_wait_sized


class RunResult(NamedTuple):
    """GPU time in ns (0: no timestamps), and how many runs and sessions shared the dispatch."""

    gpu_ns: int
    num_runs: int
    num_sessions: int


class Ticket:
    """Queued work. wait() or `await` gives the output: `out`, or `(out, lse)` if lse was wanted.

    A ticket that is dropped is reaped later; its tensors stay until then. Any thread may wait.
    """

    __slots__ = ("__weakref__", "_back", "_error", "_handle", "_keep", "_lock", "_noted",
                 "_output", "_result", "_sent", "_session", "_ticket", "_waiters")

    def __init__(self, session: Session, output: Any, keep: list[Any],
                 back: list[tuple[Array, Array]]) -> None:
        self._session = session
        self._handle: Handle | None = session._open()  # None: reaped
        self._ticket = ffi.new(_new_ticket)  # the library fills it in; id 0: nothing is queued
        self._output = output
        self._keep = keep
        self._back = back
        self._sent: Sent = ()  # events behind the output, if CUDA copies it
        self._lock = threading.Lock()
        self._result: Any = None
        self._error: Exception | None = None
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        notice = session._notice
        self._noted = notice is not None  # the session's descriptor stands for this ticket
        if notice is not None:
            notice.add(self)

    def _queue(self, call: Callable[[int, Any], int], timeout: float | None,
               alive: Callable[[], object]) -> None:
        """Queue the work by `call(timeout_ms, native ticket)`, which waits for a free ticket.

        Make the Ticket before: if Ctrl-C comes right behind the call, it keeps the tensors.
        """
        check(sliced(lambda ms: int(call(ms, self._ticket)), timeout, (BUSY,), alive))

    @property
    def _id(self) -> int:
        """Of a session's tickets those with smaller ids end first. 0: nothing is queued."""
        return int(self._ticket.id)

    @property
    def done(self) -> bool:
        """Whether the work has ended. Does not wait."""
        return self._poll(0)

    @property
    def result(self) -> RunResult:
        """GPU time and sharing; after the wait. InvalidError: it is not done."""
        if self._result is None:
            raise errors.InvalidError("the ticket is not done: wait for it first")
        return RunResult(*[getattr(self._result, name) for name in RunResult._fields])

    @property
    def path(self) -> str:
        """Where attention read K and V: "auto" (no attention), "contiguous" or "paged"."""
        return ("auto", "contiguous", "paged")[self._ticket.path]

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the work is done, and return the output.

        timeout: seconds; None: for ever. Ctrl-C ends the wait, not the work. TimeoutError: not
        done yet; wait again. Other errors: the run failed, and its output is undefined. An output
        in a CUDA tensor is copied on the current stream, which orders what follows.
        """
        ms = milliseconds(timeout)
        if not self._poll(SLICE_MS if ms < 0 else min(ms, SLICE_MS)):
            end = None if timeout is None else time.monotonic() + timeout - SLICE_MS / 1000
            while True:
                left = SLICE_MS if end is None else int((end - time.monotonic()) * 1000)
                if left <= 0:
                    raise errors.TimeoutError(f"the run is not done after {timeout} s; it goes on")
                if self._poll(min(left, SLICE_MS)):
                    break
        if self._error is not None:
            raise self._error
        if self._sent:
            follow(self._sent)
        return self._output

    def __await__(self) -> Generator[Any, None, Any]:
        return self._async_wait().__await__()

    async def _async_wait(self) -> Any:
        loop = asyncio.get_running_loop()
        pause = FIRST_LOOK_S
        while self._look() is not True:
            keep = self._handle  # the session's descriptor stays open
            if keep is None:
                break
            notice = self._session._noticed(keep)
            notice.add(self)
            future: asyncio.Future[None] = loop.create_future()
            self._waiters.append((loop, future))
            timer = None
            try:
                if self._look() is True:  # before the waiter was noted, nothing would have woken it
                    break
                if not self._noted:
                    timer = loop.call_later(pause, _end_wait, future)
                    pause = min(2 * pause, LAST_LOOK_S)
                with notice.reading(loop):
                    await future
            finally:
                self._waiters.remove((loop, future))
                if timer is not None:
                    timer.cancel()
        self._forget()  # another thread may have ended it just before it was noted
        return self.wait()

    def _look(self) -> bool | None:
        """Reap it if it has ended; the output is not copied.

        None: another thread waits for it, or is about to submit it.
        """
        if self._handle is None or self._result is not None:
            return True
        if not self._ticket.id or not self._lock.acquire(blocking=False):
            return None
        try:
            over = self._try(0, copy=False)
        finally:
            self._lock.release()
        if over:
            self._wake()
        return over

    def _wake(self) -> bool:
        """Let the coroutines look that await this ticket. False: none does."""
        waiters = list(self._waiters)
        for loop, future in waiters:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_end_wait, future)
        return bool(waiters)

    def _poll(self, timeout_ms: int) -> bool:
        """Wait up to `timeout_ms`. True: over, with `_error` set if it failed."""
        if self._handle is None:
            return True
        try:
            with self._lock:
                return self._try(timeout_ms, copy=True)
        finally:  # also if Ctrl-C ends the copy
            if self._waiters and (self._result is not None or self._handle is None):
                self._wake()

    def _try(self, timeout_ms: int, copy: bool) -> bool:
        """Wait as `_poll` does; the caller has the lock."""
        handle = self._handle
        if handle is None:
            return True
        if self._result is None:
            if self._session._handle is not handle:
                self._end(errors.ClosedError("this session was closed before its run was done"))
                return True
            result = ffi.new(_new_result)
            status = _wait(handle.pointer, self._ticket[0], timeout_ms, result, _result_size)
            if status == TIMEOUT:
                return False
            if status in _STAYS:
                raise error(status)
            if status != OK:
                self._end(error(status))
                return True
            self._result = result
            self._forget()
        if copy:
            self._end(None)
        return True

    def _end(self, failure: Exception | None) -> None:
        """Copy the output, and let go. The handle goes last: without it others take the output."""
        try:
            arena, handle = self._session._arena, self._handle
            if failure is None and handle is not None:
                for copy, target in self._back:
                    arena.copy_out(handle, copy, target)
                self._sent = arena.sent()
        except Exception as reason:
            failure = reason
        self._forget()
        self._error = failure
        self._back = []
        self._keep = []
        self._handle = None

    def _forget(self) -> None:
        notice = self._session._notice
        if notice is not None:
            notice.drop(self)

    def _reap(self) -> bool:
        """Poll a dropped ticket; True: it needs no more."""
        self._back = []
        try:
            return self._poll(0)
        except errors.AuleError:
            return False

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is None:
            return
        self._forget()
        if self._ticket.id:
            self._session._orphans.append(self)


def _end_wait(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
