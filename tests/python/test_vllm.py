# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""vLLM's metadata becomes a batch of aule. vLLM itself is not needed: a dataclass has its names."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import aule
import aule.vllm
import numpy as np
import pytest
from conftest import BLOCK, DIM, HEADS, KV_HEADS, drawn, expected

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@dataclass
class CommonAttentionMetadata:
    """The names of vllm/v1/attention/backend.py."""

    query_start_loc: Any
    query_start_loc_cpu: Any
    seq_lens: Any
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: Any
    slot_mapping: Any
    causal: bool = True


def of(array: Any, kind: str) -> Any:
    return array if kind == "numpy" else pytest.importorskip("torch").from_numpy(array)


def step_of(blocks: Any, past: list[int], counts: list[int], kind: str, pad: int = 3,
            counted: bool = False) -> CommonAttentionMetadata:
    """A step that computes counts[i] tokens behind past[i], with vLLM's padding for graphs.

    counted: num_reqs and num_actual_tokens count the padding, too, as in a step of a full graph.
    """
    starts = np.cumsum([0, *counts]).astype(np.int32)
    lens = np.array(past, np.int32) + np.array(counts, np.int32)
    table = np.zeros((len(past) + pad, 4), np.int32)
    slots = np.full(int(starts[-1]) + pad, -1, np.int64)
    for i, row in enumerate(blocks):
        table[i, :len(row)] = row
        at = np.arange(past[i], lens[i])
        slots[starts[i]:starts[i + 1]] = np.asarray(row)[at // BLOCK] * BLOCK + at % BLOCK
    padded = np.r_[starts, np.full(pad, starts[-1], np.int32)]
    more = pad if counted else 0
    return CommonAttentionMetadata(
        of(padded, kind), of(padded.copy(), kind), of(np.r_[lens, np.zeros(pad, np.int32)], kind),
        len(past) + more, int(starts[-1]) + more, max(counts), int(lens.max()), of(table, kind),
        of(slots, kind))


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_prefill_and_decode_of_vllm_are_attention_in_float64(cache: aule.Cache, kind: str,
                                                             counted: bool) -> None:
    ids = cache.lease(5)
    blocks = [ids[[3, 0]], ids[[1]], ids[[4, 2]]]
    q, k, v = ([drawn(n, heads, DIM, seed=seed + n) for n in (20, 9, 18)]
               for seed, heads in ((0, HEADS), (50, KV_HEADS), (90, KV_HEADS)))
    past = [0, 0, 0]
    for counts in ([17, 9, 16], [1, 0, 2], [2, 0, 0]):
        live = [i for i in range(3) if counts[i] or counted]
        metadata = step_of([blocks[i] for i in live], [past[i] for i in live],
                           [counts[i] for i in live], kind, counted=counted)
        step = aule.vllm.arrays_of(metadata)
        rows = [np.concatenate([x[i][past[i]:past[i] + counts[i]] for i in live])
                for x in (q, k, v)]
        with cache.batch(**step.arrays) as batch:
            out = batch.attend(0, *rows, **step.options)
        assert len(out) == step.num_tokens == sum(counts)
        at = 0
        for i in live:
            past[i] += counts[i]
            if not counts[i]:
                continue
            wanted = expected(q[i][past[i] - counts[i]:past[i]], k[i][:past[i]], v[i][:past[i]])[0]
            np.testing.assert_allclose(out[at:at + counts[i]], wanted, **CLOSE)
            at += counts[i]


def test_slots_of_minus_one_store_nothing(cache: aule.Cache) -> None:
    ids = cache.lease(2)
    q, k, v = (drawn(5, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    metadata = step_of([ids[[0]]], [0], [4], "numpy", counted=True)
    with cache.batch(**aule.vllm.arrays_of(metadata).arrays) as batch:
        batch.attend(0, q[:4], k[:4], v[:4])
    metadata = step_of([ids[[0]], ids[[1]]], [3, 0], [1, 1], "numpy", counted=True)
    metadata.slot_mapping[0] = -1
    step = aule.vllm.arrays_of(metadata)
    with cache.batch(**step.arrays) as batch:  # the first one's key stays as it was
        out = batch.attend(0, q[[4, 4]], k[[4, 4]], v[[4, 4]], **step.options)
    np.testing.assert_allclose(out[:1], expected(q[4:], k[:4], v[:4])[0], **CLOSE)
    np.testing.assert_allclose(out[1:], expected(q[4:], k[4:], v[4:])[0], **CLOSE)


def test_a_step_that_is_not_causal_says_so() -> None:
    metadata = dataclasses.replace(step_of([[0]], [0], [3], "numpy"), causal=False)
    assert aule.vllm.arrays_of(metadata).options == {"causal": False}


@pytest.mark.parametrize(("change", "sentence"), [
    ({"slot_mapping": None}, "has no slot_mapping; vLLM's"),
    ({"seq_lens": np.ones(0, np.int32)}, "seq_lens has 0 entries; the metadata's counts need 1"),
    ({"num_actual_tokens": 2}, r"query_start_loc\[1\] = 3 is above num_actual_tokens = 2"),
    ({"num_reqs": 9}, "query_start_loc has 5 entries; the metadata's counts need 10"),
])
def test_metadata_that_contradicts_itself_raises_a_sentence(change: dict[str, Any],
                                                            sentence: str) -> None:
    metadata = dataclasses.replace(step_of([[0]], [0], [3], "numpy"), **change)
    with pytest.raises(aule.errors.InvalidError, match=sentence):
        aule.vllm.arrays_of(metadata)
