# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""What the modules share: a daemon and a session each, the geometry of a small model, float64."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aule
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

LONG = os.environ.get("AULE_TEST_LONG") == "1"
settings.register_profile(
    "aule", max_examples=400 if LONG else 20, deadline=None, database=None,
    suppress_health_check=list(HealthCheck))
settings.load_profile("aule")

LAYERS, HEADS, KV_HEADS, DIM, BLOCK = 2, 4, 2, 32, 16
IDENTITY: dict[str, Any] = {"num_layers": LAYERS, "num_kv_heads": KV_HEADS, "head_dim": DIM,
                            "dtype": "f32", "block_size": BLOCK}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a GPU and torch for CUDA")


def segments() -> set[str]:
    """The shared memory of sessions that this process maps. Their names are unlinked already."""
    return {line.split()[5] for line in Path("/proc/self/maps").read_text().splitlines()
            if "/dev/shm/aule-" in line}


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> Iterator[aule.Session]:
    """A session of the module's own daemon, which must end cleanly.

    The daemon gets the module's DAEMON_OPTIONS, too.
    """
    options = ["--cache-folder", "none", *getattr(request.module, "DAEMON_OPTIONS", [])]
    with aule.connect(autostart=True, daemon_options=options, name="pytest") as session:
        os.environ["AULE_SOCKET"] = session.socket or ""
        yield session
        del os.environ["AULE_SOCKET"]


_names = iter(range(10**9))


@pytest.fixture
def cache(session: aule.Session) -> Iterator[aule.Cache]:
    """A cache that no other test knows."""
    with session.cache(f"test {next(_names)}", **IDENTITY) as cache:
        yield cache


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that goes with the test; its name is short enough for a socket."""
    path = Path(tempfile.mkdtemp(prefix="aule-py-"))
    yield path
    shutil.rmtree(path)


def drawn(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def expected(q: Any, k: Any, v: Any, *, causal: bool = True, window: tuple[int, int] = (-1, -1),
             soft_cap: float = 0.0, sinks: Any = None, slopes: Any = None, mask: Any = None,
             scale: float | None = None, chunk: int = 0) -> tuple[Any, Any]:
    """Attention of one sequence in float64: q [T, H, D] against all keys k, v [S, Hkv, D].

    Queries are aligned with the last keys. Returns out [T, H, Dv] and lse [T, H].
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * (scale or q.shape[2] ** -0.5)
    if soft_cap:
        scores = soft_cap * np.tanh(scores / soft_cap)
    at = np.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    key = np.arange(k.shape[0])[None, :]
    if slopes is not None:
        scores = scores - np.asarray(slopes, np.float64)[:, None, None] * np.abs(at - key)
    seen = np.asarray(mask) if mask is not None else key <= at if causal else key > -1
    if window[0] >= 0:
        seen = seen & (key >= at - window[0])
    if window[1] >= 0:
        seen = seen & (key <= at + window[1])
    if chunk:
        seen = seen & (key // chunk == at // chunk)
    scores = np.where(seen[None], scores, -np.inf)
    sink = np.full(q.shape[1], -np.inf) if sinks is None else np.asarray(sinks, np.float64)
    largest = np.maximum(scores.max(-1, initial=-np.inf), sink[:, None])
    largest = np.where(np.isfinite(largest), largest, 0.0)  # no exponential overflows
    weights = np.exp(scores - largest[..., None])
    total = weights.sum(-1) + np.exp(sink[:, None] - largest)
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.nan_to_num(np.einsum("hqk,khd->qhd", weights, v) / total.T[:, :, None])
        return out, (largest + np.log(total)).T


def _say(pipe: Any, function: Any, arguments: tuple[Any, ...]) -> None:
    pipe.send(function(*arguments))


def in_processes(function: Any, each: list[tuple[Any, ...]]) -> list[Any]:
    """Call a function of hf_models in as many processes at once; returns what they return.

    They are forked by a process that has imported transformers, which takes six seconds of CPU.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hf_models"])
    ways = []
    try:
        for arguments in each:
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=_say, args=(send, function, arguments))
            process.start()
            send.close()
            ways.append((process, receive))
        assert all(receive.poll(600) for _, receive in ways)
        return [receive.recv() for _, receive in ways]
    finally:
        for process, _ in ways:
            process.join(30)
            process.kill()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


PYTHON = sys.executable
