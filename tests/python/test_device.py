# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""The device arena from Python: a software device's memory, mapped by a fake libcuda.

The fake's CUDA tensors are late: whoever does not wait for the stream reads old data.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import aule
import numpy as np
import pytest
from aule import _device, errors
from aule._native import check, ffi, lib
from conftest import DIM, HEADS, IDENTITY, KV_HEADS, drawn, expected, open_descriptors

torch = pytest.importorskip("torch")

import fake_cuda  # noqa: E402

COUNT = 8
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
DEVICE_ARENA = 1 << 20
MARK = 16433


class Libcuda(ctypes.Structure):
    """struct fake_libcuda."""

    _fields_ = [("uuids", ctypes.c_ubyte * 16 * 2), ("num_devices", ctypes.c_int),
                ("begin", ctypes.c_uint64), ("refuses_imports", ctypes.c_bool),
                ("refuses_maps", ctypes.c_bool), ("contexts", ctypes.c_int),
                ("imports", ctypes.c_int), ("maps", ctypes.c_int)]


def find_begin(session: aule.Session) -> int:
    """Find where the memory begins in its file; the driver's own notes stand before it."""
    export = ffi.new("struct aule_device_export *")
    check(lib.aule_device_export_sized(session._open().pointer, export, ffi.sizeof(export[0])))
    number = export.fd
    said = subprocess.run(
        [os.environ["AULE_IMPORTER"], str(number), str(export.allocated),
         str(int(export.dedicated))],
        input=f"put 0 {MARK} 6\n", capture_output=True, text=True, pass_fds=[number], check=True)
    assert said.stdout.endswith("ok\n")
    with mmap.mmap(number, 0) as file:
        mark = struct.pack("6f", *range(MARK, MARK + 6))
        begin = file.find(mark)
        assert begin >= 0
        file[begin:begin + len(mark)] = bytes(len(mark))
    os.close(number)
    return begin


@pytest.fixture(scope="module")
def libcuda(session: aule.Session) -> Libcuda:
    """The fake, with the daemon's GPU as device 1."""
    if "AULE_FAKE_LIBCUDA" not in os.environ:
        pytest.skip("there is no fake libcuda; ctest builds it")
    fake = Libcuda.in_dll(ctypes.CDLL(os.environ["AULE_FAKE_LIBCUDA"]), "fake_libcuda")
    try:
        with aule.connect(session.socket, device_arena_size=4096) as probe:
            fake.begin = find_begin(probe)
    except errors.UnsupportedError as reason:
        pytest.skip(str(reason))
    fake.num_devices = 2
    fake.uuids[0][:] = [0xEE] * 16
    fake.uuids[1][:] = list(session.info["device_uuid"])
    return fake


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, libcuda: Libcuda) -> Iterator[fake_cuda.Cuda]:
    yield fake_cuda.install(monkeypatch)
    gc.collect()
    assert (libcuda.contexts, libcuda.imports, libcuda.maps) == (0, 0, 0)


@pytest.fixture
def own(cuda: fake_cuda.Cuda, session: aule.Session) -> Iterator[aule.Session]:
    with aule.connect(session.socket, arena_size=1 << 20,
                      device_arena_size=DEVICE_ARENA) as own:
        yield own


@pytest.fixture
def step(own: aule.Session) -> Iterator[Any]:
    with own.cache("device", **IDENTITY) as cache, \
            cache.sequence(range(COUNT), publish=False) as sequence:
        yield cache.step([sequence])


def qkv(seed: int = 0) -> list[Any]:
    return [drawn(COUNT, heads, DIM, seed=seed + i)
            for i, heads in enumerate((HEADS, KV_HEADS, KV_HEADS))]


def late(own: aule.Session, cuda: fake_cuda.Cuda, array: Any) -> Any:
    """A tensor of the device arena that the stream has yet to fill."""
    tensor = own.empty(array.shape, torch.float32, device="cuda")
    assert tensor.is_cuda and own.in_arena(tensor)
    cuda.current.put(lambda: fake_cuda.plain(tensor).copy_(torch.from_numpy(array)))
    return tensor


def test_a_run_is_sent_when_the_stream_has_passed_and_nothing_is_copied(
        cuda: fake_cuda.Cuda, own: aule.Session, step: Any) -> None:
    arrays = qkv()
    out, lse = step.attend(0, *[late(own, cuda, array) for array in arrays], lse=True)
    wanted = expected(*arrays)
    assert out.is_cuda and own.in_arena(out) and own.in_arena(lse)
    np.testing.assert_allclose(fake_cuda.values(out), wanted[0], **CLOSE)
    np.testing.assert_allclose(fake_cuda.values(lse), wanted[1], **CLOSE)
    assert own.copied == own.device_copied == (0, 0)
    assert cuda.copies == []


def test_cuda_tensors_elsewhere_are_copied_on_the_device_alone(
        cuda: fake_cuda.Cuda, own: aule.Session, step: Any) -> None:
    arrays = qkv()
    tensors = [fake_cuda.tensor(array) for array in arrays]
    out = fake_cuda.tensor(np.zeros_like(arrays[0]))
    assert step.attend(0, *tensors, out) is out
    np.testing.assert_allclose(fake_cuda.values(out), expected(*arrays)[0], **CLOSE)
    assert own.copied == (0, 0)
    assert own.device_copied == (sum(t.nbytes for t in tensors), out.nbytes)


def test_several_layers_and_strided_views_are_right(
        cuda: fake_cuda.Cuda, own: aule.Session, step: Any) -> None:
    arrays = [qkv(seed) for seed in (0, 7)]
    stacked = [np.stack(pair) for pair in zip(*arrays, strict=True)]
    out = step.attend_layers(*[late(own, cuda, array) for array in stacked])
    for layer, some in zip(fake_cuda.values(out), arrays, strict=True):
        np.testing.assert_allclose(layer, expected(*some)[0], **CLOSE)
    fused = late(own, cuda, np.concatenate(arrays[0], axis=1))
    q, k, v = (fused[:, a:b] for a, b in ((0, HEADS), (HEADS, HEADS + KV_HEADS),
                                          (HEADS + KV_HEADS, HEADS + 2 * KV_HEADS)))
    out = step.attend(0, q, k, v)
    np.testing.assert_allclose(fake_cuda.values(out), expected(*arrays[0])[0], **CLOSE)
    assert own.device_copied == (0, 0)


def test_runs_of_host_tensors_go_on_as_before(cuda: fake_cuda.Cuda, own: aule.Session,
                                              step: Any) -> None:
    arrays = qkv()
    np.testing.assert_allclose(step.attend(0, *arrays), expected(*arrays)[0], **CLOSE)
    assert own.copied.bytes_in > 0 and own.device_copied == (0, 0)


def test_views_that_are_not_aligned_are_copied_on_the_device(
        cuda: fake_cuda.Cuda, own: aule.Session, step: Any) -> None:
    arrays = qkv()
    tensors = []
    for array in arrays:
        row = late(own, cuda, np.concatenate([[0.0], array.reshape(-1)]).astype(np.float32))
        tensors.append(row[1:].view(*array.shape))  # 4 bytes behind a border of 16
        assert not own.in_arena(tensors[-1])
    out = step.attend(0, *tensors)
    np.testing.assert_allclose(fake_cuda.values(out), expected(*arrays)[0], **CLOSE)
    assert own.device_copied == (sum(array.nbytes for array in arrays), 0)
    assert own.copied == (0, 0)


def test_tensors_that_are_dropped_while_a_run_uses_them_stay_until_its_end(
        cuda: fake_cuda.Cuda, own: aule.Session, step: Any) -> None:
    arrays = qkv()
    tensors = [late(own, cuda, array) for array in arrays]
    places = [(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors]
    ticket = step.submit(0, *tensors)
    del tensors
    gc.collect()
    others = [own.empty(array.shape, torch.float32, device="cuda") for array in arrays * 4]
    for other in others:
        assert all(other.data_ptr() + other.nbytes <= begin or other.data_ptr() >= end
                   for begin, end in places)
    out = ticket.wait()
    np.testing.assert_allclose(fake_cuda.values(out), expected(*arrays)[0], **CLOSE)
    del ticket, others, out
    gc.collect()
    again = own.empty(arrays[0].shape, torch.float32, device="cuda")
    assert any(begin <= again.data_ptr() < end for begin, end in places)


def test_memory_of_tensors_comes_back_with_their_last_view(cuda: fake_cuda.Cuda,
                                                           own: aule.Session) -> None:
    for _ in range(100):
        tensor = own.empty((DEVICE_ARENA // 4,), torch.float32, device="cuda")
        view = tensor[4:]
        with pytest.raises(errors.NoMemoryError, match="0 are free"):
            own.empty((1,), torch.float32, device="cuda")
        del tensor
        with pytest.raises(errors.NoMemoryError):
            own.empty((1,), torch.float32, device="cuda")
        del view


def test_tensors_outlive_their_session(cuda: fake_cuda.Cuda, session: aule.Session,
                                       libcuda: Libcuda) -> None:
    own = aule.connect(session.socket, device_arena_size=DEVICE_ARENA)
    tensor = own.empty((4,), torch.float32, device="cuda")
    own.close()
    fake_cuda.plain(tensor).fill_(3)
    assert fake_cuda.values(tensor).tolist() == [3] * 4
    assert libcuda.maps == 1
    del tensor


def is_for_cpus() -> None:
    raise AssertionError("Torch not compiled with CUDA enabled")


def test_what_cannot_be_has_a_sentence(cuda: fake_cuda.Cuda, session: aule.Session,
                                       libcuda: Libcuda,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.InvalidError, match="device_arena_size"):
        session.empty((4,), device="cuda")
    with aule.connect(session.socket, device_arena_size=4096) as own:
        with pytest.raises(errors.InvalidError, match="device = 'tpu' is none of cpu, cuda"):
            own.empty((4,), device="tpu")
        with pytest.raises(errors.InvalidError, match="numpy has no arrays"):
            own.empty((4,), kind="numpy", device="cuda")
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        with pytest.raises(errors.MismatchError, match="eeeeeeee-.* but the daemon has GPU"):
            own.empty((4,), device="cuda")
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
        monkeypatch.setattr(libcuda, "refuses_imports", True)
        with pytest.raises(errors.UnsupportedError, match="cuImportExternalMemory"):
            own.empty((4,), device="cuda")
        monkeypatch.setattr(libcuda, "refuses_imports", False)
        assert own.empty((0, 4), torch.float32, device="cuda").shape == (0, 4)
    with aule.connect(session.socket, device_arena_size=4096) as own:
        monkeypatch.setattr(torch.cuda, "init", is_for_cpus)
        with pytest.raises(errors.UnsupportedError, match="torch cannot use CUDA: .*not compiled"):
            own.empty((4,), device="cuda")


def test_sessions_come_and_go_without_a_trace(cuda: fake_cuda.Cuda,
                                              session: aule.Session) -> None:
    before = 0
    for i in range(40):
        with aule.connect(session.socket, device_arena_size=DEVICE_ARENA) as own:
            own.empty((16,), torch.float32, device="cuda")
        before = before or open_descriptors()
        assert open_descriptors() <= before, i


def test_a_stream_that_never_passes_is_an_error_and_keeps_the_memory_that_it_may_write(
        cuda: fake_cuda.Cuda, session: aule.Session) -> None:
    with aule.connect(session.socket, arena_size=1 << 20, device_arena_size=DEVICE_ARENA,
                      stream_timeout=0.05) as own, \
            own.cache("stuck", **IDENTITY) as cache, \
            cache.sequence(range(COUNT), publish=False) as text:
        step = cache.step([text])
        arrays = qkv()
        tensors = [fake_cuda.tensor(array) for array in arrays]
        cuda.current.stuck = True
        with pytest.raises(errors.TimeoutError, match=r"has not passed after .*_timeout = 0\.05"):
            step.attend(0, *tensors)
        gc.collect()
        with pytest.raises(errors.NoMemoryError):  # the stream may still copy into it
            own.empty((DEVICE_ARENA // 4,), torch.float32, device="cuda")
        cuda.current.stuck = False
        out = step.attend(0, *tensors)
        np.testing.assert_allclose(fake_cuda.values(out), expected(*arrays)[0], **CLOSE)
        del out, step
        gc.collect()
        cuda.current.run()
        own._arena.device.arrive(None)
        own.empty((DEVICE_ARENA // 4,), torch.float32, device="cuda")


def test_threads_whose_streams_are_late_at_the_same_time_all_keep_their_memory(
        cuda: fake_cuda.Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = _device.DeviceArena(DEVICE_ARENA, 0.05)
    looks, added = threading.Event(), threading.Event()

    def query(_event: fake_cuda.Event) -> bool:
        if threading.current_thread() is threads[0]:
            looks.set()
            added.wait(0.5)  # runs out if nobody can add now
        return False

    def wait_for(_event: fake_cuda.Event, _timeout: float | None) -> None:
        raise errors.TimeoutError("late")

    def look() -> None:
        with pytest.raises(errors.TimeoutError):
            arena.arrive("of the first thread")

    def add() -> None:
        looks.wait()
        with pytest.raises(errors.TimeoutError):
            arena.arrive("of the second thread")
        added.set()

    monkeypatch.setattr(fake_cuda.Event, "query", query)
    monkeypatch.setattr(_device._streams, "wait_for", wait_for)
    arena._late = [(fake_cuda.Event(), "of before")]
    threads = [threading.Thread(target=work) for work in (look, add)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(keep for _, keep in arena._late) == [
        "of before", "of the first thread", "of the second thread"]


class Pools:
    """What torch has for pools: an allocator by the names of two C functions, and a pool of it."""

    class Allocator:
        def __init__(self, path: str, alloc: str, free: str) -> None:
            library = ctypes.CDLL(path)
            self.take, self.free = getattr(library, alloc), getattr(library, free)
            self.take.restype = ctypes.c_void_p
            self.take.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
            self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]

        def allocator(self) -> Any:
            return self

    class Pool:
        def __init__(self, allocator: Any) -> None:
            self.allocator = allocator


def test_torch_allocates_in_the_arena_through_a_pool(
        cuda: fake_cuda.Cuda, own: aule.Session, session: aule.Session, step: Any,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", Pools.Allocator)
    monkeypatch.setattr(torch.cuda, "MemPool", Pools.Pool, raising=False)
    pool = own.mem_pool()
    assert own.mem_pool() is pool
    shape = (COUNT, HEADS, DIM)
    size = COUNT * HEADS * DIM * 4
    at = pool.allocator.take(size, 1, None)
    out = fake_cuda.over(torch, _device._Memory(at, size, None), 1).view(torch.float32)
    out = out.view(shape)
    assert own.in_arena(out)
    arrays = qkv()
    before = own.device_copied
    step.attend(0, *[late(own, cuda, array) for array in arrays], out)
    assert own.device_copied == before
    np.testing.assert_allclose(fake_cuda.values(out), expected(*arrays)[0], **CLOSE)
    with aule.connect(session.socket, device_arena_size=4096) as other, \
            pytest.raises(errors.BusyError, match="another session on CUDA device 1"):
        other.mem_pool()
    assert pool.allocator.take(2 * DEVICE_ARENA, 1, None) is None
    pool.allocator.free(at, size, 1, None)
    allocator = pool.allocator
    del pool, out
    gc.collect()
    assert allocator.take(size, 1, None) is None


def test_a_torch_without_pools_says_so(cuda: fake_cuda.Cuda, own: aule.Session,
                                       session: aule.Session,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.InvalidError, match="needs a session with a device arena"):
        session.mem_pool()
    monkeypatch.delattr(torch.cuda, "MemPool", raising=False)
    with pytest.raises(errors.UnsupportedError, match=r"has no torch\.cuda\.MemPool"):
        own.mem_pool()
