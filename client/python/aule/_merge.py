# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Merges attention over parts of the keys into attention over all of them, by LSE. Any thread."""

from __future__ import annotations

from typing import Any

from . import dtypes, errors
from ._default import session_of
from ._native import ffi, lib
from ._tensors import Array, array_of, ordinary
from ._ticket import Ticket
from .session import Session


def _checked(parts: list[tuple[str, Array, str, Array]]) -> list[tuple[Array, Array]]:
    """Return the parts as arrays. Each has the shape and the type of the first."""
    arrays = [(array_of(v, v_name), array_of(s, s_name)) for v_name, v, s_name, s in parts]
    first = arrays[0][0]
    for (v_name, _, s_name, _), (v, s) in zip(parts, arrays, strict=True):
        if v.ndim != 3 or v.shape != first.shape or v.dtype != first.dtype:
            raise errors.InvalidError(f"{v_name} is {v.dtype} {list(v.shape)} and {parts[0][0]} "
                                      f"{first.dtype} {list(first.shape)}; both are [tokens, "
                                      "heads, dim] of one type")
        if tuple(s.shape) != tuple(v.shape[:2]) or dtypes.code_of(s.dtype) != dtypes.F32:
            raise errors.InvalidError(f"{s_name} is {s.dtype} {list(s.shape)}; with {v_name} "
                                      f"{list(v.shape)} it is float32 {list(v.shape[:2])}")
    return arrays


def merged(session: Session | None,
           parts: list[tuple[str, Array, str, Array]]) -> tuple[Array, Array]:
    """Return (out, lse) of parts (name of v, v, name of s, s): new arrays where the first v is.

    v: [tokens, heads, dim], f32, f16 or bf16. s: f32 [tokens, heads], to the base 2.
    Source: aule_merge_submit() in aule.h.
    """
    arrays = _checked(parts)
    session = session_of(session)
    handle, arena = session._open(), session._arena
    keep: list[Any] = []

    def inside(array: Array, name: str) -> Array:
        """Return an input, or a copy of it if runs cannot use it where it lies."""
        return array if arena.look(array).in_place else arena.copy_in(
            handle, array, dtypes.code_of(array.dtype), name)

    def place(array: Array, name: str, at: Any) -> None:
        """Fill in a tensor as it lies. Rows of an LSE need no alignment."""
        found = arena.look(array)
        strides = found.strides if array.ndim == 3 else (found.strides[0], 4, 4)
        ffi.buffer(at)[:] = arena.pack(found, strides, name)
        keep.append(array)

    outs, lses = (ffi.new("struct aule_tensor[]", len(parts)) for _ in range(2))
    first = arrays[0][0]
    tokens, heads, dim = first.shape
    params = ffi.new("struct aule_merge_params *", {
        "num_parts": len(parts), "num_tokens": tokens, "num_heads": heads, "head_dim": dim,
        "outs": outs, "lses": lses, "lse_base2": True})
    back = []
    try:
        for n, ((v, s), (v_name, _, s_name, _)) in enumerate(zip(arrays, parts, strict=True)):
            place(inside(v, v_name), v_name, ffi.addressof(outs, n))
            place(inside(s, s_name), s_name, ffi.addressof(lses, n))
    finally:
        arena.arrive()
    for like, name in ((first, "out"), (arrays[0][1], "lse")):
        copy = arena.allocate(handle, tuple(like.shape), dtypes.code_of(like.dtype),
                              dtypes.is_torch(like))
        back.append((copy, ordinary(like, tuple(like.shape))))
        place(copy, name, ffi.addressof(params, name))
    ticket = Ticket(session, (back[0][1], back[1][1]), keep, back)
    ticket._queue(lambda ms, native: lib.aule_merge_submit_sized(
        handle.pointer, params, ffi.sizeof(params[0]), ms, native), None, session._open)
    out, lse = ticket.wait()
    return out, lse
