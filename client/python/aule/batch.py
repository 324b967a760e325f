# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Batches from a caller's own metadata: block tables, slots, cu_seqlens. Sequences need none.

The names and the meaning of all arrays are those of struct aule_batch_params in aule.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import dtypes, errors
from ._args import int32, integer, integers, pack_mask
from ._native import Handle, check, ffi, lib
from ._run import Geometry, Runs, _at, number_of
from ._tensors import Array, array_of, writable

if TYPE_CHECKING:
    from .cache import Cache
    from .session import Session


class _Arrays:
    """struct aule_batch_params over arrays that live as long as this.

    They may be the caller's own. So this lives no longer than the call, which copies them.
    """

    def __init__(self, *, cu_seqlens_q: Any, seq_lens_kv: Any, block_table: Any = None,
                 slot_mapping: Any = None, positions: Any = None, mask: Any = None,
                 max_context_len: int = 0, max_seqlen_q: int = 0, q_lens: Any = None,
                 token_rows: Any = None, kv_starts: Any = None) -> None:
        self._keep: list[Any] = []
        self.params = params = ffi.new("struct aule_batch_params *")
        cu = int32(cu_seqlens_q, "cu_seqlens_q")
        lens = int32(seq_lens_kv, "seq_lens_kv")
        if len(cu) != len(lens) + 1:
            raise errors.InvalidError(
                f"cu_seqlens_q has {len(cu)} entries for {len(lens)} sequences; it needs "
                f"{len(lens) + 1}")
        self.num_tokens = max(int(cu[-1]), 0)
        params.num_seqs = len(lens)
        params.cu_seqlens_q = self._point(cu)
        params.seq_lens_kv = self._point(lens)
        params.max_context_len = integer(max_context_len, "max_context_len")
        params.max_seqlen_q = integer(max_seqlen_q, "max_seqlen_q")
        if block_table is not None:
            table = integers(block_table, "block_table", (len(lens), None))
            params.max_blocks = table.shape[1]
            params.block_table = self._point(table)
        for name, values, count, kind in (
                ("slot_mapping", slot_mapping, self.num_tokens, np.int64),
                ("positions", positions, self.num_tokens, np.int32),
                ("token_rows", token_rows, self.num_tokens, np.int32),
                ("q_lens", q_lens, len(lens), np.int32),
                ("kv_starts", kv_starts, len(lens), np.int32)):
            if values is not None:
                setattr(params, name, self._point(integers(values, name, (count,), kind)))
        self.writes = slot_mapping is not None
        if mask is not None:
            packed = pack_mask(mask, [(int(cu[i + 1] - cu[i]), int(lens[i]))
                                      for i in range(len(lens))])
            self._keep.append(packed)
            params.mask, params.mask_size = ffi.from_buffer(packed), len(packed)

    def _point(self, array: Any) -> Any:
        self._keep.append(array)
        return ffi.from_buffer(f"{array.dtype.name}_t[]", array)


class Batch(Runs):
    """The metadata of one step, checked once; `attend` runs a layer over it.

    `cache.batch(...)` and `session.batch(...)` make it. num_tokens: rows of q and out.
    """

    _what = "batch"

    def __init__(self, handle: Handle, session: Session, geometry: Geometry,
                 arrays: _Arrays) -> None:
        super().__init__(handle, session, geometry)
        self.num_tokens = arrays.num_tokens
        self._writes = arrays.writes
        session._children.add(self)

    def _batch(self, mask: Any) -> Any:
        if mask is not None:
            raise errors.InvalidError("this batch has its own metadata: give the mask to the batch")
        return self._open().pointer

    def close(self) -> None:
        """End the batch. Its runs go on."""
        handle, self._handle = self._handle, None  # first: a wait for a ticket sees it
        with self._lock:
            if handle is not None:
                handle.end()

    @classmethod
    def of_cache(cls, cache: Cache, **arrays: Any) -> Batch:
        """Make a batch over blocks of a cache.

        cu_seqlens_q [n + 1], seq_lens_kv [n], block_table [n, columns] of block ids, slot_mapping
        [T] (None: runs write nothing and take no k and v), positions [T], mask: bool [q_len,
        seq_len] for each sequence, q_lens [n], token_rows [T], max_context_len, max_seqlen_q.
        Statuses: those of aule_batch_create() in aule.h.
        """
        given = _Arrays(**arrays)
        parent = cache._open()
        pointer = ffi.new("struct aule_batch **")
        check(lib.aule_batch_create_sized(parent.pointer, given.params,
                                          ffi.sizeof(given.params[0]), pointer))
        handle = Handle(pointer[0], lib.aule_batch_destroy, parent)
        return cls(handle, cache.session, cache._geometry, given)

    @classmethod
    def local(cls, session: Session, *, keys: Array, values: Array | None = None,
              k_scale: float = 0.0, v_scale: float = 0.0, head_dim_v: int = 0,
              **arrays: Any) -> Batch:
        """Make a batch over the session's own K and V; no cache is needed.

        keys: block tensors [num_blocks, block_size, num_kv_heads, head_dim] with block_table, or
        contiguous rows [rows, num_kv_heads, head_dim] with kv_starts. values: likewise; None:
        MLA, V is the first head_dim_v elements of K. In the arena they are used, and with
        slot_mapping written, in place; others are copied in, and cannot be written.
        k_scale, v_scale: of 8-bit elements; 0: 1. Other arrays: as in `of_cache`, and kv_starts.
        Statuses: those of aule_batch_create_local() in aule.h.
        """
        given = _Arrays(**arrays)
        keys = array_of(keys, "keys")
        values = None if values is None else array_of(values, "values")
        if len(keys.shape) not in (3, 4):
            raise errors.InvalidError(f"keys has shape {tuple(keys.shape)}, neither [blocks, "
                                      "block_size, heads, dim] nor [rows, heads, dim]")
        if values is not None and tuple(values.shape[:-1]) != tuple(keys.shape[:-1]):
            raise errors.InvalidError(f"values has shape {tuple(values.shape)}, keys "
                                      f"{tuple(keys.shape)}")
        paged = len(keys.shape) == 4
        k_scale, v_scale = number_of(k_scale, "k_scale"), number_of(v_scale, "v_scale")
        dim_v = (int(values.shape[-1]) if values is not None
                 else integer(head_dim_v, "head_dim_v"))
        layout = ffi.new("struct aule_kv_layout *", {
            "num_kv_heads": keys.shape[-2], "head_dim": keys.shape[-1], "head_dim_v": dim_v,
            "v_is_k_prefix": values is None, "k_dtype": dtypes.code_of(keys.dtype),
            "v_dtype": dtypes.code_of((keys if values is None else values).dtype),
            "scale_mode": lib.AULE_SCALE_PER_TENSOR if k_scale or v_scale else lib.AULE_SCALE_NONE,
            "block_size": keys.shape[1] if paged else 0,
            "num_blocks": keys.shape[0] if paged else 0})
        parent = session._open()
        pointer = ffi.new("struct aule_batch **")
        check(lib.aule_batch_create_local_sized(parent.pointer, layout, ffi.sizeof(layout[0]),
                                                given.params, ffi.sizeof(given.params[0]), pointer))
        geometry = Geometry(int(keys.shape[-2]), int(keys.shape[-1]),
                            0 if values is None else dim_v, dim_v or int(keys.shape[-1]), 1)
        batch = cls(Handle(pointer[0], lib.aule_batch_destroy, parent), session, geometry, given)
        batch._scales = (k_scale, v_scale)
        try:
            batch._place_pool("keys", keys)
            if values is not None:
                batch._place_pool("values", values)
        finally:
            session._arena.arrive()
        return batch

    def _place_pool(self, name: str, array: Array) -> None:
        session = self._session
        arena = session._arena
        place = arena.look(array)
        if self._writes:
            writable(array, name)
        if not place.in_place:
            if self._writes:
                where = "is off 16 bytes" if place.offset >= 0 else "does not lie"
                raise errors.InvalidError(
                    f"{name} {where} in the arena, and slot_mapping writes to it: make it by "
                    "session.empty()")
            array = arena.copy_in(session._open(), array, place.code, name)
            place = arena.look(array)
        arena.put(self._bytes, _at[name], place, name)
        if len(place.shape) == 4:
            getattr(self._params, name).outer_stride = place.strides[0]
        self._pools.append(array)
