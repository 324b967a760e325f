# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Bad input raises an exception with a sentence, leaks nothing, and the next call works."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aule
import numpy as np
import pytest
from aule import errors
from conftest import DIM, HEADS, IDENTITY, KV_HEADS, PYTHON, drawn, expected, open_descriptors

COUNT = 6


@pytest.fixture(autouse=True)
def nothing_leaks(session: aule.Session) -> Iterator[None]:
    """Afterwards there are as many descriptors, and nearly all of the arena is free."""
    gc.collect()
    before = open_descriptors()
    yield
    gc.collect()
    assert open_descriptors() == before
    session._sweep()
    assert session.empty(session.info["arena_size"] - (1 << 20), "int8").nbytes > 0


@pytest.fixture
def step(cache: aule.Cache) -> Iterator[aule.Step]:
    """A step of COUNT tokens that computes rightly after the test."""
    with cache.sequence(range(COUNT), publish=False) as sequence, cache.step([sequence]) as step:
        yield step
        q, k, v = qkv()
        np.testing.assert_allclose(step.attend(0, q, k, v), expected(q, k, v)[0], rtol=1e-5,
                                   atol=1e-5)
    assert cache.state()["leased_blocks"] == 0


def qkv(dtype: Any = np.float32) -> list[Any]:
    return [drawn(COUNT, heads, DIM, seed=heads, dtype=dtype)
            for heads in (HEADS, KV_HEADS, KV_HEADS)]


def in_arena(session: aule.Session, array: Any) -> Any:
    copy = session.empty(array.shape, array.dtype)
    copy[...] = array
    return copy


# Each takes q, k, v and returns what attend() is given; the sentence has these words.
SHAPES: list[tuple[str, Callable[..., dict[str, Any]], str]] = [
    ("q of too few tokens", lambda q, k, v: {"q": q[1:]}, "q has shape (5, 4, 32)"),
    ("q without heads", lambda q, k, v: {"q": q[:, 0]}, "q has shape (6, 32), not [tokens"),
    ("q of another head_dim", lambda q, k, v: {"q": q[:, :, :16]}, "this run needs (6, 4, 32)"),
    ("heads that do not group", lambda q, k, v: {"q": q[:, :3]}, "num_heads"),
    ("k of q's heads", lambda q, k, v: {"k": q}, "k has shape (6, 4, 32)"),
    ("v of another length", lambda q, k, v: {"v": v[:2]}, "v has shape (2, 2, 32)"),
    ("no v", lambda q, k, v: {"v": None}, "v is a NoneType"),
    ("a list", lambda q, k, v: {"k": k.tolist()}, "k is a list"),
    ("float64", lambda q, k, v: {"q": q.astype(np.float64)}, "dtype float64 is none of aule's"),
    ("another byte order", lambda q, k, v: {"k": k.astype(">f4")}, "dtype >f4 has another byte"),
    ("complex", lambda q, k, v: {"v": v.astype(np.complex64)}, "dtype complex64"),
    ("two types", lambda q, k, v: {"k": k.astype(np.float16)}, "f16"),
    ("int8 queries", lambda *all: {x: y.astype(np.int8) for x, y in zip("qkv", all, strict=True)},
     "int8"),
    ("an out of another type", lambda q, k, v: {"out": np.empty(q.shape, np.float16)},
     "out is f16; this run makes f32"),
    ("an out of another shape", lambda q, k, v: {"out": np.empty((6, 4, 31), np.float32)},
     "out has shape (6, 4, 31)"),
    ("an lse of another shape", lambda q, k, v: {"lse": np.empty((4, 6), np.float32)},
     "lse has shape (4, 6)"),
    ("an lse of another type", lambda q, k, v: {"lse": np.empty((6, 4), np.float16)},
     "lse is f16; this run makes f32"),
    ("a layer too many", lambda q, k, v: {"layer": 2}, "layer"),
    ("a negative layer", lambda q, k, v: {"layer": -1}, "layer = -1"),
    ("a layer that is none", lambda q, k, v: {"layer": "one"}, "layer = 'one'"),
    ("a window that is none", lambda q, k, v: {"window": (1, 2, 3)}, "window = (1, 2, 3)"),
    ("a negative window", lambda q, k, v: {"window": (-7, 0)}, "-7"),
    ("a scale that is no number", lambda q, k, v: {"scale": "big"}, "scale = 'big'"),
    ("a scale of 0", lambda q, k, v: {"scale": 0.0}, "scale = 0.0; it is a number other than 0"),
    ("an infinite scale", lambda q, k, v: {"scale": float("inf")}, "scale"),
    ("a negative soft cap", lambda q, k, v: {"soft_cap": -1.0}, "soft_cap"),
    ("sinks for other heads", lambda q, k, v: {"sinks": np.zeros(3)}, "sinks has shape (3,)"),
    ("sinks that are none", lambda q, k, v: {"sinks": "salt"}, "sinks is no array of numbers"),
    ("slopes of two layers", lambda q, k, v: {"alibi_slopes": np.zeros((2, 4))},
     "alibi_slopes has shape (2, 4)"),
    ("a mask of another shape", lambda q, k, v: {"mask": np.ones((6, 5), bool)},
     "mask of sequence 0 is bool [6, 5]; it must be bool [6, 6]"),
    ("a mask of numbers", lambda q, k, v: {"mask": np.ones((6, 6))}, "float64 [6, 6]"),
    ("masks of two sequences", lambda q, k, v: {"mask": [np.ones((6, 6), bool)] * 2},
     "mask has 2 parts for 1 sequences"),
    ("a rope of an odd dim", lambda q, k, v: {"rope": aule.Rope(3)}, "rope"),
    ("a rope that is none", lambda q, k, v: {"rope": 8}, "rope = 8; it is an aule.Rope"),
    ("a timeout below 0", lambda q, k, v: {"timeout": -1}, "timeout = -1 seconds"),
]


@pytest.mark.parametrize(("change", "sentence"), [entry[1:] for entry in SHAPES],
                         ids=[entry[0] for entry in SHAPES])
def test_a_wrong_argument_of_a_run_raises_a_sentence(step: aule.Step, change: Any,
                                                     sentence: str) -> None:
    q, k, v = qkv()
    given = {"layer": 0, "q": q, "k": k, "v": v, **change(q, k, v)}
    with pytest.raises(errors.AuleError, match=re.escape(sentence)) as raised:
        step.attend(**given)
    assert isinstance(raised.value, (ValueError, IndexError, NotImplementedError))
    assert raised.value.name in ("INVALID", "MISMATCH", "OUT_OF_RANGE", "UNSUPPORTED")


def test_pools_in_the_arena_that_runs_cannot_write_raise_a_sentence(session: aule.Session) -> None:
    wide = session.empty((4, 16, KV_HEADS, DIM + 1))
    read_only = session.empty((4, 16, KV_HEADS, DIM))
    read_only.flags.writeable = False
    for keys, sentence in ((wide[..., 1:], "keys is off 16 bytes in the arena"),
                           (read_only, "keys is read-only")):
        with pytest.raises(errors.InvalidError, match=sentence):
            session.batch(keys=keys, values=keys, cu_seqlens_q=[0, 1],
                          seq_lens_kv=[1], block_table=np.array([[0]]), slot_mapping=[0])


def test_an_output_that_cannot_be_written_raises_a_sentence(session: aule.Session,
                                                            step: aule.Step) -> None:
    q, k, v = qkv()
    out = np.empty_like(q)
    out.flags.writeable = False
    with pytest.raises(errors.InvalidError, match="out is read-only"):
        step.attend(0, q, k, v, out)
    wide = np.lib.stride_tricks.as_strided(np.empty_like(q), q.shape, (0, *q.strides[1:]))
    with pytest.raises(errors.InvalidError, match="out .* has elements that share memory"):
        step.attend(0, q, k, v, wide)
    inside = in_arena(session, q)
    with pytest.raises(errors.InvalidError, match="overlap"):
        step.attend(0, inside, k, v, inside)


def test_a_wrong_device_raises_a_sentence(step: aule.Step) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = [torch.from_numpy(x) for x in qkv()]
    with pytest.raises(errors.InvalidError, match="q is on device meta; aule takes tensors on cpu"):
        step.attend(0, q.to("meta"), k, v)
    with pytest.raises(errors.InvalidError, match="out is on device meta"):
        step.attend(0, q, k, v, torch.empty_like(q, device="meta"))


def test_a_failed_run_raises_what_the_daemon_says(cache: aule.Cache) -> None:
    with (cache.batch(cu_seqlens_q=[0, 1], seq_lens_kv=[1],
                      block_table=np.array([cache.lease(1)])) as batch,
          pytest.raises(errors.InvalidError, match="no slot_mapping")):
        batch.attend(0, *[x[:1] for x in qkv()])
    with pytest.raises(errors.NotHeldError, match="block_table"):
        cache.batch(cu_seqlens_q=[0, 1], seq_lens_kv=[1], block_table=np.array([[400]]))
    with pytest.raises(errors.InvalidError, match="cu_seqlens_q has 3 entries for 1 sequences"):
        cache.batch(cu_seqlens_q=[0, 1, 2], seq_lens_kv=[1], block_table=np.array([[0]]))
    with pytest.raises(errors.InvalidError, match="slot_mapping is int64"):
        cache.batch(cu_seqlens_q=[0, 1], seq_lens_kv=[1], slot_mapping=[1, 2])


def test_a_wrong_cache_raises_a_sentence(session: aule.Session, cache: aule.Cache) -> None:
    taken = session.cache("taken", **IDENTITY)
    for identity, error, sentence in [
        ({"num_layers": 3}, errors.MismatchError, "num_layers"),
        ({"head_dim": 33}, errors.AuleError, "head_dim"),
        ({"num_layers": -1}, errors.InvalidError, "num_layers = -1"),
        ({"dtype": "f64"}, errors.InvalidError, "dtype f64 is none of aule's: f32 (float32)"),
        ({"scale": "row"}, errors.InvalidError, "scale = 'row' is none of none, tensor"),
        ({"fingerprint": b"x" * 65}, errors.InvalidError, "65"),
    ]:
        with pytest.raises(error, match=re.escape(sentence)):
            session.cache("taken", **{**IDENTITY, **identity})
    with pytest.raises(errors.InvalidError):
        session.cache("", **IDENTITY)
    taken.close()


def test_wrong_tokens_raise_a_sentence(cache: aule.Cache) -> None:
    for tokens, sentence in [([1.5], "tokens is float64"), ([[1]], "int64 [1, 1]"),
                             (["a"], "must be one row of integers"), ([2**40], "beyond int32")]:
        with pytest.raises(errors.AuleError, match=re.escape(sentence)):
            cache.sequence(tokens)
    with pytest.raises(errors.InvalidError, match="claim without publish"):
        cache.sequence([1, 2], claim=True, publish=False)
    with pytest.raises(errors.InvalidError, match="timeout = -1 seconds"):
        cache.sequence([1, 2], claim=True, timeout=-1)
    with cache.sequence([1, 2]) as sequence:
        with pytest.raises(errors.OutOfRangeError, match="2 tokens cannot be truncated to 3"):
            sequence.truncate(3)
        with pytest.raises(errors.OutOfRangeError):
            sequence.truncate(-1)
        for entries, sentence in [([], "num_seqs is 0"), ([sequence, sequence], "occurs twice"),
                                  ([(sequence, 3)], "2 left"), ([(sequence, 0)], "tokens = 0;"),
                                  ([7], "entry 0 is 7, no sequence")]:
            with pytest.raises(errors.InvalidError, match=sentence):
                cache.step(entries)
        with (cache.session.cache("other", **IDENTITY) as other,
              pytest.raises(errors.InvalidError, match="of another cache")):
            other.step([sequence])
    with pytest.raises(errors.InvalidError, match="count = 0"):
        cache.lease(0)


# Each is called with a session and a cache; the sentence has these words.
SCALARS: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda session, cache: aule.connect(arena_size=-1), "arena_size = -1"),
    (lambda session, cache: aule.connect(arena_size=2**64), "arena_size = 18446744073709551616"),
    (lambda session, cache: aule.connect(paged_threshold=1.5), "paged_threshold = 1.5"),
    (lambda session, cache: aule.connect(ring_spin_us="fast"), "ring_spin_us = 'fast'"),
    (lambda session, cache: aule.connect(device_arena_size=None), "device_arena_size = None"),
    (lambda session, cache: aule.connect(timeout="soon"), "timeout = 'soon' seconds"),
    (lambda session, cache: aule.connect(timeout=float("inf")),
     "timeout = inf seconds; it is a finite number from 0, or None for ever"),
    (lambda session, cache: aule.connect(stream_timeout=-1), "stream_timeout = -1 seconds"),
    (lambda session, cache: aule.connect(autostart="yes"), "autostart = 'yes'"),
    (lambda session, cache: session.attention(*[np.zeros((1, 1, 4, 8), np.float32)] * 3, wait="x"),
     "wait = 'x' seconds"),
    (lambda session, cache: session.empty(1, np.zeros(1, complex)), "is none of aule's"),
    (lambda session, cache: aule.connect("a\0b"), r"socket = 'a\x00b'; it is a path without NUL"),
    (lambda session, cache: aule.connect(5), "socket = 5"),
    (lambda session, cache: aule.connect(name="a\0b"), r"name = 'a\x00b'; it is a str without NUL"),
    (lambda session, cache: aule.connect(name=b"x"), "name = b'x'"),
    (lambda session, cache: aule.connect(tenant="a\0b"), r"tenant = 'a\x00b'"),
    (lambda session, cache: aule.connect(name="\ud800"), "name = '\\ud800'"),
    (lambda session, cache: aule.connect(autostart=True, daemon_options="--none"),
     "daemon_options = '--none'; it is a list of str"),
    (lambda session, cache: session.cache("a\0b", **IDENTITY), r"name = 'a\x00b'"),
    (lambda session, cache: session.cache(7, **IDENTITY), "name = 7"),
    *[(lambda session, cache, name=name: session.cache("none", **{**IDENTITY, name: 2**32}),
       f"{name} = 4294967296")
      for name in ("num_layers", "num_kv_heads", "head_dim", "block_size")],
    (lambda session, cache: session.cache("none", **{**IDENTITY, "head_dim": 32.0}),
     "head_dim = 32.0"),
    (lambda session, cache: session.cache("none", **IDENTITY, v_is_k_prefix="no"),
     "v_is_k_prefix = 'no'; it is True or False"),
    (lambda session, cache: session.cache("none", **IDENTITY, fingerprint=8), "fingerprint = 8"),
    (lambda session, cache: cache.lease(2**40), "count = 1099511627776"),
    (lambda session, cache: cache.lease(1 << 24), "count = 16777216; the pool has at most"),
    (lambda session, cache: cache.lease(1, timeout="x"), "timeout = 'x' seconds"),
    (lambda session, cache: cache.lease(1, timeout=True), "timeout = True seconds"),
    (lambda session, cache: cache.sequence([1]).wait("x"), "timeout = 'x' seconds"),
    (lambda session, cache: cache.release("x"), "ids is 'x'"),
    (lambda session, cache: cache.release(None), "ids is None"),
    (lambda session, cache: cache.lookup([1], max_tokens=-1), "max_tokens = -1"),
    (lambda session, cache: cache.lookup([1], extra_key=8), "extra_key = 8"),
    (lambda session, cache: cache.publish([1] * 16, [2**32]), "ids[0] = 4294967296"),
    (lambda session, cache: cache.sequence(5), "tokens is 5"),
    (lambda session, cache: cache.sequence([1], extra_key=8), "extra_key = 8"),
    (lambda session, cache: cache.sequence([1], publish="yes"), "publish = 'yes'"),
    (lambda session, cache: cache.sequence([1]).append([2**31]), "tokens[0] = 2147483648"),
    (lambda session, cache: cache.sequence([1]).append(1.5), "tokens is 1.5"),
    (lambda session, cache: cache.sequence([1]).truncate(2**32), "num_tokens = 4294967296"),
    (lambda session, cache: cache.sequence([1]).truncate(0.0), "num_tokens = 0.0"),
    *[(lambda session, cache, wrong=wrong: cache.sequence([1]).keep_private(wrong),
       f"num_tokens = {wrong}") for wrong in (-1, None, 1.0, 2**40)],
    (lambda session, cache: cache.step(5), "entries = 5"),
    (lambda session, cache: cache.step([(cache.sequence([1]), 1.0)]),
     "entry 0: its number of tokens = 1.0"),
    (lambda session, cache: cache.reserve([(cache.sequence([1]), 2**31)]),
     "entry 0: its number of tokens = 2147483648"),
    (lambda session, cache: session.empty(2.5), "shape = 2.5"),
    (lambda session, cache: session.empty([2**62, 0, 2**62]), "a length of shape"),
    (lambda session, cache: session.empty([2**40, 2**40]), "shape = (1099511627776"),
    (lambda session, cache: session.empty([1] * 65), "shape = (1, 1"),
    (lambda session, cache: session.empty(1, kind=np.zeros(2)), "kind = array"),
    (lambda session, cache: cache.batch(cu_seqlens_q=5, seq_lens_kv=[1]), "cu_seqlens_q is 5"),
    (lambda session, cache: cache.batch(cu_seqlens_q=[0, 1], seq_lens_kv=[[1], [2, 3]]),
     "seq_lens_kv is no array of numbers"),
    (lambda session, cache: cache.batch(cu_seqlens_q=[0, 1], seq_lens_kv=[1], max_seqlen_q=-1),
     "max_seqlen_q = -1"),
    (lambda session, cache: cache.batch(cu_seqlens_q=[0, 1], seq_lens_kv=[1], block_table=[0]),
     "block_table is int64 [1]; it must be integers [1, n]"),
    *[(lambda session, cache, name=name: cache.batch(cu_seqlens_q=[0, 1], seq_lens_kv=[1],
                                                     **{name: [2**32]}), f"{name}[0] = 4294967296")
      for name in ("positions", "q_lens", "token_rows", "kv_starts")],
    (lambda session, cache: cache.batch(cu_seqlens_q=[0, 1], seq_lens_kv=[1],
                                        slot_mapping=np.array([2**64 - 1], np.uint64)),
     "slot_mapping[0] = 18446744073709551615 is beyond int64"),
    (lambda session, cache: cache.batch(cu_seqlens_q=[0, 1], seq_lens_kv=[1], mask=5), "mask = 5"),
    (lambda session, cache: aule.Rope(8.0), "dim = 8.0"),
    (lambda session, cache: aule.Rope(8, theta="x"), "theta = 'x'"),
    (lambda session, cache: aule.Rope(8, frequencies=(1.0,)), "needs 4 frequencies"),
    (lambda session, cache: aule.vulkan.Aule(0), "paged_threshold = 0"),
    (lambda session, cache: aule.vulkan.BlockPool(3, 2, session=session), "blocks = 3"),
    (lambda session, cache: aule.vulkan.BlockPool(session="x"), "session = 'x'"),
    (lambda session, cache: aule.vulkan.BlockTable(1, 2**31), "max_blocks = 2147483648"),
    (lambda session, cache: aule.vulkan.BlockTable(1, 1).set(0, 0, 2**31), "physical_block = 2147"),
    (lambda session, cache: aule.vulkan.BlockTable(1, 1).get(0, 0.5), "logical_block = 0.5"),
    (lambda session, cache: aule.drop_cache("a\0b"), r"name = 'a\x00b'"),
    (lambda session, cache: aule.drop_cache("x", timeout=-1), "timeout = -1 seconds"),
]


def test_a_wrong_value_raises_a_sentence_with_its_name(session: aule.Session,
                                                       cache: aule.Cache) -> None:
    for call, sentence in SCALARS:
        with pytest.raises(errors.AuleError, match=re.escape(sentence)):
            call(session, cache)


def test_integers_and_numbers_of_numpy_and_torch_are_what_they_say(cache: aule.Cache) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = qkv()
    for kind in (np.int64, np.uint8, torch.tensor):
        with cache.sequence(iter(range(COUNT)), publish=False) as sequence:
            step = cache.step([(sequence, kind(COUNT))])
            out = step.attend(kind(0), q, k, v, window=kind(3), num_splits=kind(1),
                              scale=np.float32(0.5), soft_cap=torch.tensor(2.0), causal=np.True_)
            wanted = expected(q, k, v, window=(3, -1), scale=0.5, soft_cap=2.0)[0]
            np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
            sequence.append(kind(7))
            sequence.truncate(kind(3))
            assert len(sequence) == 3


def test_an_option_that_the_caller_changes_in_place_is_read_anew(step: aule.Step) -> None:
    q, k, v = qkv()
    window = [3, 0]
    for left in (3, 1):
        window[0] = left
        np.testing.assert_allclose(step.attend(0, q, k, v, window=window),
                                   expected(q, k, v, window=(left, 0))[0], rtol=1e-5, atol=1e-5)
    frequencies = np.full(DIM // 2, 0.5)
    rope = aule.Rope(DIM, frequencies=frequencies)
    first = step.attend(0, q, k, v, rope=rope)
    frequencies[:] = 0  # the rope has a copy
    np.testing.assert_array_equal(step.attend(0, q, k, v, rope=rope), first)
    assert np.abs(step.attend(0, q, k, v, rope=aule.Rope(DIM, frequencies=frequencies))
                  - first).max() > 0.1


def test_every_way_into_a_run_refuses_to_cut_a_gradient(session: aule.Session, cache: aule.Cache,
                                                        step: aule.Step) -> None:
    torch = pytest.importorskip("torch")
    given = [torch.from_numpy(x) for x in qkv()]
    wants = given[0].clone().requires_grad_()
    many = [x[None] for x in given]
    batch = cache.batch(cu_seqlens_q=[0, COUNT], seq_lens_kv=[0])
    calls: dict[str, Callable[[], Any]] = {
        "q": lambda: step.submit(0, wants, *given[1:]),
        "k": lambda: step.attend(0, given[0], given[1].clone().requires_grad_(), given[2]),
        "v": lambda: step.attend(0, *given[:2], given[2].clone().requires_grad_()),
        "out": lambda: step.attend(0, *given, wants),
        "sinks": lambda: step.attend(0, *given, sinks=torch.zeros(HEADS, requires_grad=True)),
        "alibi_slopes": lambda: step.attend(
            0, *given, alibi_slopes=torch.zeros(HEADS, requires_grad=True)),
        "scale": lambda: step.attend(0, *given, scale=torch.tensor(1.0, requires_grad=True)),
        "frequencies": lambda: aule.Rope(4, frequencies=torch.ones(2, requires_grad=True)),
        "q ": lambda: step.attend_layers(wants[None], *many[1:]),
        "q  ": lambda: session.attention(wants[None], *many[1:]),
        "q   ": lambda: batch.attend(0, wants, None),
        "q    ": lambda: torch.func.grad(lambda q: session.attention(q, *many[1:]).sum())(many[0]),
        "q     ": lambda: torch.func.jvp(lambda q: session.attention(q, *many[1:]), (many[0],),
                                         (many[0],)),
    }
    for name, call in calls.items():
        with pytest.raises(errors.UnsupportedError, match=f"{name.strip()} requires a gradient"):
            call()
    inside = session.empty(wants.shape, torch.float32)
    inside.copy_(given[0])
    first = step.attend(0, inside, *given[1:])
    inside.requires_grad_()  # after it was seen
    with pytest.raises(errors.UnsupportedError, match="q requires a gradient"):
        step.attend(0, inside, *given[1:])
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            torch.testing.assert_close(step.attend(0, inside, *given[1:]), first)
    with pytest.raises(errors.InvalidError, match="q is a tensor that has no memory"):
        torch.func.vmap(lambda q: session.attention(q, *many[1:]))(many[0][None])
    batch.close()


def test_a_dropped_cache_is_forgotten(session: aule.Session) -> None:
    q, k, v = (drawn(32, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    socket = session.socket
    with session.cache("dropped", **IDENTITY) as cache:
        with cache.sequence(range(32)) as sequence:
            step = cache.step([sequence])
            for layer in range(IDENTITY["num_layers"]):
                step.attend(layer, q, k, v)
        with cache.sequence(range(32)) as sequence:
            assert sequence.cached == 32
        with pytest.raises(errors.BusyError, match="dropped.* is open in 1 session"):
            aule.drop_cache("dropped", socket=socket)
    assert aule.drop_cache("dropped") == 2
    with pytest.raises(errors.NotFoundError, match="name = 'dropped'"):
        aule.drop_cache("dropped", socket=socket)
    with session.cache("dropped", **{**IDENTITY, "num_layers": 1}) as cache, \
            cache.sequence(range(32)) as sequence:
        assert sequence.cached == 0


def test_a_wrong_shape_of_memory_raises_a_sentence(session: aule.Session) -> None:
    with pytest.raises(errors.NoMemoryError, match="free"):
        session.empty((1 << 40,), "f32")
    with pytest.raises(errors.InvalidError, match="a length of shape = -1"):
        session.empty((2, -1))
    with pytest.raises(errors.InvalidError, match="kind = 'jax'"):
        session.empty(2, kind="jax")
    with pytest.raises(errors.InvalidError, match="is none of aule's"):
        session.empty(2, object)


def test_closed_objects_say_so(session: aule.Session) -> None:
    q, k, v = qkv()
    with aule.connect(session.socket) as other:
        cache = other.cache("closed", **IDENTITY)
        sequence = cache.sequence(range(COUNT))
        step = cache.step([sequence])
        step.close()
        with pytest.raises(errors.ClosedError, match="this step is closed"):
            step.attend(0, q, k, v)
        sequence.close()
        for call in (lambda: sequence.append(1), lambda: sequence.cached, sequence.fork,
                     lambda: cache.step([sequence]), sequence.publish):
            with pytest.raises(errors.ClosedError, match="this sequence is closed"):
                call()
        sequence, unfinished = cache.sequence(range(COUNT)), cache.sequence(range(COUNT))
        ticket = cache.step([unfinished]).submit(0, q, k, v)
        cache.close()
        for call in (lambda: cache.sequence([1]), cache.state, lambda: cache.lease(1)):
            with pytest.raises(errors.ClosedError, match="this cache is closed"):
                call()
        assert sequence.closed and unfinished.closed
        ticket.wait()
    for call in (lambda: other.empty(3), lambda: other.cache("closed", **IDENTITY),
                 lambda: other.attention(*[x[None] for x in (q, k, v)])):
        with pytest.raises(errors.ClosedError, match="this session is closed"):
            call()
    other.close()


def test_without_a_daemon_the_sentence_says_how_to_start_one(folder: Path) -> None:
    with pytest.raises(errors.DaemonGoneError, match="Start a daemon with 'aule-daemon', or call "
                                                     r"connect\(autostart=True\)"):
        aule.connect(str(folder / "none"))
    with pytest.raises(errors.InvalidError, match="120 bytes"):
        aule.connect("x" * 120)
    with pytest.raises(errors.InvalidError, match="with autostart"):
        aule.connect("x", autostart=True)
    with pytest.raises(errors.InvalidError, match="without autostart"):
        aule.connect(daemon_options=["--device", "1"])


def test_a_private_daemon_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.DaemonGoneError, match="ended with code 2: .*--frobnicate"):
        aule.connect(autostart=True, daemon_options=["--frobnicate"])
    monkeypatch.setenv("AULE_DAEMON", "/nowhere/aule-daemon")
    with pytest.raises(errors.DaemonGoneError, match="finds no aule-daemon"):
        aule.connect(autostart=True)


def test_a_silent_daemon_is_a_timeout(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(folder / "sock"))
        silent.listen()
        with pytest.raises(errors.TimeoutError):
            aule.connect(str(folder / "sock"), timeout=0.2)


def _pass_on(source: socket.socket, target: socket.socket, change: bool) -> None:
    """Pass bytes on; with `change` the first protocol 3.N in a message becomes 9.N.

    A message begins with 9 bytes of nng's; a number lies at a multiple of 4 behind them. One of
    8 bytes, such as the session's, has 4 bytes of zeroes.
    """
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            places = [at for at in range(9 + 32, len(data) - 3, 4)
                      if change and data[at:at + 4] == struct.pack("<I", 3)
                      and any(data[at + 4:at + 8])]
            if places:
                data = data[:places[0]] + struct.pack("<I", 9) + data[places[0] + 4:]
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def test_a_daemon_of_another_version_is_refused(session: aule.Session, folder: Path) -> None:
    path = str(folder / "sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            client, _ = listener.accept()
            with client, socket.socket(socket.AF_UNIX) as daemon:
                daemon.connect(session.socket or "")
                back = threading.Thread(target=_pass_on, args=(daemon, client, True), daemon=True)
                back.start()
                _pass_on(client, daemon, False)
                back.join(10)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            with pytest.raises((errors.VersionError, errors.MalformedError)) as raised:
                aule.connect(path, timeout=5)
        finally:
            thread.join(10)
    assert "9" in str(raised.value)


def test_a_library_of_another_version_is_refused(folder: Path) -> None:
    source = 'const char *aule_version(void) { return "9.4.0"; }'
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / "lib.so")],
                   input=source, text=True, check=True)
    for library, sentence in [("lib.so", "is 9.4.0; unset AULE_LIBRARY"),
                              ("none.so", "cannot load libaule-client")]:
        ran = subprocess.run([PYTHON, "-c", "import aule"], capture_output=True, text=True,
                             check=False, env={**os.environ, "AULE_LIBRARY": str(folder / library)})
        assert ran.returncode == 1 and sentence in ran.stderr
