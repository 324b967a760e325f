# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Copies between the arena and torch's CUDA tensors: asynchronous, on the caller's stream.

CUDA copies asynchronously only from and to page-locked memory. So the arena is registered with
CUDA, by the runtime that torch has loaded; this package links no CUDA. The daemon reads host
memory. So a run is sent after `arrive()`, and nothing waits for copies of its output: `sent()`
tells other streams when they may read it. This module knows torch's streams and events, no run.
Any thread.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from typing import Any, NamedTuple

from . import _streams, errors
from ._native import Handle

PORTABLE = 1  # cudaHostRegisterPortable: page-locked for all devices of the process

# A stream and an event behind what it copies.
Sent = tuple[tuple[Any, Any], ...]


class CudaCopies(NamedTuple):
    """How a session copies CUDA tensors; both numbers of bytes are parts of `session.copied`.

    page_locked: the arena is registered with CUDA. bytes_async: copied on the caller's stream.
    bytes_plain: copied while the caller waited. reason: why the arena is not registered, or "".
    """

    page_locked: bool
    bytes_async: int
    bytes_plain: int
    reason: str


class _Copy(NamedTuple):
    """A copy that CUDA may still make: it needs both tensors."""

    stream: Any
    target: Any
    source: Any


class PageLock:
    """The arena's registration with CUDA, and the copies that are under way.

    Memory of the arena that CUDA may still read or write stays allocated until an event has passed.
    """

    def __init__(self, session: Handle, base: Any, address: int, size: int,
                 stream_timeout: float | None) -> None:
        self._timeout = stream_timeout
        self._torch = importlib.import_module("torch")
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._coming: dict[int, list[_Copy]] = {}  # by thread; no event is behind them yet
        self._flying: list[tuple[Any, list[_Copy]]] = []  # with the event behind them
        self._token: Any = None
        runtime = _registered(self._torch, address, size)
        pid = self._pid

        def unregister(*_: object) -> None:
            if os.getpid() == pid:  # a forked child has no CUDA
                runtime.cudaHostUnregister(address)

        # The session keeps the arena until this has been called.
        self._token = session.lend(base, unregister)

    # ---- copies; `start` false: the arena is not registered any more ----

    def start(self, target: Any, source: Any) -> bool:
        """Begin to copy on the stream that is current for the CUDA tensor's device."""
        with self._lock:
            if self._token is None or os.getpid() != self._pid:
                return False
            cuda = target if target.is_cuda else source
            stream = self._torch.cuda.current_stream(cuda.device)
            copy = _Copy(stream, target, source)
            self._coming.setdefault(threading.get_ident(), []).append(copy)
            target.detach().copy_(source.detach(), non_blocking=True)
            if target.is_cuda:
                target.record_stream(stream)  # it may have been allocated on another
            return True

    def sent(self) -> Sent:
        """Put events behind the copies that this thread has begun, and return them."""
        me = threading.get_ident()
        if me not in self._coming:
            return ()
        with self._lock:
            copies = self._coming[me]
            marks = self._marks(copies)
            for stream, event in marks:
                self._flying.append((event, [copy for copy in copies if copy.stream == stream]))
            del self._coming[me]
        return marks

    def arrive(self) -> None:
        """Wait until the copies that this thread has begun are made.

        TimeoutError: a stream has not passed in time. The copies keep their memory until it has.
        """
        marks = self.sent()
        for _, event in marks:
            _streams.wait_for(event, self._timeout)
        if marks:
            self._sweep()

    def drain(self) -> None:
        """Wait for all copies behind which there is an event, and free their memory."""
        for event, _ in list(self._flying):
            event.synchronize()
        self._sweep()

    def _marks(self, copies: list[_Copy]) -> Sent:
        marks: list[tuple[Any, Any]] = []
        for copy in copies:
            if not any(copy.stream == stream for stream, _ in marks):
                event = self._torch.cuda.Event()
                event.record(copy.stream)
                marks.append((copy.stream, event))
        return tuple(marks)

    def _sweep(self) -> None:
        """Let go of the tensors of copies that are made."""
        over: list[Any] = []
        still: list[Any] = []
        with self._lock:
            for flight in self._flying:
                (over if flight[0].query() else still).append(flight)
            self._flying = still
        del over  # frees memory of the arena, outside of the lock

    def end(self) -> None:
        """Wait for the copies, and unregister the arena. A forked child lets go only."""
        if os.getpid() != self._pid:
            self._token = None
            return
        with self._lock:
            token, self._token = self._token, None
            if token is None:
                return
            # Another thread may be about to send a run: what it has begun stays its own.
            copies = [copy for some in self._coming.values() for copy in some]
            with contextlib.suppress(RuntimeError):  # CUDA's: no copy goes on then
                events = [event for _, event in self._marks(copies)]
                for event in events + [event for event, _ in self._flying]:
                    event.synchronize()
            flying, self._flying = self._flying, []
        del flying, token  # the token's end unregisters

    def __del__(self) -> None:
        if getattr(self, "_token", None) is not None:
            self.end()


def follow(sent: Sent) -> None:
    """Let the current stream wait for copies that another stream makes."""
    for stream, event in sent:
        current = importlib.import_module("torch").cuda.current_stream(stream.device)
        if current != stream:
            current.wait_event(event)


def _registered(torch: Any, address: int, size: int) -> Any:
    """Register memory with CUDA, and return the runtime.

    UnsupportedError: CUDA refuses; the sentence says why.
    """
    try:
        runtime = torch.cuda.cudart()
        status = runtime.cudaHostRegister(address, size, PORTABLE)
    except (AssertionError, AttributeError, OSError, RuntimeError) as reason:
        raise errors.UnsupportedError(f"torch has no CUDA runtime: {reason}") from None
    code = int(getattr(status, "value", status))
    if code:
        said = f"cudaHostRegister() of {size} bytes returned {code}"
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):
            said += f" ({runtime.cudaGetErrorString(status)})"
        # CUDA would report this error once more, with torch's next kernel.
        with contextlib.suppress(AssertionError, RuntimeError):
            torch.ones(1, device="cuda")
        raise errors.UnsupportedError(said)
    return runtime
