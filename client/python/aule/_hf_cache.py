# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Caches of transformers whose K and V lie in the daemon: of a generate, or of a worker's own step.

A layer's update hands its K and V on to the attention function, by `hand_over`. What a forward pass
publishes was computed as the plain prompt's: `_hf_pass` checks its arguments. This module knows
transformers' interface of caches; it knows no model.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from transformers.cache_utils import Cache as TransformersCache
from transformers.cache_utils import CacheLayerMixin

from . import _args, errors
from ._hf_attention import NAME
from ._hf_geometry import (
    check_row,
    check_shape,
    check_window,
    geometry_of,
    latent_of,
    rope_border,
    text_config,
    windows_of,
)
from ._hf_identity import ModelCache, check_model
from ._hf_mask import Rows, pattern_of, pattern_of_batch
from ._hf_pass import Flaw, ForwardPass, joined, text_positions, watch, watch_prompts
from ._hf_texts import Media, Text, Tokens, digests_of, host, texts_of
from ._native import milliseconds
from .cache import Cache
from .sequence import Sequence, Step
from .session import Session

if TYPE_CHECKING:
    from typing_extensions import Self

Method = TypeVar("Method", bound=Callable[..., Any])

# Shared caches of this process that have claimed prompts and not computed them yet. The lock guards
# it, and their _firsts.
_prompting: weakref.WeakSet[SharedCache] = weakref.WeakSet()
_prompting_lock = threading.Lock()


class Handed(NamedTuple):
    """K and V of a layer's new tokens, on their way from the cache to the attention function."""

    past: _Past
    layer: int
    key: Any
    value: Any


class _HandOver(threading.local):
    """What the cache of this thread's model has handed to the next attention call."""

    def __init__(self) -> None:
        self.pending: Handed | None = None
        self.handed: dict[int, Handed] = {}  # of this forward pass, by the key's address


hand_over = _HandOver()


def open_cache(session: Session, model: Any, name: str | None = None, *, dtype: Any = None,
               block_size: int = 32, fingerprint: bytes | str | None = None,
               **identity: Any) -> ModelCache:
    """Open the cache of a model, which all processes share that run the same model.

    name: None: the model's name or path. dtype: of stored K and V; None: the model's.
    fingerprint: up to 64 bytes that name the weights, configuration and adapters; nothing is read
    then. None: a hash of all of them, see `aule.hf.fingerprint`. It keeps other models out:
    MismatchError. Weights that change later: see `ModelCache`, the class of the result.
    Other options, and errors: as in `aule.Cache.open`.
    """
    config = text_config(model)
    name = name or getattr(config, "_name_or_path", "") or model.config._name_or_path
    if not name:
        raise errors.InvalidError(f"{type(model).__name__} has no name or path; give the cache's "
                                  "name to open_cache()")
    return ModelCache.of_model(session, model, name, fingerprint, dtype=dtype or model.dtype,
                               block_size=block_size, **{**geometry_of(model), **identity})


def _outside_graphs(method: Method) -> Method:
    """Let torch.compile leave its graph for a method that asks the cache's owner."""
    left: Method = torch.compiler.disable(method)
    return left


class _Layer(CacheLayerMixin):
    """What transformers asks a single layer; its K and V are in the daemon."""

    supports_early_init = False
    is_croppable = True

    def __init__(self, owner: _Past, index: int) -> None:
        super().__init__()
        self._owner = weakref.ref(owner)
        self._index = index
        self.is_initialized = True

    @property
    def _past(self) -> _Past:
        cache = self._owner()
        assert cache is not None  # the owner has this layer
        return cache

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Do nothing: the cache is open."""

    @_outside_graphs
    def update(self, key_states: Any, value_states: Any, *_args: Any,
               **_options: Any) -> tuple[Any, Any]:
        """Hand K and V of the new tokens on to the attention function."""
        self._past._hand_on(self._index, key_states, value_states)
        return key_states, value_states

    @_outside_graphs
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return (keys, offset)."""
        return self.get_seq_length() + query_length, 0

    @_outside_graphs
    def get_seq_length(self) -> int:
        """Return how many tokens this layer has."""
        return self._past._length_of(self._index)

    def get_max_length(self) -> int:
        """Return -1: there is no limit but the pool."""
        return -1


class _Past(TransformersCache):
    """A cache whose K and V lie in the daemon: it leads each layer's update to its attention."""

    def __init__(self, model: Any, cache: Cache) -> None:
        config = text_config(model)
        if config._attn_implementation != NAME:
            raise errors.InvalidError(
                f"the model's attention is {config._attn_implementation!r}: call "
                f"aule.hf.register() and model.set_attn_implementation({NAME!r}). A model that "
                "transformers cannot switch must be loaded with attn_implementation='aule'")
        self._num_layers = geometry_of(model)["num_layers"]
        super().__init__(layers=[_Layer(self, i) for i in range(config.num_hidden_layers)])
        self._what = type(model).__name__
        self._geometry, self._latent = cache._geometry, latent_of(config)
        self._windows = windows_of(config)
        self._length = 0  # tokens before the next forward pass
        self._step: Step | None = None
        self._done: set[int] = set()

    def _make_step(self, batch: int, count: int) -> None:
        """Set _step for a forward pass over `batch` rows of `count` tokens."""
        raise NotImplementedError

    def _attend(self, handed: Handed, query: Any, mask: Any, run: dict[str, Any]) -> Any:
        """Compute one layer."""
        raise NotImplementedError

    def _length_of(self, _layer: int) -> int:
        """Return how many tokens a layer has."""
        return self._length

    def _begin(self) -> None:
        """Forget a forward pass, also one that failed."""
        self._end_pass()
        self._step = None
        self._done.clear()

    def _end_pass(self) -> None:
        """Let go of the K and V that a forward pass has handed on."""
        if hand_over.pending is not None and hand_over.pending.past is self:
            hand_over.pending = None
        hand_over.handed = {}
        self._seen: Any = None  # the input_ids that the model got

    def _hand_on(self, layer: int, key: Any, value: Any) -> None:
        self._check_called()
        if self._step is None:
            self._make_step(key.shape[0], key.shape[2])
        if layer in self._done:
            raise errors.InvalidError(f"layer {layer} runs twice in one forward pass; call the "
                                      f"model that this {type(self).__name__} was made for")
        if (key.shape[1], key.shape[3], value.shape[3]) != self._latent:
            check_shape(self._what, layer, self._geometry, key, value)
        self._done.add(layer)
        hand_over.pending = hand_over.handed[key.data_ptr()] = Handed(self, layer, key, value)

    def _check_handed(self, handed: Handed, key: Any, value: Any) -> None:
        """Raise UnsupportedError if attention gets other K and V than the cache has got."""
        if (handed.key.shape[1], handed.key.shape[3], handed.value.shape[3]) == self._latent:
            check_shape(self._what, handed.layer, self._geometry, key, value)  # MLA expands them
        elif not (_same(handed.key, key) and _same(handed.value, value)):
            raise errors.UnsupportedError(
                f"{self._what} changes K or V of layer {handed.layer} after the cache's update; a "
                f"{type(self).__name__} cannot serve it, transformers' own caches can")

    def _is_inner(self, options: dict[str, Any]) -> bool:
        """Say whether these are arguments of a module inside of the one whose pass runs."""
        ids = options.get("input_ids")
        return self._seen is not None and (ids is None or ids is self._seen)

    def _check_called(self) -> None:
        """Raise InvalidError if a layer took no notice of aule's attention."""
        if hand_over.pending is not None and hand_over.pending.past is self:
            raise errors.InvalidError(
                f"layer {hand_over.pending.layer} of {self._what} did not call aule's attention: "
                f"attn_implementation must be {NAME!r} in all layers. A model whose code computes "
                "attention by itself cannot use this cache")

    def _check_whole(self) -> None:
        """Raise InvalidError if the pass that ends has left layers out."""
        self._check_called()
        missing = sorted(set(range(self._num_layers)) - self._done)
        if missing:
            raise errors.InvalidError(
                f"the forward pass of {self._what} ended, and layers {missing} have not used "
                f"this {type(self).__name__}; its K and V are incomplete")


class StepCache(_Past):
    """past_key_values of one forward pass over a step, for a worker with its own scheduler.

    The tokens of all sequences stand in one row, as in the step: call the model with input_ids and
    `position_ids` [1, step.num_tokens], and without attention_mask. examples/serve.py shows it.
    """

    def __init__(self, model: Any, step: Step) -> None:
        super().__init__(model, step.cache)
        check_row(model, max(step._lengths))
        self._given = step
        self._outer: Any = None
        self._hooks = watch(self, model)

    def __del__(self) -> None:
        for hook in getattr(self, "_hooks", ()):
            hook.remove()

    @property
    def position_ids(self) -> Any:
        """The positions of the step's tokens, int64 [1, num_tokens]."""
        ends = zip(self._given.rows, self._given._lengths, strict=True)
        return torch.cat([torch.arange(end - (rows.stop - rows.start), end)
                          for rows, end in ends])[None]

    def _before(self, options: dict[str, Any]) -> dict[str, Any]:
        """Check the arguments of the forward pass: they must be the step's."""
        self._begin()
        ids, positions = options.get("input_ids"), options.get("position_ids")
        if ids is None or host(ids).tolist() != [self._tokens()]:
            raise errors.InvalidError("input_ids are not the tokens of the step: one row, those of "
                                      "its sequences one after another")
        if positions is None or (host(positions) != host(self.position_ids)).any():
            raise errors.InvalidError("position_ids are not those of the step: give the model "
                                      "StepCache.position_ids")
        more = [*digests_of(options), *(["attention_mask"] if options.get("attention_mask")
                                        is not None else [])]
        if more:
            raise errors.UnsupportedError(f"a StepCache takes no {', '.join(more)}")
        self._seen = ids
        return options

    def __deepcopy__(self, _memo: Any) -> StepCache:
        raise errors.UnsupportedError("a StepCache is of one step: fork the step's sequences")

    def _tokens(self) -> list[int]:
        """Return the ids of the step's tokens."""
        step, ids = self._given, []
        for sequence, rows, end in zip(step.sequences, step.rows, step._lengths, strict=True):
            known = sequence.tokens
            if known is None:
                raise errors.InvalidError("a sequence of the step has tokens whose ids are not "
                                          "known")
            ids += known[end - (rows.stop - rows.start):end].tolist()
        return ids

    def _finish(self, failed: bool) -> None:
        try:
            if not failed:
                self._check_whole()
        finally:
            self._end_pass()

    def _make_step(self, batch: int, count: int) -> None:
        if (batch, count) != (1, self._given.num_tokens):
            raise errors.InvalidError(f"the model computes {batch} rows of {count} tokens; the "
                                      f"step has 1 row of {self._given.num_tokens}")
        self._step = self._given

    def _attend(self, handed: Handed, query: Any, mask: Any, run: dict[str, Any]) -> Any:
        pattern = pattern_of_batch(mask, None, [
            rows.stop - rows.start for rows in self._given.rows])
        check_window(self._what, self._windows[handed.layer], pattern, max(self._given._lengths))
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, handed.key, handed.value))
        return self._given.attend(handed.layer, q, k, v, **pattern._asdict(), **run)[None]


class SharedCache(_Past):
    """past_key_values whose blocks lie in the daemon, where other processes find them.

    Make one for each call of `generate`, from the same input_ids [batch, tokens] and, for prompts
    with padding at the left, the same attention_mask. transformers then computes only the tokens
    behind `cached`. It can be passed to `generate` again with the longer text; copy.deepcopy()
    makes another one that goes on from the same text. Beams, assistants and chunks of a prompt
    work; the model's attn_implementation must be "aule".

    where: a session, or what `open_cache` returned, which is cheaper. publish, extra_key: as in
    `Cache.sequence`. timeout: seconds to wait for blocks. One thread at a time. close(), `with` or
    its end releases the blocks; published ones stay in the daemon.

    claim: if processes begin with one prompt at the same time, one computes it; the others wait
    `timeout` seconds for its blocks, then compute what is missing. It needs `publish`. A
    prompt that another SharedCache of this process is about to compute is not waited for.

    Other arguments that a tokenizer or processor makes, such as token_type_ids, may be given, too.
    The forward passes bring them again, and are checked.

    Images: the first forward pass brings them, so it looks up the prompt, and `cached` is 0 before.
    Blocks from the first image on serve only prompts with the same images.

    Only what was computed as the plain prompt is published. A forward pass with another mask,
    other positions or images publishes nothing from there on, and a warning says so once. If it
    would need cached blocks, which other passes have computed: InvalidError.
    """

    def __init__(self, where: Session | Cache, model: Any, input_ids: Any,
                 attention_mask: Any = None, *, publish: bool = True,
                 extra_key: bytes | str = b"", timeout: float | None = 10.0,
                 claim: bool = True, **_inputs: Any) -> None:
        self._prepare(where, model, input_ids, attention_mask, publish, extra_key, timeout, claim)
        if not self._asks:
            self._look_up()
        self._begin_watching()

    @classmethod
    async def create(cls, where: Session | Cache, model: Any, input_ids: Any,
                     attention_mask: Any = None, *, publish: bool = True,
                     extra_key: bytes | str = b"", timeout: float | None = 10.0,
                     claim: bool = True, **_inputs: Any) -> Self:
        """Make one without blocking the event loop while others compute the prompt.

        A thread of the loop's default executor opens the cache, if `where` is a session. If it is
        cancelled, nothing is held or claimed.
        """
        past = cls.__new__(cls)
        past._texts, past._owners, past._firsts = [], [2], set()
        try:
            await asyncio.to_thread(past._prepare, where, model, input_ids, attention_mask,
                                    publish, extra_key, timeout, claim)
            if not past._asks:
                await past._look_up_async()
        except BaseException:
            past.close()
            raise
        past._begin_watching()
        return past

    def _prepare(self, where: Session | Cache, model: Any, input_ids: Any, attention_mask: Any,
                 publish: bool, extra_key: bytes | str, timeout: float | None,
                 claim: bool) -> None:
        """Set everything but what the daemon says of the prompts."""
        if not isinstance(where, (Session, Cache)):
            raise errors.InvalidError(f"where is a {type(where).__name__}; it must be a session "
                                      "or what open_cache() returned")
        self._cache = open_cache(where, model) if isinstance(where, Session) else where
        self._owners = [1] if isinstance(where, Session) else [2]  # of _cache, copies included
        super().__init__(model, self._cache)
        check_model(self._cache, model)
        self._timeout = timeout
        self._model = model
        self._outer: Any = None
        self._entries: list[tuple[int, int]] = []  # of the step: (row, padding in this pass)
        self._pass: ForwardPass | None = None
        # Before the pass that runs: _length, and each text's length; None: no pass runs.
        self._undo: tuple[int, list[int]] | None = None
        self._flawed = self._warned = False  # this pass is none of the plain prompt; it was said
        self._publishes, self._claims = publish, claim and publish
        self._firsts: set[tuple[Any, ...]] = set()  # first blocks of prompts that it claims
        self._key = _args.key(extra_key, "extra_key")
        self._border = rope_border(text_config(model))
        self._prompts = texts_of(input_ids, attention_mask)
        self._beyond = self._border is not None and any(
            self._border.passed(len(ids)) for ids, _ in self._prompts)
        self._counts_alone = any(hasattr(module, "create_position_ids_from_input_ids")
                                 for module in model.modules())
        self._media = Media(model.config)
        self._texts: list[Text] = []
        self._found = [0] * len(self._prompts)
        self._asks = any(len(self._media.at(ids)) for ids, _ in self._prompts)

    def _begin_watching(self) -> None:
        self._hooks = watch(self, self._model)
        watch_prompts(self._model, SharedCache)

    def _look_up(self) -> None:
        """Make the texts' sequences, which take what is cached of the prompts."""
        with contextlib.suppress(StopIteration):
            making = self._make_texts()
            wanted = next(making)
            while True:
                wanted = making.send(self._cache.sequence(**wanted))
        self._skip_cached()

    async def _look_up_async(self) -> None:
        with contextlib.suppress(StopIteration):
            making = self._make_texts()
            # It looks at the weights, and reads them if they have changed.
            wanted = await asyncio.to_thread(next, making, None)
            while wanted is not None:
                sequence = await self._cache.sequence_async(**wanted)
                wanted = making.send(sequence)
        self._skip_cached()

    @property
    def cached(self) -> int:
        """How many tokens of the prompts, all rows together, need no computing."""
        return sum(self._found)

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences of the rows."""
        return [text.sequence for text in self._texts]

    def _make_texts(self) -> Generator[dict[str, Any], Sequence, None]:
        """Set _texts. Yields the arguments of each sequence that it needs, and is sent that.

        They claim in one order, and each waits before the next one claims: so processes wait in no
        circle.
        """
        self._asks, left = False, _countdown(self._timeout)
        key = self._key
        if self._border is not None and self._beyond and self._border.kind == "longrope":
            key = hashlib.sha256(b"longrope " + key).digest()
        key = self._cache._extra(key)  # one look at the weights serves all rows
        with _prompting_lock:
            busy = set().union(*(peer._firsts for peer in _prompting))
        firsts: set[tuple[Any, ...]] = set()
        made: dict[int, Text] = {}
        for i in sorted(range(len(self._prompts)), key=lambda i: self._prompts[i][0].tolist()):
            ids, pad = self._prompts[i]
            names = self._media.names(ids)
            first = *self._cache._place, key, *names[:self._cache.block_size].tolist()
            sequence = yield {
                "tokens": names, "publish": self._publishes, "extra_key": key,
                "claim": self._claims,
                "timeout": 0.0 if first in busy or first in firsts else left()}
            made[i] = Text(sequence, Tokens(ids), Tokens(names), pad)
            self._texts = list(made.values())  # what close() ends
            if sequence.cached + self._cache.block_size <= len(ids):
                firsts.add(first)
        self._texts = [made[i] for i in range(len(self._prompts))]
        with _prompting_lock:
            self._firsts = firsts
            if self._claims and firsts:
                _prompting.add(self)

    def _no_prompts(self) -> None:
        """Say that this process computes the claimed prompts no more."""
        with _prompting_lock:
            self._firsts = set()
            _prompting.discard(self)

    def _prompted(self) -> None:
        """Publish the prompts, because others may wait for them."""
        self._no_prompts()
        if self._publishes:
            for text in self._texts:
                text.sequence.publish()

    def _skip_cached(self) -> None:
        """Begin where every row still has something to compute."""
        self._length = min(text.pad + text.sequence.computed for text in self._texts)
        if self._beyond and self._border is not None and self._border.kind == "dynamic":
            self._length = 0  # each length rotates K in its own way
        self._length = self._before_images(self._length)
        self._found = [self._computed(text) for text in self._texts]
        for text in self._texts:
            text.rewind(self._computed(text), len(text.ids))

    def _begin_anew(self) -> None:
        """Compute the prompts from their first token on."""
        self._length, self._found = 0, [0] * len(self._texts)
        for text in self._texts:
            text.rewind(0, len(text.ids))

    def _before_images(self, length: int) -> int:
        """Return `length` if the images lie all before it or all behind, else where they begin."""
        at = [text.pad + int(where) for text in self._texts
              for where in self._media.at(text.ids[:])]
        return length if not at or length <= min(at) or max(at) < length else min(at)

    def _length_of(self, layer: int) -> int:
        """Return how many tokens a layer has; in a pass some layers have not got theirs."""
        return self._length if self._undo is None or layer in self._done else self._undo[0]

    def _computed(self, text: Text) -> int:
        """Return how many tokens of a row the forward passes have computed."""
        return max(0, self._length - text.pad)

    def close(self) -> None:
        """Release the blocks. A second call does nothing."""
        self._unhook()
        self._step = None
        self._no_prompts()
        for text in self._texts:
            text.sequence.close()
        owners, self._owners = self._owners, [2]
        owners[0] -= 1
        if not owners[0]:
            self._cache.close()

    def __enter__(self) -> SharedCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._unhook()

    def _unhook(self) -> None:
        for hook in getattr(self, "_hooks", ()):
            hook.remove()

    def __deepcopy__(self, _memo: Any) -> SharedCache:
        """Return a cache of its own that goes on from the same text."""
        self._finish(failed=True)  # one that Ctrl-C has ended
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied.layers = [_Layer(copied, i) for i in range(len(self.layers))]
        copied._texts = [text.fork() for text in self._texts]
        copied._found = list(self._found)
        copied._step, copied._pass, copied._done, copied._firsts = None, None, set(), set()
        copied._owners[0] += 1
        copied._outer, copied._hooks = None, watch(copied, copied._model)
        return copied

    # ---- a forward pass ----

    def _check_text(self, input_ids: Any) -> None:
        """Raise InvalidError if generate() goes on from another text than this cache has."""
        if self._asks or self._undo is not None:  # Ctrl-C: _before() says so
            return
        if input_ids.shape[1] <= self._length:
            raise errors.InvalidError(
                f"this SharedCache has {self._length} tokens already, and generate() gets "
                f"{input_ids.shape[1]}: make a new one for each generate(), or go on with a longer "
                "text")
        for i, row in enumerate(host(input_ids)):
            text = self._texts[i * len(self._texts) // len(input_ids)]
            text.check(row[text.pad:][:self._computed(text)], 0)

    def _before(self, options: dict[str, Any]) -> dict[str, Any]:
        """Take the arguments of a forward pass, and return those that the model gets."""
        self._begin()
        if self._undo is not None:  # Ctrl-C: torch calls the hook after other exceptions only
            self._finish(failed=True)
            raise errors.InvalidError("the last forward pass with this SharedCache was interrupted "
                                      "and is undone now; call the model again")
        self._pass, ids = None, options.get("input_ids")
        if ids is None or ids.ndim != 2:
            return options
        asks = self._asks
        if asks:
            self._media = Media(self._model.config, options)
            self._look_up()
            # A part of the prompt, or positions that the model would make for the prompt's rest.
            if ids.shape[1] != max(pad + len(one) for one, pad in self._prompts) or (
                    options.get("position_ids") is None
                    and hasattr(self._model.base_model, "rope_deltas")):
                self._begin_anew()
        if len(ids) != len(self._texts) and len(ids) % len(self._texts) == 0:
            self.batch_repeat_interleave(len(ids) // len(self._texts))
        if len(ids) != len(self._texts):
            raise errors.InvalidError(f"the model computes {len(ids)} rows; this SharedCache was "
                                      f"made for {len(self._texts)}")
        self._pass = one = ForwardPass(self._texts, self._length, ids, options, self._counts_alone)
        begins = self._length == max(text.pad + found for text, found
                                     in zip(self._texts, self._found, strict=True))
        if self._length > 0 and (asks or one.whole()):
            one.cut()
            options["input_ids"] = ids[:, self._length:]
        if begins:
            self._place_images(one)
        self._seen = options["input_ids"]
        return options

    def _place_images(self, one: ForwardPass) -> None:
        """Leave out images whose placeholders are cached, and set the positions of mere text."""
        if not any(self._found):
            return
        if not any(len(self._media.at(row)) for row in one.ids):
            for name in digests_of(one.options):
                one.options[name] = None
        positions = None if self._media else text_positions(self._model.base_model, one)
        if positions is not None:
            one.options["position_ids"] = positions

    def _flaw(self, one: ForwardPass) -> Flaw | None:
        """Return why K and V of this pass are not those of the plain prompt."""
        placed = [self._media.at(row[max(0, text.pad - self._length):])
                  for row, text in zip(one.ids, self._texts, strict=True)]
        keys = [self._computed(text) + int(at[0]) if len(at) else 0
                for text, at in zip(self._texts, placed, strict=True)]
        strange, flaw = self._media.differs(one.options), None
        if strange:
            flaw = Flaw(f"it gets {', '.join(strange)}, which the prompt's tokens do not show",
                        keys)
        elif any(len(at) and self._computed(text) + int(at[-1]) >= len(text.ids)
                 for at, text in zip(placed, self._texts, strict=True)):
            flaw = Flaw("it has images behind the prompt", keys)
        return joined([flaw, one.flaw(self._border, self._beyond, bool(self._media))])

    def _heed(self, flaw: Flaw | None) -> None:
        """Publish nothing of this pass. InvalidError: it builds on blocks of plain prompts."""
        if flaw is None:
            return
        for text, found, key in zip(self._texts, self._found, flaw.keys, strict=True):
            if found > key:
                raise errors.InvalidError(
                    f"the forward pass cannot use the {found} tokens that this SharedCache has "
                    f"found: {flaw.why}. Use transformers' own cache for it")
            text.sequence.keep_private(max(self._computed_before(text), text.sequence.published
                                           * self._cache.block_size))
        if self._publishes and not self._warned:
            self._warned = True
            warnings.warn(f"aule publishes no blocks of this SharedCache from here on: {flaw.why}",
                          RuntimeWarning, stacklevel=2)

    def _computed_before(self, text: Text) -> int:
        """Return how many tokens of a row were computed before the pass that runs."""
        return max(0, (self._undo[0] if self._undo is not None else self._length) - text.pad)

    def _make_step(self, batch: int, count: int) -> None:
        one = self._pass
        if one is None or one.ids.shape != (batch, count):
            self._outer = None
            raise errors.InvalidError(
                f"K has {batch} rows of {count} tokens, and their input_ids are not known; a "
                "SharedCache needs input_ids, and one forward pass for all of them")
        flaw = self._flaw(one)
        self._flawed = flaw is not None
        self._undo = self._length, [len(text.ids) for text in self._texts]
        self._entries = []
        for i, text in enumerate(self._texts):
            skip = min(max(0, text.pad - self._length), count)
            if skip < count:
                text.append(one.ids[i, skip:], self._computed(text))
                self._entries.append((i, skip))
        self._heed(flaw)
        entries = [(self._texts[i].sequence, count - skip) for i, skip in self._entries]
        self._step = self._cache.step(entries, timeout=self._timeout)
        self._length += count

    def _attend(self, handed: Handed, query: Any, mask: Any, run: dict[str, Any]) -> Any:
        step = self._step
        assert step is not None  # _hand_on() made it
        batch, heads, count, _ = query.shape
        if count != handed.key.shape[2]:
            raise errors.UnsupportedError(
                f"layer {handed.layer} of {self._what} has {count} queries for "
                f"{handed.key.shape[2]} new keys; a SharedCache takes one for each")
        rows = tuple(Rows(i, self._texts[i].pad, skip) for i, skip in self._entries)
        if mask is None:
            raise errors.UnsupportedError(f"layer {handed.layer} of {self._what} gives no mask to "
                                          "its attention; a SharedCache needs it")
        pattern = pattern_of(mask, rows, count, self._length, self._windows[handed.layer])
        check_window(self._what, self._windows[handed.layer], pattern, self._length)
        if (pattern.mask is not None or not pattern.causal) and not self._flawed:
            self._flawed = True
            self._heed(Flaw("its mask is neither causal, nor a causal window, nor chunks",
                            [0] * len(self._texts)))
        padded = any(skip for _, skip in self._entries) or len(self._entries) != batch
        pick = None
        if padded:
            pick = torch.cat([torch.arange(i * count + skip, (i + 1) * count)
                              for i, skip in self._entries]).to(query.device)

        def rows_of(tensor: Any) -> Any:
            flat = tensor.transpose(1, 2).flatten(0, 1)
            return flat if pick is None else flat[pick]

        out = step.attend(handed.layer, rows_of(query), rows_of(handed.key),
                          rows_of(handed.value), **pattern._asdict(), **run)
        if pick is not None:
            whole = out.new_zeros((batch * count, heads, out.shape[-1]))
            whole[pick] = out
            out = whole
        return out.view(batch, count, heads, out.shape[-1])

    def _finish(self, failed: bool) -> None:
        """End a forward pass. One that failed is undone: its tokens count as not computed."""
        undo = self._undo
        if not failed and undo is not None:
            try:
                self._check_whole()
            except errors.InvalidError:
                self._finish(failed=True)
                raise
        self._undo = self._pass = None
        self._end_pass()
        if failed and undo is not None:
            self._step = None
            self._length = undo[0]
            for text, tokens in zip(self._texts, undo[1], strict=True):
                text.rewind(self._computed(text), tokens)
        elif undo is not None and self._firsts and not any(
                len(text.ids) > self._computed(text) for text in self._texts):
            self._prompted()

    # ---- what transformers does to a cache besides ----

    def reorder_cache(self, beam_idx: Any) -> None:
        """Continue row i with the text of row beam_idx[i], for beams."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Any) -> None:
        """Keep the rows of these indices; a row that is named twice is forked."""
        self._finish(failed=True)  # one that Ctrl-C has ended
        self._step = None
        old = self._texts
        chosen = [int(i) for i in indices]
        self._texts = [old[i].fork() for i in chosen]
        self._found = [self._found[i] for i in chosen]
        for text in old:
            text.sequence.close()

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Continue each row `repeats` times."""
        self.batch_select_indices([i for i in range(len(self._texts)) for _ in range(repeats)])

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last -tokens_to_remove tokens. InvalidError: it is positive."""
        if tokens_to_remove > 0:
            raise errors.InvalidError(f"crop({tokens_to_remove}): give the number of tokens to "
                                      "drop as a negative one, as to transformers' own caches")
        self._finish(failed=True)  # one that Ctrl-C has ended
        self._step = None
        self._length = max(0, self._length + tokens_to_remove)
        for text in self._texts:
            text.truncate(self._computed(text))
        self._found = [min(found, self._computed(text))
                       for text, found in zip(self._texts, self._found, strict=True)]

    def reset(self) -> None:
        """Drop all tokens."""
        self.crop(-self._length)


def _same(one: Any, other: Any) -> bool:
    """Say whether two tensors are one; a graph of torch.compile may have another object for it."""
    return one is other or (one.data_ptr() == other.data_ptr() and one.shape == other.shape
                            and one.stride() == other.stride() and one.dtype == other.dtype)


def _countdown(timeout: float | None) -> Callable[[], float | None]:
    """Return what says how many of `timeout` seconds are left; None: for ever."""
    milliseconds(timeout)  # InvalidError
    if timeout is None:
        return lambda: None
    end = time.monotonic() + timeout
    return lambda: max(0.0, end - time.monotonic())
