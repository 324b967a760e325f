# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""FlashAttention's and FlashInfer's functions by their own arguments, and a group of daemons."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import aule
import numpy as np
import pytest
from aule import errors, flash_attn_varlen_func, flash_attn_with_kvcache, flashinfer
from conftest import drawn, expected

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
HEADS, KV_HEADS, DIM, PAGE = 4, 2, 32, 16
Q_LENS, LENS = [5, 1, 9], [20, 33, 9]
CU_Q, CU_K = [0, 5, 6, 15], [0, 20, 53, 62]
TABLE = np.array([[8, 2, -1], [0, 5, 7], [3, -1, -1]])


@pytest.fixture(scope="module", autouse=True)
def default(session: aule.Session) -> Iterator[aule.Session]:
    """The module's daemon, by the default session."""
    with aule.default_session() as default:
        yield default


def ragged() -> tuple[Any, Any, Any]:
    return drawn(15, HEADS, DIM), drawn(62, KV_HEADS, DIM, seed=1), drawn(62, KV_HEADS, DIM, seed=2)


def paged(*rows: Any, order: tuple[int, ...] = (0, 1, 2, 3)) -> list[Any]:
    """The rows of each sequence in the pages of TABLE; NaN elsewhere."""
    caches = []
    for source in rows:
        cache = np.full((9, PAGE, KV_HEADS, DIM), np.nan, np.float32)
        for s, length in enumerate(LENS):
            for i in range(length):
                cache[TABLE[s][i // PAGE], i % PAGE] = source[CU_K[s] + i]
        caches.append(np.ascontiguousarray(cache.transpose(order)))
    return caches


def expect(out: Any, lse: Any = None, masks: Any = None, **meaning: Any) -> None:
    """`out` [15, heads, dim] is attention of `ragged()` in float64."""
    q, k, v = ragged()
    for s in range(3):
        rows, keys = slice(CU_Q[s], CU_Q[s + 1]), slice(CU_K[s], CU_K[s + 1])
        mask = None if masks is None else masks[s]
        wanted, wanted_lse = expected(q[rows], k[keys], v[keys], mask=mask, **meaning)
        np.testing.assert_allclose(out[rows], wanted, **CLOSE)
        if lse is not None:
            np.testing.assert_allclose(lse[:, rows], wanted_lse.T, **CLOSE)


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"causal": False}), ({"causal": True}, {}),
    ({"causal": True, "window_size": (7, 0), "softmax_scale": 0.4, "softcap": 2.0,
      "alibi_slopes": [0.1, 0.2, 0.3, 0.4], "s_aux": [0.5, -1, 0, 1], "deterministic": True,
      "num_splits": 1},
     {"window": (7, 0), "scale": 0.4, "soft_cap": 2.0, "slopes": [0.1, 0.2, 0.3, 0.4],
      "sinks": [0.5, -1, 0, 1]}),
    ({"causal": True, "attention_chunk": 6}, {"chunk": 6}),
]


@pytest.mark.parametrize(("options", "meaning"), OPTIONS)
def test_varlen_over_rows_and_over_pages_is_as_float64(options: Any, meaning: Any) -> None:
    q, k, v = ragged()
    expect(flash_attn_varlen_func(q, k, v, CU_Q, CU_K, 9, 33, **options), **meaning)
    out, lse = flash_attn_varlen_func(q, *paged(k, v), CU_Q, CU_K, 9, 33, block_table=TABLE,
                                      return_lse=True, **options)
    expect(out, lse, **meaning)


def test_seqused_k_gives_the_lengths_of_paged_keys() -> None:
    q, k, v = ragged()
    expect(flash_attn_varlen_func(q, *paged(k, v), CU_Q, None, 9, 48, causal=True,
                                  seqused_k=LENS, page_table=TABLE))


@pytest.mark.parametrize(("change", "error", "sentence"), [
    ({"dropout_p": 0.1}, errors.UnsupportedError, "dropout_p is given"),
    ({"return_attn_probs": True}, errors.UnsupportedError, "return_lse gives"),
    ({"qv": 1}, errors.UnsupportedError, "qv is given"),
    ({"k_descale": 1}, errors.UnsupportedError, "k_descale is given"),
    ({"attention_chunk": -4}, errors.InvalidError, "attention_chunk = -4"),
    ({"seqused_k": LENS}, errors.UnsupportedError, "without block_table"),
    ({"softmax_scale": 0.0}, errors.InvalidError, "softmax_scale = 0.0"),
    ({"max_seqlen_q": 8}, errors.AuleError, "max_seqlen_q"),
    ({"cu_seqlens_k": [0, 20, 19, 62]}, errors.InvalidError, "must rise from 0"),
    ({"cu_seqlens_k": [0, 20, 53, 63]}, errors.InvalidError, "must rise from 0 to the 62 rows"),
    ({"cu_seqlens_k": None}, errors.InvalidError, "neither cu_seqlens_k nor seqused_k"),
    ({"block_table": TABLE}, errors.InvalidError, "with block_table 4"),
    ({"alibi_slopes": np.arange(12).reshape(3, 4)}, errors.UnsupportedError, "alibi_slopes differ"),
])
def test_what_varlen_cannot_serve_is_refused_by_name(change: Any, error: Any,
                                                     sentence: str) -> None:
    q, k, v = ragged()
    arguments = {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K, "max_seqlen_q": 9,
                 "max_seqlen_k": 33, **change}
    with pytest.raises(error, match=sentence):
        flash_attn_varlen_func(q, k, v, **arguments)


# ---- flash_attn_with_kvcache ----

@pytest.mark.parametrize("in_arena", [False, True])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_three_new_tokens_a_sequence_are_appended_in_place(default: aule.Session, in_arena: bool,
                                                           kind: str) -> None:
    k_cache, v_cache = (drawn(9, PAGE, KV_HEADS, DIM, seed=seed) for seed in (5, 6))
    lens = [15, 0, 30]
    table = np.array([[8, 2, -1], [0, -1, -1], [3, 1, 4]])
    q, k, v = (drawn(3, 3, heads, DIM, seed=heads + n)
               for n, heads in enumerate((HEADS, KV_HEADS, KV_HEADS)))
    given: list[Any] = [q, k, v, k_cache.copy(), v_cache.copy()]
    if kind == "torch":
        torch = pytest.importorskip("torch")
        given = [torch.from_numpy(array) for array in given]
    if in_arena:
        for at in (3, 4):
            array = default.empty(k_cache.shape, kind=kind)
            array[...] = given[at]
            given[at] = array
    out, lse = flash_attn_with_kvcache(given[0], given[3], given[4], given[1], given[2],
                                       cache_seqlens=given[0].new_tensor(lens, dtype=torch.int32)
                                       if kind == "torch" else lens, block_table=table,
                                       causal=True, return_softmax_lse=True)
    assert type(out) is type(given[0]) and tuple(out.shape) == q.shape
    for s, length in enumerate(lens):
        at = np.arange(length + 3)
        at = table[s][at // PAGE] * PAGE + at % PAGE
        for cache, new in ((k_cache, k), (v_cache, v)):
            cache.reshape(-1, KV_HEADS, DIM)[at[length:]] = new[s]
        keys, values = (cache.reshape(-1, KV_HEADS, DIM)[at] for cache in (k_cache, v_cache))
        wanted, wanted_lse = expected(q[s], keys, values)
        np.testing.assert_allclose(np.asarray(out)[s], wanted, **CLOSE)
        np.testing.assert_allclose(np.asarray(lse)[s], wanted_lse.T, **CLOSE)
    np.testing.assert_array_equal(np.asarray(given[3]), k_cache)
    np.testing.assert_array_equal(np.asarray(given[4]), v_cache)


@pytest.mark.parametrize("which", [None, [2, 0]])
def test_a_cache_without_pages_is_appended_in_place(which: Any) -> None:
    k_cache, v_cache = (drawn(3, 24, KV_HEADS, DIM, seed=seed) for seed in (5, 6))
    count = 3 if which is None else 2
    rows = range(3) if which is None else which
    q, k, v = (drawn(count, 1, heads, DIM, seed=n) for n, heads in enumerate((4, 2, 2)))
    lens = [9, 23, 0][:count]
    out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lens,
                                  cache_batch_idx=which)
    for s, row in enumerate(rows):
        np.testing.assert_array_equal(k_cache[row, lens[s]], k[s, 0])
        kept = slice(0, lens[s] + 1)
        np.testing.assert_allclose(out[s], expected(q[s], k_cache[row, kept],
                                                    v_cache[row, kept])[0], **CLOSE)


def test_without_new_keys_the_cache_is_only_read() -> None:
    k_cache, v_cache = (drawn(2, 16, KV_HEADS, DIM, seed=seed) for seed in (5, 6))
    before = k_cache.tobytes(), v_cache.tobytes()
    q = drawn(2, 4, HEADS, DIM)
    for lens, length in ((None, 16), (7, 7)):
        out = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lens, causal=True)
        for s in range(2):
            np.testing.assert_allclose(
                out[s], expected(q[s], k_cache[s, :length], v_cache[s, :length])[0], **CLOSE)
    assert (k_cache.tobytes(), v_cache.tobytes()) == before


@pytest.mark.parametrize("kind", ["numpy", "torch", "arena"])
def test_a_cache_of_any_length_and_with_gaps_is_appended_in_place(default: aule.Session,
                                                                  kind: str) -> None:
    """21 rows are no whole number of blocks, and every third sequence is another's."""
    both = [default.empty((6, 21, KV_HEADS, DIM)) if kind == "arena" else
            np.zeros((6, 21, KV_HEADS, DIM), np.float32) for _ in range(2)]
    for n, cache in enumerate(both):
        cache[...] = drawn(6, 21, KV_HEADS, DIM, seed=5 + n)
    wanted = [cache.copy() for cache in both]
    q, k, v = (drawn(2, 2, heads, DIM, seed=n) for n, heads in enumerate((4, 2, 2)))
    given: list[Any] = [q, *[cache[::3] for cache in both], k, v]
    if kind == "torch":
        torch = pytest.importorskip("torch")
        given = [torch.from_numpy(array) for array in given]
    out = np.asarray(flash_attn_with_kvcache(*given, cache_seqlens=[19, 3], causal=True))
    for s, length in enumerate((19, 3)):
        for cache, new in zip(wanted, (k, v), strict=True):
            cache[3 * s, length:length + 2] = new[s]
        keys, values = (cache[3 * s, :length + 2] for cache in wanted)
        np.testing.assert_allclose(out[s], expected(q[s], keys, values)[0], **CLOSE)
    for cache, right in zip(both, wanted, strict=True):
        np.testing.assert_array_equal(cache, right)


def test_a_slot_that_two_sequences_share_is_refused_in_pages_that_are_copied_by_rows() -> None:
    cache, new = drawn(4, 3, KV_HEADS, DIM), drawn(2, 1, KV_HEADS, DIM)
    before = cache.tobytes()
    with pytest.raises(errors.UnsupportedError, match="slot 3 of a new token is in the block table "
                                                      "2 times"):
        flash_attn_with_kvcache(drawn(2, 1, HEADS, DIM), cache, cache.copy(), new, new,
                                cache_seqlens=[0, 3], block_table=[[1, 0], [1, 2]])
    assert cache.tobytes() == before


def test_ragged_queries_of_version_3_are_served() -> None:
    q, k, v = ragged()
    out, lse = flash_attn_with_kvcache(q, *paged(k, v), cache_seqlens=LENS, page_table=TABLE,
                                       cu_seqlens_q=CU_Q, max_seqlen_q=9, causal=True,
                                       return_softmax_lse=True)
    expect(out, lse)


@pytest.mark.parametrize(("change", "error", "sentence"), [
    ({"rotary_cos": 1}, errors.UnsupportedError, "rotary_cos is given: aule rotates by angles"),
    ({"cache_leftpad": 1}, errors.UnsupportedError, "cache_leftpad is given"),
    ({"qv": 1}, errors.UnsupportedError, "qv is given"),
    ({"cache_seqlens": [24]}, errors.OutOfRangeError, "needs column"),
    ({"cache_seqlens": [-1]}, errors.InvalidError, "must be 1 numbers from 0"),
    ({"cache_batch_idx": [1]}, errors.OutOfRangeError, r"\[1\]: rows of a cache of 1"),
    ({"v": None}, errors.InvalidError, "k and v come together"),
    ({"k": drawn(1, 2, KV_HEADS, DIM)}, errors.UnsupportedError, "one key for each query"),
    ({"block_table": [[0]], "page_table": [[0]]}, errors.InvalidError, "two names of one"),
    ({"block_table": [[0]], "cache_batch_idx": [0]}, errors.InvalidError, "exclude each other"),
    ({"k_cache": drawn(1, 20, KV_HEADS, DIM)}, errors.InvalidError, "have other rows or heads"),
    ({"q": drawn(1, HEADS, DIM)}, errors.InvalidError, "the caches have 4 dimensions"),
])
def test_what_the_cache_function_cannot_serve_is_refused_by_name(change: Any, error: Any,
                                                                 sentence: str) -> None:
    cache = drawn(1, 24, KV_HEADS, DIM)
    new = drawn(1, 1, KV_HEADS, DIM)
    arguments = {"q": drawn(1, 1, HEADS, DIM), "k_cache": cache, "v_cache": cache.copy(), "k": new,
                 "v": new, "cache_seqlens": [3], **change}
    before = cache.tobytes()
    with pytest.raises(error, match=sentence):
        flash_attn_with_kvcache(**arguments)
    assert cache.tobytes() == before


# ---- FlashInfer ----

INDPTR, INDICES, LAST = [0, 2, 5, 6], [8, 2, 0, 5, 7, 3], [4, 1, 9]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_a_planned_prefill_is_as_float64(layout: str) -> None:
    q, k, v = ragged()
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(None, layout)
    wrapper.plan(CU_Q, INDPTR, INDICES, LAST, HEADS, KV_HEADS, DIM, PAGE, causal=True)
    caches = paged(k, v, order=(0, 1, 2, 3) if layout == "NHD" else (0, 2, 1, 3))
    out, lse = wrapper.run(q, tuple(caches), return_lse=True)
    expect(out, lse.T * math.log(2))
    if layout == "HND":
        return
    expect(wrapper.run(q, np.stack(caches, 1), window_left=3), window=(3, -1))
    wrapper.plan(CU_Q, INDPTR, INDICES, LAST, HEADS, KV_HEADS, DIM, PAGE, sm_scale=0.3,
                 logits_soft_cap=2.0)
    expect(wrapper.run(q, tuple(caches)), causal=False, scale=0.3, soft_cap=2.0)
    expect(wrapper.run(q, tuple(caches), q_scale=0.5, v_scale=2.0) / 2, causal=False, scale=0.15,
           soft_cap=2.0)


def test_a_custom_mask_of_a_plan_replaces_causal() -> None:
    q, k, v = ragged()
    masks = [np.random.default_rng(s).random(shape) < 0.6
             for s, shape in enumerate(zip(Q_LENS, LENS, strict=True))]
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper()
    wrapper.plan(CU_Q, INDPTR, INDICES, LAST, HEADS, KV_HEADS, DIM, PAGE, causal=True,
                 custom_mask=np.concatenate([mask.ravel() for mask in masks]))
    expect(wrapper.run(q, tuple(paged(k, v))), masks=masks)


def test_a_planned_decode_is_as_float64_layer_after_layer() -> None:
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper()
    wrapper.plan(INDPTR, INDICES, LAST, HEADS, KV_HEADS, DIM, PAGE)
    for layer in range(2):
        q = drawn(3, HEADS, DIM, seed=60 + layer)
        k, v = (drawn(62, KV_HEADS, DIM, seed=70 + layer + n) for n in range(2))
        out = np.empty_like(q)
        assert wrapper.run(q, tuple(paged(k, v)), out=out) is out
        for s in range(3):
            keys = slice(CU_K[s], CU_K[s + 1])
            np.testing.assert_allclose(out[s:s + 1], expected(q[s:s + 1], k[keys], v[keys])[0],
                                       **CLOSE)


def test_the_older_names_of_run_replace_the_options_of_the_plan() -> None:
    q, k, v = ragged()
    caches = tuple(paged(k, v))
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper()
    with pytest.raises(errors.InvalidError, match=r"call plan\(\) before forward"):
        wrapper.forward(q, caches)
    wrapper.begin_forward(CU_Q, INDPTR, INDICES, LAST, HEADS, KV_HEADS, DIM, PAGE, causal=True)
    out, lse = wrapper.run_return_lse(q, caches)
    expect(out, lse.T * math.log(2))
    expect(wrapper.forward(q, caches), causal=False)
    out, lse = wrapper.forward_return_lse(q, caches, causal=True, sm_scale=0.3, window_left=3,
                                          logits_soft_cap=2.0)
    expect(out, lse.T * math.log(2), scale=0.3, window=(3, -1), soft_cap=2.0)
    expect(wrapper.run(q, caches), scale=0.3, window=(3, -1), soft_cap=2.0)
    wrapper.end_forward()
    with pytest.raises(errors.UnsupportedError, match="rope_theta is given"):
        wrapper.forward(q, caches, rope_theta=1e4)
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper()
    decode.begin_forward(INDPTR, INDICES, LAST, HEADS, KV_HEADS, DIM, PAGE)
    ends = np.array(CU_Q[1:]) - 1  # a decode's query stands last
    for got in (decode.forward(q[ends], caches, q_scale=0.5),
                decode.forward_return_lse(q[ends], caches, q_scale=0.5)[0]):
        whole = np.zeros_like(q)
        for s in range(3):
            keys = slice(CU_K[s], CU_K[s + 1])
            whole[ends[s]] = expected(q[ends[s]][None], k[keys], v[keys],
                                      scale=0.5 * DIM ** -0.5)[0][0]
        np.testing.assert_allclose(got, whole[ends], **CLOSE)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("tokens", [0, 5])
@pytest.mark.parametrize("heads", [1, 3, 4, 6])
def test_parts_of_the_keys_are_merged_as_flashinfer_merges_them(kind: str, tokens: int,
                                                                heads: int) -> None:
    v, s = drawn(tokens, 3, heads, DIM), 9 * drawn(tokens, 3, heads, seed=1)
    s[:2, 1] = -np.inf
    weights = np.exp2(s.astype(np.float64))
    wanted = ((weights[..., None] * v).sum(1) / weights.sum(1)[..., None], np.log2(weights.sum(1)))
    given: tuple[Any, Any] = (v, s)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        given = torch.from_numpy(v), torch.from_numpy(s)
    parts = [(given[0][:, n], given[1][:, n]) for n in range(3)]
    two = flashinfer.merge_state(*parts[0], *parts[1])
    for got in (flashinfer.merge_states(*given), flashinfer.merge_state(*two, *parts[2])):
        assert type(got[0]) is type(given[0])
        for array, right in zip(got, wanted, strict=True):
            np.testing.assert_allclose(array, right, **CLOSE)
    mask = np.arange(tokens) % 2 == 0
    flashinfer.merge_state_in_place(*two, *parts[2], mask=mask)
    flashinfer.merge_state_in_place(*two, *parts[2], mask=~mask)
    for array, right in zip(two, wanted, strict=True):
        np.testing.assert_allclose(array, right, **CLOSE)


@pytest.mark.parametrize(("change", "sentence"), [
    ({"v": drawn(5, HEADS, 16)}, r"v_other is float32 \[5, 4, 32\] and v float32 \[5, 4, 16\]"),
    ({"v_other": drawn(5, HEADS, DIM, dtype=np.float16)}, "v_other is float16"),
    ({"s": drawn(4, HEADS)}, r"s is float32 \[4, 4\]"),
    ({"s_other": drawn(5, HEADS, dtype=np.float64)}, "s_other: dtype float64"),
    ({"s_other": None}, "s_other is a NoneType"),
    ({"mask": [True]}, r"mask is bool \[1\]; it must be bool \[5\]"),
    ({"mask": [1.0] * 5}, "mask is float64"),
    ({"session": 7}, "session = 7"),
])
def test_parts_that_do_not_fit_are_refused_by_name(change: Any, sentence: str) -> None:
    given = {"v": drawn(5, HEADS, DIM), "s": drawn(5, HEADS), "v_other": drawn(5, HEADS, DIM),
             "s_other": drawn(5, HEADS), **change}
    before = given["v"].tobytes()
    with pytest.raises(errors.InvalidError, match=sentence):
        flashinfer.merge_state_in_place(**given)
    assert given["v"].tobytes() == before
    with pytest.raises(errors.InvalidError, match="at least one|parts"):
        flashinfer.merge_states(drawn(5, 0, HEADS, DIM), drawn(5, 0, HEADS))


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def expanded(array: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(array[:1].copy()).expand(array.shape)


@pytest.mark.parametrize("change", [read_only, expanded])
def test_arrays_that_cannot_be_written_are_refused_before_a_run(change: Any) -> None:
    k, v = (drawn(2, PAGE, KV_HEADS, DIM, seed=seed) for seed in (1, 2))
    new = [drawn(1, 1, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    for wrong, name in enumerate(("k_cache", "v_cache")):
        caches = [change(cache.copy()) if n == wrong else cache for n, cache in enumerate((k, v))]
        before = [plain.copy() for plain in map(np.asarray, caches)]
        with pytest.raises(errors.InvalidError, match=f"{name} .*(read-only|share memory)"):
            flash_attn_with_kvcache(new[0], *caches, *new[1:], cache_seqlens=[3],
                                    block_table=[[1]])
        for cache, old in zip(caches, before, strict=True):
            np.testing.assert_array_equal(cache, old)
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper()
    decode.plan([0, 1], [0], [5], HEADS, KV_HEADS, DIM, PAGE)
    wrong_lse = change(drawn(HEADS, 1)).T
    with pytest.raises(errors.InvalidError, match="lse .*(read-only|share memory)"):
        decode.run(new[0][0], (k, v), lse=wrong_lse)
    parts = [drawn(5, HEADS, DIM), drawn(5, HEADS)] * 2
    for wrong, name in enumerate(("v", "s")):
        given = [change(part) if n == wrong else part for n, part in enumerate(parts)]
        with pytest.raises(errors.InvalidError, match=f"{name} .*(read-only|share memory)"):
            flashinfer.merge_state_in_place(*given)


def test_a_wrapper_fills_an_lse_only_of_f32() -> None:
    k, v = (drawn(2, PAGE, KV_HEADS, DIM, seed=seed) for seed in (1, 2))
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper()
    decode.plan([0, 1], [0], [5], HEADS, KV_HEADS, DIM, PAGE)
    q, lse = drawn(1, HEADS, DIM), np.zeros((1, HEADS), np.float32)
    _, wanted = decode.run(q, (k, v), return_lse=True)
    decode.run(q, (k, v), lse=lse)
    np.testing.assert_array_equal(lse, wanted)
    for kind in (np.float16, np.float64, np.int32):
        with pytest.raises(errors.InvalidError, match="lse"):
            decode.run(q, (k, v), lse=np.zeros((1, HEADS), kind))


def test_a_wrapper_takes_buffers_and_backends_and_refuses_what_it_does_not_know() -> None:
    for kind, buffers in ((flashinfer.BatchPrefillWithPagedKVCacheWrapper, 7),
                          (flashinfer.BatchDecodeWithPagedKVCacheWrapper, 5)):
        kind(None, "NHD", False, *[1] * buffers, session=None)
        kind(backend="fa2")
        with pytest.raises(errors.UnsupportedError, match="jit_args is given"):
            kind(None, "NHD", False, *[1] * (buffers + 1))
        with pytest.raises(errors.UnsupportedError, match="jit_kwargs is given"):
            kind(jit_kwargs={"variant": 1})


@pytest.mark.parametrize(("change", "error", "sentence"), [
    ({"pos_encoding_mode": "ROPE_LLAMA"}, errors.UnsupportedError, "pos_encoding_mode = 'ROPE"),
    ({"paged_kv_last_page_len": [4, 17, 9]}, errors.OutOfRangeError,
     r"last_page_len\[1\] = 17 is not from 1 to page_size 16"),
    ({"paged_kv_indptr": [0, 2, 5, 7]}, errors.OutOfRangeError, "there are 6 paged_kv_indices"),
    ({"qo_indptr": [0, 5]}, errors.InvalidError, "qo_indptr has 2 entries for 3 sequences"),
    ({"custom_mask": np.ones(3, bool)}, errors.InvalidError, r"custom_mask has shape \(3,\)"),
    ({"custom_mask": np.zeros(5 * 20 + 33 + 81, np.float32)}, errors.InvalidError,
     "custom_mask has shape .* and is float32; these sequences need bool"),
    ({"page_size": 0}, errors.InvalidError, "page_size = 0"),
    ({"head_dim_vo": 64}, errors.InvalidError, "head_dim_vo 64"),
    ({"window_left": -2}, errors.InvalidError, "window_left = -2"),
    ({"packed_custom_mask": 1}, errors.UnsupportedError, "packed_custom_mask is given"),
    ({"prefix_len_ptr": [1]}, errors.UnsupportedError, "prefix_len_ptr is given"),
    ({"o_data_type": "float16", "non_blocking": True, "q_data_type": "float32"},
     errors.UnsupportedError, "o_data_type is f16 and q is float32"),
    ({"num_kv_heads": 4}, errors.InvalidError, r"do not fit plan\(\)"),
])
def test_a_plan_that_aule_cannot_serve_is_refused_by_name(change: Any, error: Any,
                                                          sentence: str) -> None:
    q, k, v = ragged()
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper()
    with pytest.raises(errors.InvalidError, match=r"call plan\(\)"):
        wrapper.run(q, (k, v))
    arguments = {"qo_indptr": CU_Q, "paged_kv_indptr": INDPTR, "paged_kv_indices": INDICES,
                 "paged_kv_last_page_len": LAST, "num_qo_heads": HEADS, "num_kv_heads": KV_HEADS,
                 "head_dim_qk": DIM, "page_size": PAGE, **change}
    with pytest.raises(error, match=sentence):
        wrapper.plan(**arguments)
        wrapper.run(q, tuple(paged(k, v)))


# ---- a group of daemons ----

@pytest.fixture(scope="module")
def group(session: aule.Session) -> Iterator[aule.Group]:
    """The module's daemon and a second one."""
    with aule.connect(autostart=True, daemon_options=["--cache-folder", "none"]) as other, \
            aule.Group([session.socket or "", other.socket or ""]) as group:
        yield group


def decode(kv_heads: int) -> tuple[Any, ...]:
    caches = [drawn(9, kv_heads, PAGE, DIM, seed=seed) for seed in (5, 6)]
    return drawn(3, 2 * kv_heads, DIM, seed=4), *caches, np.array(LENS), TABLE


@pytest.mark.parametrize(("split", "kv_heads"), [
    (None, 2), (None, 1), ("heads", 3), ("heads", 1), ("sequences", 2)])
def test_two_daemons_give_the_bits_of_one(group: aule.Group, split: Any, kv_heads: int) -> None:
    arguments = decode(kv_heads)
    before = [session.copied.bytes_in for session in group.sessions]
    out = group.page_attention(*arguments, split=split, attn_scale=0.3)
    worked = [session.copied.bytes_in > old
              for session, old in zip(group.sessions, before, strict=True)]
    assert worked == ([False, True] if (split, kv_heads) == ("heads", 1) else [True, True])
    assert out.tobytes() == aule.page_attention(*arguments, attn_scale=0.3).tobytes()


def test_a_group_takes_a_batch_without_sequences_and_cuts_no_gradient(group: aule.Group) -> None:
    query, keys, values, *_ = decode(2)
    for split in ("heads", "sequences"):
        out = group.page_attention(query[:0], keys, values, [], np.zeros((0, 3), int), split=split)
        assert out.shape == (0, HEADS, DIM)
    torch = pytest.importorskip("torch")
    query = torch.from_numpy(query).requires_grad_()
    with pytest.raises(errors.UnsupportedError, match="query requires a gradient"):
        group.page_attention(query, keys, values, np.array(LENS), TABLE)


def test_a_group_refuses_what_it_cannot_split(group: aule.Group) -> None:
    with pytest.raises(errors.InvalidError, match="split = 'layers' is none of heads, sequences"):
        group.page_attention(*decode(2), split="layers")
    with pytest.raises(errors.InvalidError, match="context_lens is int64"):
        group.page_attention(*decode(2)[:3], [*LENS, 9], TABLE, split="sequences")
    with pytest.raises(errors.InvalidError, match="sockets = '/tmp/x'; it is a list of str"):
        aule.Group("/tmp/x")
    with pytest.raises(errors.OutOfRangeError, match="max_context_len"):
        group.page_attention(*decode(2), max_context_len=8)
    with pytest.raises(errors.InvalidError, match="at least one, and each once"):
        aule.Group([])
    with pytest.raises(errors.DaemonGoneError):
        aule.Group([group.sessions[0].socket or "/nonexistent/aule"], timeout=1)
