# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""generate_batch of transformers over a cache in the daemon: the ids of paged|sdpa, shared."""

from __future__ import annotations

import threading
from typing import Any

import aule
import pytest
from aule import errors
from conftest import LONG, in_processes

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import aule.hf  # noqa: E402
import transformers  # noqa: E402
from hf_models import (  # noqa: E402
    BLOCK,
    NEW,
    batch,
    batching,
    generate,
    generate_batch,
    lengths,
    model_of,
    prompt,
)

pytest.importorskip("aule._hf_batch", exc_type=errors.UnsupportedError)

from aule import _hf_batch, _hf_paged  # noqa: E402

PROMPTS = [prompt(seed, length)[0].tolist() for seed, length in enumerate(lengths(32))]
FEW = [prompt(seed, length)[0].tolist() for seed, length in enumerate((1, 47, 48, 130))]
_models: dict[tuple[str, str], Any] = {}
_wanted: list[list[int]] = []


def model(kind: str = "llama", attention: str = "aule") -> Any:
    if (kind, attention) not in _models:
        _models[kind, attention] = model_of(kind, attention)
    return _models[kind, attention]


def wanted() -> list[list[int]]:
    """What transformers' paged sdpa generates for PROMPTS."""
    if not _wanted:
        _wanted.extend(generate_batch(model(attention="sdpa"), PROMPTS))
    return _wanted


def cache_of(session: aule.Session, name: str, kind: str = "llama") -> aule.Cache:
    return aule.hf.open_cache(session, model(kind), name, block_size=BLOCK)


def test_greedy_ids_are_those_of_paged_sdpa(session: aule.Session) -> None:
    with cache_of(session, "batch") as cache, aule.hf.share_batches(cache, model()) as shared:
        assert generate_batch(model(), PROMPTS) == wanted()
        assert shared.prompted == sum(map(len, PROMPTS)) and shared.cached > 0
        before = shared.cached
        assert generate_batch(model(), PROMPTS) == wanted()
        blocks = sum((len(ids) - 1) // BLOCK * BLOCK for ids in PROMPTS)
        assert shared.cached - before >= blocks
        state = cache.state()
        assert state["leased_blocks"] == state["held_blocks"] == 0
    assert model().config._attn_implementation == "aule"


def test_four_processes_that_share_prefixes_generate_the_ids_of_paged_sdpa(
        session: aule.Session) -> None:
    with cache_of(session, "four") as cache:  # published blocks outlive no last handle
        with aule.hf.share_batches(cache, model()):
            generate_batch(model(), PROMPTS[::2])
        every = in_processes(batch, [(session.socket, "four", 8 * n) for n in range(4)])
    for said in every:
        assert said["ids"] == wanted()
        assert said["cached"] >= sum((len(ids) - 1) // BLOCK * BLOCK for ids in PROMPTS[::2])


@pytest.mark.parametrize("kind", ["gemma", "qwen", "gpt_oss"] if LONG else ["gemma"])
def test_windows_caps_and_sinks_are_those_of_generate(session: aule.Session, kind: str) -> None:
    """transformers' own paged attention loses Gemma's soft cap, so its generate is the measure."""
    right = [generate(model(kind, "eager"), torch.tensor([ids]))[0, len(ids):].tolist()
             for ids in FEW]
    with cache_of(session, f"batch {kind}", kind) as cache, \
            aule.hf.share_batches(cache, model(kind)):
        for _ in range(2):
            assert generate_batch(model(kind), FEW) == right


@pytest.mark.parametrize("options", [
    {"max_batch_tokens": 7, "scheduler_type": "prefill_first"}, {"allow_block_sharing": False},
    {"max_batch_tokens": None, "max_requests_per_batch": 2}])
def test_batches_of_any_size_give_the_same_ids(session: aule.Session,
                                               options: dict[str, Any]) -> None:
    right = generate_batch(model(attention="sdpa"), FEW)
    with cache_of(session, f"batch {options}") as cache, \
            aule.hf.share_batches(cache, model()) as shared:
        assert generate_batch(model(), FEW, **options) == right
        if not options.get("allow_block_sharing", True):
            assert shared.cached == 0 and generate_batch(model(), FEW) == right
            assert shared.cached < sum(map(len, FEW)) / 2


def test_several_texts_of_one_prompt_share_its_blocks(session: aule.Session) -> None:
    prompts = FEW[1:]
    right = generate_batch(model(attention="sdpa"), prompts)
    with cache_of(session, "forks") as cache, aule.hf.share_batches(cache, model()):
        got = generate_batch(model(), prompts, num_return_sequences=3)
    assert got == [ids for ids in right for _ in range(3)]


@pytest.mark.parametrize("length", [2 * BLOCK + 1, 2 * BLOCK])
def test_several_texts_of_prompts_that_are_all_but_cached(session: aule.Session,
                                                          length: int) -> None:
    prompts = [prompt(seed, 2 * length)[0, length:].tolist() for seed in (3, 4)]
    right = generate_batch(model(attention="sdpa"), prompts)
    with cache_of(session, f"all but cached {length}") as cache, \
            aule.hf.share_batches(cache, model()) as shared:
        for _ in range(2):
            got = generate_batch(model(), prompts, num_return_sequences=2)
            assert got == [ids for ids in right for _ in range(2)]
        assert shared.cached == 2 * (length - 2)


def test_a_pool_that_is_too_small_delays_requests_and_changes_no_id() -> None:
    blocks = 600 // BLOCK + 4
    options = ["--cache-folder", "none", "--max-blocks", str(blocks)]
    with aule.connect(autostart=True, daemon_options=options) as session, \
            cache_of(session, "small") as cache, aule.hf.share_batches(cache, model()):
        assert cache.state()["limit_blocks"] <= blocks
        assert generate_batch(model(), PROMPTS[::4] + PROMPTS[-1:]) == \
            wanted()[::4] + wanted()[-1:]


def test_the_models_own_generate_batch_comes_back(session: aule.Session) -> None:
    with cache_of(session, "back") as cache:
        with aule.hf.share_batches(cache, model()) as shared:
            assert generate_batch(model(), FEW[:2], persistent_manager=True)
            past = aule.hf.SharedCache(cache, model(), FEW[1])  # generate works as before
            ids = torch.tensor(FEW[1:2])
            assert generate(model(), ids, past_key_values=past)[0].tolist()
            past.close()
        shared.close()
        # The gate of transformers that makes share_batches() necessary.
        with pytest.raises(ValueError, match="aule is not supported for continuous batching"):
            generate_batch(model(), FEW[:1])


def test_paged_aule_names_the_attention_of_both_ways(session: aule.Session) -> None:
    one = model_of("llama", "sdpa")
    with pytest.warns(FutureWarning, match=r"paged\|"):
        one.set_attn_implementation("paged|aule")
    with cache_of(session, "name") as cache, aule.hf.share_batches(cache, one):
        assert generate_batch(one, FEW) == generate_batch(model(attention="sdpa"), FEW)


def test_what_a_batch_cannot_be_served_with_is_refused(session: aule.Session,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    with cache_of(session, "refused") as cache:
        with pytest.raises(errors.InvalidError, match="attention is 'sdpa': call"):
            aule.hf.share_batches(cache, model(attention="sdpa"))
        with aule.hf.share_batches(cache, model()):
            for options in ({"use_cuda_graph": True}, {"use_async_batching": True},
                            {"default_compile_level": 1}, {"cpu_offload_space": 1.0},
                            {"q_padding_interval_size": 64}):
                (name, value), = options.items()
                with pytest.raises(errors.UnsupportedError) as said:
                    generate_batch(model(), FEW[:1], **options)
                assert f"{name} = {value}" in str(said.value)
            with pytest.raises(errors.InvalidError, match="scheduler_type = 'none'"):
                generate_batch(model(), FEW[:1], scheduler_type="none")
            with pytest.raises(errors.InvalidError, match="is shared already"):
                aule.hf.share_batches(cache, model())
            assert model().config._attn_implementation == "aule"
        model().set_attn_implementation("aule_batch")
        with pytest.raises(errors.UnsupportedError, match="is for generate_batch"), \
                torch.no_grad():
            model()(torch.tensor(FEW[1:2]))
        model().set_attn_implementation("aule")
        monkeypatch.delattr(_hf_batch.PagedAttentionCache, "search_prefix_match")
        with pytest.raises(errors.UnsupportedError,
                           match=f"transformers {transformers.__version__} has no "
                                 r"PagedAttentionCache.search_prefix_match.*tested with 5\.23"):
            aule.hf.share_batches(cache, model())


def test_a_manager_that_cannot_be_made_leaves_the_models_attention(
        session: aule.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        assert model().config._attn_implementation == "aule_batch"
        raise ValueError("no processor")

    cache = cache_of(session, "fails")
    with aule.hf.share_batches(cache, model()):
        with monkeypatch.context() as patch:
            patch.setattr(model(), "_get_logits_processor", fail)
            with pytest.raises(ValueError, match="no processor"):
                generate_batch(model(), FEW[:1])
        assert model().config._attn_implementation == "aule"
        cache.close()
        with pytest.raises(errors.ClosedError):
            generate_batch(model(), FEW[:1])
        assert model().config._attn_implementation == "aule"


@pytest.mark.parametrize("end", ["destroy", "stop", "close"])
def test_a_manager_whose_thread_outlives_stop_leaves_nothing(
        session: aule.Session, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    inside, go_on = threading.Event(), threading.Event()
    real = _hf_paged.PagedCache.attend

    def attend(*arguments: Any) -> Any:
        inside.set()
        assert go_on.wait(60)
        return real(*arguments)

    monkeypatch.setattr(_hf_paged.PagedCache, "attend", attend)
    with cache_of(session, f"outlives {end}") as cache:
        shared = aule.hf.share_batches(cache, model())
        manager = model().init_continuous_batching(
            batching()[0], continuous_batching_config=batching()[1])
        manager.start()
        manager.add_request(FEW[1], max_new_tokens=1)
        assert inside.wait(60)
        manager.stop(timeout=0.01)
        assert manager.is_running() and model().config._attn_implementation == "aule_batch"
        if end == "close":
            shared.close()
        go_on.set()
        thread = manager._generation_thread
        thread.join(60)
        assert not thread.is_alive()
        (manager.stop if end == "stop" else manager.destroy)()
        assert shared.prompted == len(FEW[1])
        state = cache.state()
        assert state["leased_blocks"] == state["held_blocks"] == 0
        assert model().config._attn_implementation == "aule"
        shared.close()


def test_a_manager_keeps_nothing_of_requests_that_have_ended(session: aule.Session) -> None:
    with cache_of(session, "ended") as cache, aule.hf.share_batches(cache, model()):
        manager = model().init_continuous_batching(
            batching(num_return_sequences=2)[0], continuous_batching_config=batching()[1])
        manager.start()
        try:
            manager.add_requests(FEW[1:], max_new_tokens=2)
            results = [manager.get_result(timeout=60) for _ in range(2 * len(FEW[1:]))]
            assert all(result is not None and not result.error for result in results)
            made = manager._made
            assert made is not None and not made.sequences
            assert not made._counted and not made._delayed
        finally:
            manager.stop()


def test_a_session_that_closes_fails_the_requests_with_its_sentence(session: aule.Session) -> None:
    other = aule.connect(session.socket)
    cache = cache_of(other, "closes")
    with aule.hf.share_batches(cache, model()):
        manager = model().init_continuous_batching(
            batching()[0], continuous_batching_config=batching()[1])
        manager.warmup()
        manager.start()
        other.close()
        name = manager.add_request(FEW[1], max_new_tokens=NEW, request_id="late")
        result = None
        for _ in range(300):
            result = manager.get_result(timeout=0.1)
            if result is not None:
                break
        manager.stop()
        assert name == "late" and result is not None and "is closed" in str(result.error)
        assert model().config._attn_implementation == "aule"
