# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Attention over paged caches that belong to the caller, as three other projects call it.

`page_attention` is ejkernel's, `attn_paged` mini_sglang's, `paged_attention_forward` that of
transformers' continuous batching. Caches outside of the arena are copied in as far as they are
read; see `aule.Session.empty`. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import errors
from ._args import int32, integer, lengths, real, said, starts
from ._blocks import Pending, permuted, run_blocks, table_of, unsupported
from ._run import cap_of, scale_of
from ._tensors import Array, array_of
from .flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from .session import Session

MASK_VALUE = -2.381976426469702e38
META = ("cu_seqlens_q", "seq_lens_kv", "block_table", "block_size")  # what attn_paged reads


def submit_page_attention(query: Array, key_cache: Array, value_cache: Array, context_lens: Any,
                          block_tables: Any, /, *, attn_scale: float | None = None,
                          max_context_len: int | None = None, num_splits: int = 0,
                          mask_value: float = MASK_VALUE,
                          attn_logits_soft_cap: float | None = None,
                          pages_per_compute_block: int | None = None,
                          megacore_mode: str | None = None, inline_seq_dim: bool = True,
                          platform: str | None = None, cfg: Any = None,
                          session: Session | None = None) -> Pending:
    """Queue what `page_attention` does."""
    del pages_per_compute_block, megacore_mode, inline_seq_dim  # they schedule a TPU
    if platform is not None and (not isinstance(platform, str) or platform != "auto"):
        raise errors.UnsupportedError(f"platform = {platform!r}: aule computes by Vulkan; leave it "
                                      "out, or say 'auto'")
    unsupported(cfg=(cfg, "it tunes ejkernel's own kernels; leave it out"))
    mask_value = real(mask_value, "mask_value", infinite=True)
    if mask_value == 0:
        raise errors.InvalidError("mask_value = 0 excludes no key; it is -inf or at most -1e30")
    query = array_of(query, "query")
    keys, values = array_of(key_cache, "key_cache"), array_of(value_cache, "value_cache")
    if query.ndim != 3 or keys.ndim != 4 or values.ndim != 4:
        raise errors.InvalidError(
            f"query {tuple(query.shape)}, key_cache {tuple(keys.shape)} and value_cache "
            f"{tuple(values.shape)} must be [seqs, heads, dim] and [blocks, kv_heads, block_size, "
            "dim]")
    order = (0, 2, 1, 3)
    return run_blocks(
        session, query, permuted(keys, order), permuted(values, order),
        cu_seqlens_q=np.arange(query.shape[0] + 1),
        lens=lengths(context_lens, "context_lens", query.shape[0]),
        table=table_of(block_tables, "block_tables"), what="block_tables", mask_value=mask_value,
        max_context_len=0 if max_context_len is None else max_context_len, num_splits=num_splits,
        causal=False, scale=scale_of(attn_scale, "attn_scale"),
        soft_cap=cap_of(attn_logits_soft_cap, "attn_logits_soft_cap"))


def page_attention(query: Array, key_cache: Array, value_cache: Array, context_lens: Any,
                   block_tables: Any, /, **options: Any) -> Any:
    """Compute one decode step over a paged cache; returns [num_seqs, num_heads, head_dim].

    query: [num_seqs, num_heads, head_dim]. key_cache, value_cache: [num_blocks, num_kv_heads,
    block_size, head_dim]. context_lens: [num_seqs]. block_tables: [num_seqs, max_blocks]; entries
    beyond a context are not read.
    attn_scale: None: 1 / sqrt(head_dim). max_context_len: no context may exceed it. num_splits: 0:
    by rule, 1: none. attn_logits_soft_cap: None: none. mask_value: -inf or at most -1e30; excluded
    keys weigh 0. pages_per_compute_block, megacore_mode, inline_seq_dim: taken, and without effect.
    session: None: `aule.default_session()`.

    UnsupportedError: a platform other than "auto", or a cfg. OutOfRangeError: a table entry, or
    max_context_len. Source: ejkernel's page_attention().
    """
    return submit_page_attention(query, key_cache, value_cache, context_lens, block_tables,
                                 **options).wait()


@dataclass
class ForwardMeta:
    """One step of mini_sglang: where its tokens stand, and which blocks their sequences have.

    positions, slot_mapping: [T]. cu_seqlens_q: [n + 1]. seq_lens_kv: [n], this step's tokens
    included. block_table: [n, columns]. block_size: tokens.
    """

    positions: Any
    slot_mapping: Any
    cu_seqlens_q: Any
    seq_lens_kv: Any
    block_table: Any
    block_size: int
    is_prefill: bool = False


def attn_paged(q: Array, K_cache: Array, V_cache: Array, meta: Any, *,
               H_q: int | None = None, H_kv: int | None = None,
               session: Session | None = None, **options: Any) -> Any:
    """Compute causal attention of one step, and return [T, H_q, D], token-major.

    q: [T, H_q, D]. K_cache, V_cache: [num_blocks, block_size, H_kv, D], with this step's tokens.
    meta: a ForwardMeta, or whatever has its cu_seqlens_q, seq_lens_kv, block_table and block_size.
    Query i of sequence s sees its keys 0 to seq_lens_kv[s] - q_len[s] + i, also in a chunk behind
    cached tokens. H_q, H_kv: checked against the shapes. session: None: the default one. options:
    scale, window and others of `aule.Batch.submit`.
    Source: attn_paged_torch() of mini_sglang's lesson L3, section 3.4.
    """
    q, keys = array_of(q, "q"), array_of(K_cache, "K_cache")
    missing = [name for name in META if not hasattr(meta, name)]
    if missing:
        raise errors.InvalidError(f"meta = {said(meta)} has no {', '.join(missing)}; a ForwardMeta "
                                  "has")
    wanted = ("q", q, 3, 1, "H_q", H_q), ("K_cache", keys, 4, 2, "H_kv", H_kv), \
             ("K_cache", keys, 4, 1, "block_size", meta.block_size)
    for name, array, ndim, at, what, value in wanted:
        if array.ndim != ndim or (value is not None and array.shape[at] != integer(value, what)):
            raise errors.InvalidError(f"{name} has shape {tuple(array.shape)}; it needs {ndim} "
                                      f"dimensions and {what} = {value}")
    sums = starts(meta.cu_seqlens_q, "cu_seqlens_q", q)
    return run_blocks(session, q, keys, V_cache, cu_seqlens_q=sums,
                      lens=lengths(meta.seq_lens_kv, "seq_lens_kv", len(sums) - 1),
                      table=table_of(meta.block_table), names=("K_cache", "V_cache"),
                      **options).wait()


def paged_attention_forward(module: Any, q: Array, k: Array, v: Array, attention_mask: Any,
                            cache: Any, cu_seq_lens_q: Any, cu_seq_lens_k: Any, max_seqlen_q: int,
                            max_seqlen_k: Any, block_table: Any = None,
                            **kwargs: Any) -> tuple[Any, None]:
    """Compute a layer of transformers' continuous batching; returns ([T, num_heads, dim], None).

    q: [1, num_heads, T, head_dim]; k, v: [1, num_kv_heads, T, head_dim]. cache: transformers'
    PagedAttentionCache. Without block_table `cache.update` writes k and v and reads all keys, by
    kwargs' read_index and write_index, for the varlen function. With block_table (groups, batch,
    columns) each sequence has one query, and the decode function appends k and v in place.
    attention_mask is not read: attention is causal, in the window of `module.sliding_window`.
    Source: transformers 5.17, integrations/flash_paged.py and its document "Paged attention". 5.23
    hands other arguments to cache.update, and does not take this function.
    """
    del attention_mask
    sliding = getattr(module, "sliding_window", None)
    window = (sliding - 1, 0) if sliding else (-1, -1)
    kind = "sliding_attention" if sliding else "full_attention"
    if isinstance(cu_seq_lens_k, dict):
        cu_seq_lens_k, max_seqlen_k = cu_seq_lens_k[kind], max_seqlen_k[kind]
    options = {"softmax_scale": module.scaling, "causal": True, "window_size": window,
               "s_aux": kwargs.get("s_aux"), "session": kwargs.get("session")}
    if block_table is None:
        k, v = cache.update(key_states=k, value_states=v, layer_idx=module.layer_idx,
                            read_index=kwargs["read_index"], write_index=kwargs["write_index"])
        return flash_attn_varlen_func(permuted(q, (0, 2, 1, 3))[0], k, v, cu_seq_lens_q,
                                      cu_seq_lens_k, max_seqlen_q, max_seqlen_k, **options), None
    group, layer = cache.layer_index_to_group_indices[module.layer_idx]
    blocks = (-1, cache.block_size, cache.num_key_value_heads, cache.head_dim)
    sums = int32(cu_seq_lens_k, "cu_seq_lens_k")
    decode = [permuted(array, (2, 0, 1, 3)) for array in (q, k, v)]
    out = flash_attn_with_kvcache(
        decode[0], cache.key_cache[layer].reshape(blocks), cache.value_cache[layer].reshape(blocks),
        decode[1], decode[2], cache_seqlens=np.diff(sums[:decode[0].shape[0] + 1]) - 1,
        block_table=block_table[group], **options)
    return out[:, 0], None
