# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Runs over a batch, and their tickets.

It fills one reused struct aule_run_params a batch, so a call allocates little. It knows shapes and
copies, not where the batch comes from.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import dtypes, errors
from ._native import (
    NULL,
    OK,
    SLICE_MS,
    TIMEOUT,
    Handle,
    Owner,
    check,
    error,
    ffi,
    lib,
    milliseconds,
    sliced,
)
from ._tensors import Array, allocate, array_of, ordinary

if TYPE_CHECKING:
    from .session import Session

_BUSY: int = lib.AULE_BUSY
_STAYS = (TIMEOUT, int(lib.AULE_LIMIT), int(lib.AULE_NO_MEMORY))  # a wait's failure may be its own

FIRST_LOOK_S, LAST_LOOK_S = 0.0002, 0.01  # between looks at a ticket older than the descriptor

_new_ticket = ffi.typeof("struct aule_ticket *")
_new_result = ffi.typeof("struct aule_run_result *")
_run_size = ffi.sizeof("struct aule_run_params")
_result_size = ffi.sizeof("struct aule_run_result")
_layers_size = ffi.sizeof("struct aule_layers")
_at = {name: ffi.offsetof("struct aule_run_params", name)
       for name in ("q", "k", "v", "out", "lse", "keys", "values")}
_submit = lib.aule_run_submit_sized
_submit_layers = lib.aule_run_layers_submit_sized
_wait = lib.aule_ticket_wait_sized

Window = int | tuple[int, int] | None


class Geometry(NamedTuple):
    """Heads of K and V: what shapes a run takes. head_dim_v is 0 if V is a prefix of K (MLA)."""

    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    out_dim: int
    num_layers: int


class Rope(NamedTuple):
    """Rotary embedding of q, and of k as it is written; struct aule_rope in aule.h.

    dim: elements of each head, even. theta: base of the frequencies. interleaved: pairs are
    elements (2n, 2n + 1), else (n, n + dim / 2). frequencies: radians a position, [dim / 2].
    """

    dim: int
    theta: float = 10000.0
    interleaved: bool = False
    frequencies: tuple[float, ...] | None = None


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
                 "_output", "_result", "_session", "_ticket", "_waiters")

    def __init__(self, session: Session, output: Any, keep: list[Any],
                 back: list[tuple[Array, Array]]) -> None:
        self._session = session
        self._handle: Handle | None = session._open()  # None: reaped
        self._ticket = ffi.new(_new_ticket)  # the library fills it in; id 0: nothing is queued
        self._output = output
        self._keep = keep
        self._back = back
        self._lock = threading.Lock()
        self._result: Any = None
        self._error: Exception | None = None
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        notice = session._notice
        self._noted = notice is not None  # the session's descriptor stands for this ticket
        if notice is not None:
            notice.add(self)

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
        done yet; wait again. Other errors: the run failed, and its output is undefined.
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
            if notice is not None:
                notice.add(self)
            future: asyncio.Future[None] = loop.create_future()
            self._waiters.append((loop, future))
            timer = None
            try:
                if self._look() is True:  # before the waiter was noted, nothing would have woken it
                    break
                if notice is None or not self._noted:
                    timer = loop.call_later(pause, _end_wait, future)
                    pause = min(2 * pause, LAST_LOOK_S)
                with notice.reading(loop) if notice is not None else contextlib.nullcontext():
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
            if failure is None:
                for copy, target in self._back:
                    self._session._arena.copy_out(copy, target)
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


class Runs(Owner):
    """What runs are made over: a batch, and the shapes that it takes.

    One thread at a time computes with it; others wait.
    """

    def __init__(self, handle: Handle, session: Session, geometry: Geometry) -> None:
        super().__init__(handle)
        self._session = session
        self._geometry = geometry
        self._params = ffi.new("struct aule_run_params *")
        self._bytes = ffi.buffer(self._params)
        self._ticket = NULL
        self._lock = threading.RLock()
        self._options: tuple[Any, ...] = ()
        self._pools: list[Array] = []  # K and V of the caller, which runs read and write
        self._arrays: list[Any] = []  # what pointers in _params point to
        self._has_lse = False
        self._writes = True
        self._scales = (0.0, 0.0)  # of K and V, if a run gives none
        self.num_tokens = 0

    def _batch(self, mask: Any) -> Any:
        """Return the struct aule_batch of these runs."""
        raise NotImplementedError

    # ---- what users call ----

    def attend(self, layer: int, q: Array, k: Array, v: Array | None = None,
               out: Array | None = None, *, timeout: float | None = None, **options: Any) -> Any:
        """Write k and v into the cache, and let each query attend; return the output.

        Call this once a layer. T is `num_tokens`, the tokens of this step, in the order of its
        entries.
        q: [T, num_heads, head_dim]; k: [T, num_kv_heads, head_dim]; v: [T, num_kv_heads,
        head_dim_v], None for MLA; all f32, f16 or bf16. out: [T, num_heads, head_dim_v]; None:
        made where q is.
        causal (True): a query sees no later key. window: keys on the left, or (left, right); -1:
        unbounded. soft_cap: cap * tanh(s / cap). sinks, alibi_slopes: [num_heads]. mask: replaces
        causal; bool [q_len, seq_len], or a list of them, one a sequence. scale: None: 1 /
        sqrt(head_dim). lse: True, or f32 [T, num_heads]: returns (out, lse). num_splits, k_scale,
        v_scale, rope: as in aule.h. timeout: seconds; None: for ever.

        Tensors in the arena are used in place. Others are copied, see `session.copied`.
        InvalidError and others: the sentence names the tensor and its values.
        Source: aule_run() in aule.h.
        """
        return self.submit(layer, q, k, v, out, **options).wait(timeout)

    def submit(self, layer: int, q: Array, k: Array | None, v: Array | None = None,
               out: Array | None = None, *, causal: bool = True, window: Window = None,
               soft_cap: float = 0.0, sinks: Any = None, alibi_slopes: Any = None,
               mask: Any = None, scale: float | None = None, lse: Array | bool | None = None,
               num_splits: int = 0, k_scale: float = 0.0, v_scale: float = 0.0,
               rope: Rope | None = None, timeout: float | None = 10.0) -> Ticket:
        """Queue what `attend` does, and return its ticket: wait() for it, or `await` it.

        timeout: seconds to wait for a free ticket. BusyError: none came free.
        """
        session = self._session
        if session._orphans:
            session._sweep()
        with self._lock:
            self._open()
            self._set_layer(layer)
            options = (causal, window, soft_cap, scale, num_splits, k_scale, v_scale, rope)
            if options != self._options or sinks is not None or alibi_slopes is not None:
                self._set_options(options)
            batch = self._batch(mask)
            keep: list[Any] = [self._pools]
            back: list[tuple[Array, Array]] = []
            output = self._set_tensors(q, k, v, out, lse, keep, back, ())
            if sinks is not None or alibi_slopes is not None:
                self._set_arrays(sinks, alibi_slopes, ())
            params = self._params
            # Before the call: if Ctrl-C comes right after it, the dropped ticket keeps the tensors.
            ticket = Ticket(session, output, keep, back)
            native = ticket._ticket
            status = _submit(batch, params, _run_size, 0, native)
            if status == _BUSY and timeout != 0:
                status = sliced(lambda ms: int(_submit(batch, params, _run_size, ms, native)),
                                timeout, (_BUSY,), self._open)
            if status:
                raise error(status)
            return ticket

    def attend_layers(self, q: Array, k: Array, v: Array | None = None, out: Array | None = None,
                      *, timeout: float | None = None, **options: Any) -> Any:
        """Do what `attend` does for several layers at once; tensors are [layers, ...].

        first_layer, layer_step: tensor n belongs to layer first_layer + n * layer_step. sinks and
        alibi_slopes: [num_heads], or [layers, num_heads]. Source: aule_run_layers() in aule.h.
        """
        return self.submit_layers(q, k, v, out, **options).wait(timeout)

    def submit_layers(self, q: Array, k: Array | None, v: Array | None = None,
                      out: Array | None = None, *, first_layer: int = 0, layer_step: int = 1,
                      causal: bool = True, window: Window = None, soft_cap: float = 0.0,
                      sinks: Any = None, alibi_slopes: Any = None, mask: Any = None,
                      scale: float | None = None, lse: Array | bool | None = None,
                      num_splits: int = 0, k_scale: float = 0.0, v_scale: float = 0.0,
                      rope: Rope | None = None, timeout: float | None = 10.0) -> Ticket:
        """Queue what `attend_layers` does, and return its ticket."""
        session = self._session
        session._sweep()
        q = array_of(q, "q")
        if q.ndim != 4:
            raise errors.InvalidError(f"q has shape {tuple(q.shape)}; several layers need "
                                      "[layers, tokens, heads, head_dim]")
        with self._lock:
            self._open()
            self._set_layer(first_layer)
            self._set_options((causal, window, soft_cap, scale, num_splits, k_scale,
                               v_scale, rope))
            batch = self._batch(mask)
            keep: list[Any] = [self._pools]
            back: list[tuple[Array, Array]] = []
            layers = ffi.new("struct aule_layers *",
                             {"num_layers": q.shape[0], "layer_step": layer_step})
            output = self._set_tensors(q, k, v, out, lse, keep, back, (q.shape[0],), layers)
            self._set_arrays(sinks, alibi_slopes, (q.shape[0],), layers)
            ticket = Ticket(session, output, keep, back)
            check(sliced(lambda ms: int(_submit_layers(batch, self._params, _run_size, layers,
                                                       _layers_size, ms, ticket._ticket)),
                         timeout, (_BUSY,), self._open))
            return ticket

    # ---- filling in ----

    def _set_layer(self, layer: int) -> None:
        try:
            self._params.layer = layer
        except (OverflowError, TypeError) as reason:
            raise errors.InvalidError(f"layer = {layer!r}: {reason}") from None

    def _set_options(self, options: tuple[Any, ...]) -> None:
        causal, window, soft_cap, scale, num_splits, k_scale, v_scale, rope = options
        self._options = ()
        params = self._params
        try:
            params.causal = bool(causal)
            params.scale = scale_of(scale, "scale") or 0.0
            params.logits_soft_cap = soft_cap or 0.0
            params.num_splits = num_splits
            params.k_scale = k_scale or self._scales[0]
            params.v_scale = v_scale or self._scales[1]
            self._set_window(window)
            self._set_rope(rope)
        except (OverflowError, TypeError, ValueError) as reason:
            raise errors.InvalidError(f"an option of the run has a wrong value: {reason}") from None
        params.sinks = params.alibi_slopes = NULL
        self._arrays = self._arrays[:0] if rope is None else self._arrays[:1]
        self._options = options

    def _set_window(self, window: Window) -> None:
        target = self._params.window
        if window is None:
            target.enabled = False
            target.left = target.right = 0
            return
        target.enabled = True
        target.left, target.right = (window, -1) if isinstance(window, int) else window

    def _set_rope(self, rope: Rope | None) -> None:
        target = self._params.rope
        target.dim = rope.dim if rope else 0
        target.theta = rope.theta if rope else 0
        target.interleaved = bool(rope and rope.interleaved)
        frequencies = rope.frequencies if rope else None
        if rope and frequencies is not None and len(frequencies) != rope.dim // 2:
            raise ValueError(f"rope has {len(frequencies)} frequencies and dim {rope.dim}")
        array = ffi.new("double[]", frequencies) if frequencies is not None else NULL
        self._arrays = [array]
        target.frequencies = array

    def _set_arrays(self, sinks: Any, slopes: Any, lead: tuple[int, ...],
                    layers: Any = None) -> None:
        heads = self._params.num_heads
        for name, value in (("sinks", sinks), ("alibi_slopes", slopes)):
            pointer, stride = NULL, 0
            if value is not None:
                array = _floats(value, name)
                if array.shape == (*lead, heads) and lead:
                    stride = heads * 4
                elif array.shape != (heads,):
                    raise errors.InvalidError(f"{name} has shape {array.shape}; the run has "
                                              f"{heads} heads")
                self._arrays.append(array)
                pointer = ffi.cast("const float *", ffi.from_buffer(array))
            setattr(self._params, name, pointer)
            if layers is not None:
                setattr(layers, f"{name.removeprefix('alibi_')}_stride", stride)
        self._options = ()  # the next run sets its own

    def _set_tensors(self, q: Array, k: Array | None, v: Array | None, out: Array | None,
                     lse: Array | bool | None, keep: list[Any], back: list[tuple[Array, Array]],
                     lead: tuple[int, ...], layers: Any = None) -> Any:
        """Place all tensors, copy those that are not in the arena, and return the output."""
        kv_heads, dim, dim_v, out_dim, _ = self._geometry
        rows = (*lead, self.num_tokens)
        q = array_of(q, "q")
        if len(q.shape) != len(rows) + 1 + 1:
            raise errors.InvalidError(
                f"q has shape {tuple(q.shape)}, not [{'layers, ' if lead else ''}tokens, "
                "num_heads, head_dim]")
        heads = q.shape[-2]
        self._params.num_heads = heads
        in_place, code = self._place("q", q, (*rows, heads, dim), keep, layers)
        if self._writes:
            self._place("k", k, (*rows, kv_heads, dim), keep, layers)
            if dim_v:
                self._place("v", v, (*rows, kv_heads, dim_v), keep, layers)
        elif k is not None or v is not None:
            raise errors.InvalidError("k or v is given, but this batch has no slot_mapping")
        if v is not None and not dim_v:
            raise errors.InvalidError("v is given, but here V is a prefix of K (MLA)")
        shape = (*rows, heads, out_dim)
        target = self._target(q, out, shape, in_place, code)
        self._place_output("out", target, shape, code, keep, back, layers)
        if lse is None or lse is False:
            if self._has_lse:
                self._params.lse.dtype = 0
                self._has_lse = False
            return target
        return target, self._set_lse(q, lse, (*rows, heads), in_place, keep, back, layers)

    def _target(self, q: Array, out: Array | None, shape: tuple[int, ...], in_place: bool,
                code: int) -> Array:
        """Return the output: the caller's, else a new one where q is."""
        if out is not None:
            return array_of(out, "out")
        if not in_place:
            return ordinary(q, shape)
        session = self._session
        return allocate(session._open(), shape, code, dtypes.is_torch(q))

    def _place(self, name: str, array: Array | None, shape: tuple[int, ...], keep: list[Any],
               layers: Any) -> tuple[bool, int]:
        """Fill in an input; returns whether it lies in the arena, and its dtype."""
        arena = self._session._arena
        place = arena.seen(array)
        if place is None:
            array = array_of(array, name)
            place = arena.look(array)
        if place.shape != shape:
            raise errors.InvalidError(f"{name} has shape {place.shape}; this run needs {shape}")
        in_place = place.in_place
        if not in_place:
            array = arena.copy_in(self._session._open(), array, place.code, name)
            place = arena.look(array)
        arena.put(self._bytes, _at[name], place, name)
        if layers is not None:
            setattr(layers, f"{name}_stride", place.strides[0])
        keep.append(array)
        return in_place, place.code

    def _output(self, name: str, array: Array, shape: tuple[int, ...], code: int,
                back: list[tuple[Array, Array]]) -> Array:
        """Return the array in the arena that a run writes: `array` or, with `back`, a stand-in."""
        arena = self._session._arena
        place = arena.look(array)
        if place.shape != shape:
            raise errors.InvalidError(f"{name} has shape {place.shape}; this run makes {shape}")
        if place.code != code:
            raise errors.InvalidError(f"{name} is {dtypes.name(place.code)}; this run makes "
                                      f"{dtypes.name(code)}")
        if not place.torch and not array.flags.writeable:
            raise errors.InvalidError(f"{name} is read-only")
        if place.in_place or (name == "lse" and place.offset >= 0):
            return array
        arena.check_device(array, name)
        copy = allocate(self._session._open(), shape, code, place.torch)
        back.append((copy, array))
        return copy

    def _place_output(self, name: str, array: Array, shape: tuple[int, ...], code: int,
                      keep: list[Any], back: list[tuple[Array, Array]], layers: Any) -> None:
        array = self._output(name, array, shape, code, back)
        arena = self._session._arena
        place = arena.look(array)
        if name == "lse":
            at = _at[name]
            packed = arena.pack(place.offset, (*place.strides[:-1], 4, place.strides[-1]), code,
                                name)
            self._bytes[at:at + len(packed)] = packed
        else:
            arena.put(self._bytes, _at[name], place, name)
        if layers is not None:
            setattr(layers, f"{name}_stride", place.strides[0])
        keep.append(array)

    def _set_lse(self, q: Array, lse: Any, shape: tuple[int, ...], in_place: bool,
                 keep: list[Any], back: list[tuple[Array, Array]], layers: Any) -> Array:
        if lse is True:
            torch = dtypes.is_torch(q)
            if in_place:
                lse = allocate(self._session._open(), shape, dtypes.F32, torch)
            elif torch:
                lse = ordinary(q.float() if q.numel() == 0 else q[:0].float(), shape)
            else:
                lse = np.empty(shape, np.float32)
        self._place_output("lse", array_of(lse, "lse"), shape, dtypes.F32, keep, back, layers)
        self._has_lse = True
        return lse


def scale_of(scale: Any, name: str) -> float | None:
    """Return a softmax scale. InvalidError: it is 0."""
    if scale is not None and not float(scale) != 0:
        raise errors.InvalidError(f"{name} = {scale}; it is a number other than 0, or None")
    return None if scale is None else float(scale)


def _floats(value: Any, name: str) -> Any:
    """Return `value` as a dense float32 array of numpy."""
    if dtypes.is_torch(value):
        value = value.detach().to("cpu").float().numpy()
    try:
        return np.ascontiguousarray(value, dtype=np.float32)
    except (TypeError, ValueError) as reason:
        raise errors.InvalidError(f"{name} is no array of numbers: {reason}") from None


