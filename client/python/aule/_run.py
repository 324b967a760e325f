# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Runs over a batch.

It fills one reused struct aule_run_params a batch, so a call allocates little. It knows shapes and
copies, not where the batch comes from.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import dtypes, errors
from ._args import INT32, flag, floats, host, integer, no_gradient, real, said
from ._native import BUSY, NULL, Handle, Owner, error, ffi, lib, milliseconds, sliced
from ._tensors import Array, array_of, ordinary, writable
from ._ticket import Ticket

if TYPE_CHECKING:
    from .session import Session

_run_size = ffi.sizeof("struct aule_run_params")
_layers_size = ffi.sizeof("struct aule_layers")
_at = {name: ffi.offsetof("struct aule_run_params", name)
       for name in ("q", "k", "v", "out", "lse", "keys", "values")}
_submit = lib.aule_run_submit_sized
_submit_layers = lib.aule_run_layers_submit_sized

Window = int | tuple[int, int] | None


class Geometry(NamedTuple):
    """Heads of K and V: what shapes a run takes. head_dim_v is 0 if V is a prefix of K (MLA)."""

    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    out_dim: int
    num_layers: int


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of q, and of k as it is written; struct aule_rope in aule.h.

    dim: elements of each head, even. theta: base of the frequencies. interleaved: pairs are
    elements (2n, 2n + 1), else (n, n + dim / 2). frequencies: radians a position, [dim / 2]; an
    array or a list, which is copied.
    """

    dim: int
    theta: float = 10000.0
    interleaved: bool = False
    frequencies: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        plain: dict[str, Any] = {
            "dim": integer(self.dim, "dim"), "theta": real(self.theta, "theta"),
            "interleaved": flag(self.interleaved, "interleaved")}
        if self.frequencies is not None:
            no_gradient(self.frequencies, "frequencies")
            array = host(self.frequencies, "frequencies")
            if array.shape != (plain["dim"] // 2,) or array.dtype.kind not in "fiu":
                raise errors.InvalidError(
                    f"frequencies is {array.dtype} {list(array.shape)}; a rope of dim "
                    f"{plain['dim']} needs {plain['dim'] // 2} frequencies")
            plain["frequencies"] = tuple(map(float, array))
        for name, value in plain.items():
            object.__setattr__(self, name, value)


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
        self._on_device = False  # the tensors of the run in hand lie in the device arena
        self._writes = True
        self._scales = (0.0, 0.0)  # of K and V, if a run gives none
        self.num_tokens = 0

    def _batch(self, mask: Any) -> Any:
        """Return the struct aule_batch of these runs."""
        raise NotImplementedError

    def _submitted(self, layers: range) -> None:
        """Note that runs of these layers were submitted. The caller has the lock."""

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
        unbounded. attention_chunk: only keys of a query's own chunk of so many tokens; 0: all.
        soft_cap: cap * tanh(s / cap). sinks, alibi_slopes: [num_heads]. mask: replaces
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
               rope: Rope | None = None, attention_chunk: int = 0,
               timeout: float | None = 10.0) -> Ticket:
        """Queue what `attend` does, and return its ticket: wait() for it, or `await` it.

        timeout: seconds to wait for a free ticket. BusyError: none came free.
        """
        session = self._session
        milliseconds(timeout)
        if session._orphans:
            session._sweep()
        with self._lock:
            self._open()
            self._params.layer = integer(layer, "layer")
            options = (causal, window, soft_cap, scale, num_splits, k_scale, v_scale, rope,
                       attention_chunk)
            if (sinks is not None or alibi_slopes is not None
                    or not _are(options, self._options)):
                self._set_options(options)
            batch = self._batch(mask)
            keep: list[Any] = [self._pools]
            back: list[tuple[Array, Array]] = []
            try:
                output = self._set_tensors(q, k, v, out, lse, keep, back, ())
            finally:
                session._arena.arrive()
            if self._on_device:
                session._arena.device.arrive(keep)
            if sinks is not None or alibi_slopes is not None:
                self._set_arrays(sinks, alibi_slopes, ())
            params = self._params
            # Before the call: if Ctrl-C comes right after it, the dropped ticket keeps the tensors.
            ticket = Ticket(session, output, keep, back)
            native = ticket._ticket
            status = _submit(batch, params, _run_size, 0, native)
            if status == BUSY and timeout != 0:
                status = sliced(lambda ms: int(_submit(batch, params, _run_size, ms, native)),
                                timeout, (BUSY,), self._open)
            if status:
                raise error(status)
            self._submitted(range(layer, layer + 1))
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
                      rope: Rope | None = None, attention_chunk: int = 0,
                      timeout: float | None = 10.0) -> Ticket:
        """Queue what `attend_layers` does, and return its ticket."""
        session = self._session
        milliseconds(timeout)
        session._sweep()
        q = array_of(q, "q")
        if q.ndim != 4:
            raise errors.InvalidError(f"q has shape {tuple(q.shape)}; several layers need "
                                      "[layers, tokens, heads, head_dim]")
        with self._lock:
            self._open()
            self._params.layer = integer(first_layer, "first_layer")
            self._set_options((causal, window, soft_cap, scale, num_splits, k_scale,
                               v_scale, rope, attention_chunk))
            batch = self._batch(mask)
            keep: list[Any] = [self._pools]
            back: list[tuple[Array, Array]] = []
            layers = ffi.new("struct aule_layers *",
                             {"num_layers": integer(q.shape[0], "the number of layers"),
                              "layer_step": integer(layer_step, "layer_step")})
            try:
                output = self._set_tensors(q, k, v, out, lse, keep, back, (q.shape[0],), layers)
            finally:
                session._arena.arrive()
            if self._on_device:
                session._arena.device.arrive(keep)
            self._set_arrays(sinks, alibi_slopes, (q.shape[0],), layers)
            ticket = Ticket(session, output, keep, back)
            ticket._queue(lambda ms, native: _submit_layers(
                batch, self._params, _run_size, layers, _layers_size, ms, native), timeout,
                self._open)
            step = layer_step or 1
            self._submitted(range(first_layer, first_layer + step * q.shape[0], step))
            return ticket

    # ---- filling in ----

    def _set_options(self, options: tuple[Any, ...]) -> None:
        (causal, window, soft_cap, scale, num_splits, k_scale, v_scale, rope,
         attention_chunk) = options
        causal, window = flag(causal, "causal"), window_of(window, "window")
        soft_cap, scale = cap_of(soft_cap, "soft_cap"), scale_of(scale, "scale")
        k_scale, v_scale = number_of(k_scale, "k_scale"), number_of(v_scale, "v_scale")
        num_splits = integer(num_splits, "num_splits")
        attention_chunk = integer(attention_chunk, "attention_chunk")
        self._options = ()
        params = self._params
        params.causal = causal
        params.scale = scale or 0.0
        params.logits_soft_cap = soft_cap
        params.num_splits = num_splits
        params.attention_chunk = attention_chunk
        params.k_scale = k_scale or self._scales[0]
        params.v_scale = v_scale or self._scales[1]
        params.window.enabled = window is not None
        params.window.left, params.window.right = (
            (0, 0) if window is None else (window, -1) if isinstance(window, int) else window)
        self._set_rope(rope)
        params.sinks = params.alibi_slopes = NULL
        self._arrays = self._arrays[:0] if rope is None else self._arrays[:1]
        # The caller may change an array that an option is: what is compared later is plain.
        self._options = (causal, window, soft_cap, scale, num_splits, k_scale, v_scale, rope,
                         attention_chunk)

    def _set_rope(self, rope: Rope | None) -> None:
        if rope is not None and not isinstance(rope, Rope):
            raise errors.InvalidError(f"rope = {said(rope)}; it is an aule.Rope or None")
        target = self._params.rope
        target.dim = rope.dim if rope else 0
        target.theta = rope.theta if rope else 0
        target.interleaved = bool(rope and rope.interleaved)
        frequencies = rope.frequencies if rope else None
        array = ffi.new("double[]", frequencies) if frequencies is not None else NULL
        self._arrays = [array]
        target.frequencies = array

    def _set_arrays(self, sinks: Any, slopes: Any, lead: tuple[int, ...],
                    layers: Any = None) -> None:
        heads = self._params.num_heads
        for name, value in (("sinks", sinks), ("alibi_slopes", slopes)):
            pointer, stride = NULL, 0
            if value is not None:
                array = floats(value, name)
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
        # All tensors of a run lie in one arena.
        self._on_device = bool(self._session._arena.device.size and not self._pools
                               and dtypes.is_torch(q) and q.is_cuda)
        in_place, code = self._place("q", q, (*rows, heads, dim), keep, layers)
        if code not in (dtypes.F32, dtypes.F16, dtypes.BF16):
            raise errors.UnsupportedError(f"q is {dtypes.name(code)}; it may be f32, f16 or bf16")
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
        if not in_place and not self._on_device:
            return ordinary(q, shape)
        return self._allocate(shape, code, dtypes.is_torch(q))

    def _allocate(self, shape: tuple[int, ...], code: int, torch: bool) -> Array:
        """Return memory of the run's arena."""
        session = self._session
        if self._on_device:
            return session._arena.device.allocate(session._open(), shape, code)
        return session._arena.allocate(session._open(), shape, code, torch)

    def _copy_in(self, array: Array, code: int, name: str) -> Array:
        """Return a dense copy in the run's arena."""
        session = self._session
        if not self._on_device:
            return session._arena.copy_in(session._open(), array, code, name)
        session._arena.check_device(array, name)
        return session._arena.device.copy_in(session._open(), array, code)

    def _place(self, name: str, array: Array | None, shape: tuple[int, ...], keep: list[Any],
               layers: Any) -> tuple[bool, int]:
        """Fill in an input; returns whether it lies in the arena, and its dtype."""
        arena = self._session._arena
        place = arena.seen(array)
        if place is None:
            array = array_of(array, name)
            place = arena.look(array)
        elif place.torch and array is not None and array.requires_grad:  # since it was seen
            no_gradient(array, name)
        if place.shape != shape:
            raise errors.InvalidError(f"{name} has shape {place.shape}; this run needs {shape}")
        in_place = place.on_device if self._on_device else place.in_place
        if not in_place:
            array = self._copy_in(array, place.code, name)
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
        writable(array, name)
        offset = place.device_offset if self._on_device else place.offset
        fits = place.on_device if self._on_device else place.in_place
        if fits or (name == "lse" and offset >= 0):
            return array
        arena.check_device(array, name)
        copy = self._allocate(shape, code, place.torch)
        back.append((copy, array))
        return copy

    def _place_output(self, name: str, array: Array, shape: tuple[int, ...], code: int,
                      keep: list[Any], back: list[tuple[Array, Array]], layers: Any) -> None:
        array = self._output(name, array, shape, code, back)
        arena = self._session._arena
        place = arena.look(array)
        if name == "lse":
            at = _at[name]
            packed = arena.pack(place, (*place.strides[:-1], 4, place.strides[-1]), name)
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
            if in_place or self._on_device:
                lse = self._allocate(shape, dtypes.F32, torch)
            elif torch:
                lse = ordinary(q.float() if q.numel() == 0 else q[:0].float(), shape)
            else:
                lse = np.empty(shape, np.float32)
        self._place_output("lse", array_of(lse, "lse"), shape, dtypes.F32, keep, back, layers)
        self._has_lse = True
        return lse


def scale_of(scale: Any, name: str) -> float | None:
    """Return a softmax scale. InvalidError: it is 0."""
    value = None if scale is None else real(scale, name)
    if value == 0:
        raise errors.InvalidError(f"{name} = {scale}; it is a number other than 0, or None")
    return value


def number_of(value: Any, name: str) -> float:
    """Return a number; None means 0, as 0 means none."""
    return 0.0 if value is None else real(value, name)


def cap_of(value: Any, name: str) -> float:
    """Return a soft cap; 0 and None: none."""
    cap = number_of(value, name)
    if cap < 0:
        raise errors.InvalidError(f"{name} = {said(value)}; it is a number above 0, or 0 for none")
    return cap


def window_of(window: Any, name: str) -> Window:
    """Return a window as an int or a tuple of two, from -1; None: none."""
    if window is None or isinstance(window, int) or getattr(window, "ndim", 1) == 0:
        return None if window is None else integer(window, name, -1, INT32)
    try:
        left, right = window
    except (TypeError, ValueError):
        raise errors.InvalidError(f"{name} = {said(window)}; it is keys on the left, or (left, "
                                  "right), or None") from None
    return (integer(left, f"the left side of {name}", -1, INT32),
            integer(right, f"the right side of {name}", -1, INT32))


def _are(options: tuple[Any, ...], plain: tuple[Any, ...]) -> bool:
    """Say whether options have the values of `plain` ones. False for arrays.

    They do not compare to one bool.
    """
    try:
        return bool(options == plain)
    except (RuntimeError, TypeError, ValueError):
        return False
