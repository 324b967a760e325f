# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Sessions, caches, sequences and steps: what they compute, and what they share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import aule
import numpy as np
import pytest
from aule import _native
from conftest import BLOCK, DIM, HEADS, IDENTITY, KV_HEADS, LAYERS, drawn, expected

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def tensors(count: int, seed: int = 0) -> tuple[Any, Any, Any]:
    return (drawn(count, HEADS, DIM, seed=seed), drawn(count, KV_HEADS, DIM, seed=seed + 1),
            drawn(count, KV_HEADS, DIM, seed=seed + 2))


def compute(cache: aule.Cache, *sequences: Any, seed: int = 0, **options: Any) -> list[Any]:
    """One step over all layers; returns the outputs of the layers."""
    step = cache.step(sequences)
    q, k, v = tensors(step.num_tokens, seed)
    return [step.attend(layer, q, k, v, **options) for layer in range(LAYERS)]


def test_attention_over_a_prompt_is_that_of_float64(cache: aule.Cache) -> None:
    q, k, v = tensors(37)
    with cache.sequence(range(37)) as sequence:
        step = cache.step([sequence])
        assert step.num_tokens == 37 and step.rows == [slice(0, 37)]
        for layer in range(LAYERS):
            out, lse = step.attend(layer, q, k, v, lse=True)
            wanted, wanted_lse = expected(q, k, v)
            np.testing.assert_allclose(out, wanted, **CLOSE)
            np.testing.assert_allclose(lse, wanted_lse, **CLOSE)


def test_a_decode_sees_the_keys_of_earlier_steps(cache: aule.Cache) -> None:
    q, k, v = tensors(21)
    with cache.sequence(range(20)) as sequence:
        step = cache.step([sequence])
        for layer in range(LAYERS):
            step.attend(layer, q[:20], k[:20], v[:20])
        sequence.append(7)
        step = cache.step([sequence])
        assert step.num_tokens == 1
        out = step.attend(1, q[20:], k[20:], v[20:])
        np.testing.assert_allclose(out, expected(q[20:], k, v)[0], **CLOSE)


@pytest.mark.parametrize(("options", "meaning"), [
    ({"causal": False}, {"causal": False}),
    ({"window": 5}, {"window": (5, -1)}),
    ({"causal": False, "window": (3, 2)}, {"causal": False, "window": (3, 2)}),
    ({"soft_cap": 2.0}, {"soft_cap": 2.0}),
    ({"scale": 0.7}, {"scale": 0.7}),
    ({"sinks": [0.1, -1.0, 2.0, 0.0]}, {"sinks": [0.1, -1.0, 2.0, 0.0]}),
    ({"alibi_slopes": [0.1, 0.2, 0.3, 0.4]}, {"slopes": [0.1, 0.2, 0.3, 0.4]}),
    ({"num_splits": 1}, {}),
])
def test_each_option_means_what_float64_says(cache: aule.Cache, options: dict[str, Any],
                                             meaning: dict[str, Any]) -> None:
    q, k, v = tensors(19)
    with cache.sequence(range(19)) as sequence:
        out = cache.step([sequence]).attend(0, q, k, v, **options)
        np.testing.assert_allclose(out, expected(q, k, v, **meaning)[0], **CLOSE)


def test_options_of_one_layer_do_not_stay_for_the_next(cache: aule.Cache) -> None:
    q, k, v = tensors(19)
    with cache.sequence(range(19)) as sequence:
        step = cache.step([sequence])
        step.attend(0, q, k, v, sinks=[1.0] * 4, window=2, soft_cap=1.0, lse=True)
        out = step.attend(1, q, k, v)
        np.testing.assert_allclose(out, expected(q, k, v)[0], **CLOSE)


def test_a_mask_replaces_causal_for_each_sequence(cache: aule.Cache) -> None:
    masks = [np.random.default_rng(1).random((n, n)) < 0.5 for n in (18, 11)]
    q, k, v = tensors(29)
    with cache.sequence(range(18)) as one, cache.sequence(range(50, 61)) as two:
        step = cache.step([one, two])
        for layer in range(LAYERS):
            out = step.attend(layer, q, k, v, mask=masks)
            for rows, mask in zip(step.rows, masks, strict=True):
                wanted = expected(q[rows], k[rows], v[rows], mask=mask)[0]
                np.testing.assert_allclose(out[rows], wanted, **CLOSE)
        np.testing.assert_allclose(step.attend(0, q, k, v)[:18],
                                   expected(q[:18], k[:18], v[:18])[0], **CLOSE)


def test_all_layers_at_once_are_as_one_after_another(cache: aule.Cache) -> None:
    q, k, v = (np.stack(parts) for parts in
               zip(*[tensors(17, seed=layer * 10) for layer in range(LAYERS)], strict=True))
    sinks = drawn(LAYERS, HEADS, seed=5)
    with cache.sequence(range(17)) as sequence:
        out, lse = cache.step([sequence]).attend_layers(q, k, v, lse=True, sinks=sinks)
        assert out.shape == q.shape and lse.shape == q.shape[:3]
        for layer in range(LAYERS):
            wanted = expected(q[layer], k[layer], v[layer], sinks=sinks[layer])
            np.testing.assert_allclose(out[layer], wanted[0], **CLOSE)
            np.testing.assert_allclose(lse[layer], wanted[1], **CLOSE)


def test_a_published_prompt_needs_no_computing_in_another_session(session: aule.Session) -> None:
    prompt = range(1000, 1000 + 3 * BLOCK + 5)
    with session.cache("shared", **IDENTITY) as cache, cache.sequence(prompt) as sequence:
        assert sequence.cached == 0
        compute(cache, sequence)
        assert sequence.publish() == 3 == sequence.published
        with aule.connect(session.socket) as other, other.cache("shared", **IDENTITY) as its:
            with its.sequence(prompt) as found:
                assert found.cached == 3 * BLOCK
                assert its.step([found]).num_tokens == 5
            with its.sequence(prompt, extra_key="adapter") as other_key:
                assert other_key.cached == 0
        with aule.connect(session.socket, tenant="another") as other:
            its = other.cache("shared", **IDENTITY)
            assert its.sequence(prompt).cached == 0


def test_a_sequence_that_does_not_publish_leaves_nothing(cache: aule.Cache) -> None:
    with cache.sequence(range(2 * BLOCK), publish=False) as sequence:
        compute(cache, sequence)
    assert cache.sequence(range(2 * BLOCK)).cached == 0


def test_a_claimed_prompt_is_computed_by_the_first_and_found_by_the_others(
        session: aule.Session) -> None:
    prompt, name = range(3 * BLOCK + 5), "claimed"
    cache = session.cache(name, **IDENTITY)
    first = cache.sequence(prompt, claim=True)
    assert first.promised == first.cached == 0
    with aule.connect(session.socket) as other, \
            other.cache(name, **IDENTITY) as its, \
            its.sequence(prompt, claim=True, timeout=0) as second:
        assert second.promised == 3 * BLOCK and second.cached == 0
        assert not second.wait(0.05)
        compute(cache, first)
        first.publish()
        assert second.wait(60)
        assert second.cached == 3 * BLOCK and second.promised == 0
        assert its.step([second]).num_tokens == 5


def test_threads_with_one_prompt_compute_it_once(cache: aule.Cache) -> None:
    computed: list[int] = []
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        with cache.sequence(range(4 * BLOCK + 1), claim=True, timeout=None) as sequence:
            computed.append(len(sequence) - sequence.cached)
            compute(cache, sequence)
            sequence.publish()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(computed) == [1, 1, 1, 4 * BLOCK + 1]


def test_a_claim_that_ends_unfulfilled_is_inherited(cache: aule.Cache) -> None:
    first = cache.sequence(range(2 * BLOCK), claim=True)
    with cache.sequence(range(2 * BLOCK), claim=True, timeout=0) as second:
        assert second.promised == 2 * BLOCK
        first.close()
        assert second.wait(60) and second.cached == second.promised == 0
        compute(cache, second)


class Waits:
    """libaule-client, and whether a thread is about to wait in aule_sequence_wait()."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.inside = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def aule_sequence_wait(self, *arguments: Any) -> Any:
        self.inside.set()  # the thread has the sequence's lock
        return self._real.aule_sequence_wait(*arguments)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    waits = Waits(_native.lib)
    monkeypatch.setattr("aule.sequence.lib", waits)
    return waits


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Begin `work` in a thread, and return it with the list that gets its result or exception."""
    said: list[object] = []

    def guarded() -> None:
        try:
            said.append(work())
        except BaseException as failure:
            said.append(failure)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    return thread, said


def test_a_claims_wait_ends_at_its_deadline(cache: aule.Cache) -> None:
    with cache.sequence(range(2 * BLOCK), claim=True), \
            cache.sequence(range(2 * BLOCK), claim=True, timeout=0.05) as second:
        assert second.promised == 2 * BLOCK
        compute(cache, second)  # nothing is wrong if two sequences compute a block


@pytest.mark.parametrize("ends", ["sequence", "cache", "session"])
def test_a_claims_wait_ends_with_its_sequence(session: aule.Session, waits: Waits,
                                              ends: str) -> None:
    name = f"a wait ends with its {ends}"
    # The first sequence stays open: at its end the second one would inherit, and its wait return.
    with session.cache(name, **IDENTITY) as its, its.sequence(range(2 * BLOCK), claim=True), \
            aule.connect(session.socket) as other:
        cache = other.cache(name, **IDENTITY)
        second = cache.sequence(range(2 * BLOCK), claim=True, timeout=0)
        waits.inside.clear()
        thread, said = in_thread(lambda: second.wait(None))
        assert waits.inside.wait(30)
        closing, _ = in_thread({"sequence": second, "cache": cache, "session": other}[ends].close)
        for ending in (closing, thread):
            ending.join(60)
            assert not ending.is_alive()
        assert isinstance(said[0], aule.errors.ClosedError) and "is closed" in str(said[0])


def test_a_sequence_may_be_used_while_another_thread_waits_for_a_claim(cache: aule.Cache,
                                                                       waits: Waits) -> None:
    first = cache.sequence(range(2 * BLOCK), claim=True)
    with cache.sequence(range(2 * BLOCK), claim=True, timeout=0) as second:
        waits.inside.clear()
        thread, said = in_thread(lambda: second.wait(None))
        assert waits.inside.wait(30)

        def use() -> int:
            second.append(7)
            return second.num_blocks

        using, used = in_thread(use)
        using.join(60)
        assert used == [0] and thread.is_alive() and len(second) == 2 * BLOCK + 1
        first.close()
        thread.join(60)
        assert said == [True]


def test_a_fork_shares_blocks_and_goes_its_own_way(cache: aule.Cache) -> None:
    q, k, v = tensors(24)
    with cache.sequence(range(23)) as sequence:
        step = cache.step([sequence])
        for layer in range(LAYERS):
            step.attend(layer, q[:23], k[:23], v[:23])
        with sequence.fork() as fork:
            assert fork.num_blocks == sequence.num_blocks == 2
            fork.append(99)
            assert list(fork.tokens[-2:]) == [22, 99] and len(sequence) == 23
            out = cache.step([fork]).attend(0, q[23:], k[23:], v[23:])
            np.testing.assert_allclose(out, expected(q[23:], k, v)[0], **CLOSE)


def test_truncated_tokens_are_written_anew(cache: aule.Cache) -> None:
    q, k, v = tensors(20)
    with cache.sequence(range(20)) as sequence:
        compute(cache, sequence, seed=50)
        sequence.truncate(0)
        assert len(sequence) == sequence.computed == 0
        sequence.append(range(20))
        out = cache.step([sequence]).attend(0, q, k, v)
        np.testing.assert_allclose(out, expected(q, k, v)[0], **CLOSE)


def test_chunked_prefill_and_decode_share_a_step(cache: aule.Cache) -> None:
    q, k, v = tensors(30)
    with cache.sequence(range(25)) as one, cache.sequence(range(40, 45)) as two:
        step = cache.step([(one, 10), two])
        assert step.rows == [slice(0, 10), slice(10, 15)] and one.computed == 10
        parts = np.r_[0:10, 25:30]
        out = step.attend(0, q[parts], k[parts], v[parts])
        np.testing.assert_allclose(out[10:], expected(q[25:], k[25:], v[25:])[0], **CLOSE)
        out = cache.step([one]).attend(0, q[10:25], k[10:25], v[10:25])
        np.testing.assert_allclose(out, expected(q[10:25], k[:25], v[:25])[0], **CLOSE)


def test_a_reservation_is_for_all_or_for_none(cache: aule.Cache) -> None:
    with cache.sequence(range(5)) as one, cache.sequence(range(5)) as two:
        cache.reserve([(one, 3 * BLOCK), (two, BLOCK)])
        assert (one.num_blocks, two.num_blocks) == (3, 1)
        limit = cache.state()["limit_blocks"]
        with pytest.raises((aule.errors.NoBlocksError, aule.errors.LimitError)):
            cache.reserve([(one, BLOCK * (limit + 1)), (two, 2 * BLOCK)])
        assert (one.num_blocks, two.num_blocks) == (3, 1)


def test_steps_of_the_same_sequences_reuse_their_batch(cache: aule.Cache) -> None:
    with cache.sequence(range(5)) as sequence:
        handles = set()
        for token in range(6):
            if token:
                sequence.append(token)
            step = cache.step([(sequence, 5)] if not token else [sequence])
            handles.add(id(step._handle))
            step.attend(0, *tensors(1 if token else 5))
        assert len(handles) == 2


def test_keys_that_no_run_has_written_are_refused(cache: aule.Cache) -> None:
    with cache.sequence(range(5)) as sequence:
        cache.step([(sequence, 5)])
        sequence.append(5)
        step = cache.step([sequence])
        with pytest.raises(aule.errors.UnwrittenError, match="reads position 0, slot 0 of block"):
            step.attend(0, *tensors(1))


def test_tickets_are_awaited_in_asyncio(cache: aule.Cache) -> None:
    q, k, v = tensors(8)

    async def work(first: int) -> Any:
        with cache.sequence(range(first, first + 8)) as sequence:
            return await cache.step([sequence]).submit(0, q, k, v)

    async def main() -> list[Any]:
        return list(await asyncio.gather(*[work(first) for first in range(0, 400, 100)]))

    for out in asyncio.run(main()):
        np.testing.assert_allclose(out, expected(q, k, v)[0], **CLOSE)


def test_a_ticket_says_how_the_gpu_worked(cache: aule.Cache) -> None:
    q, k, v = tensors(8)
    with cache.sequence(range(8)) as sequence:
        ticket = cache.step([sequence]).submit(0, q, k, v)
        with pytest.raises(aule.errors.InvalidError, match="not done"):
            _ = ticket.result
        out = ticket.wait(60)
        assert ticket.done and ticket.wait() is out
        assert ticket.result.num_runs >= 1 and ticket.result.num_sessions == 1


def test_threads_compute_side_by_side(cache: aule.Cache) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(5):
                q, k, v = tensors(9, seed=number * 100 + turn)
                with cache.sequence(range(number * 1000, number * 1000 + 9)) as sequence:
                    out = cache.step([sequence]).attend(0, q, k, v)
                    np.testing.assert_allclose(out, expected(q, k, v)[0], **CLOSE)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_batch_from_block_tables_is_as_a_step(cache: aule.Cache) -> None:
    q, k, v = tensors(20)
    ids = cache.lease(2)
    slots = [int(ids[i // BLOCK]) * BLOCK + i % BLOCK for i in range(20)]
    with cache.batch(cu_seqlens_q=[0, 20], seq_lens_kv=[20], block_table=np.array([ids]),
                     slot_mapping=slots) as batch:
        for layer in range(LAYERS):
            out = batch.attend(layer, q, k, v)
            np.testing.assert_allclose(out, expected(q, k, v)[0], **CLOSE)
    kept = cache.publish(range(20), ids)
    assert list(cache.lookup(range(20))) == list(kept[:1])
    cache.release([*kept, kept[0]])
    with pytest.raises(aule.errors.NotHeldError):
        cache.release(ids)


def test_a_batch_over_own_tensors_reads_block_tables(session: aule.Session) -> None:
    q, k, v = tensors(48)
    order = [2, 0, 1]
    keys = session.empty((3, BLOCK, KV_HEADS, DIM))
    values = session.empty((3, BLOCK, KV_HEADS, DIM))
    for i, block in enumerate(order):
        keys[block], values[block] = (x[i * BLOCK:(i + 1) * BLOCK] for x in (k, v))
    before = session.copied
    with session.batch(keys=keys, values=values, cu_seqlens_q=[0, 2], seq_lens_kv=[45],
                       block_table=np.array([order])) as batch:
        out = batch.attend(0, q[43:45], None)
        np.testing.assert_allclose(out, expected(q[43:45], k[:45], v[:45])[0], **CLOSE)
    assert session.copied.bytes_in - before.bytes_in == q[43:45].nbytes


@pytest.mark.parametrize("path", ["contiguous", "paged"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_contiguous_attention_takes_both_layouts_and_ways(session: aule.Session, layout: str,
                                                          path: str) -> None:
    q = drawn(2, 5, HEADS, DIM, seed=1)
    k, v = drawn(2, 9, KV_HEADS, DIM, seed=2), drawn(2, 9, KV_HEADS, DIM, seed=3)
    given = [x.swapaxes(1, 2) if layout == "bhsd" else x for x in (q, k, v)]
    out, lse = session.attention(*given, layout=layout, path=path, lse=True)
    out = out.swapaxes(1, 2) if layout == "bhsd" else out
    for n in range(2):
        wanted = expected(q[n], k[n], v[n])
        np.testing.assert_allclose(out[n], wanted[0], **CLOSE)
        np.testing.assert_allclose(lse[n * 5:n * 5 + 5], wanted[1], **CLOSE)
