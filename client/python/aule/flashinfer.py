# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""FlashInfer's wrappers of paged attention, a plan once a step, a run once a layer; and merging.

An argument that aule cannot serve or does not know raises UnsupportedError. Workspaces, backends,
data types and scheduling options are taken and have no effect. One thread at a time uses a wrapper.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from . import dtypes, errors
from ._args import (
    INT32,
    choice,
    flag,
    host,
    int32,
    integer,
    integers,
    lengths,
    offsets,
    real,
)
from ._blocks import index_of, permuted, run_blocks, unsupported
from ._merge import merged
from ._run import cap_of, scale_of
from ._tensors import Array, array_of, writable
from .session import Session

LAYOUTS = ("NHD", "HND")
# They change no result: workspaces of CUDA graphs, backends, schedules, and metadata given twice.
_IGNORED = frozenset((
    "backend", "block_tables", "custom_mask_buf", "disable_split_kv", "fixed_split_size",
    "kv_data_type", "mask_indptr_buf", "max_sequence_kv", "max_token_per_sequence",
    "non_blocking", "paged_kv_indices_buf", "paged_kv_indices_buffer", "paged_kv_indptr_buf",
    "paged_kv_indptr_buffer", "paged_kv_last_page_len_buf", "paged_kv_last_page_len_buffer",
    "q_data_type", "qo_indptr_buf", "seq_lens", "seq_lens_q", "use_tensor_cores"))


def _check_ignored(options: dict[str, Any]) -> None:
    unsupported(**{name: (value, "aule does not know it")
                   for name, value in options.items() if name not in _IGNORED})


def _check_positions(encoding: Any, rope_scale: Any, rope_theta: Any) -> None:
    if not isinstance(encoding, str) or encoding != "NONE":
        raise errors.UnsupportedError(f"pos_encoding_mode = {encoding!r}: aule takes 'NONE'; "
                                      "rotate q and k first")
    unsupported(rope_scale=(rope_scale, "rotate q and k first"),
                rope_theta=(rope_theta, "rotate q and k first"))


def _window(left: Any) -> int:
    return integer(left, "window_left", -1, INT32)


class _Plan(NamedTuple):
    qo_indptr: Any
    lens: Any
    table: Any
    heads: tuple[int, int, int]  # query heads, KV heads, dim
    dim_v: int
    page_size: int
    causal: bool
    scale: float | None
    window_left: int
    soft_cap: float
    masks: list[Any] | None
    out_type: int  # number of a dtype; 0: q's


class _Wrapper:
    """What prefill and decode share."""

    _unused = 7  # positional arguments that are in _IGNORED; jit_args follows

    def __init__(self, float_workspace_buffer: Any = None, kv_layout: str = "NHD",
                 use_cuda_graph: bool = False, *unused: Any, session: Session | None = None,
                 **ignored: Any) -> None:
        del float_workspace_buffer
        choice(kv_layout, "kv_layout", LAYOUTS)
        graph = flag(use_cuda_graph, "use_cuda_graph")
        unsupported(use_cuda_graph=(graph, "aule's runs are no CUDA kernels"),
                    jit_args=(unused[self._unused:] or None, "aule compiles no variants"))
        _check_ignored(ignored)
        self._layout = kv_layout
        self._session = session
        self._planned: _Plan | None = None

    def _keep(self, qo_indptr: Any, indptr: Any, indices: Any, last_page_len: Any,
              heads: tuple[int, int, int], page_size: int, *, causal: bool, custom_mask: Any,
              sm_scale: float | None, window_left: int, logits_soft_cap: float | None,
              positions: tuple[Any, ...], ignored: dict[str, Any],
              dim_name: str = "head_dim", dim_v: Any = None) -> None:
        out_type = ignored.pop("o_data_type", None)
        _check_ignored(ignored)
        _check_positions(*positions)
        page_size = integer(page_size, "page_size", 1, INT32)
        heads = tuple(integer(value, name, 1) for value, name in zip(  # type: ignore[assignment]
            heads, ("num_qo_heads", "num_kv_heads", dim_name), strict=True))
        dim_v = heads[2] if dim_v is None else integer(dim_v, "head_dim_vo", 1)
        lens, table = _table(offsets(indptr, "paged_kv_indptr"), int32(indices, "paged_kv_indices"),
                             last_page_len, page_size)
        sums = offsets(qo_indptr, "qo_indptr").copy()  # the caller may fill it anew before run()
        if len(sums) != len(lens) + 1 or sums[0] != 0:
            raise errors.InvalidError(f"qo_indptr has {len(sums)} entries for {len(lens)} "
                                      f"sequences, and begins with {sums[0]}; it begins with 0")
        masks = None if custom_mask is None else _masks(custom_mask, np.diff(sums), lens)
        self._planned = _Plan(sums, lens, table, heads, dim_v, page_size, flag(causal, "causal"),
                              scale_of(sm_scale, "sm_scale"), _window(window_left),
                              cap_of(logits_soft_cap, "logits_soft_cap"), masks,
                              0 if out_type is None else dtypes.code_of(out_type, "o_data_type"))

    def run(self, q: Array, paged_kv_cache: Any, *unused: Any, q_scale: float | None = None,
            k_scale: float | None = None, v_scale: float | None = None, out: Array | None = None,
            lse: Array | None = None, return_lse: bool = False, window_left: int | None = None,
            sinks: Any = None, **options: Any) -> Any:
        """Compute one layer; returns out [T, num_qo_heads, head_dim], or (out, lse).

        q: [T, num_qo_heads, head_dim]. paged_kv_cache: (K, V) or one tensor with K and V in its
        second dimension, each [num_pages, page_size, num_kv_heads, head_dim] ("NHD") or
        [num_pages, num_kv_heads, page_size, head_dim] ("HND"). q_scale, k_scale and v_scale: one
        number each. lse: f32 [T, num_qo_heads] to the base 2, as FlashInfer's. out: filled, too.
        InvalidError: plan() was not called, or shapes differ from it.
        """
        unsupported(args=(unused or None, "custom attention has arguments of its own"),
                    **{name: (value, "run() of aule does not know it")
                       for name, value in options.items() if name != "enable_pdl"})
        plan = self._planned
        if plan is None:
            raise errors.InvalidError("call plan() before run()")
        q = array_of(q, "q")
        keys, values = _caches(paged_kv_cache, self._layout)
        got = (*q.shape[1:2], *keys.shape[2:])
        if (q.ndim != 3 or got != plan.heads or keys.shape[1] != plan.page_size
                or values.shape[3] != plan.dim_v):
            raise errors.InvalidError(
                f"q {tuple(q.shape)}, K {tuple(keys.shape)} and V {tuple(values.shape)} of "
                "paged_kv_cache do not fit plan(): num_qo_heads {}, num_kv_heads {}, head_dim {}, "
                "head_dim_vo {}, page_size {}".format(*plan.heads, plan.dim_v, plan.page_size))
        if plan.out_type not in (0, dtypes.code_of(q.dtype)):
            raise errors.UnsupportedError(f"o_data_type is {dtypes.name(plan.out_type)} and q is "
                                          f"{q.dtype}; aule's output has q's type")
        left = plan.window_left if window_left is None else _window(window_left)
        scale = ((plan.scale or plan.heads[2] ** -0.5) * (scale_of(q_scale, "q_scale") or 1.0)
                 * (scale_of(k_scale, "k_scale") or 1.0))
        v_scale = 1.0 if v_scale is None else real(v_scale, "v_scale")
        pending = run_blocks(self._session, q, keys, values, cu_seqlens_q=plan.qo_indptr,
                             lens=plan.lens, table=plan.table, what="page table",
                             names=("K of paged_kv_cache", "V of paged_kv_cache"), mask=plan.masks,
                             causal=plan.causal, scale=scale, soft_cap=plan.soft_cap, sinks=sinks,
                             window=None if left < 0 else (left, -1),
                             lse=flag(return_lse, "return_lse") if lse is None else lse, out=out)
        result = pending.wait()
        result, logs = result if isinstance(result, tuple) else (result, None)
        if v_scale != 1.0:
            result *= v_scale
        if logs is None:
            return result
        logs *= math.log2(math.e)
        return (result, logs) if return_lse else result

    def run_return_lse(self, q: Array, paged_kv_cache: Any, *unused: Any, **options: Any) -> Any:
        """Do what `run` does with return_lse=True."""
        return self.run(q, paged_kv_cache, *unused, **{**options, "return_lse": True})

    def end_forward(self) -> None:
        """Do nothing, as FlashInfer's."""

    def _forward(self, q: Array, paged_kv_cache: Any, causal: bool, sm_scale: float | None,
                 window_left: int, logits_soft_cap: float | None, positions: tuple[Any, ...],
                 **options: Any) -> Any:
        """Run with options that replace those of the plan, for good, as in FlashInfer."""
        if self._planned is None:
            raise errors.InvalidError("call plan() before forward()")
        _check_positions(*positions)
        self._planned = self._planned._replace(
            causal=flag(causal, "causal"), scale=scale_of(sm_scale, "sm_scale"),
            window_left=_window(window_left),
            soft_cap=cap_of(logits_soft_cap, "logits_soft_cap"))
        return self.run(q, paged_kv_cache, **options)

    def forward_return_lse(self, *arguments: Any, **options: Any) -> Any:
        """Do what `forward` does, and return (out, lse)."""
        return self.forward(*arguments, **options, return_lse=True)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Run with options of its own."""
        raise NotImplementedError


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Attention of chunks of prompts over a paged cache. session: None: the default one."""

    def plan(self, qo_indptr: Any, paged_kv_indptr: Any, paged_kv_indices: Any,
             paged_kv_last_page_len: Any, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int,
             page_size: int, head_dim_vo: int | None = None, custom_mask: Any = None,
             packed_custom_mask: Any = None, causal: bool = False,
             pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False,
             sm_scale: float | None = None, window_left: int = -1,
             logits_soft_cap: float | None = None, rope_scale: float | None = None,
             rope_theta: float | None = None, **ignored: Any) -> None:
        """Check and keep a step's metadata.

        qo_indptr, paged_kv_indptr: [n + 1]. paged_kv_indices: pages of all sequences, one after
        another. paged_kv_last_page_len: [n], 1 to page_size. custom_mask: bool, the [q_len,
        kv_len] of all sequences flattened; replaces causal. sm_scale: None: 1 / sqrt(head_dim).
        All arrays are copied. page_size: any; other pages than powers of two from 8 to 256 are
        read by a copy of their rows.
        """
        del use_fp16_qk_reduction
        unsupported(packed_custom_mask=(packed_custom_mask, "give custom_mask"))
        self._keep(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
                   (num_qo_heads, num_kv_heads, head_dim_qk), page_size, causal=causal,
                   custom_mask=custom_mask, sm_scale=sm_scale, window_left=window_left,
                   logits_soft_cap=logits_soft_cap, dim_name="head_dim_qk", dim_v=head_dim_vo,
                   positions=(pos_encoding_mode, rope_scale, rope_theta), ignored=ignored)

    begin_forward = plan

    def forward(self, q: Array, paged_kv_cache: Any, causal: bool = False,
                pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False,
                k_scale: float | None = None, v_scale: float | None = None, window_left: int = -1,
                logits_soft_cap: float | None = None, sm_scale: float | None = None,
                rope_scale: float | None = None, rope_theta: float | None = None, *,
                return_lse: bool = False) -> Any:
        """Do what `run` does, with options that replace those of the plan: its older name.

        All of them do, so causal is False unless it is given here.
        """
        del use_fp16_qk_reduction
        return self._forward(q, paged_kv_cache, causal, sm_scale, window_left, logits_soft_cap,
                             (pos_encoding_mode, rope_scale, rope_theta), k_scale=k_scale,
                             v_scale=v_scale, return_lse=return_lse)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """Attention of one query a sequence over a paged cache. session: None: the default one."""

    _unused = 5

    def plan(self, indptr: Any, indices: Any, last_page_len: Any, num_qo_heads: int,
             num_kv_heads: int, head_dim: int, page_size: int, pos_encoding_mode: str = "NONE",
             window_left: int = -1, logits_soft_cap: float | None = None,
             q_data_type: Any = None, kv_data_type: Any = None, data_type: Any = None,
             sm_scale: float | None = None, rope_scale: float | None = None,
             rope_theta: float | None = None, **ignored: Any) -> None:
        """Check and keep the metadata of a step; arrays are as for prefill."""
        del q_data_type, kv_data_type, data_type
        indptr = offsets(indptr, "indptr")
        self._keep(np.arange(len(indptr)), indptr, indices, last_page_len,
                   (num_qo_heads, num_kv_heads, head_dim), page_size, causal=True,
                   custom_mask=None, sm_scale=sm_scale, window_left=window_left,
                   logits_soft_cap=logits_soft_cap,
                   positions=(pos_encoding_mode, rope_scale, rope_theta), ignored=ignored)

    begin_forward = plan

    def forward(self, q: Array, paged_kv_cache: Any,
                pos_encoding_mode: str = "NONE", q_scale: float | None = None,
                k_scale: float | None = None, v_scale: float | None = None, window_left: int = -1,
                logits_soft_cap: float | None = None, sm_scale: float | None = None,
                rope_scale: float | None = None, rope_theta: float | None = None, *,
                return_lse: bool = False) -> Any:
        """Do what `run` does, with options that replace those of the plan: its older name."""
        return self._forward(q, paged_kv_cache, True, sm_scale, window_left, logits_soft_cap,
                             (pos_encoding_mode, rope_scale, rope_theta), q_scale=q_scale,
                             k_scale=k_scale, v_scale=v_scale, return_lse=return_lse)


# ---- merging ----

def merge_state(v_a: Array, s_a: Array, v_b: Array, s_b: Array, *,
                session: Session | None = None) -> tuple[Array, Array]:
    """Merge attention over two parts of the keys; returns new (v, s).

    v_a, v_b: [tokens, num_heads, head_dim], of one type. s_a, s_b: their LSE as `run` returns it,
    f32 [tokens, num_heads] to the base 2. session: None: the default one.
    """
    return merged(session, [("v_a", v_a, "s_a", s_a), ("v_b", v_b, "s_b", s_b)])


def merge_state_in_place(v: Array, s: Array, v_other: Array, s_other: Array, mask: Any = None, *,
                         session: Session | None = None) -> None:
    """Merge another part of the keys into (v, s), as `merge_state` does.

    mask: bool [tokens], rows that are merged; None: all.
    """
    v, s = array_of(v, "v"), array_of(s, "s")
    rows = None if mask is None else host(mask, "mask")
    if rows is not None and (rows.dtype != np.bool_ or rows.shape != tuple(v.shape[:1])):
        raise errors.InvalidError(f"mask is {rows.dtype} {list(rows.shape)}; it must be bool "
                                  f"{list(v.shape[:1])}")
    for name, array in (("v", v), ("s", s)):
        writable(array, name)
    new = merged(session, [("v", v, "s", s), ("v_other", v_other, "s_other", s_other)])
    for target, source in zip((v, s), new, strict=True):
        at = ... if rows is None else index_of(target, np.flatnonzero(rows))
        target[at] = source[at]


def merge_states(v: Array, s: Array, *, session: Session | None = None) -> tuple[Array, Array]:
    """Merge attention over several parts of the keys; returns (v, s) as `merge_state`.

    v: [tokens, parts, num_heads, head_dim], at least one part. s: f32 [tokens, parts, num_heads].
    """
    v, s = array_of(v, "v"), array_of(s, "s")
    if v.ndim != 4 or s.ndim != 3 or v.shape[1] != s.shape[1] or not v.shape[1]:
        raise errors.InvalidError(f"v {tuple(v.shape)} and s {tuple(s.shape)} must be [tokens, "
                                  "parts, heads, dim] and [tokens, parts, heads]")
    return merged(session, [(f"v[:, {n}]", v[:, n], f"s[:, {n}]", s[:, n])
                            for n in range(v.shape[1])])


# ---- metadata ----

def _table(indptr: Any, indices: Any, last_page_len: Any, page_size: int) -> tuple[Any, Any]:
    """Turn pages in compressed rows into lengths and a block table."""
    pages = np.diff(indptr).astype(np.int64)
    last = integers(last_page_len, "paged_kv_last_page_len", (len(pages),))
    if indptr[0] != 0:
        raise errors.InvalidError(f"paged_kv_indptr[0] = {indptr[0]}; it must rise from 0")
    if indptr[-1] > len(indices):
        raise errors.OutOfRangeError(f"paged_kv_indptr ends with {indptr[-1]}; there are "
                                     f"{len(indices)} paged_kv_indices")
    for s in np.flatnonzero((pages > 0) & ((last < 1) | (last > page_size))).tolist():
        raise errors.OutOfRangeError(f"paged_kv_last_page_len[{s}] = {last[s]} is not from 1 to "
                                     f"page_size {page_size}")
    table = np.full((len(last), max(int(pages.max(initial=0)), 1)), -1, np.int64)
    for s, count in enumerate(pages.tolist()):
        table[s, :count] = indices[indptr[s]:indptr[s + 1]]
    lens = np.where(pages > 0, (pages - 1) * page_size + last, 0)
    return lengths(lens, f"page_size = {page_size}: the number of keys", len(last)), table


def _masks(mask: Any, q_lens: Any, lens: Any) -> list[Any]:
    """Cut a flattened mask into copies, one a sequence."""
    flat = host(mask, "custom_mask")
    sizes = q_lens.astype(np.int64) * lens
    if flat.shape != (sizes.sum(),) or flat.dtype != np.bool_:
        raise errors.InvalidError(f"custom_mask has shape {flat.shape} and is {flat.dtype}; these "
                                  f"sequences need bool ({sizes.sum()},)")
    ends = np.cumsum(sizes)
    return [flat[end - size:end].reshape(q_len, length).copy()
            for end, size, q_len, length in zip(ends, sizes, q_lens, lens, strict=True)]


def _caches(given: Any, layout: str) -> tuple[Array, Array]:
    if isinstance(given, (tuple, list)):
        if len(given) != 2:
            raise errors.InvalidError(f"paged_kv_cache has {len(given)} parts; it is (K, V)")
        keys, values = (array_of(cache, "paged_kv_cache") for cache in given)
    else:
        both = array_of(given, "paged_kv_cache")
        if both.ndim != 5 or both.shape[1] != 2:
            raise errors.InvalidError(f"paged_kv_cache has shape {tuple(both.shape)}; one tensor "
                                      "is [num_pages, 2, ...]")
        keys, values = both[:, 0], both[:, 1]
    if keys.ndim != 4 or values.ndim != 4:
        raise errors.InvalidError(f"paged_kv_cache has K {tuple(keys.shape)} and V "
                                  f"{tuple(values.shape)}; each has 4 dimensions")
    order = (0, 1, 2, 3) if layout == "NHD" else (0, 2, 1, 3)
    return permuted(keys, order), permuted(values, order)
