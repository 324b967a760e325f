# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""What models ask of aule's attention: masks, keywords, caches. The result is eager's, or an error.

test_hf_sweep.py has every class of transformers; here are the ways in which models differ.
"""

from __future__ import annotations

import copy
from typing import Any

import aule
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import aule.hf  # noqa: E402
import transformers as hf  # noqa: E402
from aule._hf_mask import LazyMask, Pattern, Rows, mask_for, pattern_of  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from transformers import masking_utils as masks  # noqa: E402

errors = aule.errors
BASE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 200, "pad_token_id": 0,
    "bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": False}
MLA = {"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8,
       "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
       "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32, "n_shared_experts": 1,
       "head_dim": 8}
_names = iter(range(10**9))
IDS = torch.randint(3, 200, (1, 40), generator=torch.Generator().manual_seed(1))
NEW = 6


@pytest.fixture(autouse=True)
def registered(session: aule.Session) -> None:
    aule.hf.register(session)


def pair(cls: Any, config: Any) -> tuple[Any, Any]:
    """A model with eager attention, and one with aule's and the same weights."""
    torch.manual_seed(0)
    eager = cls._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in eager.parameters():
            if parameter.ndim >= 2:
                parameter.copy_(torch.randn_like(parameter) * 0.15)
    mine = cls._from_config(config, attn_implementation="aule").eval()
    mine.load_state_dict(eager.state_dict())
    mine.config._name_or_path = f"{cls.__name__} {next(_names)}"
    return eager, mine


def logits(model: Any, past: Any = None, ids: Any = IDS, **options: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=ids, past_key_values=past, **options).logits


def texts(model: Any, past: Any = None, ids: Any = IDS, **options: Any) -> Any:
    return model.generate(ids, **{"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW,
                                  "do_sample": False, "past_key_values": past, **options})


def same(got: Any, right: Any) -> None:
    torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-3)


def check_shared(session: aule.Session, eager: Any, mine: Any, found: int = 32) -> None:
    """A first request that computes, and a second one that finds blocks, are both eager's."""
    name = f"{type(mine).__name__} {id(mine)}"
    with aule.hf.open_cache(session, mine, name, block_size=16) as cache:
        for cached in (0, found):
            with aule.hf.SharedCache(cache, mine, IDS) as past:
                assert past.cached == cached
                assert texts(mine, past).tolist() == texts(eager).tolist()


@pytest.mark.parametrize(("model", "config"), [
    ("BloomForCausalLM", lambda: hf.BloomConfig(vocab_size=200, hidden_size=64, n_layer=2,
                                                n_head=4)),
    ("CodeGenForCausalLM", lambda: hf.CodeGenConfig(vocab_size=200, n_embd=64, n_layer=2, n_head=4,
                                                    rotary_dim=8)),
    ("XGLMForCausalLM", lambda: hf.XGLMConfig(vocab_size=200, d_model=64, num_layers=2,
                                              attention_heads=4, ffn_dim=64)),
])
def test_a_model_that_computes_attention_by_itself_is_refused(model: str, config: Any) -> None:
    _, mine = pair(getattr(hf, model), config())
    with pytest.raises(errors.UnsupportedError, match="reads the attention mask by itself"):
        logits(mine)


def test_a_window_that_only_the_mask_has_hides_keys(session: aule.Session) -> None:
    eager, mine = pair(hf.PhimoeForCausalLM, hf.PhimoeConfig(
        **{**BASE, "bos_token_id": 1}, sliding_window=8, num_local_experts=2,
        num_experts_per_tok=2))
    same(logits(mine), logits(eager))
    check_shared(session, eager, mine)


def test_keys_that_a_model_selects_are_refused() -> None:
    _, mine = pair(hf.DeepseekV32ForCausalLM, hf.DeepseekV32Config(
        **{**BASE, **MLA}, first_k_dense_replace=1, index_head_dim=16, index_n_heads=2,
        index_topk=4))
    with pytest.raises(errors.UnsupportedError, match="passes indices to its attention"):
        logits(mine)


def test_a_keyword_that_nobody_knows_is_refused() -> None:
    _, mine = pair(hf.LlamaForCausalLM, hf.LlamaConfig(**BASE))
    with pytest.raises(errors.UnsupportedError, match="LlamaAttention passes novelty to its"):
        logits(mine, novelty=torch.ones(1))
    with pytest.raises(errors.UnsupportedError, match="returns no attention weights"):
        logits(mine, output_attentions=True)


def test_layers_that_share_k_and_v_share_them_in_the_daemon(session: aule.Session) -> None:
    eager, mine = pair(hf.Gemma3nForCausalLM, hf.Gemma3nTextConfig(
        **{**BASE, "num_hidden_layers": 4, "intermediate_size": [64] * 4, "bos_token_id": 1},
        vocab_size_per_layer_input=200, hidden_size_per_layer_input=8, laurel_rank=8,
        activation_sparsity_pattern=[0.0] * 4, altup_num_inputs=2, sliding_window=8,
        num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 2))
    check_shared(session, eager, mine)


def test_mla_is_served_by_a_shared_cache_and_by_generate_batch(session: aule.Session) -> None:
    eager, mine = pair(hf.DeepseekV3ForCausalLM, hf.DeepseekV3Config(
        **{**BASE, **MLA}, first_k_dense_replace=1))
    check_shared(session, eager, mine)
    greedy = hf.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1)
    with aule.hf.share_batches(session, mine):
        [output] = mine.generate_batch([IDS[0].tolist()], generation_config=greedy,
                                       progress_bar=False).values()
    assert output.generated_tokens == texts(eager)[0, 40:].tolist()


@pytest.mark.parametrize(("model", "config"), [
    ("FalconForCausalLM", lambda: hf.FalconConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        new_decoder_architecture=True, num_kv_heads=2, alibi=False)),
    ("FalconForCausalLM", lambda: hf.FalconConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, alibi=False)),
    ("GPTJForCausalLM", lambda: hf.GPTJConfig(vocab_size=200, n_embd=64, n_layer=2, n_head=4,
                                              rotary_dim=8)),
    ("GPTNeoForCausalLM", lambda: hf.GPTNeoConfig(
        vocab_size=200, hidden_size=64, num_layers=2, num_heads=4, window_size=8,
        attention_types=[[["global", "local"], 1]])),
])
def test_models_with_classes_of_attention_have_one_of_aule(session: aule.Session, model: str,
                                                           config: Any) -> None:
    made = config()
    made.eos_token_id = made.bos_token_id = None
    eager, mine = pair(getattr(hf, model), made)
    same(logits(mine), logits(eager))
    check_shared(session, eager, mine)


def test_falcon_with_a_bias_is_refused() -> None:
    config = hf.FalconConfig(vocab_size=200, hidden_size=64, num_hidden_layers=2,
                             num_attention_heads=4, alibi=True)
    _, mine = pair(hf.FalconForCausalLM, config)
    with pytest.raises(errors.UnsupportedError, match="bias"):
        logits(mine)


def test_a_layer_that_asks_for_its_length_gets_that_before_the_pass(session: aule.Session) -> None:
    eager, mine = pair(hf.Llama4ForCausalLM, hf.Llama4TextConfig(
        **{**BASE, "bos_token_id": 1}, intermediate_size_mlp=64, num_local_experts=2,
        num_experts_per_tok=1, attention_chunk_size=8, no_rope_layers=[1, 0], floor_scale=4,
        attn_scale=2.0, attn_temperature_tuning=True))
    check_shared(session, eager, mine)
    with pytest.raises(errors.UnsupportedError, match="attn_temperature_tuning"):
        aule.hf.share_batches(session, mine)


def test_a_mask_of_the_caller_is_served_or_refused() -> None:
    eager, mine = pair(hf.LlamaForCausalLM, hf.LlamaConfig(**BASE))
    seen = torch.rand(1, 1, 40, 40, generator=torch.Generator().manual_seed(2)) > 0.5
    seen = (seen | torch.eye(40, dtype=torch.bool)) & torch.ones(40, 40).tril().bool()
    additive = torch.zeros(1, 1, 40, 40).masked_fill(~seen, torch.finfo(torch.float32).min)
    right = logits(eager, attention_mask=additive)
    same(logits(mine, attention_mask=additive), right)
    same(logits(mine, attention_mask=seen), right)
    with pytest.raises(errors.UnsupportedError, match="a bias for the scores"):
        logits(mine, attention_mask=additive + 0.5)
    with pytest.raises(errors.UnsupportedError, match="differs between heads"):
        logits(mine, attention_mask=torch.cat(
            [seen, seen.roll(1, -1) | seen, seen, seen], 1))
    with pytest.raises(errors.UnsupportedError, match=r"has shape \[1, 1, 40, 39\]"):
        logits(mine, attention_mask=seen[..., :39])


def test_a_model_whose_cache_hides_more_than_its_mask_is_refused(session: aule.Session) -> None:
    """transformers keeps 8 keys of each layer, and the model's mask shows all."""
    config = hf.LlamaConfig(**BASE)
    config.sliding_window = 8
    _, mine = pair(hf.LlamaForCausalLM, config)
    with aule.hf.open_cache(session, mine, "hides") as cache, \
            aule.hf.SharedCache(cache, mine, IDS) as past, \
            pytest.raises(errors.UnsupportedError, match="a window of 8 keys"):
        texts(mine, past)


@pytest.mark.parametrize(("make", "sentence"), [
    (lambda: (hf.T5ForConditionalGeneration, hf.T5Config(
        vocab_size=200, d_model=64, d_kv=16, d_ff=64, num_layers=2, num_heads=4)),
     "is an encoder-decoder"),
    (lambda: (hf.Qwen3NextForCausalLM, hf.Qwen3NextConfig(
        **{**BASE, "num_hidden_layers": 4}, linear_num_key_heads=2, linear_num_value_heads=2,
        linear_key_head_dim=16, linear_value_head_dim=16, num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=32, shared_expert_intermediate_size=32,
        layer_types=["linear_attention", "full_attention"] * 2)),
     "layers of the kind linear_attention"),
    (lambda: (hf.Gemma4ForCausalLM, hf.Gemma4TextConfig(
        **{**BASE, "bos_token_id": 1}, global_head_dim=32, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"], vocab_size_per_layer_input=200,
        hidden_size_per_layer_input=8)), "differ between layers"),
])
def test_a_model_whose_k_and_v_are_no_cache_of_aule_is_refused(
        session: aule.Session, make: Any, sentence: str) -> None:
    _, mine = pair(*make())
    with pytest.raises(errors.UnsupportedError, match=sentence):
        aule.hf.SharedCache(session, mine, IDS)


def test_autocast_gives_what_it_gives_to_sdpa(session: aule.Session) -> None:
    _, mine = pair(hf.LlamaForCausalLM, hf.LlamaConfig(**BASE))
    mine.set_attn_implementation("sdpa")
    with torch.autocast("cpu", torch.bfloat16):
        right = logits(mine)
        mine.set_attn_implementation("aule")
        with aule.hf.SharedCache(session, mine, IDS) as past:
            for got in (logits(mine), logits(mine, past)):
                torch.testing.assert_close(got, right, rtol=0.05, atol=0.05)


def test_a_compiled_model_computes_what_it_computes_uncompiled(session: aule.Session) -> None:
    eager, mine = pair(hf.LlamaForCausalLM, hf.LlamaConfig(**{**BASE, "num_hidden_layers": 1}))
    whole = torch.compile(mine, fullgraph=True, backend="eager")
    same(logits(whole), logits(eager))
    padded = torch.cat([torch.zeros((1, 3), dtype=torch.long), IDS], 1)
    mask = (torch.arange(43) >= 3).long()[None]
    same(logits(whole, ids=padded, attention_mask=mask)[:, 3:],
         logits(eager, ids=padded, attention_mask=mask)[:, 3:])
    mine.forward = torch.compile(mine.forward, backend="eager")
    for cached in (0, 32):
        with aule.hf.SharedCache(session, mine, IDS) as past:
            assert past.cached == cached
            assert texts(mine, past).tolist() == texts(eager).tolist()


@pytest.mark.parametrize("window", [None, 24])
def test_a_compiled_model_finds_what_an_uncompiled_one_has_published(
        session: aule.Session, window: int | None) -> None:
    eager, mine = pair(hf.MistralForCausalLM, hf.MistralConfig(
        **{**BASE, "bos_token_id": 1}, sliding_window=window))
    with aule.hf.open_cache(session, mine, block_size=16) as cache:
        for cached in (0, 32):
            with aule.hf.SharedCache(cache, mine, IDS) as past:
                assert past.cached == cached
                assert texts(mine, past).tolist() == texts(eager).tolist()
            mine.forward = torch.compile(mine.forward, backend="eager")


def test_a_mask_that_is_shorter_than_the_keys_hides_the_rest() -> None:
    eager, mine = pair(hf.LlamaForCausalLM, hf.LlamaConfig(**BASE))
    short = torch.ones((1, 9), dtype=torch.long)
    same(logits(mine, ids=IDS[:, :14], attention_mask=short),
         logits(eager, ids=IDS[:, :14], attention_mask=short))


def test_a_mask_is_right_in_inference_mode_and_after_a_silent_change() -> None:
    eager, mine = pair(hf.LlamaForCausalLM, hf.LlamaConfig(**BASE))
    seen = torch.ones(40, 40).tril().bool()[None, None]
    for _ in range(2):
        additive = torch.zeros(1, 1, 40, 40).masked_fill(~seen, torch.finfo(torch.float32).min)
        with torch.inference_mode():
            same(mine(IDS, attention_mask=seen).logits, eager(IDS, attention_mask=additive).logits)
        seen.data[..., 3:, :3] = False


# ---- masks ----

CONFIG = hf.LlamaConfig(**BASE)


def asked(function: Any, queries: int, keys: int, **options: Any) -> dict[str, Any]:
    """The arguments of transformers' mask interface; the last query is the last key."""
    return {"batch_size": 2, "q_length": queries, "kv_length": keys, "q_offset": keys - queries,
            "kv_offset": 0, "mask_function": function, "attention_mask": None,
            "dtype": torch.float32, "config": CONFIG, "device": "cpu", "use_vmap": False,
            "allow_is_causal_skip": True, **options}


@given(st.data())
def test_a_pattern_shows_the_keys_that_the_mask_shows(data: st.DataObject) -> None:
    queries = data.draw(st.integers(1, 12))
    keys = queries + data.draw(st.integers(0, 12))
    size = data.draw(st.integers(1, 12))
    pads = [data.draw(st.integers(0, keys - 1)) for _ in range(2)]
    kinds = {
        "causal": (masks.causal_mask_function, {}),
        "window": (masks.sliding_window_causal_mask_function(size), {"local_size": size}),
        "chunk": (masks.chunked_causal_mask_function(size, torch.tensor(pads)),
                  {"local_size": size}),
        "both ways": (masks.bidirectional_mask_function, {}),
        "own": (masks.and_masks(masks.causal_mask_function,
                                lambda _b, _h, q, k: (q + k) % 3 != 1), {})}
    function, options = kinds[data.draw(st.sampled_from(sorted(kinds)))]
    padding = torch.stack([torch.arange(keys) >= pad for pad in pads])
    arguments = asked(function, queries, keys, attention_mask=padding, **options)
    rows = tuple(Rows(i, pad, max(0, queries - (keys - pad))) for i, pad in enumerate(pads))
    pattern = pattern_of(mask_for(**arguments), rows, queries, keys)
    right = masks.sdpa_mask(**{**arguments, "allow_is_causal_skip": False})
    at = 0
    for row, pad, skip in rows:
        shape = queries - skip, keys - pad
        if pattern.mask is None:
            got = pattern.sees(*shape, shape[1] - shape[0], "cpu")
        else:
            size = -(-shape[0] * shape[1] // 8)
            bits = torch.tensor(list(pattern.mask[at:at + size]), dtype=torch.uint8)
            got = (bits[:, None] >> torch.arange(8) & 1).bool().flatten()[:shape[0] * shape[1]]
            got, at = got.view(shape), at + size
        assert torch.equal(got, right[row, 0, skip:, pad:])


@pytest.mark.parametrize(("function", "options", "pattern"), [
    (masks.causal_mask_function, {}, Pattern()),
    (masks.sliding_window_causal_mask_function(3), {"local_size": 3}, Pattern(window=(2, -1))),
    (masks.chunked_causal_mask_function(3, torch.zeros(2, dtype=int)), {"local_size": 3},
     Pattern(attention_chunk=3)),
    (masks.bidirectional_mask_function, {}, Pattern(causal=False)),
])
def test_a_mask_that_options_say_is_not_sent(function: Any, options: Any, pattern: Pattern) -> None:
    mask = mask_for(**asked(function, 9, 20, **options))
    rows = (Rows(0), Rows(1))
    assert pattern_of(mask, rows, 9, 20) == pattern
    assert isinstance(mask, LazyMask) and mask.made is None


def test_views_of_a_mask_are_the_mask_and_others_are_made() -> None:
    arguments = asked(masks.causal_mask_function, 4, 6)
    mask, right = mask_for(**arguments), masks.eager_mask(**arguments)
    for view in (mask[:, :, :, :6], mask.to(torch.float32), mask.expand(2, 1, 4, 6)):
        assert isinstance(view, LazyMask) and view.made is None
    assert mask.made is None
    for got, wanted in ((mask[:, :, 1:, :3], right[:, :, 1:, :3]),
                        (mask == 0, right == 0), (mask.to(torch.float16),
                                                  right.to(torch.float16))):
        assert torch.equal(got.make() if isinstance(got, LazyMask) else got, wanted)
    shown = torch.where(torch.ones(4, 6, dtype=torch.bool), mask, -1.0)
    assert torch.equal(shown, right)
    with pytest.raises(errors.UnsupportedError, match="reads the attention mask by itself"):
        torch.zeros(2, 4, 4, 6) + mask
    with pytest.raises(errors.UnsupportedError, match="writes into the attention mask"):
        mask[:, :, :, :3] = 0
