# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""What a transformers configuration says of a model's K and V: layers, heads, dims, positions.

A cache in the daemon has one shape for all layers. A model whose layers differ, or that keeps other
state than K and V, is refused here, before anything is computed. No tensor, no session.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedConfig

from . import errors
from ._args import said
from ._hf_mask import Pattern
from ._run import Geometry

KEPT = ("full_attention", "sliding_attention", "chunked_attention")  # layers with K and V
ELSEWHERE = ("dummy", "moe", "mlp")  # layers that use other layers' K and V, or none


def check_is_model(model: Any) -> None:
    """Raise InvalidError if this is no module with a configuration of transformers."""
    if not (isinstance(model, torch.nn.Module)
            and isinstance(getattr(model, "config", None), PreTrainedConfig)):
        raise errors.InvalidError(f"model = {said(model)}; it is a model of transformers, or "
                                  "another module with such a model's config")


def text_config(model: Any) -> Any:
    """Return the configuration of the decoder. UnsupportedError: it is no decoder alone."""
    check_is_model(model)
    if model.config.is_encoder_decoder:
        raise errors.UnsupportedError(
            f"{type(model).__name__} is an encoder-decoder: aule's caches have the prompts of "
            "decoders; attn_implementation='aule' serves it with transformers' own caches")
    return model.config.get_text_config(decoder=True)


def _layer_types(config: Any) -> list[str]:
    """Return the kind of each layer, as transformers' own cache would see it."""
    types = getattr(config, "layer_types", None)
    if not types:
        window, chunk = (getattr(config, name, None)
                         for name in ("sliding_window", "attention_chunk_size"))
        kind = ("sliding_attention" if window is not None
                else "full_attention" if chunk is None else "chunked_attention")
        types = [kind] * config.num_hidden_layers
    modes = getattr(config, "kv_sharing_modes", None)
    if modes is not None:
        types = ["dummy" if mode == "reuse" else kind
                 for kind, mode in zip(types, modes, strict=True)]
    return list(types)


def windows_of(config: Any) -> list[int | None]:
    """Return how many keys transformers' own cache would keep of each layer; None: all."""
    return [getattr(config, "sliding_window", None) if kind == "sliding_attention" else None
            for kind in _layer_types(config)]


def check_window(name: str, window: int | None, pattern: Pattern, keys: int) -> None:
    """Raise UnsupportedError if only transformers' cache hides keys, and not the mask."""
    if window and keys > window and pattern == Pattern():
        raise errors.UnsupportedError(
            f"{name}: the configuration has a window of {window} keys, and the model's mask has "
            f"none for {keys} keys: transformers' own cache drops keys that the mask shows, and "
            "aule's does not")


def _counts_alone(name: str) -> errors.UnsupportedError:
    return errors.UnsupportedError(
        f"{name} counts positions by itself: it cannot compute several texts in one row")


def check_row(model: Any, longest: int) -> None:
    """Raise UnsupportedError if a model cannot compute several texts in one row.

    longest: tokens of the longest text.
    """
    config, name = text_config(model), type(model).__name__
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise _counts_alone(name)
    if getattr(config, "attn_temperature_tuning", None):
        raise errors.UnsupportedError(
            f"{name} scales queries by their place in the row (attn_temperature_tuning): it cannot "
            "compute several texts in one row")
    check_rope(config, longest)


def check_batches(model: Any) -> None:
    """Raise UnsupportedError if generate_batch cannot serve a model."""
    name = type(model).__name__
    check_row(model, 0)
    if "chunked_attention" in _layer_types(text_config(model)):
        raise errors.UnsupportedError(
            f"{name} has chunks of attention, which generate_batch of transformers does not know")
    if not _hands_on_positions(model):
        raise _counts_alone(name)


def _hands_on_positions(model: Any) -> bool:
    """Say whether generate() of this model hands on position_ids as they are."""
    one = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    try:
        inputs = model.prepare_inputs_for_generation(one, position_ids=one,
                                                     attention_mask=torch.ones_like(one))
    except (AttributeError, TypeError, ValueError):  # it needs more than token ids
        return False
    positions = inputs.get("position_ids")
    return positions is not None and not bool(positions.any())


def check_rope(config: Any, longest: int) -> None:
    """Raise UnsupportedError if a text of `longest` tokens would rotate the others' K."""
    border = rope_border(config)
    if border is not None and border.passed(longest):
        raise errors.UnsupportedError(
            f"RoPE ({border.kind}) rotates by the length of the text from {border.tokens} "
            f"tokens on, and a text has {longest}: it cannot share a row with others")


def _shape(config: Any) -> dict[str, int]:
    """Return the heads and dims of K and V, as attention gets them."""
    heads = config.num_attention_heads
    rope_dim = getattr(config, "qk_rope_head_dim", None)
    if rope_dim and getattr(config, "kv_lora_rank", None):  # MLA: those that it expands
        return {"num_kv_heads": heads, "head_dim": config.qk_nope_head_dim + rope_dim,
                "head_dim_v": config.v_head_dim}
    one = getattr(config, "multi_query", False) and not getattr(
        config, "new_decoder_architecture", False)
    given = [getattr(place, name, None) for place in (getattr(config, "attn_config", None), config)
             for name in ("num_key_value_heads", "num_kv_heads", "kv_n_heads")]
    kv_heads = 1 if one else next((count for count in given if count), heads)
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return {"num_kv_heads": kv_heads, "head_dim": dim, "head_dim_v": 0}


def check_shape(name: str, layer: int, geometry: Geometry, key: Any, value: Any) -> None:
    """Raise UnsupportedError if K and V of a layer are not those of the cache.

    key, value: [batch, heads, tokens, dim].
    """
    got = key.shape[1], key.shape[3], value.shape[3]
    wanted = geometry.num_kv_heads, geometry.head_dim, geometry.out_dim
    if got != wanted or layer >= geometry.num_layers:
        raise errors.UnsupportedError(
            f"layer {layer} of {name} has K and V of {got[0]} heads, dims {got[1]} and {got[2]}; "
            f"this cache has {geometry.num_layers} layers of {wanted[0]} heads, dims {wanted[1]} "
            f"and {wanted[2]}. Give open_cache() other values if all layers are alike")


def latent_of(config: Any) -> tuple[int, int, int] | None:
    """Return heads and dims of what a model with MLA gives its cache before it expands it."""
    rank, rope_dim = (getattr(config, name, None) for name in ("kv_lora_rank", "qk_rope_head_dim"))
    return (1, rank, rope_dim) if rank and rope_dim else None


def geometry_of(model: Any) -> dict[str, int]:
    """Return num_layers, num_kv_heads, head_dim and head_dim_v of a model's cache.

    num_layers counts the layers that have K and V of their own, which come first.
    UnsupportedError: layers keep other state, or differ.
    """
    config, name = text_config(model), type(model).__name__
    takes = "past_key_values" in inspect.signature(model.forward).parameters
    if not takes or not getattr(config, "num_attention_heads", None) or not getattr(
            model, "_supports_default_dynamic_cache", lambda: True)():
        raise errors.UnsupportedError(
            f"{name} takes no cache of K and V as past_key_values; use it without one")
    if getattr(config, "cross_attention_layers", None):
        raise errors.UnsupportedError(
            f"{name} has layers that attend to images and keep K and V of these; use transformers' "
            "own cache")
    types = _layer_types(config)
    strange = sorted(set(types) - {*KEPT, *ELSEWHERE})
    if strange:
        raise errors.UnsupportedError(
            f"{name} has layers of the kind {', '.join(strange)}: they keep other state than K and "
            "V, and a cache of aule has only these; use transformers' own cache")
    count = sum(kind in KEPT for kind in types)
    if any(kind not in KEPT for kind in types[:count]):
        raise errors.UnsupportedError(
            f"{name} has layers without K and V of their own before others: {', '.join(types)}")
    layers = getattr(config, "per_layer_config", None)
    shapes = [_shape(config)] if not layers else [_shape(one) for one in list(layers)[:count]]
    if any(shape != shapes[0] for shape in shapes):
        raise errors.UnsupportedError(
            f"K and V of {name} differ between layers: {shapes[0]} and "
            f"{next(one for one in shapes if one != shapes[0])}; a cache of aule has one shape")
    return {"num_layers": count, **shapes[0]}


class RopeBorder(NamedTuple):
    """The length from which on a model's rotation depends on the length of the text."""

    tokens: int
    kind: str  # "dynamic": on each length beyond; "longrope": only on whether it is beyond

    def passed(self, length: int) -> bool:
        """Say whether a text of this length may be rotated as a longer one.

        A text that ends at the border of "dynamic" keeps what a longer one has left.
        """
        return length >= self.tokens if self.kind == "dynamic" else length > self.tokens


def rope_border(config: Any) -> RopeBorder | None:
    """Return where the rotation of K begins to depend on the text's length; None: never.

    Source: dynamic_rope_update() of transformers' modeling_rope_utils.py.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    borders = []
    for one in (parameters, *parameters.values()):
        kind = str(one.get("rope_type") or "") if isinstance(one, dict) else ""
        if "dynamic" in kind:
            borders.append(RopeBorder(config.max_position_embeddings, "dynamic"))
        elif kind == "longrope":
            tokens = one.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", config.max_position_embeddings)
            borders.append(RopeBorder(tokens, kind))
    return min(borders, default=None)
