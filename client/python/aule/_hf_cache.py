# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Caches of transformers whose K and V lie in the daemon: of a generate, or of a worker's own step.

A layer's update hands its K and V on to the attention function, by `hand_over`. This module knows
transformers' interface of caches; it knows no model.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache as TransformersCache
from transformers.cache_utils import CacheLayerMixin

from . import errors
from ._hf_attention import NAME
from ._native import milliseconds
from .cache import Cache
from .sequence import Sequence, Step
from .session import Session

SAMPLE = 16  # elements at each end of a parameter that a fingerprint reads

# Shared caches of this process that have claimed prompts and not computed them yet. The lock guards
# it, and their _firsts.
_prompting: weakref.WeakSet[SharedCache] = weakref.WeakSet()
_prompting_lock = threading.Lock()


class _HandOver(threading.local):
    """What the cache of this thread's model has handed to the next attention call."""

    pending: tuple[_Past, int, Any] | None = None


hand_over = _HandOver()


def fingerprint(model: Any) -> bytes:
    """Return 32 bytes that tell models apart: the configuration, and a sample of each parameter."""
    digest = hashlib.sha256()
    config = {name: value for name, value in model.config.to_dict().items()
              if name not in ("transformers_version", "torch_dtype", "_attn_implementation",
                              "_name_or_path")}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
        if parameter.device.type != "meta" and parameter.numel():
            flat = parameter.detach().reshape(-1)
            ends = torch.cat([flat[:SAMPLE], flat[-SAMPLE:]]).cpu().contiguous()
            digest.update(ends.view(torch.uint8).numpy().tobytes())
    return digest.digest()


def open_cache(session: Session, model: Any, name: str | None = None, *, dtype: Any = None,
               block_size: int = 32, **identity: Any) -> Cache:
    """Open the cache of a model, which all processes share that run the same model.

    name: None: the model's name or path. dtype: of stored K and V; None: the model's. The
    fingerprint keeps models with other weights or another configuration out: MismatchError.
    Other options, and errors: as in `aule.Cache.open`.
    """
    config = model.config.get_text_config(decoder=True)
    name = name or getattr(config, "_name_or_path", "") or model.config._name_or_path
    if not name:
        raise errors.InvalidError(f"{type(model).__name__} has no name or path; give the cache's "
                                  "name to open_cache()")
    heads = config.num_attention_heads
    values = {"num_layers": config.num_hidden_layers,
              "num_kv_heads": getattr(config, "num_key_value_heads", None) or heads,
              "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
              "fingerprint": fingerprint(model)}
    return session.cache(name, dtype=dtype or model.dtype, block_size=block_size,
                         **{**values, **identity})


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

    def update(self, key_states: Any, value_states: Any, *_args: Any,
               **_options: Any) -> tuple[Any, Any]:
        """Hand K and V of the new tokens on to the attention function."""
        self._past._hand_on(self._index, key_states)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return (keys, offset)."""
        return self._past.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Return the tokens before the next forward pass."""
        return self._past._length

    def get_max_length(self) -> int:
        """Return -1: there is no limit but the pool."""
        return -1


class _Row:
    """One text of the batch: its sequence, and the padding at its left."""

    def __init__(self, sequence: Sequence, pad: int) -> None:
        self.sequence, self.pad = sequence, pad

    def append(self, tokens: Any, computed: int) -> None:
        """Take the tokens of a forward pass; those of the prompt must be the prompt's."""
        known = len(self.sequence) - computed
        if known > 0:
            prompt = self.sequence.tokens[computed:computed + len(tokens)]
            if not np.array_equal(prompt, tokens[:known]):
                raise errors.InvalidError(
                    f"the model computes other tokens from position {computed} on than the prompt "
                    "that this SharedCache was made for")
        if len(tokens) > max(known, 0):
            self.sequence.append(tokens[max(known, 0):])

    def rewind(self, computed: int, count: int) -> None:
        """Keep the first `count` tokens, and of what was computed the first `computed`."""
        if self.sequence.computed > computed or len(self.sequence) > count:
            tokens = self.sequence.tokens
            self.sequence.truncate(computed)
            self.sequence.append(tokens[computed:count])


class _Past(TransformersCache):
    """A cache whose K and V lie in the daemon: it leads each layer's update to its attention."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config(decoder=True)
        if config._attn_implementation != NAME:
            raise errors.InvalidError(
                f"the model's attention is {config._attn_implementation!r}: call "
                f"aule.hf.register() and model.set_attn_implementation({NAME!r})")
        super().__init__(layers=[_Layer(self, i) for i in range(config.num_hidden_layers)])
        self._length = 0  # tokens before the next forward pass
        self._step: Step | None = None
        self._done: set[int] = set()

    def _make_step(self, batch: int, count: int) -> None:
        """Set _step for a forward pass over `batch` rows of `count` tokens."""
        raise NotImplementedError

    def _attend(self, layer: int, query: Any, key: Any, value: Any, mask: Any,
                run: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _begin(self) -> None:
        """Forget a forward pass, also one that failed."""
        if hand_over.pending is not None and hand_over.pending[0] is self:
            hand_over.pending = None
        self._step = None
        self._done.clear()

    def _hand_on(self, layer: int, key: Any) -> None:
        if hand_over.pending is not None and hand_over.pending[0] is self:
            raise errors.InvalidError(
                f"layer {hand_over.pending[1]} did not call aule's attention; attn_implementation "
                f"must be {NAME!r} in all layers")
        if self._step is None:
            self._make_step(key.shape[0], key.shape[2])
        if layer in self._done:
            raise errors.InvalidError(f"layer {layer} runs twice in one forward pass; call the "
                                      f"model that this {type(self).__name__} was made for")
        self._done.add(layer)
        hand_over.pending = self, layer, key


class StepCache(_Past):
    """past_key_values of one forward pass over a step, for a worker with its own scheduler.

    The tokens of all sequences stand in one row, as in the step: call the model with input_ids and
    `position_ids` [1, step.num_tokens], and without attention_mask. examples/serve.py shows it.
    """

    def __init__(self, model: Any, step: Step) -> None:
        super().__init__(model)
        self._given = step

    @property
    def position_ids(self) -> Any:
        """The positions of the step's tokens, int64 [1, num_tokens]."""
        ends = zip(self._given.rows, self._given._lengths, strict=True)
        return torch.cat([torch.arange(end - (rows.stop - rows.start), end)
                          for rows, end in ends])[None]

    def _make_step(self, batch: int, count: int) -> None:
        if (batch, count) != (1, self._given.num_tokens):
            raise errors.InvalidError(f"the model computes {batch} rows of {count} tokens; the "
                                      f"step has 1 row of {self._given.num_tokens}")
        self._step = self._given

    def _attend(self, layer: int, query: Any, key: Any, value: Any, mask: Any,
                run: dict[str, Any]) -> Any:
        if mask is not None:
            raise errors.UnsupportedError("a StepCache takes no mask")
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        return self._given.attend(layer, q, k, v, **run)[None]


class SharedCache(_Past):
    """past_key_values whose blocks lie in the daemon, where other processes find them.

    Make one for each call of `generate`, from the same input_ids [batch, tokens] and, for prompts
    with padding at the left, the same attention_mask. transformers then computes only the tokens
    behind `cached`. It can be passed to `generate` again with the longer text. Beams and chunks of
    a prompt work; the model's attn_implementation must be "aule".

    where: a session, or what `open_cache` returned, which is cheaper. publish, extra_key: as in
    `Cache.sequence`. timeout: seconds to wait for blocks. One thread at a time. close(), `with` or
    its end releases the blocks; published ones stay in the daemon.

    claim: if processes begin with one prompt at the same time, one computes it; the others wait
    `timeout` seconds for its blocks, then compute what is missing. It needs `publish`. A
    prompt that another SharedCache of this process is about to compute is not waited for.
    """

    def __init__(self, where: Session | Cache, model: Any, input_ids: Any,
                 attention_mask: Any = None, *, publish: bool = True,
                 extra_key: bytes | str = b"", timeout: float | None = 10.0,
                 claim: bool = True) -> None:
        super().__init__(model)
        self._owns_cache = isinstance(where, Session)
        self._cache = open_cache(where, model) if isinstance(where, Session) else where
        self._timeout = timeout
        self._ids: Any = None
        self._entries: list[tuple[int, int]] = []  # of the step: (row, padding in this pass)
        self._undo: tuple[int, list[int]] | None = None  # of a pass: _length, and the rows' tokens
        self._publishes = publish
        self._firsts: set[tuple[Any, ...]] = set()  # first blocks of prompts that it claims
        self._rows = self._make_rows(_texts(input_ids, attention_mask), extra_key, claim)
        self._skip_cached()
        self._hooks = _watch(self, model.base_model)

    @property
    def cached(self) -> int:
        """How many tokens of the prompts, all rows together, need no computing."""
        return self._found

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences of the rows."""
        return [row.sequence for row in self._rows]

    def _make_rows(self, texts: list[tuple[Any, int]], extra_key: bytes | str,
                   claim: bool) -> list[_Row]:
        """Make the rows' sequences; claims in one order, so that processes wait in no circle."""
        claim = claim and self._publishes
        key = extra_key.encode() if isinstance(extra_key, str) else extra_key
        left = _countdown(self._timeout)
        with _prompting_lock:
            busy = set().union(*(peer._firsts for peer in _prompting))
        firsts: set[tuple[Any, ...]] = set()
        rows: dict[int, _Row] = {}
        for i in sorted(range(len(texts)), key=lambda i: texts[i][0].tolist()):
            tokens, pad = texts[i]
            first = *self._cache._place, key, *tokens[:self._cache.block_size].tolist()
            sequence = self._cache.sequence(
                tokens, publish=self._publishes, extra_key=key, claim=claim,
                timeout=0.0 if first in busy or first in firsts else left())
            if sequence.cached + self._cache.block_size <= len(tokens):
                firsts.add(first)
            rows[i] = _Row(sequence, pad)
        with _prompting_lock:
            self._firsts = firsts
            if claim and firsts:
                _prompting.add(self)
        return [rows[i] for i in range(len(texts))]

    def _no_prompts(self) -> None:
        """Say that this process computes the claimed prompts no more."""
        with _prompting_lock:
            self._firsts = set()
            _prompting.discard(self)

    def _prompted(self) -> None:
        """Publish the prompts, because others may wait for them."""
        self._no_prompts()
        if self._publishes:
            for row in self._rows:
                row.sequence.publish()

    def _begin(self) -> None:
        super()._begin()
        if self._undo is not None:  # Ctrl-C: torch calls the hook after other exceptions only
            self._finish(failed=True)
            raise errors.InvalidError("the last forward pass with this SharedCache was interrupted "
                                      "and is undone now; call the model again")

    def _skip_cached(self) -> None:
        """Begin where every row still has something to compute."""
        self._length = min(row.pad + row.sequence.computed for row in self._rows)
        self._found = sum(self._computed(row) for row in self._rows)
        for row in self._rows:
            row.rewind(self._computed(row), len(row.sequence))

    def _computed(self, row: _Row) -> int:
        """Return how many tokens of a row the forward passes have computed."""
        return max(0, self._length - row.pad)

    def _finish(self, failed: bool) -> None:
        """End a forward pass. One that failed is undone: its tokens count as not computed."""
        undo, self._undo = self._undo, None
        if failed and undo is not None:
            self._step = None
            self._length = undo[0]
            for row, tokens in zip(self._rows, undo[1], strict=True):
                row.rewind(self._computed(row), tokens)
        elif undo is not None and self._firsts and not any(
                len(row.sequence) > self._computed(row) for row in self._rows):
            self._prompted()

    def close(self) -> None:
        """Release the blocks. A second call does nothing."""
        self._unhook()
        self._step = None
        self._no_prompts()
        for row in self._rows:
            row.sequence.close()
        if self._owns_cache:
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

    # ---- a forward pass ----

    def _make_step(self, batch: int, count: int) -> None:
        ids = self._ids
        if ids is None or ids.ndim != 2 or tuple(ids.shape) != (batch, count):
            raise errors.InvalidError(
                f"K has {batch} rows of {count} tokens, and their input_ids are not known; a "
                "SharedCache needs input_ids, and one forward pass for all of them")
        if batch != len(self._rows) and batch % len(self._rows) == 0:
            self.batch_repeat_interleave(batch // len(self._rows))
        if batch != len(self._rows):
            raise errors.InvalidError(f"the model computes {batch} rows; this SharedCache was made "
                                      f"for {len(self._rows)}")
        tokens = ids.detach().cpu().numpy()
        self._undo = self._length, [len(row.sequence) for row in self._rows]
        self._entries = []
        for i, row in enumerate(self._rows):
            skip = min(max(0, row.pad - self._length), count)
            if skip < count:
                row.append(tokens[i, skip:], self._computed(row))
                self._entries.append((i, skip))
        entries = [(self._rows[i].sequence, count - skip) for i, skip in self._entries]
        self._step = self._cache.step(entries, timeout=self._timeout)
        self._length += count

    def _attend(self, layer: int, query: Any, key: Any, value: Any, mask: Any,
                run: dict[str, Any]) -> Any:
        step = self._step
        assert step is not None  # _hand_on() made it
        batch, heads, count, _ = query.shape
        padded = any(skip for _, skip in self._entries) or len(self._entries) != batch
        pick = None
        if padded:
            pick = torch.cat([torch.arange(i * count + skip, (i + 1) * count)
                              for i, skip in self._entries]).to(query.device)

        def rows_of(tensor: Any) -> Any:
            flat = tensor.transpose(1, 2).flatten(0, 1)
            return flat if pick is None else flat[pick]

        run["mask"] = None if mask is None else [
            mask[i if mask.shape[0] > 1 else 0, 0, skip:, self._rows[i].pad:]
            for i, skip in self._entries]
        out = step.attend(layer, rows_of(query), rows_of(key), rows_of(value), **run)
        if pick is not None:
            whole = out.new_zeros((batch * count, heads, out.shape[-1]))
            whole[pick] = out
            out = whole
        return out.view(batch, count, heads, out.shape[-1])

    # ---- what transformers does to a cache besides ----

    def reorder_cache(self, beam_idx: Any) -> None:
        """Continue row i with the text of row beam_idx[i], for beams."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Any) -> None:
        """Keep the rows of these indices; a row that is named twice is forked."""
        self._finish(failed=True)  # one that Ctrl-C has ended
        self._step = None
        old = self._rows
        self._rows = [_Row(old[i].sequence.fork(), old[i].pad) for i in map(int, indices)]
        for row in old:
            row.sequence.close()

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Continue each row `repeats` times."""
        self.batch_select_indices([i for i in range(len(self._rows)) for _ in range(repeats)])

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last -tokens_to_remove tokens. InvalidError: it is positive."""
        if tokens_to_remove > 0:
            raise errors.InvalidError(f"crop({tokens_to_remove}): give the number of tokens to "
                                      "drop as a negative one, as to transformers' own caches")
        self._finish(failed=True)  # one that Ctrl-C has ended
        self._step = None
        self._length = max(0, self._length + tokens_to_remove)
        for row in self._rows:
            row.sequence.truncate(max(0, self._length - row.pad))

    def reset(self) -> None:
        """Drop all tokens."""
        self.crop(-self._length)


def _countdown(timeout: float | None) -> Callable[[], float | None]:
    """Return what says how many of `timeout` seconds are left; None: for ever."""
    milliseconds(timeout)  # InvalidError
    if timeout is None:
        return lambda: None
    end = time.monotonic() + timeout
    return lambda: max(0.0, end - time.monotonic())


def _texts(input_ids: Any, attention_mask: Any) -> list[tuple[Any, int]]:
    """Return the tokens of each row without padding, and the padding's length."""
    ids = np.asarray(input_ids.detach().cpu() if isinstance(input_ids, torch.Tensor)
                     else input_ids)
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or ids.dtype.kind not in "iu" or not ids.size:
        raise errors.InvalidError(f"input_ids is {ids.dtype} {list(ids.shape)}; it must be "
                                  "integers [batch, tokens]")
    pads = np.zeros(len(ids), int)
    if attention_mask is not None:
        seen = np.asarray(attention_mask.detach().cpu()
                          if isinstance(attention_mask, torch.Tensor) else attention_mask) != 0
        if seen.shape != ids.shape:
            raise errors.InvalidError(f"attention_mask is {list(seen.shape)}, input_ids "
                                      f"{list(ids.shape)}")
        pads = seen.argmax(axis=1)
        if any(not row[pad:].all() or not row.any() for row, pad in zip(seen, pads, strict=True)):
            raise errors.InvalidError("attention_mask has zeros behind a one, or a row without "
                                      "tokens; padding must be at the left")
    return [(row[pad:], int(pad)) for row, pad in zip(ids, pads, strict=True)]


def _watch(cache: SharedCache, base: Any) -> tuple[Any, Any]:
    """Tell the cache the ids of each forward pass that gets it, and how the pass ends."""
    reference = weakref.ref(cache)

    def mine(options: dict[str, Any]) -> SharedCache | None:
        past = options.get("past_key_values")
        return past if isinstance(past, SharedCache) and past is reference() else None

    def before(_module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        past = mine(options)
        if past is not None:
            past._begin()
            past._ids = options.get("input_ids", args[0] if args else None)

    def after(_module: Any, _args: Any, options: dict[str, Any], output: Any) -> None:
        past = mine(options)
        if past is not None:
            past._finish(failed=output is None)

    return (base.register_forward_pre_hook(before, with_kwargs=True),
            base.register_forward_hook(after, with_kwargs=True, always_call=True))
