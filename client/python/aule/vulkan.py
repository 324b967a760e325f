# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Attention that is paged beyond a threshold, and the block pool and block table under it.

The names are those of the PagedAttention design that aule grew from. The blocks are the daemon's:
other processes see that they are taken.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors
from ._args import INT32, flag, integer
from ._default import ARENA_SIZE, session_of
from ._tensors import Array
from .attention import submit
from .session import Session, connect

if TYPE_CHECKING:
    from typing_extensions import Self

CHUNK = 512  # blocks by which a pool grows
MAX_BLOCKS = 8192

_numbers = itertools.count()


def _attention(session: Session, q: Array, k: Array, v: Array, causal: bool, scale: float | None,
               path: str, options: dict[str, Any]) -> Any:
    return submit(session, q, k, v, layout="bhsd", path=path, causal=causal, scale=scale,
                  **options).wait()


def flash_attention(q: Array, k: Array, v: Array, causal: bool = True,
                    scale: float | None = None, *, session: Session | None = None,
                    **options: Any) -> Any:
    """Compute attention over contiguous tensors, and return the output, shaped as q.

    q: [batch, num_heads, q_len, head_dim]; k, v: [batch, num_kv_heads, kv_len, head_dim]; all f32,
    f16 or bf16. scale: None: 1 / sqrt(head_dim). Up to the session's paged_threshold (2048 keys)
    K and V are read in place; beyond it they go through blocks of the pool. Both give the same
    bits. session: None: `aule.default_session()`. options: window, soft_cap, kv_lens and others of
    `aule.attention.attention`.
    """
    return _attention(session_of(session), q, k, v, causal, scale, "auto", options)


class Aule:
    """A session of its own for `attention`, with its own threshold. close() or `with` ends it.

    paged_threshold: keys of the longest sequence beyond which K and V are paged. options: those of
    `aule.connect()`, such as socket.
    """

    def __init__(self, paged_threshold: int = 2048, **options: Any) -> None:
        integer(paged_threshold, "paged_threshold", 1)
        self.session = connect(paged_threshold=paged_threshold,
                               **{"arena_size": ARENA_SIZE, **options})
        self.path = ""

    def attention(self, q: Array, k: Array, v: Array, causal: bool = True,
                  scale: float | None = None, *, force_paged: bool = False,
                  force_contiguous: bool = False, **options: Any) -> Any:
        """Do what `aule.flash_attention` does. `path` then says the way: "contiguous" or "paged".

        NoBlocksError and others: force_paged, and the pool has no room.
        """
        force_paged = flag(force_paged, "force_paged")
        force_contiguous = flag(force_contiguous, "force_contiguous")
        if force_paged and force_contiguous:
            raise errors.InvalidError("force_paged and force_contiguous exclude each other")
        path = "paged" if force_paged else "contiguous" if force_contiguous else "auto"
        ticket = submit(self.session, q, k, v, layout="bhsd", path=path, causal=causal,
                        scale=scale, **options)
        out = ticket.wait()
        self.path = ticket.path
        return out

    def close(self) -> None:
        """End the session."""
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockPool:
    """Blocks leased from the daemon, handed out one by one. Any thread.

    It leases `blocks` at once, and CHUNK more whenever none is free, up to max_blocks. Defaults
    make blocks of 8 KiB. `cache` is the cache that has them: `pool.cache.batch(block_table=...)`
    computes over them. identity: num_kv_heads, head_dim and others of `Session.cache`.
    close() or `with` gives all blocks back.

    NoBlocksError: the daemon has no more, or max_blocks are allocated.
    """

    def __init__(self, blocks: int = CHUNK, max_blocks: int = MAX_BLOCKS, *,
                 session: Session | None = None, **identity: Any) -> None:
        self.max_blocks = integer(max_blocks, "max_blocks", 1, INT32)
        blocks = integer(blocks, "blocks", 1, self.max_blocks)
        self.total_blocks = 0
        self.free_blocks: list[int] = []  # the last one goes first
        self._used: set[int] = set()
        self._lock = threading.Lock()
        self.cache = session_of(session).cache(
            f"aule.vulkan.BlockPool {os.getpid()} {next(_numbers)}",
            **{"num_layers": 1, "num_kv_heads": 1, "head_dim": 64, **identity})
        self.block_size = self.cache.block_size
        try:
            self._grow(blocks)
        except BaseException:
            self.close()
            raise

    def _grow(self, count: int) -> None:
        count = min(count, self.max_blocks - self.total_blocks)
        if count < 1:
            raise errors.NoBlocksError(f"all max_blocks = {self.max_blocks} blocks of this pool "
                                       "are allocated")
        self.free_blocks.extend(reversed(self.cache.lease(count).tolist()))
        self.total_blocks += count

    def grow(self) -> None:
        """Lease up to CHUNK more blocks."""
        with self._lock:
            self._grow(CHUNK)

    def allocate(self) -> int:
        """Take a free block, and return its id. Its contents are undefined."""
        with self._lock:
            if not self.free_blocks:
                self._grow(CHUNK)
            block = self.free_blocks.pop()
            self._used.add(block)
            return block

    def free(self, block: int) -> None:
        """Give a block back to the pool. NotHeldError: it is not allocated."""
        with self._lock:
            if integer(block, "block", 0, INT32) not in self._used:
                raise errors.NotHeldError(f"block {block} is not allocated from this pool")
            self._used.remove(block)
            self.free_blocks.append(block)

    def close(self) -> None:
        """Give all blocks back to the daemon."""
        self.cache.close()
        with self._lock:
            self.free_blocks.clear()
            self._used.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockTable:
    """Which block has each `block_size` tokens of each sequence; -1: none.

    `array` is int32 [batch, max_blocks], as all functions with a block_table take it. One thread
    at a time changes it.
    """

    def __init__(self, batch: int, max_blocks: int) -> None:
        shape = integer(batch, "batch", 1, INT32), integer(max_blocks, "max_blocks", 1, INT32)
        if shape[0] * shape[1] > INT32:
            raise errors.InvalidError(f"batch = {batch} and max_blocks = {max_blocks} make more "
                                      f"than {INT32} entries")
        self.array = np.full(shape, -1, np.int32)

    def _place(self, request_id: int, logical_block: int) -> tuple[int, int]:
        batch, columns = self.array.shape
        request_id = integer(request_id, "request_id", -INT32, INT32)
        logical_block = integer(logical_block, "logical_block", -INT32, INT32)
        if not (0 <= request_id < batch and 0 <= logical_block < columns):
            raise errors.OutOfRangeError(f"table[{request_id}, {logical_block}] lies outside of "
                                         f"[{batch}, {columns}]")
        return request_id, logical_block

    def set(self, request_id: int, logical_block: int, physical_block: int) -> None:
        """Enter a block; -1 takes the entry out."""
        self.array[self._place(request_id, logical_block)] = integer(
            physical_block, "physical_block", -1, INT32, errors.OutOfRangeError)

    def get(self, request_id: int, logical_block: int) -> int:
        """Return the block of an entry; -1: none."""
        return int(self.array[self._place(request_id, logical_block)])
