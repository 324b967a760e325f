# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Arrays in the arena: numpy, torch and DLPack, what is copied, and what a call costs."""

from __future__ import annotations

import gc
import time
from typing import Any

import aule
import numpy as np
import pytest
from aule import _native, _run, _ticket, dtypes
from conftest import DIM, HEADS, IDENTITY, KV_HEADS, drawn, expected

COUNT = 8


def test_memory_of_the_arena_is_numpys_or_torchs(session: aule.Session) -> None:
    array = session.empty((2, 3, 8), np.float16)
    assert isinstance(array, np.ndarray) and array.dtype == np.float16 and array.shape == (2, 3, 8)
    array[...] = 3
    assert session.in_arena(array) and session.in_arena(array[1:, ::2])
    assert not session.in_arena(array.copy())
    assert session.empty(5).dtype == np.float32 and session.empty(0).size == 0


def test_torch_has_all_types_in_the_arena(session: aule.Session) -> None:
    torch = pytest.importorskip("torch")
    for name in ("f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8"):
        tensor = session.empty((3, 16), name, kind="torch")
        assert dtypes.name(dtypes.code_of(tensor.dtype)) == name
        assert session.in_arena(tensor) and tensor.is_contiguous()
        tensor.copy_(torch.ones(3, 16))
        assert float(tensor.float().sum()) == 48
        assert session.empty(4, tensor.dtype).dtype == tensor.dtype
    assert session.empty((0, 8), "bf16", kind="torch").shape == (0, 8)


def test_ml_dtypes_are_numpys_bf16_and_fp8(session: aule.Session) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        array = session.empty(16, getattr(ml_dtypes, name))
        assert array.dtype == getattr(ml_dtypes, name)
        assert session.empty(16, dtypes.name(dtypes.code_of(array.dtype))).dtype == array.dtype


def test_dlpack_leads_into_the_arena_and_out_of_it(session: aule.Session) -> None:
    torch = pytest.importorskip("torch")
    array = session.empty((2, 8))
    tensor = torch.from_dlpack(array)
    tensor.fill_(7)
    assert array[1, 7] == 7 and session.in_arena(tensor)
    back = np.from_dlpack(session.empty((2, 8), torch.float32))
    assert session.in_arena(back)


class Foreign:
    """An array of a library that aule does not know."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arrays_of_other_libraries_come_by_dlpack(session: aule.Session, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(drawn(COUNT, heads, DIM)).to(getattr(torch, dtype))
               for heads in (HEADS, KV_HEADS, KV_HEADS)]
    with session.cache(f"foreign {dtype}", **{**IDENTITY, "dtype": dtype}) as cache:
        step = cache.step([cache.sequence(range(COUNT))])
        wanted = step.attend(0, *tensors)
        out = step.attend(0, *[Foreign(tensor) for tensor in tensors])
        assert np.array_equal(np.asarray(wanted.float()), np.asarray(torch.as_tensor(out).float()))


def test_a_run_over_arrays_of_the_arena_copies_nothing(session: aule.Session,
                                                       cache: aule.Cache) -> None:
    fused = session.empty((COUNT, HEADS + 2 * KV_HEADS, DIM))  # q, k and v side by side
    fused[...] = drawn(*fused.shape)
    q, k, v = np.split(fused, [HEADS, HEADS + KV_HEADS], axis=1)
    before = session.copied
    out, lse = cache.step([cache.sequence(range(COUNT))]).attend(0, q, k, v, lse=True)
    assert session.copied == before and session.in_arena(out) and session.in_arena(lse)
    np.testing.assert_allclose(out, expected(q, k, v)[0], rtol=1e-5, atol=1e-5)


def test_copied_bytes_are_counted_in_and_out(session: aule.Session, cache: aule.Cache) -> None:
    q, k, v = (drawn(COUNT, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    inside = session.empty(k.shape)
    inside[...] = k
    before = session.copied
    out = np.zeros((HEADS, COUNT, DIM), np.float32).swapaxes(0, 1)
    step = cache.step([cache.sequence(range(COUNT))])
    assert step.attend(0, q[:, ::-1], inside, v, out) is out
    after = session.copied
    assert after.bytes_in - before.bytes_in == q.nbytes + v.nbytes
    assert after.bytes_out - before.bytes_out == out.nbytes
    np.testing.assert_allclose(out, expected(q[:, ::-1], k, v)[0], rtol=1e-5, atol=1e-5)


def test_turned_arrays_of_the_arena_are_copied_and_counted(session: aule.Session,
                                                           cache: aule.Cache) -> None:
    turned = session.empty((9, DIM, HEADS)).swapaxes(1, 2)
    back = session.empty((9, KV_HEADS, DIM))[::-1]
    turned[...], back[...] = drawn(9, HEADS, DIM), drawn(9, KV_HEADS, DIM, seed=1)
    before = session.copied
    with cache.sequence(range(9)) as sequence:
        out = cache.step([sequence]).attend(0, turned, back, back)
    np.testing.assert_allclose(out, expected(turned, back, back)[0], rtol=1e-5, atol=1e-5)
    assert session.copied.bytes_in - before.bytes_in == turned.nbytes + 2 * back.nbytes


def test_slices_off_16_bytes_are_copied_and_counted(session: aule.Session,
                                                    cache: aule.Cache) -> None:
    wide = [session.empty((9, heads, DIM + 1)) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    q, k, v, out = (array[..., 1:] for array in wide)
    for array in (q, k, v):
        array[...] = drawn(*array.shape, seed=array.shape[1])
    before = session.copied
    with cache.sequence(range(9)) as sequence:
        step = cache.step([sequence])
        assert step.attend(0, q, k, v, out) is out
    np.testing.assert_allclose(out, expected(q, k, v)[0], rtol=1e-5, atol=1e-5)
    assert not session.in_arena(q)
    assert session.copied.bytes_in - before.bytes_in == q.nbytes + k.nbytes + v.nbytes
    assert session.copied.bytes_out - before.bytes_out == out.nbytes


def test_an_array_that_changes_its_shape_or_place_is_looked_at_anew(
        session: aule.Session, cache: aule.Cache) -> None:
    torch = pytest.importorskip("torch")
    step = cache.step([cache.sequence(range(COUNT))])
    q, k, v = (drawn(COUNT, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    first = step.attend(0, q, k, v)
    tensor = session.empty(q.shape, torch.float32)
    tensor.copy_(torch.from_numpy(q))
    np.testing.assert_array_equal(step.attend(0, tensor, k, v), first)
    other = session.empty(q.shape, torch.float32)
    other.copy_(torch.from_numpy(q[:, ::-1].copy()))
    tensor.set_(other)
    assert not np.array_equal(step.attend(0, tensor, k, v), first)
    out = step.attend(0, q, k, v)
    q.shape = (COUNT, HEADS * DIM, 1)
    with pytest.raises(aule.errors.InvalidError):
        step.attend(0, q, k, v)
    np.testing.assert_array_equal(out, first)


def test_torch_tensors_give_torch_tensors_without_a_gradient(cache: aule.Cache) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(drawn(COUNT, heads, DIM)).requires_grad_()
               for heads in (HEADS, KV_HEADS, KV_HEADS))
    with torch.no_grad():
        out, lse = cache.step([cache.sequence(range(COUNT))]).attend(0, q, k, v, lse=True)
    assert out.dtype == torch.float32 and lse.shape == (COUNT, HEADS) and not out.requires_grad
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *[x.transpose(0, 1)[None] for x in (q, k, v)], is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out, wanted[0].transpose(0, 1), check_stride=False)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_step_in_the_arena_copies_nothing_and_says_what_python_costs(
        session: aule.Session, cache: aule.Cache, monkeypatch: pytest.MonkeyPatch,
        kind: str) -> None:
    """The library's two functions are replaced by getters that do nothing: what is left is ours."""
    if kind == "torch":
        pytest.importorskip("torch")
    q, k, v, out = (session.empty((COUNT, heads, DIM), kind=kind)
                    for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    q[...] = k[...] = v[...] = 0
    step = cache.step([cache.sequence(range(COUNT))])
    step.attend(0, q, k, v, out)
    idle = _native.lib.aule_dtype_size
    monkeypatch.setattr(_run, "_submit", lambda *_: 0 * idle(0))
    monkeypatch.setattr(_ticket, "_wait", lambda *_: 0 * idle(0))
    best, copied = float("inf"), session.copied
    gc.disable()
    for _ in range(20):
        started = time.process_time()
        for layer in range(500):
            step.attend(layer % 2, q, k, v, out)
        best = min(best, (time.process_time() - started) / 500)
    gc.enable()
    print(f"step.attend() with {kind}: {best * 1e6:.1f} us of Python")
    assert session.copied == copied
