# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Values of the caller as what C and numpy take: numbers, flags, names, texts, arrays.

A value that does not fit raises InvalidError. An entry of an array that its type cannot hold raises
OutOfRangeError. Both sentences name the argument and the value. Any thread.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from . import dtypes, errors

INT32, UINT32, UINT64 = 2**31 - 1, 2**32 - 1, 2**64 - 1
_SMALLEST, _LARGEST = (float(getattr(np.finfo(np.float32), name)) for name in ("tiny", "max"))


def said(value: Any) -> str:
    """Return a value for a sentence, on one line and not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def integer(value: Any, name: str, low: int = 0, high: int = UINT32,
            beyond: type[errors.AuleError] = errors.InvalidError) -> int:
    """Return an int, or an integer of numpy or torch, from `low` to `high`; else raise `beyond`."""
    if type(value) is not int and not isinstance(value, (bool, np.bool_)):
        with contextlib.suppress(RuntimeError, TypeError):
            value = operator.index(value)
    if type(value) is int and low <= value <= high:
        return value
    raise (beyond if type(value) is int else errors.InvalidError)(
        f"{name} = {said(value)}; it is an integer from {low} to {high}")


def real(value: Any, name: str, infinite: bool = False) -> float:
    """Return a number, or an array of one, that f32 can hold without becoming 0.

    infinite: infinities are allowed, and what is too large for f32 becomes one.
    """
    number = math.nan
    if not isinstance(value, (bool, np.bool_, str)):
        no_gradient(value, name)
        with contextlib.suppress(OverflowError, RuntimeError, TypeError, ValueError):
            number = float(value.item() if hasattr(value, "item") else value)
    most = math.inf if infinite else _LARGEST
    if number and not _SMALLEST <= abs(number) <= most:
        raise errors.InvalidError(f"{name} = {said(value)}; it is a number that f32 can hold")
    return number


def flag(value: Any, name: str) -> bool:
    """Return True or False, also of numpy or torch; 1 and 0 count as such."""
    if type(value) is bool:
        return value
    try:
        plain = value.item() if hasattr(value, "item") else value
    except (RuntimeError, ValueError):
        plain = None
    if type(plain) not in (bool, int) or plain not in (0, 1):
        raise errors.InvalidError(f"{name} = {said(value)}; it is True or False")
    return bool(plain)


def choice(value: Any, name: str, choices: Iterable[str]) -> str:
    """Return one of some names."""
    if not isinstance(value, str) or value not in choices:
        raise errors.InvalidError(f"{name} = {said(value)} is none of {', '.join(choices)}")
    return value


def text(value: Any, name: str) -> bytes:
    """Return a str as C's bytes, or raise if C would cut it."""
    if not isinstance(value, str) or "\0" in value:
        raise errors.InvalidError(f"{name} = {said(value)}; it is a str without NUL")
    try:
        return value.encode()
    except UnicodeEncodeError as reason:
        raise errors.InvalidError(f"{name} = {said(value)}: {reason}") from None


def path(value: Any, name: str) -> bytes:
    """Return the path of a file as C's bytes."""
    encoded = b"\0"
    if isinstance(value, (str, bytes, os.PathLike)):
        with contextlib.suppress(UnicodeEncodeError):
            encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise errors.InvalidError(f"{name} = {said(value)}; it is a path without NUL")
    return encoded


def key(value: Any, name: str) -> bytes:
    """Return the bytes of a key: bytes, or a str."""
    if isinstance(value, str):
        return text(value, name)
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise errors.InvalidError(f"{name} = {said(value)}; it is bytes or a str")
    return bytes(value)


def texts(values: Any, name: str) -> list[str]:
    """Return a list of str. A single str is refused; it would be read as a list of characters."""
    found: list[str] | None = None
    if not isinstance(values, str):
        with contextlib.suppress(TypeError):
            found = list(values)
    if found is None:
        raise errors.InvalidError(f"{name} = {said(values)}; it is a list of str")
    for value in found:
        text(value, f"an entry of {name}")
    return found


# ---- arrays ----

def no_gradient(value: Any, name: str) -> None:
    """Raise if torch would expect a gradient of `value`: what aule computes has none."""
    if not dtypes.is_torch(value):
        return
    torch = sys.modules["torch"]
    forward = torch.autograd.forward_ad
    if ((value.requires_grad and torch.is_grad_enabled())
            or (forward._current_level >= 0 and forward.unpack_dual(value).tangent is not None)):
        raise errors.UnsupportedError(
            f"{name} requires a gradient, and aule computes no gradients: call this under "
            f"torch.no_grad(), or detach {name}")


def host(values: Any, name: str) -> Any:
    """Return an array of numpy, torch or DLPack, a list or an iterator as numpy's array."""
    if isinstance(values, np.ma.MaskedArray):
        raise errors.InvalidError(f"{name} is a masked array; fill it first")
    try:
        if dtypes.is_torch(values):
            return values.detach().cpu().numpy()
        return np.asarray(list(values) if isinstance(values, Iterator) else values)
    except (RuntimeError, TypeError, ValueError) as reason:  # ragged lists; torch's own types
        raise errors.InvalidError(f"{name} is no array of numbers: {reason}") from None


def integers(values: Any, name: str, shape: tuple[int | None, ...] = (None,),
             kind: Any = np.int32) -> Any:
    """Return integers as a dense array of numpy; None in `shape` stands for any length.

    It may be the caller's own array: copy it before you keep it.
    """
    array = host(values, name)
    whole = array.size == 0 or array.dtype.kind in "iu" or (
        array.dtype.kind == "O" and all(type(value) is int for value in array.flat))
    if not whole or array.ndim != len(shape) or any(
            n not in (None, length) for n, length in zip(shape, array.shape, strict=True)):
        given = f"{array.dtype} {list(array.shape)}" if array.ndim else said(values)
        wanted = ("one row of integers" if shape == (None,) else
                  f"integers [{', '.join('n' if n is None else str(n) for n in shape)}]")
        raise errors.InvalidError(f"{name} is {given}; it must be {wanted}")
    limits = np.iinfo(kind)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        at = next(at for at in np.ndindex(array.shape)
                  if not limits.min <= array[at] <= limits.max)
        raise errors.OutOfRangeError(f"{name}{list(at)} = {array[at]} is beyond {limits.dtype}")
    return np.ascontiguousarray(array, kind)


def int32(values: Any, name: str) -> Any:
    """Return one row of integers as int32 [n]."""
    return integers(values, name)


def lengths(values: Any, name: str, count: int | None = None) -> Any:
    """Return numbers from 0, one a sequence, as int32 [count]."""
    array = integers(values, name, (count,))
    for at in np.flatnonzero(array < 0)[:1]:
        raise errors.InvalidError(f"{name}[{at}] = {array[at]}; it must be {len(array)} numbers "
                                  "from 0")
    return array


def bounded(array: Any, most: int, name: str) -> None:
    """Raise if a length exceeds a bound; 0: there is none."""
    for at in np.flatnonzero(array > most)[:1 if most else 0]:
        raise errors.OutOfRangeError(f"{name} = {most}, but sequence {at} has {array[at]}")


def offsets(values: Any, name: str, count: int | None = None) -> Any:
    """Return where each sequence begins and the last one ends, int32 [count + 1]: it never falls.

    The differences of such an array do not wrap.
    """
    array = integers(values, name, (None if count is None else count + 1,))
    if not len(array) or array[0] < 0 or (array[1:] < array[:-1]).any():
        raise errors.InvalidError(f"{name} = {said(array.tolist())} must rise from 0, with one "
                                  "entry more than there are sequences")
    return array


def starts(values: Any, name: str, q: Any) -> Any:
    """Return the rows of q where each sequence begins and the last one ends, as `offsets`."""
    array = offsets(values, name)
    if array[0] != 0 or array[-1] != q.shape[0]:
        raise errors.InvalidError(f"{name} goes from {array[0]} to {array[-1]}; q has "
                                  f"{q.shape[0]} rows, from 0")
    return array


def floats(values: Any, name: str) -> Any:
    """Return numbers as a dense float32 array."""
    no_gradient(values, name)
    if dtypes.is_torch(values) and not values.is_complex():
        values = values.detach().float()  # numpy has no bf16
    array = host(values, name)
    if array.size and (array.dtype.kind not in "fiuV" or array.dtype.names):
        raise errors.InvalidError(f"{name} is no array of numbers: it is {array.dtype} "
                                  f"{list(array.shape)}")
    return np.ascontiguousarray(array, np.float32)


def pack_mask(mask: Any, shapes: list[tuple[int, int]]) -> bytes:
    """Pack bool masks [queries, keys], one a sequence, as struct aule_batch_params has them.

    Bytes are packed already.
    """
    if isinstance(mask, bytes):
        size = sum(-(-queries * keys // 8) for queries, keys in shapes)
        if len(mask) != size:
            raise errors.InvalidError(f"mask has {len(mask)} bytes; these sequences need {size}")
        return mask
    one = len(shapes) == 1 and getattr(mask, "ndim", 0) == 2
    try:
        parts = [mask] if one else list(mask)
    except TypeError:
        raise errors.InvalidError(f"mask = {said(mask)}; it is a bool array, or a list of one a "
                                  "sequence") from None
    if len(parts) != len(shapes):
        raise errors.InvalidError(f"mask has {len(parts)} parts for {len(shapes)} sequences")
    packed = []
    for i, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
        array = host(part, f"mask of sequence {i}")
        if array.shape != shape or array.dtype != np.bool_:
            raise errors.InvalidError(f"mask of sequence {i} is {array.dtype} "
                                      f"{list(array.shape)}; it must be bool {list(shape)}")
        packed.append(np.packbits(array, axis=None, bitorder="little").tobytes())
    return b"".join(packed)
