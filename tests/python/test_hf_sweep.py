# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Each class that transformers generates text with is right on aule, or refused by a sentence.

A call draws some classes by AULE_TEST_SEED; AULE_TEST_LONG=1 runs all of them.
"""

from __future__ import annotations

import math
import os
import random
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aule
import pytest
from conftest import LONG

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if not transformers.__version__.startswith("5.23."):
    pytest.skip("the table is of transformers 5.23", allow_module_level=True)

import hf_sweep  # noqa: E402
from hf_tiny import classes  # noqa: E402

DOCUMENT = Path(__file__).parent.parent.parent / "docs/hf-models.md"
SEED = int(os.environ.get("AULE_TEST_SEED") or random.randrange(1 << 31))
DRAWN, JOBS = 16, 2
MODES = ("forward", "padding", "generate", "shared", "batch")

# Classes that many people run, and the modes that may be refused.
MUST_BE_EQUAL: dict[str, tuple[str, ...]] = {
    **dict.fromkeys([
        "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM",
        "Mistral3ForConditionalGeneration", "Qwen2ForCausalLM",
        "Qwen2_5_VLForConditionalGeneration", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
        "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration", "Gemma3nForCausalLM", "PhiForCausalLM",
        "Phi3ForCausalLM", "Phi4MultimodalForCausalLM", "PhimoeForCausalLM", "GptOssForCausalLM",
        "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Olmo2ForCausalLM",
        "GraniteForCausalLM", "Cohere2ForCausalLM", "OPTForCausalLM", "Glm4ForCausalLM",
        "SmolLM3ForCausalLM"], ()),
    # transformers gives them no cache, or no positions, of several texts in one row.
    **dict.fromkeys(["FalconForCausalLM", "StableLmForCausalLM", "Llama4ForCausalLM",
                     "Llama4ForConditionalGeneration"], ("batch",)),
    # Their layers have K and V of several shapes, or other state.
    **dict.fromkeys(["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration",
                     "Qwen3NextForCausalLM"], ("shared", "batch")),
    "BloomForCausalLM": MODES}


def drawn_classes() -> list[str]:
    """Those that must be equal, and others that the seed draws."""
    others = sorted(set(classes()) - set(MUST_BE_EQUAL))
    return [*MUST_BE_EQUAL, *(others if LONG else random.Random(SEED).sample(others, DRAWN))]


@pytest.fixture(scope="module")
def found(session: aule.Session) -> dict[str, dict[str, str]]:
    """The verdicts of drawn classes."""
    found = hf_sweep.sweep(drawn_classes(), session.socket or "", JOBS)
    for name in set(found) - set(in_time(found)):
        print(f"{name} is not tried: not done in {hf_sweep.TIMEOUT_S} s")
    return found


def in_time(found: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Leave out classes that were not done in time."""
    return {name: modes for name, modes in found.items() if hf_sweep.LATE not in modes.values()}


def test_no_class_differs(found: dict[str, dict[str, str]]) -> None:
    """An exception that is no refusal counts, too."""
    wrong = {f"{name}, {mode}": verdict for name, modes in found.items()
             for mode, verdict in modes.items()
             if hf_sweep.kind_of(verdict) in ("differs", "error")}
    assert not wrong, f"AULE_TEST_SEED={SEED}"


def test_classes_that_many_people_run_are_equal(found: dict[str, dict[str, str]]) -> None:
    wrong = {f"{name}, {mode}": modes[mode] for name, modes in in_time(found).items()
             if name in MUST_BE_EQUAL for mode in MODES
             if hf_sweep.kind_of(modes[mode]) not in (
                 ("equal", "refused") if mode in MUST_BE_EQUAL[name] else ("equal",))}
    assert not wrong


def table() -> dict[str, list[str]]:
    """The classes of the document's table, each with its row's cells."""
    text = DOCUMENT.read_text().partition(hf_sweep.BEGIN)[2]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]]
            for line in re.findall(r"^\|.*\|$", text, re.M)[2:]]
    return {name: row[:-1] for row in rows for name in re.findall(r"\b[A-Za-z]\w+", row[-1])}


def test_the_documents_table_has_each_class_of_transformers_once() -> None:
    assert sorted(table()) == sorted(classes())


def test_the_documents_table_says_what_the_sweep_finds(found: dict[str, dict[str, str]]) -> None:
    said, done = table(), in_time(found)
    assert {name: said[name] for name in done} == {
        name: hf_sweep.cells(modes) for name, modes in done.items()}, f"AULE_TEST_SEED={SEED}"


@pytest.mark.parametrize(("name", "lost"), [
    ("Gemma2ForCausalLM", "softcap"), ("GptOssForCausalLM", "s_aux"),
    ("GraniteForCausalLM", "scaling")])
def test_the_sweep_sees_an_option_that_is_lost(session: aule.Session, name: str, lost: str,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    aule.hf.register(session)
    right = transformers.AttentionInterface()["aule"]
    seen = []

    def wrong(*arguments: Any, **options: Any) -> Any:
        seen.append(options.pop(lost, None))
        return right(*arguments, **options)

    with torch.no_grad():
        case = hf_sweep.Case(name, session)
        assert case.forward().startswith("equal")
        monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "aule", wrong)
        assert not hf_sweep.verdict(case.forward).startswith("equal")
    assert any(option is not None for option in seen)


@pytest.mark.parametrize(("end", "limit", "verdict"), [
    (partial(time.sleep, 6000), 0.5, hf_sweep.LATE),
    (partial(os._exit, 3), math.inf, "error: wait status 768")])
def test_a_class_that_hangs_or_dies_stops_no_other(monkeypatch: pytest.MonkeyPatch, end: Any,
                                                   limit: float, verdict: str) -> None:
    def examine(name: str, socket: str) -> Iterator[tuple[str, str]]:
        yield "forward", "equal"
        if name == "bad":
            end()
        yield from ((mode, "equal") for mode in hf_sweep.MODES)

    monkeypatch.setattr(hf_sweep, "TIMEOUT_S", limit)
    monkeypatch.setattr(hf_sweep, "examine", examine)
    found = hf_sweep.sweep(["bad", "good"], "", tell=lambda name, modes: monkeypatch.setattr(
        hf_sweep, "TIMEOUT_S", math.inf))  # "good" begins after "bad" has ended
    assert set(found["good"].values()) == {"equal"}
    assert found["bad"]["batch"] == verdict
    assert found["bad"]["forward"] in ("equal", hf_sweep.LATE)
    assert in_time(found) == {name: modes for name, modes in found.items()
                              if name == "good" or verdict != hf_sweep.LATE}
