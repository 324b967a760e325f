# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""The names of aule's attention in transformers, and what its keyword arguments mean in a run.

Models hand over more than attention reads. A keyword that nobody has looked at is refused, so that
no model computes something else than it means. This module knows no model and no cache.
"""

from __future__ import annotations

from typing import Any

import torch

from . import errors

NAME = "aule"
BATCH_NAME = "aule_batch"  # of generate_batch

# What options_of() reads.
SERVED = frozenset(("is_causal", "sliding_window", "softcap", "s_aux"))
# What models pass on to each layer, and eager attention does not read.
HARMLESS = frozenset((
    "cache_position", "deterministic", "logits_to_keep", "num_items_in_batch",
    "output_hidden_states", "output_router_logits", "position_embeddings", "position_ids",
    "return_dict", "token_type_ids", "use_cache"))
# What generate_batch passes on for attention that reads transformers' own paged cache.
OF_BATCHES = frozenset((
    "block_table", "cu_seq_lens_k", "cu_seq_lens_q", "logits_indices", "logits_processor_args",
    "max_length_k", "max_length_q", "max_seqlen_k", "max_seqlen_q", "read_index", "write_index"))
REASONS = {
    "output_attentions": "aule returns no attention weights",
    "position_bias": "aule adds no bias to the scores but ALiBi",
    "indices": "aule attends to all keys that the mask shows, not to selected ones",
}


def options_of(module: Any, tensors: tuple[Any, Any, Any], dropout: float, scaling: Any,
               options: dict[str, Any],
               known: frozenset[str] = SERVED | HARMLESS) -> dict[str, Any]:
    """Translate the keyword arguments of an attention function for `attend`, but for the mask."""
    what = type(module).__name__
    if dropout:
        raise errors.UnsupportedError(f"{what}: dropout = {dropout}: aule serves inference; call "
                                      "model.eval()")
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise errors.UnsupportedError("aule computes no gradients: run the model under "
                                      "torch.no_grad()")
    for name, value in options.items():
        if value is not None and value is not False and name not in known:
            raise errors.UnsupportedError(
                f"{what} passes {name} to its attention: "
                f"{REASONS.get(name, 'aule does not know what it means for the result')}")
    return {"scale": None if scaling is None else float(scaling),
            "soft_cap": options.get("softcap") or 0.0, "sinks": options.get("s_aux")}


def of_one_type(tensors: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Cast q, k and v as autocast does for attention."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    q, k, v = (tensor.to(dtype) for tensor in tensors)
    return q, k, v


def without_mask(module: Any, query: Any, key: Any, options: dict[str, Any]) -> bool:
    """Say whether attention without a mask is causal, as transformers' sdpa understands it.

    UnsupportedError: eager attention and FlashAttention understand it differently.
    """
    causal = options.get("is_causal")
    if causal is None:
        causal = getattr(module, "is_causal", True)
    queries, keys = query.shape[2], key.shape[2]
    window = options.get("sliding_window")
    if (causal and 1 < queries != keys) or (window is not None and window < keys):
        raise errors.UnsupportedError(
            f"{type(module).__name__} passes no mask for {queries} queries and {keys} keys, "
            f"is_causal = {causal} and sliding_window = {window}: it is not clear which keys each "
            "query sees")
    return bool(causal) and queries > 1
