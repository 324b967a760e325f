# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Runs over K and V of the caller, in blocks or in rows, wherever they lie.

In the arena they are used in place, if their blocks have a size that the kernels take. Of other
block tensors only the blocks that the table names are copied in, or the rows of blocks of another
size. Only the rows that the run wrote are copied back. Any thread.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np

from . import dtypes, errors
from ._args import int32, integers, said
from ._default import session_of
from ._tensors import Array, array_of, ordinary, writable
from ._ticket import Ticket
from .batch import Batch
from .session import Session

SIZES = (8, 16, 32, 64, 128, 256)  # tokens of a block that the kernels take
COPY_SIZE = 32  # of the blocks into which rows of other blocks are copied


def permuted(array: Array, order: tuple[int, ...]) -> Array:
    """Return a view with other dimensions' order."""
    return array.permute(order) if dtypes.is_torch(array) else array.transpose(order)


def index_of(array: Array, indices: Any) -> Any:
    """Return numpy's integers as what indexes `array`."""
    if not dtypes.is_torch(array):
        return indices
    return importlib.import_module("torch").as_tensor(indices, device=array.device)


def joined(parts: list[Array], dim: int) -> Array:
    """Concatenate arrays of one kind."""
    if dtypes.is_torch(parts[0]):
        return importlib.import_module("torch").cat(parts, dim)
    return np.concatenate(parts, dim)


def table_of(table: Any, what: str = "block_table") -> Any:
    """Return a block table as numpy's int64 [n, columns]."""
    return integers(table, what, (None, None)).astype(np.int64)


def unsupported(**given: Any) -> None:
    """Raise UnsupportedError for the first argument that is not None. Values are the reasons."""
    for name, (value, why) in given.items():
        if value is not None and value is not False:
            raise errors.UnsupportedError(f"{name} is given: {why}")


class Pending(NamedTuple):
    """A queued run. One thread waits for it, once."""

    ticket: Ticket
    batch: Batch
    back: list[tuple[Array, Array, Any, Any]]  # copy, target, rows of each

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the output, and copy written rows of K and V back."""
        try:
            output = self.ticket.wait(timeout)
        finally:
            self.batch.close()
        for copy, target, rows, wanted in self.back:
            new = copy[_row_of(copy, rows)]
            target[_row_of(target, wanted)] = new.to(target.device) if dtypes.is_torch(
                target) else new
        return output


def _row_of(blocks: Array, rows: Any) -> tuple[Any, Any]:
    """Return what indexes rows of block tensors [blocks, size, ...]: block and offset of each."""
    size = blocks.shape[1]
    return index_of(blocks, rows // size), index_of(blocks, rows % size)


def _used(table: Any, lens: Any, block_size: int, num_blocks: int, what: str) -> Any:
    """Return which entries the lengths reach, and check them."""
    columns = -(-lens.astype(np.int64) // max(block_size, 1))
    for s in np.flatnonzero(columns > table.shape[1]):
        raise errors.OutOfRangeError(f"sequence {s} has {lens[s]} keys in blocks of {block_size}; "
                                     f"{what} has {table.shape[1]} columns")
    used = np.arange(table.shape[1])[None, :] < columns[:, None]
    for s, column in np.argwhere(used & ((table < 0) | (table >= num_blocks))):
        raise errors.OutOfRangeError(f"{what}[{s}][{column}] = {table[s, column]} is no block; "
                                     f"there are {num_blocks}, and the sequence has {lens[s]} keys")
    return used


class _Copied(NamedTuple):
    """What a run reads of block tensors, as block tensors of its own."""

    parts: list[Array]  # of K and of V
    table: Any
    slots: Any  # where new rows go in the parts, int64 [T]; None: nowhere


def _whole_blocks(arrays: list[Array], table: Any, used: Any, slots: Any) -> _Copied:
    """Copy the blocks that the table names."""
    blocks = np.unique(table[used])
    if not len(blocks):  # nothing is read, but a cache needs a block
        return _Copied([ordinary(array, (1, *array.shape[1:])) for array in arrays], table, slots)
    if slots is not None:
        size = arrays[0].shape[1]
        slots = np.where(slots < 0, slots, np.searchsorted(blocks, slots // size) * size
                         + slots % size)
    return _Copied([array[index_of(array, blocks)] for array in arrays],
                   np.where(used, np.searchsorted(blocks, table), -1), slots)


def _rows_as_blocks(arrays: list[Array], table: Any, lens: Any, slots: Any) -> _Copied:
    """Copy the rows of each sequence, one after another, into blocks of COPY_SIZE."""
    size = max(arrays[0].shape[1], 1)
    counts = -(-lens.astype(np.int64) // COPY_SIZE)
    first = np.cumsum(counts) - counts
    column = np.arange(max(int(counts.max(initial=0)), 1))[None, :]
    new_table = np.where(column < counts[:, None], first[:, None] + column, -1)
    seq = np.repeat(np.arange(len(lens)), counts * COPY_SIZE)
    if not len(seq):
        return _Copied([ordinary(array, (1, COPY_SIZE, *array.shape[2:])) for array in arrays],
                       new_table, slots)
    at = np.arange(len(seq)) - first[seq] * COPY_SIZE
    real = at < lens[seq]
    at = np.where(real, at, 0)  # behind its end a sequence has its first row, unread
    rows = table[seq, at // size] * size + at % size
    parts = [array[_row_of(array, rows)].reshape(-1, COPY_SIZE, *array.shape[2:])
             for array in arrays]
    return _Copied(parts, new_table, None if slots is None else
                   _moved(slots, rows[real], np.flatnonzero(real), size))


def _moved(slots: Any, rows: Any, copies: Any, size: int) -> Any:
    """Return where slots lie in a copy whose row copies[i] is that of slot rows[i]."""
    order = np.argsort(rows)
    begin, end = (np.searchsorted(rows, slots, side, order) for side in ("left", "right"))
    for t in np.flatnonzero((slots >= 0) & (end != begin + 1))[:1]:
        raise errors.UnsupportedError(
            f"slot {slots[t]} of a new token is in the block table {end[t] - begin[t]} times; "
            f"in pages of {size} tokens it must be there once")
    return np.where(slots < 0, slots, copies[order[np.minimum(begin, len(order) - 1)]])


def _submit(batch: Batch, q: Array, k: Array | None, v: Array | None,
            options: dict[str, Any]) -> Ticket:
    """Submit; a failure ends the batch."""
    try:
        return batch.submit(0, q, k, v, **options)
    except BaseException:
        batch.close()
        raise


def run_blocks(session: Session | None, q: Array, keys: Array, values: Array, *,
               cu_seqlens_q: Any, lens: Any, table: Any, what: str = "block_table",
               slots: Any = None, k: Array | None = None, v: Array | None = None,
               mask: Any = None, mask_value: float = 0.0, max_context_len: int = 0,
               max_seqlen_q: int = 0, k_scale: float = 0.0, v_scale: float = 0.0,
               names: tuple[str, str] = ("key_cache", "value_cache"), **options: Any) -> Pending:
    """Queue a run over block tensors [num_blocks, block_size, num_kv_heads, head_dim].

    q [T, num_heads, head_dim]; lens [n]: keys of each sequence, those at `slots` [T] included,
    where k and v go first. table: as `table_of` makes it; what: its name in sentences; names: those
    of keys and values. Other arguments: those of `Batch.local` and `Batch.submit`.
    """
    session = session_of(session)
    keys, values = array_of(keys, names[0]), array_of(values, names[1])
    if keys.ndim != 4 or values.ndim != 4 or tuple(values.shape[:3]) != tuple(keys.shape[:3]):
        raise errors.InvalidError(f"{names[0]} {tuple(keys.shape)} and {names[1]} "
                                  f"{tuple(values.shape)} have 4 dimensions, of which 3 are equal")
    if slots is not None:
        for name, array in zip(names, (keys, values), strict=True):
            writable(array, name)
    lens = int32(lens, "the lengths")
    if len(lens) != len(table):
        raise errors.InvalidError(f"{what} has {len(table)} rows for {len(lens)} sequences")
    if not len(lens):  # the daemon takes no batch of none: one without queries and keys
        lens, table, mask = np.zeros(1, np.int32), np.full((1, 1), -1, np.int64), None
        cu_seqlens_q = np.repeat(cu_seqlens_q, 2)
    size = keys.shape[1]
    used = _used(table, lens, size, keys.shape[0], what)
    table = np.where(used, table, -1)
    back = []
    if size not in SIZES or not (session.in_arena(keys) and session.in_arena(values)):
        pools = [keys, values]
        copied = (_whole_blocks(pools, table, used, slots) if size in SIZES
                  else _rows_as_blocks(pools, table, lens, slots))
        copies = [session._arena.copy_in(session._open(), array, dtypes.code_of(array.dtype), name)
                  for array, name in zip(copied.parts, names, strict=True)]
        if slots is not None:
            written = slots >= 0
            back = [(copy, target, copied.slots[written], slots[written])
                    for copy, target in zip(copies, pools, strict=True)]
        (keys, values), table, slots = copies, copied.table, copied.slots
    batch = session.batch(keys=keys, values=values, cu_seqlens_q=cu_seqlens_q, seq_lens_kv=lens,
                          block_table=table, slot_mapping=slots, mask=mask,
                          max_context_len=max_context_len, max_seqlen_q=max_seqlen_q,
                          k_scale=k_scale, v_scale=v_scale)
    batch._params.mask_value = mask_value
    return Pending(_submit(batch, q, k, v, options), batch, back)


def run_rows(session: Session | None, q: Array, keys: Array, values: Array, *, cu_seqlens_q: Any,
             cu_seqlens_k: Any, max_seqlen_q: int = 0, **options: Any) -> Pending:
    """Queue a run over rows [T_k, num_kv_heads, head_dim], which cu_seqlens_k [n + 1] divides."""
    session, sums = session_of(session), cu_seqlens_k
    if sums[-1] > keys.shape[0]:
        raise errors.InvalidError(f"cu_seqlens_k = {said(sums.tolist())} must rise from 0 to the "
                                  f"{keys.shape[0]} rows of k")
    if len(sums) == 1:  # as in run_blocks
        sums, cu_seqlens_q = np.repeat(sums, 2), np.repeat(cu_seqlens_q, 2)
    batch = session.batch(keys=keys, values=values, cu_seqlens_q=cu_seqlens_q,
                          seq_lens_kv=np.diff(sums), kv_starts=sums[:-1],
                          max_seqlen_q=max_seqlen_q)
    return Pending(_submit(batch, q, None, None, options), batch, [])
