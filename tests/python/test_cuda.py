# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""CUDA tensors without CUDA: order, counts, registration and what goes wrong; test_gpu.py has one.

The fake makes a copy only when somebody waits for it.
"""

from __future__ import annotations

import gc
import os
import subprocess
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aule
import numpy as np
import pytest
from aule import _cuda, errors
from conftest import DIM, HEADS, IDENTITY, KV_HEADS, PYTHON, drawn, expected

torch = pytest.importorskip("torch")

import fake_cuda  # noqa: E402

COUNT = 8
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
ARENA = 1 << 20


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_cuda.Cuda]:
    cuda = fake_cuda.install(monkeypatch)
    yield cuda
    gc.collect()
    assert not cuda.runtime.registered


@pytest.fixture
def own(cuda: fake_cuda.Cuda, session: aule.Session) -> Iterator[aule.Session]:
    """A session that has seen no CUDA tensor yet."""
    with aule.connect(session.socket, arena_size=ARENA) as own:
        yield own


@pytest.fixture
def step(own: aule.Session) -> Iterator[Any]:
    with own.cache("cuda", **IDENTITY) as cache, \
            cache.sequence(range(COUNT), publish=False) as sequence:
        yield cache.step([sequence])


def qkv(seed: int = 0) -> list[Any]:
    return [drawn(COUNT, heads, DIM, seed=seed + i)
            for i, heads in enumerate((HEADS, KV_HEADS, KV_HEADS))]


def on_gpu(arrays: list[Any]) -> list[Any]:
    return [fake_cuda.tensor(array) for array in arrays]


def test_a_run_is_sent_after_its_copies_and_its_output_follows_on_the_stream(
        cuda: fake_cuda.Cuda, own: aule.Session, step: Any) -> None:
    arrays = qkv()
    late = on_gpu([np.zeros_like(array) for array in arrays])
    for tensor, array in zip(late, arrays, strict=True):  # the model is not done with them yet
        cuda.current.put(lambda t=tensor, a=array: fake_cuda.plain(t).copy_(torch.from_numpy(a)))
    out = step.attend(0, *late)
    assert cuda.copies == [True] * 4
    assert cuda.current._work and out.is_cuda  # nobody has waited for the output
    wanted = expected(*arrays)
    np.testing.assert_allclose(fake_cuda.values(out), wanted[0], **CLOSE)
    assert cuda.recorded == [cuda.default]
    _, lse = step.attend(0, *late, lse=True)
    np.testing.assert_allclose(fake_cuda.values(lse), wanted[1], **CLOSE)
    assert cuda.copies == [True] * 9


def test_copies_are_counted_as_asynchronous_and_as_copied(
        own: aule.Session, step: Any) -> None:
    tensors = on_gpu(qkv())
    assert own.cuda == (False, 0, 0, "")
    out = step.attend(0, *tensors)
    bytes_in = sum(tensor.nbytes for tensor in tensors)
    assert own.copied == (bytes_in, out.nbytes)
    assert own.cuda == (True, bytes_in + out.nbytes, 0, "")
    step.attend(1, *qkv())
    assert own.cuda.bytes_async == bytes_in + out.nbytes  # numpy's arrays are not CUDA's


def test_all_layers_at_once_and_contiguous_attention_wait_for_their_copies(
        own: aule.Session, step: Any) -> None:
    arrays = [qkv(seed) for seed in (0, 7)]
    out = step.attend_layers(*on_gpu([np.stack(pair) for pair in zip(*arrays, strict=True)]))
    for layer, some in zip(fake_cuda.values(out), arrays, strict=True):
        np.testing.assert_allclose(layer, expected(*some)[0], **CLOSE)
    out = own.attention(*on_gpu([array[None] for array in arrays[0]]))
    np.testing.assert_allclose(fake_cuda.values(out)[0], expected(*arrays[0])[0], **CLOSE)


def test_pools_on_the_gpu_have_arrived_when_their_batch_is_made(own: aule.Session) -> None:
    q, k, v = qkv()
    pools = [np.zeros((3, COUNT, KV_HEADS, DIM), np.float32) for _ in range(2)]
    pools[0][2], pools[1][2] = k, v
    for given in (on_gpu(pools), pools):
        out = aule.page_attention(
            fake_cuda.tensor(q[-1:]), *(pool.swapaxes(1, 2) if given is pools else
                                        pool.permute(0, 2, 1, 3) for pool in given),
            np.array([COUNT]), np.array([[2]]), session=own)
        np.testing.assert_allclose(fake_cuda.values(out), expected(q[-1:], k, v)[0], **CLOSE)


def test_memory_of_a_copy_under_way_is_not_given_to_others(
        cuda: fake_cuda.Cuda, own: aule.Session, step: Any) -> None:
    arrays = qkv()
    out = step.attend(0, *on_gpu(arrays))
    others = []
    with pytest.raises(errors.NoMemoryError):  # all that is free, down to the last gap
        size = 1 << 17
        while True:
            try:
                others.append(own.empty(size, "int8"))
                others[-1][...] = 99
            except errors.NoMemoryError:
                size //= 2
                if size < 16:
                    raise
    np.testing.assert_allclose(fake_cuda.values(out), expected(*arrays)[0], **CLOSE)
    assert all((other == 99).all() for other in others)


def test_a_full_arena_waits_for_copies_under_way(cuda: fake_cuda.Cuda, own: aule.Session,
                                                 step: Any) -> None:
    out = step.attend(0, *on_gpu(qkv()))
    assert cuda.current._work
    size = ARENA  # with the output's copy there, no gap is that large
    while True:
        try:
            array = own.empty(size, "int8")
            break
        except errors.NoMemoryError:
            size -= 4096
    assert not cuda.current._work and array.size > ARENA - 2 * 4096 and out.shape[0] == COUNT


def test_a_refused_tensor_leaves_no_copy_that_writes_later(
        cuda: fake_cuda.Cuda, own: aule.Session, step: Any) -> None:
    q, k, v = on_gpu(qkv())
    with pytest.raises(errors.InvalidError, match="v has shape"):
        step.attend(0, q, k, v[:, :1])
    assert not cuda.current._work
    lock = own._arena._page_lock
    assert lock is not None and not lock._coming and not lock._flying


def test_another_waiter_sees_the_output_on_its_own_stream(
        cuda: fake_cuda.Cuda, step: Any) -> None:
    arrays = qkv()
    ticket = step.submit(0, *on_gpu(arrays))
    ticket.wait()
    seen: list[Any] = []

    def other() -> None:
        cuda.current = fake_cuda.Stream()
        seen.append(fake_cuda.values(ticket.wait()))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(60)
    np.testing.assert_allclose(seen[0], expected(*arrays)[0], **CLOSE)


def test_each_thread_copies_on_its_own_stream(cuda: fake_cuda.Cuda, own: aule.Session) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            cuda.current = fake_cuda.Stream()
            with own.cache("cuda", **IDENTITY) as cache:
                for turn in range(10):
                    arrays = qkv(100 * seed + turn)
                    with cache.sequence(range(COUNT), publish=False) as sequence:
                        out = cache.step([sequence]).attend(0, *on_gpu(arrays))
                    np.testing.assert_allclose(fake_cuda.values(out), expected(*arrays)[0],
                                               **CLOSE)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures and len(cuda.runtime.registered) == 1


def test_the_arena_is_registered_once_and_unregistered_at_close(
        cuda: fake_cuda.Cuda, own: aule.Session, step: Any) -> None:
    arena = own._arena
    assert own.page_lock() and own.page_lock()
    step.attend(0, *on_gpu(qkv()))
    assert cuda.runtime.registered == {arena.start: own.info["arena_size"]}
    kept = own.empty(4)  # memory of the arena outlives the session
    out = step.attend(1, *on_gpu(qkv()))
    own.close()
    assert cuda.runtime.calls == [("register", arena.start), ("unregister", arena.start)]
    assert not cuda.current._work  # the output is copied, for the arena may go now
    np.testing.assert_allclose(fake_cuda.values(out), expected(*qkv())[0], **CLOSE)
    kept[...] = 1
    with pytest.raises(errors.ClosedError):
        own.page_lock()


def test_a_session_that_is_collected_unregisters_before_its_memory_goes(
        cuda: fake_cuda.Cuda, session: aule.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped: list[bool] = []
    real = fake_cuda.Cudart.cudaHostUnregister

    def unregister(runtime: Any, address: int) -> int:
        ranges = [[int(end, 16) for end in line.split()[0].split("-")]
                  for line in Path("/proc/self/maps").read_text().splitlines()
                  if "/dev/shm/aule-" in line]
        mapped.append(any(start <= address < end for start, end in ranges))
        return real(runtime, address)

    monkeypatch.setattr(fake_cuda.Cudart, "cudaHostUnregister", unregister)
    for circle in (False, True):
        other: Any = aule.connect(session.socket, arena_size=ARENA)
        cache: Any = other.cache("cuda", **IDENTITY)
        step: Any = cache.step([cache.sequence(range(COUNT), publish=False)])
        out: Any = step.attend(0, *on_gpu(qkv()))
        if circle:
            other.ring = [other, step, out]
        del other, cache, step, out
        gc.collect()
        assert not cuda.runtime.registered
    assert mapped == [True, True]


def test_a_registration_that_fails_is_said_once_and_copies_go_on(
        cuda: fake_cuda.Cuda, own: aule.Session, step: Any) -> None:
    cuda.runtime.status = fake_cuda.ALREADY_REGISTERED
    arrays = qkv()
    with pytest.warns(RuntimeWarning, match=r"pageable memory.*cudaHostRegister\(\) of 1048576 "
                                            r"bytes returned 712 \(error 712\)"):
        out = step.attend(0, *on_gpu(arrays))
    np.testing.assert_allclose(fake_cuda.plain(out), expected(*arrays)[0], **CLOSE)
    assert cuda.copies == [False] * 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step.attend(1, *on_gpu(arrays))
        assert not own.page_lock()
    assert len(cuda.runtime.calls) == 1
    assert own.cuda[:3] == (False, 0, own.copied.bytes_in + own.copied.bytes_out)
    assert own.cuda.reason.startswith("cudaHostRegister()")


def test_a_torch_without_cuda_says_so(session: aule.Session) -> None:
    if torch.cuda.is_available():
        pytest.skip("torch has CUDA here")
    with aule.connect(session.socket, arena_size=ARENA) as own:
        with pytest.warns(RuntimeWarning, match="torch has no CUDA runtime"):
            assert not own.page_lock()
        assert "CUDA" in own.cuda.reason


def test_an_output_that_comes_after_the_unregistering_is_copied_plainly(
        cuda: fake_cuda.Cuda, own: aule.Session, step: Any) -> None:
    ticket = step.submit(0, *on_gpu(qkv()))
    own._arena.close()
    out = ticket.wait()  # the run is done; its output is copied while the caller waits
    np.testing.assert_allclose(fake_cuda.plain(out), expected(*qkv())[0], **CLOSE)
    assert cuda.copies == [True, True, True, False] and not cuda.runtime.registered
    assert own.cuda.bytes_plain == out.nbytes


def test_ctrl_c_between_two_copies_loses_neither_memory_nor_order(
        cuda: fake_cuda.Cuda, own: aule.Session, step: Any,
        monkeypatch: pytest.MonkeyPatch) -> None:
    real = _cuda.PageLock.start
    begun: list[Any] = []

    def start(lock: Any, target: Any, source: Any) -> bool:
        if len(begun) == 1:
            raise KeyboardInterrupt
        begun.append(target.data_ptr())
        return bool(real(lock, target, source))

    with monkeypatch.context() as patch:
        patch.setattr(_cuda.PageLock, "start", start)
        with pytest.raises(KeyboardInterrupt):
            step.attend(0, *on_gpu(qkv()))
    assert not cuda.current._work  # else it would write into memory of others
    arrays = qkv(3)
    out = step.attend(0, *on_gpu(arrays))
    np.testing.assert_allclose(fake_cuda.values(out), expected(*arrays)[0], **CLOSE)


def test_a_forked_child_calls_no_cuda(session: aule.Session) -> None:
    ran = subprocess.run([PYTHON, "-c", f"""
import gc, os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import aule, fake_cuda, numpy as np, pytest
from conftest import DIM, HEADS, IDENTITY, KV_HEADS
cuda = fake_cuda.install(pytest.MonkeyPatch())
session = aule.connect({session.socket!r}, arena_size=1 << 20)
cache = session.cache("cuda", **IDENTITY)
step = cache.step([cache.sequence(range(2), publish=False)])
tensors = [fake_cuda.tensor(np.ones((2, heads, DIM), np.float32))
           for heads in (HEADS, KV_HEADS, KV_HEADS)]
out = step.attend(0, *tensors)
if os.fork() == 0:
    assert cuda.current._work  # the output's copy, which is the parent's
    try:
        step.attend(0, *tensors)
    except aule.errors.ForkedError:
        print("forked", flush=True)
    session.close()
    del session, cache, step
    gc.collect()
    print(len(cuda.runtime.calls), bool(cuda.current._work), flush=True)
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
print(fake_cuda.values(out).sum())
session.close()
print([call for call, _ in cuda.runtime.calls])
"""], capture_output=True, text=True, timeout=120, check=False, env={**os.environ})
    assert ran.stdout == ("forked\n1 True\n0\n256.0\n['register', 'unregister']\n"), \
        ran.stdout + ran.stderr


def test_interpreters_end_unregisters(session: aule.Session) -> None:
    ran = subprocess.run([PYTHON, "-c", f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import aule, fake_cuda, pytest
cuda = fake_cuda.install(pytest.MonkeyPatch())
cuda.runtime.cudaHostUnregister = lambda address: print("unregistered")
session = aule.connect({session.socket!r}, arena_size=1 << 20)
print(session.page_lock())
"""], capture_output=True, text=True, timeout=120, check=False)
    assert ran.stdout == "True\nunregistered\n" and not ran.stderr, ran.stdout + ran.stderr


def test_a_stream_that_never_passes_is_an_error_and_the_next_run_is_right(
        cuda: fake_cuda.Cuda, session: aule.Session) -> None:
    with aule.connect(session.socket, arena_size=ARENA, stream_timeout=0.05) as own, \
            own.cache("stuck", **IDENTITY) as cache, \
            cache.sequence(range(COUNT), publish=False) as text:
        step = cache.step([text])
        arrays = qkv()
        cuda.current.stuck = True
        with pytest.raises(errors.TimeoutError, match=r"has not passed after .*_timeout = 0\.05"):
            step.attend(0, *on_gpu(arrays))
        cuda.current.stuck = False
        out = step.attend(0, *on_gpu(arrays))
        np.testing.assert_allclose(fake_cuda.values(out), expected(*arrays)[0], **CLOSE)
