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

import transformers
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from . import _hf_classes, errors
from ._default import KeptSession
from ._hf_attention import BATCH_NAME, NAME, of_one_type, options_of, without_mask
from ._hf_cache import SharedCache, StepCache, fingerprint, hand_over, open_cache
from ._hf_mask import Pattern, Rows, mask_for, pattern_of
from .cache import Cache
from .session import Session

if TYPE_CHECKING:
    from ._hf_batch import SharedBatches

__all__ = ["SharedCache", "StepCache", "attention_forward", "batch_attention_forward",
           "fingerprint", "open_cache", "register", "share_batches"]

_given: list[Session] = []  # to register(), for attention without a SharedCache
_own = KeptSession(name="transformers")  # for the same, if none was given


def register(session: Session | None = None) -> None:
    """Make attn_implementation="aule" known to transformers. Call it before a model uses the name.

    session: for models that run without a SharedCache, by `session.attention`; None: the first
    such call connects to the default daemon, and connects anew if that has restarted. A second
    call replaces the session.
    UnsupportedError: this transformers hands a cache to its layers in another way.
    """
    version = transformers.__version__
    if not (5, 0) <= tuple(int(part) for part in version.split(".")[:2]) < (5, 24):
        raise errors.UnsupportedError(
            f"transformers {version}: aule.hf knows 5.0 to 5.23, and is tested with 5.23; "
            "pip install 'transformers<5.24'")
    _given[:] = [session] if session else []
    AttentionInterface.register(NAME, attention_forward)
    AttentionInterface.register(BATCH_NAME, batch_attention_forward)
    for name, attend in ((NAME, attention_forward), (BATCH_NAME, batch_attention_forward)):
        AttentionMaskInterface.register(name, mask_for)
        _hf_classes.enter(name, attend)


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


def attention_forward(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None,
                      dropout: float = 0.0, scaling: float | None = None,
                      **options: Any) -> tuple[Any, None]:
    """Compute one layer's attention: query [B, Hq, T, D], key and value [B, Hkv, S, D].

    Returns (out [B, T, Hq, Dv], None). The mask says alone which keys a query sees. After a
    SharedCache's update key and value have only the new tokens, and the run reads the older ones
    in the daemon. UnsupportedError: the sentence names what the model asks for.
    """
    pending, hand_over.pending = hand_over.pending, None
    if options.get("cache") is not None:  # of generate_batch
        raise errors.UnsupportedError(f"a batch of generate_batch met the attention {NAME!r}: it "
                                      "ran on after close() of what share_batches() returned")
    run = options_of(module, (query, key, value), dropout, scaling, options)
    handed = pending or hand_over.handed.get(id(key))  # layers may share their K and V
    if handed is not None:
        handed.past._check_handed(handed, module, key, value)
    query, key, value = of_one_type((query, key, value))
    if handed is None:
        return _attend_contiguous(module, query, key, value, attention_mask, options, run), None
    handed = handed._replace(key=key, value=value)
    return handed.past._attend(handed, query, attention_mask, options, run), None


def _attend_contiguous(module: Any, query: Any, key: Any, value: Any, mask: Any,
                       options: dict[str, Any], run: dict[str, Any]) -> Any:
    if mask is None:
        pattern = Pattern(causal=without_mask(module, query, key, options))
    else:
        rows = tuple(Rows(i) for i in range(len(query)))
        pattern = pattern_of(mask, rows, query.shape[2], key.shape[2])

    def attend(session: Session) -> Any:
        return session.attention(query, key, value, layout="bhsd", **pattern._asdict(), **run)

    try:
        out = attend(_given[0]) if _given else _own.call(attend)
    except (ConnectionError, errors.ClosedError) as reason:
        if not _given:
            raise
        raise type(reason)(f"{reason}. This session was given to aule.hf.register(): call "
                           "aule.hf.register() again, with a new session or none") from None
    return out.transpose(1, 2).contiguous()
