# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""transformers' attention masks, made only when they are read, and what a mask means in a run.

transformers asks for a mask once a forward pass and kind of layer; models hand it to each layer.
`LazyMask` stands for the mask of eager attention: 0 or the least number. aule's attention asks it
for a `Pattern`, mostly without making the mask. This module knows no model and no cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_map
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    eager_mask,
    sdpa_mask,
    sliding_window_overlay,
)

from . import errors
from ._args import pack_mask

ELEMENTS = 1 << 24  # of a mask that are compared at once

_aten = torch.ops.aten
# Operations that may return the mask as it was.
_KEEPS = frozenset((_aten.alias.default, _aten.detach.default, _aten.slice.Tensor,
                    _aten.expand.default, _aten._to_copy.default, _aten.clone.default,
                    _aten.contiguous.default))


class Rows(NamedTuple):
    """One text in the batch of a mask: its row there, and the padding at its left."""

    row: int
    pad: int = 0  # keys
    skip: int = 0  # queries


class Pattern(NamedTuple):
    """Which keys the queries see, by the options of a run. Queries are aligned with the last keys.

    mask: packed bits of all texts, if the other fields do not say all; it replaces them.
    """

    causal: bool = True
    window: tuple[int, int] | None = None
    attention_chunk: int = 0
    mask: bytes | None = None

    def sees(self, queries: int, keys: int, first: int, device: Any) -> Any:
        """Return bool [queries, keys]; query 0 is aligned with key `first`."""
        at = torch.arange(first, first + queries, device=device)[:, None]
        key = torch.arange(keys, device=device)[None]
        seen = key <= at if self.causal else torch.ones_like(key <= at)
        left, right = self.window or (-1, -1)
        if left >= 0:
            seen &= key >= at - left
        if right >= 0:
            seen &= key <= at + right
        if self.attention_chunk:
            seen &= key // self.attention_chunk == at // self.attention_chunk
        return seen


class LazyMask(torch.Tensor):  # type: ignore[misc]
    """The mask of eager attention [batch, 1, queries, keys] that is made when it is read.

    asked: the arguments of transformers' mask interface. Views and casts of it are such masks, too.
    """

    asked: dict[str, Any]
    made: Any  # the eager mask; None: nobody has read it
    patterns: dict[tuple[Any, ...], Pattern]  # that it was found to be

    @staticmethod
    def __new__(cls, asked: dict[str, Any], made: Any = None,
                same: LazyMask | None = None) -> LazyMask:
        """Make the mask of these arguments.

        made: what became of it by views and casts. same: a mask that it is equal to.
        """
        like = made if made is not None else same
        shape, dtype, device = (
            (like.shape, like.dtype, like.device) if like is not None else
            ((asked["batch_size"], 1, asked["q_length"], asked["kv_length"]), asked["dtype"],
             asked["device"]))
        mask: LazyMask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        mask.asked, mask.made = asked, made if same is None else same.made
        mask.patterns = {} if same is None else same.patterns
        return mask

    def __repr__(self, **_options: Any) -> str:
        return f"LazyMask({list(self.shape)}, {self.dtype}, made={self.made is not None})"

    def make(self) -> Any:
        """Return the mask itself."""
        if self.made is None:
            self.made = eager_mask(**self.asked)
        return self.made

    @property
    def untouched(self) -> bool:
        """Whether it is the mask that transformers asked for, and not a view of it."""
        asked = self.asked
        return tuple(self.shape) == (asked["batch_size"], 1, asked["q_length"],
                                     asked["kv_length"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args and isinstance(args[0], LazyMask) else None
        if func in _KEEPS and first is not None and _keeps(func, first, args, kwargs):
            return cls(first.asked, same=first)
        flat, _ = tree_flatten((args, kwargs))
        masks = [one for one in flat if isinstance(one, LazyMask)]
        others = [one for one in flat if isinstance(one, torch.Tensor)
                  and not isinstance(one, LazyMask)]
        if any(one.is_floating_point() and one.ndim > 2 for one in others):
            config = type(masks[0].asked.get("config")).__name__.removesuffix("Config")
            raise errors.UnsupportedError(
                f"{config}: its code reads the attention mask by itself ({func}): it computes "
                "attention without transformers' attention interface, or adds a bias to the "
                "scores. aule serves neither; use attn_implementation='eager'. A model that was "
                "loaded with another attention may have to be loaded with 'aule'")
        if func._schema.is_mutable:
            raise errors.UnsupportedError(
                f"the model writes into the attention mask ({func}), which aule does not see")
        real_args, real_kwargs = tree_map(_real, (args, kwargs))
        out = func(*real_args, **real_kwargs)
        if isinstance(out, torch.Tensor) and out.ndim == 4 and not others:
            return cls(masks[0].asked, out)
        return out


def _real(one: Any) -> Any:
    return one.make() if isinstance(one, LazyMask) else one


def _keeps(func: Any, mask: LazyMask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Say whether the result of an operation of `_KEEPS` is the mask itself."""
    if func is _aten.slice.Tensor:
        given: tuple[Any, ...] = (*args[1:], *(0, 0, None, 1)[len(args) - 1:])
        dim, start, end, step = given
        length = mask.shape[dim]
        return (start or 0) == 0 and (end is None or end >= length) and step == 1
    if func is _aten.expand.default:
        return len(args[1]) == 4 and all(
            size in (-1, own) for size, own in zip(args[1], mask.shape, strict=True))
    if func is _aten._to_copy.default:
        return (kwargs.get("dtype") in (None, mask.dtype)
                and kwargs.get("device") in (None, mask.device))
    return True


def mask_for(**asked: Any) -> Any:
    """Be transformers' mask interface: return a mask [batch, 1, queries, keys].

    A model that torch.compile traces gets the eager mask itself: its graph has no lazy tensor.
    """
    asked.pop("allow_is_bidirectional_skip", None)
    if torch.compiler.is_compiling():
        return eager_mask(**asked)
    asked["q_offset"], asked["kv_offset"] = int(asked["q_offset"]), int(asked["kv_offset"])
    return LazyMask(asked)


def windowed(mask: Any, keys: int) -> Any:
    """Return a causal mask whose queries see no more than their last `keys` keys."""
    if isinstance(mask, LazyMask):
        return LazyMask({**mask.asked, "local_size": keys, "mask_function": and_masks(
            mask.asked["mask_function"], sliding_window_overlay(keys))})
    at = torch.arange(mask.shape[2], device=mask.device)[:, None] + mask.shape[3] - mask.shape[2]
    far = torch.arange(mask.shape[3], device=mask.device)[None] <= at - keys
    return mask.masked_fill(far, torch.finfo(mask.dtype).min)


def _candidates(asked: dict[str, Any]) -> Iterator[Pattern]:
    """Return the patterns that the arguments of the mask interface hint at, likely ones first."""
    size = asked.get("local_size")
    if size:
        yield Pattern(window=(size - 1, -1))
        yield Pattern(attention_chunk=size)
        yield Pattern(causal=False, window=(size, size))
    yield Pattern()
    yield Pattern(causal=False)


def _parts(asked: dict[str, Any]) -> Iterator[tuple[int, Any]]:
    """Yield (first query, bool [batch, queries, keys]): the mask in pieces of bounded size."""
    asked = {name: value for name, value in asked.items() if name not in ("dtype", "local_size")}
    count, offset = asked["q_length"], asked["q_offset"]
    step = max(1, ELEMENTS // max(1, asked["kv_length"] * asked["batch_size"]))
    for first in range(0, count, step):
        asked.update(q_length=min(step, count - first), q_offset=offset + first,
                     allow_is_causal_skip=False)
        yield first, sdpa_mask(**asked)[:, 0]


def _of_asked(asked: dict[str, Any], rows: tuple[Rows, ...]) -> list[Any]:
    """Return for each text of the batch its Pattern, else bool [queries, keys]."""
    count, keys = asked["q_length"], asked["kv_length"]
    left = [list(_candidates(asked)) for _ in rows]
    for first, part in _parts(asked):
        for (row, pad, skip), candidates in zip(rows, left, strict=True):
            cut = max(0, skip - first)
            at = keys - pad - count + first + cut  # the last query is aligned with the last key
            seen = part[row, cut:, pad:]
            candidates[:] = [one for one in candidates if torch.equal(
                seen, one.sees(part.shape[1] - cut, keys - pad, at, seen.device))]
        if not all(left):
            whole = torch.cat([part for _, part in _parts(asked)], 1)
            return [whole[row, skip:, pad:] for row, pad, skip in rows]
    return [candidates[0] for candidates in left]


def _plain(asked: dict[str, Any]) -> bool:
    """Say whether the arguments alone tell that the mask is causal."""
    padding = asked.get("attention_mask")
    return (asked["mask_function"] is causal_mask_function and not asked.get("local_size")
            and asked["q_offset"] + asked["q_length"] == asked["kv_offset"] + asked["kv_length"]
            and (padding is None or (bool(padding.all()) and padding.shape[-1]
                                     >= asked["kv_offset"] + asked["kv_length"])))


def _seen(mask: Any, queries: int, keys: int) -> Any:
    """Return a mask tensor as bool [batch, queries, keys]. UnsupportedError: it is a bias."""
    if mask.ndim != 4 or tuple(mask.shape[2:]) != (queries, keys):
        raise errors.UnsupportedError(
            f"the attention mask has shape {list(mask.shape)}; aule takes [batch, 1, queries, "
            f"keys], here {queries} and {keys}")
    if mask.dtype != torch.bool:
        hidden = mask <= torch.finfo(mask.dtype).min / 2 if mask.is_floating_point() else mask == 0
        shown = mask == 0 if mask.is_floating_point() else mask == 1
        if not bool((hidden | shown).all()):
            raise errors.UnsupportedError(
                f"the attention mask is {mask.dtype} with values besides 0 and the least one: a "
                "bias for the scores, which aule does not add")
        mask = shown
    if mask.shape[1] > 1 and not bool((mask == mask[:, :1]).all()):
        raise errors.UnsupportedError("the attention mask differs between heads; aule takes one "
                                      "for all")
    return mask[:, 0]


def _of_seen(seen: Any, window: int | None) -> Any:
    """Return the Pattern of bool [queries, keys] if there is one, else these."""
    queries, keys = seen.shape
    for pattern in _candidates({"local_size": window}):
        if torch.equal(seen, pattern.sees(queries, keys, keys - queries, seen.device)):
            return pattern
    return seen


def _joined(of_texts: list[Any], shapes: list[tuple[int, int]], device: Any) -> Pattern:
    """Return one pattern for all texts; of each there is a Pattern or bool [queries, keys]."""
    if all(isinstance(one, Pattern) for one in of_texts) and len(set(of_texts)) <= 1:
        return of_texts[0] if of_texts else Pattern()
    bits = [one.sees(queries, keys, keys - queries, device) if isinstance(one, Pattern) else one
            for one, (queries, keys) in zip(of_texts, shapes, strict=True)]
    return Pattern(mask=pack_mask(bits, shapes))


def pattern_of(mask: Any, rows: tuple[Rows, ...], queries: int, keys: int,
               window: int | None = None) -> Pattern:
    """Return what the texts `rows` of a batch see.

    mask: [batch or 1, 1, queries, keys], padding included. window: keys of a window that the model
    may have. UnsupportedError: the mask has another shape, or it is a bias.
    """
    shapes = [(queries - one.skip, keys - one.pad) for one in rows]
    if isinstance(mask, LazyMask):
        if mask.untouched and tuple(mask.shape[2:]) == (queries, keys):
            if rows not in mask.patterns:
                mask.patterns[rows] = Pattern() if _plain(mask.asked) else _joined(
                    _of_asked(mask.asked, rows), shapes, mask.device)
            return mask.patterns[rows]
        mask = mask.make()
    # A caller may change its mask without a trace, so nothing is remembered.
    seen = _seen(mask, queries, keys)
    return _joined([_of_seen(seen[one.row if len(seen) > 1 else 0, one.skip:, one.pad:], window)
                    for one in rows], shapes, mask.device)


def pattern_of_batch(mask: Any, window: int | None, counts: list[int]) -> Pattern:
    """Return what each text of a row of texts sees. Its mask was asked for all of them together.

    window: keys that a query sees, as the model passes it to its attention; None: it does not.
    counts: the tokens of each text in this row. UnsupportedError: transformers asked for a mask
    that no option of a run says.
    """
    if mask is None:
        return Pattern(window=(window - 1, -1) if window else None)
    if not isinstance(mask, LazyMask) or not mask.untouched or mask.shape[2] != sum(counts):
        raise errors.UnsupportedError(f"the mask of a row of texts is {list(mask.shape)}; aule "
                                      "takes the one that transformers asked for, and no other")
    key = (window, *counts)
    if key not in mask.patterns:
        mask.patterns[key] = _of_batch(mask.asked, window, counts)
    return mask.patterns[key]


def _of_batch(asked: dict[str, Any], window: int | None, counts: list[int]) -> Pattern:
    device = asked["device"]
    text = torch.repeat_interleave(torch.tensor(counts, device=device))
    config = asked["config"]
    # A row of single tokens shows no window, so the first hint that fits is that of the config.
    chunk = getattr(config, "attention_chunk_size", None) == asked.get("local_size")
    left = [one for one in _candidates(asked) if one.causal and not (chunk and one.window)]
    for first, part in _parts(asked):
        same = text[first:first + part.shape[1], None] == text[None]
        left = [one for one in left if bool(
            (~same | (part[0] == one.sees(part.shape[1], part.shape[2], first, device))).all())]
    if not left or (window and left[0].window != (window - 1, -1)):
        raise errors.UnsupportedError(
            f"{type(config).__name__}: the mask of a row of texts is neither causal, nor a window, "
            "nor chunks, or the model passes another window; generate() with a SharedCache may "
            "serve the model")
    return left[0]
