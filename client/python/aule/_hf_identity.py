# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Which weights K and V come from: the fingerprint of a model, and what has changed since.

A fingerprint covers the configuration, the modules with their plain attributes, and every byte of
parameters, buffers and other tensors of modules. A model's weights are read once. After that, a
check compares addresses, version counters, shapes and a sample of each tensor. If these differ, the
tensors that may have changed are read again.

Sequences of a cache take the present weights into their extra key, unless they are the cache's own.
So blocks of other weights are never found, and age out. This module knows nothing of attention.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import threading
import weakref
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.modules.dropout import _DropoutNd
from transformers import PreTrainedModel
from transformers.utils import logging

from . import _args, errors
from .cache import Cache, Entries
from .sequence import Sequence, Step

if TYPE_CHECKING:
    from ._attached import Plan
    from .session import Session

CHUNK = 1 << 12  # words of 4 bytes that one sum covers
CPU_PIECE = 1 << 5  # chunks that a CPU thread multiplies at a time; the products take 1 MiB of L2
GPU_PIECE = 1 << 12  # chunks that a GPU multiplies at a time; the products take 128 MiB
CPU_THREADS = 4  # more of them wait for Python's lock
SAMPLE = 16  # elements of each tensor that a check reads

# Settings that change no K and no V. Names that begin with "_" are left out, too.
NEUTRAL = frozenset((
    "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache", "return_dict",
    "output_attentions", "output_hidden_states", "is_causal", "pad_token_id", "bos_token_id",
    "eos_token_id", "id2label", "label2id", "problem_type"))
# Attributes that a forward pass, or the way of loading, sets.
STATE = frozenset((
    "training", "max_seq_len_cached", "gradient_checkpointing", "_is_hf_initialized",
    "compute_dtype", "compute_type_is_set", *vars(torch.nn.Module())))
OWN = frozenset(("torch", "transformers", "transformers_modules"))
SCALARS = frozenset((bool, int, float, str, bytes, complex, type(None)))


# ---- what a model is made of ----


class _Look:
    """What was seen of a model at one moment, without its weights' values."""

    def __init__(self, model: Any) -> None:
        self.settings: list[tuple[Any, ...]] = []
        self.facts: list[tuple[Any, ...]] = []  # of modules; last, a dict of attributes
        self.numbers: list[tuple[Any, ...]] = []  # of others' modules: some count in a forward pass
        self.names: list[str] = []
        self.tensors: list[Any] = []  # until keep()
        self.marks: list[tuple[Any, ...]] = []
        self.sample: list[bytes] = []
        self.digest: bytes | None = None
        self._references: list[Any] = []
        self._parameters: list[int] = []
        self._seen: dict[int, str] = {}
        self._settings("", model.config)
        self._module("", model)

    def keep(self) -> None:
        """Keep no tensor alive."""
        self._references = [weakref.ref(tensor) for tensor in self.tensors]
        self.tensors = []

    def same(self, other: _Look) -> bool:
        """Whether nothing differs from an older, kept look."""
        return (self is other or (
            self.marks == other.marks and self.facts == other.facts
            and self.numbers == other.numbers and self.settings == other.settings
            and self.sample == other.sample
            and all(reference() is tensor for reference, tensor in
                    zip(other._references, self._all(), strict=True))))

    def differs_silently(self, now: _Look) -> bool:
        """Whether a tensor has another sample now, though its mark is the same."""
        old = dict(zip(self.names, zip(self.marks, self.sample, strict=True), strict=True))
        return any(name in old and old[name][0] == mark and old[name][1] != sample
                   for name, mark, sample in zip(now.names, now.marks, now.sample, strict=True))

    def same_in_pass(self, now: _Look) -> bool:
        """Whether nothing differs from this kept look that no forward pass changes."""
        return self.facts == now.facts and not self.moved() and all(
            self.sample[i] == now.sample[i] for i in self._parameters)

    def text(self) -> str:
        """Return all but the tensors. The order of attributes may differ between processes."""
        return repr((self.settings, [(*fact[:-1], sorted(fact[-1].items()))
                                     for fact in (*self.facts, *self.numbers)]))

    def moved(self) -> bool:
        """Whether a parameter of this kept look has changed."""
        return any((tensor := self._references[i]()) is None or _mark(tensor) != self.marks[i]
                   for i in self._parameters)

    def _all(self) -> list[Any]:
        return self.tensors or [reference() for reference in self._references]

    def _module(self, path: str, module: Any) -> None:
        if id(module) in self._seen:
            self.facts.append((path, {"is": self._seen[id(module)]}))
            return
        self._seen[id(module)] = path
        kind, own, first = type(module), vars(module), len(self.tensors)
        moving = "rope_type" in own and _moves(own["rope_type"])
        if own["_parameters"]:
            self._tensors(path, own["_parameters"], False)
            self._parameters.extend(range(first, len(self.tensors)))
        if own["_buffers"]:
            self._tensors(path, own["_buffers"], moving)
        facts: dict[str, Any] = {}
        if isinstance(module, PreTrainedModel):
            pass  # its attributes follow from its configuration, or are state
        elif kind.__module__.partition(".")[0] in OWN:
            facts = {name: own[name] for name in _public(tuple(own)) if type(own[name]) in SCALARS}
            if moving:
                facts.pop("attention_scaling", None)
        else:
            facts = {name: value for name, item in own.items() if name not in STATE
                     and (value := self._value(f"{path}{name}", item)) is not None}
            self.numbers.append((path, {name: facts.pop(name) for name in list(facts)
                                        if type(facts[name]) is int}))
        drops = own["training"] and _drops(module, own)
        self.facts.append((path, kind.__qualname__, drops, facts))
        for name, child in own["_modules"].items():
            if child is not None:
                self._module(path if name == "_orig_mod" else f"{path}{name}.", child)

    def _tensors(self, path: str, tensors: dict[str, Any], moving: bool) -> None:
        for name, tensor in tensors.items():
            if tensor is not None and not (moving and name.endswith("inv_freq")
                                           and not name.endswith("original_inv_freq")):
                self._tensor(f"{path}{name}", tensor)

    def _tensor(self, path: str, tensor: Any) -> None:
        flatten = getattr(tensor, "__tensor_flatten__", None)
        if flatten is None:
            self.names.append(path)
            self.tensors.append(tensor)
            self.marks.append(_mark(tensor))
            return
        names, context = flatten()
        self.facts.append((path, type(tensor).__qualname__,
                           {"context": self._value(path, context)}))
        for name in names:
            self._tensor(f"{path}.{name}", getattr(tensor, name))

    def _value(self, path: str, value: Any) -> Any:
        """Return what equal values have in common; tensors and modules inside are noted."""
        if type(value) in SCALARS:
            return value
        if isinstance(value, dict):
            return tuple((str(key), self._value(f"{path}.{key}", item))
                         for key, item in sorted(value.items(), key=lambda pair: str(pair[0])))
        if isinstance(value, (list, tuple)):
            return tuple(self._value(f"{path}.{i}", item) for i, item in enumerate(value))
        if isinstance(value, (set, frozenset)):
            return tuple(sorted(map(str, value)))
        if isinstance(value, torch.Tensor):
            self._tensor(path, value)
        elif isinstance(value, torch.nn.Module):
            self._module(f"{path}.", value)
        elif isinstance(value, torch.dtype):
            return str(value)
        return None  # such as a function: nothing tells what it does

    def _settings(self, path: str, config: Any) -> None:
        for name, value in sorted(vars(config).items()):
            if name[0] == "_" or name in NEUTRAL:
                continue
            if hasattr(value, "to_dict"):
                self._settings(f"{path}{name}.", value)
            else:
                self.settings.append((path, name, self._value(name, value)))


@lru_cache(4096)
def _public(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name[0] != "_" and name not in STATE]


def _moves(rope_type: Any) -> bool:
    """Whether a forward pass changes inv_freq, as a prompt's length demands."""
    kinds = rope_type.values() if isinstance(rope_type, dict) else [rope_type]
    return any("dynamic" in str(kind) or kind == "longrope" for kind in kinds)


def _drops(module: Any, own: dict[str, Any]) -> bool:
    """Whether a module drops elements while it is in training."""
    return bool(module.p) if isinstance(module, _DropoutNd) else any(
        "dropout" in name and type(value) is float and value for name, value in own.items())


def _mark(tensor: Any) -> tuple[Any, ...]:
    """Return what changes with most changes of a tensor.

    Not with those through `.data`, a numpy view, or torch's fused optimizers: a sample shows them.
    """
    if not _is_readable(tensor):
        return tensor.shape, tensor.dtype, tensor.device
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, tensor.shape, tensor.stride(), tensor.dtype


def _is_readable(tensor: Any) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta


# ---- the values of tensors ----


@cache
def _keys(device: torch.device) -> Any:
    """Odd random numbers, int64 [CHUNK]; the same in each process."""
    random = hashlib.shake_128(b"aule: one odd key for each word of a chunk").digest(8 * CHUNK)
    with torch.inference_mode(False):
        return (torch.from_numpy(np.frombuffer(random, np.int64).copy()) | 1).to(device)


def sums_of(tensor: Any) -> bytes:
    """Return one sum of 8 bytes for each chunk of a tensor's bytes in C order, padded by zeros.

    A sum is that of word * key over the chunk's words, modulo 2^64, so order and device change no
    bit of it. Keys are odd: a change of one word always changes the sum. Two chunks that differ in
    more words, by multiples of 2^t, have the same sum with probability 2^-(64 - t), for t < 32.
    """
    plain = tensor.dequantize() if tensor.is_quantized else tensor
    flat = plain.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 4:
        flat = flat.clone()
    keys = _keys(flat.device)
    rows = flat.numel() // (4 * CHUNK)
    whole = flat[:rows * 4 * CHUNK].view(torch.int32).view(rows, CHUNK)
    rest = flat.new_zeros(4 * CHUNK)
    rest[:flat.numel() % (4 * CHUNK)] = flat[rows * 4 * CHUNK:]
    if flat.device.type == "cpu":
        sums = _sums_on_cpu(whole.numpy(), keys.numpy())
    else:
        products = keys.new_empty((min(GPU_PIECE, rows), CHUNK))
        sums = torch.cat([keys.new_empty(0), *(
            torch.mul(part, keys, out=products[:len(part)]).sum(1)
            for part in whole.split(GPU_PIECE) if rows)]).cpu().numpy()
    last = torch.mul(rest.view(torch.int32), keys).sum().cpu().numpy()
    return bytes(sums.tobytes() + last.tobytes())


def _sums_on_cpu(chunks: Any, keys: Any) -> Any:
    """Return the sums of int32 [n, CHUNK].

    By numpy: with torch's threads it takes ten times as long while other processes use the cores.
    """
    sums = np.empty(len(chunks), np.int64)

    def part(first: int, end: int) -> None:
        products = np.empty((CPU_PIECE, CHUNK), np.int64)
        for at in range(first, end, CPU_PIECE):
            words = chunks[at:min(at + CPU_PIECE, end)]
            np.multiply(words, keys, out=products[:len(words)])
            np.sum(products[:len(words)], 1, out=sums[at:at + len(words)])

    threads = max(1, min(CPU_THREADS, torch.get_num_threads(), len(chunks) // (8 * CPU_PIECE)))
    bounds = [len(chunks) * i // threads for i in range(threads + 1)]
    if threads == 1:
        part(*bounds)
    else:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(part, bounds, bounds[1:]))
    return sums


def _sample(tensors: list[Any]) -> list[bytes]:
    """Return the bytes of some elements of each tensor. One copy for all of a type and device."""
    groups: dict[Any, list[Any]] = {}
    places: dict[Any, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if _is_readable(tensor) and tensor.numel() and not tensor.is_quantized:
            span = tensor.numel() if tensor.is_contiguous() else 1 + sum(
                (size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            count = min(SAMPLE, span)
            part = tensor.as_strided((count,), (span // count,))
            groups.setdefault((tensor.dtype, tensor.device), []).append(part)
            places.setdefault((tensor.dtype, tensor.device), []).append(i)
    said = [b""] * len(tensors)
    for kind, parts in groups.items():
        every = torch.cat(parts).cpu().view(torch.uint8).numpy().tobytes()
        at = 0
        for i, part in zip(places[kind], parts, strict=True):
            size = part.nbytes
            said[i], at = every[at:at + size], at + size
    return said


class _Weights:
    """The last look at a model, and the digests of its tensors."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._last: _Look | None = None
        # For each cache's name: the weights' digest when this process opened it first.
        self.opened: dict[str, bytes] = {}
        # For each tensor's name: the tensor, its mark, and its digest.
        self._digests: dict[str, tuple[Any, tuple[Any, ...], bytes]] = {}
        self.lock = threading.RLock()

    @property
    def model(self) -> Any:
        """The model; None: it is gone."""
        return self._model()

    def glance(self) -> _Look | None:
        """Look without a sample; None: the model is gone."""
        model = self.model
        return None if model is None else _Look(model)

    def look(self) -> _Look:
        """Return the last look, or a new one if anything has changed."""
        with self.lock, torch.inference_mode():  # its views cost half
            now, last = self.glance(), self._last
            if now is None:  # the model is gone
                assert last is not None
                return last
            now.sample = _sample(now.tensors)
            if last is not None and now.same(last):
                return last
            if last is not None and last.differs_silently(now):
                self._digests.clear()  # and where no sample shows it
            now.keep()
            self._last = now
            return now

    def forget(self) -> None:
        """Read all weights again for the next digest."""
        with self.lock:
            self._digests.clear()
            if self.model is not None:
                self._last = None

    def digest(self, look: _Look) -> bytes:
        """Return the digest of the last look."""
        with self.lock, torch.no_grad():
            if look.digest is None:
                look.digest = self._read(look)
            return look.digest

    def _read(self, look: _Look) -> bytes:
        model = self.model
        tensors = look._all()
        fresh = {name: (tensor, mark) for name, tensor, mark in
                 zip(look.names, tensors, look.marks, strict=True)
                 if not self._knows(name, tensor, mark)}
        absent = [name for name, (tensor, _) in fresh.items()
                  if tensor is None or not _is_readable(tensor)]
        if absent or model is None:
            raise errors.UnsupportedError(
                f"{', '.join(absent[:3]) or 'the model'} is not in memory (a meta or sparse tensor,"
                " as with offloaded weights), so its values cannot be told: give open_cache() a "
                "fingerprint= that names these weights")
        once: dict[tuple[Any, ...], bytes] = {}  # tied weights are read once
        with logging.tqdm(total=sum(tensor.nbytes for tensor, _ in fresh.values()), unit="B",
                          unit_scale=True, delay=1, desc="fingerprint of the weights") as bar:
            for name, (tensor, mark) in fresh.items():
                if mark not in once:
                    once[mark] = hashlib.sha256(sums_of(tensor)).digest()
                self._digests[name] = weakref.ref(tensor), mark, once[mark]
                bar.update(tensor.nbytes)
        digest = hashlib.sha256(look.text().encode())
        for name, tensor in zip(look.names, tensors, strict=True):
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(self._digests[name][2])
        for value in _hidden("", model.state_dict(keep_vars=True), set(map(id, tensors))):
            digest.update(value)
        return digest.digest()

    def _knows(self, name: str, tensor: Any, mark: tuple[Any, ...]) -> bool:
        known = self._digests.get(name)
        return known is not None and tensor is not None and (
            known[0]() is tensor and known[1] == mark)


def _hidden(name: str, value: Any, known: set[int]) -> Iterator[bytes]:
    """Yield what a state_dict has besides the known tensors, as torch's packed int8 weights."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _hidden(f"{name}.{key}", item, known)
    elif isinstance(value, (list, tuple)):
        yield from _hidden(name, dict(enumerate(value)), known)
    elif not isinstance(value, torch.Tensor):
        yield f"{name}{value if type(value) in SCALARS else None}".encode()
    elif id(value) not in known and not hasattr(value, "__tensor_flatten__"):
        yield f"{name}{tuple(value.shape)}{value.dtype}".encode() + sums_of(value)


_weights: weakref.WeakKeyDictionary[Any, _Weights] = weakref.WeakKeyDictionary()
_weights_lock = threading.Lock()


def _weights_of(model: Any) -> _Weights:
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    with _weights_lock:
        if model not in _weights:
            _weights[model] = _Weights(model)
        return _weights[model]


def fingerprint(model: Any) -> bytes:
    """Return 32 bytes that tell models apart: the configuration, and every byte of the weights.

    The weights are read once, on the device they lie on, with a progress bar above a second. A
    later call only checks whether they have changed.
    UnsupportedError: a weight is not in memory.
    """
    weights = _weights_of(model)
    with weights.lock:
        return weights.digest(weights.look())


# ---- a cache that knows its model's weights ----


class _Held(threading.local):
    """What the sequences that this thread makes use, instead of a look of their own."""

    weights: tuple[_Look, bytes] | None = None


@contextlib.contextmanager
def one_look(cache: Cache) -> Iterator[None]:
    """Let this thread's sequences inside of a `with` use one look at the weights."""
    hold(cache)
    try:
        yield
    finally:
        let_go(cache)


def hold(cache: Cache) -> None:
    """Let this thread's sequences use one look at the weights, until let_go()."""
    if isinstance(cache, ModelCache) and cache._held.weights is None:
        cache._held.weights = cache._key()


def let_go(cache: Cache) -> None:
    """Let this thread's sequences look at the weights again."""
    if isinstance(cache, ModelCache):
        cache._held.weights = None


def check_model(cache: Cache, model: Any) -> None:
    """Raise InvalidError if a cache was opened for a model with other weights than this one.

    The one may be a part of the other, such as the model inside of an adapter's.
    """
    if isinstance(cache, ModelCache):
        opened, model = cache._weights.model, getattr(model, "_orig_mod", model)
        if opened is None or any(one is opened for one in model.modules()) or any(
                one is model for one in opened.modules()):
            return
        if fingerprint(model) != fingerprint(opened):
            raise errors.InvalidError(
                f"this cache was opened for another {type(opened).__name__}, which has other "
                "weights than the model that is given; open_cache() with this one")


class ModelCache(Cache):
    """The cache of a model, as `aule.hf.open_cache` returns it.

    Its fingerprint names the weights that the model has when it is opened. If they change while it
    is open, or an adapter is switched on, later sequences use an extra key with a hash of the new
    weights: they find nothing that others have computed with old ones, and blocks of old weights
    age out. Processes with the same new weights share. If the weights come back, so does the key.

    A change is noticed when a sequence is made, by version counters, addresses, shapes, and a
    sample of each tensor. A change of a few elements through `.data` or numpy shows in none of
    them: call renew(). What hooks and replaced methods compute is not seen: give an extra_key.
    """

    _weights: _Weights
    _named: list[tuple[_Look, bytes]]  # what was seen when these weights were named, and their key
    _held: _Held
    _digest: bytes | None  # of the weights that need no key; None: the caller named them

    @classmethod
    def of_model(cls, session: Session, model: Any, name: str, fingerprint: bytes | str | None,
                 **identity: Any) -> ModelCache:
        """Open the cache of a model; see `aule.hf.open_cache`.

        A cache that this process opens again keeps its fingerprint, though the weights may have
        changed: they are in the extra keys.
        """
        weights = _weights_of(model)
        with weights.lock:
            look, digest, first = weights.look(), None, None
            if fingerprint is None:
                digest = weights.digest(look)
                fingerprint = first = weights.opened.get(name, digest)
            cache = cls.open(session, name, fingerprint=fingerprint, **identity)
            if first is not None:
                weights.opened[name] = first
            cache._weights, cache._digest, cache._held = weights, first, _Held()
            cache._named = [(look, b"")] if digest == first else []
            return cache

    def renew(self, fingerprint: bytes | str | None = None) -> None:
        """Give later sequences the identity of the model's present weights.

        Needed only if a few elements have changed where no version counter and no sample shows it.
        It reads all weights. fingerprint: a name of these weights, such as a training step, that
        processes with the same weights have in common; nothing is read then.
        """
        name = None if fingerprint is None else _args.key(fingerprint, "fingerprint")
        with self._weights.lock:
            self._weights.forget()
            if self._weights.model is None:
                return
            if name is None:
                self._named = []
                self._key()
            else:
                self._named = [(self._weights.look(), hashlib.sha256(b"named " + name).digest())]

    def _key(self) -> tuple[_Look, bytes]:
        """Return a look at the weights, and what sequences of them have in their extra key."""
        with self._weights.lock:
            now = self._weights.look()
            for look, key in self._named:
                if now.same(look):
                    return now, key
            digest = self._weights.digest(now)
            return now, b"" if digest == self._digest else digest

    def _keyed(self, extra_key: bytes | str, weights: bytes) -> bytes:
        key = _args.key(extra_key, "extra_key")
        return hashlib.sha256(weights + key).digest() if weights else key

    def sequence(self, tokens: Any = (), *, extra_key: bytes | str = b"",
                 **options: Any) -> Sequence:
        """Do what `Cache.sequence` says, for the model's present weights."""
        weights = self._held.weights or self._key()
        sequence = super().sequence(tokens, extra_key=self._keyed(extra_key, weights[1]), **options)
        sequence._weights = weights
        return sequence

    async def sequence_async(self, tokens: Any = (), *, extra_key: bytes | str = b"",
                             **options: Any) -> Sequence:
        """Do what `Cache.sequence_async` says, for the model's present weights."""
        weights = await asyncio.to_thread(self._key)
        sequence = await super().sequence_async(
            tokens, extra_key=self._keyed(extra_key, weights[1]), **options)
        sequence._weights = weights
        return sequence

    def lookup(self, tokens: Any, *, extra_key: bytes | str = b"", **options: Any) -> Any:
        """Do what `Cache.lookup` says, for the model's present weights."""
        return super().lookup(tokens, extra_key=self._keyed(extra_key, self._key()[1]), **options)

    def publish(self, tokens: Any, ids: Any, *, extra_key: bytes | str = b"") -> Any:
        """Do what `Cache.publish` says, for the model's present weights."""
        return super().publish(tokens, ids, extra_key=self._keyed(extra_key, self._key()[1]))

    def step(self, entries: Entries, *, timeout: float | None = 10.0) -> Step:
        """Do what `Cache.step` says. InvalidError: a sequence was made for other weights."""
        return super().step(self._checked(entries), timeout=timeout)

    async def step_async(self, entries: Entries, *, timeout: float | None = 10.0) -> Step:
        """Do what `Cache.step_async` says. InvalidError: a sequence was made for other weights."""
        return await super().step_async(self._checked(entries), timeout=timeout)

    def plan(self, entries: Entries, *, timeout: float | None = 10.0) -> Plan:
        """Do what `Cache.plan` says. InvalidError: a sequence was made for other weights."""
        return super().plan(self._checked(entries), timeout=timeout)

    def _checked(self, entries: Entries) -> Entries:
        """Return the entries. Raises if the weights have changed since a sequence was made.

        A pass of single tokens, as in generate, looks at parameters only.
        """
        if not isinstance(entries, Iterable):
            return entries  # to where it is refused
        pairs = list(entries)
        sequences = [(*entry, None)[0] if isinstance(entry, tuple) else entry for entry in pairs]
        decodes = all(isinstance(entry, tuple) and entry[1:] == (1,) for entry in pairs)
        made = {id(one._weights): one._weights for one in sequences
                if isinstance(one, Sequence) and one._weights}
        now = None if decodes else self._weights.look()
        if any((look.moved() if now is None else not look.same_in_pass(now))
               and self._key()[1] != key for look, key in made.values()):
            raise errors.InvalidError(
                "the model's weights or adapters have changed since this sequence (or SharedCache) "
                "was made, so its K and V are of other weights: make a new one")
        return pairs
