# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Small transformers models with random weights, prompts, and what worker processes do."""

from __future__ import annotations

from typing import Any

import aule
import aule.hf
import torch
import transformers as hf

KINDS = ("llama", "qwen", "gemma", "gpt_oss")
VOCAB, NEW = 97, 6
BLOCK = 16
COMMON = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
          "max_position_embeddings": 1024, "pad_token_id": 0, "bos_token_id": 1,
          "eos_token_id": None, "tie_word_embeddings": False,  # ties would hide attention
          "initializer_range": 0.25}


def model_of(kind: str, attention: str = "aule") -> Any:
    """The same weights in each process."""
    configs = {
        "llama": lambda: hf.LlamaConfig(**COMMON),
        "qwen": lambda: hf.Qwen2Config(**COMMON),
        "gemma": lambda: hf.Gemma2Config(
            **COMMON, sliding_window=24, attn_logit_softcapping=1.5, query_pre_attn_scalar=16),
        "gpt_oss": lambda: hf.GptOssConfig(
            **COMMON, sliding_window=24, num_local_experts=4, num_experts_per_tok=2)}
    aule.hf.register()
    torch.manual_seed(5)
    config = configs[kind]()
    config._attn_implementation = attention
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.normal_(std=2.0)
    return model


def prompt(seed: int, length: int) -> Any:
    """The first 40 tokens are common to all seeds."""
    common = torch.Generator().manual_seed(99)
    own = torch.Generator().manual_seed(seed)
    ids = torch.cat([torch.randint(2, VOCAB, (40,), generator=common),
                     torch.randint(2, VOCAB, (max(0, length - 40),), generator=own)])
    return ids[:length][None]


def lengths(count: int) -> list[int]:
    """Lengths from 1 to 600 tokens."""
    return [1 + 599 * i // max(1, count - 1) for i in range(count)]


def generate(model: Any, ids: Any, **options: Any) -> Any:
    return model.generate(ids, max_new_tokens=NEW, do_sample=False, **options)


def batching(num_return_sequences: int = 1, **options: Any) -> tuple[Any, Any]:
    """The two configurations of generate_batch: greedy, and small."""
    sampled = {"do_sample": True, "top_k": 1} if num_return_sequences > 1 else {"do_sample": False}
    return (hf.GenerationConfig(max_new_tokens=NEW, eos_token_id=-1, **sampled,
                                num_return_sequences=num_return_sequences),
            hf.ContinuousBatchingConfig(**{"max_batch_tokens": 256, "num_blocks": 64,
                                           "page_size": 32, **options}))


def generate_batch(model: Any, prompts: list[list[int]], persistent_manager: bool = False,
                   **options: Any) -> list[list[int]]:
    """The ids of each prompt's texts. An error of a request is raised."""
    generation, continuous = batching(**options)
    outputs = model.generate_batch(prompts, generation_config=generation,
                                   continuous_batching_config=continuous,
                                   persistent_manager=persistent_manager)
    errors = [output.error for output in outputs.values() if output.error]
    assert not errors and outputs, errors
    return [output.generated_tokens for output in outputs.values()]


# ---- for conftest.in_processes() ----


def batch(socket: str, name: str, first: int) -> dict[str, Any]:
    """Generate for 32 prompts by one generate_batch, beginning with prompt `first`."""
    torch.set_num_threads(1)
    model = model_of("llama")
    prompts = [prompt(seed, length)[0].tolist() for seed, length in enumerate(lengths(32))]
    with aule.connect(socket, name=f"batch {first}") as session:
        cache = aule.hf.open_cache(session, model, name, block_size=BLOCK)
        with aule.hf.share_batches(cache, model) as shared:
            ids = generate_batch(model, prompts[first:] + prompts[:first])
        turn = len(prompts) - first
        return {"cached": shared.cached, "ids": ids[turn:] + ids[:turn]}


def work(socket: str, kind: str, pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Generate for prompts (seed, length), over one SharedCache each."""
    torch.set_num_threads(1)
    model = model_of(kind)
    said = []
    with aule.connect(socket, name=f"hf {kind}") as session:
        cache = aule.hf.open_cache(session, model, kind, block_size=BLOCK)
        for seed, length in pairs:
            ids = prompt(seed, length)
            with aule.hf.SharedCache(cache, model, ids) as past:
                out = generate(model, ids, past_key_values=past)
                said.append({"seed": seed, "cached": past.cached, "ids": out[0].tolist()})
    return said


def fingerprint_after(more: int) -> bytes:
    """The fingerprint of a model with one other row of embeddings."""
    model = model_of("llama")
    model.get_input_embeddings().weight.data[50] += more
    return aule.hf.fingerprint(model)
