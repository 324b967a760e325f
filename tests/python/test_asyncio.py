# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Coroutines await tickets by the session's descriptor: no thread, any loop, any end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import aule
import numpy as np
import pytest
from aule import _notice, _ticket, errors
from conftest import (
    BLOCK,
    DIM,
    HEADS,
    IDENTITY,
    KV_HEADS,
    LAYERS,
    PYTHON,
    drawn,
    expected,
    open_descriptors,
    segments,
)

DAEMON_OPTIONS = ["--max-blocks", "4096"]  # tests lease all of them
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
QKV = [drawn(4, heads, DIM, seed=heads) for heads in (HEADS, KV_HEADS, KV_HEADS)]
WANTED = expected(*QKV)[0]


class Gate:
    """Keeps waits from seeing that a run has ended, until it is opened.

    passes: a thread whose waits see it nevertheless. held: ids of tickets for which it stays shut,
    and the status that their waits return.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shut = True
        self.passes: threading.Thread | None = None
        self.held: dict[int, int] = {}
        real = _ticket._wait

        def wait(*arguments: Any) -> int:
            held = self.held.get(arguments[1].id)
            if held is None and (not self.shut or threading.current_thread() is self.passes):
                return int(real(*arguments))
            time.sleep(min(arguments[2], 10) / 1000)
            return _ticket.TIMEOUT if held is None else held

        monkeypatch.setattr(_ticket, "_wait", wait)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def step(cache: aule.Cache) -> Iterator[Any]:
    with cache.sequence(range(4)) as sequence:
        yield cache.step([sequence])


def readers(session: aule.Session) -> list[Any]:
    assert session._notice is not None
    return list(session._notice._readers.values())


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


def in_threads(*works: Callable[[], object]) -> list[BaseException]:
    failures: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return failures


def test_awaiting_needs_no_thread(session: aule.Session, step: Any,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(asyncio, "to_thread")
    threads = threading.active_count()
    awaited = 0

    async def work() -> None:
        nonlocal awaited
        for _ in range(20):
            np.testing.assert_allclose(await step.submit(0, *QKV), WANTED, **CLOSE)
            assert threading.active_count() == threads
            awaited += 1

    async def main() -> None:
        await asyncio.gather(*[work() for _ in range(4)])

    asyncio.run(main())
    assert awaited == 80 and not session._orphans
    assert session._notice is not None and not session._notice._flying


def test_a_ticket_in_flight_wakes_its_loop_without_a_timer(session: aule.Session,
                                                           step: Any) -> None:
    async def main() -> None:
        await step.submit(0, *QKV)  # from here on, tickets belong to the descriptor
        loop = asyncio.get_running_loop()
        timers: list[float] = []
        later = loop.call_later
        loop.call_later = lambda delay, *rest: timers.append(delay) or later(delay, *rest)
        for _ in range(20):
            assert step.submit(0, *QKV)._noted
            await step.submit(0, *QKV)
        assert not [delay for delay in timers if delay != _notice.PAUSE_S]

    asyncio.run(main())


def test_loops_of_several_threads_await_their_own_and_common_tickets(session: aule.Session,
                                                                     step: Any) -> None:
    async def await_own() -> None:
        for _ in range(20):
            np.testing.assert_allclose(await step.submit(0, *QKV), WANTED, **CLOSE)

    common = [step.submit(0, *QKV) for _ in range(8)]

    async def await_common() -> None:
        for ticket in common:
            np.testing.assert_allclose(await ticket, WANTED, **CLOSE)

    assert not in_threads(*[lambda: asyncio.run(await_own()) for _ in range(3)],
                          *[lambda: asyncio.run(await_common()) for _ in range(2)],
                          lambda: [ticket.wait(60) for ticket in common])


def test_one_ticket_wakes_all_who_await_it(session: aule.Session, step: Any, gate: Gate) -> None:
    async def main() -> None:
        ticket = step.submit(0, *QKV)
        waits = [asyncio.ensure_future(wait(ticket)) for _ in range(3)]
        await until(lambda: len(ticket._waiters) == 3)
        gate.shut = False
        outs = await asyncio.gather(*waits)
        assert outs[0] is outs[1] is outs[2]
        assert not ticket._waiters

    asyncio.run(main())


async def wait(ticket: Any) -> Any:
    return await ticket


def test_a_wait_that_is_cancelled_leaves_the_run_and_no_reader(session: aule.Session, step: Any,
                                                               gate: Gate) -> None:
    async def main() -> None:
        ticket = step.submit(0, *QKV)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wait(ticket), 0.05)
        task = asyncio.ensure_future(wait(ticket))
        await until(lambda: ticket._waiters)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not ticket._waiters
        assert not [its for its in readers(session) if its._users]
        gate.shut = False
        np.testing.assert_allclose(await ticket, WANTED, **CLOSE)

    asyncio.run(main())


async def noted(step: Any, gate: Gate) -> Any:
    """A ticket that the descriptor stands for, so that no timer looks at it. The gate is shut."""
    gate.shut = False
    await step.submit(0, *QKV)
    gate.shut = True
    ticket = step.submit(0, *QKV)
    assert ticket._noted
    return ticket


@pytest.mark.parametrize("ends", ["return", "interrupt"])
def test_another_threads_wait_wakes_the_coroutine(session: aule.Session, step: Any, gate: Gate,
                                                  monkeypatch: pytest.MonkeyPatch,
                                                  ends: str) -> None:
    real = type(session._arena).copy_out

    def copy_out(*arguments: Any) -> Any:
        if ends == "interrupt" and threading.current_thread() is gate.passes:
            raise KeyboardInterrupt
        return real(*arguments)

    def end(ticket: Any) -> None:
        try:
            ticket.wait()
            said.append("return")
        except KeyboardInterrupt:
            said.append("interrupt")

    async def main() -> None:
        ticket = await noted(step, gate)
        task = asyncio.ensure_future(wait(ticket))
        await until(lambda: ticket._waiters)
        other = gate.passes = threading.Thread(target=end, args=(ticket,))
        other.start()
        np.testing.assert_allclose(await asyncio.wait_for(task, 60), WANTED, **CLOSE)
        await until(lambda: not other.is_alive())

    said: list[str] = []
    monkeypatch.setattr(type(session._arena), "copy_out", copy_out)
    asyncio.run(main())
    assert said == [ends]


def test_a_ticket_that_ends_before_it_is_noted_is_forgotten(
        session: aule.Session, step: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        ticket = await noted(step, gate)
        notice = session._notice
        assert notice is not None
        add = notice.add

        def late(noted: Any) -> None:
            other = gate.passes = threading.Thread(target=ticket.wait)
            other.start()
            other.join(60)
            add(noted)

        monkeypatch.setattr(notice, "add", late)
        np.testing.assert_allclose(await ticket, WANTED, **CLOSE)
        assert id(ticket) not in notice._flying

    asyncio.run(main())


@pytest.mark.parametrize("status", [_ticket.TIMEOUT, errors.LimitError.status,
                                    errors.NoMemoryError.status])
def test_a_ticket_that_nobody_awaits_starves_no_other(session: aule.Session, step: Any, gate: Gate,
                                                      status: int) -> None:
    """Tickets are noted in the order of their making; another thread may have submitted before."""
    async def main() -> None:
        ticket = await noted(step, gate)
        left = step.submit(0, *QKV)
        notice = session._notice
        assert notice is not None and left._id > ticket._id
        notice._flying = dict(reversed(notice._flying.items()))
        gate.held[left._id] = status
        task = asyncio.ensure_future(wait(ticket))
        await until(lambda: ticket._waiters)
        gate.shut = False
        np.testing.assert_allclose(await asyncio.wait_for(task, 60), WANTED, **CLOSE)
        assert list(notice._flying) == [id(left)]
        session._sweep()  # older tests may have dropped tickets
        assert not notice.reap()  # so a loop pauses
        gate.held.clear()
        np.testing.assert_allclose(await asyncio.wait_for(left, 60), WANTED, **CLOSE)
        assert not notice._flying

    asyncio.run(main())


@pytest.mark.parametrize("closer", ["loop", "thread"])
def test_a_session_that_is_closed_ends_what_awaits_it(session: aule.Session, gate: Gate,
                                                      closer: str) -> None:
    descriptors = open_descriptors()

    async def main() -> None:
        other = aule.connect(session.socket, arena_size=1 << 20)
        its = other.cache("closes", **IDENTITY)
        step = its.step([its.sequence(range(4))])
        tickets = [step.submit(0, *QKV) for _ in range(3)]
        tasks = [asyncio.ensure_future(wait(ticket)) for ticket in tickets]
        await until(lambda: all(ticket._waiters for ticket in tickets))
        tickets.append(step.submit(0, *QKV))  # noted
        tasks.append(asyncio.ensure_future(wait(tickets[3])))
        await until(lambda: tickets[3]._waiters)
        if closer == "loop":
            other.close()
        else:
            thread = threading.Thread(target=other.close)
            thread.start()
            await until(lambda: not thread.is_alive())
        for said in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(said, errors.ClosedError)
        with pytest.raises(errors.ClosedError):
            await tickets[0]

    asyncio.run(main())
    gc.collect()
    assert open_descriptors() == descriptors


def test_loops_that_end_while_a_run_is_awaited_leak_nothing(session: aule.Session, step: Any,
                                                            gate: Gate) -> None:
    step.submit(0, *QKV)  # makes what lasts as long as the session

    async def leave(ticket: Any) -> None:
        task = asyncio.ensure_future(wait(ticket))  # asyncio.run() cancels it
        await until(lambda: ticket._waiters)
        assert not task.done()

    def abandon(ticket: Any) -> None:
        loop = asyncio.new_event_loop()
        task: Any = loop.create_task(wait(ticket))
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        loop.close()
        task._log_destroy_pending = False  # else Python would say that it was destroyed

    asyncio.run(leave(step.submit(0, *QKV)))
    gc.collect()
    descriptors = open_descriptors()
    ticket = step.submit(0, *QKV)
    for _ in range(20):
        asyncio.run(leave(ticket))
        abandon(ticket)
    gate.shut = False
    np.testing.assert_allclose(asyncio.run(wait(ticket)), WANTED, **CLOSE)
    gc.collect()
    assert open_descriptors() <= descriptors + 1  # of the last loop


def test_tickets_that_nobody_awaits_do_not_keep_the_loop_busy(session: aule.Session, step: Any,
                                                              gate: Gate) -> None:
    async def main() -> None:
        gate.shut = False
        await step.submit(0, *QKV)
        gate.shut = True
        left = [step.submit(0, *QKV) for _ in range(3)]
        step.submit(0, *QKV)  # dropped
        ticket = step.submit(0, *QKV)
        task = asyncio.ensure_future(wait(ticket))
        await until(lambda: ticket._waiters)
        gate.shut = False
        await task
        assert session._notice is not None and not session._notice._flying
        session._sweep()
        assert not session._orphans
        for ticket in left:
            np.testing.assert_allclose(ticket.wait(), WANTED, **CLOSE)
        looks = 0
        real = _notice._Reader._look

        def look(reader: Any) -> None:
            nonlocal looks
            looks += 1
            real(reader)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_notice._Reader, "_look", look)
            gate.shut = True  # now the descriptor is readable, and there is nothing to reap
            ticket = step.submit(0, *QKV)
            task = asyncio.ensure_future(wait(ticket))
            started = time.monotonic()
            await until(lambda: looks > 2 * _notice.UNFRUITFUL)
            assert time.monotonic() - started >= _notice.PAUSE_S
            gate.shut = False
            await task

    asyncio.run(main())


def test_a_run_that_fails_is_the_error_of_each_who_awaits_it(session: aule.Session, step: Any,
                                                             gate: Gate) -> None:
    async def main(monkeypatch: pytest.MonkeyPatch) -> None:
        ticket = step.submit(0, *QKV)
        tasks = [asyncio.ensure_future(wait(ticket)) for _ in range(2)]
        await until(lambda: len(ticket._waiters) == 2)
        monkeypatch.setattr(_ticket, "_wait", lambda *_: errors.DeviceLostError.status)
        for said in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(said, errors.DeviceLostError)

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(main(monkeypatch))
    gate.shut = False
    session._sweep()


def test_a_daemon_that_dies_ends_what_awaits_it(gate: Gate) -> None:
    shared = segments()
    options = ["--cache-folder", "none"]
    gone = (errors.DaemonGoneError, errors.NoSessionError, errors.StoppingError)

    async def main() -> None:
        with aule.connect(autostart=True, daemon_options=options) as session:
            cache = session.cache("dies", **IDENTITY)
            step = cache.step([cache.sequence(range(4))])
            ticket = await noted(step, gate)  # the gate keeps it in flight
            task = asyncio.ensure_future(wait(ticket))
            await until(lambda: ticket._waiters)
            assert session._daemon is not None
            session._daemon.stop()
            gate.shut = False
            with pytest.raises(gone):
                await asyncio.wait_for(task, 60)
            with pytest.raises(gone):
                await step.submit(0, *QKV)

    asyncio.run(main())
    gc.collect()
    assert segments() == shared


def test_ctrl_c_in_a_loop_ends_the_program_and_nothing_hangs(session: aule.Session) -> None:
    ran = subprocess.run([PYTHON, "-c", f"""
import asyncio, os, signal
import numpy as np
import aule
from aule import _ticket
session = aule.connect()
cache = session.cache("interrupted", **{IDENTITY!r})
step = cache.step([cache.sequence([1, 2, 3, 4])])
q, k, v = (np.ones((4, heads, {DIM}), np.float32) for heads in ({HEADS}, {KV_HEADS}, {KV_HEADS}))
async def main():
    await step.submit(0, q, k, v)
    ticket = step.submit(0, q, k, v)
    _ticket._wait = lambda *_: _ticket.TIMEOUT  # the run lasts
    asyncio.get_running_loop().call_later(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    await ticket
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""], capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout == "interrupted\n" and ran.returncode == 0 and not ran.stderr, ran.stderr


# ---- claims and blocks ----


PROMPT = range(10 * BLOCK)


def computed(step: aule.Step) -> None:
    for layer in range(LAYERS):
        step.attend(layer, *[drawn(step.num_tokens, heads, DIM)
                             for heads in (HEADS, KV_HEADS, KV_HEADS)])


def settled(cache: aule.Cache) -> tuple[int, int]:
    """The leased and held blocks, once they are 0; the daemon frees some a little later."""
    deadline = time.monotonic() + 10
    while True:
        state = cache.state()
        counts = state["leased_blocks"], state["held_blocks"]
        if counts == (0, 0) or time.monotonic() > deadline:
            return counts
        time.sleep(0.01)


def test_coroutines_of_one_loop_compute_a_common_prompt_once(cache: aule.Cache) -> None:
    async def serve() -> int:
        with await cache.sequence_async(PROMPT, claim=True, timeout=30) as sequence:
            found = sequence.cached
            computed(await cache.step_async([sequence]))
            await asyncio.sleep(0)
            sequence.publish()
            return found

    async def main() -> list[int]:
        return await asyncio.gather(*[serve() for _ in range(4)])

    assert sorted(asyncio.run(main())) == [0] + 3 * [len(PROMPT)]


def test_a_claim_that_ends_lets_the_next_coroutine_compute(cache: aule.Cache) -> None:
    async def main() -> None:
        first = await cache.sequence_async(PROMPT, claim=True)
        second = await cache.sequence_async(PROMPT, claim=True, timeout=0)
        assert second.promised == len(PROMPT) and not await second.wait_async(0.01)
        asyncio.get_running_loop().call_later(0.05, first.close)
        assert await second.wait_async(None) and not second.promised and not second.cached
        second.close()

    asyncio.run(main())


ASKS: dict[str, Any] = {
    "reserve": lambda cache, new, **options: cache.reserve_async([(new, len(new))], **options),
    "step": lambda cache, new, **options: cache.step_async([new], **options)}


@pytest.mark.parametrize("ask", ASKS)
def test_a_coroutine_gets_blocks_that_another_one_releases(cache: aule.Cache, ask: str) -> None:
    async def main() -> None:
        held = cache.lease(cache.state()["available_blocks"])
        new = cache.sequence(PROMPT, publish=False)
        for timeout in (0, 0.05):
            with pytest.raises(errors.NoBlocksError):
                await ASKS[ask](cache, new, timeout=timeout)
        waits = asyncio.ensure_future(ASKS[ask](cache, new, timeout=None))
        await asyncio.sleep(0.05)  # the loop runs on
        assert not waits.done()
        cache.release(held)
        await asyncio.wait_for(waits, 30)
        assert new.num_blocks == 10
        new.close()

    asyncio.run(main())


async def a_claim(cache: aule.Cache, new: aule.Sequence) -> None:
    await cache.sequence_async(PROMPT, claim=True, timeout=None)


async def a_look_up(cache: aule.Cache, new: aule.Sequence) -> None:
    await cache.sequence_async(PROMPT)


async def a_step(cache: aule.Cache, new: aule.Sequence) -> None:
    await cache.step_async([new], timeout=None)


async def a_reservation(cache: aule.Cache, new: aule.Sequence) -> None:
    await cache.reserve_async([(new, len(new))], timeout=None)


@pytest.mark.parametrize("what", [a_claim, a_look_up, a_step, a_reservation])
def test_a_wait_that_is_cancelled_leaves_nothing_leased_held_or_claimed(
        cache: aule.Cache, monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    made: list[aule.Sequence] = []
    may, create = threading.Event(), aule.Sequence.create

    def late(*arguments: Any) -> aule.Sequence:
        may.wait(30)
        made.append(create(*arguments))
        return made[-1]

    async def main() -> None:
        first = cache.sequence(PROMPT, claim=True)
        new = cache.sequence(range(1000, 1000 + 10 * BLOCK), publish=False)
        held = cache.lease(cache.state()["available_blocks"])
        monkeypatch.setattr(aule.cache.Sequence, "create", late)
        if what is not a_look_up:
            may.set()
        waits = asyncio.ensure_future(what(cache, new))
        await asyncio.sleep(0.1)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        may.set()
        if what in (a_claim, a_look_up):
            await until(lambda: made and made[0].closed)
        assert not new.computed and not new.num_blocks
        cache.release(held)
        first.close()
        with cache.sequence(PROMPT, claim=True, timeout=0) as last:  # nobody claims it
            assert not last.promised
        new.close()

    asyncio.run(main())
    assert settled(cache) == (0, 0) and not cache._steps


def test_a_sequence_that_another_thread_uses_does_not_block_the_loop(cache: aule.Cache) -> None:
    sequence = cache.sequence(PROMPT)
    entered, may_go = threading.Event(), threading.Event()

    def use() -> None:
        with sequence._lock:
            entered.set()
            may_go.wait(30)

    async def main() -> None:
        with pytest.raises(errors.BusyError, match="another thread uses one of these sequences"):
            await cache.step_async([sequence], timeout=0.05)
        waits = [asyncio.ensure_future(cache.step_async([sequence], timeout=None)),
                 asyncio.ensure_future(sequence.wait_async(None))]
        await asyncio.sleep(0.05)
        assert not any(one.done() for one in waits)
        may_go.set()
        step, nothing_promised = await asyncio.wait_for(asyncio.gather(*waits), 30)
        assert step.num_tokens == len(PROMPT) and nothing_promised

    thread = threading.Thread(target=use)
    thread.start()
    assert entered.wait(30)
    asyncio.run(main())
    thread.join(30)


def test_a_session_that_is_closed_ends_coroutines_that_wait_for_it(session: aule.Session) -> None:
    async def main() -> None:
        other = aule.connect(session.socket, arena_size=1 << 20)
        cache = other.cache("closed while awaited", **IDENTITY)
        held = cache.lease(cache.state()["available_blocks"])
        first = cache.sequence(PROMPT, claim=True)
        new = cache.sequence(range(1000, 1000 + len(PROMPT)))
        waits = [asyncio.ensure_future(what(cache, new))
                 for what in (a_claim, a_step, a_reservation)]
        await asyncio.sleep(0.05)
        other.close()
        for said in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(said, errors.ClosedError)
        assert len(held) and first.closed

    asyncio.run(main())
