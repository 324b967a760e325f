# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""A session's device arena: GPU memory that the daemon's kernels and torch's CUDA both use.

The daemon cannot see CUDA's streams. So a run is sent after `arrive()`, when the caller's stream
has passed, and its output is there when its ticket is done. This module knows torch's streams and
events, no run. Any thread.
"""

from __future__ import annotations

import importlib
import math
import threading
import weakref
from typing import Any

from . import _streams, dtypes, errors
from ._native import Handle, check, ffi, lib, library_path

Array = Any  # torch.Tensor


def start_cuda(torch: Any) -> None:
    """Start CUDA in torch. UnsupportedError: this torch or this machine has none."""
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as reason:  # AssertionError: torch is not built for CUDA
        raise errors.UnsupportedError(f"torch cannot use CUDA: {reason}") from reason


class _Memory:
    """Bytes of the arena for torch, which keeps this object as long as a tensor needs them."""

    def __init__(self, address: int, size: int, token: Any) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "version": 2,
                                         "data": (address, False)}
        self.token = token  # its end frees the bytes


def _tensor_of(torch: Any, memory: _Memory, device: int) -> Array:
    """Return a tensor of bytes over the memory."""
    return torch.as_tensor(memory, device=f"cuda:{device}")


class DeviceArena:
    """Where the device arena lies in this process, and copies from and to other tensors."""

    def __init__(self, size: int, stream_timeout: float | None) -> None:
        self.size = size  # bytes; 0: the session has none
        self.stream_timeout = stream_timeout  # seconds; None: for ever
        self.start = 0  # its address; 0: not mapped yet
        self.bytes_in = self.bytes_out = 0
        self._device = -1
        self._lock = threading.Lock()
        # What a stream that did not pass in time may still read or write, with the event behind it.
        # Guarded by the lock.
        self._late: list[tuple[Any, Any]] = []
        self._pool: weakref.ref[Any] | None = None  # the torch.cuda.MemPool, while it lives
        self._allocator: Any = None  # of it

    def map(self, session: Handle) -> None:
        """Map the arena on torch's current CUDA device, once.

        MismatchError: that is another GPU than the daemon's. UnsupportedError: no CUDA.
        """
        if self.start:
            return
        torch = importlib.import_module("torch")
        if not self.size:
            raise errors.InvalidError("device='cuda' needs a session with a device arena: "
                                      "connect(device_arena_size=...)")
        base, device = ffi.new("void **"), ffi.new("int *")
        start_cuda(torch)
        check(lib.aule_device_map_cuda(session.pointer, torch.cuda.current_device(), base, device))
        with self._lock:
            self._device = device[0]
            self.start = int(ffi.cast("uintptr_t", base[0]))

    def offset_of(self, address: int) -> int:
        """Return where an address lies in the arena; -1: outside of it."""
        offset = address - self.start
        return offset if self.start and 0 <= offset < self.size else -1

    def allocate(self, session: Handle, shape: tuple[int, ...], code: int) -> Array:
        """Return new memory of the arena as a CUDA tensor. It is freed with the last view of it."""
        torch = importlib.import_module("torch")
        self.map(session)
        size = math.prod(shape) * dtypes.SIZES[code]
        offset = ffi.new("uint64_t *")
        check(lib.aule_device_alloc(session.pointer, size or 1, offset))
        at = offset[0]

        def free(pointer: Any, _lent: Any) -> None:
            lib.aule_device_free(pointer, at)

        token = session.lend(ffi.cast("void *", self.start + at), free)
        memory = _Memory(self.start + at, size or 1, token)
        array = _tensor_of(torch, memory, self._device)[:size]
        return array.view(dtypes.torch_dtype(code)).view(shape)

    def pool(self, session: Handle) -> Any:
        """Return a torch.cuda.MemPool that allocates in the arena; see Session.mem_pool()."""
        torch = importlib.import_module("torch")
        if not hasattr(torch.cuda, "MemPool"):
            raise errors.UnsupportedError(
                f"this torch ({torch.__version__}) has no torch.cuda.MemPool; 2.5 has it")
        self.map(session)
        pool = self._pool() if self._pool is not None else None
        if pool is None:
            check(lib.aule_torch_begin(session.pointer))
            token = session.lend(ffi.cast("void *", self.start),
                                 lambda pointer, _: lib.aule_torch_end(pointer))
            self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
                str(library_path()), "aule_torch_alloc", "aule_torch_free")
            pool = torch.cuda.MemPool(self._allocator.allocator())
            pool.aule_token = token  # its end ends the allocator
            self._pool = weakref.ref(pool)
        return pool

    def copy_in(self, session: Handle, array: Any, code: int) -> Array:
        """Return a dense copy in the arena; it is there at `arrive()`."""
        torch = importlib.import_module("torch")
        copy = self.allocate(session, tuple(array.shape), code)
        source = array if dtypes.is_torch(array) else torch.from_numpy(array)
        copy.copy_(source.detach(), non_blocking=True)
        with self._lock:
            self.bytes_in += copy.nbytes
        return copy

    def copy_out(self, copy: Array, array: Any) -> None:
        """Copy the arena's `copy` into the caller's array. Waits, because the copy ends then."""
        if dtypes.is_torch(array):
            array.detach().copy_(copy, non_blocking=True)
        else:
            array[...] = copy.cpu().numpy()
        self.arrive(copy)
        with self._lock:
            self.bytes_out += copy.nbytes

    def arrive(self, keep: Any) -> None:
        """Wait until the current stream has passed. The daemon reads and writes the arena then.

        TimeoutError: it has not passed in time. Then the tensors of `keep` stay allocated until it
        has.
        """
        torch = importlib.import_module("torch")
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        with self._lock:
            before = self._late  # memory that it has kept goes after the lock
            self._late = [late for late in before if not late[0].query()]
        del before
        try:
            _streams.wait_for(event, self.stream_timeout)
        except errors.TimeoutError:
            with self._lock:
                self._late.append((event, keep))
            raise
