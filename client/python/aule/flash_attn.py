# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""FlashAttention's functions of paged and ragged attention, with the arguments of versions 2 and 3.

An argument that aule cannot serve raises UnsupportedError. Arguments that only schedule
(num_splits apart: deterministic, scheduler_metadata, pack_gqa, sm_margin) are taken and have no
effect. Any thread.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import dtypes, errors
from ._args import INT32, bounded, flag, floats, integer, integers, lengths, offsets, said, starts
from ._blocks import SIZES, permuted, run_blocks, run_rows, table_of, unsupported
from ._run import cap_of, number_of, scale_of
from ._tensors import Array, array_of
from .session import Session

_ROTARY = "aule rotates by angles, not by tables; rotate q and k first, or give aule.Rope to a run"
_DESCALE = "K and V of 8 bits belong into an aule cache; see Session.cache"


def _slopes(slopes: Any) -> Any:
    if slopes is None:
        return None
    array = floats(slopes, "alibi_slopes")
    if array.ndim == 2 and len(array):
        if (array != array[:1]).any():
            raise errors.UnsupportedError("alibi_slopes differ between sequences; aule takes one "
                                          "row [heads] for all")
        array = array[0]
    return array


def _options(softmax_scale: float | None, causal: bool, window_size: Any, softcap: float,
             alibi_slopes: Any, s_aux: Any, num_splits: int,
             attention_chunk: int) -> dict[str, Any]:
    try:
        left, right = (-1, -1) if window_size is None else window_size
    except (TypeError, ValueError):
        raise errors.InvalidError(f"window_size = {said(window_size)}; it is (left, right)"
                                  ) from None
    left, right = (-1 if side is None else integer(side, f"window_size[{i}]", -1, INT32)
                   for i, side in enumerate((left, right)))
    return {"scale": scale_of(softmax_scale, "softmax_scale"), "causal": causal,
            "window": None if left < 0 and right < 0 else (left, right),
            "soft_cap": cap_of(softcap, "softcap"), "alibi_slopes": _slopes(alibi_slopes),
            "sinks": None if s_aux is None else floats(s_aux, "s_aux"), "num_splits": num_splits,
            "attention_chunk": attention_chunk}


def _one_table(block_table: Any, page_table: Any) -> Any:
    """Return the table, numpy's int64 [n, columns], or None."""
    if block_table is not None and page_table is not None:
        raise errors.InvalidError("block_table and page_table are two names of one argument; give "
                                  "one of them")
    if block_table is not None:
        return table_of(block_table)
    return None if page_table is None else table_of(page_table, "page_table")


def flash_attn_varlen_func(
        q: Array, k: Array, v: Array, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int,
        max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
        causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0,
        alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False,
        block_table: Any = None, *, qv: Any = None, q_descale: Any = None, k_descale: Any = None,
        v_descale: Any = None, seqused_q: Any = None, seqused_k: Any = None,
        attention_chunk: int = 0, num_splits: int = 0, pack_gqa: Any = None, sm_margin: int = 0,
        page_table: Any = None, s_aux: Any = None, return_lse: bool = False,
        session: Session | None = None) -> Any:
    """Compute attention of ragged sequences, and return out [T, num_heads, head_dim].

    q: [T, num_heads, head_dim], sequence s in rows cu_seqlens_q[s] to cu_seqlens_q[s + 1]. k, v:
    [T_k, num_kv_heads, head_dim], likewise; or, with block_table [n, columns], caches [num_blocks,
    page_size, num_kv_heads, head_dim]. Causal attention is aligned with the last key. A query
    without keys gives 0. seqused_k: [n], keys that count. s_aux: sinks, [num_heads].
    return_lse: returns (out, lse), lse f32 [num_heads, T]. session: None: the default one.
    UnsupportedError: the sentence names the argument. InvalidError, OutOfRangeError: its values.
    """
    del deterministic, pack_gqa, sm_margin
    return_lse = flag(return_lse, "return_lse")
    probs = return_attn_probs, "aule keeps no probabilities; return_lse gives the log-sum-exp"
    unsupported(dropout_p=(number_of(dropout_p, "dropout_p") or None, "aule is for inference"),
                return_attn_probs=probs, qv=(qv, "aule has no second query"),
                seqused_q=(seqused_q, "cut q instead"),
                q_descale=(q_descale, _DESCALE), k_descale=(k_descale, _DESCALE),
                v_descale=(v_descale, _DESCALE))
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux, num_splits,
                       attention_chunk)
    q, k, v = array_of(q, "q"), array_of(k, "k"), array_of(v, "v")
    table = _one_table(block_table, page_table)
    if table is None and seqused_k is not None:
        raise errors.UnsupportedError("seqused_k is given without block_table: shorten "
                                      "cu_seqlens_k instead")
    if k.ndim != (3 if table is None else 4) or k.shape[:-1] != v.shape[:-1]:
        raise errors.InvalidError(f"k {tuple(k.shape)} and v {tuple(v.shape)} have 3 dimensions, "
                                  "or with block_table 4; all but the last are equal")
    if cu_seqlens_k is None and seqused_k is None:
        raise errors.InvalidError("neither cu_seqlens_k nor seqused_k is given")
    sums = starts(cu_seqlens_q, "cu_seqlens_q", q)
    most_q, most_k = (integer(value, name) for value, name in (
        (max_seqlen_q, "max_seqlen_q"), (max_seqlen_k, "max_seqlen_k")))
    if table is not None:
        lens = (lengths(seqused_k, "seqused_k", len(sums) - 1) if seqused_k is not None
                else np.diff(offsets(cu_seqlens_k, "cu_seqlens_k", len(sums) - 1)))
        bounded(lens, most_k, "max_seqlen_k")
        pending = run_blocks(session, q, k, v, cu_seqlens_q=sums, lens=lens,
                             table=table, max_seqlen_q=most_q, lse=return_lse,
                             names=("k", "v"), **options)
    else:
        starts_k = offsets(cu_seqlens_k, "cu_seqlens_k", len(sums) - 1)
        bounded(np.diff(starts_k), most_k, "max_seqlen_k")
        pending = run_rows(session, q, k, v, cu_seqlens_q=sums, cu_seqlens_k=starts_k,
                           max_seqlen_q=most_q, lse=return_lse, **options)
    if not return_lse:
        return pending.wait()
    out, lse = pending.wait()
    return out, permuted(lse, (1, 0))


def _as_blocks(cache: Array, size: int) -> Array:
    """Return [batch, rows, heads, dim] as a view of blocks of `size` rows, which divides rows."""
    batch, rows = cache.shape[:2]
    return cache.reshape(batch * (rows // size), size, *cache.shape[2:])


def _block_size(caches: list[Array]) -> int:
    """Return by how many rows the caches can be cut into blocks without a copy.

    If the kernels take no divisor, or sequences have gaps between them, a sequence is one block.
    """
    batch, rows = caches[0].shape[:2]
    for cache in caches:
        strides = cache.stride() if dtypes.is_torch(cache) else cache.strides
        if batch > 1 and strides[0] != rows * strides[1]:
            return int(rows)
    return next((size for size in SIZES[::-1] if rows and rows % size == 0), int(rows))


def flash_attn_with_kvcache(
        q: Array, k_cache: Array, v_cache: Array, k: Array | None = None, v: Array | None = None,
        rotary_cos: Any = None, rotary_sin: Any = None, cache_seqlens: Any = None,
        cache_batch_idx: Any = None, cache_leftpad: Any = None, block_table: Any = None,
        softmax_scale: float | None = None, causal: bool = False, window_size: Any = (-1, -1),
        softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: Any = None,
        num_splits: int = 0, return_softmax_lse: bool = False, *, qv: Any = None,
        page_table: Any = None, cu_seqlens_q: Any = None, cu_seqlens_k_new: Any = None,
        max_seqlen_q: int | None = None, rotary_seqlens: Any = None, q_descale: Any = None,
        k_descale: Any = None, v_descale: Any = None, attention_chunk: int = 0,
        scheduler_metadata: Any = None, pack_gqa: Any = None, sm_margin: int = 0,
        s_aux: Any = None, session: Session | None = None) -> Any:
    """Append k and v to the caches in place, and attend; returns out, shaped as q.

    q: [batch, q_len, num_heads, head_dim], or [T, ...] with cu_seqlens_q. k_cache, v_cache:
    [num_blocks, page_size, num_kv_heads, head_dim] with block_table (page_table) [batch, columns],
    else [cache_batch, rows, num_kv_heads, head_dim], with any number of rows. Pages of another
    size than a power of two from 8 to 256 are read by a copy of their rows.
    k, v: one row for each row of q, written behind the first cache_seqlens keys; None: nothing is
    written. cache_seqlens: [batch] or one number; None: all rows of the cache. Causal attention is
    aligned with the last key. s_aux: sinks, [num_heads]. return_softmax_lse: returns (out, lse),
    lse f32 [batch, num_heads, q_len], or [num_heads, T]. session: None: the default one.
    UnsupportedError: the sentence names the argument. InvalidError, OutOfRangeError: its values.
    """
    del rotary_interleaved, scheduler_metadata, pack_gqa, sm_margin
    return_softmax_lse = flag(return_softmax_lse, "return_softmax_lse")
    unsupported(rotary_cos=(rotary_cos, _ROTARY), rotary_sin=(rotary_sin, _ROTARY),
                rotary_seqlens=(rotary_seqlens, _ROTARY), qv=(qv, "aule has no second query"),
                cache_leftpad=(cache_leftpad, "keys begin with row 0 of a sequence"),
                q_descale=(q_descale, _DESCALE), k_descale=(k_descale, _DESCALE),
                v_descale=(v_descale, _DESCALE))
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux, num_splits,
                       attention_chunk)
    q, k_cache, v_cache = (array_of(value, name) for value, name in
                           ((q, "q"), (k_cache, "k_cache"), (v_cache, "v_cache")))
    ragged = cu_seqlens_q is not None
    if q.ndim != (3 if ragged else 4) or k_cache.ndim != 4 or v_cache.ndim != 4:
        raise errors.InvalidError(
            f"q {tuple(q.shape)}, k_cache {tuple(k_cache.shape)} and v_cache "
            f"{tuple(v_cache.shape)}: the caches have 4 dimensions, and q {3 if ragged else 4}")
    sums = (starts(cu_seqlens_q, "cu_seqlens_q", q) if ragged
            else np.arange(q.shape[0] + 1, dtype=np.int64) * q.shape[1])
    table = _one_table(block_table, page_table)
    k_cache, v_cache, table, rows = _paged(k_cache, v_cache, table, cache_batch_idx,
                                           len(sums) - 1)
    old = _lengths(cache_seqlens, len(sums) - 1, rows)
    lens, slots = old, None
    if (k is None) != (v is None):
        raise errors.InvalidError("k and v come together, or not at all")
    if k is not None and v is not None:
        k, v = array_of(k, "k"), array_of(v, "v")
        _check_new(q, k, v, sums, cu_seqlens_k_new)
        k, v = (new.reshape(math.prod(new.shape[:-2]), *new.shape[-2:]) for new in (k, v))
        lens = old.astype(np.int64) + np.diff(sums)
        slots = _slots(old, sums, table, k_cache)
    flat = q if ragged else q.reshape(q.shape[0] * q.shape[1], *q.shape[2:])
    pending = run_blocks(session, flat, k_cache, v_cache, cu_seqlens_q=sums, lens=lens,
                         table=table, slots=slots, k=k, v=v,
                         max_seqlen_q=0 if max_seqlen_q is None else max_seqlen_q,
                         names=("k_cache", "v_cache"), lse=return_softmax_lse, **options)
    if not return_softmax_lse:
        out = pending.wait()
        return out if ragged else out.reshape(*q.shape[:3], out.shape[-1])
    out, lse = pending.wait()
    if ragged:
        return out, permuted(lse, (1, 0))
    lse = lse.reshape(*q.shape[:3])
    return out.reshape(*q.shape[:3], out.shape[-1]), permuted(lse, (0, 2, 1))


def _paged(keys: Array, values: Array, table: Any, batch_idx: Any,
           num_seqs: int) -> tuple[Array, Array, Any, int]:
    """Return the caches as blocks, the table, and how many rows a sequence has at most."""
    if table is not None:
        if batch_idx is not None:
            raise errors.InvalidError("cache_batch_idx and block_table exclude each other")
        return keys, values, table, table.shape[1] * keys.shape[1]
    if keys.shape[:3] != values.shape[:3]:
        raise errors.InvalidError(f"k_cache {tuple(keys.shape)} and v_cache "
                                  f"{tuple(values.shape)} have other rows or heads")
    batch, rows = keys.shape[:2]
    which = (np.arange(num_seqs) if batch_idx is None
             else integers(batch_idx, "cache_batch_idx", (num_seqs,)).astype(np.int64))
    if (which < 0).any() or (which >= batch).any():
        raise errors.OutOfRangeError(
            f"cache_batch_idx = {said(which.tolist())}: rows of a cache of {batch} sequences")
    size = _block_size([keys, values])
    columns = rows // size if size else 0
    table = which[:, None] * columns + np.arange(columns)[None, :]
    keys, values = (_as_blocks(cache, size) if size else cache for cache in (keys, values))
    return keys, values, table, columns * size


def _lengths(cache_seqlens: Any, num_seqs: int, rows: int) -> Any:
    if cache_seqlens is None:
        cache_seqlens = rows
    if isinstance(cache_seqlens, int) or getattr(cache_seqlens, "ndim", 1) == 0:
        cache_seqlens = np.full(num_seqs, integer(cache_seqlens, "cache_seqlens", 0, INT32))
    lens = lengths(cache_seqlens, "cache_seqlens", num_seqs)
    for s in np.flatnonzero(lens > rows)[:1]:
        raise errors.OutOfRangeError(f"cache_seqlens[{s}] = {lens[s]}: there are {rows} rows for "
                                     "a sequence")
    return lens


def _check_new(q: Array, k: Array, v: Array, sums: Any, cu_seqlens_k_new: Any) -> None:
    if cu_seqlens_k_new is not None and not np.array_equal(
            offsets(cu_seqlens_k_new, "cu_seqlens_k_new"), sums):
        raise errors.UnsupportedError("cu_seqlens_k_new differs from cu_seqlens_q; aule writes one "
                                      "key for each query")
    if any(new.ndim < 3 or tuple(new.shape[:-2]) != tuple(q.shape[:-2]) for new in (k, v)):
        raise errors.UnsupportedError(
            f"k {tuple(k.shape)} and v {tuple(v.shape)} have other rows than q {tuple(q.shape)}; "
            "aule writes one key for each query")


def _slots(old: Any, sums: Any, table: Any, keys: Array) -> Any:
    """Return where the new rows go, int64 [T]; missing blocks are named."""
    size = keys.shape[1]
    counts = np.diff(sums)
    seq = np.repeat(np.arange(len(counts)), counts)
    at = old[seq].astype(np.int64) + np.arange(sums[-1]) - sums[seq]
    for row in np.flatnonzero(at // size >= table.shape[1]):
        raise errors.OutOfRangeError(
            f"cache_seqlens[{seq[row]}] = {old[seq[row]]}: a new token needs column "
            f"{at[row] // size} of the block table, which has {table.shape[1]}")
    blocks = table[seq, at // size]
    for row in np.flatnonzero((blocks < 0) | (blocks >= keys.shape[0])):
        raise errors.OutOfRangeError(
            f"cache_seqlens[{seq[row]}] = {old[seq[row]]}: a new token needs block_table"
            f"[{seq[row]}][{at[row] // size}] = {blocks[row]}, which is no block")
    return blocks * size + at % size
