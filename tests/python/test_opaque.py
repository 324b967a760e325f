# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Opaque blocks: pages of an engine under chains of keys, between processes and over claims.

Also whole blocks and rows of K and V by hand.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from pathlib import Path
from typing import Any

import aule
import numpy as np
import pytest
from conftest import BLOCK, DIM, KV_HEADS, LAYERS

PAGE = 4096
SPAWN = multiprocessing.get_context("spawn")


def keys(text: str, count: int) -> Any:
    """A chain of SHA-256 keys, as int32 [count * 8]."""
    chain, digest = b"", text.encode()
    for _ in range(count):
        digest = hashlib.sha256(digest).digest()
        chain += digest
    return np.frombuffer(chain, np.int32)


def filled(session: aule.Session, count: int, first: int) -> Any:
    """Pages in the arena; each has its own number in all bytes."""
    pages = session.empty((count, PAGE), "int8")
    pages[:] = np.arange(first, first + count, dtype=np.int8)[:, None]
    return pages


def put(cache: aule.Cache, chain: Any, first: int) -> Any:
    """Publish all pages of a chain from its first one on, and let them go."""
    count = len(chain) // 8
    ids = cache.lease(count)
    cache.import_blocks(ids, filled(cache.session, count, first)).wait()
    ids = cache.publish(chain, ids)
    cache.release(ids)
    return ids


def other_process(socket: str, answers: Any) -> None:
    """Find two pages, and publish one behind them that is not held."""
    with aule.connect(socket) as session, session.cache("pages", block_bytes=PAGE) as cache:
        ids = cache.lookup(keys("a", 2))
        pages = session.empty((len(ids), PAGE), "int8")
        cache.export_blocks(ids, pages).wait()
        answers.put(pages.copy())
        cache.release(ids)
        tail = cache.lease(1)
        cache.import_blocks(tail, filled(session, 1, 9)).wait()
        answers.put(cache.publish(keys("a", 3), [-1, -1, tail[0]]).tolist())


@pytest.fixture
def pages(session: aule.Session) -> Any:
    with session.cache("pages", block_bytes=PAGE) as cache:
        yield cache


def test_pages_of_one_process_are_found_by_another_one_that_publishes_a_tail(
        session: aule.Session, pages: aule.Cache) -> None:
    put(pages, keys("a", 2), 1)
    answers = SPAWN.Queue()
    process = SPAWN.Process(target=other_process, args=(session.socket, answers))
    process.start()
    got, tail = answers.get(timeout=60), answers.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0
    assert (got == np.array([[1], [2]], np.int8)).all()
    assert tail[:2] == [-1, -1]
    ids = pages.lookup(keys("a", 3))
    assert len(ids) == 3
    back = session.empty((1, PAGE), "int8")
    assert pages.export_blocks(ids[2:], back).wait() is back
    assert (back == 9).all()
    pages.release(ids)


def test_a_tail_without_its_parents_is_not_found_and_not_sealed(pages: aule.Cache) -> None:
    ids = pages.lease(1)
    pages.import_blocks(ids, filled(pages.session, 1, 3)).wait()
    with pytest.raises(aule.errors.NotFoundError, match=r"blocks\[0\] = -1"):
        pages.publish(keys("nowhere", 2), [-1, ids[0]])
    pages.import_blocks(ids, filled(pages.session, 1, 4)).wait()  # still writable
    pages.release(ids)


def test_a_claim_waits_for_the_pages_of_another_session(session: aule.Session,
                                                       pages: aule.Cache) -> None:
    chain = keys("claimed", 2)
    with aule.connect(session.socket) as second, second.cache("pages", block_bytes=PAGE) as other:
        mine, theirs = pages.claim(chain), other.claim(chain)
        assert (mine.found, mine.promised, mine.open) == (0, 0, True)
        assert (theirs.found, theirs.promised) == (0, 2)
        assert not theirs.wait(0.0)
        put(pages, chain, 5)
        while theirs.promised:
            assert theirs.wait(30.0)
        assert theirs.found == 2
        assert not theirs.open
        assert (theirs.ids == pages.lookup(chain)).all()
        third, heir = pages.claim(keys("given up", 1)), other.claim(keys("given up", 1))
        assert heir.promised == 1
        third.release()
        assert heir.wait(30.0)
        assert (heir.found, heir.promised) == (0, 0)  # its own to compute


def loaded(cache: aule.Cache, chain: Any) -> Any:
    """The pages of a chain that tiers bring; the store may still be under way."""
    ids = np.empty(0, np.int32)
    end = time.monotonic() + 60
    while len(ids) < len(chain) // 8 and time.monotonic() < end:
        cache.release(ids)
        ids = cache.lookup(chain, load="always")
    pages = cache.session.empty((len(ids), PAGE), "int8")
    cache.export_blocks(ids, pages).wait()
    cache.release(ids)
    return pages


def test_tiers_keep_pages_in_host_memory_and_in_files(tmp_path: Path) -> None:
    chain, want = keys("kept", 3), np.array([[21], [22], [23]], np.int8)
    options = ["--cache-folder", "none", "--host-tier", "1M", "--tier", f"files://{tmp_path}",
               "--max-blocks", "8"]
    with (aule.connect(autostart=True, daemon_options=options) as session,
          session.cache("pages", block_bytes=PAGE) as cache):
        put(cache, chain, 21)
        for _ in range(2):
            cache.release(cache.lease(8, timeout=30))  # evicts them, once tiers have their copies
            assert (loaded(cache, chain) == want).all()
    with aule.connect(autostart=True, daemon_options=options) as session:
        with session.cache("pages", block_bytes=PAGE // 2) as cache:
            assert len(cache.lookup(chain, load="always")) == 0
        with session.cache("pages", block_bytes=PAGE) as cache:
            assert (loaded(cache, chain) == want).all()


@pytest.mark.parametrize(("identity", "failure", "words"), [
    ({"block_bytes": 24}, aule.errors.InvalidError, "24 is no multiple of 16"),
    ({"block_bytes": 64, "num_layers": 2}, aule.errors.InvalidError, "num_layers is 2"),
    ({"block_bytes": 64, "dtype": "f16"}, aule.errors.InvalidError, "k_dtype is"),
    ({"block_bytes": 1 << 32}, aule.errors.UnsupportedError, "less than 4 GiB"),
    ({"block_bytes": (1 << 32) - 16}, (aule.errors.LimitError, aule.errors.UnsupportedError),
     "4294967280"),
    ({"block_bytes": 64, "block_size": 9}, aule.errors.UnsupportedError, "block_size 9"),
    ({}, aule.errors.InvalidError, "num_layers is 0"),
])
def test_a_cache_that_cannot_be_has_a_sentence(session: aule.Session, identity: dict[str, Any],
                                               failure: type[Exception], words: str) -> None:
    with pytest.raises(failure, match=words):
        session.cache("unfit", **identity)


def test_a_page_may_have_16_bytes_or_many_mebibytes(session: aule.Session) -> None:
    for size in (16, 8 << 20):
        with session.cache(f"of {size}", block_bytes=size) as cache:
            assert cache.state()["block_bytes"] == cache.block_bytes == size
            page = session.empty(size, "int8")
            page[:] = np.resize(np.arange(101, dtype=np.int8), size)
            want = page.copy()
            ids = cache.lease(2)
            cache.import_blocks(ids[:1], page).wait()
            page[:] = 0
            cache.export_blocks(ids[:1], page).wait()
            assert (page == want).all()


def test_runs_and_rows_are_refused_over_opaque_blocks(pages: aule.Cache) -> None:
    ids = pages.lease(1)
    with pytest.raises(aule.errors.UnsupportedError, match="opaque blocks"):
        pages.batch(cu_seqlens_q=[0, 1], seq_lens_kv=[1], block_table=[[ids[0]]])
    with pytest.raises(aule.errors.UnsupportedError, match="opaque blocks"):
        pages.kv_export(0, ids)
    with pytest.raises(aule.errors.UnsupportedError, match="opaque blocks"):
        pages.kv_import(0, [0], np.zeros((1, 1, 8), np.float32))
    pages.release(ids)


def test_blocks_move_only_to_and_from_dense_arrays_of_the_arena(pages: aule.Cache) -> None:
    ids = pages.lease(1)
    for array, words in ((np.zeros(PAGE, np.int8), "does not lie in the arena"),
                         (pages.session.empty(PAGE // 2, "int8"), "2048 bytes; 1 blocks need"),
                         (pages.session.empty((PAGE, 2), "int8")[:, 0], "with gaps"),
                         ([0], "array is a list")):
        with pytest.raises(aule.errors.InvalidError, match=words):
            pages.import_blocks(ids, array)
    pages.release(ids)


def test_rows_of_k_and_v_are_imported_and_exported(cache: aule.Cache) -> None:
    rng = np.random.default_rng(1)
    k, v = (rng.standard_normal((BLOCK, KV_HEADS, DIM)).astype(np.float32) for _ in range(2))
    ids = cache.lease(1)
    slots = ids[0] * BLOCK + np.arange(BLOCK)
    for layer in range(LAYERS):
        cache.kv_import(layer, slots, k + layer, v).wait()
    got_k, got_v = cache.kv_export(1, ids, 5).wait()
    assert (got_k == k[:5] + 1).all()
    assert (got_v == v[:5]).all()
    whole = cache.session.empty(cache.block_bytes, "int8")
    cache.export_blocks(ids, whole).wait()
    twin = cache.lease(1)
    cache.import_blocks(twin, whole).wait()
    assert (cache.kv_export(0, twin).wait()[0] == k).all()
    with pytest.raises(aule.errors.InvalidError, match="k has shape"):
        cache.kv_import(0, slots, k[:2], v)
