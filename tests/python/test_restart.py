# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Daemons that start late, not at all, or anew: what waits, what comes back, what is said."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aule
import numpy as np
import pytest
from aule import _default, errors
from conftest import IDENTITY, PYTHON, drawn

ADVICE = "Start a daemon"
WAY_OUT = r"call aule\.connect\(\) again, open the caches, and make the sequences anew"


class Restarted:
    """A daemon at one path, again and again."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [os.environ["AULE_DAEMON"], "--socket", self.path, "--cache-folder", "none"],
            stderr=subprocess.DEVNULL)

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)

    def restart(self) -> None:
        self.end()
        self.start()
        aule.connect(self.path, wait=60).close()


@pytest.fixture
def daemon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Restarted]:
    daemon = Restarted(folder / "sock")
    monkeypatch.setenv("AULE_SOCKET", daemon.path)
    yield daemon
    daemon.end()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The pauses of a connect() that waits."""
    pauses: list[float] = []
    sleep = aule.session.time.sleep
    monkeypatch.setattr(aule.session.time, "sleep",
                        lambda pause: pauses.append(pause) or sleep(pause))
    yield pauses


# ---- a daemon that starts ----


@pytest.mark.parametrize("wait", [60, None])
def test_connect_waits_for_a_daemon_that_starts(daemon: Restarted, pauses: list[float],
                                                monkeypatch: pytest.MonkeyPatch,
                                                wait: float | None) -> None:
    sleep = aule.session.time.sleep
    monkeypatch.setattr(aule.session.time, "sleep",
                        lambda pause: sleep(pause) or (len(pauses) == 2 and daemon.start()))
    with aule.connect(wait=wait) as session:
        assert session.alive
    assert len(pauses) >= 2 and set(pauses) == {aule.session.LOOK_S}


def test_connect_says_after_its_wait_that_none_listens(folder: Path, pauses: list[float]) -> None:
    for wait, most in ((0, 0), (0.2, 4)):
        with pytest.raises(errors.DaemonGoneError, match=f"no such socket.*{ADVICE}"):
            aule.connect(str(folder / "none"), wait=wait)
        assert len(pauses) <= most and all(pause > 0 for pause in pauses)
    assert pauses


def a_folder(path: Path) -> None:
    path.mkdir()


def a_file(path: Path) -> None:
    path.touch()


def a_socket_of_datagrams(path: Path) -> socket.socket:
    its = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    its.bind(str(path))
    return its


def a_socket_of_packets(path: Path) -> socket.socket:
    its = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    its.bind(str(path))
    its.listen()
    return its


GREETING = 8  # bytes


def one_that_hangs_up(path: Path, greeting: bytes) -> threading.Thread:
    """A listener that ends after one connection, which it has greeted."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def hang_up() -> None:
        with listener, listener.accept()[0] as connection:
            if greeting:
                connection.sendall(greeting)
                connection.recv(GREETING)
                connection.recv(1)  # hello

    thread = threading.Thread(target=hang_up)
    thread.start()
    return thread


def one_that_is_silent(path: Path) -> socket.socket:
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(path))
    silent.listen()
    return silent


def one_of_another_protocol(path: Path) -> threading.Thread:
    return one_that_hangs_up(path, b"HTTP/1.1")


@pytest.mark.parametrize("what", [a_folder, a_file, a_socket_of_datagrams, a_socket_of_packets,
                                  one_of_another_protocol, one_that_is_silent])
def test_connect_neither_waits_nor_advises_a_daemon_where_none_can_start_or_one_runs(
        folder: Path, pauses: list[float], what: Callable[[Path], Any]) -> None:
    path = folder / "taken"
    kept = what(path)
    with pytest.raises((errors.DaemonGoneError, errors.TimeoutError)) as raised:
        aule.connect(str(path), wait=60, timeout=0.2)
    assert ADVICE not in str(raised.value) and not pauses
    if isinstance(kept, threading.Thread):
        kept.join(30)
    elif kept is not None:
        kept.close()


@pytest.mark.parametrize(("greeting", "sentence"), [
    (b"", "hung up at once"), (b"\0SP\0\0\x31\0\0", "HELLO has no answer")])
def test_connect_waits_for_the_daemon_that_follows_one_which_hangs_up(
        daemon: Restarted, monkeypatch: pytest.MonkeyPatch, greeting: bytes,
        sentence: str) -> None:
    """A daemon that is restarted may end between a connection and its hello."""
    path = Path(daemon.path)
    old = one_that_hangs_up(path, greeting)
    with pytest.raises(errors.DaemonGoneError, match=sentence) as raised:
        aule.connect()
    old.join(60)
    assert ADVICE not in str(raised.value)
    path.unlink()
    old, sleep = one_that_hangs_up(path, greeting), aule.session.time.sleep

    def restart(pause: float) -> None:
        if path.exists() and old.join(60) is None and not daemon._process:
            path.unlink()
            daemon.start()
        sleep(pause)

    monkeypatch.setattr(aule.session.time, "sleep", restart)
    with aule.connect(wait=60) as session:
        assert session.alive


def test_connect_waits_for_the_daemon_that_follows_one_which_is_stopping(
        folder: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    said = [errors.VersionError("another"), errors.StoppingError("stopping")]
    monkeypatch.setattr(aule.session, "opening_error", lambda _: said.pop())
    with pytest.raises(errors.VersionError):
        aule.connect(str(folder / "none"), wait=60)
    assert len(pauses) == 1


def test_a_wait_that_is_no_time_is_an_error() -> None:
    with pytest.raises(errors.InvalidError, match="wait = -1 seconds"):
        aule.connect(wait=-1)
    with pytest.raises(errors.InvalidError, match="wait = 1 with autostart"):
        aule.connect(wait=1, autostart=True)


def test_a_private_daemon_that_cannot_start_says_its_own_error() -> None:
    with pytest.raises(errors.DaemonGoneError, match='ended with code 1: .*no device is "nowhere"'):
        aule.connect(autostart=True, daemon_options=["--device", "nowhere"])


def test_a_private_daemon_that_ends_at_once_says_its_own_error(
        folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "daemon"
    program.write_text(f"""#!{PYTHON}
import os, socket, sys
sys.stderr.write("2026-01-01T00:00:00.000Z error daemon: the GPU is lost\\n"
                 "2026-01-01T00:00:00.000Z info  daemon: ended\\n")
sys.stderr.flush()
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
""")
    program.chmod(0o700)
    monkeypatch.setenv("AULE_DAEMON", str(program))
    with pytest.raises(errors.DaemonGoneError, match="error daemon: the GPU is lost$") as raised:
        aule.connect(autostart=True)
    assert ADVICE not in str(raised.value)


# ---- a daemon that starts anew ----


def test_errors_after_a_restart_say_what_is_lost_and_the_way_out(daemon: Restarted) -> None:
    daemon.restart()
    with aule.connect() as session:
        cache = session.cache("lost", **IDENTITY)
        sequence = cache.sequence(range(4))
        step = cache.step([sequence])
        daemon.restart()
        calls: list[Callable[[], Any]] = [
            cache.state, lambda: cache.step([sequence]), lambda: cache.sequence(range(100)),
            lambda: cache.lease(1), lambda: session.cache("other", **IDENTITY),
            lambda: step.attend(0, *[drawn(4, heads, 32) for heads in (4, 2, 2)])]
        for call in calls:
            with pytest.raises(ConnectionError, match=WAY_OUT) as raised:
                call()
            assert isinstance(raised.value, errors.AuleError) and "?." not in str(raised.value)
        assert sequence.tokens.tolist() == [0, 1, 2, 3]  # to make it anew
    with aule.connect() as session, session.cache("lost", **IDENTITY) as cache:
        cache.step([cache.sequence(range(4))])


def test_each_kept_session_connects_anew_after_its_daemon(daemon: Restarted) -> None:
    """One failed call says it for all of them."""
    daemon.restart()
    kept = [_default.KeptSession(arena_size=1 << 20) for _ in range(2)]
    old = [one.get() for one in kept]
    assert [one.get() for one in kept] == old
    daemon.restart()
    with pytest.raises(ConnectionError):
        old[0].cache("lost", **IDENTITY)
    new = [one.get() for one in kept]
    assert all(one.alive for one in new) and not set(map(id, old)) & set(map(id, new))
    for one in new:
        one.close()


def test_a_call_that_keeps_nothing_does_not_notice_a_restart(daemon: Restarted) -> None:
    daemon.restart()
    kept = _default.KeptSession(arena_size=1 << 20)
    tensors = [drawn(1, 5, 2, 32, seed=seed) for seed in range(3)]
    outs = []
    for _ in range(2):
        outs.append(kept.call(lambda session: session.attention(*tensors)))
        daemon.restart()
    np.testing.assert_array_equal(*outs)
    daemon.end()
    for _ in range(2):
        with pytest.raises(errors.DaemonGoneError, match="no daemon listens"):
            kept.call(lambda session: session.attention(*tensors))


def test_a_call_does_not_notice_that_another_thread_has_closed_the_lost_session(
        daemon: Restarted) -> None:
    daemon.restart()
    kept = _default.KeptSession(arena_size=1 << 20)
    tensors = [drawn(1, 5, 2, 32, seed=seed) for seed in range(3)]
    used: list[aule.Session] = []

    def attention(session: aule.Session) -> Any:
        used.append(session)
        if len(used) == 1:
            daemon.restart()
            with pytest.raises(ConnectionError):
                session.cache("lost", **IDENTITY)
            assert kept.get() is not session and session.closed  # as another thread's call does
        return session.attention(*tensors)

    kept.call(attention)
    assert len(used) == 2

    def close(session: aule.Session) -> Any:
        used.append(session)
        session.close()
        return session.attention(*tensors)

    with pytest.raises(errors.ClosedError):
        kept.call(close)
    assert len(used) == 3


def test_a_model_without_a_shared_cache_does_not_notice_a_restart(daemon: Restarted) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import aule.hf
    import hf_models
    from aule import _hf_forward

    daemon.restart()
    model, ids = hf_models.model_of("llama"), hf_models.prompt(1, 20)

    def logits() -> Any:
        with torch.no_grad():
            return model(ids).logits

    aule.hf.register()
    right = logits()
    daemon.restart()
    assert torch.equal(logits(), right)
    with aule.connect() as given:
        aule.hf.register(given)
        assert torch.equal(logits(), right)
        daemon.restart()
        for _ in range(2):
            with pytest.raises(ConnectionError, match=r"given to aule\.hf\.register\(\): call "
                                                      r"aule\.hf\.register\(\) again"):
                logits()
    with pytest.raises(errors.ClosedError, match="this session is closed.*again"):
        logits()
    aule.hf.register()
    assert torch.equal(logits(), right)
    _hf_forward._own.get().close()
