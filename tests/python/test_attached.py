# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""An attached pool from Python: a software device's memory, mapped by a fake libcuda."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import aule
import numpy as np
import pytest
from aule import _attached, errors
from conftest import BLOCK, DIM, HEADS, IDENTITY, KV_HEADS, LAYERS, drawn, expected

torch = pytest.importorskip("torch")

import fake_cuda  # noqa: E402
from test_device import Libcuda, cuda, libcuda  # noqa: E402, F401

DAEMON_OPTIONS = ["--export-pool", "64"]
COUNT = 2 * BLOCK
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
DEADLINE_S, ROUNDS = 60, 20


@pytest.fixture
def pool(cuda: fake_cuda.Cuda, session: aule.Session) -> Iterator[aule.Cache]:  # noqa: F811
    """A cache of a session of its own, so that the test ends with the session's end."""
    with aule.connect(session.socket, arena_size=1 << 20) as own, \
            own.cache(name_of_cache(), **IDENTITY) as cache:
        yield cache


def name_of_cache() -> str:
    """The test's own."""
    return os.environ["PYTEST_CURRENT_TEST"].split("::")[1].split()[0]


def put(cache: aule.Cache, slots: Any, k: Any, v: Any) -> None:
    """Queue on the stream what a kernel would write into every layer."""
    def work() -> None:
        for layer in map(fake_cuda.plain, cache.layers):
            layer[slots // BLOCK, 0, :, slots % BLOCK] = torch.from_numpy(k)
            layer[slots // BLOCK, 1, :, slots % BLOCK] = torch.from_numpy(v)

    assert fake_cuda.fake is not None
    fake_cuda.fake.current.put(work)


def kv(count: int) -> list[Any]:
    return [drawn(count, KV_HEADS, DIM, seed=seed) for seed in (1, 2)]


def free_blocks(cache: aule.Cache) -> int:
    return int(cache.state()["free_blocks"])


def test_layers_are_tensors_of_what_runs_have_written(pool: aule.Cache) -> None:
    k, v = kv(COUNT)
    with pool.sequence(range(COUNT), publish=False) as text:
        step = pool.step([text])
        for layer in range(LAYERS):
            step.attend(layer, drawn(COUNT, HEADS, DIM), k, v)
        tables = pool.plan([(appended(text), 1)]).tables("cpu")
        assert len(pool.layers) == LAYERS
        for layer in pool.layers:
            assert tuple(layer.shape) == (64, 2, KV_HEADS, BLOCK, DIM)
            blocks = tables.indices[:2].long()
            stored = fake_cuda.values(layer)[blocks.numpy()]  # [2, K or V, heads, tokens, dim]
            got = stored.transpose(1, 0, 3, 2, 4).reshape(2, COUNT, KV_HEADS, DIM)
            np.testing.assert_array_equal(got[0], k)
            np.testing.assert_array_equal(got[1], v)


def appended(text: aule.Sequence) -> aule.Sequence:
    text.append(1)
    return text


def test_the_daemon_reads_what_own_kernels_wrote_after_their_stream_has_passed(
        cuda: fake_cuda.Cuda, session: aule.Session, pool: aule.Cache) -> None:  # noqa: F811
    k, v = kv(COUNT)
    with pool.sequence(range(COUNT)) as text:
        plan = pool.plan([text])
        put(pool, plan.tables("cpu").slot_mapping, k, v)
        plan.wrote()  # its blocks are full, so it waits and reports
        assert text.publish() == 2
    with session.cache(name_of_cache(), **IDENTITY) as other, \
            other.sequence([*range(COUNT), 7], publish=False) as text:
        assert text.cached == COUNT
        q, new = drawn(1, HEADS, DIM), [drawn(1, KV_HEADS, DIM, seed=n) for n in (5, 6)]
        out = other.step([text]).attend(0, q, *new)
        wanted = expected(q, *(np.concatenate(pair) for pair in zip((k, v), new, strict=True)))
        np.testing.assert_allclose(out, wanted[0], **CLOSE)


def test_what_is_not_reported_cannot_be_published_or_read(pool: aule.Cache) -> None:
    with pool.sequence(range(COUNT)) as text:
        plan = pool.plan([text])
        assert text.publish() == 0
        assert plan.num_tokens == COUNT and plan.rows == [slice(0, COUNT)]
        text.append(9)
        step = pool.step([text])
        with pytest.raises(errors.UnwrittenError):
            step.attend(0, drawn(1, HEADS, DIM), *kv(1))


def test_released_blocks_come_back_with_a_report_or_when_a_plan_needs_them(
        pool: aule.Cache) -> None:
    attached = pool.attach()
    whole = free_blocks(pool)
    pool.sequence(range(4 * BLOCK), publish=False).close()  # has leased nothing
    text = pool.sequence(range(whole * BLOCK), publish=False)
    pool.plan([text])
    text.close()
    assert free_blocks(pool) == 0
    attached.report()
    assert free_blocks(pool) == whole
    text = pool.sequence(range(whole * BLOCK), publish=False)
    pool.plan([text])
    text.close()
    with pool.sequence(range(BLOCK), publish=False) as text:
        assert pool.plan([text], timeout=0).num_tokens == BLOCK
    attached.report()


def test_a_report_waits_for_the_streams_that_wrote(cuda: fake_cuda.Cuda,  # noqa: F811
                                                   pool: aule.Cache) -> None:
    attached = pool.attach()
    passed: list[int] = []
    with pool.sequence(range(3), publish=False) as text:
        plan = pool.plan([text])
        for number in range(2):
            cuda.current = fake_cuda.Stream()
            cuda.current.put(lambda n=number: passed.append(n))
            plan.wrote()
        assert passed == []  # no block is full, so nothing waits
        attached.report()
        assert passed == [0, 1]


def test_forms_are_those_of_the_engines() -> None:
    table = np.array([[5, 3, -1], [7, -1, -1], [-1, -1, -1]], np.int32)
    tables = _attached.forms(table, np.array([BLOCK + 3, BLOCK, 0], np.int32),
                             np.array([0, 2, 3, 3], np.int32), np.array([1, -1, 9], np.int64),
                             BLOCK)
    there = _attached.upload(torch, tables, "cpu")
    assert there.block_table.tolist() == [[5, 3, 0], [7, 0, 0], [0, 0, 0]]
    assert there.cache_seqlens.tolist() == [BLOCK + 3, BLOCK, 0]
    assert there.cu_seqlens_q.tolist() == [0, 2, 3, 3]
    assert there.slot_mapping.tolist() == [1, -1, 9]
    assert there.slot_mapping.dtype == torch.int64
    assert there.indptr.tolist() == [0, 2, 3, 3]
    assert there.indices.tolist() == [5, 3, 7]
    assert there.last_page_len.tolist() == [3, BLOCK, 0]
    assert _attached.slots_of([2], 4).tolist() == [8, 9, 10, 11]


def test_tensors_keep_the_memory_mapped_after_the_cache_is_closed(
        cuda: fake_cuda.Cuda, libcuda: Libcuda,  # noqa: F811
        session: aule.Session) -> None:
    own = aule.connect(session.socket, arena_size=1 << 20)
    cache = own.cache("attached", **IDENTITY)
    layer = cache.layers[0]
    cache.close()
    own.close()
    fake_cuda.plain(layer)[0].fill_(3)
    assert libcuda.maps == 1
    del layer
    gc.collect()
    assert libcuda.maps == 0


def test_what_cannot_be_has_a_sentence(cuda: fake_cuda.Cuda, libcuda: Libcuda,  # noqa: F811
                                       session: aule.Session,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    with aule.connect(session.socket, arena_size=1 << 20) as own:
        shapes = dict(IDENTITY, head_dim_v=2 * DIM)
        with own.cache("other shapes", **shapes) as cache, \
                pytest.raises(errors.UnsupportedError, match="do not make one tensor"):
            cache.attach()
        with own.cache("attached", **IDENTITY) as cache:
            monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
            with pytest.raises(errors.MismatchError, match="but the daemon has GPU"):
                cache.attach()
            monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
            monkeypatch.setattr(libcuda, "refuses_imports", True)
            with pytest.raises(errors.UnsupportedError, match="cuImportExternalMemory"):
                cache.attach()
            monkeypatch.setattr(libcuda, "refuses_imports", False)
            attached = cache.attach()
            with pytest.raises(errors.NotHeldError, match="is not leased by this session"):
                attached.wrote([3 * BLOCK])
                attached.report()
            attached.report()  # what was refused is not told again
        with pytest.raises(errors.ClosedError):
            cache.attach()
    with aule.connect(autostart=True, daemon_options=["--cache-folder", "none"]) as plain, \
            plain.cache("attached", **IDENTITY) as cache, \
            pytest.raises(errors.UnsupportedError, match="without --export-pool"):
        cache.attach()


def computed(pool: aule.Cache, first: int, count: int) -> aule.Sequence:
    """A sequence that publishes, and whose tokens a plan has written."""
    text = pool.sequence(range(first, first + count))
    pool.plan([text]).wrote()
    return text


def ends_by_close(pool: aule.Cache) -> aule.Sequence | None:
    computed(pool, 1000, BLOCK + 4).close()
    return None


def ends_before_its_plan_says_what_it_wrote(pool: aule.Cache) -> aule.Sequence | None:
    text = pool.sequence(range(1000, 1004))
    plan = pool.plan([text])
    text.close()
    plan.wrote()
    return None


def is_truncated(pool: aule.Cache) -> aule.Sequence | None:
    text = computed(pool, 1000, BLOCK + 4)
    assert text.publish() == 1
    text.truncate(BLOCK)
    return text


def is_released_by_hand(pool: aule.Cache) -> aule.Sequence | None:
    ids = pool.lease(1)
    pool.attach().wrote(_attached.slots_of(ids, BLOCK))
    pool.release(ids)
    return None


@pytest.mark.parametrize("first", [ends_by_close, ends_before_its_plan_says_what_it_wrote,
                                   is_truncated, is_released_by_hand])
def test_a_publication_frees_what_was_released_and_later_reports_still_pass(
        pool: aule.Cache, first: Callable[[aule.Cache], aule.Sequence | None]) -> None:
    attached = pool.attach()
    kept = first(pool)
    text = computed(pool, 0, BLOCK)
    assert text.publish() == 1
    attached.report()
    text.close()
    count = pool.state()["available_blocks"]
    again = pool.sequence(range(5000, 5000 + count * BLOCK), publish=False)
    pool.plan([again])
    again.close()
    assert pool.state()["available_blocks"] == 0
    with pool.sequence(range(6000, 6000 + BLOCK), publish=False) as short:
        assert pool.plan([short], timeout=0).num_tokens == BLOCK  # it lacks a block, and reports
    assert pool.state()["available_blocks"] > 0
    if kept is not None:
        kept.close()
    attached.report()


def test_a_plan_notes_no_slot_of_tokens_that_were_truncated_before_it_said_wrote(
        pool: aule.Cache) -> None:
    with pool.sequence(range(3 * BLOCK)) as text:
        plan = pool.plan([text])
        text.truncate(BLOCK + 1)
        assert pool.attach().report() is None  # the dropped blocks are free for others
        other = pool.sequence(range(5000, 5000 + free_blocks(pool) * BLOCK), publish=False)
        pool.plan([other])
        plan.wrote()
        assert text.publish() == 1
        pool.attach().report()
        assert text.published == 1 and other.published == 0
        step = pool.step([appended(text)])
        step.attend(0, drawn(1, HEADS, DIM), *kv(1))  # token BLOCK is written, too
        other.publish()
        assert other.published == 0  # nothing of it is written
        other.close()


def test_what_a_closed_sequence_wrote_is_not_written_in_a_block_that_is_leased_again(
        pool: aule.Cache) -> None:
    attached = pool.attach()
    ends_by_close(pool)
    assert computed(pool, 0, BLOCK).publish() == 1
    texts = [pool.sequence(range(3), publish=False) for _ in range(free_blocks(pool))]
    pool.plan(texts)  # one of them has the closed sequence's block; nothing is written
    attached.report()
    for text in texts:
        text.append(7)
        with pytest.raises(errors.UnwrittenError):
            pool.step([text]).attend(0, drawn(1, HEADS, DIM), *kv(1))
        text.close()


def test_a_worker_whose_sequences_all_publish_keeps_no_slots_of_those_that_have_ended(
        pool: aule.Cache) -> None:
    attached = pool.attach()
    for i in range(5):
        computed(pool, 1000 * i, BLOCK + 4).close()
    assert not attached._written


def test_slots_of_sequences_that_are_closed_can_still_be_reported(pool: aule.Cache) -> None:
    with pool.sequence(range(BLOCK + 3), publish=False) as text:
        plan = pool.plan([text])
        put(pool, plan.tables("cpu").slot_mapping, *kv(BLOCK + 3))
        plan.wrote()
        text.append(1)
        pool.plan([text]).wrote()
    pool.attach().report()
    assert free_blocks(pool) == 64


def test_a_fork_reports_first_so_that_a_copy_has_what_was_written(
        cuda: fake_cuda.Cuda, pool: aule.Cache) -> None:  # noqa: F811
    k, v = kv(3)
    with pool.sequence(range(3), publish=False) as text:
        plan = pool.plan([text])
        put(pool, plan.tables("cpu").slot_mapping, k, v)
        plan.wrote()
        fork = text.fork()
        for some in (text, fork):
            some.append(9)
        tables = pool.plan([text, fork]).tables("cpu")
        blocks = tables.indices.tolist()
        assert len(set(blocks)) == 2
        layer = fake_cuda.values(pool.layers[0])
        for block in blocks:
            np.testing.assert_array_equal(layer[block, 0, :, :3].transpose(1, 0, 2), k)
        fork.close()


def test_publishing_reports_full_blocks_and_leaves_the_rest_for_a_report(pool: aule.Cache) -> None:
    k, v = kv(COUNT + 3)
    attached = pool.attach()
    with pool.sequence(range(COUNT + 3)) as text:
        plan = pool.plan([text])
        put(pool, plan.tables("cpu").slot_mapping, k, v)
        plan.wrote()
        assert text.published == 0  # nothing has waited for the stream
        assert text.publish() == 2
        assert [len(one.slots) for one in attached._written[text]] == [3]
        text.append(7)
        q, new = drawn(1, HEADS, DIM), [drawn(1, KV_HEADS, DIM, seed=n) for n in (5, 6)]
        step = pool.step([text])
        with pytest.raises(errors.UnwrittenError):
            step.attend(0, q, *new)
        attached.report()
        out = step.attend(0, q, *new)
        wanted = expected(q, *(np.concatenate(pair) for pair in zip((k, v), new, strict=True)))
        np.testing.assert_allclose(out, wanted[0], **CLOSE)


def test_the_next_plan_or_the_sequences_end_publishes_what_a_plan_has_written(
        pool: aule.Cache) -> None:
    for ends in (False, True):
        first = 1000 * ends
        text = pool.sequence(range(first, first + COUNT))
        plan = pool.plan([text])
        put(pool, plan.tables("cpu").slot_mapping, *kv(COUNT))
        plan.wrote()
        if ends:
            text.close()
        else:
            text.append(7)
            pool.plan([text])
            assert text.published == 2
            text.close()
        assert len(pool.lookup(range(first, first + COUNT))) == 2


def test_a_stream_that_never_passes_is_an_error_and_can_be_reported_later(
        cuda: fake_cuda.Cuda, session: aule.Session) -> None:  # noqa: F811
    with aule.connect(session.socket, arena_size=1 << 20, stream_timeout=0.05) as own, \
            own.cache(name_of_cache(), **IDENTITY) as cache, \
            cache.sequence(range(COUNT)) as text:
        plan = cache.plan([text])
        put(cache, plan.tables("cpu").slot_mapping, *kv(COUNT))
        plan.wrote()
        cuda.current.stuck = True
        for call in (cache.attach().report, text.publish, lambda: cache.plan([text])):
            with pytest.raises(errors.TimeoutError, match="a CUDA stream has not passed"):
                call()
        assert text.published == 0
        cuda.current.stuck = False
        assert text.publish() == 2


# ---- several threads ----

def in_thread(call: Callable[[], object]) -> Callable[[], object]:
    """Begin a call in another thread, on a stream of its own; returns what waits for its end."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()

    def end() -> object:
        thread.join(DEADLINE_S)
        assert results, "it has not ended, or raised"
        return results[0]

    return end


def begin_report(cuda: fake_cuda.Cuda, pool: aule.Cache) -> Callable[[], None]:  # noqa: F811
    """Report in another thread, whose stream does not pass until the returned call lets it."""
    reached, lets = threading.Event(), threading.Event()

    def gate() -> None:
        reached.set()
        assert lets.wait(DEADLINE_S)

    def report() -> bool:
        cuda.current = fake_cuda.Stream()
        cuda.current.put(gate)
        pool.attach().report()
        return True

    end = in_thread(report)
    assert reached.wait(DEADLINE_S)

    def let_go() -> None:
        lets.set()
        assert end()

    return let_go


def test_what_a_thread_writes_while_another_reports_waits_for_the_next_report(
        cuda: fake_cuda.Cuda, pool: aule.Cache) -> None:  # noqa: F811
    attached = pool.attach()
    with pool.sequence(range(COUNT), publish=False) as text:
        plan = pool.plan([text])
        let_go = begin_report(cuda, pool)
        plan.wrote()  # it does not wait
        noted = attached._written[text]
        let_go()
        assert attached._written[text] == noted  # its stream may not have passed
        assert text.publish() == 2


def test_a_block_released_while_another_thread_waits_comes_free_with_the_next_report(
        cuda: fake_cuda.Cuda, pool: aule.Cache) -> None:  # noqa: F811
    text = pool.sequence(range(3), publish=False)
    plan = pool.plan([text])
    whole = free_blocks(pool)
    let_go = begin_report(cuda, pool)
    plan.wrote()  # kernels that the report does not wait for
    text.close()
    let_go()
    assert free_blocks(pool) == whole
    pool.attach().report()
    assert free_blocks(pool) == whole + 1


def closes(text: aule.Sequence) -> None:
    text.close()


def truncates(text: aule.Sequence) -> None:
    text.truncate(0)


@pytest.mark.parametrize("ends", [closes, truncates])
def test_a_report_waits_for_what_another_thread_launched_before_it_released_blocks(
        cuda: fake_cuda.Cuda, pool: aule.Cache,  # noqa: F811
        ends: Callable[[aule.Sequence], None]) -> None:
    attached, passed = pool.attach(), []
    whole = free_blocks(pool)

    def write_read_and_end() -> aule.Sequence:
        cuda.current = fake_cuda.Stream()
        text = pool.sequence(range(3), publish=False)
        pool.plan([text]).wrote()
        cuda.current.put(lambda: passed.append("a kernel that reads"))
        ends(text)
        return text

    text = in_thread(write_read_and_end)()
    attached.report()
    assert passed and free_blocks(pool) == whole
    assert isinstance(text, aule.Sequence)
    text.close()


def test_a_read_before_blocks_are_released_by_hand_is_waited_for(
        cuda: fake_cuda.Cuda, pool: aule.Cache) -> None:  # noqa: F811
    attached, passed = pool.attach(), []

    def read_and_release() -> bool:
        cuda.current = fake_cuda.Stream()
        ids = pool.lease(1)
        cuda.current.put(lambda: passed.append("a kernel that reads"))
        pool.release(ids)
        return True

    assert in_thread(read_and_release)()
    attached.report()
    assert passed


def test_only_what_releases_blocks_is_noted_for_reports(pool: aule.Cache) -> None:
    attached = pool.attach()
    pool.sequence(range(BLOCK), publish=False).close()  # has leased nothing
    with pool.sequence(range(BLOCK), publish=False) as text:
        pool.plan([text])
        text.truncate(BLOCK - 1)
        assert not attached._events
        text.truncate(0)
        assert len(attached._events) == 1
    attached.report()
    assert not attached._events


def test_a_plan_that_waits_gets_the_blocks_that_another_thread_releases_meanwhile(
        pool: aule.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    holds, reported = threading.Event(), threading.Event()
    report = _attached.Attached.report

    def report_and_say_so(attached: _attached.Attached) -> None:
        report(attached)
        reported.set()

    def hold_until_reported() -> bool:
        count = pool.attach().num_blocks * BLOCK
        with pool.sequence(range(count), publish=False) as text:
            pool.plan([text])
            holds.set()
            return reported.wait(DEADLINE_S)

    end = in_thread(hold_until_reported)
    assert holds.wait(DEADLINE_S)
    monkeypatch.setattr(_attached.Attached, "report", report_and_say_so)
    with pool.sequence(range(3), publish=False) as text:
        assert pool.plan([text], timeout=DEADLINE_S).num_tokens == 3
    assert end()


def test_threads_plan_write_publish_truncate_and_close_over_one_attached_cache(
        cuda: fake_cuda.Cuda, pool: aule.Cache) -> None:  # noqa: F811
    attached = pool.attach()

    def work(number: int) -> int:
        cuda.current = fake_cuda.Stream()
        for i in range(ROUNDS):
            first = 10_000 * number + 100 * i
            with pool.sequence(range(first, first + BLOCK + 3)) as text:
                for _ in range(3):
                    plan = pool.plan([text])
                    put(pool, plan.tables("cpu").slot_mapping, *kv(plan.num_tokens))
                    plan.wrote()
                    text.append(1)
                if i % 3 == 0:
                    text.truncate(BLOCK + 1)
                elif i % 3 == 1:
                    attached.report()
                assert text.publish() == 1
        return number

    ends = [in_thread(lambda number=number: work(number)) for number in range(4)]
    assert [end() for end in ends] == list(range(4))
    attached.report()
    assert not attached._written and not attached._events
    assert pool.state()["available_blocks"] == 64
