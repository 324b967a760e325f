# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Hugging Face transformers 5 on aule: its attention, and a KV cache that processes share.

    aule.hf.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="aule")
    session = aule.connect()  # one for each process
    past = aule.hf.SharedCache(session, model, ids)
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
from ._hf_attention import BATCH_NAME, NAME
from ._hf_cache import SharedCache, StepCache, open_cache
from ._hf_forward import attention_forward, use_session
from ._hf_identity import fingerprint
from ._hf_mask import mask_for
from .cache import Cache
from .session import Session

if TYPE_CHECKING:
    from ._hf_batch import SharedBatches

__all__ = ["SharedCache", "StepCache", "attention_forward", "batch_attention_forward",
           "fingerprint", "open_cache", "register", "share_batches"]

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
    use_session(session)
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
