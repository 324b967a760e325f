# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""A KV cache that sessions share by its name, and admission to it. Any thread."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _moves, dtypes, errors
from ._args import INT32, UINT64, choice, flag, int32, integer, key, path, said, text
from ._claim import Claim
from ._native import (
    BUSY,
    NULL,
    OK,
    Handle,
    Owner,
    ask_in_part,
    check,
    ffi,
    fields,
    lib,
    listed,
    milliseconds,
    opening_error,
    polled,
    sliced,
)
from ._run import Geometry
from .sequence import Sequence, Step, entries_of, locked

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._attached import Attached, Plan
    from ._tensors import Array
    from ._ticket import Ticket
    from .batch import Batch
    from .session import Session

SCALES = {"none": lib.AULE_SCALE_NONE, "tensor": lib.AULE_SCALE_PER_TENSOR,
          "token_head": lib.AULE_SCALE_PER_TOKEN_HEAD}
LOADS = {"auto": lib.AULE_LOAD_AUTO, "always": lib.AULE_LOAD_ALWAYS, "never": lib.AULE_LOAD_NEVER}
MANY = 1 << 20  # blocks: such a lease asks what there is before it makes room for the ids
NO_BLOCKS, QUOTA = int(lib.AULE_NO_BLOCKS), int(lib.AULE_QUOTA)
IN_USE = -1  # by another thread; no status of the library
SHORT = (NO_BLOCKS, QUOTA, BUSY)  # what may change once idle native steps let go of their blocks

Entries = Iterable[Sequence | tuple[Sequence, int]]


def scale_mode(scale: str) -> int:
    """Return the number of a scale mode's name."""
    return int(SCALES[choice(scale, "scale", SCALES)])


class Cache(Owner):
    """A named KV cache. `session.cache(name, ...)` opens it; close() or `with` ends it.

    Published blocks stay in the daemon. With the session's last handle of a cache its sequences,
    steps and blocks go, too.
    """

    _what = "cache"

    def __init__(self, handle: Handle, session: Session, name: str, geometry: Geometry,
                 block_size: int, block_bytes: int = 0) -> None:
        super().__init__(handle)
        self.session = session
        # The daemon's life, the tenant as the caller gave it, and the name. If equal, sequences of
        # both caches find the same blocks. The converse does not hold: with --tenant groups, no
        # tenant and the name of the user's group are one.
        self._place = session._info["epoch"], session._tenant, name
        self.block_size = block_size
        self._geometry = geometry
        self._block_bytes = block_bytes  # 0: not asked for yet
        self._pool: list[tuple[tuple[int, ...], Handle]] = []  # native steps to use again
        self._steps: dict[int, weakref.ref[Step]] = {}  # those that are open
        self._attached: Attached | None = None
        self._attaching = threading.Lock()
        session._children.add(self)

    @classmethod
    def open(cls, session: Session, name: str, *, num_layers: int = 0, num_kv_heads: int = 0,
             head_dim: int = 0, head_dim_v: int = 0, dtype: Any = None, v_dtype: Any = None,
             scale: str = "none", block_size: int = 0, v_is_k_prefix: bool = False,
             fingerprint: bytes | str = b"", block_bytes: int = 0) -> Self:
        """Open the cache of this name, or create it.

        Sessions that open one name agree in every value. dtype: of stored K, and of V unless
        v_dtype is given; None: f16. 8-bit types may have scale "tensor" (of the run) or
        "token_head" (of the block). head_dim_v: 0: as head_dim. block_size: tokens, a power of two
        from 8 to 256; 0: 32. v_is_k_prefix: MLA. fingerprint: up to 64 bytes that name the model
        and its revision.

        block_bytes: the cache has opaque blocks of so many bytes, a multiple of 16, which an engine
        copies from and to pages of its own (import_blocks(), export_blocks()). Only block_size and
        fingerprint go with it. "Tokens" are then keys: int32 [block_size] (0: 8) a block.

        MismatchError: the name exists with other values. UnsupportedError: no shader for this
        shape or type. LimitError: --max-caches. Source: aule_cache_open() in aule.h.
        """
        mark = key(fingerprint, "fingerprint")
        keep = ffi.new("char[]", text(name, "name")), ffi.from_buffer(mark)
        num_layers, num_kv_heads, head_dim, head_dim_v, block_size = (
            integer(value, what) for value, what in (
                (num_layers, "num_layers"), (num_kv_heads, "num_kv_heads"),
                (head_dim, "head_dim"), (head_dim_v, "head_dim_v"), (block_size, "block_size")))
        block_bytes = integer(block_bytes, "block_bytes", 0, UINT64)
        v_is_k_prefix = flag(v_is_k_prefix, "v_is_k_prefix")
        k_code = (0 if block_bytes else dtypes.F16) if dtype is None else dtypes.code_of(dtype)
        params = ffi.new("struct aule_cache_params *", {
            "name": keep[0], "num_layers": num_layers, "num_kv_heads": num_kv_heads,
            "head_dim": head_dim, "head_dim_v": head_dim_v, "v_is_k_prefix": v_is_k_prefix,
            "k_dtype": k_code,
            "v_dtype": k_code if v_dtype is None else dtypes.code_of(v_dtype, "v_dtype"),
            "scale_mode": scale_mode(scale), "block_size": block_size,
            "fingerprint": keep[1] if mark else NULL, "fingerprint_size": len(mark),
            "block_bytes": block_bytes})
        parent = session._open()
        pointer = ffi.new("struct aule_cache **")
        check(lib.aule_cache_open_sized(parent.pointer, params, ffi.sizeof(params[0]), pointer))
        out_dim = head_dim_v or head_dim
        geometry = Geometry(num_kv_heads, head_dim, 0 if v_is_k_prefix else out_dim, out_dim,
                            num_layers)
        handle = Handle(pointer[0], lib.aule_cache_close, parent)
        return cls(handle, session, name, geometry, block_size or (8 if block_bytes else 32),
                   block_bytes)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: all layers, K and V."""
        if not self._block_bytes:
            self._block_bytes = self.state()["block_bytes"]
        return self._block_bytes

    def state(self) -> dict[str, int]:
        """Return the block counts of this moment: the fields of struct aule_cache_state."""
        state = ffi.new("struct aule_cache_state *")
        check(lib.aule_cache_state_sized(self._open().pointer, state, ffi.sizeof(state[0])))
        return fields(state[0])

    # ---- what a model's cache adds ----

    def _extra(self, extra_key: bytes | str) -> bytes:
        """Return the extra key that blocks have."""
        return key(extra_key, "extra_key")

    def _entries(self, entries: Entries) -> list[tuple[Sequence, int]]:
        """Return (sequence, number of tokens) of each entry of a step; 0: all that are left."""
        return entries_of(entries, self)

    # ---- sequences ----

    def sequence(self, tokens: Any = (), *, publish: bool = True, extra_key: bytes | str = b"",
                 claim: bool = False, timeout: float | None = 10.0) -> Sequence:
        """Create a sequence from its prompt, and take the blocks of it that others published.

        tokens: ids, any array of integers. publish: publish full blocks as steps compute them.
        extra_key: up to 256 bytes that must be equal, too: a LoRA, the hash of an image.
        claim: claim the blocks that are missing. If several sequences, in any process, have one
        prompt, the first computes it. The others find its blocks after its next step, publish() or
        close(). This call waits `timeout` seconds for blocks that others compute (None: for ever;
        0: not at all, see `Sequence.wait`); then the sequence computes what is missing. A thread
        that makes two such sequences before the first of them has computed its prompt may wait for
        itself: pass timeout=0.
        InvalidError: `claim` without `publish`. LimitError: --max-claimed-blocks.
        Source: aule_sequence_create() in sequence.h.
        """
        milliseconds(timeout)  # InvalidError comes before a claim
        sequence = Sequence.create(self, tokens, publish, extra_key, claim)
        if claim:
            try:
                sequence.wait(timeout)
            except BaseException:
                sequence.close()
                raise
        return sequence

    async def sequence_async(self, tokens: Any = (), *, publish: bool = True,
                             extra_key: bytes | str = b"", claim: bool = False,
                             timeout: float | None = 10.0) -> Sequence:
        """Do what `sequence` does, without blocking the event loop.

        A thread of the loop's default executor looks the prompt up, which can load blocks from a
        slow tier. Coroutines of one loop may claim one prompt, as processes may. If it is
        cancelled, nothing is held or claimed.
        """
        milliseconds(timeout)
        making = asyncio.get_running_loop().run_in_executor(
            None, Sequence.create, self, int32(tokens, "tokens").copy(), publish, extra_key, claim)
        try:
            sequence = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close_made)
            raise
        if claim:
            try:
                await sequence.wait_async(timeout)
            except BaseException:
                sequence.close()
                raise
        return sequence

    def step(self, entries: Entries, *, timeout: float | None = 10.0) -> Step:
        """Make one model step over sequences: all their tokens that are not computed yet.

        entries: sequences, or (sequence, n) to compute only its next n tokens. Call this once a
        model step, then `attend` once a layer. Waits `timeout` seconds for blocks.

        NoBlocksError, QuotaError: no blocks; nothing has changed. InvalidError: a sequence twice,
        or more tokens than it has. Source: aule_step_make() in sequence.h.
        """
        making = _Making(self, entries)
        with making, locked(making.sequences):
            check(self._for_blocks(making.ask, timeout))
        return making.step

    async def step_async(self, entries: Entries, *, timeout: float | None = 10.0) -> Step:
        """Do what `step` does, without blocking the event loop while it waits for blocks.

        If a block that sequences share must be copied, it blocks until the copy is made. If it is
        cancelled, nothing has changed.
        """
        with _Making(self, entries) as making:
            await self._await_blocks(making.sequences, making.ask, timeout)
        return making.step

    def _for_blocks(self, call: Callable[[int], int], timeout: float | None,
                    again: tuple[int, ...] = (NO_BLOCKS, BUSY)) -> int:
        """Call what leases blocks as sliced() does, and return its status."""
        return sliced(lambda ms: self._relieved(call, ms), timeout, again, self._open)

    async def _await_blocks(self, sequences: list[Sequence], call: Callable[[int], int],
                            timeout: float | None) -> None:
        """Call what leases blocks for these sequences until it has them, or raise its error."""
        def ask() -> int:
            with locked(sequences, wait=False) as mine:
                return self._relieved(call, 0) if mine else IN_USE

        status = await polled(ask, timeout, (NO_BLOCKS, BUSY, IN_USE), self._open)
        if status == IN_USE:
            raise errors.BusyError("another thread uses one of these sequences, such as in a call "
                                   "that waits")
        check(status)

    def _relieved(self, call: Callable[[int], int], ms: int) -> int:
        """Call what leases blocks, and return its status.

        If there are too few, the session's idle native steps let go of theirs before it waits.
        """
        caches = [cache for cache in self.session._living()
                  if isinstance(cache, Cache) and cache._pool]
        status = ask_in_part(call, 0) if caches else call(ms)
        if not caches or status not in SHORT:
            return status
        for cache in caches:
            cache._forget(None)
        return call(ms)

    def reserve(self, entries: Iterable[tuple[Sequence, int]], *,
                timeout: float | None = 0.0) -> None:
        """Lease blocks for the next n tokens of each sequence, for all or for none.

        Call this before a request is let in; n may exceed what was appended so far. Waits
        `timeout` seconds. NoBlocksError, QuotaError: nothing is leased.
        Source: aule_sequences_reserve() in sequence.h.
        """
        sequences, ask = self._reservation(entries)
        with locked(sequences):
            check(self._for_blocks(ask, timeout))

    async def reserve_async(self, entries: Iterable[tuple[Sequence, int]], *,
                            timeout: float | None = 0.0) -> None:
        """Do what `reserve` does, as `step_async` does it."""
        await self._await_blocks(*self._reservation(entries), timeout)

    def _reservation(self, entries: Iterable[tuple[Sequence, int]]
                     ) -> tuple[list[Sequence], Callable[[int], int]]:
        pairs = entries_of(entries, self)
        table = ffi.new("struct aule_step_entry[]", len(pairs))

        def ask(ms: int) -> int:
            fill(table, pairs)
            return int(lib.aule_sequences_reserve(table, len(pairs), ms))

        return [sequence for sequence, _ in pairs], ask

    # ---- native steps, which are cheaper to advance than to make ----

    # The pool is changed by single list operations, because a finaliser may do so at any moment.
    def _take(self, key: tuple[int, ...]) -> Handle:
        for entry in list(self._pool):
            if entry[0] == key and self._remove(entry):
                return entry[1]
        parent = self._open()
        pointer = ffi.new("struct aule_step **")
        check(lib.aule_step_create(parent.pointer, pointer))
        return Handle(pointer[0], lib.aule_step_destroy, parent)

    def _remove(self, entry: tuple[tuple[int, ...], Handle]) -> bool:
        try:
            self._pool.remove(entry)
        except ValueError:
            return False  # another thread was faster
        return True

    def _give(self, sequences: list[Sequence], handle: Handle, *, keep: bool) -> None:
        """Keep the native step of a Step that has gone, until its sequences step again.

        Its batch names their blocks. So it is not kept if one of them has ended. keep: False: end
        it at once.
        """
        if handle.ended or not keep:
            handle.end()
            return
        given = tuple(id(sequence) for sequence in sequences), handle
        self._pool.append(given)  # before the look at the sequences: one that ends looks here then
        surplus = list(self._pool)[:-2]
        if self._handle is None or any(sequence.closed for sequence in sequences):
            surplus.append(given)
        for entry in surplus:
            if self._remove(entry):
                entry[1].end()

    def _let_go(self, sequence: Sequence, num_blocks: int) -> None:
        """Drop native steps, as far as they are idle, that name later blocks of a sequence."""
        for reference in listed(self._steps.values()):
            step = reference()
            if step is not None:
                step._leave(sequence, num_blocks)
        self._forget(id(sequence))

    def _forget(self, sequence: int | None) -> None:
        """Drop the kept native steps of a sequence, with their blocks; None: all."""
        for entry in list(self._pool):
            if (sequence is None or sequence in entry[0]) and self._remove(entry):
                entry[1].end()  # an exception's traceback may still have it

    def close(self) -> None:
        """End this handle, its sequences and steps. Published blocks stay in the daemon.

        Tensors of `layers` keep the memory mapped, and the session's blocks leased, until the last
        of them is gone.
        """
        super().close()
        self._forget(None)
        self._attached = None

    # ---- the caller's own kernels ----

    def attach(self) -> Attached:
        """Map the cache's memory into this process's CUDA, for its own kernels; see `Attached`.

        Maps it on torch's current device, once. UnsupportedError: the daemon runs without
        --export-pool, or there is no CUDA. DeniedError: another user's daemon.
        MismatchError: torch's device is another GPU. Source: aule_cache_attach() in aule.h.
        """
        if self._attached is None:
            from ._attached import Attached

            with self._attaching:
                if self._attached is None:
                    self._attached = Attached(self)
                return self._attached
        return self._attached

    @property
    def layers(self) -> list[Any]:
        """Each layer as a CUDA tensor [blocks, 2, num_kv_heads, block_size, head_dim]."""
        return self.attach().layers

    def plan(self, entries: Entries, *, timeout: float | None = 10.0) -> Plan:
        """Make one model step that the caller's own kernels compute over `layers`.

        As `step`, but nothing is sent unless blocks are leased or published. Call `Plan.wrote`
        behind its last kernel. If too few blocks are free, it waits for the current stream and
        reports, because this session's own released blocks may be what is missing. While it waits,
        it reports again and again, for what other threads release meanwhile.
        Source: aule_step_plan() in sequence.h.
        """
        from ._attached import Plan

        attached = self.attach()
        pairs = self._entries(entries)
        attached.settle([sequence for sequence, _ in pairs])
        parent = self._open()
        pointer = ffi.new("struct aule_step **")
        check(lib.aule_step_create(parent.pointer, pointer))
        handle = Handle(pointer[0], lib.aule_step_destroy, parent)
        table = ffi.new("struct aule_step_entry[]", len(pairs))

        def make(ms: int) -> int:
            return int(lib.aule_step_plan(handle.pointer, table, len(pairs), ms))

        def report_and_make(ms: int) -> int:
            attached.report()
            return make(ms)

        with locked(sequence for sequence, _ in pairs):
            fill(table, pairs)
            status = make(0)
            if status in SHORT:
                status = self._for_blocks(report_and_make, timeout)
            check(status)
            return Plan(handle, self, [sequence for sequence, _ in pairs], table)

    # ---- blocks by hand ----

    def lease(self, count: int, *, timeout: float | None = 0.0) -> Any:
        """Lease `count` blocks; returns their ids, int32 [count]. Sequences need no call of it.

        NoBlocksError: not enough came free in `timeout` seconds. Source: aule_blocks_lease().
        """
        if integer(count, "count", 1, INT32) >= MANY:
            most = self.state()["limit_blocks"]
            if count > most:
                raise errors.LimitError(f"count = {count}; the pool has at most {most} blocks")
        users = [self._open()]
        pointer = users[0].pointer
        ids = np.empty(count, np.int32)
        array = ffi.from_buffer("int32_t[]", ids)
        try:
            check(self._for_blocks(lambda ms: int(lib.aule_blocks_lease(pointer, count, ms, array)),
                                   timeout, (NO_BLOCKS,)))
        finally:
            users.clear()  # a traceback would keep it
        return ids

    def release(self, ids: Any) -> None:
        """Release blocks, leased or held. NotHeldError: nothing was released."""
        array, attached = int32(ids, "ids"), self._attached
        with attached.releasing(len(array)) if attached else contextlib.nullcontext():
            check(lib.aule_blocks_release(self._open().pointer, len(array),
                                          ffi.from_buffer("int32_t[]", array)))

    def lookup(self, tokens: Any, *, extra_key: bytes | str = b"", max_tokens: int = 0,
               load: str = "auto") -> Any:
        """Hold the published blocks that begin `tokens`; returns their ids, int32 [n].

        load: whether blocks that are kept outside the GPU are loaded: "auto" (if that is faster
        than computing them), "always" or "never".
        """
        array, max_tokens = int32(tokens, "tokens"), integer(max_tokens, "max_tokens")
        prefix, keep = _prefix(array, self._extra(extra_key), load)
        ids = np.empty(len(array) // self.block_size, np.int32)
        count = ffi.new("uint32_t *")
        check(lib.aule_prefix_lookup_sized(
            self._open().pointer, prefix, ffi.sizeof(prefix[0]), max_tokens,
            ffi.from_buffer("int32_t[]", ids), count))
        del keep
        return ids[:count[0]]

    def claim(self, tokens: Any, *, extra_key: bytes | str = b"", max_tokens: int = 0,
              load: str = "auto") -> Claim:
        """Do what `lookup` does, and claim the blocks that are missing; see `Claim`.

        Returns at once. LimitError: --max-claimed-blocks. Source: aule_prefix_claim() in aule.h.
        """
        array, max_tokens = int32(tokens, "tokens"), integer(max_tokens, "max_tokens")
        return Claim(self, *_prefix(array, self._extra(extra_key), load), max_tokens)

    def publish(self, tokens: Any, ids: Any, *, extra_key: bytes | str = b"") -> Any:
        """Publish the full blocks of `tokens`; returns the ids to use from now on.

        The first ids may be -1: blocks that are published under these tokens already, and that the
        session need not hold. NotFoundError: one of them is not. Source: aule_prefix_publish() in
        aule.h.
        """
        array, blocks = int32(tokens, "tokens"), int32(ids, "ids").copy()
        if len(blocks) < len(array) // self.block_size:
            raise errors.InvalidError(f"{len(blocks)} ids for {len(array) // self.block_size} "
                                      "full blocks")
        prefix, keep = _prefix(array, self._extra(extra_key))
        check(lib.aule_prefix_publish_sized(
            self._open().pointer, prefix, ffi.sizeof(prefix[0]),
            ffi.from_buffer("int32_t[]", blocks), ffi.NULL))
        del keep
        return blocks

    def export_blocks(self, ids: Any, array: Array, *, timeout: float | None = 10.0) -> Ticket:
        """Queue a copy of blocks to an array in the arena, block_bytes each; returns its ticket.

        array: dense, of any type. timeout: seconds to wait for a free ticket.
        Source: aule_blocks_export() in aule.h.
        """
        return _moves.move(self, ids, array, timeout, out=True)

    def import_blocks(self, ids: Any, array: Array, *, timeout: float | None = 10.0) -> Ticket:
        """Queue a copy of an array in the arena to leased blocks, which then count as written.

        Source: aule_blocks_import() in aule.h.
        """
        return _moves.move(self, ids, array, timeout, out=False)

    def kv_import(self, layer: int, slot_mapping: Any, k: Array, v: Array | None = None, *,
                  k_scale: float = 0.0, v_scale: float = 0.0,
                  timeout: float | None = 10.0) -> Ticket:
        """Queue a write of rows of K and V to slots of leased blocks, without attention.

        k, v: [rows, num_kv_heads, head_dim]; copied into the arena if they do not lie there.
        slot_mapping [rows]: block * block_size + offset, or -1. Source: aule_kv_import() in aule.h.
        """
        return _moves.kv_import(self, layer, slot_mapping, k, v, k_scale, v_scale, timeout)

    def kv_export(self, layer: int, ids: Any, num_rows: int | None = None, *, dtype: Any = "f32",
                  k_scale: float = 0.0, v_scale: float = 0.0,
                  timeout: float | None = 10.0) -> Ticket:
        """Queue a read of rows of K and V; the ticket's output is (k, v), new arrays in the arena.

        num_rows: tokens from the first block on; None: all. dtype: f32, f16 or bf16. MLA: v is
        None. Source: aule_kv_export() in aule.h.
        """
        return _moves.kv_export(self, layer, ids, num_rows, dtype, k_scale, v_scale, timeout)

    def batch(self, **arrays: Any) -> Batch:
        """Make a batch over blocks of this cache; see `aule.Batch.of_cache`."""
        from .batch import Batch

        return Batch.of_cache(self, **arrays)


class _Making:
    """A step that is not made yet. If the `with` block fails, the native step ends."""

    def __init__(self, cache: Cache, entries: Entries) -> None:
        self._cache = cache
        self._pairs = cache._entries(entries)
        self.sequences = [sequence for sequence, _ in self._pairs]
        self.step: Step
        if cache._attached is not None:
            cache._attached.settle(self.sequences)
        self._table = ffi.new("struct aule_step_entry[]", len(self._pairs))
        self._handle = cache._take(tuple(map(id, self.sequences)))

    def ask(self, ms: int) -> int:
        """Make it if there are blocks within `ms`; the caller has the sequences' locks."""
        fill(self._table, self._pairs)
        status = int(lib.aule_step_make(self._handle.pointer, self._table, len(self._pairs), ms))
        if status == OK:
            self.step = Step(self._handle, self._cache, self.sequences, self._table)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        if failure is not None:
            self._handle.end()


def _close_made(making: asyncio.Future[Sequence]) -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().close()


def fill(table: Any, pairs: list[tuple[Sequence, int]]) -> None:
    """Fill in the entries of a step or a reservation."""
    for row, (sequence, count) in zip(table, pairs, strict=True):
        row.sequence, row.num_tokens = sequence._open().pointer, count


def _prefix(tokens: Any, extra: bytes, load: str = "auto") -> tuple[Any, Any]:
    keep = ffi.from_buffer("int32_t[]", tokens), ffi.from_buffer(extra)
    prefix = ffi.new("struct aule_prefix *", {
        "tokens": keep[0], "num_tokens": len(tokens),
        "extra_key": keep[1] if extra else NULL, "extra_key_size": len(extra),
        "load": LOADS[choice(load, "load", LOADS)]})
    return prefix, keep


def drop_cache(name: str, *, socket: str | None = None, timeout: float | None = 10.0) -> int:
    """Let the daemon forget the caches of this name, and return how many blocks were cached there.

    All that was published under this name goes, of all tenants. A cache that is opened with the
    name later is empty, and may have another shape. socket, timeout: as in `aule.connect`.
    NotFoundError: the daemon has no such cache. BusyError: a session, of any process, has it open.
    Source: aule_monitor_drop_cache() in aule.h.
    """
    wanted = text(name, "name")
    where = NULL if socket is None else ffi.new("char[]", path(socket, "socket"))
    monitor, views, count = (ffi.new(kind) for kind in (
        "struct aule_monitor **", "struct aule_cache_view **", "uint32_t *"))

    def ask(status: int) -> None:
        if status:
            raise opening_error(status)  # no session is lost

    ask(lib.aule_monitor_open(where, milliseconds(timeout) or 1, monitor))
    try:
        ask(lib.aule_monitor_caches_sized(
            monitor[0], views, ffi.sizeof("struct aule_cache_view"), count))
        found = [(view.cache, view.cached_blocks) for view in views[0][0:count[0]]
                 if ffi.string(view.name) == wanted] if count[0] else []
        ctypes.CDLL(None).free(ctypes.c_void_p(int(ffi.cast("uintptr_t", views[0]))))
        if not found:
            raise errors.NotFoundError(f"name = {said(name)}: the daemon has no such cache")
        for cache, _ in found:  # tenants may have caches of one name and different shapes
            ask(lib.aule_monitor_drop_cache(monitor[0], cache))
        return sum(int(blocks) for _, blocks in found)
    finally:
        lib.aule_monitor_close(monitor[0])
