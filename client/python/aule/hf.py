# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Hugging Face transformers 5 on aule: its attention, and a KV cache that processes share.

    aule.hf.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="aule")
    past = aule.hf.SharedCache(aule.connect(), model, ids)
    out = model.generate(ids, past_key_values=past)

A second process that runs these lines computes only what follows the longest common prefix of full
blocks. Needs torch and transformers. This module knows transformers' interfaces of attention and
masks; it knows no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from . import errors
from ._hf_attention import BATCH_NAME, NAME, options_of
from ._hf_cache import SharedCache, StepCache, fingerprint, hand_over, open_cache
from .cache import Cache
from .session import Session, connect

if TYPE_CHECKING:
    from ._hf_batch import SharedBatches

__all__ = ["SharedCache", "StepCache", "attention_forward", "attention_mask_of",
           "batch_attention_forward", "fingerprint", "open_cache", "register", "share_batches"]

_contiguous: list[Session] = []  # the session for attention without a SharedCache


def register(session: Session | None = None) -> None:
    """Make attn_implementation="aule" known to transformers. Call it before a model uses the name.

    session: for models that run without a SharedCache, by `session.attention`; None: the first
    such call connects to the default daemon. A second call replaces the session.
    UnsupportedError: this transformers hands a cache to its layers in another way.
    """
    version = transformers.__version__
    if not (5, 0) <= tuple(int(part) for part in version.split(".")[:2]) < (5, 24):
        raise errors.UnsupportedError(
            f"transformers {version}: aule.hf knows 5.0 to 5.23, and is tested with 5.23; "
            "pip install 'transformers<5.24'")
    _contiguous[:] = [session] if session else []
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask_of)
    AttentionInterface.register(BATCH_NAME, batch_attention_forward)


def batch_attention_forward(module: Any, query: Any, key: Any, value: Any,
                            attention_mask: Any = None, **options: Any) -> tuple[Any, None]:
    """Compute one layer of generate_batch; returns (out [1, T, Hq, D], None)."""
    from ._hf_batch import batch_attention_forward

    return batch_attention_forward(module, query, key, value, attention_mask, **options)


def share_batches(where: Session | Cache, model: Any, *, publish: bool = True,
                  extra_key: bytes | str = b"", timeout: float | None = 10.0) -> SharedBatches:
    """Let generate_batch of this model keep K and V in the daemon, until close() of the result.

        with aule.hf.share_batches(aule.connect(), model):
            outputs = model.generate_batch(prompts, generation_config)

    The model's attn_implementation is "aule"; transformers takes "paged|aule" for it, too.
    Prompts begin behind what other processes, and earlier calls, have computed. transformers
    allocates no K and V: num_blocks, page_size and max_memory_percent of its
    ContinuousBatchingConfig have no effect. max_batch_tokens: None: what fits in half of the
    arena, at most 8192. Graphs, torch.compile and asynchronous batching raise UnsupportedError.

    where: a session, or what `open_cache` returned. publish, extra_key: as in `Cache.sequence`.
    timeout: seconds to wait for blocks that other processes have.
    UnsupportedError: this transformers lacks methods that aule needs; 5.23 has them.
    InvalidError: the model's generate_batch is shared already, or its attention is another.
    """
    from ._hf_batch import share

    return share(where, model, publish=publish, extra_key=extra_key, timeout=timeout)


# ---- the functions that register() registers ----


def attention_mask_of(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0,
                      kv_offset: Any = 0, attention_mask: Any = None,
                      local_size: int | None = None, allow_is_causal_skip: bool = True,
                      config: Any = None, **options: Any) -> Any:
    """Return a mask, bool [batch, 1, q, kv], or None if causal and the layer's window say all.

    transformers calls it once a forward pass and kind of layer. Its own rule for sdpa returns None
    less often: aule aligns queries with the last keys, and knows windows.
    """
    plain = (allow_is_causal_skip and int(q_offset) + q_length == int(kv_offset) + kv_length
             and (local_size is None or local_size != getattr(config, "attention_chunk_size", None))
             and (attention_mask is None or bool(attention_mask.all())))
    if plain:
        return None
    return sdpa_mask(batch_size=batch_size, q_length=q_length, kv_length=kv_length,
                     q_offset=q_offset, kv_offset=kv_offset, attention_mask=attention_mask,
                     local_size=local_size, allow_is_causal_skip=False, config=config, **options)


def attention_forward(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None,
                      dropout: float = 0.0, scaling: float | None = None,
                      **options: Any) -> tuple[Any, None]:
    """Compute one layer's attention: query [B, Hq, T, D], key and value [B, Hkv, S, D].

    Returns (out [B, T, Hq, D], None). After a SharedCache's update key and value have only the new
    tokens, and the run reads the older ones in the daemon.
    """
    pending, hand_over.pending = hand_over.pending, None
    if options.get("cache") is not None:  # of generate_batch
        raise errors.UnsupportedError(f"a batch of generate_batch met the attention {NAME!r}: it "
                                      "ran on after close() of what share_batches() returned")
    run = options_of(module, query, dropout, scaling, options)
    mask = _checked_mask(attention_mask)
    if mask is not None:
        run["window"] = None  # the mask has it
    if pending is None:
        return _attend_contiguous(query, key, value, mask, run), None
    cache, layer, handed = pending
    if handed is not key:
        raise errors.InvalidError(f"layer {layer}: the model changes K after the cache's update; "
                                  "a SharedCache cannot serve it")
    return cache._attend(layer, query, key, value, mask, run), None


def _checked_mask(mask: Any) -> Any:
    if mask is not None and (mask.dtype != torch.bool or mask.ndim != 4 or mask.shape[1] != 1):
        raise errors.UnsupportedError(f"the mask is {mask.dtype} {list(mask.shape)}; aule takes "
                                      "bool [batch, 1, queries, keys]")
    return mask


def _attend_contiguous(query: Any, key: Any, value: Any, mask: Any, run: dict[str, Any]) -> Any:
    if not _contiguous:
        _contiguous.append(connect(name="transformers"))
    masks = None if mask is None else list(mask[:, 0].expand(query.shape[0], -1, -1))
    out = _contiguous[0].attention(query, key, value, layout="bhsd", mask=masks, **run)
    return out.transpose(1, 2).contiguous()
