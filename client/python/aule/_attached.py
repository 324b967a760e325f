# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""A cache whose memory this process has mapped: its own kernels read and write blocks in place.

The daemon cannot see CUDA's streams. So what kernels have written, and that they have passed, is
reported after an event of their stream. This module knows torch's streams and events, no runs. Any
thread. Locks are taken in this order: a sequence's, `_reporting`, `_lock`.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _device, _streams, dtypes, errors
from ._args import int32
from ._native import Handle, Owner, check, ffi, lib
from .sequence import Sequence

if TYPE_CHECKING:
    from .cache import Cache

Array = Any  # torch.Tensor
PASSED_ALL = 2**64 - 1


class Tables(NamedTuple):
    """A step's metadata in the forms that kernels of engines take: CUDA tensors, int32.

    slot_mapping is int64, as vLLM's. FlashAttention's paged kernels take block_table, cache_seqlens
    and cu_seqlens_q; FlashInfer's take cu_seqlens_q, indptr, indices and last_page_len.
    """

    block_table: Array  # [sequences, columns]; columns behind a sequence's end are 0
    cache_seqlens: Array  # [sequences]: keys, those of this step included
    cu_seqlens_q: Array  # [sequences + 1]
    slot_mapping: Array  # [tokens]; -1: K and V are there already
    indptr: Array  # [sequences + 1]: where each sequence's blocks begin in `indices`
    indices: Array  # [blocks of all sequences]
    last_page_len: Array  # [sequences]: tokens in the last block of each


def forms(table: Any, lengths: Any, cu_seqlens: Any, slots: Any, block_size: int) -> Tables:
    """Return a step's metadata in all forms, as numpy's arrays.

    table [n, columns], -1: none; lengths [n]; cu_seqlens [n + 1]; slots [tokens].
    """
    counts = -(-lengths // block_size)
    indptr = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(counts, out=indptr[1:])
    used = np.arange(table.shape[1])[None, :] < counts[:, None]
    last = (lengths - (counts - 1) * block_size).astype(np.int32)
    return Tables(np.maximum(table, 0), lengths, cu_seqlens, slots, indptr, table[used],
                  np.where(counts > 0, last, 0).astype(np.int32))


def packed(tables: Tables) -> tuple[Any, list[tuple[int, int]]]:
    """Return all arrays as one row of bytes, and where each lies: offset and bytes."""
    places: list[tuple[int, int]] = []
    end = 0
    for array in tables:
        places.append((end, array.nbytes))
        end = -(-(end + array.nbytes) // 16) * 16
    row = np.zeros(end, np.uint8)
    for array, (offset, size) in zip(tables, places, strict=True):
        row[offset:offset + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return row, places


def upload(torch: Any, tables: Tables, device: Any) -> Tables:
    """Copy the arrays to a device, all by one copy."""
    row, places = packed(tables)
    there = torch.from_numpy(row).to(device)
    kinds = {4: torch.int32, 8: torch.int64}
    return Tables(*(there[offset:offset + size].view(kinds[array.itemsize]).view(array.shape)
                    for array, (offset, size) in zip(tables, places, strict=True)))


class _Written(NamedTuple):
    """Slots of a sequence's tokens from `begin` on, -1: none."""

    number: int  # of the note
    begin: int
    slots: Any

    def within(self, begin: int, end: int | None) -> _Written:
        """Return its part from the token `begin` on and before `end`; None: to its last token."""
        first = max(begin, self.begin)
        last = None if end is None else max(end - self.begin, 0)
        return _Written(self.number, first, self.slots[first - self.begin:last])


class Attached:
    """What `cache.attach()` returns.

    layers: a tensor [blocks, 2, num_kv_heads, block_size, head_dim] for each layer, K at [:, 0] and
    V at [:, 1]: the form that FlashInfer calls HND. They are the daemon's memory: write only to
    slots of blocks that this session has leased, read only blocks that it holds.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._reporting = threading.RLock()  # from before the wait for streams to its report
        self._lock = threading.RLock()  # of all below
        # Identifiers of threads that launch kernels. None is ever forgotten, also not when its
        # thread ends: once there are two, each report takes a message more.
        self._threads: set[int] = set()
        self._noted = 0  # notes so far
        # Slots that are written and not reported: those of sequences, and those given by hand.
        # Slots that a sequence drops go at once: a publication may free their blocks for others.
        self._written: weakref.WeakKeyDictionary[Sequence, list[_Written]] = (
            weakref.WeakKeyDictionary())
        self._given: list[tuple[int, Any]] = []  # number, slots
        # Of streams that wrote them, in the order of the notes, and of those whose threads have
        # released blocks, which their kernels may still read.
        self._events: list[Any] = []
        # Sequences with full blocks that are not reported: the next plan or step does so.
        self._due: weakref.WeakSet[Sequence] = weakref.WeakSet()
        handle = cache._open()
        info = ffi.new("struct aule_pool_info *")
        check(lib.aule_cache_attach_sized(handle.pointer, info, ffi.sizeof(info[0])))
        self.num_blocks = int(info.num_blocks)
        self._check(info)
        self.layers = self._map(handle, info)

    @staticmethod
    def _check(info: Any) -> None:
        if (info.k_dtype != info.v_dtype or info.head_dim_k != info.head_dim_v
                or not info.v_offset or info.scales_offset):
            raise errors.UnsupportedError(
                "K and V of this cache do not make one tensor: they need one dtype and one "
                "head_dim, no scales for each token, and no v_is_k_prefix")

    def _map(self, handle: Handle, info: Any) -> list[Array]:
        torch = importlib.import_module("torch")
        _device.start_cuda(torch)
        addresses, device = ffi.new("void *[]", int(info.num_layers)), ffi.new("int *")
        check(lib.aule_cache_map_cuda(handle.pointer, torch.cuda.current_device(), addresses,
                                      device))
        self.device = int(device[0])
        token = handle.lend(addresses[0], lambda _pointer, _lent: None)
        shape = (self.num_blocks, 2, info.num_kv_heads, info.block_size, info.head_dim_k)
        size = math.prod(shape) * dtypes.SIZES[info.k_dtype]
        kind = dtypes.torch_dtype(info.k_dtype)
        return [_device._tensor_of(torch, _device._Memory(int(ffi.cast("uintptr_t", address)),
                                                          size, token),
                                   self.device).view(kind).view(shape) for address in addresses]

    # ---- reports ----

    def _event(self) -> Any:
        torch = importlib.import_module("torch")
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _enter(self) -> None:
        """Add this thread to the known ones, before it launches its first kernel.

        A report that knows of one thread counts all releases as passed. So a new thread first waits
        until the report that is under way has ended.
        """
        me = threading.get_ident()
        if me not in self._threads:
            with self._reporting:
                self._threads.add(me)

    def _number(self) -> int:
        self._noted += 1
        return self._noted

    def wrote(self, slots: Any) -> None:
        """Note slots that kernels on the current stream write in all layers; see `report`."""
        self._enter()
        array, event = np.ascontiguousarray(slots, np.int64), self._event()
        with self._lock:
            self._events.append(event)
            self._given.append((self._number(), array))

    def planned(self, plan: Plan) -> None:
        """Note what a plan's kernels on the current stream write."""
        self._enter()
        event = self._event()
        with self._lock:
            self._events.append(event)  # before the notes: a report may come between
        lengths = plan.arrays.cache_seqlens.tolist()
        for i, (sequence, rows) in enumerate(zip(plan.sequences, plan.rows, strict=True)):
            with sequence._lock, self._lock:
                self._note(sequence, lengths[i] - (rows.stop - rows.start), plan._ends[i],
                           plan.arrays.slot_mapping[rows])

    def _note(self, sequence: Sequence, begin: int, end: int, slots: Any) -> None:
        if sequence.closed or end <= begin:  # closed or truncated: its slots may be another's
            return
        size = self._cache.block_size
        self._written.setdefault(sequence, []).append(
            _Written(self._number(), begin, slots[:end - begin]))
        sequence._own = (sequence._own[0] if sequence._own[1] == begin else begin, end)
        if begin // size != end // size:
            self._due.add(sequence)

    def settle(self, sequences: Iterable[Sequence]) -> None:
        """Publish what plans have written of these sequences, or report it. Steps call this."""
        self._enter()
        due = self._those_due(sequences)
        for sequence in due:
            if sequence._publishes and sequence._handle is not None:
                sequence.publish()
        if self._those_due(due):
            self.report()

    def _those_due(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        with self._lock:
            return [sequence for sequence in sequences if sequence in self._due]

    def publish(self, sequence: Sequence) -> None:
        """Publish a sequence whose unpublished full blocks plans have written.

        This takes one message, or two if several threads use the cache. The caller has the
        sequence's lock.
        """
        with self._passing() as (passed, last):
            self._tell_given(last)  # their blocks may be released, and this frees what is
            check(lib.aule_sequence_publish_written(sequence._open().pointer, passed, ffi.NULL))
            self._keep(sequence, sequence.published * self._cache.block_size, None)
            self._due.discard(sequence)

    def _keep(self, sequence: Sequence, begin: int, end: int | None) -> None:
        """Keep what is noted of the tokens from `begin` on and before `end`."""
        rest = [one.within(begin, end) for one in self._written.pop(sequence, [])]
        left = [one for one in rest if len(one.slots)]
        if left:
            self._written[sequence] = left

    def forget(self, sequence: Sequence, begin: int = 0) -> None:
        """Forget what is noted of a sequence's tokens from `begin` on: they are gone."""
        with self._lock:
            self._keep(sequence, 0, begin)

    def close(self, sequence: Sequence) -> None:
        """Publish what plans have written of a sequence that is about to end."""
        if (self._those_due([sequence]) and sequence._publishes
                and sequence._handle is not None):
            # If that fails, its blocks go unpublished. RuntimeError: CUDA's; no kernel runs then.
            with contextlib.suppress(errors.AuleError, RuntimeError):
                sequence.publish()
        with self._lock:
            self._due.discard(sequence)

    @contextlib.contextmanager
    def releasing(self, num_blocks: int) -> Iterator[None]:
        """Keep reports away while this thread releases blocks; 0: it releases none.

        A report could tell slots that go meanwhile. One that counts the release as passed waits for
        what this thread has launched, whichever thread reports.
        """
        event = None
        if num_blocks > 0:
            with contextlib.suppress(RuntimeError):  # CUDA's; no kernel runs then
                event = self._event()
        with self._lock:
            if event is not None:
                self._events.append(event)
            yield

    @contextlib.contextmanager
    def _passing(self) -> Iterator[tuple[int, int]]:
        """Wait for the current stream and for the noted events, then keep new notes away.

        Gives the mark up to which a report may count releases as passed, and the number of the last
        note whose stream has passed. Other threads may launch kernels during the wait, and then
        release blocks that these kernels read. So if there are other threads, only releases before
        the wait count.
        """
        self._enter()
        with self._reporting:
            passed = PASSED_ALL if len(self._threads) == 1 else self._mark()
            with self._lock:
                last, events = self._noted, list(self._events)
            for event in [*events, self._event()]:
                _streams.wait_for(event, self._cache.session._stream_timeout)
            with self._lock:
                del self._events[:len(events)]  # others have only appended
                yield passed, last

    def _mark(self) -> int:
        """Return what stands for the releases up to now."""
        mark = ffi.new("uint64_t *")
        self._send(np.empty(0, np.int64), 0, mark)
        return int(mark[0])

    def report(self) -> None:
        """Wait for the current stream and for noted ones, and tell the daemon.

        `wrote`, Sequence.close(), Sequence.truncate() and Cache.release() note the current stream
        of their thread. Noted slots count as written then, so their blocks can be published. Blocks
        that were released since the last report are free for others. No kernel that was launched on
        a noted stream before that call can still read them. Before you call this, wait for other
        streams that read blocks, and for those of sequences that are dropped without close(). If
        several threads use this object, what they release during the wait comes free with the next
        report.

        If the daemon refuses a slot that `wrote` was given, all slots given so are dropped. Those
        of plans stay noted.
        """
        with self._passing() as (passed, last):
            self._tell_given(last)
            noted = list(self._written.items())  # keeps the sequences: the end of one releases
            self._tell([one.slots for _, some in noted for one in some if one.number <= last],
                       passed)  # if it fails, the next report tells them again
            self._written.clear()
            for sequence, some in noted:
                later = [one for one in some if one.number > last]
                if later:
                    self._written[sequence] = later
            self._due &= weakref.WeakSet(self._written)

    def _tell_given(self, last: int) -> None:
        told = [slots for number, slots in self._given if number <= last]
        if not told:
            return
        try:
            self._tell(told, 0)
        except errors.TimeoutError:
            raise
        except errors.AuleError:  # later reports must not fail for the same slot
            del self._given[:len(told)]
            raise
        del self._given[:len(told)]

    def _tell(self, arrays: list[Any], passed: int) -> None:
        slots = np.concatenate([np.empty(0, np.int64), *arrays])
        most = 100_000  # a message has 1 MiB
        for begin in range(0, max(len(slots), 1), most):
            last = begin + most >= len(slots)  # what was released may have some of the slots
            self._send(slots[begin:begin + most], passed if last else 0, ffi.NULL)

    def _send(self, slots: Any, passed: int, mark: Any) -> None:
        part = np.ascontiguousarray(slots)
        report = ffi.new("struct aule_report *", {
            "slots": ffi.from_buffer("int64_t[]", part) if len(part) else ffi.NULL,
            "num_slots": len(part), "passed": passed})
        check(lib.aule_cache_report_sized(self._cache._open().pointer, report,
                                          ffi.sizeof(report[0]), mark))


class Plan(Owner):
    """One model step that the caller's own kernels compute; `cache.plan(entries)` makes it.

    num_tokens rows, those of entry i are rows[i]. Launch kernels that write K and V to
    tables().slot_mapping and attend over tables().block_table, in every layer; then call wrote().
    """

    _what = "plan"

    def __init__(self, handle: Handle, cache: Cache, sequences: list[Sequence], table: Any) -> None:
        """Take a step that was planned; the caller has the sequences' locks."""
        super().__init__(handle)
        self.cache = cache
        self.sequences = sequences
        self.rows = [slice(row.row, row.row + row.num_tokens) for row in table]
        self.num_tokens = self.rows[-1].stop
        found = ffi.new("struct aule_step_tables *")
        check(lib.aule_step_tables_sized(handle.pointer, found, ffi.sizeof(found[0])))
        count, columns = found.num_seqs, found.max_blocks

        def copy(pointer: Any, kind: Any, *shape: int) -> Any:
            size = math.prod(shape) * np.dtype(kind).itemsize
            return np.frombuffer(ffi.buffer(pointer, size), kind).reshape(shape).copy()

        self.arrays = forms(copy(found.block_table, np.int32, count, columns),
                            copy(found.seq_lens_kv, np.int32, count),
                            copy(found.cu_seqlens_q, np.int32, count + 1),
                            copy(found.slot_mapping, np.int64, self.num_tokens),
                            cache.block_size)
        # Of each entry: the sequence's length after the plan, less what is truncated since.
        self._ends: list[int] = self.arrays.cache_seqlens.tolist()
        for sequence in sequences:
            sequence._plans.add(self)
        cache._children.add(self)

    def tables(self, device: Any = None) -> Tables:
        """Return the metadata as tensors on the attached device, or on another; one copy."""
        torch = importlib.import_module("torch")
        if device is None:
            device = f"cuda:{self.cache.attach().device}"
        return upload(torch, self.arrays, device)

    def _forget(self, sequence: Sequence, begin: int) -> None:
        """Forget a sequence's tokens from `begin` on: their slots may be another's."""
        for i, one in enumerate(self.sequences):
            if one is sequence:  # the caller has its lock, and another thread may have another's
                self._ends[i] = min(self._ends[i], begin)

    def wrote(self) -> None:
        """Say that kernels launched on the current stream write this step's K and V in all layers.

        Tokens that were truncated since the plan was made do not count. Call it after the last
        launch. It does not wait for the stream. If a block of a sequence has become full, the next
        plan, publish() or close() of the sequence waits for the stream and publishes the block. A
        thread's first call of the cache may wait for another thread's report.
        """
        self.cache.attach().planned(self)


def slots_of(ids: Iterable[int] | Any, block_size: int) -> Any:
    """Return all slots of blocks, int64 [blocks * block_size]."""
    blocks = int32(ids, "ids").astype(np.int64)
    return (blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)
