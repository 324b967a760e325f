# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Tensors of the caller as struct aule_tensor: in place if they lie in the arena, else by a copy.

It knows numpy, torch and DLPack, and counts the bytes that it copies. It knows no run.
"""

from __future__ import annotations

import importlib
import math
import struct
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import dtypes, errors
from ._args import UINT64, no_gradient
from ._cuda import CudaCopies, PageLock, Sent
from ._device import DeviceArena
from ._native import Handle, check, ffi, lib

Array = Any  # numpy.ndarray or torch.Tensor

DEVICES = ("cpu", "cuda")
ALIGNMENT = 16  # bytes of an offset and of strides; LSE: 4
MOST_PLACES = 1024  # arrays that an arena remembers


class Copied(NamedTuple):
    """Bytes that a session has copied between the arena and tensors outside of it."""

    bytes_in: int
    bytes_out: int


def _packer(name: str) -> struct.Struct:
    """Make the packer of one struct of numbers, with the compiler's own offsets."""
    letters = {1: "B", 4: "I", 8: "Q"}
    kind = ffi.typeof(name)
    layout, at = "=", 0
    for _, field in kind.fields:
        layout += f"{field.offset - at}x" if field.offset > at else ""
        layout += letters[ffi.sizeof(field.type)]
        at = field.offset + ffi.sizeof(field.type)
    return struct.Struct(layout)


_pack = _packer("struct aule_tensor").pack
_ORDER = ("memory", "dtype", "offset", "token_stride", "head_stride")
_fields = tuple(name for name, _ in ffi.typeof("struct aule_tensor").fields)
if _fields[:5] != _ORDER:
    raise ImportError("struct aule_tensor begins with other fields than this package knows")
# Numbers of rows are checked here, as shapes.
_REST = (0,) * (len(_fields) - 5)


_tensor_size = ffi.sizeof("struct aule_tensor")
_void = ffi.typeof("void **")


def allocate(session: Handle, shape: tuple[int, ...], code: int, torch: bool) -> Array:
    """Return new memory of the arena as an array. It is freed with the last view of it."""
    count = math.prod(shape)
    size = count * dtypes.SIZES[code]
    data = ffi.new(_void)
    check(lib.aule_arena_alloc(session.pointer, min(size or 1, UINT64), data, ffi.NULL))
    memory = ffi.buffer(session.lend(data[0], lib.aule_arena_free), size)
    if not torch:
        return np.ndarray(shape, dtypes.numpy_dtype(code), memory)
    module = importlib.import_module("torch")
    dtype = dtypes.torch_dtype(code)
    if count == 0:  # torch gives it no memory: see Place
        return module.empty(shape, dtype=dtype)
    return module.frombuffer(memory, dtype=dtype).view(shape)


class Place:
    """Where an array lies: what was found out when it was first seen."""

    __slots__ = ("address", "code", "device_offset", "dtype", "in_place", "offset", "on_device",
                 "packed", "ref", "shape", "steps", "strides", "torch")

    def __init__(self, array: Array, start: int, size: int, device: DeviceArena) -> None:
        self.ref: Callable[[], Any] = weakref.ref(array)
        self.torch = not isinstance(array, np.ndarray)
        self.dtype = array.dtype
        self.code = dtypes.code_of(array.dtype)
        self.shape = tuple(array.shape)
        if self.torch:
            self.steps = array.stride()  # elements
            width = dtypes.SIZES[self.code]
            self.strides = tuple([step * width for step in self.steps])
            self.address = array.data_ptr()
        else:
            self.steps = self.strides = array.strides  # bytes
            self.address = array.__array_interface__["data"][0]
        if 0 in self.shape:
            self._lie_anywhere(device)
        else:
            offset = self.address - start if not self.torch or array.is_cpu else -1
            self.offset = offset if 0 <= offset < size else -1  # -1: outside of the arena
            self.device_offset = (device.offset_of(self.address)
                                  if self.torch and array.is_cuda else -1)
        # Runs can use it where it lies. Other strides need a copy.
        fits = ((self.offset if self.offset >= 0 else self.device_offset) % ALIGNMENT == 0
                and self.strides[-1:] in ((), (dtypes.SIZES[self.code],))
                and all(s >= 0 and s % ALIGNMENT == 0 for s in self.strides[:-1]))
        self.in_place = self.offset >= 0 and fits
        self.on_device = self.device_offset >= 0 and fits
        self.packed: bytes | None = None

    def _lie_anywhere(self, device: DeviceArena) -> None:
        """Place an array without elements, which torch gives no address: nobody reads it."""
        on_device = bool(device.size and self.ref().is_cuda) if self.torch else False
        self.offset, self.device_offset = (-1, 0) if on_device else (0, -1)
        step, steps = dtypes.SIZES[self.code], []
        for length in reversed(self.shape):
            steps.append(step)
            step *= max(length, 1)
        self.strides = tuple(reversed(steps))


def array_of(value: Any, what: str) -> Array:
    """Return `value` as numpy's or torch's array, by DLPack if it is neither; no copy.

    InvalidError: its type is none of aule's. UnsupportedError: torch would expect a gradient of it.
    """
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise errors.InvalidError(f"{what} is a masked array; fill it first")
        dtypes.code_of(value.dtype, what)
        return value
    if dtypes.is_torch(value):
        no_gradient(value, what)
        try:
            value.data_ptr()
        except RuntimeError as reason:  # sparse, or inside of torch.func.vmap
            raise errors.InvalidError(f"{what} is a tensor that has no memory: {reason}") from None
        if value.is_nested:
            raise errors.InvalidError(f"{what} is a nested tensor; aule takes ragged sequences "
                                      "by cu_seqlens")
        dtypes.code_of(value.dtype, what)
        return value
    if not hasattr(value, "__dlpack__"):
        raise errors.InvalidError(
            f"{what} is a {type(value).__name__}; it must be a numpy array, a torch tensor or an "
            "object with __dlpack__"
        )
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as reason:
        try:  # bf16, fp8 and devices, which numpy's DLPack does not know
            return importlib.import_module("torch").from_dlpack(value)
        except ImportError:
            raise errors.InvalidError(f"{what}: numpy cannot take it by DLPack: {reason}; "
                                      "torch, which may, is not installed") from None
        except (BufferError, RuntimeError, TypeError, ValueError) as torchs:
            raise errors.InvalidError(f"{what}: neither numpy nor torch can take it by DLPack: "
                                      f"{torchs}") from None


def writable(array: Array, name: str) -> None:
    """Raise InvalidError if an array is read-only, or has several elements at one address."""
    steps = array.stride() if dtypes.is_torch(array) else array.strides
    if not dtypes.is_torch(array) and not array.flags.writeable:
        raise errors.InvalidError(f"{name} is read-only")
    if 0 not in array.shape and any(
            step == 0 and length > 1 for step, length in zip(steps, array.shape, strict=True)):
        raise errors.InvalidError(f"{name} {list(array.shape)} has elements that share memory, as "
                                  "after expand(); it cannot be written")


class Arena:
    """Where a session's arena lies, and how tensors get in and out."""

    def __init__(self, session: Handle, size: int, device_size: int,
                 stream_timeout: float | None) -> None:
        self.device = DeviceArena(device_size, stream_timeout)
        self.start = int(ffi.cast("uintptr_t", lib.aule_arena_base(session.pointer)))
        self.size = size
        self._lock = threading.Lock()
        self._in = self._out = 0
        self._async = self._plain = 0  # bytes of CUDA tensors
        self._places: dict[int, Place] = {}
        self._page_lock: PageLock | None = None
        self._reason: str | None = None  # why there is no page lock; None: CUDA was not asked yet
        self._registering = threading.Lock()

    @property
    def copied(self) -> Copied:
        """The bytes copied so far."""
        return Copied(self._in, self._out)

    @property
    def cuda(self) -> CudaCopies:
        """How CUDA tensors were copied so far."""
        return CudaCopies(self._page_lock is not None, self._async, self._plain,
                          self._reason or "")

    def allocate(self, session: Handle, shape: tuple[int, ...], code: int, torch: bool) -> Array:
        """Do what `allocate` does; memory that CUDA still copies may have to come free first."""
        try:
            return allocate(session, shape, code, torch)
        except errors.NoMemoryError:
            if self._page_lock is None:
                raise
        self._page_lock.drain()
        return allocate(session, shape, code, torch)

    def page_lock(self, session: Handle) -> PageLock | None:
        """Register the arena with CUDA, once. None, and a warning once: CUDA refuses."""
        if self._page_lock is None and self._reason is None:
            with self._registering:
                if self._page_lock is None and self._reason is None:
                    try:
                        base = lib.aule_arena_base(session.pointer)
                        self._page_lock = PageLock(session, base, self.start, self.size,
                                                   self.device.stream_timeout)
                    except errors.UnsupportedError as reason:
                        self._reason = str(reason)
                        warnings.warn(f"aule copies CUDA tensors through pageable memory, and "
                                      f"waits for each copy: {reason}", RuntimeWarning,
                                      stacklevel=2)
        return self._page_lock

    def close(self) -> None:
        """Unregister the arena. Later copies are plain."""
        with self._registering:
            self._reason = self._reason or "the session is closed"
            if self._page_lock is not None:
                self._page_lock.end()
                self._page_lock = None

    def seen(self, array: Any) -> Place | None:
        """Return what is known of an array, if it was seen and has not changed."""
        place = self._places.get(id(array))
        if (place is not None and place.ref() is array and array.dtype is place.dtype
                and array.shape == place.shape):
            if place.torch:
                if array.data_ptr() == place.address and array.stride() == place.steps:
                    return place
            elif array.strides == place.steps:
                return place
        return None

    def look(self, array: Array) -> Place:
        """Find out where an array lies, or remember it."""
        place = self.seen(array)
        if place is not None:
            return place
        place = Place(array, self.start, self.size, self.device)
        if len(self._places) >= MOST_PLACES:
            self._places.clear()
        self._places[id(array)] = place
        return place

    def put(self, buffer: Any, at: int, place: Place, what: str) -> None:
        """Write the struct aule_tensor of rows and heads at byte `at` of `buffer`."""
        packed = place.packed
        if packed is None:
            packed = place.packed = self.pack(place, place.strides, what)
        buffer[at:at + _tensor_size] = packed

    def pack(self, place: Place, strides: tuple[int, ...], what: str) -> bytes:
        """Return a struct aule_tensor; the last three strides are those of row, head, element."""
        token, head, element = strides[-3:]
        if element != dtypes.SIZES[place.code] or token < 0 or head < 0:
            raise errors.InvalidError(
                f"{what} has strides {strides} in bytes; in the arena the last dimension must be "
                "contiguous and no stride negative"
            )
        memory, offset = (0, place.offset) if place.offset >= 0 else (1, place.device_offset)
        return _pack(memory, place.code, offset, token, head, *_REST)

    def copy_in(self, session: Handle, array: Array, code: int, what: str) -> Array:
        """Return a dense copy of `array` in the arena; of a CUDA tensor it is there at `arrive()`.

        The copy of a CUDA tensor is made on the caller's stream.
        """
        shape = tuple(array.shape)
        self.check_device(array, what)
        copy = self.allocate(session, shape, code, dtypes.is_torch(array))
        self._fill(session, copy, array)
        self._count(copy.nbytes, 0)
        return copy

    def arrive(self) -> None:
        """Wait for what this thread's copy_in() has begun. The daemon reads the arena then."""
        if self._page_lock is not None:
            self._page_lock.arrive()

    def copy_out(self, session: Handle, copy: Array, array: Array) -> None:
        """Copy the arena's `copy` into the caller's `array`; into a CUDA tensor on the stream."""
        if self.look(copy).device_offset >= 0:
            self.device.copy_out(copy, array)
            return
        self._fill(session, array, copy)
        self._count(0, copy.nbytes)

    def sent(self) -> Sent:
        """Return events behind what this thread's copy_out() has begun."""
        return () if self._page_lock is None else self._page_lock.sent()

    def _fill(self, session: Handle, target: Array, source: Array) -> None:
        """Copy all elements, or begin to."""
        asynchronous = False
        if is_cuda(target) or is_cuda(source):
            lock = self.page_lock(session)
            asynchronous = lock is not None and lock.start(target, source)
            with self._lock:
                if asynchronous:
                    self._async += target.nbytes
                else:
                    self._plain += target.nbytes
        if not asynchronous:
            fill(target, source)

    def _count(self, bytes_in: int, bytes_out: int) -> None:
        with self._lock:
            self._in += bytes_in
            self._out += bytes_out

    def check_device(self, array: Array, what: str) -> None:
        if dtypes.is_torch(array) and array.device.type not in DEVICES:
            raise errors.InvalidError(
                f"{what} is on device {array.device}; aule takes tensors on {', '.join(DEVICES)}"
            )


def is_cuda(array: Array) -> bool:
    """Say whether an array is torch's, in the memory of a GPU."""
    return dtypes.is_torch(array) and bool(array.is_cuda)


def fill(target: Array, source: Array) -> None:
    """Copy all elements. For CUDA, torch waits for the current stream."""
    if dtypes.is_torch(target):
        if not dtypes.is_torch(source):
            source = importlib.import_module("torch").from_numpy(source)
        target.detach().copy_(source.detach())
    elif dtypes.is_torch(source):
        importlib.import_module("torch").from_numpy(target).copy_(source.detach())
    else:
        target[...] = source


def ordinary(like: Array, shape: tuple[int, ...]) -> Array:
    """Return new memory outside of the arena, of the type and on the device of `like`."""
    return like.new_empty(shape) if dtypes.is_torch(like) else np.empty(shape, like.dtype)
