# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Whole blocks, and rows of K and V, from arrays into a cache and back. Any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import dtypes, errors
from ._args import int32, integer, integers, said
from ._native import ffi, lib
from ._run import number_of
from ._tensors import Array, array_of
from ._ticket import Ticket

if TYPE_CHECKING:
    from .cache import Cache

# ---- whole blocks ----

def _offset(cache: Cache, array: Array, count: int) -> int:
    """Return where an array lies in the arena; it has the bytes of `count` blocks."""
    if dtypes.is_torch(array):
        dense, size = array.is_contiguous(), array.numel() * array.element_size()
        address = array.data_ptr() if array.is_cpu else 0
    elif isinstance(array, np.ndarray):
        dense, size, address = array.flags.c_contiguous, array.nbytes, array.ctypes.data
    else:
        raise errors.InvalidError(f"array is a {type(array).__name__}; it is numpy's or torch's")
    if not dense or size != count * cache.block_bytes:
        raise errors.InvalidError(f"array has {size} bytes{'' if dense else ' with gaps'}; {count} "
                                  f"blocks need {count} * {cache.block_bytes}, without gaps")
    arena = cache.session._arena
    if not 0 <= address - arena.start <= arena.size - size:
        raise errors.InvalidError("array does not lie in the arena: make it by session.empty()")
    return int(address - arena.start)


def move(cache: Cache, ids: Any, array: Array, timeout: float | None, *, out: bool) -> Ticket:
    """Queue the copy of blocks to or from an array in the arena."""
    cache.session._sweep()
    blocks = int32(ids, "ids").copy()
    offset, parent = _offset(cache, array, len(blocks)), cache._open()
    function = lib.aule_blocks_export if out else lib.aule_blocks_import
    pointer = ffi.from_buffer("int32_t[]", blocks)
    ticket = Ticket(cache.session, array, [array], [])
    ticket._queue(lambda ms, native: function(
        parent.pointer, len(blocks), pointer, offset, ms, native), timeout, cache._open)
    return ticket


# ---- rows of K and V ----

def _row_shapes(cache: Cache, rows: int) -> dict[str, tuple[int, int, int]]:
    """Return the shapes of k and of v, if the cache stores any."""
    heads, dim, dim_v, _, _ = cache._geometry
    if not heads:
        raise errors.UnsupportedError("a cache of opaque blocks has no rows of K and V")
    return {"k": (rows, heads, dim), **({"v": (rows, heads, dim_v)} if dim_v else {})}


def _put(cache: Cache, params: Any, name: str, array: Array) -> None:
    arena = cache.session._arena
    at = ffi.offsetof(ffi.typeof(params).item, name)
    arena.put(ffi.buffer(params), at, arena.look(array), name)


def kv_import(cache: Cache, layer: int, slot_mapping: Any, k: Array, v: Array | None,
              k_scale: float, v_scale: float, timeout: float | None) -> Ticket:
    """Do what `Cache.kv_import` does."""
    session = cache.session
    session._sweep()
    slots = integers(slot_mapping, "slot_mapping", kind=np.int64)
    shapes = _row_shapes(cache, len(slots))
    given: dict[str, Any] = {"k": k, "v": v}
    if v is not None and "v" not in shapes:
        raise errors.InvalidError("v is given, but here V is a prefix of K (MLA)")
    params = ffi.new("struct aule_kv_import *", {
        "layer": integer(layer, "layer"), "num_rows": len(slots),
        "slot_mapping": ffi.from_buffer("int64_t[]", slots),
        "k_scale": number_of(k_scale, "k_scale"), "v_scale": number_of(v_scale, "v_scale")})
    keep = []
    try:
        for name, shape in shapes.items():
            array = array_of(given[name], name)
            if tuple(array.shape) != shape:
                raise errors.InvalidError(f"{name} has shape {said(tuple(array.shape))}; these "
                                          f"rows need {shape}")
            place = session._arena.look(array)
            if not place.in_place:
                array = session._arena.copy_in(session._open(), array, place.code, name)
            _put(cache, params, name, array)
            keep.append(array)
    finally:
        session._arena.arrive()
    parent = cache._open()
    ticket = Ticket(session, None, keep, [])
    ticket._queue(lambda ms, native: lib.aule_kv_import_sized(
        parent.pointer, params, ffi.sizeof(params[0]), ms, native), timeout, cache._open)
    return ticket


def kv_export(cache: Cache, layer: int, ids: Any, num_rows: int | None, dtype: Any,
              k_scale: float, v_scale: float, timeout: float | None) -> Ticket:
    """Do what `Cache.kv_export` does."""
    session = cache.session
    session._sweep()
    blocks = int32(ids, "ids")
    rows = len(blocks) * cache.block_size
    rows = rows if num_rows is None else integer(num_rows, "num_rows", 0, rows)
    outputs = {name: session.empty(shape, dtype)
               for name, shape in _row_shapes(cache, rows).items()}
    params = ffi.new("struct aule_kv_export *", {
        "layer": integer(layer, "layer"), "num_rows": rows,
        "block_ids": ffi.from_buffer("int32_t[]", blocks),
        "k_scale": number_of(k_scale, "k_scale"), "v_scale": number_of(v_scale, "v_scale")})
    for name, array in outputs.items():
        _put(cache, params, name, array)
    parent = cache._open()
    ticket = Ticket(session, (outputs["k"], outputs.get("v")), list(outputs.values()), [])
    ticket._queue(lambda ms, native: lib.aule_kv_export_sized(
        parent.pointer, params, ffi.sizeof(params[0]), ms, native), timeout, cache._open)
    return ticket
