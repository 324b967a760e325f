# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Sequences over a cache, and model steps over sequences. libaule-client keeps their blocks.

One thread at a time uses a sequence, or a step together with its sequences; others wait for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors
from ._args import INT32, flag, int32, integer, pack_mask
from ._native import (
    OK,
    SLICE_MS,
    TIMEOUT,
    Handle,
    Owner,
    check,
    countdown,
    ffi,
    lib,
    listed,
    polled,
)
from ._run import Runs

if TYPE_CHECKING:
    from ._attached import Attached, Plan
    from .cache import Cache

PAUSE_S = 0.001  # in which a wait leaves its sequence to other threads: a lock is not fair


class Sequence(Owner):
    """The tokens of one text, and the blocks of their K and V.

    `cache.sequence(tokens)` makes it. Its end publishes the computed full blocks that are still
    unpublished (if it publishes at all), and releases all.
    """

    _what = "sequence"

    def __init__(self, handle: Handle, cache: Cache) -> None:
        super().__init__(handle)
        self.cache = cache
        self._lock = threading.RLock()
        self._publishes = False
        self._weights: Any = None  # of a model's cache: its key, with the weights that it is for
        self._own = (0, 0)  # tokens whose K and V plans have written, from and to
        self._plans: weakref.WeakSet[Plan] = weakref.WeakSet()
        cache._children.add(self)

    @classmethod
    def create(cls, cache: Cache, tokens: Any, publish: bool, extra_key: bytes | str,
               claim: bool) -> Sequence:
        """Do what `Cache.sequence` says, and wait for nothing."""
        array = int32(tokens, "tokens")
        publish, claim = flag(publish, "publish"), flag(claim, "claim")
        extra = cache._extra(extra_key)
        keep = ffi.from_buffer("int32_t[]", array), ffi.from_buffer(extra)
        params = ffi.new("struct aule_sequence_params *", {
            "tokens": keep[0], "num_tokens": len(array),
            "extra_key": keep[1] if extra else ffi.NULL, "extra_key_size": len(extra),
            "publish": publish, "claim": claim})
        pointer = ffi.new("struct aule_sequence **")
        parent = cache._open()
        check(lib.aule_sequence_create_sized(parent.pointer, params, ffi.sizeof(params[0]),
                                             pointer))
        sequence = cls(Handle(pointer[0], lib.aule_sequence_destroy, parent), cache)
        sequence._publishes = publish
        sequence._weights = extra if hasattr(extra, "weights") else None
        return sequence

    def wait(self, timeout: float | None = 10.0) -> bool:
        """Wait until no other sequence computes a block of this prompt; needs `claim`.

        Call it before the first step. timeout: seconds; None: for ever. False: some are not there
        yet; wait again, or compute them: `cached` says how many tokens were found so far.
        Source: aule_sequence_wait() in sequence.h.
        """
        left_s = countdown(timeout)
        asked = False
        while self.promised:
            left = int(min(left_s() * 1000, SLICE_MS))
            if left <= 0 and asked:
                return False
            asked = True
            with self._lock:
                status = lib.aule_sequence_wait(self._open().pointer, left)
            if status != TIMEOUT:
                check(status)
            elif left > 0:
                time.sleep(PAUSE_S)
        return True

    async def wait_async(self, timeout: float | None = 10.0) -> bool:
        """Do what `wait` does, without blocking the event loop."""
        def ask() -> int:
            with locked([self], wait=False) as mine:
                status = OK if mine else TIMEOUT
                while status == OK and self.promised:
                    status = int(lib.aule_sequence_wait(self._open().pointer, 0))
            return status

        status = await polled(ask, timeout, (TIMEOUT,), self._open)
        if status != TIMEOUT:
            check(status)
        return status != TIMEOUT

    def _info(self, handle: Handle | None = None) -> Any:
        info = ffi.new("struct aule_sequence_info *")
        with self._lock:
            check(lib.aule_sequence_info_sized((handle or self._open()).pointer, info,
                                               ffi.sizeof(info[0])))
        return info

    def __len__(self) -> int:
        return int(self._info().num_tokens)

    @property
    def cached(self) -> int:
        """How many prompt tokens the cache had.

        When this sequence was made, or at its last wait().
        """
        return int(self._info().num_found)

    @property
    def promised(self) -> int:
        """How many tokens after the cached ones other sequences are computing.

        As of the last wait().
        """
        return int(self._info().num_promised)

    @property
    def computed(self) -> int:
        """How many tokens a step has computed, or the cache had."""
        return int(self._info().num_computed)

    @property
    def published(self) -> int:
        """How many blocks others can find."""
        return int(self._info().num_published)

    @property
    def num_blocks(self) -> int:
        """How many blocks it has, those shared with forks included."""
        return int(self._info().num_blocks)

    @property
    def tokens(self) -> Any:
        """A copy of the token ids, int32 [len]; None: some ids are not known."""
        with self._lock:
            handle = self._open()
            count = len(self)
            ids = lib.aule_sequence_tokens(handle.pointer)
            if not ids:
                return np.empty(0, np.int32) if count == 0 else None
            return np.frombuffer(ffi.buffer(ids, count * 4), np.int32).copy()

    def append(self, tokens: Any) -> None:
        """Append tokens for later steps: one id, or any array of ids. Sends no message."""
        one = isinstance(tokens, int) or getattr(tokens, "ndim", 1) == 0
        array = int32([tokens] if one else tokens, "tokens")
        with self._lock:
            check(lib.aule_sequence_append(self._open().pointer,
                                           ffi.from_buffer("int32_t[]", array), len(array)))

    def truncate(self, num_tokens: int) -> None:
        """Drop the tokens from `num_tokens` on. OutOfRangeError: it has fewer.

        Steps that are over let go of the released blocks, as in close().
        """
        num_tokens = integer(num_tokens, "num_tokens", beyond=errors.OutOfRangeError)
        attached = self.cache._attached
        kept = -(-num_tokens // self.cache.block_size)
        with self._lock, self._releasing(attached, self._open(), num_tokens):
            releases = self.num_blocks > kept
            check(lib.aule_sequence_truncate(self._open().pointer, num_tokens))
            self._own = (min(self._own[0], num_tokens), min(self._own[1], num_tokens))
            for plan in listed(self._plans):
                plan._forget(self, num_tokens)
            if attached is not None:
                attached.forget(self, num_tokens)
        if releases:
            self.cache._let_go(self, kept)

    def keep_private(self, num_tokens: int) -> None:
        """Publish no block that has a token from `num_tokens` on, now or later.

        Call this before the next step if K and V of these tokens are not those of the plain
        prompt. SealedError: such a block is published already. Source:
        aule_sequence_keep_private() in sequence.h.
        """
        num_tokens = integer(num_tokens, "num_tokens", beyond=errors.OutOfRangeError)
        with self._lock:
            check(lib.aule_sequence_keep_private(self._open().pointer, num_tokens))

    def _releasing(self, attached: Attached | None, handle: Handle | None,
                   num_tokens: int) -> contextlib.AbstractContextManager[None]:
        """Return what a `with` holds while the blocks behind `num_tokens` tokens are released."""
        if attached is None or handle is None:
            return contextlib.nullcontext()
        kept = -(-num_tokens // self.cache.block_size)
        return attached.releasing(self._info(handle).num_blocks - kept)

    def fork(self) -> Sequence:
        """Make a sequence of the same tokens that shares all computed blocks.

        With an attached cache it reports first. The daemon may copy a shared block later, and must
        know which slots are written.
        """
        if self.cache._attached is not None:
            self.cache._attached.report()
        pointer = ffi.new("struct aule_sequence **")
        parent = self.cache._open()
        with self._lock:
            check(lib.aule_sequence_fork(self._open().pointer, pointer))
        fork = type(self)(Handle(pointer[0], lib.aule_sequence_destroy, parent), self.cache)
        fork._publishes, fork._weights = self._publishes, self._weights
        return fork

    def publish(self) -> int:
        """Publish the computed full blocks now; returns how many blocks others can find.

        It also works if `publish` was false. Call it after the runs of all layers were submitted;
        no need to wait for them. Blocks that are not written in every layer wait for a later call.
        What plans have written is reported first, after its stream has passed.
        """
        attached = self.cache._attached
        with self._lock:
            if attached is not None and self._written_by_plans():
                attached.publish(self)
            else:
                check(lib.aule_sequence_publish(self._open().pointer))
        return self.published

    def _written_by_plans(self) -> bool:
        """Say whether plans have written all of the full blocks that are not published."""
        info, size = self._info(), self.cache.block_size
        first, end = info.num_published * size, info.num_computed // size * size
        return bool(first < end and self._own[0] <= first and self._own[1] >= end)

    def close(self) -> None:
        """End the sequence. Steps that are over end, too, and let go of its blocks.

        A step is over if a run of each layer was submitted, a later step has one of its sequences,
        or all of its sequences have ended.
        If plans have written full blocks and it publishes, it waits for their stream and publishes.

        A wait() in another thread raises ClosedError. A step of it that another thread makes, and
        that waits for blocks, comes first.
        """
        attached = self.cache._attached
        if attached is not None:
            attached.close(self)
        handle, self._handle = self._handle, None  # first: a wait for a claim sees it
        left = handle
        try:
            with self._lock, self._releasing(attached, handle, 0):
                left = None
                super().close()
                if handle is not None:
                    handle.end()
                if attached is not None:
                    attached.forget(self)
        finally:
            if left is not None:  # Ctrl-C, and another thread may be using it
                self._handle = left
        self.cache._let_go(self, 0)

    def __del__(self) -> None:
        handle, self._handle = self._handle, None  # a step of the same circle sees it
        if handle is not None:
            self.cache._forget(id(self))


def entries_of(entries: Iterable[Any], cache: Cache) -> list[tuple[Sequence, int]]:
    """Return (sequence, number of tokens) of each entry; 0: all that are left."""
    pairs: list[tuple[Sequence, int]] = []
    if not isinstance(entries, (Sequence, Iterable)):
        raise errors.InvalidError(f"entries = {entries!r}; it is a list of sequences")
    for entry in [entries] if isinstance(entries, Sequence) else entries:
        sequence, count = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, 0)
        if not isinstance(sequence, Sequence):
            raise errors.InvalidError(f"entry {len(pairs)} is {entry!r}, no sequence and no "
                                      "(sequence, number of tokens)")
        if sequence.cache is not cache:
            raise errors.InvalidError(f"entry {len(pairs)}: the sequence is of another cache")
        if sequence is not entry:
            count = integer(count, f"entry {len(pairs)}: its number of tokens", 1, INT32)
        pairs.append((sequence, count))
    return pairs


@contextlib.contextmanager
def locked(sequences: Iterable[Sequence], *, wait: bool = True) -> Iterator[bool]:
    """Keep other threads from these sequences. The order avoids a deadlock.

    False: `wait` is false, and another thread uses one of them.
    """
    with contextlib.ExitStack() as stack:
        for sequence in sorted(set(sequences), key=id):
            if not sequence._lock.acquire(blocking=wait):
                yield False
                return
            stack.callback(sequence._lock.release)
        yield True


class Step(Runs):
    """One model step over sequences: `num_tokens` rows, those of entry i are `rows[i]`.

    `cache.step(entries)` makes it. Submit every layer before the next step of these sequences.
    If a run fails, truncate the sequences to what they had. A step that is over ends with the
    first of its sequences, see `Sequence.close`.
    """

    _what = "step"

    def __init__(self, handle: Handle, cache: Cache, sequences: list[Sequence],
                 table: Any) -> None:
        self.cache = cache
        self.sequences = sequences
        self._masked: tuple[bytes, Handle] | None = None
        self._layers: set[int] = set()  # of which a run was submitted
        self._later = False  # a later step has one of its sequences
        self._left: set[int] = set()  # places of sequences that have ended, or dropped its blocks
        self._lengths: list[int] = []
        super().__init__(handle, cache.session, cache._geometry)
        self.rows = [slice(row.row, row.row + row.num_tokens) for row in table]
        self.num_tokens = self.rows[-1].stop
        self._lengths = [sequence.computed for sequence in sequences]
        self._pointer = lib.aule_step_batch(handle.pointer)
        self._end_older()
        cache._steps[id(self)] = weakref.ref(self)
        cache._children.add(self)

    def _end_older(self) -> None:
        """End steps with one of these sequences, as far as blocks that they name have gone."""
        for reference in listed(self.cache._steps.values()):
            older = reference()
            if older is not None and not set(older.sequences).isdisjoint(self.sequences):
                older._later = True
                older._end_if_over()

    def _submitted(self, layers: range) -> None:
        self._layers.update(layers)

    def _leave(self, sequence: Sequence, num_blocks: int) -> None:
        """Note that a sequence has now only its first `num_blocks` blocks."""
        size = self.cache.block_size
        for place, (its, length) in enumerate(zip(self.sequences, self._lengths, strict=True)):
            if its is sequence and -(-length // size) > num_blocks:
                self._left.add(place)
                self._end_if_over()

    def _end_if_over(self) -> None:
        """End the step if it is over, but holds blocks that its sequences have released."""
        if self._left and (self._later or len(self._left) == len(self.sequences)
                           or len(self._layers) >= self._geometry.num_layers):
            self.close()

    def _open(self) -> Handle:
        if self._handle is None and self._left:
            raise errors.ClosedError("this step is over: a sequence of it was closed or truncated")
        return super()._open()

    def _batch(self, mask: Any) -> Any:
        if mask is None:
            return self._pointer
        packed = pack_mask(mask, [(rows.stop - rows.start, length) for rows, length
                                  in zip(self.rows, self._lengths, strict=True)])
        if self._masked is None or self._masked[0] != packed:
            handle = self._open()
            pointer = ffi.new("struct aule_batch **")
            check(lib.aule_step_masked(handle.pointer, ffi.from_buffer(packed), len(packed),
                                       pointer))
            self._masked = packed, Handle(pointer[0], lib.aule_batch_destroy, handle)
        return self._masked[1].pointer

    def close(self) -> None:
        """End the step. Its runs go on, and its sequences stay."""
        handle, self._handle = self._handle, None  # first: a wait for a ticket sees it
        self.cache._steps.pop(id(self), None)
        with self._lock:
            if self._masked is not None:
                self._masked[1].end()
            self._masked = None
        if handle is not None:
            self.cache._give(self.sequences, handle, keep=not self._left)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()
