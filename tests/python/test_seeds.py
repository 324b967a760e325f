# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""The worked examples of the documents that aule grew from, by their own names and arguments.

Tests named as in the first document are its listing; shapes are smaller, and with AULE_TEST_LONG=1
its own. The first document makes its mixed lengths by torch.cat of different shapes, which torch
refuses; here they are `kv_lens` of one padded tensor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import aule
import numpy as np
import pytest
from aule import errors, flash_attention, page_attention
from aule.paged import ForwardMeta, attn_paged, paged_attention_forward
from aule.vulkan import Aule, BlockPool, BlockTable
from conftest import LONG, drawn, expected

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
SHRINK = 1 if LONG else 32  # of the first document's lengths
THRESHOLD = 2048 // SHRINK
HEADS, DIM = (8, 64) if LONG else (4, 32)


@pytest.fixture(scope="module", autouse=True)
def default(session: aule.Session) -> Iterator[aule.Session]:
    """The module's daemon, by the default session."""
    with aule.default_session(paged_threshold=THRESHOLD) as default:
        yield default


def dense(batch: int, length: int) -> tuple[Any, Any, Any]:
    return tuple(drawn(batch, HEADS, length // SHRINK, DIM, seed=seed)
                 for seed in (42, 43, 44))  # type: ignore[return-value]


def expect_dense(out: Any, q: Any, k: Any, v: Any, lens: Any = None, **options: Any) -> None:
    for b in range(len(q)):
        n = q.shape[2] if lens is None else lens[b]
        parts = [x[b, :, :n].transpose(1, 0, 2) for x in (q, k, v)]
        np.testing.assert_allclose(out[b, :, :n].transpose(1, 0, 2),
                                   expected(*parts, **options)[0], **CLOSE)
        assert not out[b, :, n:].any()


# ---- PagedAttention design for aule ----

def test_block_pool_allocation() -> None:
    with BlockPool(blocks=512) as pool:
        blocks = [pool.allocate() for _ in range(100)]
        assert len(pool.free_blocks) == 412
        assert pool.cache.state()["leased_blocks"] >= 512  # the daemon's, not only numbers
        for block in blocks:
            pool.free(block)
        assert len(pool.free_blocks) == 512
        with pytest.raises(errors.NotHeldError, match=f"block {blocks[0]} is not allocated"):
            pool.free(blocks[0])


def test_block_table_indexing() -> None:
    table = BlockTable(batch=4, max_blocks=64)
    table.set(request_id=0, logical_block=5, physical_block=123)
    assert table.get(request_id=0, logical_block=5) == 123
    assert table.get(request_id=0, logical_block=6) == -1
    with pytest.raises(errors.OutOfRangeError, match=r"table\[4, 0\] lies outside of \[4, 64\]"):
        table.get(request_id=4, logical_block=0)


def test_paged_vs_contiguous_correctness() -> None:
    q, k, v = dense(2, 4096)
    with Aule() as one:
        contiguous = one.attention(q, k, v, force_contiguous=True)
        assert one.path == "contiguous"
        paged = one.attention(q, k, v, force_paged=True)
        assert one.path == "paged"
        with pytest.raises(errors.InvalidError, match="exclude each other"):
            one.attention(q, k, v, force_paged=True, force_contiguous=True)
    assert contiguous.tobytes() == paged.tobytes()
    if not LONG:
        expect_dense(paged, q, k, v)


def test_variable_length_batch() -> None:
    q, k, v = dense(3, 4096)
    lens = [length // SHRINK for length in (1024, 2048, 4096)]
    out = flash_attention(q, k, v, q_lens=lens, kv_lens=lens)
    assert out.shape == q.shape
    if not LONG:
        expect_dense(out, q, k, v, lens)


def test_paged_memory_efficiency() -> None:
    """A pool has memory for the tokens of each sequence, not for the longest of all."""
    lens = [1024, 2048, 4096, 1024]
    with BlockPool(blocks=1, session=aule.default_session()) as pool:
        for length in lens:
            for _ in range(-(-length // pool.block_size)):
                pool.allocate()
        needed = sum(lens) // pool.block_size
        assert pool.total_blocks - len(pool.free_blocks) == needed
        assert needed * 2 == len(lens) * max(lens) // pool.block_size


def test_paged_throughput() -> None:
    """Prints what a batch of 8 takes each way, and compares the outputs."""
    q, k, v = dense(8, 2048)
    took, outs = {}, {}
    with Aule() as one:
        for way in ("contiguous", "paged", "contiguous", "paged"):
            start = time.perf_counter()
            outs[way] = one.attention(q, k, v, **{f"force_{way}": True})
            took[way] = min(took.get(way, 1e9), time.perf_counter() - start)
    print(took)
    assert (outs["paged"] == outs["contiguous"]).all()


def test_block_pool_growth() -> None:
    with BlockPool(blocks=512, max_blocks=2048) as pool:
        blocks = [pool.allocate() for _ in range(1500)]
        assert pool.total_blocks == 1536
        assert len(set(blocks)) == 1500
        for _ in range(2048 - 1500):
            pool.allocate()
        with pytest.raises(errors.NoBlocksError, match="all max_blocks = 2048"):
            pool.allocate()


def test_fragmentation_handling() -> None:
    with BlockPool(blocks=512) as pool:
        for _ in range(1000):
            blocks = [pool.allocate() for _ in range(100)]
            for block in blocks[::2]:
                pool.free(block)
            for block in blocks[1::2]:
                pool.free(block)
        assert len(pool.free_blocks) == 512


@pytest.mark.parametrize("causal", [True, False])
def test_flash_attention_is_that_of_float64(causal: bool) -> None:
    q, k, v = (drawn(2, heads, 40, 32, seed=heads) for heads in (4, 2, 2))
    expect_dense(flash_attention(q, k, v, causal, 0.3), q, k, v, causal=causal, scale=0.3)


def test_the_threshold_decides_the_way() -> None:
    with Aule(paged_threshold=24) as one:
        for length, way in ((24, "contiguous"), (25, "paged")):
            q = drawn(1, 2, length, 32)
            expect_dense(one.attention(q, q, q), q, q, q)
            assert one.path == way


def test_torch_tensors_come_back_as_torch() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(drawn(1, 2, 20, 32, seed=seed)) for seed in range(3))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(flash_attention(q, k, v), wanted, rtol=1e-5, atol=1e-5)


def test_a_batch_over_a_pools_blocks_reads_what_its_table_says() -> None:
    with BlockPool(blocks=8, head_dim=32, dtype="f32", block_size=16) as pool:
        table = BlockTable(batch=1, max_blocks=2)
        for column in range(2):
            table.set(0, column, pool.allocate())
        q, k, v = (drawn(20, 1, 32, seed=seed) for seed in range(3))
        slots = [table.get(0, i // 16) * 16 + i % 16 for i in range(20)]
        batch = pool.cache.batch(cu_seqlens_q=[0, 20], seq_lens_kv=[20], block_table=table.array,
                                 slot_mapping=slots)
        np.testing.assert_allclose(batch.attend(0, q, k, v), expected(q, k, v)[0], **CLOSE)


# ---- ejkernel: page_attention ----

LENS = [32, 24]
TABLES = [[3, 7, 0], [1, 5, 0]]


def pages(lens: Any = LENS, tables: Any = TABLES, blocks: int = 8,
          size: int = 16) -> tuple[Any, Any, Any, list[Any]]:
    """Query, caches with NaN where no sequence is, and the K and V of each sequence."""
    query = drawn(len(lens), 4, 32, seed=9)
    caches = [np.full((blocks, 2, size, 32), np.nan, np.float32) for _ in range(2)]
    rows = []
    for s, length in enumerate(lens):
        parts = [drawn(length, 2, 32, seed=10 * s + which) for which in range(2)]
        for cache, part in zip(caches, parts, strict=True):
            for i in range(length):
                cache[tables[s][i // size], :, i % size] = part[i]
        rows.append(parts)
    return query, caches[0], caches[1], rows


def expect_pages(out: Any, query: Any, rows: list[Any], **options: Any) -> None:
    assert out.shape == query.shape
    for s, (k, v) in enumerate(rows):
        np.testing.assert_allclose(out[s:s + 1], expected(query[s:s + 1], k, v, **options)[0],
                                   **CLOSE)


@pytest.mark.parametrize(("options", "meaning"), [
    ({}, {}), ({"attn_scale": 0.5}, {"scale": 0.5}), ({"max_context_len": 8192}, {}),
    ({"num_splits": 4, "max_context_len": 8192}, {}), ({"mask_value": -np.inf}, {}),
    ({"attn_logits_soft_cap": 50.0, "attn_scale": 6.0}, {"soft_cap": 50.0, "scale": 6.0}),
    ({"pages_per_compute_block": 4, "megacore_mode": "batch", "inline_seq_dim": False,
      "platform": "auto", "cfg": None}, {}),
])
def test_page_attention_reads_32_and_24_keys(options: Any, meaning: Any) -> None:
    query, keys, values, rows = pages()
    out = page_attention(query, keys, values, np.array(LENS), np.array(TABLES), **options)
    expect_pages(out, query, rows, **meaning)


def test_pages_in_the_arena_are_used_in_place(default: aule.Session) -> None:
    query, keys, values, rows = pages()
    caches = []
    for given in (keys, values):
        caches.append(default.empty(given.shape))
        caches[-1][...] = given
    before = default.copied.bytes_in
    out = page_attention(query, *caches, LENS, np.array(TABLES))
    assert default.copied.bytes_in - before == query.nbytes
    expect_pages(out, query, rows)


def test_four_splits_of_a_long_context_are_as_float64() -> None:
    lens, tables = [1024, 600], np.random.default_rng(1).permutation(128).reshape(2, 64)
    query, keys, values, rows = pages(lens, tables, 128)
    for splits in (0, 1, 4):
        expect_pages(page_attention(query, keys, values, lens, tables, num_splits=splits),
                     query, rows)


@pytest.mark.parametrize(("change", "error", "sentence"), [
    ({"block_tables": [[3, 8, 0], [1, 5, 0]]}, errors.OutOfRangeError,
     r"block_tables\[0\]\[1\] = 8 is no block; there are 8"),
    ({"block_tables": [[3], [1]]}, errors.OutOfRangeError, "block_tables has 1 columns"),
    ({"max_context_len": 31}, errors.AuleError, "max_context_len"),
    ({"mask_value": -1.0}, errors.InvalidError, "mask_value"),
    ({"mask_value": 0.0}, errors.InvalidError, "mask_value = 0 excludes no key"),
    ({"attn_scale": 0.0}, errors.InvalidError, "attn_scale = 0.0"),
    ({"platform": "triton"}, errors.UnsupportedError, "platform = 'triton'"),
    ({"cfg": object()}, errors.UnsupportedError, "cfg is given"),
])
def test_what_page_attention_cannot_serve_is_refused_by_name(change: Any, error: Any,
                                                             sentence: str) -> None:
    query, keys, values, _ = pages()
    tables = np.array(change.pop("block_tables", TABLES))
    with pytest.raises(error, match=sentence):
        page_attention(query, keys, values, LENS, tables, **change)


# ---- mini_sglang: lesson L3 ----

def attn_paged_torch(q: Any, keys: Any, values: Any, meta: ForwardMeta) -> Any:
    """The lesson's reference loop, with the keys that its section 3.2 defines."""
    outputs = []
    for s in range(len(meta.seq_lens_kv)):
        rows = slice(meta.cu_seqlens_q[s], meta.cu_seqlens_q[s + 1])
        length = meta.seq_lens_kv[s]
        blocks = meta.block_table[s][:-(-length // meta.block_size)]
        parts = [cache[blocks].reshape(-1, *cache.shape[2:])[:length] for cache in (keys, values)]
        outputs.append(expected(q[rows], *parts)[0])
    return np.concatenate(outputs)


@pytest.mark.parametrize(("cu_seqlens_q", "seq_lens_kv", "block_table"), [
    ([0, 20], [20], [[4, 1, -1]]), ([0, 1], [33], [[5, 2, 9]]),
    ([0, 1, 18], [40, 30], [[7, 0, 3], [8, 6, 0]]),
])
def test_each_metadata_scenario_gives_what_the_reference_loop_gives(
        cu_seqlens_q: Any, seq_lens_kv: Any, block_table: Any) -> None:
    tokens = cu_seqlens_q[-1]
    keys, values = (drawn(12, 16, 2, 32, seed=seed) for seed in (1, 2))
    meta = ForwardMeta(None, None, cu_seqlens_q, seq_lens_kv, np.array(block_table), 16)
    q = drawn(tokens, 4, 32)
    out = attn_paged(q, keys, values, meta, H_q=4, H_kv=2)
    np.testing.assert_allclose(out, attn_paged_torch(q, keys, values, meta), **CLOSE)
    assert out.reshape(tokens, -1).base is not None  # token-major, as the lesson's fix needs
    with pytest.raises(errors.InvalidError, match="H_kv = 4"):
        attn_paged(q, keys, values, meta, H_q=4, H_kv=4)


def test_a_prefill_and_twenty_decode_steps_give_what_one_long_prefill_gives() -> None:
    q, k, v = (drawn(30, heads, 32, seed=heads) for heads in (4, 2, 2))
    caches = [np.zeros((8, 16, 2, 32), np.float32) for _ in range(2)]
    table = np.array([[6, 2]], np.int32)
    slots = table[0][np.arange(30) // 16] * 16 + np.arange(30) % 16
    outputs = []
    for start, stop in [(0, 10), *[(i, i + 1) for i in range(10, 30)]]:
        for cache, new in zip(caches, (k, v), strict=True):
            cache.reshape(-1, 2, 32)[slots[start:stop]] = new[start:stop]  # the lesson's set_kv
        meta = ForwardMeta(np.arange(start, stop), slots[start:stop], [0, stop - start], [stop],
                           table, 16, start == 0)
        outputs.append(attn_paged(q[start:stop], *caches, meta))
    np.testing.assert_allclose(np.concatenate(outputs), expected(q, k, v)[0], **CLOSE)


# ---- transformers: paged attention of continuous batching ----

class PagedCache:
    """What `paged_attention_forward` uses of transformers' PagedAttentionCache, for one layer."""

    block_size, num_key_value_heads, head_dim = 32, 2, 32

    def __init__(self, blocks: int) -> None:
        self.layer_index_to_group_indices = {0: (0, 0)}
        self.key_cache, self.value_cache = ([drawn(blocks * 32, 2, 32, seed=seed)]
                                            for seed in (21, 22))

    def update(self, key_states: Any, value_states: Any, layer_idx: int, read_index: Any,
               write_index: Any) -> tuple[Any, Any]:
        for cache, new in ((self.key_cache, key_states), (self.value_cache, value_states)):
            cache[0][write_index[0]] = new[0].transpose(1, 0, 2)
        return self.key_cache[0][read_index[0]], self.value_cache[0][read_index[0]]


def heads_first(rows: Any) -> Any:
    return rows.transpose(1, 0, 2)[None]


@pytest.mark.parametrize("window", [None, 6])
def test_varlen_q_10_3_1_over_k_0_1_7_and_new_keys(window: int | None) -> None:
    """The document's cached keys 0, 1 and 7; update() appends those of the queries."""
    cached, fresh = [0, 1, 7], [10, 3, 1]
    cache = PagedCache(3)
    module = SimpleNamespace(layer_idx=0, scaling=0.2, sliding_window=window)
    q, k, v = (drawn(14, heads, 32, seed=30 + i) for i, heads in enumerate((4, 2, 2)))
    read = [np.concatenate([32 * s + np.arange(cached[s] + fresh[s]) for s in range(3)])]
    write = [np.concatenate([32 * s + cached[s] + np.arange(fresh[s]) for s in range(3)])]
    cu_k = np.array([0, 10, 14, 22])
    out, none = paged_attention_forward(
        module, *map(heads_first, (q, k, v)), None, cache, np.array([0, 10, 13, 14]),
        {"full_attention": cu_k, "sliding_attention": cu_k}, 10,
        {"full_attention": 10, "sliding_attention": 10}, read_index=read, write_index=write)
    assert none is None and out.shape == (14, 4, 32)
    for s, rows in enumerate((slice(0, 10), slice(10, 13), slice(13, 14))):
        kv = [x[0][32 * s:32 * s + cached[s] + fresh[s]] for x in (cache.key_cache,
                                                                  cache.value_cache)]
        np.testing.assert_array_equal(kv[0][cached[s]:], k[rows])
        meaning = {"window": (window - 1, 0)} if window else {}
        np.testing.assert_allclose(out[rows], expected(q[rows], *kv, scale=0.2, **meaning)[0],
                                   **CLOSE)


def test_varlen_without_new_keys_and_the_first_sees_no_key() -> None:
    """The document's own numbers: r0 has ten queries and no key."""
    q, k, v = drawn(14, 4, 32), drawn(8, 2, 32, seed=1), drawn(8, 2, 32, seed=2)
    out, lse = aule.flash_attn_varlen_func(q, k, v, [0, 10, 13, 14], [0, 0, 1, 8], 10, 7,
                                           causal=True, return_lse=True)
    assert not out[:10].any() and np.isneginf(lse[:, :10]).all()
    np.testing.assert_allclose(out[10:13], expected(q[10:13], k[:1], v[:1])[0], **CLOSE)
    np.testing.assert_allclose(out[13:], expected(q[13:], k[1:], v[1:])[0], **CLOSE)


def test_decode_30_32_70_appends_in_place() -> None:
    lens, table = [30, 32, 70], np.array([[2, -1, -1, -1], [0, 1, -1, -1], [3, 5, 6, -1]])
    cache = PagedCache(7)
    before = [x[0].copy() for x in (cache.key_cache, cache.value_cache)]
    module = SimpleNamespace(layer_idx=0, scaling=32 ** -0.5)
    q, k, v = (drawn(3, heads, 32, seed=40 + i) for i, heads in enumerate((4, 2, 2)))
    out, _ = paged_attention_forward(module, *map(heads_first, (q, k, v)), None, cache,
                                     np.arange(4), np.array([0, 31, 64, 135]), 1, 71, table[None])
    slots = [2 * 32 + 30, 1 * 32, 6 * 32 + 6]
    for old, stored, new in zip(before, (cache.key_cache, cache.value_cache), (k, v), strict=True):
        old[slots] = new
        np.testing.assert_array_equal(stored[0], old)  # three rows are new
    for s, length in enumerate(lens):
        at = [table[s][i // 32] * 32 + i % 32 for i in range(length + 1)]
        np.testing.assert_allclose(out[s:s + 1],
                                   expected(q[s:s + 1], before[0][at], before[1][at])[0], **CLOSE)


def test_decode_without_the_second_block_is_refused_by_name() -> None:
    table = np.array([[2, -1], [0, -1]])
    q = drawn(2, 1, 2, 32)
    cache = drawn(7, 32, 2, 32)
    with pytest.raises(errors.OutOfRangeError, match=r"needs block_table\[1\]\[1\] = -1"):
        aule.flash_attn_with_kvcache(q, cache, cache.copy(), q, q, cache_seqlens=[30, 32],
                                     block_table=table)


# ---- PagedAttention v4: ragged batching ----

def test_prompts_of_36_37_and_36_tokens_flatten_to_109_tokens_without_padding() -> None:
    """build_ragged_metadata(): prefill of all prompts in one call, then a token of each."""
    lens, size = np.array([36, 37, 36]), 16
    table = np.random.default_rng(3).permutation(9).reshape(3, 3)
    seq_id_flat = np.repeat(np.arange(3), lens)
    position_flat = np.concatenate([np.arange(length) for length in lens])
    slot_mapping_flat = table[seq_id_flat, position_flat // size] * size + position_flat % size
    assert len(seq_id_flat) == 109
    q, k, v = (drawn(112, heads, 32, seed=50 + i) for i, heads in enumerate((4, 2, 2)))
    caches = [np.zeros((9, size, 2, 32), np.float32) for _ in range(2)]
    for cache, new in zip(caches, (k, v), strict=True):
        cache.reshape(-1, 2, 32)[slot_mapping_flat] = new[:109]
    cu = np.concatenate([[0], np.cumsum(lens)])
    out = attn_paged(q[:109], *caches, ForwardMeta(position_flat, slot_mapping_flat, cu, lens,
                                                   table, size, True))
    for s in range(3):
        rows = seq_id_flat == s
        np.testing.assert_allclose(out[np.flatnonzero(rows)],
                                   expected(*(x[:109][rows] for x in (q, k, v)))[0], **CLOSE)
    step = aule.flash_attn_with_kvcache(q[109:, None], *caches, k[109:, None], v[109:, None],
                                        cache_seqlens=lens, block_table=table, causal=True)
    for s in range(3):
        rows = np.append(np.flatnonzero(seq_id_flat == s), 109 + s)
        np.testing.assert_allclose(step[s], expected(q[109 + s:110 + s], k[rows], v[rows])[0],
                                   **CLOSE)
