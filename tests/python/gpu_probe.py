# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""The parts of gpu_workers.py that ask CUDA's driver what it can do: its calls by ctypes."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

from gpu_measure import Row, Rows, Size, cuda
from gpu_pool import attach_to

POSIX_FD = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ, BOTH = 1, 3  # CU_MEM_ACCESS_FLAGS_PROT_READ, _READWRITE
DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
GRAIN = 2 << 20


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("kind", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int))


def _driver() -> Any:
    cuda().zeros(1, device="cuda")  # the primary context is there, and current
    return ctypes.CDLL("libcuda.so.1")


def _name(driver: Any, result: int) -> str:
    name = ctypes.c_char_p()
    driver.cuGetErrorName(result, ctypes.byref(name))
    return name.value.decode() if name.value else str(result)


def readonly(size: Size) -> list[Row]:
    """Try to map the daemon's memory for reading only; each row is the driver's result, 0 is yes.

    First cuMemImportFromShareableHandle() of the pool's descriptor. Then the mapping of
    cuExternalMemoryGetMappedBuffer(), whose access is to be reduced. Last, as a check of this
    program, memory that CUDA has made itself.
    """
    from aule import _device
    from aule._native import check, ffi, lib

    torch, driver = cuda(), _driver()
    rows = Rows()
    guarded = 0

    def note(what: str, result: int, target: str = "") -> int:
        rows.append((f"readonly: {what}: {_name(driver, result)}", float(result), "", target,
                     result == 0 if target else None))
        return result

    def pointer(address: int) -> Any:
        return ctypes.c_uint64(address)

    def allow(address: int, length: int, flags: int) -> int:
        access = _Access(DEVICE, torch.cuda.current_device(), flags)
        return int(driver.cuMemSetAccess(pointer(address), ctypes.c_size_t(length),
                                         ctypes.byref(access), ctypes.c_size_t(1)))

    def map_reading(handle: Any, length: int) -> tuple[int, int]:
        at = ctypes.c_uint64()
        for result in (driver.cuMemAddressReserve(ctypes.byref(at), ctypes.c_size_t(length),
                                                  ctypes.c_size_t(0), pointer(0),
                                                  ctypes.c_ulonglong(0)),
                       driver.cuMemMap(at, ctypes.c_size_t(length), ctypes.c_size_t(0), handle,
                                       ctypes.c_ulonglong(0))):
            if result:
                return result, 0
        return allow(at.value, length, READ), at.value

    def write(address: int) -> int:
        return int(driver.cuMemsetD8_v2(pointer(address), ctypes.c_ubyte(0), ctypes.c_size_t(16)))

    def use(what: str, address: int) -> None:
        there = (ctypes.c_char * 16)()
        note(f"{what}, read", driver.cuMemcpyDtoH_v2(there, pointer(address),
                                                     ctypes.c_size_t(16)))
        note(f"{what}, write (it should fail)", write(address))

    def grains(address: int, length: int) -> None:
        """Let the memory be written but for the second grain of 2 MiB."""
        note("cuMemSetAccess(PROT_READWRITE) of Vulkan's memory", allow(address, length, BOTH))
        took = []
        for flags in (READ, BOTH) * 10 + (READ,):
            started = time.perf_counter()
            result = allow(address + GRAIN, GRAIN, flags)
            took.append(time.perf_counter() - started)
        note("cuMemSetAccess(PROT_READ) of 2 MiB inside", result)
        rows.append(("readonly: such a call", statistics.median(took) * 1e6, "us", "", None))
        for name, at in (("before it", 0), ("in it (it should fail)", GRAIN),
                         ("behind it", 2 * GRAIN)):
            note(f"2 MiB inside, write {name}", write(address + at))

    _session, cache = attach_to(size, "readonly", blocks=1024, layers=2)
    part = ffi.new("struct aule_pool_part *")
    check(lib.aule_cache_export_sized(cache._open().pointer, 0, part, ffi.sizeof(part[0])))
    handle = ctypes.c_ulonglong()
    result = driver.cuMemImportFromShareableHandle(
        ctypes.byref(handle), ctypes.c_void_p(part.fd), ctypes.c_int(POSIX_FD))
    note("cuMemImportFromShareableHandle() of Vulkan's descriptor", result)
    length = int(part.allocated) // GRAIN * GRAIN
    if result == 0:
        result, address = map_reading(handle, length)
        note("cuMemSetAccess(PROT_READ) of it", result)
        if result == 0:
            use("Vulkan's memory", address)
            grains(address, length)
            guarded = address + GRAIN
    layer = cache.layers[0]
    start = layer.data_ptr() // GRAIN * GRAIN
    note("cuMemSetAccess(PROT_READ) of the mapping of cuExternalMemoryGetMappedBuffer()",
         allow(start, GRAIN, READ))
    retained = ctypes.c_ulonglong()
    note("cuMemRetainAllocationHandle() of it",
         driver.cuMemRetainAllocationHandle(ctypes.byref(retained),
                                            ctypes.c_void_p(layer.data_ptr())))
    # CUmemAllocationProp: pinned, how it can be shared, where; the rest is 0.
    prop = (ctypes.c_int * 8)(1, POSIX_FD, DEVICE, torch.cuda.current_device())
    own = ctypes.c_ulonglong()
    result = driver.cuMemCreate(ctypes.byref(own), ctypes.c_size_t(GRAIN), prop,
                                ctypes.c_ulonglong(0))
    note("cuMemCreate() of CUDA's own memory", result)
    if result == 0:
        result, address = map_reading(own, GRAIN)
        note("cuMemSetAccess(PROT_READ) of CUDA's own memory", result)
        if result == 0:
            use("CUDA's own memory", address)
    if guarded:  # the last: CUDA works no more in this process
        memory = _device._Memory(guarded, 64, None)
        try:
            _device._tensor_of(torch, memory, torch.cuda.current_device()).fill_(1)
            torch.cuda.synchronize()
            said = "no error"
        except RuntimeError as reason:
            said = str(reason).splitlines()[0]
        rows.append((f"readonly: a kernel that writes there: {said}", 0.0, "", "", None))
    return rows


def _median(work: Callable[[], None], repeats: int) -> float:
    took = []
    for _ in range(repeats + 20):
        started = time.perf_counter()
        work()
        took.append(time.perf_counter() - started)
    return statistics.median(took[20:]) * 1e6


def order(size: Size) -> list[Row]:
    """Time how the CPU learns that a short kernel has passed: by an event, or by a host flag."""
    torch, driver = cuda(), _driver()
    rows = Rows()
    x = torch.zeros(1024, device="cuda")
    flag = torch.zeros(16, dtype=torch.int32).pin_memory()
    seen = flag.numpy()
    stream = torch.cuda.current_stream()
    event = torch.cuda.Event()

    def wait() -> None:
        x.add_(1)
        event.record(stream)
        event.synchronize()

    def poll() -> None:
        x.add_(1)
        event.record(stream)
        while not event.query():
            pass

    def host_flag() -> None:
        seen[0] = 0
        x.add_(1)
        result = driver.cuStreamWriteValue32_v2(
            ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(flag.data_ptr()),
            ctypes.c_uint32(1), ctypes.c_uint(0))
        if result:
            raise RuntimeError(f"cuStreamWriteValue32() returned {_name(driver, result)}")
        while not seen[0]:
            pass

    for name, work in (("event, synchronize", wait), ("event, query in a loop", poll),
                       ("host flag, cuStreamWriteValue32", host_flag)):
        rows.append((f"order: kernel and {name}", _median(work, size.repeats * 25), "us", "", None))
    return rows


PARTS: dict[str, Callable[[Size], list[Row]]] = {"readonly": readonly, "order": order}
