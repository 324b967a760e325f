# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""CUDA tensors of torch against torch's own attention, on the machine that has a GPU.

AULE_TEST_GPU=1 selects this module. It is skipped where torch has no CUDA.
"""

from __future__ import annotations

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
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *[x.transpose(0, 1)[None] for x in (q, k, v)], is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out, wanted[0].transpose(0, 1), check_stride=False,
                               atol=1e-4 if name == "float32" else 2e-2, rtol=2e-2)


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
        wanted = torch.nn.functional.scaled_dot_product_attention(
            *[x.transpose(0, 1)[None] for x in (q, k, v)], is_causal=True, enable_gqa=True)
        torch.testing.assert_close(out, wanted[0].transpose(0, 1), check_stride=False, atol=2e-2,
                                   rtol=2e-2)
