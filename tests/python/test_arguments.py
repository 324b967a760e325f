# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Drawn arguments of each known name: the result is float64's, or an AuleError names the argument.

A case draws right arguments, and then one of them is replaced by a value of another type, shape or
size. A call that succeeds all the same must have computed what its arguments say.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import aule
import numpy as np
import pytest
from aule import errors, flashinfer
from conftest import LONG, drawn, expected
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

HEADS, KV_HEADS, DIM = 4, 2, 32
CLOSE = {"float32": 2e-5, "float16": 6e-3}
# Where a sentence has another word for an argument: that of a tensor that does not fit it, or that
# of the whole of which it is a part.
ALSO = {
    "window_size": ["window"], "s_aux": ["sinks"], "softcap": ["soft_cap"],
    "cache": ["paged_kv_cache"], "timeout": ["run"], "indptr": ["last_page_len"],
    "q": ["cache_seqlens"], "head_dim": ["head_dim_qk"],
    "block_table": ["cache_seqlens"], "tokens": ["q"], "query": ["context_lens"],
    "cu_seqlens_q": ["cu_seqlens_k", "seqused_k", "seq_lens_kv"]}

WILD: list[Any] = [
    None, True, False, -1, 0, 1, 3, 2**31 - 1, 2**31, -2**31 - 1, 2**32, 2**32 + 3, 2**63, 2**64,
    0.5, 4.0, -1.5, math.nan, math.inf, -math.inf, 1e-60, 1e300, "x", "", b"x", np.int64(3),
    np.uint64(2**64 - 1), np.float32(0.5), np.bool_(True), [], [1], (1, 2), (-1, -1), (3, 0), [[1]],
    {}, object(), np.zeros(0), np.zeros((0, HEADS, DIM), np.float32), np.array(["a"]),
    np.array([2**40]), np.zeros(3, complex), np.arange(3)[::-1], torch.tensor(3),
    torch.tensor([1.5]), torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2).to_sparse(),
    torch.zeros(3, HEADS, DIM, device="meta"), torch.zeros(3, HEADS, DIM, requires_grad=True),
    np.ma.masked_array(np.zeros((3, HEADS, DIM), np.float32), True)]

# What may become of an array of integers or of numbers.
CHANGES: list[Callable[[Any], Any]] = [
    lambda a: a.tolist(), lambda a: a[::-1], lambda a: a[1:], lambda a: np.concatenate([a, a[-1:]]),
    lambda a: a[None], lambda a: a.astype(np.int8), lambda a: a.astype(np.uint64),
    lambda a: a.astype(np.int64) + 2**32, lambda a: a.astype(np.int64) - 2**31,
    lambda a: a.astype(np.float64), lambda a: a.astype(np.float16), lambda a: a.astype(bool),
    lambda a: a.astype(object), lambda a: np.repeat(a, 2)[::2], torch.tensor,
    lambda a: torch.tensor(a)[None], lambda a: a.astype(">i4"), lambda a: iter(a.tolist()),
    np.asfortranarray, np.zeros_like, lambda a: a.swapaxes(0, -1)]


@pytest.fixture(scope="module", autouse=True)
def default(session: aule.Session) -> Iterator[aule.Session]:
    """The module's daemon, by the default session."""
    with aule.default_session() as default:
        yield default


# ---- what arguments mean ----

def whole(value: Any) -> int:
    """Return an integer as aule must read it."""
    assert not isinstance(value, (bool, np.bool_)), value
    return operator.index(value)


def wholes(values: Any) -> list[int]:
    array = values.numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    assert array.ndim == 1 and (array.size == 0 or array.dtype.kind in "iuO"), values
    return [int(value) for value in array]


def plain(values: Any) -> Any:
    return values.detach().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def number(value: Any, default: float) -> float:
    assert not isinstance(value, (bool, str)), value
    return default if value is None else float(np.asarray(value).reshape(()))


def meaning(given: dict[str, Any], **names: str) -> dict[str, Any]:
    """Return options for `expected` from those of a call; names: theirs in the call."""
    found: dict[str, Any] = {"causal": bool(given.get("causal", False))}
    window = given.get(names.get("window", "window"))
    if window is not None:
        left, right = window if isinstance(window, tuple) else (window, -1)
        found["window"] = tuple(-1 if side is None else whole(side) for side in (left, right))
    found["soft_cap"] = number(given.get(names.get("soft_cap", "soft_cap")), 0.0)
    found["scale"] = number(given.get(names.get("scale", "scale")), DIM ** -0.5)
    found["chunk"] = whole(given.get("attention_chunk", 0))
    for name, option in (("sinks", names.get("sinks", "sinks")), ("slopes", "alibi_slopes")):
        if given.get(option) is not None:
            found[name] = plain(given[option]).reshape(-1, HEADS)[0]
    return found


def close(out: Any, q: Any, sequences: list[tuple[int, int, Any, Any]], **options: Any) -> None:
    """`out` [T, heads, dim] has what each sequence (first row, end, keys, values) gives."""
    out, q = plain(out), plain(q)
    assert out.shape == q.shape and out.dtype == q.dtype
    for begin, end, keys, values in sequences:
        wanted, _ = expected(q[begin:end], keys, values, **options)
        atol = CLOSE[q.dtype.name] * max(1.0, np.abs(wanted).max(initial=0))
        np.testing.assert_allclose(out[begin:end], wanted, rtol=CLOSE[q.dtype.name], atol=atol)


def rows_of(cache: Any, table: Any, length: int) -> Any:
    """Return the first rows of a sequence in pages."""
    at = np.arange(length)
    size = max(cache.shape[1], 1)
    return plain(cache)[plain(table).astype(np.int64)[at // size], at % size]


# ---- what is drawn ----

def numbers(draw: Any, *shape: int) -> Any:
    array = drawn(*shape, seed=draw(st.integers(0, 99)))
    kind = draw(st.sampled_from(["plain", "heads first", "torch", "turned", "arena"]))
    if kind == "heads first" and len(shape) > 1:
        return np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1)
    if kind == "torch":
        return torch.from_numpy(array)
    if kind == "turned":
        return np.ascontiguousarray(array[::-1])[::-1]
    if kind == "arena":
        inside = aule.default_session().empty(shape)
        inside[...] = array
        return inside
    return array


def one_kind(draw: Any, *shapes: tuple[int, ...]) -> list[Any]:
    arrays = [numbers(draw, *shape) for shape in shapes]
    if any(isinstance(array, torch.Tensor) for array in arrays):
        return [torch.from_numpy(np.ascontiguousarray(plain(array))) for array in arrays]
    return arrays


def sums(lens: list[int]) -> Any:
    return np.cumsum([0, *lens]).astype(np.int32)


def drawn_lens(draw: Any) -> tuple[list[int], list[int]]:
    count = draw(st.integers(0, 3))
    return ([draw(st.integers(0, 5)) for _ in range(count)],
            [draw(st.integers(0, 40)) for _ in range(count)])


def pages(draw: Any, lens: list[int], size: int, spare: int = 0) -> tuple[int, Any]:
    """Return a number of pages, and a table in which each sequence has its own."""
    columns = max([-(-length // size) for length in lens], default=0) + spare
    total = columns * len(lens) + draw(st.integers(0, 2))
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(total)
    return total, order[:columns * len(lens)].reshape(len(lens), columns).astype(np.int32)


# Few together, because each combination has shaders of its own.
OPTIONS: list[dict[str, Any]] = [
    {}, {"causal": True}, {"window_size": (3, 0), "softcap": 2.0, "softmax_scale": 0.3},
    {"causal": True, "attention_chunk": 7, "s_aux": np.array([0, 1, -1, 2.0]), "window_size": None,
     "alibi_slopes": np.array([0.1, 0.2, 0.3, 0.4])}]


def flash_options(draw: Any) -> dict[str, Any]:
    return {"causal": False, "window_size": (-1, -1), "softcap": 0.0, "softmax_scale": None,
            "attention_chunk": 0, "num_splits": 0, "s_aux": None, "alibi_slopes": None,
            **draw(st.sampled_from(OPTIONS))}


FLASH = {"window": "window_size", "soft_cap": "softcap", "scale": "softmax_scale",
         "sinks": "s_aux"}


def varlen(draw: Any) -> tuple[Any, dict[str, Any], Any]:
    q_lens, lens = drawn_lens(draw)
    q, k, v = one_kind(draw, (sum(q_lens), HEADS, DIM), (sum(lens), KV_HEADS, DIM),
                       (sum(lens), KV_HEADS, DIM))
    given = {"q": q, "k": k, "v": v, "cu_seqlens_q": sums(q_lens), "cu_seqlens_k": sums(lens),
             "max_seqlen_q": max(q_lens, default=0), "max_seqlen_k": max(lens, default=0),
             **flash_options(draw)}

    def check(given: dict[str, Any], out: Any) -> None:
        begin, keys = wholes(given["cu_seqlens_q"]), wholes(given["cu_seqlens_k"])
        k, v = plain(given["k"]), plain(given["v"])
        close(out, given["q"], [(begin[s], begin[s + 1], k[keys[s]:keys[s + 1]],
                                 v[keys[s]:keys[s + 1]]) for s in range(len(begin) - 1)],
              **meaning(given, **FLASH))
    return aule.flash_attn_varlen_func, given, check


def varlen_paged(draw: Any) -> tuple[Any, dict[str, Any], Any]:
    q_lens, lens = drawn_lens(draw)
    size = draw(st.sampled_from([1, 3, 8, 16]))
    total, table = pages(draw, lens, size)
    q, k, v = one_kind(draw, (sum(q_lens), HEADS, DIM), (total, size, KV_HEADS, DIM),
                       (total, size, KV_HEADS, DIM))
    given = {"q": q, "k": k, "v": v, "cu_seqlens_q": sums(q_lens), "cu_seqlens_k": None,
             "max_seqlen_q": max(q_lens, default=0), "max_seqlen_k": max(lens, default=0),
             "seqused_k": np.array(lens, np.int32), "block_table": table, **flash_options(draw)}

    def check(given: dict[str, Any], out: Any) -> None:
        begin, lens = wholes(given["cu_seqlens_q"]), wholes(given["seqused_k"])
        close(out, given["q"], [
            (begin[s], begin[s + 1], *[rows_of(given[name], plain(given["block_table"])[s], lens[s])
                                       for name in "kv"]) for s in range(len(begin) - 1)],
              **meaning(given, **FLASH))
    return aule.flash_attn_varlen_func, given, check


def kvcache(draw: Any) -> tuple[Any, dict[str, Any], Any]:
    """With or without a table, in pages of any size, with new tokens or without."""
    count, q_len = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    old = [draw(st.integers(0, 30)) for _ in range(count)]
    fresh = q_len if draw(st.booleans()) else 0
    if draw(st.booleans()):
        size = draw(st.sampled_from([1, 3, 8, 16]))
        total, table = pages(draw, [length + fresh for length in old], size)
        where = {"block_table": table}
    else:
        size, total = draw(st.integers(33, 45)), count + 1
        where = {"cache_batch_idx": np.arange(count)[::-1].copy()}
        table = np.arange(count)[::-1, None]
    q, k_cache, v_cache, k, v = one_kind(
        draw, (count, q_len, HEADS, DIM), *[(total, size, KV_HEADS, DIM)] * 2,
        *[(count, q_len, KV_HEADS, DIM)] * 2)
    given = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v,
             "cache_seqlens": np.array(old, np.int32), **where, **flash_options(draw)}
    if not fresh:
        del given["k"], given["v"]
    before: list[Any] = []

    def call(**given: Any) -> Any:
        caches = [given[name] for name in ("k_cache", "v_cache")]
        before[:] = [plain(cache).copy() if isinstance(cache, np.ndarray) or (
            isinstance(cache, torch.Tensor) and cache.device.type == "cpu" and not cache.is_sparse
            and cache.dtype == torch.float32) else None for cache in caches]
        try:
            return aule.flash_attn_with_kvcache(**given)
        except errors.AuleError:  # nothing is written
            for cache, old in zip(caches, before, strict=True):
                assert old is None or plain(cache).tobytes() == old.tobytes()
            raise

    def check(given: dict[str, Any], out: Any) -> None:
        old = given["cache_seqlens"]
        rows = size * (table.shape[1] if "block_table" in where else 1)
        old = [rows if old is None else whole(old)] * count if (
            old is None or np.ndim(plain(old)) == 0) else wholes(old)
        at = given.get("block_table")
        at = plain(given["cache_batch_idx"])[:, None] if at is None and given.get(
            "cache_batch_idx") is not None else np.arange(count)[:, None] if at is None else at
        appends = given.get("k") is not None
        wanted = [cache.copy() for cache in before]
        for s in range(count if appends else 0):
            for i in range(q_len):
                place = int(plain(at)[s][(old[s] + i) // size]), (old[s] + i) % size
                for cache, name in zip(wanted, "kv", strict=True):
                    cache[place] = plain(given[name])[s, i]
        for name, cache in zip(("k_cache", "v_cache"), wanted, strict=True):
            np.testing.assert_array_equal(plain(given[name]), cache)
        lens = [length + q_len * appends for length in old]
        q = plain(given["q"])
        assert tuple(out.shape) == q.shape
        close(plain(out).reshape(count * q_len, HEADS, DIM), q.reshape(count * q_len, HEADS, DIM), [
            (s * q_len, (s + 1) * q_len, *[rows_of(cache, plain(at)[s], lens[s])
                                           for cache in wanted]) for s in range(count)],
              **meaning(given, **FLASH))
    return call, given, check


def contiguous(draw: Any) -> tuple[Any, dict[str, Any], Any]:
    count, q_len, length = (draw(st.integers(0, most)) for most in (2, 4, 20))
    q, k, v = one_kind(draw, (count, HEADS, q_len, DIM), *[(count, KV_HEADS, length, DIM)] * 2)
    given: dict[str, Any] = {
        "q": q, "k": k, "v": v, "causal": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 0.3])), "soft_cap": draw(st.sampled_from([0.0, 2.0])),
        "window": draw(st.sampled_from([None, 3])), "attention_chunk": 0, "num_splits": 0,
        "kv_lens": np.array([draw(st.integers(0, length)) for _ in range(count)], np.int32),
        "sinks": None}

    def check(given: dict[str, Any], out: Any) -> None:
        lens = given["kv_lens"]
        lens = [length] * count if lens is None else wholes(lens)
        q, k, v = (plain(given[name]).swapaxes(1, 2) for name in "qkv")
        out = plain(out).swapaxes(1, 2)
        assert out.shape == q.shape
        for s in range(count):
            close(out[s], q[s], [(0, q_len, k[s, :lens[s]], v[s, :lens[s]])], **meaning(given))
    return aule.flash_attention, given, check


def page_attention(draw: Any) -> tuple[Any, dict[str, Any], Any]:
    _, lens = drawn_lens(draw)
    size = draw(st.sampled_from([4, 16]))
    total, table = pages(draw, lens, size)
    query, keys, values = one_kind(draw, (len(lens), HEADS, DIM),
                                   *[(total, KV_HEADS, size, DIM)] * 2)
    given = {"query": query, "key_cache": keys, "value_cache": values,
             "context_lens": np.array(lens, np.int32), "block_tables": table,
             "attn_scale": draw(st.sampled_from([None, 0.3])), "num_splits": 0,
             "max_context_len": draw(st.sampled_from([None, 40])),
             "attn_logits_soft_cap": draw(st.sampled_from([None, 2.0]))}

    def call(**given: Any) -> Any:
        names = ("query", "key_cache", "value_cache", "context_lens", "block_tables")
        return aule.page_attention(*[given.pop(name) for name in names], **given)

    def check(given: dict[str, Any], out: Any) -> None:
        lens = wholes(given["context_lens"])
        caches = [plain(given[name]).swapaxes(1, 2) for name in ("key_cache", "value_cache")]
        close(out, given["query"], [
            (s, s + 1, *[rows_of(cache, plain(given["block_tables"])[s], lens[s])
                         for cache in caches]) for s in range(len(lens))],
              **meaning(given, scale="attn_scale", soft_cap="attn_logits_soft_cap"))
    return call, given, check


def attn_paged(draw: Any) -> tuple[Any, dict[str, Any], Any]:
    q_lens, lens = drawn_lens(draw)
    size = draw(st.sampled_from([4, 16]))
    total, table = pages(draw, lens, size)
    q, keys, values = one_kind(draw, (sum(q_lens), HEADS, DIM), *[(total, size, KV_HEADS, DIM)] * 2)
    given = {"q": q, "K_cache": keys, "V_cache": values, "cu_seqlens_q": sums(q_lens),
             "seq_lens_kv": np.array(lens, np.int32), "block_table": table, "block_size": size,
             "H_q": HEADS, "H_kv": None, "window": draw(st.sampled_from([None, 3])), "scale": None}

    def call(q: Any, K_cache: Any, V_cache: Any, cu_seqlens_q: Any, seq_lens_kv: Any,
             block_table: Any, block_size: Any, **given: Any) -> Any:
        meta = aule.paged.ForwardMeta(None, None, cu_seqlens_q, seq_lens_kv, block_table,
                                      block_size)
        return aule.attn_paged(q, K_cache, V_cache, meta, **given)

    def check(given: dict[str, Any], out: Any) -> None:
        begin, lens = wholes(given["cu_seqlens_q"]), wholes(given["seq_lens_kv"])
        close(out, given["q"], [
            (begin[s], begin[s + 1], *[rows_of(given[name], plain(given["block_table"])[s], lens[s])
                                       for name in ("K_cache", "V_cache")])
            for s in range(len(lens))], **meaning({**given, "causal": True}))
    return call, given, check


def run_plan(decode: bool, **given: Any) -> Any:
    of_run = {name: given.pop(name) for name in ("q_scale", "v_scale", "return_lse")}
    q, cache = given.pop("q"), given.pop("cache")
    kept = [value for value in given.values() if isinstance(value, np.ndarray) and value.size]
    if decode:
        wrapper: Any = flashinfer.BatchDecodeWithPagedKVCacheWrapper()
        wrapper.plan(**given)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper()
        arrays = [given.pop(name) for name in ("indptr", "indices", "last_page_len")]
        wrapper.plan(given.pop("qo_indptr"), *arrays, head_dim_qk=given.pop("head_dim"),
                     **given)
    before = [array.copy() for array in kept]
    for array in kept:
        array[...] = 0  # a plan keeps copies
    try:
        return wrapper.run(q, cache, **of_run)
    finally:
        for array, old in zip(kept, before, strict=True):
            array[...] = old


def check_plan(decode: bool, given: dict[str, Any], out: Any) -> None:
    out = out[0] if given["return_lse"] else out
    first, last = wholes(given["indptr"]), wholes(given["last_page_len"])
    count = len(last)
    begin = list(range(count + 1)) if decode else wholes(given["qo_indptr"])
    size, found = whole(given["page_size"]), []
    indices = np.array(wholes(given["indices"]), np.int64)
    done, mask = 0, given.get("custom_mask")
    options = meaning({**given, "causal": decode or given["causal"],
                       "window": (whole(given["window_left"]), -1)},
                      soft_cap="logits_soft_cap", scale="sm_scale")
    options["scale"] *= number(given["q_scale"], 1.0)
    for s in range(count):
        pages = first[s + 1] - first[s]
        length = (pages - 1) * size + last[s] if pages else 0
        parts = [rows_of(cache, indices[first[s]:first[s + 1]], length)
                 for cache in given["cache"]]
        parts[1] = parts[1] * number(given["v_scale"], 1.0)
        if mask is not None:
            shape = begin[s + 1] - begin[s], length
            part = plain(mask)[done:done + math.prod(shape)].reshape(shape)
            done += math.prod(shape)
            found.append((begin[s], begin[s + 1], *parts, {"mask": part}))
        else:
            found.append((begin[s], begin[s + 1], *parts, {}))
    for *sequence, more in found:
        close(out, given["q"], [tuple(sequence)], **options, **more)
    assert tuple(out.shape) == tuple(given["q"].shape)


def planned(draw: Any, decode: bool) -> tuple[Any, dict[str, Any], Any]:
    q_lens, lens = drawn_lens(draw)
    lens = [max(length, 1) for length in lens]
    q_lens = [1 for _ in lens] if decode else q_lens
    size = draw(st.sampled_from([1, 2, 7, 16]))
    total, table = pages(draw, lens, size)
    counts = [-(-length // size) for length in lens]
    q, k, v = one_kind(draw, (sum(q_lens), HEADS, DIM), *[(total, size, KV_HEADS, DIM)] * 2)
    given: dict[str, Any] = {
        "qo_indptr": sums(q_lens), "indptr": sums(counts),
        "indices": np.concatenate([np.zeros(0, np.int32), *[
            row[:n] for row, n in zip(table, counts, strict=True)]]).astype(np.int32),
        "last_page_len": np.array([n - (c - 1) * size for n, c in zip(lens, counts, strict=True)],
                                  np.int32),
        "num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM, "page_size": size,
        "window_left": draw(st.sampled_from([-1, 3])),
        "logits_soft_cap": draw(st.sampled_from([None, 2.0])),
        "sm_scale": draw(st.sampled_from([None, 0.3])), "q": q, "cache": (k, v), "v_scale": None,
        "q_scale": None, "return_lse": False}
    if decode:
        del given["qo_indptr"]
    else:
        given["causal"] = draw(st.booleans())
        given["custom_mask"] = None if draw(st.booleans()) else np.random.default_rng(0).random(
            sum(a * b for a, b in zip(q_lens, lens, strict=True))) < 0.6

    return partial(run_plan, decode), given, partial(check_plan, decode)


def step(draw: Any) -> tuple[Any, dict[str, Any], Any]:
    """A step of one sequence over a cache."""
    count = draw(st.integers(1, 20))
    q, k, v = one_kind(draw, (count, HEADS, DIM), *[(count, KV_HEADS, DIM)] * 2)
    given = {"layer": 0, "q": q, "k": k, "v": v, "causal": True, "soft_cap": 0.0, "scale": None,
             "window": draw(st.sampled_from([None, 3, (2, 1)])), "num_splits": 0, "timeout": None,
             "attention_chunk": 0, "tokens": np.arange(count), "sinks": None, "alibi_slopes": None}

    def call(tokens: Any, **given: Any) -> Any:
        cache = aule.default_session().cache("arguments", num_layers=1, num_kv_heads=KV_HEADS,
                                             head_dim=DIM, dtype="f32", block_size=16)
        with cache, cache.sequence(tokens, publish=False) as sequence:
            return cache.step([sequence]).attend(given.pop("layer"), **given)

    def check(given: dict[str, Any], out: Any) -> None:
        assert whole(given["layer"]) == 0 and len(wholes(given["tokens"])) == count
        close(out, given["q"], [(0, count, plain(given["k"]), plain(given["v"]))],
              **meaning(given))
    return call, given, check


def merge(draw: Any) -> tuple[Any, dict[str, Any], Any]:
    """Two parts of the keys, of any number of heads."""
    count, heads = draw(st.integers(0, 5)), draw(st.sampled_from([1, 3, 4, 6]))
    v_a, s_a, v_b, s_b = one_kind(draw, *[(count, heads, DIM), (count, heads)] * 2)

    def check(given: dict[str, Any], got: Any) -> None:
        v, s = (np.stack([plain(given[f"{name}_{part}"]) for part in "ab"]).astype(np.float64)
                for name in "vs")
        weights = np.exp2(s)
        total = weights.sum(0)
        assert all(plain(given[name]).dtype == np.float32 for name in ("s_a", "s_b"))
        for array, wanted in zip(got, ((weights[..., None] * v).sum(0) / total[..., None],
                                       np.log2(total)), strict=True):
            close_to = CLOSE[plain(given["v_a"]).dtype.name]
            np.testing.assert_allclose(plain(array), wanted, rtol=close_to, atol=close_to)
    return flashinfer.merge_state, {"v_a": v_a, "s_a": s_a, "v_b": v_b, "s_b": s_b}, check


CASES: dict[str, Callable[[Any], tuple[Any, dict[str, Any], Any]]] = {
    "varlen": varlen, "varlen_paged": varlen_paged, "kvcache": kvcache,
    "flash_attention": contiguous, "page_attention": page_attention, "attn_paged": attn_paged,
    "prefill": lambda draw: planned(draw, False), "decode": lambda draw: planned(draw, True),
    "step": step, "merge": merge}


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=400 if LONG else 50)
@given(data=st.data())
def test_drawn_arguments_give_what_float64_gives(case: str, data: Any) -> None:
    call, given, check = CASES[case](data.draw)
    check(given, call(**given))


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=1000 if LONG else 60)
@given(data=st.data())
def test_any_value_gives_the_right_result_or_a_sentence_with_its_name(case: str, data: Any) -> None:
    call, given, check = CASES[case](data.draw)
    name = data.draw(st.sampled_from(sorted(given)), "argument")
    old = given[name]
    if isinstance(old, np.ndarray) and old.size and data.draw(st.booleans()):
        change = data.draw(st.integers(0, len(CHANGES) - 1), "change")
        try:
            given[name] = CHANGES[change](old)
        except (TypeError, ValueError, OverflowError):
            return
    else:
        given[name] = WILD[data.draw(st.integers(0, len(WILD) - 1), "value")]
    again = given[name]
    if hasattr(again, "__next__"):
        again = old.tolist()
    try:
        out = call(**given)
    except errors.AuleError as error:
        words = [name, *ALSO.get(name, [])]
        assert any(re.search(rf"\b\w*{word}\b", str(error)) for word in words), str(error)
        return
    check({**given, name: again}, out)


# ---- gradients ----

def tensors_of(given: dict[str, Any]) -> list[str]:
    """Return the names of arguments that torch could want a gradient of."""
    return [name for name, value in given.items() if isinstance(value, torch.Tensor)
            and value.is_floating_point()]


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
def test_no_gradient_is_cut_without_a_word(case: str, data: Any) -> None:
    call, given, check = CASES[case](data.draw)
    given = {name: torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray)
             and value.dtype.kind == "f" else value for name, value in given.items()}
    if "cache" in given:
        given["cache"] = tuple(torch.from_numpy(np.ascontiguousarray(plain(part)))
                               for part in given["cache"])
    for name in [*tensors_of(given), *[name for name in ("softmax_scale", "scale", "sm_scale")
                                       if name in given]]:
        tensor = torch.tensor(0.3) if given[name] is None else torch.as_tensor(given[name])
        wants = {**given, name: tensor.clone().requires_grad_()}
        with pytest.raises(errors.UnsupportedError, match=f"{name} requires a gradient"):
            call(**wants)
    if "q" in given:
        given["q"].requires_grad_()
    with torch.no_grad():
        check(given, call(**given))
