# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Whatever ends first, in whatever thread or process: nothing leaks, hangs or crashes."""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aule
import numpy as np
import pytest
from aule import errors
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
    resident_bytes,
    segments,
)

SESSIONS = 1000
DAEMON_OPTIONS = ["--max-blocks", "4096"]  # tests lease all of them; a GPU may have millions
OPTIONS: dict[str, Any] = {"arena_size": 1 << 20}


def qkv(count: int = 4) -> list[Any]:
    return [drawn(count, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]


def test_a_thousand_sessions_leave_descriptors_and_memory_flat(session: aule.Session) -> None:
    def use() -> None:
        with aule.connect(session.socket, **OPTIONS) as other:
            other.cache("flat", **IDENTITY).sequence(range(3)).append(1)
            other.empty((4, 4))

    for _ in range(50):
        use()
    gc.collect()
    descriptors, memory, shared = open_descriptors(), resident_bytes(), segments()
    for _ in range(SESSIONS):
        use()
    gc.collect()
    assert open_descriptors() == descriptors
    assert segments() == shared
    assert resident_bytes() - memory < 4 << 20


def test_objects_may_go_in_any_order(session: aule.Session) -> None:
    orders = list(itertools.permutations(range(6)))
    shared = segments()
    for order in random.Random(1).sample(orders, 24):
        other = aule.connect(session.socket, **OPTIONS)
        cache = other.cache("order", **IDENTITY)
        sequence = cache.sequence(range(4), publish=False)
        step = cache.step([sequence])
        ticket = step.submit(0, *qkv())
        objects: list[Any] = [other, cache, sequence, step, ticket, other.empty(7)]
        del other, cache, sequence, step, ticket
        for i in order:
            objects[i] = None
            gc.collect(0)
    gc.collect()
    assert segments() == shared


def test_a_circle_of_objects_goes_as_a_whole(session: aule.Session) -> None:
    shared = segments()
    for _ in range(5):
        other: Any = aule.connect(session.socket, **OPTIONS)
        cache: Any = other.cache("circle", **IDENTITY)
        sequence: Any = cache.sequence(range(4))
        step: Any = cache.step([sequence])
        ring = [step, sequence, cache, other, other.empty(8)]
        for thing in ring[:4]:
            thing.ring = ring
        del other, cache, sequence, step, ring, thing
        gc.collect()
    assert segments() == shared


def test_arrays_stay_readable_after_the_session(session: aule.Session) -> None:
    with aule.connect(session.socket, **OPTIONS) as other:
        array = other.empty((3, 5))
        array[...] = np.arange(15).reshape(3, 5)
        view = array[1:]
    del array
    assert view.sum() == sum(range(5, 15))
    view += 1


def test_a_dropped_ticket_keeps_its_tensors_and_is_reaped(session: aule.Session,
                                                          cache: aule.Cache) -> None:
    limit = session.info["max_tickets"]
    with cache.sequence(range(4)) as sequence:
        step = cache.step([sequence])
        for _ in range(2 * limit):
            step.submit(0, *qkv(), timeout=30)  # nobody waits
        assert step.attend(0, *qkv()).shape == (4, HEADS, DIM)
    session._sweep()
    assert not session._orphans


@pytest.mark.parametrize("name", ["_submit", "_submit_layers"])
def test_ctrl_c_right_after_a_submission_keeps_its_tensors_until_the_run_ends(
        session: aule.Session, cache: aule.Cache, monkeypatch: pytest.MonkeyPatch,
        name: str) -> None:
    step = cache.step([cache.sequence(range(4))])
    real = getattr(aule._run, name)

    def interrupted(*arguments: Any) -> int:
        assert real(*arguments) == 0
        raise KeyboardInterrupt

    monkeypatch.setattr(aule._run, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        if name == "_submit":
            step.submit(0, *qkv())
        else:
            step.submit_layers(*(array[None] for array in qkv()))
    gc.collect()
    [ticket] = session._orphans
    assert len(ticket._keep) == 5 and ticket._ticket.id  # K and V of a batch; q, k, v and out
    del ticket
    monkeypatch.undo()
    deadline = time.monotonic() + 30
    while session._orphans and time.monotonic() < deadline:
        session._sweep()
    assert not session._orphans
    step.attend(0, *qkv())


def test_a_step_of_a_sequence_that_closes_meanwhile_ends_quietly(
        cache: aule.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    sequence = cache.sequence(range(4))

    def late(*arguments: Any) -> aule.Step:
        sequence.close()
        return aule.Step(*arguments)

    monkeypatch.setattr(aule.cache, "Step", late)
    unraisable: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    with pytest.raises(errors.ClosedError):
        cache.step([sequence])
    gc.collect()
    assert not unraisable


def test_a_failed_copy_of_the_output_is_the_tickets_error_for_each_waiter(
        cache: aule.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = [KeyboardInterrupt(), MemoryError("no room")]
    step = cache.step([cache.sequence(range(4))])
    ticket = step.submit(0, *qkv())

    def fail(*_: Any) -> None:
        raise failures.pop(0)

    monkeypatch.setattr(type(step._session._arena), "copy_out", fail)
    with pytest.raises(KeyboardInterrupt):
        ticket.wait()
    for _ in range(2):
        with pytest.raises(MemoryError, match="no room"):
            ticket.wait()
    assert not failures


def test_a_second_waiter_gets_the_output_after_its_copy(
        cache: aule.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    step = cache.step([cache.sequence(range(4))])
    ticket = step.submit(0, *qkv())
    other = threading.Thread(target=ticket.wait)
    seen: list[bool] = []

    def look(*_: Any) -> None:
        other.start()
        other.join(0.1)
        seen.append(other.is_alive())

    monkeypatch.setattr(type(step._session._arena), "copy_out", look)
    ticket.wait()
    other.join(30)
    assert seen == [True] and not other.is_alive()


def test_too_many_tickets_are_busy_and_not_a_hang(session: aule.Session,
                                                  cache: aule.Cache) -> None:
    with cache.sequence(range(4)) as sequence:
        step = cache.step([sequence])
        tickets = []
        with pytest.raises(errors.BusyError, match="max-tickets"):
            for _ in range(session.info["max_tickets"] + 1):
                tickets.append(step.submit(0, *qkv(), timeout=0.2))
        for ticket in tickets:
            ticket.wait()


def test_a_session_may_be_closed_while_another_thread_opens_a_cache(
        session: aule.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set that grows while it is listed is listed again."""
    other = aule.connect(session.socket, **OPTIONS)
    cache = other.cache("listed", **IDENTITY)
    late: list[aule.Cache] = []
    real = type(other._children).__iter__

    def lists(children: Any) -> Any:
        for child in real(children):
            if not late:
                late.append(other.cache("late", **IDENTITY))
                raise RuntimeError("Set changed size during iteration")
            yield child

    monkeypatch.setattr(type(other._children), "__iter__", lists)
    cache.step([cache.sequence(range(4))])
    other.close()
    assert cache.closed and late[0].closed


def test_a_failed_wait_for_blocks_takes_its_time_and_ends(session: aule.Session) -> None:
    cache = session.cache("full", **IDENTITY)
    most = cache.state()["limit_blocks"]
    held = cache.lease(most - 1)
    started = time.monotonic()
    with pytest.raises(errors.NoBlocksError):
        cache.lease(2, timeout=0.3)
    assert time.monotonic() - started > 0.25
    cache.release(held)
    cache.close()


def refusals(session: aule.Session) -> int:
    """Return how many requests the daemon has refused for want of blocks."""
    ran = subprocess.run([os.environ["AULE_CTL"], "--socket", str(session.socket), "metrics"],
                         capture_output=True, text=True, check=True)
    name = 'aule_refused_requests_total{status="NO_BLOCKS"}'
    return next(int(line.split()[1]) for line in ran.stdout.splitlines() if line.startswith(name))


@pytest.mark.parametrize("loop", [False, True])
def test_a_wait_counts_as_refused_only_if_it_fails(session: aule.Session, loop: bool) -> None:
    cache = session.cache("full", **IDENTITY)
    new = cache.sequence(range(160), publish=False)

    def reserve(timeout: float) -> None:
        if loop:
            asyncio.run(cache.reserve_async([(new, 160)], timeout=timeout))
        else:
            cache.reserve([(new, 160)], timeout=timeout)

    held = cache.lease(cache.state()["limit_blocks"] - 1)
    before = refusals(session)
    for failed, timeout in enumerate((0, 0.05, 0.35)):
        with pytest.raises(errors.NoBlocksError):
            reserve(timeout)
        assert refusals(session) == before + failed + 1
    release = threading.Timer(0.4, cache.release, (held,))
    release.start()
    reserve(60)
    release.join()
    assert refusals(session) == before + 3
    new.close()
    cache.close()


WAITS = {"lease": "cache.lease(100, timeout=None)",
         "step": "cache.step([long], timeout=None)",
         "reserve": "cache.reserve([(long, 160)], timeout=None)"}


@pytest.mark.parametrize("wait_of", WAITS)
def test_a_session_may_be_closed_while_another_thread_waits(session: aule.Session,
                                                            wait_of: str) -> None:
    other = aule.connect(session.socket, **OPTIONS)
    cache = other.cache("full", **IDENTITY)
    names = {"cache": cache, "long": cache.sequence(range(160))}
    held = cache.lease(cache.state()["limit_blocks"] - 1)
    said: list[BaseException] = []

    def wait() -> None:
        try:
            eval(WAITS[wait_of], names)
        except BaseException as failure:
            said.append(failure)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.15)
    other.close()
    thread.join(30)
    assert not thread.is_alive() and isinstance(said[0], errors.ClosedError)
    assert len(held)


def test_a_step_may_be_closed_while_another_thread_waits_for_a_ticket(
        session: aule.Session, cache: aule.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    step = cache.step([cache.sequence(range(4))])
    waits = threading.Event()

    def busy(*_: Any) -> int:
        waits.set()
        return errors.BusyError.status

    monkeypatch.setattr(aule._run, "_submit", busy)
    said: list[BaseException] = []

    def submit() -> None:
        try:
            step.submit(0, *qkv(), timeout=None)
        except BaseException as failure:
            said.append(failure)

    thread = threading.Thread(target=submit)
    thread.start()
    assert waits.wait(30)
    cache.close()
    thread.join(30)
    assert not thread.is_alive() and isinstance(said[0], errors.ClosedError)


def run(text: str, *, timeout: float = 60, **options: Any) -> Any:
    return subprocess.run([PYTHON, "-c", text], capture_output=True, text=True, timeout=timeout,
                          check=False, **options)


PRELUDE = f"""
import contextlib, os, signal, sys, threading, time
import numpy as np
import aule
session = aule.connect()
cache = session.cache("full", **{IDENTITY!r})
q, k, v = (np.ones((4, heads, {DIM}), np.float32) for heads in ({HEADS}, {KV_HEADS}, {KV_HEADS}))
sequence = cache.sequence([1, 2, 3, 4])
step = cache.step([sequence])
"""


@pytest.mark.parametrize("wait_of", WAITS)
def test_the_interpreter_ends_with_everything_open(session: aule.Session, wait_of: str) -> None:
    ran = run(PRELUDE + f"""
long = cache.sequence(range(160))
tickets = [step.submit(0, q, k, v) for _ in range(5)]
arrays = [session.empty(10) for _ in range(5)]
others = [aule.connect(arena_size=1 << 20) for _ in range(3)]
cache.lease(cache.state()["limit_blocks"] - 10)
def wait():
    with contextlib.suppress(aule.errors.ClosedError):
        {WAITS[wait_of]}
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.2)
print("end")
""")
    assert ran.returncode == 0 and ran.stdout == "end\n" and not ran.stderr


def test_ctrl_c_ends_a_wait_for_blocks_and_for_a_run(session: aule.Session) -> None:
    for wait in ("cache.lease(cache.state()['limit_blocks'], timeout=None)", "ticket.wait()"):
        ran = run(PRELUDE + f"""
from aule import _ticket
real, signals = _ticket._wait, [signal.SIGINT]
def slow(*arguments):  # the run lasts until the signal has come
    if signals:
        os.kill(os.getpid(), signals.pop())
        return _ticket.TIMEOUT
    return real(*arguments)
ticket = step.submit(0, q, k, v)
cache.lease(1)
if "ticket" in {wait!r}:
    _ticket._wait = slow
else:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted")
ticket.wait()
print(step.attend(0, q, k, v).shape)
""")
        assert ran.stdout == f"interrupted\n{(4, HEADS, DIM)}\n", ran.stderr
        assert ran.returncode == 0 and not ran.stderr


def _in_child(session: Any, queue: Any) -> None:
    try:
        session.empty(3)
    except errors.AuleError as failure:
        queue.put((type(failure).__name__, str(failure)))


def test_after_fork_the_exception_names_spawn(session: aule.Session, cache: aule.Cache) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(session, queue))
    child.start()
    name, sentence = queue.get(timeout=30)
    child.join(30)
    assert name == "ForkedError" and "spawn" in sentence and child.exitcode == 0
    with cache.sequence(range(4)) as sequence:  # the parent goes on
        assert cache.step([sequence]).attend(0, *qkv()).shape == (4, HEADS, DIM)


def test_a_forked_child_that_ends_leaves_the_parent_its_daemon() -> None:
    ran = run("""
import gc, os, sys
import aule
session = aule.connect(autostart=True, daemon_options=["--cache-folder", "none"])
array = session.empty(5)
if os.fork() == 0:
    del array
    gc.collect()
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]), session.empty(3).shape, session.cache("c",
    num_layers=1, num_kv_heads=1, head_dim=32).state()["leased_blocks"])
""")
    assert ran.stdout == "0 (3,) 0\n", ran.stderr


@pytest.mark.parametrize("end", ["pass", "session.close()", "os._exit(0)",
                                 "os.kill(os.getpid(), 9)", "raise SystemExit"])
def test_a_private_daemon_ends_with_its_process(end: str) -> None:
    ran = run(f"""
import os
import aule
session = aule.connect(autostart=True, daemon_options=["--cache-folder", "none"])
print(session.socket, flush=True)
{end}
""")
    folder = Path(ran.stdout.strip()).parent
    assert ran.returncode == (-signal.SIGKILL if "kill" in end else 0), ran.stderr
    deadline = time.monotonic() + 20
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not folder.exists()


def test_a_daemon_that_dies_is_an_error_and_not_a_hang() -> None:
    with aule.connect(autostart=True, daemon_options=["--cache-folder", "none"]) as session:
        cache = session.cache("dies", **IDENTITY)
        sequence = cache.sequence(range(4))
        step = cache.step([sequence])
        step.attend(0, *qkv())
        ran = subprocess.run([os.environ["AULE_CTL"], "--socket", str(session.socket), "status"],
                             capture_output=True, text=True, check=True)
        os.kill(int(ran.stdout.split("pid ")[1].split(",")[0]), signal.SIGKILL)
        with pytest.raises((errors.DaemonGoneError, errors.NoSessionError)):
            step.attend(1, *qkv())
            step.attend(1, *qkv())
        with pytest.raises((errors.DaemonGoneError, errors.NoSessionError)):
            cache.state()


def test_the_default_session_connects_anew_after_its_daemon() -> None:
    ran = run("""
import os
import numpy as np
import aule
q, k, v = (np.ones((1, heads, 3, 32), np.float32) for heads in (4, 2, 2))
for life in range(2):
    with aule.connect(autostart=True, daemon_options=["--cache-folder", "none"]) as keeper:
        os.environ["AULE_SOCKET"] = keeper.socket
        if life:
            try:
                aule.flash_attention(q, k, v)
            except (ConnectionError, aule.AuleError) as failure:
                print(type(failure).__name__ in ("DaemonGoneError", "NoSessionError"))
        array = aule.default_session().empty(3)
        print(aule.default_session().alive, aule.flash_attention(q, k, v).shape)
print(array.shape)
""")
    assert ran.stdout == ("True (1, 4, 3, 32)\nTrue\nTrue (1, 4, 3, 32)\n(3,)\n"), \
        ran.stdout + ran.stderr


@pytest.mark.parametrize(("failure", "stays"), [(errors.TimeoutError, True),
                                                (errors.NoSessionError, False)])
def test_only_a_daemon_that_is_gone_ends_the_default_session(
        session: aule.Session, monkeypatch: pytest.MonkeyPatch, failure: type[errors.AuleError],
        stays: bool) -> None:
    with aule.default_session() as default:
        monkeypatch.setattr(aule._native, "losses", aule._native.losses + 1)
        monkeypatch.setattr(aule.Session, "_probe", lambda _: failure.status)
        assert (aule.default_session() is default) == stays
        aule.default_session().close()


# ---- steps and the blocks of their sequences ----


LENGTH = 20 * BLOCK


def computed(cache: aule.Cache, *sequences: aule.Sequence) -> aule.Step:
    """A step of whole prompts whose runs have ended, of all layers."""
    step = cache.step(sequences)
    for layer in range(LAYERS):
        step.attend(layer, *qkv(step.num_tokens))
    return step


def leased(cache: aule.Cache, wanted: int) -> int:
    """The cache's leased blocks, once they are as wanted; the daemon frees some a little later."""
    deadline = time.monotonic() + 10
    while (count := cache.state()["leased_blocks"]) != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return count


def closed_then_dropped(cache: aule.Cache) -> Any:
    with cache.sequence(range(LENGTH), publish=False) as sequence:
        step = computed(cache, sequence)
    del step


def closed_then_step_closed(cache: aule.Cache) -> Any:
    with cache.sequence(range(LENGTH), publish=False) as sequence:
        step = computed(cache, sequence)
    step.close()
    return step


def closed_before_its_step_is_used(cache: aule.Cache) -> Any:
    with cache.sequence(range(LENGTH), publish=False) as sequence:
        return cache.step([sequence])


def both_closed_by_an_error(cache: aule.Cache) -> Any:
    try:
        with cache.sequence(range(LENGTH), publish=False) as sequence:
            computed(cache, sequence)
            raise KeyError
    except KeyError as error:
        return error  # its traceback has the frame


def closed_with_a_fork(cache: aule.Cache) -> Any:
    with cache.sequence(range(LENGTH), publish=False) as sequence:
        step = computed(cache, sequence)
        fork = sequence.fork()
    fork.append([1, 2])
    with fork:
        return step, computed(cache, fork)


def truncated(cache: aule.Cache) -> Any:
    sequence = cache.sequence(range(LENGTH), publish=False)
    step = computed(cache, sequence)
    sequence.truncate(0)
    return sequence, step


def truncated_while_idle(cache: aule.Cache) -> Any:
    sequence = cache.sequence(range(LENGTH), publish=False)
    computed(cache, sequence).close()
    sequence.truncate(0)
    return sequence


def one_of_two_closed(cache: aule.Cache) -> Any:
    two = [cache.sequence(range(n, n + LENGTH), publish=False) for n in (0, 1000)]
    step = computed(cache, *two)
    two[0].close()
    two[1].truncate(0)
    return two, step


def a_circle(cache: aule.Cache) -> Any:
    sequence: Any = cache.sequence(range(LENGTH), publish=False)
    sequence.step = computed(cache, sequence)
    del sequence
    gc.collect()


@pytest.mark.parametrize("way", [
    closed_then_dropped, closed_then_step_closed, closed_before_its_step_is_used,
    both_closed_by_an_error, closed_with_a_fork, truncated, truncated_while_idle,
    one_of_two_closed, a_circle])
def test_no_step_keeps_the_blocks_of_sequences_that_have_gone(cache: aule.Cache, way: Any) -> None:
    kept = way(cache)
    assert leased(cache, 0) == 0
    del kept


def test_the_collector_may_end_a_sequence_before_its_step(cache: aule.Cache) -> None:
    sequence = cache.sequence(range(LENGTH), publish=False)
    step = computed(cache, sequence)
    sequence.__del__()  # as in a circle
    step.__del__()
    del sequence, step
    assert not cache._pool and leased(cache, 0) == 0


class Changing(dict[int, Any]):
    """Changes its size once while it is listed, as a finaliser or another thread does it."""

    changes = 1

    def values(self) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        yield from list(super().values())
        while self.changes:
            self.changes -= 1
            raise RuntimeError("dictionary changed size during iteration")


def test_steps_that_end_while_they_are_listed_disturb_no_sequence(cache: aule.Cache) -> None:
    sequence = cache.sequence(range(LENGTH), publish=False)
    steps: list[Callable[[], Any]] = [lambda: cache.step([sequence]), sequence.close]
    for change in steps:
        cache._steps = changing = Changing(cache._steps)
        change()
        assert not changing.changes


def test_a_step_that_is_over_ends_with_its_first_sequence_and_says_so(cache: aule.Cache) -> None:
    two = [cache.sequence(range(n, n + LENGTH), publish=False) for n in (0, 1000)]
    step = computed(cache, *two)
    two[0].close()
    assert leased(cache, 20) == 20
    with pytest.raises(errors.ClosedError, match="this step is over: a sequence of it was closed"):
        step.attend(0, *qkv(2 * LENGTH))


def test_a_step_whose_layers_are_not_all_submitted_goes_on_without_a_sequence(
        cache: aule.Cache) -> None:
    two = [cache.sequence(range(n, n + LENGTH), publish=False) for n in (0, 1000)]
    step = cache.step(two)
    tensors = qkv(2 * LENGTH)
    step.attend(0, *tensors)
    two[0].close()
    out = step.attend(1, *tensors)
    wanted = expected(*[x[LENGTH:] for x in tensors])[0]
    np.testing.assert_allclose(out[LENGTH:], wanted, rtol=1e-4, atol=1e-4)
    two[1].append(1)
    with cache.step([two[1]]):  # now the first step is over
        assert leased(cache, 21) == 21


@pytest.mark.parametrize("truncates", [False, True])
def test_a_sequence_that_steps_on_uses_its_native_step_again(cache: aule.Cache,
                                                             truncates: bool) -> None:
    """Advancing costs less than making. A truncation that releases no block changes nothing."""
    with cache.sequence(range(5)) as sequence:
        computed(cache, sequence).close()
        [(_, native)] = cache._pool
        sequence.append([1, 2])
        if truncates:
            sequence.truncate(6)
        with computed(cache, sequence) as step:
            assert step._open() is native


ASKS: dict[str, Any] = {
    "reserve": lambda cache, new: cache.reserve([(new, len(new))]),
    "lease": lambda cache, new: cache.release(cache.lease(len(new) // BLOCK)),
    "step": lambda cache, new: cache.step([new], timeout=0).close()}


def idle_blocks(cache: aule.Cache) -> aule.Sequence:
    """A sequence of 20 blocks, and an idle step whose batch alone names 20 others.

    Publishing has replaced these by those of another session.
    """
    with aule.connect(cache.session.socket or os.environ["AULE_SOCKET"], **OPTIONS) as other:
        twin = other.cache(cache._place[2], **IDENTITY)
        its, mine = twin.sequence(range(LENGTH)), cache.sequence(range(LENGTH))
        for one in (its, mine):
            computed(one.cache, one).close()
            assert one.publish() == 20
    assert cache._pool
    return mine


@pytest.mark.parametrize("ask", ASKS)
def test_idle_steps_give_their_blocks_if_the_pool_has_too_few(cache: aule.Cache, ask: str) -> None:
    mine = idle_blocks(cache)
    rest = cache.lease(cache.state()["available_blocks"])
    with cache.sequence(range(10**6, 10**6 + 10 * BLOCK), publish=False) as new:
        ASKS[ask](cache, new)
    assert not cache._pool and len(rest) and not mine.closed


@pytest.mark.parametrize("ask", ASKS)
def test_idle_steps_of_all_caches_give_their_blocks_at_the_sessions_limit(
        session: aule.Session, ask: str) -> None:
    with aule.connect(os.environ["AULE_SOCKET"], **OPTIONS) as own:
        one, two = (own.cache(f"{ask} {n}", **IDENTITY) for n in range(2))
        mine = idle_blocks(one)
        limit = f"session:{own.info['session']}=blocks:45"
        subprocess.run([os.environ["AULE_CTL"], "--socket", str(session.socket), "limit", limit],
                       check=True)
        with two.sequence(range(10 * BLOCK), publish=False) as new:
            ASKS[ask](two, new)
        with pytest.raises(errors.QuotaError), \
                two.sequence(range(30 * BLOCK), publish=False) as new:
            ASKS[ask](two, new)
        assert not one._pool and not mine.closed
