# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""CUDA tensors of torch against torch's own attention, on the machine that has a GPU.

AULE_TEST_GPU=1 selects this module. It is skipped where torch has no CUDA.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import aule
import pytest

pytestmark = pytest.mark.gpu

LAYERS, HEADS, KV_HEADS, DIM = 2, 32, 8, 128


@pytest.fixture(autouse=True)
def torch() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA device here")
    return torch


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_cuda_tensors_are_copied_counted_and_right(session: aule.Session, torch: Any,
                                                   name: str) -> None:
    dtype = getattr(torch, name)
    count = 600
    q, k, v = (torch.randn(count, heads, DIM, dtype=dtype, device="cuda")
               for heads in (HEADS, KV_HEADS, KV_HEADS))
    cache = session.cache(f"gpu {name}", num_layers=LAYERS, num_kv_heads=KV_HEADS, head_dim=DIM,
                          dtype=dtype)
    before = session.copied
    with cache.sequence(range(count)) as sequence:
        out = cache.step([sequence]).attend(0, q, k, v)
    assert out.is_cuda and out.dtype == dtype
    assert session.copied.bytes_in - before.bytes_in == q.nbytes + k.nbytes + v.nbytes
    assert session.copied.bytes_out - before.bytes_out == out.nbytes
    assert session.cuda == (True, sum(session.copied), 0, "")
    torch.testing.assert_close(out, right(torch, q, k, v), check_stride=False,
                               atol=1e-4 if name == "float32" else 2e-2, rtol=2e-2)


def right(torch: Any, q: Any, k: Any, v: Any) -> Any:
    """Attention of one sequence [tokens, heads, dim], by torch."""
    return torch.nn.functional.scaled_dot_product_attention(
        *[x.transpose(0, 1)[None] for x in (q, k, v)], is_causal=True,
        enable_gqa=True)[0].transpose(0, 1)


def test_work_of_another_stream_is_waited_for(session: aule.Session, torch: Any) -> None:
    cache = session.cache("gpu stream", num_layers=1, num_kv_heads=KV_HEADS, head_dim=DIM)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), cache.sequence(range(64)) as sequence:
        base = torch.randn(64, HEADS, DIM, dtype=torch.float16, device="cuda")
        big = torch.randn(4096, 4096, device="cuda")
        for _ in range(20):
            big = big @ big.softmax(0)  # keeps the stream busy before q is made
        q = base + 0 * big[0, 0].half()
        k, v = q[:, :KV_HEADS] * 1, q[:, KV_HEADS:2 * KV_HEADS] * 1
        out = cache.step([sequence]).attend(0, q, k, v)
        torch.testing.assert_close(out, right(torch, q, k, v), check_stride=False, atol=2e-2,
                                   rtol=2e-2)


def test_memory_that_is_used_again_at_once_loses_no_copy(torch: Any, session: aule.Session) -> None:
    """The arena has room for little more than two runs, and streams change from run to run."""
    sizes = torch.randint(1, 200, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    streams = [torch.cuda.Stream() for _ in range(3)]
    with aule.connect(session.socket, arena_size=8 << 20) as own:
        cache = own.cache("gpu again", num_layers=1, num_kv_heads=KV_HEADS, head_dim=DIM)
        outs = []
        for turn, count in enumerate(sizes):
            with torch.cuda.stream(streams[turn % 3]), \
                    cache.sequence(range(count), publish=False) as sequence:
                q, k, v = (torch.randn(count, heads, DIM, dtype=torch.float16, device="cuda")
                           for heads in (HEADS, KV_HEADS, KV_HEADS))
                out = cache.step([sequence]).attend(0, q, k, v)
                outs.append((out, right(torch, q, k, v)))
        torch.cuda.synchronize()
        for out, wanted in outs:
            torch.testing.assert_close(out, wanted, check_stride=False, atol=2e-2, rtol=2e-2)
        assert own.cuda.bytes_plain == 0 and own.cuda.page_locked


def test_another_thread_that_waits_sees_the_output(session: aule.Session, torch: Any) -> None:
    cache = session.cache("gpu thread", num_layers=1, num_kv_heads=KV_HEADS, head_dim=DIM)
    q, k, v = (torch.randn(1024, heads, DIM, dtype=torch.float16, device="cuda")
               for heads in (HEADS, KV_HEADS, KV_HEADS))
    sums: list[Any] = []
    with cache.sequence(range(1024), publish=False) as sequence:
        ticket = cache.step([sequence]).submit(0, q, k, v)

        def wait() -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                sums.append(ticket.wait().float().sum().item())

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(sums) == 3 and len(set(sums)) == 1
    assert abs(sums[0] - right(torch, q, k, v).float().sum().item()) < 1


def test_the_arena_is_page_locked_until_the_session_ends(session: aule.Session,
                                                         torch: Any) -> None:
    for _ in range(3):
        own = aule.connect(session.socket, arena_size=1 << 20)
        kept = own.empty((4, 8), torch.float32)
        assert not kept.is_pinned() and own.page_lock() and kept.is_pinned()
        own.close()
        assert not kept.is_pinned() and float(kept.fill_(2).sum()) == 64


def test_an_arena_that_cuda_does_not_register_is_copied_plainly(session: aule.Session,
                                                                torch: Any) -> None:
    with aule.connect(session.socket, arena_size=8 << 20) as own:
        runtime = torch.cuda.cudart()
        # CUDA refuses the arena, because a part is registered. Copies do not reach that part.
        last = own._arena.start + (8 << 20) - 4096
        status = runtime.cudaHostRegister(last, 4096, 0)
        assert getattr(status, "value", status) == 0
        try:
            q, k, v = (torch.randn(64, heads, DIM, dtype=torch.float16, device="cuda")
                       for heads in (HEADS, KV_HEADS, KV_HEADS))
            cache = own.cache("gpu plain", num_layers=1, num_kv_heads=KV_HEADS, head_dim=DIM)
            with pytest.warns(RuntimeWarning, match="cudaHostRegister"):
                out = cache.step([cache.sequence(range(64), publish=False)]).attend(0, q, k, v)
            torch.testing.assert_close(out, right(torch, q, k, v), check_stride=False, atol=2e-2,
                                       rtol=2e-2)
            assert own.cuda[:3] == (False, 0, sum(own.copied))
        finally:
            runtime.cudaHostUnregister(last)


def test_a_group_over_two_gpus_gives_the_bits_of_one(torch: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU here")
    generator = torch.Generator().manual_seed(3)
    blocks, block, num_seqs = 512, 32, 6
    keys, values = (torch.randn(blocks, KV_HEADS, block, DIM, generator=generator).half()
                    for _ in "kv")
    query = torch.randn(num_seqs, HEADS, DIM, generator=generator).half()
    lens = [2000, 1, 33, 1024, 700, 1999]
    table = torch.randperm(blocks, generator=generator)[:num_seqs * 64].reshape(num_seqs, 64).int()
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(aule.connect(
            autostart=True, daemon_options=["--cache-folder", "none", "--device", str(device)])
        ).socket or "" for device in (0, 1)]
        group = stack.enter_context(aule.Group(sockets))
        assert len({str(session.info["device_uuid"]) for session in group.sessions}) == 2
        with aule.connect(sockets[0]) as alone:
            one = aule.page_attention(query, keys, values, lens, table, session=alone)
        for split in ("heads", "sequences"):
            out = group.page_attention(query, keys, values, lens, table, split=split)
            assert torch.equal(out, one)
