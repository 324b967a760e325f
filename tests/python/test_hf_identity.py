# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Which weights K and V are of: what a fingerprint covers, and what an open cache notices."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import enum
import functools
import gc
import threading
from collections.abc import Callable
from typing import Any

import aule
import numpy as np
import pytest
from aule import errors
from conftest import in_processes
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import aule.hf  # noqa: E402
from aule import _hf_identity as identity  # noqa: E402
from hf_models import (  # noqa: E402
    BLOCK,
    COMMON,
    KINDS,
    fingerprint_after,
    generate,
    generate_batch,
    model_of,
    prompt,
)
from torch import nn  # noqa: E402
from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

Change = Callable[[Any], Any]
ids = prompt(3, 70)
CACHED = 70 // BLOCK * BLOCK


def own(model: Any, cache: aule.Cache) -> tuple[list[int], int]:
    """What a SharedCache generates, and how many tokens were cached."""
    with aule.hf.SharedCache(cache, model, ids) as past:
        return generate(model, ids, past_key_values=past)[0].tolist(), past.cached


def plain(model: Any) -> list[int]:
    """What transformers' own attention and cache generate."""
    model.set_attn_implementation("sdpa")
    try:
        return list(generate(model, ids)[0].tolist())
    finally:
        model.set_attn_implementation("aule")


def open_cache(session: aule.Session, model: Any, name: str, **options: Any) -> Any:
    return aule.hf.open_cache(session, model, name, block_size=BLOCK, **options)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes of the tensors that are read as a whole."""
    seen: list[Any] = []
    sums_of = identity.sums_of

    def noted(tensor: Any) -> bytes:
        seen.append(tuple(tensor.shape))
        return sums_of(tensor)

    monkeypatch.setattr(identity, "sums_of", noted)
    return seen


class Packed(nn.Module):
    """A linear layer whose weights are a buffer, and its scale a plain tensor, as in GPTQ, HQQ."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax() / 127
        self.rank = 2
        self.register_buffer("qweight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.meta = {"scale": scale}

    def forward(self, x: Any) -> Any:
        return x @ (self.qweight.to(x.dtype) * self.meta["scale"]).T


class Adapter(nn.Module):
    """A LoRA that an attribute switches on."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base, self.enabled, self.scaling = base, True, {"default": 1.0}
        self.down = nn.Linear(base.in_features, 4, bias=False)
        self.up = nn.Linear(4, base.out_features, bias=False)

    def forward(self, x: Any) -> Any:
        more = self.up(self.down(x)) * self.scaling["default"] if self.enabled else 0
        return self.base(x) + more


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


@dataclasses.dataclass
class Setting:
    factor: float
    tensors: list[Any]


class Scaled(nn.Module):
    """A layer of another library; `by` may be of any type."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base, self.by, self.other = base, None, object()

    def forward(self, x: Any) -> Any:
        return self.base(x)


def scaled(model: Any) -> Any:
    return model.model.layers[0].mlp


class Steered(LlamaForCausalLM):
    """A caller's own class, whose attributes change what it computes."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.alpha, self._beta, self.vector = 0.0, 0.0, torch.zeros(3)


def packed() -> Any:
    model = model_of("llama")
    model.model.layers[0].self_attn.k_proj = Packed(model.model.layers[0].self_attn.k_proj)
    return model


def adapted(model: Any) -> Any:
    torch.manual_seed(1)
    attention = model.model.layers[0].self_attn
    attention.v_proj = Adapter(attention.v_proj).eval()
    with torch.no_grad():
        attention.v_proj.up.weight.normal_(std=2.0)
    return attention.v_proj


def weight(model: Any) -> Any:
    return model.model.layers[1].self_attn.k_proj.weight.data


def embedding(model: Any) -> Any:
    return model.get_input_embeddings().weight.data


def flip(words: Any, *places: tuple[int, int]) -> None:
    for i, bit in places:
        words.view(-1).view(torch.int32)[i] ^= (1 << bit) if bit < 31 else -(1 << 31)


def swap(rows: Any, i: int, j: int) -> None:
    rows[[i, j]] = rows[[j, i]]


# ---- what a fingerprint covers ----

CHANGES: dict[str, Change] = {
    "other rows in the middle of the embeddings": lambda m: embedding(m)[30:60].add_(1),
    "one element in the middle of a projection": lambda m: weight(m)[13, 29].add_(1),
    "one bit": lambda m: flip(weight(m), (777, 0)),
    "the signs of two elements": lambda m: flip(weight(m), (5, 31), (900, 31)),
    "two rows that swap places": lambda m: swap(weight(m), 3, 4),
    "two elements that swap places": lambda m: swap(weight(m).view(-1), 100, 101),
    "a norm": lambda m: m.model.norm.weight.data[3].add_(1),
    "inv_freq": lambda m: m.model.rotary_emb.inv_freq[2].mul_(2),
    "the head": lambda m: m.lm_head.weight.data[50, 3].add_(1),
    "a plain number of a module": lambda m: setattr(m.model.norm, "variance_epsilon", 1e-3),
    "another type": lambda m: m.to(torch.bfloat16),
    "another module": lambda m: setattr(m.model.layers[1].mlp, "act_fn", nn.GELU()),
    "a parametrization": lambda m: nn.utils.parametrize.register_parametrization(
        m.model.layers[0].self_attn.v_proj, "weight", nn.Identity()),
    "an adapter": adapted,
    "attention that is not causal": lambda m: setattr(m.config, "is_causal", False),
    "a number of a module of another library": lambda m: setattr(scaled(m), "by", 2.0),
    "a scalar of numpy": lambda m: setattr(scaled(m), "by", np.float64(2)),
    "an array of numpy": lambda m: setattr(scaled(m), "by", np.arange(4.0)),
    "an array of objects": lambda m: setattr(scaled(m), "by", np.array([2, "x"], object)),
    "an enum": lambda m: setattr(scaled(m), "by", Mode.SLOW),
    "a dataclass": lambda m: setattr(scaled(m), "by", Setting(2.0, [torch.ones(3)])),
    "a tensor in a dataclass": lambda m: setattr(scaled(m), "by", Setting(1.0, [torch.ones(3)])),
    "a function": lambda m: setattr(scaled(m), "by", nn.functional.silu),
    "a function's argument": lambda m: setattr(
        scaled(m), "by", functools.partial(nn.functional.gelu, approximate="tanh")),
    "a tensor that a module of transformers has": lambda m: setattr(
        m.model.layers[0].self_attn, "table", torch.ones(3)),
    "a list that a module of torch has": lambda m: setattr(
        m.model.layers[0].self_attn.k_proj, "ranks", [1, 2]),
    "a configuration that only a module has": lambda m: setattr(
        m.model.layers[1].mlp, "config", LlamaConfig(**{**COMMON, "hidden_act": "gelu"})),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_fingerprint_tells_apart(what: str) -> None:
    """In a model that was never read, and in one that was: by a read of all after renew()."""
    model, read = model_of("llama"), model_of("llama")
    same = model_of("llama")
    for one in (model, read, same):
        one.model.layers[0].mlp = Scaled(one.model.layers[0].mlp).eval()
    before = aule.hf.fingerprint(read)
    assert before == aule.hf.fingerprint(same)
    CHANGES[what](model)
    CHANGES[what](read)
    identity._weights_of(read).forget()
    assert before != aule.hf.fingerprint(model) == aule.hf.fingerprint(read)


@pytest.mark.parametrize("change", [
    lambda m: m.model.layers[0].self_attn.k_proj.qweight[7, 9].add_(1),
    lambda m: m.model.layers[0].self_attn.k_proj.meta["scale"].mul_(2)])
def test_a_fingerprint_covers_weights_that_are_no_parameters(change: Change) -> None:
    model = packed()
    before = aule.hf.fingerprint(model)
    assert aule.hf.fingerprint(packed()) == before
    change(model)
    assert aule.hf.fingerprint(model) != before


def test_the_order_of_attributes_is_of_no_account() -> None:
    models = [model_of("llama") for _ in range(2)]
    for model, names in zip(models, ("abc", "cba"), strict=True):
        model.model.layers[0].mlp = Scaled(model.model.layers[0].mlp)
        for name in names:
            setattr(scaled(model), name, torch.full((3,), float(ord(name))))
    assert aule.hf.fingerprint(models[0]) == aule.hf.fingerprint(models[1])


@pytest.mark.parametrize("change", [
    lambda m: setattr(m, "alpha", 1.0), lambda m: setattr(m, "_beta", 1.0),
    lambda m: m.vector[1].add_(1), lambda m: setattr(m, "vector", torch.ones(3))])
def test_a_fingerprint_covers_attributes_of_a_callers_model(change: Change) -> None:
    def made() -> Any:
        torch.manual_seed(5)
        return Steered(LlamaConfig(**COMMON)).eval()

    model = made()
    before = aule.hf.fingerprint(model)
    assert aule.hf.fingerprint(made()) == before
    model.name_or_path = "elsewhere"
    assert aule.hf.fingerprint(model) == before
    change(model)
    assert aule.hf.fingerprint(model) != before


@pytest.mark.parametrize("dtype", ["int1", "uint4", "float8_e8m0fnu", "float4_e2m1fn_x2"])
def test_a_fingerprint_covers_buffers_of_small_types(dtype: str) -> None:
    model = model_of("llama")
    bytes_of = torch.zeros(40, dtype=torch.uint8)
    model.model.norm.register_buffer("packed", bytes_of.view(getattr(torch, dtype)))
    before = aule.hf.fingerprint(model)
    bytes_of[3] = 1
    identity._weights_of(model).forget()
    assert aule.hf.fingerprint(model) != before


@pytest.mark.parametrize("model", [None, 7, nn.Linear(2, 2)])
def test_what_is_no_model_is_refused(session: aule.Session, model: Any) -> None:
    for call in (lambda: aule.hf.fingerprint(model), lambda: open_cache(session, model, "none"),
                 lambda: aule.hf.SharedCache(session, model, ids),
                 lambda: aule.hf.share_batches(session, model)):
        with pytest.raises(errors.InvalidError, match="it is a model of transformers"):
            call()


def test_a_fingerprint_covers_packed_weights_of_torch() -> None:
    def quantised(more: float) -> Any:
        model = nn.Sequential(nn.Linear(8, 8, bias=False))
        model.config = LlamaConfig(**COMMON)
        with torch.no_grad():
            model[0].weight.copy_(torch.arange(64).view(8, 8))
            model[0].weight[3, 3] += more
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)

    with pytest.warns(DeprecationWarning):
        one, same, other = quantised(0), quantised(0), quantised(5)
    assert aule.hf.fingerprint(one) == aule.hf.fingerprint(same) != aule.hf.fingerprint(other)


@pytest.mark.parametrize("config", [
    {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {"rms_norm_eps": 1e-2},
    {"attention_bias": True}, {"hidden_act": "gelu"}])
def test_the_same_weights_under_another_configuration_differ(config: dict[str, Any]) -> None:
    def made(**more: Any) -> Any:
        torch.manual_seed(5)
        return LlamaForCausalLM(LlamaConfig(**{**COMMON, **more}))

    assert aule.hf.fingerprint(made()) != aule.hf.fingerprint(made(**config))
    caps = [model_of("gemma") for _ in range(2)]
    caps[0].config.attn_logit_softcapping = 9.0
    assert aule.hf.fingerprint(caps[0]) != aule.hf.fingerprint(caps[1])


def test_what_changes_no_k_and_no_v_is_left_out() -> None:
    model = model_of("llama")
    before = aule.hf.fingerprint(model)
    model.config._name_or_path = model.name_or_path = "elsewhere"
    model.config.use_cache = False
    model.config.pad_token_id = 5
    model.set_attn_implementation("sdpa")
    model.train()
    model.requires_grad_(False)
    model.gradient_checkpointing_enable()
    identity._weights_of(model).forget()
    assert aule.hf.fingerprint(model) == before
    assert aule.hf.fingerprint(torch.compile(model)) == before


def test_processes_with_the_same_weights_have_one_fingerprint() -> None:
    said = in_processes(fingerprint_after, [(0,), (0,), (1,)])
    assert said == [fingerprint_after(0), fingerprint_after(0), fingerprint_after(1)]
    assert said[0] != said[2]


@pytest.mark.gpu
def test_a_model_on_a_gpu_has_the_fingerprint_that_it_has_on_the_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA device here")
    model = model_of("llama").to(torch.bfloat16)
    before = aule.hf.fingerprint(model)
    assert aule.hf.fingerprint(model.cuda()) == before
    embedding(model)[50, 3] += 1
    assert aule.hf.fingerprint(model) != before


def test_weights_that_are_tied_are_read_once(reads: list[Any]) -> None:
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**{**COMMON, "tie_word_embeddings": True}))
    assert model.lm_head.weight is model.get_input_embeddings().weight
    before = aule.hf.fingerprint(model)
    assert reads.count((97, 64)) == 1
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    assert aule.hf.fingerprint(model) == before and reads.count((97, 64)) == 2


def test_a_read_of_more_than_a_second_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    tqdm = identity.logging.tqdm
    monkeypatch.setattr(identity.logging, "tqdm",
                        lambda **options: asked.append(options) or tqdm(**options))
    model = model_of("llama")
    aule.hf.fingerprint(model)
    size = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    assert [(one["delay"], one["total"]) for one in asked] == [(1, size)]


def test_weights_that_are_not_in_memory_are_refused(session: aule.Session) -> None:
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**COMMON))
    with pytest.raises(errors.UnsupportedError, match=r"model.embed_tokens.weight, .* is not in "
                       r"memory .*give open_cache\(\) a fingerprint="):
        aule.hf.fingerprint(model)
    open_cache(session, model, "meta", fingerprint="offloaded").close()


# ---- the sums ----

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn,
          torch.float8_e5m2, torch.int8, torch.uint8, torch.int16, torch.int64, torch.bool,
          torch.complex64]


def right_sums(data: bytes) -> bytes:
    """The formula, by Python's own integers."""
    keys = [int(key) for key in identity._keys(torch.device("cpu"))]
    size = 4 * len(keys)
    data += bytes(size - len(data) % size)
    words = np.frombuffer(data, np.int32).reshape(-1, len(keys))
    sums = [sum(int(word) * key for word, key in zip(row, keys, strict=True)) for row in words]
    return b"".join((one % 2**64).to_bytes(8, "little") for one in sums)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (7,), (33, 129), (4096,), (5, 4096)])
def test_sums_are_those_of_the_formula(dtype: Any, shape: tuple[int, ...]) -> None:
    bits = torch.randint(0, 256, (int(np.prod(shape)) * dtype.itemsize,), dtype=torch.uint8)
    tensor = (bits % 2 if dtype is torch.bool else bits).view(dtype).reshape(shape)
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    assert identity.sums_of(tensor) == right_sums(data)


def test_sums_follow_values_not_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randn(300, 257, dtype=torch.bfloat16)
    sums = identity.sums_of(whole)
    assert identity.sums_of(whole.T.contiguous().T) == sums
    assert identity.sums_of(torch.cat([whole[:1, :1].view(-1), whole.view(-1)])[1:]) == sums
    assert identity.sums_of(whole[:1].expand(300, -1)) == identity.sums_of(
        whole[:1].repeat(300, 1))
    for threads in (1, 3):  # of parts of 8 chunks and more
        monkeypatch.setattr(identity, "CPU_PIECE", 1)
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        long = torch.arange(29 * identity.CHUNK, dtype=torch.int32).view(-1)
        assert identity.sums_of(long) == right_sums(long.numpy().tobytes())


def test_sums_are_the_same_in_inference_mode() -> None:
    identity._keys.cache_clear()
    words = torch.arange(5 * identity.CHUNK)
    with torch.inference_mode():
        inside = identity.sums_of(words)
        made = nn.Parameter(torch.ones(3))
    assert identity.sums_of(words) == inside and identity.sums_of(made)
    model = model_of("llama")
    with torch.inference_mode():
        model.model.norm.weight = nn.Parameter(model.model.norm.weight.clone())
        before = aule.hf.fingerprint(model)
        model.model.norm.weight.add_(1)  # it has no version counter
    assert aule.hf.fingerprint(model) != before


@given(st.data())
def test_any_changed_bit_and_any_two_swapped_words_change_the_sums(data: st.DataObject) -> None:
    words = torch.arange(2 * identity.CHUNK + 5, dtype=torch.int32) * 0x01010101
    before = identity.sums_of(words)
    place = st.integers(0, len(words) - 1)
    flip(words, (data.draw(place), data.draw(st.integers(0, 31))))
    assert identity.sums_of(words) != before
    i, j = data.draw(st.lists(place, min_size=2, max_size=2, unique=True))
    before, differ = identity.sums_of(words), int(words[i]) != int(words[j])
    swap(words, i, j)
    assert (identity.sums_of(words) != before) == differ


def test_two_words_never_swap_without_a_change_of_the_sum() -> None:
    """The keys' low 33 bits are distinct, and words differ by less than 2^32."""
    keys = identity._keys(torch.device("cpu"))
    assert (keys & 1).all() and len(torch.unique(keys & (2**33 - 1))) == len(keys)


# ---- what is noticed after the first read ----


def rows_of(model: Any) -> Any:
    return model.get_input_embeddings().weight


def fused(model: Any) -> None:
    """torch's fused optimizers write without a trace in version counters."""
    parameter = rows_of(model)
    before = parameter._version
    parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW([parameter], lr=0.1, fused=True).step()
    parameter.grad = None
    assert parameter._version == before


def replaced(model: Any) -> None:
    rows = rows_of(model).detach().clone()
    rows[50] += 1
    model.get_input_embeddings().weight = nn.Parameter(rows)


def pointed(model: Any) -> None:
    rows = rows_of(model).detach().clone()
    rows[50] += 1
    rows_of(model).data = rows


NOTICED: dict[str, Change] = {
    "an operation in place": lambda m: torch.no_grad()(rows_of(m)[50].add_)(1),
    "one in inference mode": lambda m: torch.inference_mode()(rows_of(m)[50].add_)(1),
    "another storage": pointed, "another parameter": replaced, "a fused optimizer": fused,
    "all elements by data": lambda m: rows_of(m).data.add_(1),
    "load_state_dict": lambda m: m.load_state_dict(
        {**m.state_dict(), "model.norm.weight": torch.rand(64)}),
    "an assigned state_dict": lambda m: m.load_state_dict(
        {**m.state_dict(), "model.norm.weight": torch.rand(64)}, assign=True),
    "a transposed view": lambda m: setattr(m.model.layers[0].self_attn.q_proj.weight, "data",
                                           m.model.layers[0].self_attn.q_proj.weight.data.T),
    "inv_freq": CHANGES["inv_freq"], "a module's number": CHANGES["a plain number of a module"],
    "an adapter": adapted,
}


@pytest.mark.parametrize("what", NOTICED)
def test_a_change_is_noticed_at_the_next_prompt(session: aule.Session, what: str) -> None:
    model = model_of("llama")
    with open_cache(session, model, f"noticed {what}") as cache:
        before = own(model, cache)[0]
        assert own(model, cache) == (before, CACHED)
        NOTICED[what](model)
        assert own(model, cache) == (plain(model), 0)
        assert own(model, cache) == (plain(model), CACHED)


def test_no_weight_is_read_twice(session: aule.Session, reads: list[Any]) -> None:
    model = model_of("llama")
    with open_cache(session, model, "twice") as cache:
        assert reads
        reads.clear()
        own(model, cache)
        aule.hf.fingerprint(model)
        open_cache(session, model, "twice").close()
        assert not reads
        with torch.no_grad():
            model.model.norm.weight[3] += 1
        own(model, cache)
        assert reads == [(64,)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_forward_pass_is_no_change(session: aule.Session, reads: list[Any], kind: str) -> None:
    model = model_of(kind)
    with open_cache(session, model, f"no change {kind}") as cache, \
            aule.hf.share_batches(cache, model):
        reads.clear()
        for cached in (0, CACHED):
            assert own(model, cache)[1] == cached
        generate_batch(model, [ids[0].tolist()])
        assert not reads and cache.sequence(ids[0]).cached == CACHED


@pytest.mark.parametrize("rope", [
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 8, "long_factor": [3.0] * 8,
     "original_max_position_embeddings": 32}])
def test_frequencies_that_follow_the_length_are_no_weights(rope: dict[str, Any]) -> None:
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**{
        **COMMON, "max_position_embeddings": 32,
        "rope_parameters": {"rope_theta": 1e4, **rope}})).eval()
    before, frequencies = aule.hf.fingerprint(model), model.model.rotary_emb.inv_freq.clone()
    with torch.no_grad():
        model(ids)
    assert not torch.equal(frequencies, model.model.rotary_emb.inv_freq)
    assert aule.hf.fingerprint(model) == before


def test_a_change_without_a_trace_beside_one_with_a_trace_is_read(session: aule.Session) -> None:
    model, same = model_of("llama"), model_of("llama")
    aule.hf.fingerprint(model)
    for one in (model, same):
        fused(one)
        with torch.no_grad():
            one.model.norm.weight[3] += 1
    assert aule.hf.fingerprint(model) == aule.hf.fingerprint(same)


def test_weights_that_come_back_find_their_blocks(session: aule.Session) -> None:
    model = model_of("llama")
    with open_cache(session, model, "back") as cache:
        first = own(model, cache)[0]
        for _ in range(2):
            with torch.no_grad():
                rows_of(model).neg_()
            second = own(model, cache)
            assert second[0] == plain(model) != first
            with torch.no_grad():
                rows_of(model).neg_()
            assert own(model, cache) == (first, CACHED)
        assert second[1] == CACHED


def test_a_cache_that_is_opened_again_follows_its_model(session: aule.Session) -> None:
    """As a SharedCache over a session opens it, once for each prompt."""
    model = model_of("llama")
    model.config._name_or_path = "opened again"
    for _ in range(3):
        assert own(model, session) == (plain(model), 0)
        assert own(model, session) == (plain(model), CACHED)
        with torch.no_grad():
            rows_of(model)[40:60].neg_().add_(1)
    with pytest.raises(errors.MismatchError, match="has fingerprint"):  # another model has not
        aule.hf.open_cache(session, packed(), "opened again")


def test_batches_of_changed_weights_use_no_old_block(session: aule.Session) -> None:
    model, tokens = model_of("llama"), [ids[0].tolist()]
    with open_cache(session, model, "batches") as cache, \
            aule.hf.share_batches(cache, model) as shared:
        for _ in range(2):
            was = shared.cached
            assert [plain(model)[70:]] * 2 == [*generate_batch(model, tokens),
                                               *generate_batch(model, tokens)]
            assert shared.cached == was + CACHED
            with torch.no_grad():
                rows_of(model)[40:60].neg_().add_(1)


def test_processes_with_the_same_new_weights_share(session: aule.Session) -> None:
    models = [model_of("llama") for _ in range(2)]
    caches = [open_cache(session, model, "both") for model in models]
    for model in models:
        with torch.no_grad():
            rows_of(model)[50] += 1
    assert own(models[0], caches[0])[1] == 0 and own(models[1], caches[1])[1] == CACHED
    for cache in caches:
        cache.close()


def test_the_key_of_unchanged_weights_is_the_callers(session: aule.Session) -> None:
    model = model_of("llama")
    tokens = ids[0].tolist()
    with open_cache(session, model, "own key", fingerprint="one") as cache, \
            session.cache("own key", num_layers=2, num_kv_heads=2, head_dim=16, dtype="f32",
                          block_size=BLOCK, fingerprint="one") as bare:
        with aule.hf.SharedCache(cache, model, ids, extra_key="mine") as past:
            generate(model, ids, past_key_values=past)
        assert bare.sequence(tokens, extra_key=b"mine").cached == CACHED
        assert len(cache.lookup(tokens, extra_key=b"mine")) == CACHED // BLOCK
        with torch.no_grad():
            rows_of(model).neg_()
        with aule.hf.SharedCache(cache, model, ids, extra_key="x" * 256) as past:
            assert past.cached == 0
            generate(model, ids, past_key_values=past)
        for key, cached in (("x" * 256, CACHED), ("x" * 255, 0), ("", 0), ("mine", 0)):
            assert cache.sequence(tokens, extra_key=key).cached == cached
            assert len(cache.lookup(tokens, extra_key=key.encode())) == cached // BLOCK


# ---- adapters ----


def test_an_adapter_that_is_switched_is_another_model(session: aule.Session) -> None:
    model = model_of("llama")
    with open_cache(session, model, "adapter") as cache:
        bare = own(model, cache)[0]
        adapter = adapted(model)
        said = [bare]
        for change in (lambda: None, lambda: adapter.scaling.update(default=3.0),
                       lambda: setattr(adapter, "enabled", False)):
            change()
            got, cached = own(model, cache)
            assert (got, cached) == (plain(model), 0)
            said.append(got)
        assert said[0] == said[3] and said[1] not in (bare, said[2])
        model.model.layers[0].self_attn.v_proj = adapter.base  # removed
        assert own(model, cache) == (bare, CACHED)


# ---- texts that go on while the weights change ----


GOES_ON: dict[str, Change] = {
    "in place": lambda m: torch.no_grad()(rows_of(m).neg_)(), "an adapter": adapted,
    "a fused optimizer": fused}


@pytest.mark.parametrize("change", GOES_ON)
def test_a_text_does_not_go_on_with_other_weights(session: aule.Session, change: str) -> None:
    model = model_of("llama")
    with open_cache(session, model, f"goes on {change}") as cache, \
            aule.hf.SharedCache(cache, model, ids) as past:
        out = generate(model, ids, past_key_values=past)
        longer = torch.cat([out, prompt(4, 60)], 1)
        GOES_ON[change](model)
        fork = past.sequences[0].fork()
        fork.append([1, 2])
        for go_on in (lambda: generate(model, longer, past_key_values=past),
                      lambda: cache.step([fork])):
            with pytest.raises(errors.InvalidError, match="have changed since this sequence"):
                go_on()
        with aule.hf.SharedCache(cache, model, longer) as anew:
            assert anew.cached == 0


def forward(model: Any, cache: aule.Cache, tokens: Any) -> tuple[Any, int]:
    """The last token's logits, and how many tokens were cached."""
    with torch.no_grad(), aule.hf.SharedCache(cache, model, tokens) as past:
        return model(tokens[:, past.cached:], past_key_values=past).logits[0, -1], past.cached


DECODES: dict[str, tuple[Change, Change, bool]] = {  # on, off, whether it is refused
    "an adapter": (lambda m: setattr(m.model.layers[0].self_attn.v_proj, "enabled", True),
                   lambda m: setattr(m.model.layers[0].self_attn.v_proj, "enabled", False), True),
    "a parameter": (lambda m: torch.no_grad()(rows_of(m).neg_)(),
                    lambda m: torch.no_grad()(rows_of(m).neg_)(), True),
    "a parameter without a trace": (lambda m: rows_of(m).data.neg_(),
                                    lambda m: rows_of(m).data.neg_(), True),
    "a buffer of transformers": (lambda m: m.model.rotary_emb.inv_freq.div_(2),
                                 lambda m: m.model.rotary_emb.inv_freq.mul_(2), True),
    "a buffer of another library": (
        lambda m: m.model.layers[0].self_attn.k_proj.qweight.neg_(),
        lambda m: m.model.layers[0].self_attn.k_proj.qweight.neg_(), False),
    "a tensor of another library": (
        lambda m: m.model.layers[0].self_attn.k_proj.meta["scale"].div_(2),
        lambda m: m.model.layers[0].self_attn.k_proj.meta["scale"].mul_(2), False),
    "a number of another library": (
        lambda m: setattr(m.model.layers[0].self_attn.k_proj, "rank", 2),
        lambda m: setattr(m.model.layers[0].self_attn.k_proj, "rank", 3), False),
    "training mode": (lambda m: m.eval(), lambda m: m.train(), True),
}


@pytest.mark.parametrize("what", DECODES)
def test_single_tokens_of_changed_weights_are_not_published(session: aule.Session,
                                                            what: str) -> None:
    model = packed().eval()
    adapted(model)
    on, off, refused = DECODES[what]
    on(model)
    more = prompt(9, 2 * BLOCK)
    with open_cache(session, model, f"decode {what}") as cache:
        with torch.no_grad(), aule.hf.SharedCache(cache, model, ids) as past:
            model(ids, past_key_values=past)
            off(model)
            told = 0
            for token in more[0]:
                try:
                    model(token.view(1, 1), past_key_values=past)
                except errors.InvalidError as error:
                    assert "have changed since this sequence" in str(error)
                    told += 1
            assert bool(told) == refused
        on(model)
        longer = torch.cat([ids, more, prompt(2, 5)], 1)
        assert cache.sequence(longer[0]).cached == CACHED
        got, cached = forward(model, cache, longer)
        model.set_attn_implementation("sdpa")
        with torch.no_grad():
            torch.testing.assert_close(got, model(longer).logits[0, -1], rtol=1e-3, atol=1e-3)
        assert cached == CACHED


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_training_mode_shares_nothing(session: aule.Session, kind: str) -> None:
    """Dropout, a router's jitter and the like make each K and V another one."""
    model = model_of("llama")
    if kind == "mixtral":
        torch.manual_seed(5)
        model = MixtralForCausalLM(MixtralConfig(
            **COMMON, router_jitter_noise=0.5, num_local_experts=4))
        model.set_attn_implementation("aule")
    before = aule.hf.fingerprint(model)
    with open_cache(session, model, f"training {kind}") as cache:
        model.train()
        for _ in range(2):
            with pytest.warns(RuntimeWarning, match=r"while \w+ is in training mode"):
                assert forward(model, cache, ids)[1] == 0
        assert aule.hf.fingerprint(model) == before
        model.eval()
        assert [forward(model, cache, ids)[1] for _ in range(2)] == [0, CACHED]
        cache.renew("step 8")
        model.train().eval()
        assert [forward(model, cache, ids)[1] for _ in range(2)] == [0, CACHED]


def test_tokens_are_read_before_a_wait(session: aule.Session) -> None:
    model = model_of("llama")
    shape = {"num_layers": 1, "num_kv_heads": 2, "head_dim": 16, "dtype": "f32"}
    may = threading.Event()

    async def main(cache: aule.Cache) -> None:
        asyncio.get_running_loop().set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        busy = asyncio.get_running_loop().run_in_executor(None, may.wait, 30)
        buffer = np.arange(40, dtype=np.int32)
        making = asyncio.ensure_future(cache.sequence_async(buffer))
        await asyncio.sleep(0)
        buffer[:] = 7
        may.set()
        await busy
        with await making as sequence:
            assert sequence.tokens.tolist() == list(range(40))

    for cache in (session.cache("buffer", **shape), open_cache(session, model, "its buffer")):
        may.clear()
        asyncio.run(main(cache))
        cache.close()


def test_a_layer_that_counts_its_passes_stops_no_text(session: aule.Session) -> None:
    """It shares nothing either: an unknown number may be what an adapter multiplies by."""
    model = model_of("llama")
    adapter = adapted(model)
    adapter.count, adapter.passes = 0, torch.zeros(())
    adapter.register_buffer("steps", torch.zeros(()))

    def count(module: Any, *_: Any) -> None:
        module.count += 1
        module.passes = module.passes + 1
        module.steps += 1

    adapter.register_forward_hook(count)
    with open_cache(session, model, "counts") as cache:
        for _ in range(2):
            assert own(model, cache) == (plain(model), 0)


def test_a_text_of_a_model_that_moved_in_memory_goes_on(session: aule.Session) -> None:
    model = model_of("llama")
    with open_cache(session, model, "moved") as cache, \
            aule.hf.SharedCache(cache, model, ids) as past:
        out = generate(model, ids, past_key_values=past)
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        out = generate(model, out, past_key_values=past)
        assert out[0].tolist() == generate(model_of("llama", "sdpa"),
                                           generate(model_of("llama", "sdpa"), ids))[0].tolist()


def test_a_cache_of_another_model_is_refused(session: aule.Session) -> None:
    model, same, other = model_of("llama"), model_of("llama"), model_of("llama")
    embedding(other)[50] += 1
    with open_cache(session, model, "other model") as cache:
        assert own(same, cache)[1] == 0
        for make in (lambda: aule.hf.SharedCache(cache, other, ids),
                     lambda: aule.hf.share_batches(cache, other)):
            with pytest.raises(errors.InvalidError, match="opened for another LlamaForCausalLM"):
                make()
        identity.check_model(cache, torch.compile(model))
        identity.check_model(cache, nn.Sequential(model))


def test_rows_of_one_prompt_take_one_look(session: aule.Session, monkeypatch: Any) -> None:
    model, looks = model_of("llama"), []
    look = identity._Weights.look
    monkeypatch.setattr(identity._Weights, "look", lambda self: looks.append(self) or look(self))
    with open_cache(session, model, "rows") as cache:
        looks.clear()
        with aule.hf.SharedCache(cache, model, ids.expand(9, -1)):
            assert len(looks) == 1
        cache.sequence([1])
        assert len(looks) == 2


# ---- weights that the caller names ----


def test_a_given_fingerprint_reads_no_weight(session: aule.Session, reads: list[Any]) -> None:
    model = model_of("llama")
    with open_cache(session, model, "given", fingerprint="run 7") as cache:
        got = own(model, cache)[0]
        assert own(model, cache) == (got, CACHED) and not reads
        with torch.no_grad():
            rows_of(model).neg_()
        assert own(model, cache) == (plain(model), 0) and reads  # right all the same
        with pytest.raises(errors.MismatchError):
            open_cache(session, model, "given", fingerprint="run 8")


def test_renew_names_the_present_weights(session: aule.Session, reads: list[Any]) -> None:
    models = [model_of("llama") for _ in range(2)]
    caches = [open_cache(session, model, "renewed") for model in models]
    own(models[0], caches[0])
    for model, cache in zip(models, caches, strict=True):
        embedding(model)[50] += 1  # one row by `.data`, which leaves no trace
        reads.clear()
        cache.renew("step 8")
        assert not reads
        with pytest.raises(errors.InvalidError, match="fingerprint = 8; it is bytes or a str"):
            cache.renew(8)
    assert own(models[0], caches[0]) == (plain(models[0]), 0)
    assert own(models[1], caches[1]) == (plain(models[0]), CACHED) and not reads
    with torch.no_grad():
        rows_of(models[0])[51] += 1
    assert own(models[0], caches[0])[1] == 0
    for cache in caches:
        cache.close()


def test_renew_reads_what_left_no_trace(session: aule.Session, reads: list[Any]) -> None:
    model = model_of("llama")
    with open_cache(session, model, "no trace") as cache:
        first = own(model, cache)[0]
        place = next(i for i in range(64 * 97) if i % (64 * 97 // identity.SAMPLE))
        embedding(model).view(-1)[place] += 0.5
        reads.clear()
        cache.renew()
        assert len(reads) > 20
        assert own(model, cache) == (plain(model), 0)
        embedding(model).view(-1)[place] -= 0.5
        cache.renew()
        assert own(model, cache)[1] in (0, CACHED)
        assert own(model, cache) == (first, CACHED)


def test_nothing_keeps_weights_or_a_model_alive(session: aule.Session) -> None:
    model = model_of("llama")
    cache = open_cache(session, model, "alive")
    own(model, cache)
    old = identity.weakref.ref(rows_of(model))
    replaced(model)
    assert old() is None
    gone = identity.weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert cache.sequence(ids[0]).cached == CACHED  # as the model was
    cache.close()
