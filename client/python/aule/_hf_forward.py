# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""One layer's attention for transformers: over its own K and V, or over what a SharedCache has.

In a graph of torch.compile it is one operator, which does the same when the graph runs.
"""

from __future__ import annotations

from typing import Any

import torch

from . import errors
from ._default import KeptSession
from ._hf_attention import NAME, of_one_type, options_of, without_mask
from ._hf_cache import Handed, hand_over
from ._hf_mask import Pattern, Rows, pattern_of
from .session import Session

_given: list[Session] = []  # the session for attention without a SharedCache
_own = KeptSession(name="transformers")  # if none is given


def use_session(session: Session | None) -> None:
    """Compute layers without a SharedCache in this session; None: in one of the process's own."""
    _given[:] = [session] if session else []


def attention_forward(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None,
                      dropout: float = 0.0, scaling: float | None = None,
                      **options: Any) -> tuple[Any, None]:
    """Compute one layer's attention: query [B, Hq, T, D], key and value [B, Hkv, S, D].

    Returns (out [B, T, Hq, Dv], None). The mask says alone which keys a query sees. After a
    SharedCache's update key and value have only the new tokens, and the run reads the older ones
    in the daemon. UnsupportedError: the sentence names what the model asks for.
    """
    compiling = torch.compiler.is_compiling()
    handed = None if compiling else _take_handed(key)
    if options.get("cache") is not None:  # of generate_batch
        raise errors.UnsupportedError(f"a batch of generate_batch met the attention {NAME!r}: "
                                      "generate_batch was running when share_batches() was closed")
    run = options_of(module, (query, key, value), dropout, scaling, options)
    causal = attention_mask is not None or without_mask(module, query, key, options)
    if compiling:
        tensors = of_one_type((query, key, value))
        return torch.ops.aule.attention(*tensors, attention_mask, run["sinks"], run["scale"],
                                        run["soft_cap"], causal), None
    return _attend(handed, query, key, value, attention_mask, causal, run), None


def _take_handed(key: Any) -> Handed | None:
    """Return what a cache has handed on for this layer; layers may share their K and V."""
    pending, hand_over.pending = hand_over.pending, None
    return pending or hand_over.handed.get(key.data_ptr())


def _attend(handed: Handed | None, query: Any, key: Any, value: Any, mask: Any, causal: bool,
            run: dict[str, Any]) -> Any:
    if handed is not None:
        handed.past._check_handed(handed, key, value)
    query, key, value = of_one_type((query, key, value))
    if handed is not None:
        return handed.past._attend(Handed(handed.past, handed.layer, key, value), query, mask, run)
    if mask is None:
        pattern = Pattern(causal=causal)
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


def _operator(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              mask: torch.Tensor | None, sinks: torch.Tensor | None, scale: float | None,
              soft_cap: float, causal: bool) -> torch.Tensor:
    """Be the node of a graph: what `attention_forward` does outside of one."""
    out: torch.Tensor = _attend(_take_handed(key), query, key, value, mask, causal,
                                {"scale": scale, "soft_cap": soft_cap, "sinks": sinks})
    return out


def _shape_of(query: torch.Tensor, _key: torch.Tensor, value: torch.Tensor,
              *_: Any) -> torch.Tensor:
    batch, heads, count, _dim = query.shape
    return query.new_empty(batch, count, heads, value.shape[-1])


torch.library.custom_op("aule::attention", _operator, mutates_args=()).register_fake(_shape_of)
