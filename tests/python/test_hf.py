# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""transformers on aule: greedy ids equal those of sdpa, and processes share prefixes."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import aule
import pytest
from conftest import LONG, in_processes

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import aule.hf  # noqa: E402
from aule import _hf_cache  # noqa: E402
from hf_models import (  # noqa: E402
    BLOCK,
    KINDS,
    NEW,
    generate,
    lengths,
    model_of,
    prompt,
    work,
)

PROMPTS = lengths(32) if LONG else [1, 16, 45, 130]
_models: dict[tuple[str, str], Any] = {}


def model(kind: str, attention: str = "aule") -> Any:
    if (kind, attention) not in _models:
        _models[kind, attention] = model_of(kind, attention)
    return _models[kind, attention]


def wanted(kind: str, ids: Any, **options: Any) -> list[int]:
    """What transformers' own attention generates; sdpa has no soft cap and no sinks."""
    own = "eager" if kind in ("gemma", "gpt_oss") else "sdpa"
    return generate(model(kind, own), ids, **options)[0].tolist()


def cache_of(session: aule.Session, kind: str, name: str = "") -> aule.Cache:
    return aule.hf.open_cache(session, model(kind), name or kind, block_size=BLOCK)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_ids_are_those_of_transformers(session: aule.Session, kind: str) -> None:
    with cache_of(session, kind) as cache:
        for seed, length in enumerate(PROMPTS):
            ids = prompt(seed, length)
            with aule.hf.SharedCache(cache, model(kind), ids) as past:
                assert past.cached <= max(0, length - 1)
                got = generate(model(kind), ids, past_key_values=past)[0].tolist()
                assert got == wanted(kind, ids), f"seed {seed}, {past.cached} tokens cached"
                assert past.get_seq_length() == length + NEW - 1


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(session: aule.Session, kind: str) -> None:
    """Greedy ids of a random model may hide an option that is lost; logits do not."""
    own = model(kind, "eager")
    ids = prompt(41, 90)
    with torch.no_grad(), cache_of(session, kind, f"logits {kind}") as cache:
        right = own(ids).logits[0]
        for _ in range(2):
            with aule.hf.SharedCache(cache, model(kind), ids) as past:
                at = past.cached
                got = model(kind)(ids[:, at:], past_key_values=past).logits[0]
                torch.testing.assert_close(got, right[at:], rtol=1e-4, atol=1e-3)
        assert at == 90 // BLOCK * BLOCK


def test_a_second_process_computes_only_what_the_first_has_not(session: aule.Session) -> None:
    ids = prompt(7, 100)
    with cache_of(session, "llama") as cache:
        first = aule.hf.SharedCache(cache, model("llama"), ids)
        with first:
            generate(model("llama"), ids, past_key_values=first)
        [[said]] = in_processes(work, [(session.socket, "llama", [(7, 100)])])
    assert said["cached"] == 100 // BLOCK * BLOCK
    assert said["ids"] == wanted("llama", ids)


def test_of_two_processes_with_one_prompt_one_computes_it(
        session: aule.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prompt(11, 100)
    with cache_of(session, "llama", "claimed") as cache, \
            aule.connect(session.socket, arena_size=1 << 22) as other:
        first = aule.hf.SharedCache(cache, model("llama"), ids)
        own = aule.hf.SharedCache(cache, model("llama"), ids)  # this process does not wait for it
        assert (first.cached, own.cached) == (0, 0)
        own.close()
        theirs: list[Any] = []
        as_another_process(monkeypatch)
        waits = threading.Thread(target=lambda: theirs.append(aule.hf.SharedCache(
            aule.hf.open_cache(other, model("llama"), "claimed", block_size=BLOCK),
            model("llama"), ids, timeout=60)))
        waits.start()
        time.sleep(0.2)
        assert waits.is_alive() and not theirs
        with torch.no_grad():
            model("llama")(ids, past_key_values=first)  # its end publishes the prompt
        waits.join(60)
        [second] = theirs
        assert second.cached == 100 // BLOCK * BLOCK
        assert generate(model("llama"), ids, past_key_values=second)[0].tolist() == wanted(
            "llama", ids)
        second.close()
        first.close()


def as_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which prompts this process has claimed."""
    monkeypatch.setattr(_hf_cache, "_prompting", weakref.WeakSet())


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that each sequence with a claim may wait. None waits longer than 0.2."""
    asked: list[float] = []
    wait = aule.Sequence.wait

    def noted(sequence: aule.Sequence, timeout: float) -> bool:
        asked.append(timeout)
        return wait(sequence, min(timeout, 0.2))

    monkeypatch.setattr(aule.Sequence, "wait", noted)
    return asked


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """A model with a name, which opens a cache of the test's own."""
    monkeypatch.setattr(model("llama").config, "_name_or_path", request.node.name)
    return model("llama")


def test_a_prompt_that_this_process_computes_is_not_waited_for(
        session: aule.Session, named: Any, waits: list[float]) -> None:
    ids = prompt(15, 100)
    with aule.connect(session.socket, arena_size=1 << 22) as other, \
            aule.hf.SharedCache(session, named, ids, timeout=60) as first:
        assert len(waits) == 1 and waits[0] > 0
        for where, same, key in ((session, ids, b""), (other, ids, b""), (session, ids, ""),
                                 (session, ids.numpy().astype("int32"), b"")):
            waits.clear()
            with aule.hf.SharedCache(where, named, same, extra_key=key, timeout=60) as own:
                assert (own.cached, waits) == (0, [0])
        waits.clear()
        with aule.hf.SharedCache(session, named, ids, extra_key="other", timeout=60):
            assert len(waits) == 1 and waits[0] > 0
        waits.clear()  # another tenant's prompt may be one that another process computes
        with aule.connect(session.socket, arena_size=1 << 22, tenant="other") as apart, \
                aule.hf.SharedCache(apart, named, ids, timeout=60):
            assert len(waits) == 1 and waits[0] > 0
        first.close()
        waits.clear()
        with aule.hf.SharedCache(session, named, ids, timeout=60):
            assert len(waits) == 1 and waits[0] > 0


def test_all_rows_together_wait_for_others_no_longer_than_the_timeout(
        session: aule.Session, named: Any, waits: list[float],
        monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.arange(80).view(2, 40)
    with aule.hf.SharedCache(session, named, ids, timeout=60):
        as_another_process(monkeypatch)
        waits.clear()
        with aule.hf.SharedCache(session, named, ids, timeout=60):
            assert len(waits) == 2 and 60 >= waits[0] > waits[1]
    with pytest.raises(aule.errors.InvalidError, match="timeout = -1 seconds"):
        aule.hf.SharedCache(session, named, ids, timeout=-1)


def test_threads_make_shared_caches_of_one_cache_at_the_same_time(
        session: aule.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, added = threading.Event(), threading.Event()

    class Watched(weakref.WeakSet[Any]):
        def __iter__(self) -> Iterator[Any]:
            for one in super().__iter__():
                if threading.current_thread() is threading.main_thread():
                    looks.set()
                    added.wait(0.5)  # runs out if nobody can add now
                yield one

    def add() -> None:
        looks.wait()
        made.append(aule.hf.SharedCache(cache, model("llama"), prompt(17, 50)))
        added.set()

    made: list[Any] = []
    with cache_of(session, "llama", "threads") as cache:
        first = aule.hf.SharedCache(cache, model("llama"), prompt(16, 50))
        monkeypatch.setattr(_hf_cache, "_prompting", Watched([first]))
        adder = threading.Thread(target=add)
        adder.start()
        made.append(aule.hf.SharedCache(cache, model("llama"), prompt(18, 50), timeout=0))
        adder.join()
        assert len(made) == 2
        for one in (first, *made):
            one.close()


def test_rows_with_one_prompt_do_not_wait_for_each_other(session: aule.Session) -> None:
    ids = prompt(12, 60).expand(3, -1)
    started = time.monotonic()
    with cache_of(session, "llama", "rows") as cache, \
            aule.hf.SharedCache(cache, model("llama"), ids, timeout=60) as past:
        assert past.cached == 0
        assert generate(model("llama"), ids, past_key_values=past).tolist() == [
            wanted("llama", ids[:1])] * 3
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("kind", KINDS if LONG else KINDS[:1])
def test_four_processes_that_share_a_prefix_generate_what_one_does(session: aule.Session,
                                                                   kind: str) -> None:
    pairs = list(enumerate(PROMPTS, 100))
    keep = cache_of(session, kind)  # published blocks outlive no last handle
    every = in_processes(work, [(session.socket, kind, pairs[i:] + pairs[:i])
                                for i in range(4)])
    keep.close()
    for seed, length in pairs:
        ids = wanted(kind, prompt(seed, length))
        for said in every:
            assert [row["ids"] for row in said if row["seed"] == seed] == [ids]
    assert sum(row["cached"] for said in every for row in said) > 0


def test_rows_with_padding_begin_at_the_shortest_cached_prefix(session: aule.Session) -> None:
    llama, gemma = model("llama"), model("gemma")
    texts = [prompt(3, 50)[0], prompt(4, 33)[0], prompt(5, 2)[0]]
    ids = torch.stack([torch.cat([torch.zeros(50 - len(row), dtype=torch.long), row])
                       for row in texts])
    mask = torch.stack([(torch.arange(50) >= 50 - len(row)).long() for row in texts])
    for kind, one in (("llama", llama), ("gemma", gemma)):
        right = wanted(kind, ids, attention_mask=mask)
        with cache_of(session, kind, f"padded {kind}") as cache:
            for _ in range(2):
                with aule.hf.SharedCache(cache, one, ids, mask) as past:
                    out = generate(one, ids, attention_mask=mask, past_key_values=past)
                    assert out[0].tolist() == right
                    for row, text in enumerate(texts):
                        alone = wanted(kind, text[None])
                        assert out[row, 50 - len(text):].tolist() == alone


def test_beams_chunks_and_a_longer_text_use_the_same_cache(session: aule.Session) -> None:
    llama = model("llama")
    ids = prompt(11, 70)
    with cache_of(session, "llama", "ways") as cache:
        with aule.hf.SharedCache(cache, llama, ids) as past:
            out = generate(llama, ids, past_key_values=past, prefill_chunk_size=32)
            assert out[0].tolist() == wanted("llama", ids)
            longer = torch.cat([out, prompt(12, 50)[:, 40:]], 1)
            out = generate(llama, longer, past_key_values=past)
            assert out[0].tolist() == wanted("llama", longer)
            with pytest.raises(aule.errors.InvalidError, match=r"crop\(20\): give"):
                past.crop(20)
            past.crop(-20)
            assert past.get_seq_length() == out.shape[1] - 1 - 20
            assert generate(llama, longer, past_key_values=past).tolist() == out.tolist()
        with aule.hf.SharedCache(cache, llama, ids) as past:
            assert past.cached == 64
            beams = generate(llama, ids, past_key_values=past, num_beams=3)
            assert beams[0].tolist() == wanted("llama", ids, num_beams=3)


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("part", ["mlp", "self_attn"])
def test_a_pass_that_fails_in_a_layer_counts_no_token(session: aule.Session, part: str,
                                                      failure: type[BaseException]) -> None:
    llama, ids = model("llama"), prompt(51, 70)

    def fail(*_: Any) -> None:
        raise failure("in a layer")

    with cache_of(session, "llama", f"fails {part} {failure}") as cache, \
            aule.hf.SharedCache(cache, llama, ids) as past:
        for _ in range(2):
            length = past.get_seq_length()
            hook = getattr(llama.model.layers[-1], part).register_forward_hook(fail)
            with pytest.raises(failure, match="in a layer"):
                generate(llama, ids, past_key_values=past)
            hook.remove()
            if failure is KeyboardInterrupt:
                with pytest.raises(aule.errors.InvalidError, match="was interrupted"):
                    generate(llama, ids, past_key_values=past)
            assert past.get_seq_length() == length
            out = generate(llama, ids, past_key_values=past)
            assert out[0].tolist() == wanted("llama", ids)
            ids = torch.cat([out, prompt(52, 50)[:, 40:]], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_without_a_shared_cache_is_that_of_transformers(session: aule.Session,
                                                                  kind: str) -> None:
    one = model(kind)
    aule.hf.register(session)
    ids = prompt(21, 45)
    assert generate(one, ids)[0].tolist() == wanted(kind, ids)
    padded = torch.cat([torch.zeros((1, 3), dtype=torch.long), ids], 1)
    mask = (torch.arange(48) >= 3).long()[None]
    right = wanted(kind, padded, attention_mask=mask)
    assert generate(one, padded, attention_mask=mask)[0].tolist() == right


def test_what_cannot_be_served_is_refused_with_a_sentence(session: aule.Session) -> None:
    llama, other = model("llama"), model("llama", "sdpa")
    ids = prompt(31, 40)
    errors = aule.errors
    with cache_of(session, "llama", "refusals") as cache:
        with pytest.raises(errors.InvalidError, match="attention is 'sdpa': call"):
            aule.hf.SharedCache(cache, other, ids)
        with pytest.raises(errors.InvalidError, match=r"input_ids is float32 \[1, 3\]"):
            aule.hf.SharedCache(cache, llama, torch.ones((1, 3)))
        for wrong, sentence in (({"extra_key": 5}, "extra_key = 5"),
                                ({"input_ids": [[1, 2], [3]]}, "pad the rows at the left")):
            with pytest.raises(errors.InvalidError, match=sentence):
                aule.hf.SharedCache(cache, llama, **{"input_ids": ids, **wrong})
        with pytest.raises(errors.InvalidError, match="where is a LlamaForCausalLM"):
            aule.hf.SharedCache(llama, llama, ids)
        with pytest.raises(errors.InvalidError, match="padding must be at the left"):
            aule.hf.SharedCache(cache, llama, ids, (torch.arange(40) < 30).long()[None])
        with aule.hf.SharedCache(cache, llama, ids) as past:
            with pytest.raises(errors.InvalidError, match="other tokens from position 0"):
                generate(llama, prompt(31, 40).flip(1), past_key_values=past)
            with pytest.raises(errors.InvalidError, match="computes 2 rows.*|other tokens"):
                generate(llama, torch.cat([prompt(32, 40).flip(1)] * 2), past_key_values=past)
        with aule.hf.SharedCache(cache, llama, ids) as past:
            with pytest.raises(errors.InvalidError, match="input_ids are not known"), \
                    torch.no_grad():
                llama(inputs_embeds=torch.zeros(1, 4, 64), past_key_values=past)
            with pytest.raises(errors.UnsupportedError, match="no gradients"):
                llama(ids, past_key_values=past)
    with pytest.raises(errors.MismatchError):
        torch.manual_seed(6)
        stranger = type(llama)(llama.config)
        with cache_of(session, "llama"):
            aule.hf.open_cache(session, stranger, "llama", block_size=BLOCK)


def test_a_transformers_that_hands_caches_over_in_another_way_is_refused(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aule.hf.transformers, "__version__", "5.24.0")
    with pytest.raises(aule.errors.UnsupportedError, match="aule.hf knows 5.0 to 5.23"):
        aule.hf.register()
