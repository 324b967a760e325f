# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""CUDA for tests on the CPU: torch.cuda's streams, events and cudart, as late as CUDA may be.

A Tensor counts as a CUDA tensor. A copy with non_blocking=True is made when an event behind it is
waited for, and not before: whoever forgets to wait reads old data. Other functions of torch wait
for the current stream, and run at once.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from aule import _device

ALREADY_REGISTERED = 712
SWITCHES = ("is_cuda", "is_cpu")


class Stream:
    """Work in order. It runs when an event is waited for."""

    device = "fake"

    def __init__(self) -> None:
        self._work: list[Callable[[], object]] = []
        self._lock = threading.RLock()
        self.stuck = False  # it waits for something that never comes

    def put(self, work: Callable[[], object]) -> None:
        with self._lock:
            self._work.append(work)

    def run(self, event: Event | None = None) -> None:
        """Run what there is, or what is before an event."""
        with self._lock:
            while self._work and not self.stuck and not (event and event.passed):
                self._work.pop(0)()

    def wait_event(self, event: Event) -> None:
        self.put(event.synchronize)


class Event:
    """An event. A caller that polls it waits for it, so the stream's work is done then."""

    PATIENCE = 3

    def __init__(self) -> None:
        self.passed = False
        self._stream: Stream | None = None
        self._asked = 0

    def record(self, stream: Stream) -> None:
        self._stream = stream
        stream.put(lambda: setattr(self, "passed", True))

    def query(self) -> bool:
        self._asked += 1
        if self._asked > self.PATIENCE:
            self.synchronize()
        return self.passed

    def synchronize(self) -> None:
        assert self._stream is not None
        self._stream.run(self)


class Cudart:
    """torch.cuda.cudart(). `status`: what cudaHostRegister returns."""

    def __init__(self) -> None:
        self.status = 0
        self.calls: list[tuple[str, int]] = []
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert flags == 1  # portable
        self.calls.append(("register", address))
        if self.status:
            return self.status
        assert not any(address < start + length and start < address + size
                       for start, length in self.registered.items())
        self.registered[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(("unregister", address))
        del self.registered[address]
        return 0

    def cudaGetErrorString(self, status: int) -> str:
        return f"error {status}"


class Cuda:
    """What torch.cuda is replaced by."""

    def __init__(self) -> None:
        self.runtime = Cudart()
        self.default = Stream()
        self._streams = threading.local()
        self.recorded: list[Stream] = []  # streams that record_stream() has named
        self.copies: list[bool] = []  # non_blocking of each copy from or to a CUDA tensor

    @property
    def current(self) -> Stream:
        """The calling thread's stream."""
        return getattr(self._streams, "current", self.default)

    @current.setter
    def current(self, stream: Stream) -> None:
        self._streams.current = stream

    def copy(self, target: Any, source: Any, non_blocking: bool) -> None:
        self.copies.append(non_blocking)
        ends = [plain(end) if isinstance(end, Tensor) else host(end) for end in (target, source)]
        self.current.put(lambda: made(ends[0]).copy_(made(ends[1])))
        if not non_blocking:
            self.current.run()


def host(tensor: Any) -> Callable[[], Any]:
    """Return what makes the dense tensor again from its address: CUDA keeps no memory alive."""
    assert tensor.is_contiguous()
    address, size, dtype, shape = tensor.data_ptr(), tensor.nbytes, tensor.dtype, tensor.shape
    return lambda: torch.frombuffer((ctypes.c_char * size).from_address(address),
                                    dtype=dtype).view(shape)


def made(end: Any) -> Any:
    return end if isinstance(end, torch.Tensor) else end()


fake: Cuda | None = None


def plain(tensor: Any) -> Any:
    return tensor.as_subclass(torch.Tensor) if isinstance(tensor, Tensor) else tensor


class Tensor(torch.Tensor):
    """A tensor in host memory that says it is CUDA's."""

    def record_stream(self, stream: Stream) -> None:  # type: ignore[override]
        assert fake is not None
        fake.recorded.append(stream)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (),
                           options: Any = None) -> Any:
        options = options or {}
        assert fake is not None
        with torch._C.DisableTorchFunctionSubclass():
            name = getattr(getattr(function, "__self__", None), "__name__", function.__name__)
            if name in SWITCHES:
                return name == "is_cuda"
            if name == "copy_":
                fake.copy(args[0], args[1], options.get("non_blocking", False))
                return args[0]
            if name not in ("device", "dtype", "shape", "stride", "data_ptr", "detach", "dim",
                            "numel", "new_empty", "size", "ndim", "nbytes",
                            "requires_grad", "is_nested"):
                fake.current.run()
            out = function(*args, **options)
        wrap = isinstance(out, torch.Tensor) and name not in ("cpu", "numpy")
        return out.as_subclass(Tensor) if wrap else out


def tensor(array: Any) -> Any:
    """A CUDA tensor with a copy of numpy's array."""
    return torch.from_numpy(array.copy()).as_subclass(Tensor)


def over(_torch: Any, memory: Any, _device: int) -> Any:
    """A CUDA tensor over the memory of a fake libcuda, which it keeps."""
    address, size = memory.__cuda_array_interface__["data"][0], memory.__cuda_array_interface__[
        "shape"][0]
    array = (ctypes.c_char * size).from_address(address)
    array.memory = memory
    return torch.frombuffer(array, dtype=torch.uint8).as_subclass(Tensor)


def values(output: Any) -> Any:
    """The values of a tensor as numpy's array, after the current stream's work."""
    assert isinstance(output, Tensor) and fake is not None
    fake.current.run()
    return plain(output).numpy().copy()


def install(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """Replace torch.cuda's functions for one test."""
    global fake  # noqa: PLW0603
    fake = cuda = Cuda()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cuda.runtime)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device=None: cuda.current)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(_device, "_tensor_of", over)
    return cuda
