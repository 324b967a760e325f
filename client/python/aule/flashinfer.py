# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""FlashInfer's wrappers of paged attention: a plan once a step, a run once a layer.

An argument that aule cannot serve or does not know raises UnsupportedError. Workspaces, backends,
data types and scheduling options are taken and have no effect. One thread at a time uses a wrapper.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from . import dtypes, errors
from ._blocks import permuted, run_blocks, unsupported
from ._run import scale_of
from ._tensors import Array, array_of
from .sequence import int32
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


class _Plan(NamedTuple):
    qo_indptr: Any
    lens: Any
    table: Any
    heads: tuple[int, int, int]  # query heads, KV heads, dim
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
        if kv_layout not in LAYOUTS:
            raise errors.InvalidError(f"kv_layout = {kv_layout!r} is none of {', '.join(LAYOUTS)}")
        unsupported(use_cuda_graph=(use_cuda_graph, "aule's runs are no CUDA kernels"),
                    jit_args=(unused[self._unused:] or None, "aule compiles no variants"))
        _check_ignored(ignored)
        self._layout = kv_layout
        self._session = session
        self._planned: _Plan | None = None

    def _keep(self, qo_indptr: Any, indptr: Any, indices: Any, last_page_len: Any,
              heads: tuple[int, int, int], page_size: int, *, causal: bool, custom_mask: Any,
              sm_scale: float | None, window_left: int, logits_soft_cap: float | None,
              options: dict[str, Any], ignored: dict[str, Any]) -> None:
        out_type = ignored.pop("o_data_type", None)
        _check_ignored(ignored)
        encoding = options.get("pos_encoding_mode", "NONE")
        if encoding != "NONE":
            raise errors.UnsupportedError(f"pos_encoding_mode = {encoding!r}: aule takes 'NONE'; "
                                          "rotate q and k first")
        unsupported(
            packed_custom_mask=(options.get("packed_custom_mask"), "give custom_mask"),
            rope_scale=(options.get("rope_scale"), "rotate q and k first"),
            rope_theta=(options.get("rope_theta"), "rotate q and k first"))
        lens, table = _table(int32(indptr, "paged_kv_indptr"), int32(indices, "paged_kv_indices"),
                             int32(last_page_len, "paged_kv_last_page_len"), page_size)
        sums = int32(qo_indptr, "qo_indptr")
        if len(sums) != len(lens) + 1:
            raise errors.InvalidError(f"qo_indptr has {len(sums)} entries for {len(lens)} "
                                      "sequences")
        masks = None if custom_mask is None else _masks(custom_mask, np.diff(sums), lens)
        self._planned = _Plan(sums, lens, table, heads, page_size, causal,
                              scale_of(sm_scale, "sm_scale"), window_left, logits_soft_cap or 0.0,
                              masks, 0 if out_type is None else dtypes.code_of(out_type))

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
        if q.ndim != 3 or got != plan.heads or keys.shape[1] != plan.page_size:
            raise errors.InvalidError(
                f"q {tuple(q.shape)} and K {tuple(keys.shape)} do not fit plan(): heads and dim "
                f"{plan.heads}, page_size {plan.page_size}")
        if plan.out_type not in (0, dtypes.code_of(q.dtype)):
            raise errors.UnsupportedError(f"o_data_type is {dtypes.name(plan.out_type)} and q is "
                                          f"{q.dtype}; aule's output has q's type")
        left = plan.window_left if window_left is None else window_left
        scale = (plan.scale or plan.heads[2] ** -0.5) * (q_scale or 1.0) * (k_scale or 1.0)
        pending = run_blocks(self._session, q, keys, values, cu_seqlens_q=plan.qo_indptr,
                             lens=plan.lens, table=plan.table, what="page table", mask=plan.masks,
                             causal=plan.causal, scale=scale, soft_cap=plan.soft_cap, sinks=sinks,
                             window=None if left < 0 else (left, -1),
                             lse=return_lse or lse is not None, out=out)
        result = pending.wait()
        result, logs = result if isinstance(result, tuple) else (result, None)
        if v_scale not in (None, 1.0):
            result *= v_scale
        if logs is None:
            return result
        logs *= math.log2(math.e)
        if lse is not None:
            lse[...] = logs
            logs = lse
        return (result, logs) if return_lse else result


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
        """
        del head_dim_vo, use_fp16_qk_reduction
        self._keep(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
                   (num_qo_heads, num_kv_heads, head_dim_qk), page_size, causal=causal,
                   custom_mask=custom_mask, sm_scale=sm_scale, window_left=window_left,
                   logits_soft_cap=logits_soft_cap,
                   options={"pos_encoding_mode": pos_encoding_mode, "rope_scale": rope_scale,
                            "packed_custom_mask": packed_custom_mask, "rope_theta": rope_theta},
                   ignored=ignored)


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
        self._keep(np.arange(max(len(indptr), 1)), indptr, indices, last_page_len,
                   (num_qo_heads, num_kv_heads, head_dim), page_size, causal=True,
                   custom_mask=None, sm_scale=sm_scale, window_left=window_left,
                   logits_soft_cap=logits_soft_cap,
                   options={"pos_encoding_mode": pos_encoding_mode, "rope_scale": rope_scale,
                            "rope_theta": rope_theta}, ignored=ignored)


def _table(indptr: Any, indices: Any, last: Any, page_size: int) -> tuple[Any, Any]:
    """Turn pages in compressed rows into lengths and a block table."""
    pages = np.diff(indptr)
    if len(indptr) != len(last) + 1 or indptr[0] != 0 or (pages < 0).any():
        raise errors.InvalidError(f"paged_kv_indptr = {indptr.tolist()} must rise from 0, with one "
                                  f"entry more than the {len(last)} last page lengths")
    if indptr[-1] > len(indices):
        raise errors.OutOfRangeError(f"paged_kv_indptr ends with {indptr[-1]}; there are "
                                     f"{len(indices)} paged_kv_indices")
    for s in np.flatnonzero((pages > 0) & ((last < 1) | (last > page_size))).tolist():
        raise errors.OutOfRangeError(f"paged_kv_last_page_len[{s}] = {last[s]} is not from 1 to "
                                     f"page_size {page_size}")
    table = np.full((len(last), max(int(pages.max(initial=0)), 1)), -1, np.int64)
    for s, count in enumerate(pages.tolist()):
        table[s, :count] = indices[indptr[s]:indptr[s + 1]]
    return np.where(pages > 0, (pages - 1) * page_size + last, 0).astype(np.int32), table


def _masks(mask: Any, q_lens: Any, lens: Any) -> list[Any]:
    """Cut a flattened mask into those of the sequences."""
    if dtypes.is_torch(mask):
        mask = mask.detach().cpu().numpy()
    flat = np.asarray(mask)
    sizes = q_lens.astype(np.int64) * lens
    if flat.shape != (sizes.sum(),):
        raise errors.InvalidError(f"custom_mask has shape {flat.shape}; these sequences need "
                                  f"({sizes.sum()},)")
    parts = np.split(flat.astype(bool), np.cumsum(sizes)[:-1])
    return [part.reshape(q_len, length)
            for part, q_len, length in zip(parts, q_lens, lens, strict=True)]


def _caches(given: Any, layout: str) -> tuple[Array, Array]:
    if isinstance(given, (tuple, list)):
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
