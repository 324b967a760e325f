# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Workers to read and copy do what they say."""

from __future__ import annotations

import argparse
import ast
import asyncio
import importlib
import re
import sys
import time
from pathlib import Path
from typing import Any

import aule
import pytest
from conftest import LONG

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import aule.hf  # noqa: E402
import hf_models  # noqa: E402

EXAMPLES = Path(__file__).parent.parent.parent / "examples/python"
NEW = 5


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs a worker's main() here; what it and its processes print."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def run(name: str, *arguments: Any) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        capfd.readouterr()
        code = importlib.import_module(name).main()
        out, err = capfd.readouterr()
        assert not code, err
        return out

    return run


@pytest.mark.parametrize("kind", ["gemma", "llama"] if LONG else ["gemma"])
def test_two_processes_serve_what_transformers_generates(session: aule.Session, folder: Path,
                                                         run: Any, kind: str) -> None:
    hf_models.model_of(kind).save_pretrained(folder)
    out = run("serve", folder, "--socket", session.socket, "--requests", 4, "--system-tokens", 70,
              "--prompt-tokens", 21, "--new-tokens", NEW, "--step-tokens", 48, "--running", 3,
              "--print-tokens")
    own = hf_models.model_of(kind, "eager")
    prompts_of = importlib.import_module("serve").prompts_of
    options = argparse.Namespace(requests=4, system_tokens=70, prompt_tokens=21)
    for process in range(2):
        for i, prompt in enumerate(prompts_of(options, process, hf_models.VOCAB)):
            said = re.search(rf"^process {process} request {i}: (.*)$", out, re.M)
            assert said, out
            ids = torch.tensor([prompt])
            right = own.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW,
                                 do_sample=False)[0, len(prompt):]
            assert ast.literal_eval(said[1]) == right.tolist()
    hits = re.findall(r"tokens/s, \d+ steps, hits (\d+) of 364 prompt tokens$", out, re.M)
    assert len(hits) == 2 and all(int(n) > 0 for n in hits), out


ROW = torch.tensor([[2, 3, 4, 5, 6, 9, 10, 11]])
AT = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]])


@pytest.mark.parametrize(("ids", "options", "sentence"), [
    (ROW[:, :7], {"position_ids": AT[:, :7]}, "input_ids are not the tokens of the step"),
    (ROW.flip(1), {"position_ids": AT}, "input_ids are not the tokens of the step"),
    (ROW, {}, "position_ids are not those of the step"),
    (ROW, {"position_ids": torch.arange(8)[None]}, "position_ids are not those of the step"),
    (ROW, {"position_ids": AT, "attention_mask": torch.ones_like(AT)}, "takes no attention_mask"),
])
def test_a_step_cache_takes_the_tokens_of_its_step_only(
        session: aule.Session, ids: Any, options: dict[str, Any], sentence: str) -> None:
    model, own = hf_models.model_of("llama"), hf_models.model_of("llama", "sdpa")
    with torch.no_grad(), aule.hf.open_cache(session, model, "step",
                                             block_size=hf_models.BLOCK) as cache:
        with cache.sequence(range(2, 7)) as one, cache.sequence(range(9, 12)) as other:
            past = aule.hf.StepCache(model, cache.step([one, other]))
            assert past.position_ids.tolist() == AT.tolist()
            with pytest.raises(aule.AuleError, match=sentence):
                model(ids, past_key_values=past, **options)
            got = model(ROW, position_ids=past.position_ids, past_key_values=past).logits[0]
        for text, rows in ((ROW[:, :5], slice(0, 5)), (ROW[:, 5:], slice(5, 8))):
            torch.testing.assert_close(got[rows], own(text).logits[0], rtol=1e-4, atol=1e-3)


def test_the_paged_lesson_emits_the_tokens_of_transformers(session: aule.Session, run: Any,
                                                           folder: Path) -> None:
    hf_models.model_of("llama").save_pretrained(folder)
    prompts = [hf_models.prompt(seed, length)[0].tolist() for seed, length in ((1, 37), (2, 75))]
    out = run("mini_sglang", folder, "--socket", session.socket, "--new-tokens", 20,
              *(part for prompt in prompts for part in ("--prompt", " ".join(map(str, prompt)))))
    own = hf_models.model_of("llama", "sdpa")
    right = [own.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)
             [0, len(prompt):].tolist() for prompt in prompts]
    assert [ast.literal_eval(line) for line in out.splitlines()] == right


@pytest.mark.parametrize("leaves", ["cancelled", "leaves the loop", "while it waits"])
def test_a_client_that_goes_away_ends_its_request_and_no_other(
        session: aule.Session, monkeypatch: pytest.MonkeyPatch, leaves: str) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    engine_of = importlib.import_module("serve").Engine
    model, own = hf_models.model_of("llama"), hf_models.model_of("llama", "sdpa")
    prompts = [hf_models.prompt(seed, 60)[0].tolist() for seed in range(3)]
    endless = 500

    async def stays(engine: Any, prompt: list[int]) -> list[int]:
        return [token async for token in engine.generate(prompt, NEW)]

    async def goes(engine: Any, prompt: list[int]) -> None:
        async for _ in engine.generate(prompt, endless):
            if leaves == "leaves the loop":
                return
            got_one.set()

    async def main(cache: aule.Cache) -> list[list[int]]:
        engine = engine_of(model, cache, step_tokens=32, most=1 if "waits" in leaves else 8)
        runner = asyncio.create_task(engine.run())
        rest = [asyncio.create_task(stays(engine, prompt)) for prompt in prompts[1:]]
        if "waits" in leaves:
            while not engine.running:
                await asyncio.sleep(0)
        client = asyncio.create_task(goes(engine, prompts[0]))
        if leaves == "cancelled":
            await got_one.wait()
        else:
            await asyncio.sleep(0)
        if leaves != "leaves the loop":
            client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        texts = await asyncio.gather(*rest)
        while engine.running or engine.waiting:
            await asyncio.sleep(0.001)
            assert not runner.done()
        assert engine.new_tokens < len(rest) * NEW + endless // 10
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
        return texts

    got_one = asyncio.Event()
    with aule.hf.open_cache(session, model, f"gone {leaves}", block_size=hf_models.BLOCK) as cache:
        texts = asyncio.run(main(cache))
        deadline = time.monotonic() + 10
        while cache.state()["leased_blocks"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert cache.state()["leased_blocks"] == 0
    for text, prompt in zip(texts, prompts[1:], strict=True):
        ids = torch.tensor([prompt])
        right = own.generate(ids, max_new_tokens=NEW, do_sample=False)[0, len(prompt):]
        assert text == right.tolist()
