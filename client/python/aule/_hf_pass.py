# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""The arguments of a forward pass with a SharedCache, and whether they are the plain prompt's.

Blocks that are published serve every process with these tokens. So the mask, the positions, the
rotation and the images of a pass must be those of the prompt that the SharedCache was made for.
Hooks of the model bring the arguments here. No step, no layer.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from . import errors
from ._hf_geometry import RopeBorder
from ._hf_texts import Text, host

PER_TOKEN = ("position_ids", "token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")


class Flaw(NamedTuple):
    """Why K and V of a pass are not those of the plain prompt.

    keys: the first key of each text that differs. The pass may use cached blocks that end before
    it; it publishes none.
    """

    why: str
    keys: list[int]


def joined(flaws: list[Flaw | None]) -> Flaw | None:
    """Return what all of these say together; None: there is none."""
    found = [flaw for flaw in flaws if flaw is not None]
    if not found:
        return None
    return Flaw("; ".join(flaw.why for flaw in found),
                [min(keys) for keys in zip(*(flaw.keys for flaw in found), strict=True)])


class ForwardPass:
    """The arguments of one forward pass, for the texts of a SharedCache.

    length: columns of the batch that were computed before, padding included. counts_alone: without
    position_ids the model's positions do not begin with 0.
    """

    def __init__(self, texts: list[Text], length: int, ids: Any, options: dict[str, Any],
                 counts_alone: bool = False) -> None:
        self.texts, self.length, self.options = texts, length, options
        self.counts_alone = counts_alone
        self.ids = host(ids)
        self.count = self.ids.shape[1]

    def whole(self) -> bool:
        """Say whether the pass gets the whole text, also what was computed before.

        generate() with candidates begins like that.
        """
        mask, positions = self.options.get("attention_mask"), self.options.get("position_ids")
        if isinstance(mask, torch.Tensor) and mask.ndim == 2:
            return self.length > 0 and mask.shape[1] == self.count > self.length
        return (self.length > 0 and mask is None and isinstance(positions, torch.Tensor)
                and self.count > self.length and not bool(positions[..., 0].any()))

    def cut(self) -> None:
        """Leave out what was computed before."""
        for row, text in zip(self.ids, self.texts, strict=True):
            text.check(row[text.pad:], 0)
        for name in PER_TOKEN:
            value = self.options.get(name)
            if isinstance(value, torch.Tensor) and value.shape[-1] == self.count:
                self.options[name] = value[..., self.length:]
        self.ids = self.ids[:, self.length:]
        self.count = self.ids.shape[1]

    def flaw(self, border: RopeBorder | None, beyond: bool, images: bool) -> Flaw | None:
        """Return what of mask, positions and rotation is not the plain prompt's; None: nothing.

        border, beyond: where the rotation changes with the length; whether this prompt's is the
        one behind. images: they may have positions [axes, batch, tokens] of their own.
        InvalidError: the pass sees tokens that are padding for the SharedCache.
        """
        positions = self.options.get("position_ids")
        own = images and positions is not None and positions.ndim == 3
        return joined([self._mask_flaw(), None if own else self._position_flaw(),
                       None if images else self._type_flaw(), self._rope_flaw(border, beyond)])

    def _mask_flaw(self) -> Flaw | None:
        mask, end = self.options.get("attention_mask"), self.length + self.count
        nothing = [0] * len(self.texts)
        if mask is None:
            padded = [text.pad for text in self.texts]
            if any(padded):
                raise errors.InvalidError(
                    f"the rows have padding of {padded} tokens for this SharedCache, and the "
                    "forward pass gets no attention_mask that hides it")
            return None
        if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
            return Flaw("its attention_mask is not [batch, tokens]", nothing)
        seen = host(mask != 0)
        if seen.shape != (len(self.texts), end):
            return Flaw(f"its attention_mask is {list(seen.shape)}, not [{len(self.texts)}, "
                        f"{end}]", nothing)
        hidden = []
        for i, (row, text) in enumerate(zip(seen, self.texts, strict=True)):
            if row[:text.pad].any():
                raise errors.InvalidError(
                    f"attention_mask shows token {int(row[:text.pad].argmax())} of row {i}, and "
                    f"the first {text.pad} are padding for this SharedCache")
            hidden.append(int(row[text.pad:].argmin()) if not row[text.pad:].all() else end)
        if min(hidden, default=end) == end:
            return None
        return Flaw("its attention_mask hides tokens that are no padding for this SharedCache",
                    hidden)

    def _position_flaw(self) -> Flaw | None:
        given = self.options.get("position_ids")
        if given is None and self.counts_alone:
            return Flaw("it has no position_ids, and the model would make others than generate()",
                        [0] * len(self.texts))
        at = np.arange(self.length, self.length + self.count)[None]
        positions = at if given is None else host(given)
        if positions.shape[-1] != self.count:
            return Flaw(f"its position_ids are {list(positions.shape)}", [0] * len(self.texts))
        pads = np.array([text.pad for text in self.texts])[:, None]
        real = at >= pads
        if ((positions != at - pads) & real).any():
            return Flaw("its position_ids are not those of the plain prompt",
                        [0] * len(self.texts))
        return None

    def _type_flaw(self) -> Flaw | None:
        given = self.options.get("token_type_ids")
        if given is None or not bool((given != 0).any()):
            return None
        return Flaw("its token_type_ids are not 0", [0] * len(self.texts))

    def _rope_flaw(self, border: RopeBorder | None, beyond: bool) -> Flaw | None:
        end = self.length + self.count - min(text.pad for text in self.texts)
        if border is None or (border.passed(end) == beyond and not (
                beyond and border.kind == "dynamic")):
            return None
        return Flaw(f"its RoPE ({border.kind}) rotates by the length of the text: {end} tokens, "
                    f"and the border is {border.tokens}", [end] * len(self.texts))


class Watched(Protocol):
    """A cache that wants to know the arguments of the passes that get it."""

    _outer: Any  # the module whose forward pass runs with it

    def _before(self, options: dict[str, Any]) -> dict[str, Any]: ...

    def _is_inner(self, options: dict[str, Any]) -> bool:
        """Say whether these are arguments of a module inside of the one whose pass runs."""

    def _finish(self, failed: bool) -> None: ...


def watch(cache: Watched, model: Any) -> list[Any]:
    """Tell the cache the arguments of each forward pass that gets it, and how the pass ends.

    Returns the hooks: of the model, and of its base, which may be called alone.
    """
    reference = weakref.ref(cache)

    def named(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        if not args:
            return options
        parameters = inspect.signature(module.forward).parameters
        return {**dict(zip(parameters, args, strict=False)), **options}

    def mine(options: dict[str, Any]) -> Any:
        past = options.get("past_key_values")
        return past if past is not None and past is reference() else None

    def before(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        options = named(module, args, options)
        past = mine(options)
        if past is None or (past._outer not in (None, module) and past._is_inner(options)):
            return None
        past._outer = module
        return (), past._before(options)

    def after(module: Any, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        past = mine(named(module, args, options))
        if past is not None and past._outer is module:
            past._outer = None
            past._finish(failed=output is None)

    return [hook for module in {id(one): one for one in (model.base_model, model)}.values()
            for hook in (module.register_forward_pre_hook(before, with_kwargs=True),
                         module.register_forward_hook(after, with_kwargs=True, always_call=True))]


def watch_prompts(model: Any, kind: type) -> None:
    """Let generate() of this model show caches of this kind the whole text, before it cuts it.

    Sets the model's own `prepare_inputs_for_generation`, once; its class keeps its own.
    """
    own = getattr(model, "prepare_inputs_for_generation", None)
    if own is None or getattr(own, "_aule", False):
        return
    bound = inspect.ismethod(own) and own.__self__ is model
    function = own.__func__ if bound else functools.partial(_without_self, own)

    @functools.wraps(own.__func__ if bound else own)
    def prepare(self: Any, input_ids: Any, *args: Any, **options: Any) -> Any:
        past = options.get("past_key_values")
        if isinstance(past, kind) and options.get("next_sequence_length") is not None:
            past._check_text(input_ids)  # type: ignore[attr-defined]
        return function(self, input_ids, *args, **options)

    prepare._aule = True  # type: ignore[attr-defined]
    # A copy of the model gets a method of its own.
    model.prepare_inputs_for_generation = types.MethodType(prepare, model)


def _without_self(function: Any, _self: Any, *args: Any, **options: Any) -> Any:
    return function(*args, **options)


def text_positions(base: Any, one: ForwardPass) -> Any:
    """Return position_ids [axes, batch, tokens] of a pass without images, as `one` has them.

    A model whose images have positions of their own keeps the shift that its last images made, and
    generate() adds it to the positions of any prompt that begins with cached tokens. None: this
    model keeps none, or the pass has other positions.
    """
    given = one.options.get("position_ids")
    if given is None or given.ndim != 3 or not hasattr(base, "rope_deltas"):
        return None
    base.rope_deltas = torch.zeros(len(one.texts), 1, dtype=torch.long, device=given.device)
    pads = torch.tensor([[text.pad] for text in one.texts], device=given.device)
    at = torch.arange(one.length, one.length + one.count, device=given.device)
    return (at - pads).clamp(min=0).to(given.dtype).expand(given.shape)
