# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Which weights K and V come from: the fingerprint of a model, and what has changed since.

A fingerprint covers the configuration, the modules with their attributes, and every byte of
parameters, buffers and other tensors of modules. A model's weights are read once. After that, a
check compares addresses, version counters, shapes and a sample of each tensor. If these differ, the
tensors that may have changed are read again.

Sequences of a cache take the present weights into their extra key, unless they are the cache's own.
So they find no blocks of weights that a check tells apart, and old blocks age out. This module
knows nothing of attention.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import enum
import functools
import hashlib
import secrets
import threading
import types
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from . import _args, errors
from ._hf_geometry import check_is_model
from .cache import Cache, Entries
from .sequence import Sequence

if TYPE_CHECKING:
    from .session import Session

CHUNK = 1 << 12  # words of 4 bytes that one sum covers
CPU_PIECE = 1 << 5  # chunks that a CPU thread multiplies at a time; the products take 1 MiB of L2
GPU_PIECE = 1 << 12  # chunks that a GPU multiplies at a time; the products take 128 MiB
CPU_THREADS = 4  # more of them wait for Python's lock
SAMPLE = 16  # elements of each tensor that a check reads

# Settings that change no K and no V. Names that begin with "_" are left out, too.
NEUTRAL = frozenset((
    "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache", "return_dict",
    "output_attentions", "output_hidden_states", "pad_token_id", "bos_token_id", "eos_token_id",
    "id2label", "label2id", "problem_type"))
# Attributes that a forward pass, or the way of loading, sets.
STATE = frozenset((
    "training", "max_seq_len_cached", "gradient_checkpointing", "compute_dtype",
    "compute_type_is_set", "name_or_path", "hf_device_map", "_is_hf_initialized", "_use_kernels",
    "_weight_conversions", *vars(torch.nn.Module())))
# RoPE that follows the length of a text sets attributes that end like this.
MOVING = ("inv_freq", "attention_scaling", "max_seq_len_cached")
OWN = frozenset(("torch", "transformers", "transformers_modules"))
SCALARS = frozenset((bool, int, float, str, bytes, complex, type(None)))


# ---- what a model is made of ----


class _Tensor(NamedTuple):
    """A tensor of a model, which this keeps not alive."""

    name: str
    reference: Any
    steady: bool  # no forward pass changes it
    mark: tuple[Any, ...]
    sample: bytes

    def same(self, now: _Tensor) -> bool:
        """Whether nothing tells it from a tensor of a later look."""
        return self.reference is now.reference and self[2:] == now[2:] and self.name == now.name


class _Look:
    """What was seen of a model at one moment, without its weights' values."""

    def __init__(self, model: Any) -> None:
        self.settings: list[tuple[Any, ...]] = []
        self.facts: list[tuple[Any, ...]] = []  # of modules; last, a dict of attributes
        self.numbers: list[tuple[Any, ...]] = []  # of others' modules: some count in a forward pass
        self.trains: str | None = None  # a module in training mode
        self.digest: bytes | None = None
        self._found: list[tuple[str, Any, bool]] = []
        self._seen: dict[int, str] = {}
        self._settings("", model.config)
        self._module("", model)
        samples = _sample([tensor for _, tensor, _ in self._found])
        self.tensors = [
            _Tensor(name, weakref.ref(tensor), steady, _mark(tensor), sample)
            for (name, tensor, steady), sample in zip(self._found, samples, strict=True)]
        del self._found, self._seen

    def same(self, now: _Look, in_pass: bool = False) -> bool:
        """Whether nothing differs in a later look; in_pass: nothing that no forward pass changes.

        Training mode is not compared.
        """
        if self is now:
            return True
        ours, theirs = ([one for one in look.tensors if one.steady or not in_pass]
                        for look in (self, now))
        return (self.facts == now.facts and len(ours) == len(theirs)
                and all(map(_Tensor.same, ours, theirs))
                and (in_pass or (self.settings, self.numbers) == (now.settings, now.numbers)))

    def moved(self) -> bool:
        """Whether a tensor has changed that no forward pass changes, as far as its mark tells."""
        return any((tensor := one.reference()) is None or _mark(tensor) != one.mark
                   for one in self.tensors if one.steady)

    def differs_silently(self, now: _Look) -> bool:
        """Whether a tensor has another sample in a later look, though its mark is the same."""
        old = {one.name: one for one in self.tensors}
        return any(one.name in old and old[one.name].mark == one.mark
                   and old[one.name].sample != one.sample for one in now.tensors)

    def text(self) -> str:
        """Return all but the tensors. The order of attributes may differ between processes."""
        return repr((self.settings, [(*fact[:-1], sorted(fact[-1].items()))
                                     for fact in (*self.facts, *self.numbers)]))

    def _module(self, path: str, module: Any) -> None:
        if id(module) in self._seen:
            self.facts.append((path, {"is": self._seen[id(module)]}))
            return
        self._seen[id(module)] = path
        kind: Any = type(module)
        own, library = vars(module), _library(kind)
        moves = "rope_type" in own and _moves(own["rope_type"])
        for tensors, steady in ((own["_parameters"], True), (own["_buffers"], library in OWN)):
            for name, tensor in tensors.items():
                if tensor is not None and not (moves and _is_moving(name)):
                    self._tensor(f"{path}{name}", tensor, steady)
        facts = {name: value for name in _names(kind, tuple(own))
                 if not (moves and _is_moving(name))
                 and (value := self._value(f"{path}{name}", own[name])) is not None}
        if library not in OWN:
            self.numbers.append((path, {name: facts.pop(name) for name in list(facts)
                                        if _counts(own[name])}))
        if own["training"] and self.trains is None:
            self.trains = f"{path}{kind.__name__}"
        self.facts.append((path, kind.__qualname__, facts))
        for name, child in own["_modules"].items():
            if child is not None:
                self._module(path if name == "_orig_mod" else f"{path}{name}.", child)

    def _tensor(self, path: str, tensor: Any, steady: bool) -> None:
        flatten = getattr(tensor, "__tensor_flatten__", None)
        if flatten is None:
            self._found.append((path, tensor, steady))
            return
        names, context = flatten()
        self.facts.append((path, type(tensor).__qualname__,
                           {"context": self._value(path, context)}))
        for name in names:
            self._tensor(f"{path}.{name}", getattr(tensor, name), steady)

    def _value(self, path: str, value: Any) -> Any:
        """Return what equal values have in common; tensors and modules inside are noted."""
        if type(value) in SCALARS:
            return value
        if isinstance(value, torch.Tensor):
            self._tensor(path, value, False)
        elif isinstance(value, torch.nn.Module):
            self._module(f"{path}.", value)
        elif isinstance(value, PreTrainedConfig):
            self._settings(f"{path}.", value)
        elif (parts := _parts(value)) is not None:
            return tuple((str(key), self._value(f"{path}.{key}", item)) for key, item in parts)
        else:
            return _leaf(value)
        return None

    def _settings(self, path: str, config: Any) -> None:
        if id(config) in self._seen:
            return  # modules have the model's configuration, too
        self._seen[id(config)] = path
        for name, value in sorted(vars(config).items()):
            if name[0] == "_" or name in NEUTRAL or (name == "is_causal" and value is True):
                continue  # generate_batch sets is_causal, which is True anyway
            if hasattr(value, "to_dict"):
                self._settings(f"{path}{name}.", value)
            else:
                self.settings.append((path, name, self._value(name, value)))


def _library(kind: Any) -> str:
    return str(kind.__module__.partition(".")[0])


@functools.lru_cache(4096)
def _names(kind: Any, names: tuple[str, ...]) -> list[str]:
    """Return which attributes of a module are looked at; no replaced methods.

    Those of transformers' models follow from the configuration, or are state.
    """
    library = _library(kind)
    if issubclass(kind, PreTrainedModel):
        known = dir(PreTrainedModel) if library != "transformers" else names
        names = tuple(set(names).difference(known))
    return sorted(name for name in names if name not in STATE
                  and not (library in OWN and name[0] == "_")
                  and not callable(getattr(kind, name, None)))


def _moves(rope_type: Any) -> bool:
    """Whether a forward pass changes inv_freq, as a prompt's length demands."""
    kinds = rope_type.values() if isinstance(rope_type, dict) else [rope_type]
    return any("dynamic" in str(kind) or kind == "longrope" for kind in kinds)


def _is_moving(name: str) -> bool:
    return name.endswith(MOVING) and not name.endswith("original_inv_freq")


def _counts(value: Any) -> bool:
    """Whether a forward pass may count in such an attribute."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, enum.Enum))


def _parts(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return the parts of a value and their names; None: it has none that are known."""
    if isinstance(value, functools.partial):
        return enumerate((value.func, value.args, value.keywords))
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, dict)):
        return [(field.name, getattr(value, field.name, None))
                for field in dataclasses.fields(value)]
    if isinstance(value, types.SimpleNamespace):
        value = vars(value)
    if isinstance(value, dict):
        return sorted(value.items(), key=lambda pair: str(pair[0]))
    return enumerate(value) if isinstance(value, (list, tuple)) else None


def _leaf(value: Any) -> Any:
    """Return what equal values without parts have in common; None: it is not known."""
    if isinstance(value, (enum.Enum, torch.dtype)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(map(str, value)))
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    if not isinstance(value, (np.ndarray, np.generic)):
        return None
    content = str(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
    return value.dtype.str, value.shape, hashlib.sha256(content).hexdigest()


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


@functools.cache
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
            if tensor.itemsize == 1:
                part = part.view(torch.uint8)  # torch cannot copy all small types
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
        self._digests: dict[str, tuple[_Tensor, bytes]] = {}  # by the tensors' names
        self.lock = threading.RLock()

    @property
    def model(self) -> Any:
        """The model; None: it is gone."""
        return self._model()

    def look(self) -> _Look:
        """Return the last look, or a new one if anything has changed."""
        with self.lock, torch.inference_mode():  # its views cost half
            model, last = self.model, self._last
            if model is None:
                assert last is not None
                return last
            now = _Look(model)
            if last is not None and last.same(now):
                last.trains = now.trains
                return last
            if last is not None and last.differs_silently(now):
                self._digests.clear()  # and where no sample shows it
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
        fresh = [(one, one.reference()) for one in look.tensors if not self._knows(one)]
        absent = [one.name for one, tensor in fresh
                  if tensor is None or not _is_readable(tensor)]
        if absent or model is None:
            raise errors.UnsupportedError(
                f"{', '.join(absent[:3]) or 'the model'} is not in memory (a meta or sparse tensor,"
                " as with offloaded weights), so its values cannot be told: give open_cache() a "
                "fingerprint= that names these weights")
        once: dict[tuple[Any, ...], bytes] = {}  # tied weights are read once
        with logging.tqdm(total=sum(tensor.nbytes for _, tensor in fresh), unit="B",
                          unit_scale=True, delay=1, desc="fingerprint of the weights") as bar:
            for one, tensor in fresh:
                if one.mark not in once:
                    once[one.mark] = hashlib.sha256(sums_of(tensor)).digest()
                self._digests[one.name] = one, once[one.mark]
                bar.update(tensor.nbytes)
        digest = hashlib.sha256(look.text().encode())
        known = set()
        for one in look.tensors:
            tensor = one.reference()
            known.add(id(tensor))
            digest.update(f"{one.name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(self._digests[one.name][1])
        for value in _hidden("", model.state_dict(keep_vars=True), known):
            digest.update(value)
        return digest.digest()

    def _knows(self, one: _Tensor) -> bool:
        known = self._digests.get(one.name)
        return (known is not None and one.reference() is not None
                and known[0].reference is one.reference and known[0].mark == one.mark)


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
    check_is_model(model)
    with _weights_lock:
        if model not in _weights:
            _weights[model] = _Weights(model)
        return _weights[model]


def fingerprint(model: Any) -> bytes:
    """Return 32 bytes that tell models apart: the configuration, and every byte of the weights.

    The weights are read once, on the device they lie on, with a progress bar above a second. A
    later call only checks whether they have changed.
    InvalidError: it is no module with a config. UnsupportedError: a weight is not in memory.
    """
    weights = _weights_of(model)
    with weights.lock:
        return weights.digest(weights.look())


# ---- a cache that knows its model's weights ----


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


class _Key(bytes):
    """An extra key, and the weights that it stands for."""

    look: _Look
    weights: bytes  # b"": those that need no key
    alone: bool  # no other key is equal: the model was in training mode


class ModelCache(Cache):
    """The cache of a model, as `aule.hf.open_cache` returns it.

    Its fingerprint names the weights that the model has when it is opened. If they change while it
    is open, or an adapter is switched on, later sequences use an extra key with a hash of the new
    weights: they find nothing that others have computed with old ones, and blocks of old weights
    age out. Processes with the same new weights share. If the weights come back, so does the key.

    A change is noticed when a sequence is made, and before a step fills a block, by version
    counters, addresses, shapes, and a sample of each tensor. A change of a few elements through
    `.data` or numpy shows in none of them: call renew(). Attributes of modules are seen as far as
    they are numbers, text, enums, dtypes, functions' names, tensors, numpy arrays, modules, or
    containers and dataclasses of these. Other objects, and what hooks and replaced methods
    compute, are not seen: give an extra_key.

    While a module is in training mode, nothing is shared: K and V may be random there.
    """

    _weights: _Weights
    _named: list[tuple[_Look, bytes]]  # what was seen when these weights were named, and their key
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
            cache._weights, cache._digest = weights, first
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

    def _extra(self, extra_key: bytes | str) -> bytes:
        """Return a key with the model's present weights. One that has them stays as it is."""
        if isinstance(extra_key, _Key):
            return extra_key
        extra = _args.key(extra_key, "extra_key")
        look, weights = self._key()
        alone = look.trains is not None
        if alone:
            warnings.warn(
                f"aule shares no blocks while {look.trains} is in training mode, where K and V may "
                "be random: call the model's eval()", RuntimeWarning, stacklevel=2)
        marks = weights + (secrets.token_bytes(32) if alone else b"")
        key = _Key(hashlib.sha256(marks + extra).digest() if marks else extra)
        key.look, key.weights, key.alone = look, weights, alone
        return key

    def _entries(self, entries: Entries) -> list[tuple[Sequence, int]]:
        """Do what `Cache._entries` says. InvalidError: a sequence was made for other weights.

        A step that fills a block looks at everything before: nothing is published unchecked. A
        step of single tokens that fills none looks at marks of weights only. So an attribute that
        is switched, and back again before the block is full, is not seen.
        """
        pairs = super()._entries(entries)
        infos = [sequence._info() for sequence, _ in pairs]
        now = self._key() if any(map(self._fills, infos, (count for _, count in pairs))) else None
        for info, (sequence, _) in zip(infos, pairs, strict=True):
            made = sequence._weights
            if made is None or (now is None and not made.look.moved()):
                continue
            look, weights = now = now or self._key()
            differs = weights != made.weights
            if (look.trains and not made.alone) or (
                    differs and not made.look.same(look, in_pass=True)):
                raise errors.InvalidError(
                    "the model's weights, adapters or training mode have changed since this "
                    "sequence (or SharedCache) was made, so its K and V are of other weights: "
                    "make a new one")
            if differs:  # what may be a pass's own doing, such as a counter
                sequence.keep_private(max(info.num_computed, info.num_published * self.block_size))
        return pairs

    def _fills(self, info: Any, count: int) -> bool:
        """Whether a step of a sequence fills a block, or has more tokens than one."""
        count = count or info.num_tokens - info.num_computed
        return count != 1 or (info.num_computed + 1) % self.block_size == 0
