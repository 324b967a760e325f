# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Runs over K and V of the caller, in blocks or in rows, wherever they lie.

In the arena they are used in place. Of block tensors elsewhere, only the blocks that the table
names are copied in, and only the rows that the run wrote are copied back. Any thread.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np

from . import dtypes, errors
from ._default import default_session
from ._tensors import Array, array_of
from ._ticket import Ticket
from .batch import Batch
from .sequence import int32
from .session import Session


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
    if dtypes.is_torch(table):
        table = table.detach().cpu().numpy()
    array = np.asarray(table)
    if array.ndim != 2 or (array.size and array.dtype.kind not in "iu"):
        raise errors.InvalidError(f"{what} is {array.dtype} {list(array.shape)}; it must be "
                                  "integers [sequences, blocks]")
    return array.astype(np.int64)


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
            size = target.shape[1]
            at, to = [(index_of(array, taken // size), index_of(array, taken % size))
                      for array, taken in ((copy, rows), (target, wanted))]
            new = copy[at[0], at[1]]
            target[to[0], to[1]] = new.to(target.device) if dtypes.is_torch(target) else new
        return output


def _used(table: Any, lens: Any, block_size: int, num_blocks: int, what: str) -> Any:
    """Return which entries the lengths reach, and check them."""
    columns = -(-lens.astype(np.int64) // block_size)
    for s in np.flatnonzero(columns > table.shape[1]):
        raise errors.OutOfRangeError(f"sequence {s} has {lens[s]} keys in blocks of {block_size}; "
                                     f"{what} has {table.shape[1]} columns")
    used = np.arange(table.shape[1])[None, :] < columns[:, None]
    for s, column in np.argwhere(used & ((table < 0) | (table >= num_blocks))):
        raise errors.OutOfRangeError(f"{what}[{s}][{column}] = {table[s, column]} is no block; "
                                     f"there are {num_blocks}, and the sequence has {lens[s]} keys")
    return used


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
               **options: Any) -> Pending:
    """Queue a run over block tensors [num_blocks, block_size, num_kv_heads, head_dim].

    q [T, num_heads, head_dim]; lens [n]: keys of each sequence, those at `slots` [T] included,
    where k and v go first. table: as `table_of` makes it; what: its name in sentences. Other
    arguments: those of `Batch.local` and `Batch.submit`.
    """
    session = session or default_session()
    keys, values = array_of(keys, "key_cache"), array_of(values, "value_cache")
    if keys.ndim != 4 or tuple(values.shape[:3]) != tuple(keys.shape[:3]):
        raise errors.InvalidError(f"the caches have shapes {tuple(keys.shape)} and "
                                  f"{tuple(values.shape)}; they must have 4 equal dimensions")
    lens = int32(lens, "the lengths")
    if len(lens) != len(table):
        raise errors.InvalidError(f"{what} has {len(table)} rows for {len(lens)} sequences")
    size = keys.shape[1]
    used = _used(table, lens, size, keys.shape[0], what)
    table = np.where(used, table, -1)
    back = []
    if not (session.in_arena(keys) and session.in_arena(values)):
        blocks = np.unique(table[used]) if used.any() else np.zeros(min(1, keys.shape[0]), np.int64)
        table = np.where(used, np.searchsorted(blocks, table), -1)
        copies = [session._arena.copy_in(session._open(), array[index_of(array, blocks)],
                                         dtypes.code_of(array.dtype), name)
                  for array, name in ((keys, "key_cache"), (values, "value_cache"))]
        if slots is not None:
            rows = np.where(slots < 0, slots, np.searchsorted(blocks, slots // size) * size
                            + slots % size)
            written = slots >= 0
            back = [(copy, target, rows[written], slots[written])
                    for copy, target in zip(copies, (keys, values), strict=True)]
            slots = rows
        keys, values = copies
    batch = session.batch(keys=keys, values=values, cu_seqlens_q=cu_seqlens_q, seq_lens_kv=lens,
                          block_table=table, slot_mapping=slots, mask=mask,
                          max_context_len=max_context_len, max_seqlen_q=max_seqlen_q,
                          k_scale=k_scale, v_scale=v_scale)
    batch._params.mask_value = mask_value
    return Pending(_submit(batch, q, k, v, options), batch, back)


def run_rows(session: Session | None, q: Array, keys: Array, values: Array, *, cu_seqlens_q: Any,
             cu_seqlens_k: Any, max_seqlen_q: int = 0, max_seqlen_k: int = 0,
             **options: Any) -> Pending:
    """Queue a run over rows [T_k, num_kv_heads, head_dim], which cu_seqlens_k [n + 1] divides."""
    session = session or default_session()
    sums = int32(cu_seqlens_k, "cu_seqlens_k")
    if len(sums) == 0 or sums[0] < 0 or (np.diff(sums) < 0).any() or sums[-1] > keys.shape[0]:
        raise errors.InvalidError(f"cu_seqlens_k = {sums.tolist()} must rise from 0 to the "
                                  f"{keys.shape[0]} rows of k")
    batch = session.batch(keys=keys, values=values, cu_seqlens_q=cu_seqlens_q,
                          seq_lens_kv=np.diff(sums), kv_starts=sums[:-1],
                          max_seqlen_q=max_seqlen_q, max_context_len=max_seqlen_k)
    return Pending(_submit(batch, q, None, None, options), batch, [])
