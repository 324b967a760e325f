# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""The model of attached.py: a small decoder whose kernels use an attached pool in place.

Needs torch for CUDA with Triton, and FlashInfer if that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aule
import torch
import triton
import triton.language as tl

HEADS, KV_HEADS, DIM, VOCAB = 16, 4, 128, 4096
TILE = 64  # keys that a program of the kernel reads at a time


@triton.jit
def _attend(q, layer, table, lengths, out, lse, scale, block_stride, v_offset, columns,
            heads: tl.constexpr, group: tl.constexpr, rows: tl.constexpr, size: tl.constexpr,
            dim: tl.constexpr, tile: tl.constexpr, splits: tl.constexpr):
    """Attend for one row, one KV head and one part of its keys: out [splits, rows, heads, dim]."""
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    part = tl.cdiv(tl.cdiv(length, tile), splits) * tile
    begin = split * part
    end = tl.minimum(begin + part, length)
    own = tl.arange(0, rows)  # heads of this KV head, padded
    dims = tl.arange(0, dim)
    at = (row * heads + kv_head * group + own)[:, None] * dim + dims[None, :]
    query = tl.load(q + at, mask=own[:, None] < group, other=0.0)
    best = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    sums = tl.zeros([rows, dim], tl.float32)
    for first in range(begin, end, tile):
        keys = first + tl.arange(0, tile)
        seen = keys < end
        block = tl.load(table + row * columns + keys // size, mask=seen, other=0).to(tl.int64)
        lies = block * block_stride + kv_head * size * dim + (keys % size) * dim
        key = tl.load(layer + lies[None, :] + dims[:, None], mask=seen[None, :], other=0.0)
        score = tl.where(seen[None, :], tl.dot(query, key) * scale, float("-inf"))
        now = tl.maximum(best, tl.max(score, 1))
        weights = tl.exp(score - now[:, None])
        fade = tl.exp(best - now)
        total = total * fade + tl.sum(weights, 1)
        value = tl.load(layer + v_offset + lies[:, None] + dims[None, :], mask=seen[:, None],
                        other=0.0)
        sums = sums * fade[:, None] + tl.dot(weights.to(value.dtype), value)
        best = now
    some = total > 0.0
    sums = tl.where(some[:, None], sums / tl.where(some, total, 1.0)[:, None], 0.0)
    put = split * tl.num_programs(0) * heads
    tl.store(out + put * dim + at, sums.to(out.dtype.element_ty), mask=own[:, None] < group)
    tl.store(lse + put + row * heads + kv_head * group + own,
             tl.where(some, best + tl.log(tl.where(some, total, 1.0)), float("-inf")),
             mask=own < group)


def attend(q: Any, layer: Any, table: Any, lengths: Any, splits: int = 1) -> Any:
    """Attend for rows q [rows, heads, dim] over a layer of `cache.layers`.

    table [rows, columns]: blocks of each row's keys; lengths [rows]: how many keys it sees.
    """
    count, heads, dim = q.shape
    kv_heads, size = layer.shape[2], layer.shape[3]
    group = heads // kv_heads
    out = torch.empty((splits, *q.shape), device=q.device,
                      dtype=q.dtype if splits == 1 else torch.float32)
    lse = torch.empty((splits, count, heads), device=q.device, dtype=torch.float32)
    _attend[count, kv_heads, splits](
        q, layer, table, lengths, out, lse, dim**-0.5, layer.stride(0), layer.stride(1),
        table.stride(0), heads, group, max(16, triton.next_power_of_2(group)), size, dim, TILE,
        splits, num_warps=4, num_stages=3)
    if splits == 1:
        return out[0]
    return (out * lse.softmax(0)[..., None]).sum(0).to(q.dtype)


def write(layer: Any, slots: Any, k: Any, v: Any) -> None:
    """Put k and v [tokens, kv_heads, dim] into their slots, none of which is negative."""
    size = layer.shape[3]
    block, offset = slots // size, slots % size
    layer[block, 0, :, offset] = k
    layer[block, 1, :, offset] = v


Attention = Callable[[Any, Any], Any]  # of q and a layer of the pool


def triton_attention(tables: Any, row_of: Any, lengths: Any) -> Attention:
    """Attend for rows of any sequences: row i belongs to row_of[i] and sees lengths[i] keys."""
    table = tables.block_table[row_of]
    splits = 8 if len(row_of) < 64 else 1
    return lambda q, layer: attend(q, layer, table, lengths, splits)


class FlashInfer:
    """Decodes one row of each sequence with FlashInfer; its wrapper plans once a step."""

    def __init__(self, heads: int, kv_heads: int, dim: int) -> None:
        import flashinfer

        self.shape = heads, kv_heads, dim
        self.wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"), kv_layout="HND")

    def attention(self, arrays: Any, block_size: int, dtype: Any) -> Attention:
        """Plan a step. `arrays` are those of a plan: on the host, where FlashInfer reads them."""
        indptr, indices, last = (torch.from_numpy(array) for array in (
            arrays.indptr, arrays.indices, arrays.last_page_len))
        self.wrapper.plan(indptr, indices.cuda(), last, *self.shape, block_size,
                          q_data_type=dtype, kv_data_type=dtype)
        run: Attention = self.wrapper.run
        return run


class Model:
    """A small decoder with random weights, the same in each process."""

    def __init__(self, num_layers: int, kernel: str) -> None:
        self.flashinfer = FlashInfer(HEADS, KV_HEADS, DIM) if kernel == "flashinfer" else None
        make = torch.Generator(device="cuda").manual_seed(7)
        width = HEADS * DIM

        def weights(*shape: int) -> Any:
            return torch.randn(shape, device="cuda", generator=make,
                               dtype=torch.float16) * shape[-1] ** -0.5

        self.embedding = weights(VOCAB, width) * width**0.5
        self.qkv = [weights(width + 2 * KV_HEADS * DIM, width) for _ in range(num_layers)]
        self.out = [weights(width, width) for _ in range(num_layers)]

    def __call__(self, cache: aule.Cache, plan: Any, tokens: Any) -> list[int]:
        """Compute a plan's rows; returns the token that follows each sequence."""
        tables = plan.tables()
        counts = tables.cu_seqlens_q.diff()
        row_of = torch.repeat_interleave(torch.arange(len(counts), device="cuda"), counts)
        behind = tables.cu_seqlens_q[1:][row_of] - torch.arange(len(tokens), device="cuda")
        lengths = (tables.cache_seqlens[row_of] - behind + 1).int()  # a row sees itself
        if self.flashinfer and len(tokens) == len(counts):
            own = self.flashinfer.attention(plan.arrays, cache.block_size, self.embedding.dtype)
        else:
            own = triton_attention(tables, row_of, lengths)
        fresh = tables.slot_mapping >= 0
        slots = tables.slot_mapping[fresh]
        x = self.embedding[tokens]
        for layer, qkv, out in zip(cache.layers, self.qkv, self.out, strict=True):
            normal = torch.nn.functional.rms_norm(x, x.shape[-1:])
            q, k, v = (normal @ qkv.T).view(len(tokens), -1, DIM).split(
                [HEADS, KV_HEADS, KV_HEADS], 1)
            write(layer, slots, k[fresh], v[fresh])
            x = x + own(q.contiguous(), layer).flatten(1) @ out.T
        plan.wrote()
        last = torch.nn.functional.rms_norm(x[tables.cu_seqlens_q[1:].long() - 1], x.shape[-1:])
        return (last @ self.embedding.T).argmax(-1).tolist()
