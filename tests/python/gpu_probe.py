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


class Probe:
    """Calls of the driver, each with a row for its result; 0 is yes."""

    def __init__(self) -> None:
        self.torch, self.driver, self.rows = cuda(), _driver(), Rows()
        self.device = self.torch.cuda.current_device()

    def note(self, what: str, result: int) -> bool:
        """Add a row; returns whether the call has succeeded."""
        self.rows.append((f"readonly: {what}: {_name(self.driver, result)}", float(result), "", "",
                          None))
        return result == 0

    def allow(self, address: int, length: int, flags: int) -> int:
        """Set the access of this device to a mapping."""
        access = _Access(DEVICE, self.device, flags)
        return int(self.driver.cuMemSetAccess(ctypes.c_uint64(address), ctypes.c_size_t(length),
                                              ctypes.byref(access), ctypes.c_size_t(1)))

    def map(self, handle: Any, length: int) -> int:
        """Map an allocation somewhere, without access yet; returns its address, 0: it failed."""
        at = ctypes.c_uint64()
        zero, size = ctypes.c_ulonglong(0), ctypes.c_size_t(length)
        if self.driver.cuMemAddressReserve(ctypes.byref(at), size, ctypes.c_size_t(0), zero, zero):
            return 0
        result = self.driver.cuMemMap(at, size, ctypes.c_size_t(0), handle, zero)
        return at.value if self.note("cuMemMap()", result) else 0

    def write(self, address: int) -> int:
        """Write some bytes by a call of the driver, which checks the access."""
        return int(self.driver.cuMemsetD8_v2(ctypes.c_uint64(address), ctypes.c_ubyte(0),
                                             ctypes.c_size_t(16)))

    def use(self, what: str, address: int) -> None:
        """Read and write what may be read only."""
        there = (ctypes.c_char * 16)()
        self.note(f"{what}, read", self.driver.cuMemcpyDtoH_v2(
            there, ctypes.c_uint64(address), ctypes.c_size_t(16)))
        self.note(f"{what}, write (it should fail)", self.write(address))

    def vulkans(self, handle: Any, length: int) -> int:
        """Map Vulkan's memory twice: for reading, and for writing but for 2 MiB.

        Returns the address of the mapping for reading; 0: there is none.
        """
        reading, writing = self.map(handle, length), self.map(handle, length)
        if not reading or not self.note("cuMemSetAccess(PROT_READ) of Vulkan's memory",
                                        self.allow(reading, length, READ)):
            return 0
        self.use("Vulkan's memory", reading)
        if writing:
            self.note("cuMemSetAccess(PROT_READWRITE) of a second mapping",
                      self.allow(writing, length, BOTH))
            self.note("a second mapping, write", self.write(writing))
            self.note("cuMemSetAccess(PROT_READ) of 2 MiB inside",
                      self.allow(writing + GRAIN, GRAIN, READ))
        return reading

    def kernel(self, address: int) -> None:
        """Let a kernel write there. CUDA works no more in this process afterwards."""
        from aule import _device

        tensor = _device._tensor_of(self.torch, _device._Memory(address, 64, None), self.device)
        said = "no error"
        try:
            tensor.fill_(1)
            self.torch.cuda.synchronize()
        except RuntimeError as reason:
            said = str(reason).splitlines()[0]
        self.rows.append((f"readonly: a kernel that writes there: {said}", 0.0, "", "", None))


def readonly(size: Size) -> list[Row]:
    """Try to map the daemon's memory for reading only.

    First cuMemImportFromShareableHandle() of the pool's descriptor. Then the mapping of
    cuExternalMemoryGetMappedBuffer(), whose access is to be reduced. Last, as a check of this
    program, memory that CUDA has made itself.
    """
    from aule._native import check, ffi, lib

    probe = Probe()
    driver = probe.driver
    _session, cache = attach_to(size, "readonly", blocks=1024, layers=2)
    part = ffi.new("struct aule_pool_part *")
    check(lib.aule_cache_export_sized(cache._open().pointer, 0, part, ffi.sizeof(part[0])))
    handle, retained, own = (ctypes.c_ulonglong() for _ in range(3))
    reading = 0
    if probe.note("cuMemImportFromShareableHandle() of Vulkan's descriptor",
                  driver.cuMemImportFromShareableHandle(
                      ctypes.byref(handle), ctypes.c_void_p(part.fd), ctypes.c_int(POSIX_FD))):
        reading = probe.vulkans(handle, int(part.allocated) // GRAIN * GRAIN)
    layer = cache.layers[0].data_ptr()
    probe.note("cuMemSetAccess(PROT_READ) of the mapping of cuExternalMemoryGetMappedBuffer()",
               probe.allow(layer // GRAIN * GRAIN, GRAIN, READ))
    probe.note("cuMemRetainAllocationHandle() of it", driver.cuMemRetainAllocationHandle(
        ctypes.byref(retained), ctypes.c_void_p(layer)))
    # CUmemAllocationProp: pinned, how it can be shared, where; the rest is 0.
    prop = (ctypes.c_int * 8)(1, POSIX_FD, DEVICE, probe.device)
    result = driver.cuMemCreate(ctypes.byref(own), ctypes.c_size_t(GRAIN), prop,
                                ctypes.c_ulonglong(0))
    if probe.note("cuMemCreate() of CUDA's own memory", result):
        mine = probe.map(own, GRAIN)
        probe.note("cuMemSetAccess(PROT_READ) of CUDA's own memory",
                   probe.allow(mine, GRAIN, READ))
        probe.use("CUDA's own memory", mine)
    if reading:
        probe.kernel(reading)
    return probe.rows


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
