# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""A session: the connection to one daemon, and its arena of shared memory. Any thread."""

from __future__ import annotations

import atexit
import collections
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from collections.abc import Sequence as ListOf
from typing import TYPE_CHECKING, Any

from . import dtypes, errors
from ._args import INT32, UINT64, choice, flag, integer, path, said, text, texts
from ._cuda import CudaCopies
from ._native import (
    NULL,
    Handle,
    Owner,
    check,
    countdown,
    ffi,
    fields,
    lib,
    milliseconds,
    opening_error,
)
from ._notice import Notice
from ._tensors import Arena, Array, Copied
from .daemon import PrivateDaemon

if TYPE_CHECKING:
    from ._ticket import Ticket
    from .batch import Batch
    from .cache import Cache

LONGEST = 2**60  # elements of 8 bytes are counted in an int64
LOOK_S = 0.05  # between looks for a daemon that starts
# How the library's sentences begin: no daemon is there; one was there, and has hung up.
NONE_LISTENS, HUNG_UP = "no daemon listens at ", ("what listens at ", "the daemon at ")

_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


class Session(Owner):
    """A connection to a daemon. `aule.connect()` makes it; close() or `with` ends it.

    Closing ends the session's caches, sequences and steps. Arrays of `empty()` stay readable: the
    memory goes with the last of them.
    """

    _what = "session"

    def __init__(self, handle: Handle, daemon: PrivateDaemon | None,
                 stream_timeout: float | None, tenant: str) -> None:
        super().__init__(handle)
        self._daemon = daemon
        self._tenant = tenant  # as the caller gave it; "": none
        info = ffi.new("struct aule_session_info *")
        check(lib.aule_session_info_sized(handle.pointer, info, ffi.sizeof(info[0])))
        self._info = fields(info[0])
        self._stream_timeout = stream_timeout
        self._arena = Arena(handle, self._info["arena_size"], self._info["device_arena_size"],
                            stream_timeout)
        self._orphans: collections.deque[Ticket] = collections.deque()
        self._notice: Notice | None = None
        self._notice_lock = threading.Lock()
        _sessions.add(self)

    @property
    def info(self) -> dict[str, Any]:
        """What the handshake said: the fields of struct aule_session_info. Sizes are bytes."""
        return dict(self._info)

    @property
    def socket(self) -> str | None:
        """The path of the private daemon's socket; None: the daemon was there before."""
        return self._daemon.socket if self._daemon else None

    @property
    def copied(self) -> Copied:
        """Bytes copied into and out of the arena, for tensors that do not lie there."""
        return self._arena.copied

    @property
    def device_copied(self) -> Copied:
        """Bytes copied into and out of the device arena, for tensors that do not lie there."""
        device = self._arena.device
        return Copied(device.bytes_in, device.bytes_out)

    @property
    def cuda(self) -> CudaCopies:
        """How torch's CUDA tensors were copied: page_locked, bytes_async, bytes_plain, reason."""
        return self._arena.cuda

    def page_lock(self) -> bool:
        """Register the arena with CUDA now. The first CUDA tensor of a run does it otherwise.

        Call this if you copy between CUDA tensors and tensors of `empty()` yourself: torch's
        copies with non_blocking=True are asynchronous then. False: CUDA refuses, `cuda.reason`
        says why, and CUDA tensors are copied through pageable memory. Needs torch.
        """
        return self._arena.page_lock(self._open()) is not None

    def empty(self, shape: int | ListOf[int], dtype: Any = "f32", *,
              kind: str | None = None, device: str = "cpu") -> Array:
        """Return an array in the arena; runs use it without a copy. Its contents are undefined.

        shape: any; the memory is dense. dtype: numpy's, ml_dtypes' or torch's, or its name in
        aule, such as "f16" or "fp8_e4m3". kind: "numpy" or "torch"; None: torch for
        torch's dtypes, else numpy. Both speak DLPack. device: "cuda" makes a torch CUDA tensor in
        the device arena of connect(device_arena_size=...), on torch's current device.
        NoMemoryError: the arena has no gap of this size; see arena_size of connect().
        Source: aule_arena_alloc() in aule.h.
        """
        if isinstance(shape, int) or getattr(shape, "ndim", 1) == 0:
            shape = (shape,)  # type: ignore[assignment]
        if not isinstance(shape, Iterable):
            raise errors.InvalidError(f"shape = {said(shape)}; it is a list of lengths")
        dims = tuple([integer(n, "a length of shape", 0, LONGEST) for n in shape])
        if len(dims) > 32 or math.prod(max(n, 1) for n in dims) > LONGEST:
            raise errors.NoMemoryError(f"shape = {said(dims)} has too many dimensions or elements "
                                       "for any arena")
        if kind is not None:
            choice(kind, "kind", ("numpy", "torch"))
        choice(device, "device", ("cpu", "cuda"))
        if device == "cuda":
            if kind == "numpy":
                raise errors.InvalidError("numpy has no arrays in the memory of a GPU")
            return self._arena.device.allocate(self._open(), dims, dtypes.code_of(dtype))
        torch = kind == "torch" or (kind is None and dtypes.is_torch_dtype(dtype))
        return self._arena.allocate(self._open(), dims, dtypes.code_of(dtype), torch)

    def mem_pool(self) -> Any:
        """Return a torch.cuda.MemPool: what torch allocates in it lies in the device arena.

            with torch.cuda.use_mem_pool(session.mem_pool()):
                qkv = x @ weights

        Runs use such tensors in place, as those of `empty(device="cuda")`. torch takes memory in
        pieces of 2 MiB or 20 MiB, and keeps them until the pool's end. If the arena is full, torch
        says that CUDA is out of memory. The pool keeps the session's memory mapped. BusyError:
        another session of this process has a pool on this GPU. UnsupportedError: this torch has
        no pools. Others: as `empty`.
        """
        return self._arena.device.pool(self._open())

    def in_arena(self, array: Array) -> bool:
        """Say whether runs use this array without a copy."""
        place = self._arena.look(array)
        return place.in_place or place.on_device

    @property
    def alive(self) -> bool:
        """Whether the session is open and its daemon answers. Sends a message."""
        return self._probe() == errors.NotFoundError.status

    def _probe(self) -> int:
        """Return the status of a wait for no ticket: that of NotFoundError from a live daemon."""
        handle = self._handle
        if handle is None:
            return errors.ClosedError.status
        none = ffi.new("struct aule_ticket *")[0]
        return int(lib.aule_ticket_wait_sized(handle.pointer, none, 0, ffi.NULL, 0))

    def cache(self, name: str, **identity: Any) -> Cache:
        """Open a KV cache or create it; see `aule.Cache.open`."""
        from .cache import Cache

        return Cache.open(self, name, **identity)

    def batch(self, **arrays: Any) -> Batch:
        """Make a batch over K and V in the arena; see `aule.Batch.local`."""
        from .batch import Batch

        return Batch.local(self, **arrays)

    def attention(self, q: Array, k: Array, v: Array, out: Array | None = None,
                  **options: Any) -> Any:
        """Compute attention over contiguous tensors; see `aule.attention.attention`."""
        from .attention import attention

        return attention(self, q, k, v, out, **options)

    def close(self) -> None:
        """End the session and what it holds in the daemon; end the private daemon, if any."""
        super().close()
        if self._notice is not None:
            self._notice.close()
        self._arena.close()
        self._orphans.clear()
        if self._daemon:
            self._daemon.stop()

    def _noticed(self, handle: Handle) -> Notice:
        """Return what wakes coroutines; `handle` is a ticket's.

        The first `await` makes it. Before, the daemon sends no messages for it.
        """
        if self._notice is None:
            with self._notice_lock:
                if self._notice is None:
                    self._notice = Notice(self, handle)
        return self._notice

    def _sweep(self) -> bool:
        """Reap tickets that were dropped before their end, so that they leak nothing.

        Returns whether there was one that has ended.
        """
        some = False
        for _ in range(len(self._orphans)):
            try:
                ticket = self._orphans.popleft()
            except IndexError:
                break
            if ticket._reap():
                some = True
            else:
                self._orphans.append(ticket)
        return some


def connect(socket: str | None = None, *, name: str | None = None, tenant: str | None = None,
            arena_size: int = 0, timeout: float | None = 10.0, paged_threshold: int = 0,
            ring_spin_us: int = 0, device_arena_size: int = 0,
            stream_timeout: float | None = 60.0, autostart: bool = False,
            daemon_options: ListOf[str] = (), wait: float | None = 0.0) -> Session:
    """Connect to a daemon. Call this once a process.

    socket: the path; None: $AULE_SOCKET, else where `aule-daemon` listens by default.
    autostart: start a private daemon with `daemon_options`, and end it with the session or with
    the process. `session.socket` is its path, for other processes. name: shown by aule-ctl.
    tenant: sessions share prefixes only inside one tenant. With --tenant groups, None and the name
    of the user's group are one tenant; use one of the two in a process. arena_size: bytes of shared
    memory; 0: 64 MiB. timeout: seconds for the handshake, and the grace for later answers; None:
    for ever. paged_threshold: keys from which `attention()` copies into the pool; 0: 2048.
    ring_spin_us: as in aule.h. device_arena_size: bytes of GPU memory that torch's CUDA shares with
    the daemon; runs whose q is a CUDA tensor then pass nothing through host memory
    (docs/gpu-workers.md).
    stream_timeout: seconds to wait for a CUDA stream before a run or a report; None: for ever.

    wait: seconds to wait for a daemon that starts; None: for ever. It tries again while none
    listens, or the one that listens is stopping or hangs up. Any other error is raised at once.

    DaemonGoneError: nothing listens. VersionError: the daemon has another version. Others: those
    of aule_session_open() in aule.h.
    """
    autostart = flag(autostart, "autostart")
    if autostart and socket is not None:
        raise errors.InvalidError(
            f"socket = {socket!r} with autostart: a private daemon has a socket of its own")
    given: dict[str, Any] = {
        "socket": NULL if socket is None else ffi.new("char[]", path(socket, "socket")),
        "name": NULL if name is None else ffi.new("char[]", text(name, "name")),
        "tenant": NULL if tenant is None else ffi.new("char[]", text(tenant, "tenant")),
        "arena_size": integer(arena_size, "arena_size", 0, UINT64),
        "timeout_ms": milliseconds(timeout) or 1,
        "paged_threshold": integer(paged_threshold, "paged_threshold"),
        "ring_spin_us": integer(ring_spin_us, "ring_spin_us", -1, INT32),
        "device_arena_size": integer(device_arena_size, "device_arena_size", 0, UINT64)}
    milliseconds(stream_timeout, "stream_timeout")
    options = texts(daemon_options, "daemon_options")
    if options and not autostart:
        raise errors.InvalidError("daemon_options without autostart: the daemon runs already")
    left = countdown(wait, "wait")
    if wait != 0 and autostart:
        raise errors.InvalidError(f"wait = {wait} with autostart: a private daemon is waited for")
    daemon = PrivateDaemon(options) if autostart else None
    try:
        if daemon:
            given["socket"] = ffi.new("char[]", path(daemon.socket, "socket"))
        params = ffi.new("struct aule_session_params *", given)
        return Session(_open_session(params, left, daemon), daemon, stream_timeout, tenant or "")
    except BaseException:
        if daemon:
            daemon.stop()
        raise


def _open_session(params: Any, left: Callable[[], float], daemon: PrivateDaemon | None) -> Handle:
    """Open the session as soon as a daemon listens, for at most `left()` seconds."""
    pointer = ffi.new("struct aule_session **")
    while status := lib.aule_session_open_sized(params, ffi.sizeof(params[0]), pointer):
        failure = opening_error(status)
        gone = isinstance(failure, errors.DaemonGoneError)
        absent = gone and str(failure).startswith(NONE_LISTENS)
        ends = isinstance(failure, errors.StoppingError) or (
            gone and str(failure).startswith(HUNG_UP))
        if (absent or ends) and left() > 0:
            time.sleep(min(LOOK_S, left()))
        elif daemon and isinstance(failure, (ConnectionError, errors.TimeoutError)):
            raise type(failure)(f"{failure}; the private daemon's last words: {daemon.last_words}")
        elif absent:
            raise type(failure)(f"{failure}. Start a daemon with 'aule-daemon', or call connect("
                                "autostart=True); connect(wait=SECONDS) waits for one; 'python -m "
                                "aule' says more")
        else:
            raise failure
    return Handle(pointer[0], lib.aule_session_close)


@atexit.register
def _close_all() -> None:
    for session in list(_sessions):
        session.close()
