# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""A block that others find was computed as the plain prompt's: one test for each way to break that.

docs/python.md promises that no wrong block is used. test_hf_identity.py has the weights' part.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import aule
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import aule.hf  # noqa: E402
import transformers as hf  # noqa: E402
from hf_models import NEW, generate, model_of  # noqa: E402

errors = aule.errors
BLOCK = 16
IDS = torch.randint(3, 97, (1, 70), generator=torch.Generator().manual_seed(4))
ONES = torch.ones_like(IDS)
_names = itertools.count()


@pytest.fixture(scope="module")
def llama() -> Any:
    return model_of("llama")


@pytest.fixture(scope="module")
def plain() -> list[int]:
    """What transformers itself generates for the prompt."""
    return generate(model_of("llama", "sdpa"), IDS, attention_mask=ONES)[0].tolist()


@pytest.fixture
def cache(session: aule.Session, llama: Any) -> Iterator[aule.Cache]:
    with aule.hf.open_cache(session, llama, f"prefix {next(_names)}", block_size=BLOCK) as cache:
        yield cache


def check_clean(cache: aule.Cache, llama: Any, plain: list[int], cached: int = 0) -> None:
    """Another request for the prompt finds nothing wrong."""
    with aule.hf.SharedCache(cache, llama, IDS) as past:
        assert past.cached == cached
        assert generate(llama, IDS, attention_mask=ONES, past_key_values=past)[0].tolist() == plain


HOLE = ONES.clone()
HOLE[0, 10:40] = 0
FLAWS = {
    "its attention_mask hides tokens": {"attention_mask": HOLE},
    "its attention_mask is not": {"attention_mask": torch.ones(70, 70).tril().bool()[None, None]},
    "its position_ids are not those": {"position_ids": torch.arange(70)[None] * 2},
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_pass_that_is_not_the_plain_prompts_publishes_nothing(
        cache: aule.Cache, llama: Any, plain: list[int], flaw: str) -> None:
    right = model_of("llama", "eager")
    given = dict(FLAWS[flaw])
    mask = given.get("attention_mask")
    if mask is not None and mask.ndim == 4:
        given["attention_mask"] = torch.zeros(mask.shape).masked_fill(~mask, -1e30)
    with torch.no_grad(), aule.hf.SharedCache(cache, llama, IDS) as past:
        with pytest.warns(RuntimeWarning, match=f"publishes no blocks.*{flaw}"):
            got = llama(IDS, past_key_values=past, **FLAWS[flaw]).logits
        torch.testing.assert_close(got, right(IDS, **given).logits, rtol=1e-4, atol=1e-3)
        with warnings.catch_warnings():  # the sentence comes once
            warnings.simplefilter("error", RuntimeWarning)
            llama(IDS[:, :1], past_key_values=past)
    check_clean(cache, llama, plain)


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_pass_that_is_not_the_plain_prompts_uses_no_cached_block(
        cache: aule.Cache, llama: Any, plain: list[int], flaw: str) -> None:
    check_clean(cache, llama, plain)
    options = {name: value[..., 64:] if name == "position_ids" or value.ndim == 4 else value
               for name, value in FLAWS[flaw].items()}
    if "attention_mask" in options and options["attention_mask"].ndim == 4:
        options["attention_mask"] = FLAWS[flaw]["attention_mask"][:, :, 64:]
    with torch.no_grad(), aule.hf.SharedCache(cache, llama, IDS) as past:
        assert past.cached == 64
        with pytest.raises(errors.InvalidError, match=f"64 tokens.*found: {flaw}"):
            llama(IDS[:, 64:], past_key_values=past, **options)
        assert past.get_seq_length() == 64
        assert generate(llama, IDS, attention_mask=ONES, past_key_values=past)[0].tolist() == plain


def test_a_mask_that_hides_tokens_behind_the_cached_ones_uses_these(
        cache: aule.Cache, llama: Any, plain: list[int]) -> None:
    check_clean(cache, llama, plain)
    late = ONES.clone()
    late[0, 66:68] = 0
    right = model_of("llama", "eager")
    with torch.no_grad(), aule.hf.SharedCache(cache, llama, IDS) as past, \
            pytest.warns(RuntimeWarning, match="hides tokens"):
        got = llama(IDS[:, 64:], past_key_values=past, attention_mask=late).logits
        torch.testing.assert_close(got[0, 4:], right(IDS, attention_mask=late).logits[0, 68:],
                                   rtol=1e-4, atol=1e-3)


def test_a_padding_mask_that_only_generate_knows_poisons_nothing(
        cache: aule.Cache, llama: Any) -> None:
    """generate() makes a mask of pad tokens by itself, if it gets none."""
    ids = IDS.clone()
    ids[0, :20] = 0
    right = generate(model_of("llama", "sdpa"), ids, attention_mask=ONES)[0].tolist()
    with aule.hf.SharedCache(cache, llama, ids) as past, \
            pytest.warns(RuntimeWarning, match="hides tokens that are no padding"):
        generate(llama, ids, past_key_values=past)
    with aule.hf.SharedCache(cache, llama, ids) as past:
        assert past.cached == 0
        got = generate(llama, ids, attention_mask=ONES, past_key_values=past)
    assert got[0].tolist() == right


def test_padding_that_the_pass_shows_is_refused(cache: aule.Cache, llama: Any) -> None:
    mask = (torch.arange(70) >= 20).long()[None]
    with torch.no_grad(), aule.hf.SharedCache(cache, llama, IDS, mask) as past:
        with pytest.raises(errors.InvalidError, match="shows token 0 of row 0"):
            llama(IDS, past_key_values=past, attention_mask=ONES)
        with pytest.raises(errors.InvalidError, match="no attention_mask that hides it"):
            llama(IDS, past_key_values=past)


@pytest.mark.parametrize("place", [3, 66])
def test_other_tokens_than_the_prompts_are_refused_wherever_they_stand(
        cache: aule.Cache, llama: Any, plain: list[int], place: int) -> None:
    check_clean(cache, llama, plain)
    other = IDS.clone()
    other[0, place] = 1
    with aule.hf.SharedCache(cache, llama, IDS) as past, \
            pytest.raises(errors.InvalidError, match=f"other tokens from position {place} on"):
        generate(llama, other, attention_mask=ONES, past_key_values=past)


def test_a_copied_model_watches_its_own_texts(cache: aule.Cache, plain: list[int]) -> None:
    llama = model_of("llama")
    check_clean(cache, llama, plain)
    copied = copy.deepcopy(llama)
    del llama
    assert generate(copied, IDS, attention_mask=ONES)[0].tolist() == plain
    with aule.hf.SharedCache(cache, copied, IDS) as past, \
            pytest.raises(errors.InvalidError, match="other tokens from position 0 on"):
        generate(copied, IDS.flip(1), attention_mask=ONES, past_key_values=past)


def test_two_flaws_together_are_refused_like_each(cache: aule.Cache, llama: Any,
                                                  plain: list[int]) -> None:
    check_clean(cache, llama, plain)
    late = ONES.clone()
    late[0, 66:68] = 0
    with torch.no_grad(), aule.hf.SharedCache(cache, llama, IDS) as past, \
            pytest.raises(errors.InvalidError, match="hides tokens.*position_ids are not"):
        llama(IDS[:, 64:], past_key_values=past, attention_mask=late,
              position_ids=torch.arange(64, 70)[None] * 2)


def test_a_text_that_is_computed_in_both_directions_publishes_nothing(
        session: aule.Session) -> None:
    both_ways, right = model_of("llama"), model_of("llama", "eager")
    for model in (both_ways, right):
        model.config.is_causal = False
    with aule.hf.open_cache(session, both_ways, "both ways", block_size=BLOCK) as cache:
        for ids in (IDS, torch.cat([IDS[:, :60], IDS[:, :10]], 1)):
            with torch.no_grad(), aule.hf.SharedCache(cache, both_ways, ids) as past, \
                    pytest.warns(RuntimeWarning, match="its mask is neither"):
                assert past.cached == 0
                torch.testing.assert_close(both_ways(ids, past_key_values=past).logits,
                                           right(ids).logits, rtol=1e-4, atol=1e-3)


def test_what_a_failed_pass_has_handed_on_is_used_by_no_other(cache: aule.Cache, llama: Any,
                                                              plain: list[int]) -> None:
    right = model_of("llama", "eager")
    with torch.no_grad(), aule.hf.SharedCache(cache, llama, IDS) as past:
        with pytest.raises(errors.UnsupportedError, match="passes novelty"):
            llama(IDS, past_key_values=past, novelty=1)
        torch.testing.assert_close(llama(IDS.flip(1)).logits, right(IDS.flip(1)).logits, rtol=1e-4,
                                   atol=1e-3)
    check_clean(cache, llama, plain)


def test_a_base_model_is_watched_also_after_an_interrupt_of_the_whole(
        cache: aule.Cache, llama: Any) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with torch.no_grad(), aule.hf.SharedCache(cache, llama, IDS) as past:
        hook = llama.model.embed_tokens.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            llama(IDS, past_key_values=past)
        hook.remove()
        with pytest.raises(errors.InvalidError, match="other tokens from position 0 on"):
            llama.model(IDS.flip(1), past_key_values=past)


def test_a_cache_that_was_reset_takes_any_pass(cache: aule.Cache, llama: Any,
                                               plain: list[int]) -> None:
    check_clean(cache, llama, plain)
    right = model_of("llama", "eager")
    with torch.no_grad(), aule.hf.SharedCache(cache, llama, IDS) as past:
        past.reset()
        with pytest.warns(RuntimeWarning, match="position_ids are not"):
            got = llama(IDS, past_key_values=past, position_ids=torch.arange(70)[None] * 2).logits
        torch.testing.assert_close(got, right(IDS, position_ids=torch.arange(70)[None] * 2).logits,
                                   rtol=1e-4, atol=1e-3)


# ---- rotation by the text's length ----


def by_length(kind: str) -> Any:
    parameters: dict[str, Any] = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    config: Any = hf.LlamaConfig
    more: dict[str, Any] = {"max_position_embeddings": 64, "rope_parameters": parameters}
    if kind == "longrope":
        config = hf.Phi3Config
        parameters |= {"original_max_position_embeddings": 64, "short_factor": [1.0] * 8,
                       "long_factor": [4.0] * 8}
        more |= {"original_max_position_embeddings": 64, "max_position_embeddings": 256}
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=97, pad_token_id=0, bos_token_id=1, eos_token_id=None,
        initializer_range=0.25, **more), attn_implementation="eager")
    model.config._name_or_path = f"by length {next(_names)}"
    return model.eval()


def last_logits(model: Any, ids: Any, past: Any = None) -> Any:
    skip = 0 if past is None else past.get_seq_length()
    with torch.no_grad():
        return model(ids[:, skip:], past_key_values=past).logits[0, -1]


@pytest.mark.parametrize(("kind", "long_found"), [("dynamic", 0), ("longrope", 112)])
@pytest.mark.filterwarnings("ignore:aule publishes no blocks")
def test_blocks_of_a_short_prompt_do_not_serve_one_beyond_the_border_of_rope(
        session: aule.Session, kind: str, long_found: int) -> None:
    model = by_length(kind)
    ids = torch.randint(3, 97, (1, 120), generator=torch.Generator().manual_seed(6))
    right = {n: last_logits(model, ids[:, :n]) for n in (60, 120)}
    model.set_attn_implementation("aule")
    with aule.hf.open_cache(session, model, block_size=BLOCK) as cache:
        for found in ({60: 0, 120: 0}, {60: 48, 120: long_found}):
            for count, cached in found.items():
                with aule.hf.SharedCache(cache, model, ids[:, :count]) as past:
                    assert past.cached == cached
                    torch.testing.assert_close(last_logits(model, ids[:, :count], past),
                                               right[count], rtol=1e-4, atol=1e-3)


@pytest.mark.filterwarnings("ignore:aule publishes no blocks")
def test_a_prompt_at_the_border_does_not_publish_what_a_longer_one_has_left(
        session: aule.Session) -> None:
    """transformers keeps the longer text's rotation for a text of exactly that many tokens."""
    model = by_length("dynamic")
    fresh = copy.deepcopy(model)
    ids = torch.randint(3, 97, (1, 120), generator=torch.Generator().manual_seed(6))
    right = last_logits(fresh, ids[:, :64])
    model.set_attn_implementation("aule")
    fresh.set_attn_implementation("aule")
    with aule.hf.open_cache(session, model, block_size=BLOCK) as cache:
        last_logits(model, ids)
        with aule.hf.SharedCache(cache, model, ids[:, :64]) as past:
            last_logits(model, ids[:, :64], past)
    with aule.hf.open_cache(session, fresh, block_size=BLOCK) as cache, \
            aule.hf.SharedCache(cache, fresh, ids[:, :64]) as past:
        torch.testing.assert_close(last_logits(fresh, ids[:, :64], past), right, rtol=1e-4,
                                   atol=1e-3)


def test_generate_batch_refuses_a_text_that_would_rotate_the_others(session: aule.Session) -> None:
    model = by_length("dynamic")
    model.set_attn_implementation("aule")
    greedy = hf.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1,
                                 pad_token_id=0)
    ids = IDS[0].tolist()
    with aule.hf.share_batches(session, model):
        short, long = model.generate_batch([ids[:40], ids], generation_config=greedy,
                                           progress_bar=False).values()
    assert len(short.generated_tokens) == NEW and not short.error
    assert "rotates by the length" in long.error


# ---- images ----

TEXT = torch.randint(3, 97, (1, 24), generator=torch.Generator().manual_seed(8))


def pictures() -> Any:
    """A model that sees images of 4 tokens."""
    torch.manual_seed(0)
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            image_size=16, patch_size=8, projection_dim=32),
        text_config=hf.LlamaConfig(
            hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, vocab_size=128, pad_token_id=0, bos_token_id=1,
            eos_token_id=None, initializer_range=0.25),
        image_token_id=100)
    model = hf.LlavaForConditionalGeneration._from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    model.config._name_or_path = f"pictures {next(_names)}"
    return model.eval()


def test_an_image_is_a_part_of_the_prompt_from_where_it_stands(session: aule.Session) -> None:
    model = pictures()
    mine = copy.deepcopy(model)
    mine.set_attn_implementation("aule")
    ids = torch.cat([TEXT, torch.full((1, 4), 100), TEXT.flip(1)[:, :14]], 1)
    images = [torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(n))
              for n in (1, 1, 2)]
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 4, "do_sample": False,
               "output_logits": True, "return_dict_in_generate": True}
    found = []
    with aule.hf.open_cache(session, mine, block_size=8) as cache:
        for image in images:
            right = model.generate(ids, pixel_values=image, **options)
            with aule.hf.SharedCache(cache, mine, ids) as past:
                got = mine.generate(ids, pixel_values=image, past_key_values=past, **options)
                found.append(past.cached)
            torch.testing.assert_close(got.logits[0], right.logits[0], rtol=1e-4, atol=1e-3)
            assert got.sequences.tolist() == right.sequences.tolist()
    # The same image: all full blocks. Another one: the text before it.
    assert found == [0, 40, 24]


@pytest.mark.parametrize("extra", [torch.ones(1), ["adapter"], 2])
def test_an_argument_that_the_tokens_do_not_show_publishes_nothing(session: aule.Session,
                                                                   extra: Any) -> None:
    mine = pictures()
    mine.set_attn_implementation("aule")
    with torch.no_grad(), aule.hf.open_cache(session, mine, block_size=8) as cache:
        with aule.hf.SharedCache(cache, mine, TEXT) as past, \
                pytest.warns(RuntimeWarning, match="it gets extra"):
            with_extra(mine, past, extra)
        with aule.hf.SharedCache(cache, mine, TEXT) as past:
            assert past.cached == 0


def with_extra(model: Any, past: Any, value: Any) -> None:
    """A forward pass with an argument that nobody knows; eager attention ignores it."""
    attention = aule.hf.attention_forward

    def ignores(*args: Any, extra: Any = None, **options: Any) -> Any:
        return attention(*args, **options)

    hf.AttentionInterface.register("aule", ignores)
    try:
        model(TEXT, past_key_values=past, extra=value)
    finally:
        hf.AttentionInterface.register("aule", attention)


def test_a_chat_whose_second_turn_has_an_image_goes_on_from_cached_text(
        session: aule.Session) -> None:
    model = pictures()
    mine = copy.deepcopy(model)
    mine.set_attn_implementation("aule")
    image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    whole = torch.cat([TEXT, torch.full((1, 4), 100), TEXT.flip(1)[:, :6]], 1)
    with torch.no_grad():
        right = model(whole, pixel_values=image).logits[:, 24:]
    with torch.no_grad(), aule.hf.open_cache(session, mine, block_size=8) as cache:
        for cached in (0, 23):
            with aule.hf.SharedCache(cache, mine, TEXT) as past:
                assert past.cached == cached
                mine(TEXT[:, cached:], past_key_values=past)
                with pytest.warns(RuntimeWarning, match="it gets pixel_values"):
                    got = mine(whole[:, 24:], pixel_values=image, past_key_values=past).logits
                torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-3)


def test_parts_of_a_model_get_their_attention_back_after_batches(session: aule.Session) -> None:
    mine = pictures()
    mine.set_attn_implementation({"": "aule", "text_config": "aule", "vision_config": "eager"})
    greedy = hf.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1,
                                 pad_token_id=0)
    with aule.hf.share_batches(session, mine):
        [output] = mine.generate_batch([TEXT[0].tolist()], generation_config=greedy,
                                       progress_bar=False).values()
    assert len(output.generated_tokens) == NEW
    assert mine.config.vision_config._attn_implementation == "eager"
    assert mine.config.text_config._attn_implementation == "aule"


# ---- a cache's life ----


def test_a_copied_cache_goes_on_by_itself(session: aule.Session, llama: Any,
                                          plain: list[int]) -> None:
    right = model_of("llama", "sdpa")
    ends = [torch.tensor([[n, n + 1]]) for n in (5, 50)]
    llama.config._name_or_path = f"copied {next(_names)}"
    past = aule.hf.SharedCache(session, llama, IDS)
    with torch.no_grad():
        llama(IDS, past_key_values=past)
    copies = [copy.deepcopy(past) for _ in ends]
    past.close()  # the copies keep what they share
    for one, end in zip(copies, ends, strict=True):
        whole = torch.cat([IDS, end], 1)
        mask = torch.ones_like(whole)
        got = generate(llama, whole, attention_mask=mask, past_key_values=one)
        assert got.tolist() == generate(right, whole, attention_mask=mask).tolist()
        one.close()


@pytest.mark.parametrize("options", [{"prompt_lookup_num_tokens": 3}, {"assistant_model": None}])
@pytest.mark.parametrize("cached", [0, 64])
def test_candidates_give_the_tokens_of_plain_generation(
        cache: aule.Cache, llama: Any, plain: list[int], options: dict[str, Any],
        cached: int) -> None:
    if cached:
        check_clean(cache, llama, plain)
    if "assistant_model" in options:
        options = {"assistant_model": model_of("qwen", "sdpa")}
    with aule.hf.SharedCache(cache, llama, IDS) as past:
        assert past.cached == cached
        got = generate(llama, IDS, attention_mask=ONES, past_key_values=past, **options)
    assert got[0].tolist() == plain


def test_a_request_that_cannot_be_served_fails_alone(session: aule.Session, llama: Any) -> None:
    prompts = [IDS[0, :20].tolist(), [], IDS[0].repeat(3).tolist(), IDS[0, :30].tolist()]
    greedy = hf.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1,
                                 pad_token_id=0)
    with aule.connect(autostart=True, daemon_options=["--max-blocks", "8", "--cache-folder",
                                                      "none"]) as small, \
            aule.hf.open_cache(small, llama, "small", block_size=BLOCK) as cache, \
            aule.hf.share_batches(cache, llama, timeout=2.0):
        outputs = list(llama.generate_batch(prompts, generation_config=greedy,
                                            progress_bar=False).values())
    assert [len(output.generated_tokens) for output in outputs] == [NEW, 0, 0, NEW]
    assert "has no tokens" in outputs[1].error
    assert "needs 14 blocks for 210 tokens and 6 new ones; the pool has 8" in outputs[2].error


def test_an_event_loop_runs_on_while_a_shared_cache_waits(
        session: aule.Session, cache: aule.Cache, llama: Any, plain: list[int]) -> None:
    async def both() -> None:
        with aule.connect(session.socket, arena_size=1 << 22) as other:
            theirs = aule.hf.open_cache(other, llama, cache._place[2], block_size=BLOCK)
            first = theirs.sequence(IDS[0], claim=True)
            waits = asyncio.create_task(aule.hf.SharedCache.create(cache, llama, IDS, timeout=60))
            await asyncio.sleep(0.2)
            assert not waits.done()
            first.close()  # its claim ends, and the one that waits computes
            with await waits as past:
                assert past.cached == 0
                assert generate(llama, IDS, attention_mask=ONES,
                                past_key_values=past)[0].tolist() == plain
            claimed = theirs.sequence(IDS[0].flip(0), claim=True)
            again = asyncio.create_task(
                aule.hf.SharedCache.create(cache, llama, IDS.flip(1), timeout=60))
            await asyncio.sleep(0.2)
            again.cancel()
            with pytest.raises(asyncio.CancelledError):
                await again
            claimed.close()
            free = theirs.sequence(IDS[0].flip(0), claim=True, timeout=0)
            assert free.promised == 0  # the cancelled one claims nothing

    asyncio.run(both())
    held = cache.state()
    assert held["leased_blocks"] == 0
