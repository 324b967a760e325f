# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Drawn shapes, strides, types and options against float64. The geometry is one, for its shader."""

from __future__ import annotations

from typing import Any

import aule
import numpy as np
import pytest
from conftest import BLOCK, DIM, HEADS, IDENTITY, KV_HEADS, expected
from hypothesis import given
from hypothesis import strategies as st

CLOSE = {"f32": 2e-5, "f16": 6e-3, "bf16": 5e-2}


@st.composite
def layouts(draw: Any) -> dict[str, Any]:
    """How a tensor lies: in the arena or not, heads first or not, with gaps, turned around."""
    return {"inside": draw(st.booleans()), "heads_first": draw(st.booleans()),
            "gap": draw(st.sampled_from([0, 1, 3])), "kind": draw(st.sampled_from(["n", "t"])),
            "turned": draw(st.booleans())}


def laid(session: aule.Session, values: Any, dtype: str, layout: dict[str, Any]) -> Any:
    """Make an array of `values` [T, H, D] that lies as `layout` says."""
    tokens, heads, dim = values.shape
    kind = "torch" if layout["kind"] == "t" else "numpy"
    shape = ((heads, tokens + layout["gap"], dim) if layout["heads_first"]
             else (tokens, heads + layout["gap"], dim))
    array = session.empty(shape, dtype, kind=kind)
    if not layout["inside"]:
        array = array.clone() if kind == "torch" else array.copy()
    array = array.swapaxes(0, 1) if layout["heads_first"] else array
    array = array[:tokens, :heads]
    if kind == "torch":
        import torch

        array.copy_(torch.from_numpy(values))
        return array
    if layout["turned"] and not layout["inside"]:
        array = array[::-1, ::-1]
    array[...] = values
    return array


def rounded(values: Any, dtype: str) -> Any:
    import ml_dtypes

    kinds = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
    return values.astype(kinds[dtype]).astype(np.float32)


@given(data=st.data())
def test_drawn_steps_are_those_of_float64(session: aule.Session, data: Any) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    draw = data.draw
    dtype = draw(st.sampled_from(list(CLOSE)), "dtype")
    counts = draw(st.lists(st.integers(1, 2 * BLOCK + 3), min_size=1, max_size=3), "tokens")
    options: dict[str, Any] = {"causal": draw(st.booleans(), "causal"), "window": (
        draw(st.integers(-1, 20)), draw(st.integers(-1, 20)))}
    random = np.random.default_rng(draw(st.integers(0, 2**32), "seed"))
    total = sum(counts)
    values = [rounded(random.standard_normal((total, heads, DIM)), dtype)
              for heads in (HEADS, KV_HEADS, KV_HEADS)]
    if draw(st.booleans(), "sinks"):
        options["sinks"] = random.standard_normal(HEADS).astype(np.float32)
    if draw(st.booleans(), "soft cap"):
        options["soft_cap"] = 3.0
    names = {"sinks", "soft_cap", "causal", "window"}
    with session.cache(f"drawn {dtype}", **{**IDENTITY, "dtype": dtype}) as cache:
        sequences = [cache.sequence(random.integers(0, 1 << 30, count), publish=False)
                     for count in counts]
        step = cache.step(sequences)
        q, k, v = (laid(session, x, dtype, draw(layouts(), name))
                   for name, x in zip("qkv", values, strict=True))
        out, lse = step.attend(1, q, k, v, lse=True, **options)
        for rows in step.rows:
            wanted = expected(*[x[rows] for x in values],
                              **{name: options[name] for name in names & set(options)})
            got = out.float().numpy() if hasattr(out, "numpy") else out.astype(np.float32)
            close = CLOSE[dtype]
            np.testing.assert_allclose(got[rows], wanted[0], rtol=close, atol=close)
            np.testing.assert_allclose(np.asarray(lse)[rows], wanted[1], rtol=close, atol=close)
        for sequence in sequences:
            sequence.close()
