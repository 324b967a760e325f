# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""The texts of a SharedCache: their token ids, padding, sequences, and what images stand in them.

An image's placeholder tokens are alike for all images. In a sequence they get names that are made
from the image, so blocks from the image on serve only prompts with the same image, and blocks of
the text before it serve all. No layer, no step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from . import errors
from ._hf_attention import HARMLESS
from .sequence import Sequence

# Arguments of a forward pass that say nothing of K and V beyond the tokens, or that are checked.
PLAIN = frozenset((
    "attention_mask", "cache_position", "input_ids", "labels", "logits_to_keep",
    "mm_token_type_ids", "moe_mm_token_type_ids", "past_key_values", "position_ids",
    "token_type_ids"))
# Names of a configuration's fields that have a placeholder's id.
PLACEHOLDERS = tuple(f"{kind}_token_{field}" for kind in ("image", "video", "audio")
                     for field in ("id", "index"))


def host(array: Any) -> Any:
    """Return torch's tensor or anything else as numpy's array."""
    return array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)


class Tokens:
    """A growing row of token ids."""

    def __init__(self, ids: Any) -> None:
        self._room = np.array(ids, np.int32)
        self._count = len(self._room)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> Any:
        return self._room[:self._count][part]

    def extend(self, ids: Any) -> None:
        """Append ids."""
        end = self._count + len(ids)
        if end > len(self._room):
            self._room = np.resize(self._room, max(end, 2 * self._count, 64))
        self._room[self._count:end] = ids
        self._count = end

    def truncate(self, count: int) -> None:
        """Keep the first ids."""
        self._count = min(self._count, count)


class Media:
    """What a prompt has besides its tokens: images, sounds, and the sizes of these.

    options: the arguments of the forward pass that brings them. generate() brings features that
    it has encoded before. None: nothing is known yet.
    """

    def __init__(self, config: Any, options: dict[str, Any] | None = None) -> None:
        self._digests = digests_of(options or {})
        self._placeholders = [getattr(config, name) for name in PLACEHOLDERS
                              if getattr(config, name, None) is not None]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def differs(self, options: dict[str, Any]) -> list[str]:
        """Return the names of arguments that are not those which this was made of."""
        return [name for name, digest in digests_of(options).items()
                if self._digests.get(name) != digest]

    @property
    def digest(self) -> bytes:
        """32 bytes for all arguments together."""
        return hashlib.sha256(b"".join(self._digests[name] for name in sorted(self._digests))
                              ).digest()

    def at(self, ids: Any) -> Any:
        """Return where placeholders stand: indices into `ids`."""
        return np.flatnonzero(np.isin(ids, self._placeholders))

    def names(self, ids: Any) -> Any:
        """Return the ids of a text, int32, with names made from the media for placeholders.

        Names are negative, so no token has one. Each has 31 bits of the digest's stream.
        """
        names, at = np.array(ids, np.int32), self.at(ids)
        if self:
            stream = hashlib.shake_256(self.digest).digest(4 * len(at))
            names[at] = np.frombuffer(stream, np.int32) | np.int32(-2**31)
        return names


def digests_of(options: dict[str, Any]) -> dict[str, bytes]:
    """Return a digest of each argument that may change K and V, and that nobody else checks."""
    return {name: _digest(name, value) for name, value in options.items()
            if name not in PLAIN and name not in HARMLESS and not _is_nothing(value)}


def _is_nothing(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, (Mapping, list, tuple))
                                               and not value)


def _digest(name: str, value: Any) -> bytes:
    digest = hashlib.sha256(name.encode())
    for part in _parts(value):
        if isinstance(part, torch.Tensor):
            digest.update(f" {part.dtype} {tuple(part.shape)} ".encode())
            flat = part.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        else:
            digest.update(f" {part!r} ".encode())
    return digest.digest()


def _parts(value: Any) -> Iterator[Any]:
    """Yield the tensors and plain values inside of a value."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield name
            yield from _parts(one)
    elif isinstance(value, (list, tuple)):
        yield len(value)
        for one in value:
            yield from _parts(one)
    else:
        yield value


class Text:
    """One row of the batch: its sequence, its token ids, and the padding at its left.

    names: what the sequence has as ids; others than the model's where images stand.
    """

    def __init__(self, sequence: Sequence, ids: Tokens, names: Tokens, pad: int) -> None:
        self.sequence, self.ids, self.names, self.pad = sequence, ids, names, pad

    def fork(self) -> Text:
        """Return a text that goes on from here by itself."""
        return Text(self.sequence.fork(), Tokens(self.ids[:]), Tokens(self.names[:]), self.pad)

    def check(self, tokens: Any, at: int) -> None:
        """Raise InvalidError if the text has other tokens from `at` on than these."""
        known = self.ids[at:at + len(tokens)]
        wrong = np.flatnonzero(known != tokens[:len(known)])
        if len(wrong):
            raise errors.InvalidError(
                f"the model computes other tokens from position {at + int(wrong[0])} on than the "
                "prompt that this SharedCache was made for. A call of the model itself takes "
                "ids[:, past.get_seq_length():]")

    def append(self, tokens: Any, computed: int) -> None:
        """Take the tokens of a forward pass; those of the prompt must be the prompt's."""
        self.check(tokens, computed)
        new = tokens[len(self.ids) - computed:]
        self.ids.extend(new)
        self.names.extend(new)
        if len(self.ids) > len(self.sequence):
            self.sequence.append(self.names[len(self.sequence):])

    def rewind(self, computed: int, count: int) -> None:
        """Keep the first `count` tokens, and of what was computed the first `computed`."""
        self.ids.truncate(count)
        self.names.truncate(count)
        if self.sequence.computed > computed or len(self.sequence) > count:
            self.sequence.truncate(computed)
            self.sequence.append(self.names[computed:count])

    def truncate(self, count: int) -> None:
        """Drop the tokens from `count` on."""
        if count < len(self.ids):
            self.ids.truncate(count)
            self.names.truncate(count)
            self.sequence.truncate(count)


def texts_of(input_ids: Any, attention_mask: Any) -> list[tuple[Any, int]]:
    """Return the tokens of each row without padding, and the padding's length."""
    try:
        ids = host(input_ids)
    except ValueError as reason:  # rows of several lengths
        raise errors.InvalidError(f"input_ids: {reason}; pad the rows at the left") from None
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or ids.dtype.kind not in "iu" or not ids.size:
        raise errors.InvalidError(f"input_ids is {ids.dtype} {list(ids.shape)}; it must be "
                                  "integers [batch, tokens]")
    pads = np.zeros(len(ids), int)
    if attention_mask is not None:
        seen = host(attention_mask != 0 if isinstance(attention_mask, torch.Tensor)
                    else attention_mask) != 0
        if seen.shape != ids.shape:
            raise errors.InvalidError(f"attention_mask is {list(seen.shape)}, input_ids "
                                      f"{list(ids.shape)}")
        pads = seen.argmax(axis=1)
        if any(not row[pad:].all() or not row.any() for row, pad in zip(seen, pads, strict=True)):
            raise errors.InvalidError("attention_mask has zeros behind a one, or a row without "
                                      "tokens; padding must be at the left")
    return [(row[pad:], int(pad)) for row, pad in zip(ids, pads, strict=True)]
