# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Element types: names, numpy's and torch's types, and the numbers of enum aule_dtype.

numpy has no bf16 and no fp8 of its own. ml_dtypes adds them; without it their arrays cannot be
made, but torch's tensors can. Neither is imported before it is needed.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
from typing import Any

import numpy as np

from . import errors
from ._native import lib, text

# The name in torch and in ml_dtypes or numpy, by the library's own short name.
_SPELLINGS = {
    "f32": ("float32", "float32"),
    "f16": ("float16", "float16"),
    "bf16": ("bfloat16", "bfloat16"),
    "fp8_e4m3": ("float8_e4m3fn", "float8_e4m3fn"),
    "fp8_e5m2": ("float8_e5m2", "float8_e5m2"),
    "int8": ("int8", "int8"),
}

F32, F16, BF16 = int(lib.AULE_F32), int(lib.AULE_F16), int(lib.AULE_BF16)

_CODES = {text(lib.aule_dtype_name(code)): code for code in itertools.takewhile(
    lib.aule_dtype_size, itertools.count(1))}
_NAMES = {code: name for name, code in _CODES.items()}
SIZES: dict[int, int] = {code: int(lib.aule_dtype_size(code)) for code in _NAMES}


def name(code: int) -> str:
    """Return the short name of a number, such as "bf16"."""
    return _NAMES.get(code, "unknown")


def accepted() -> str:
    """Return the names that `code_of` takes, for sentences."""
    return ", ".join(f"{short} ({torch_name})" for short, (torch_name, _) in _SPELLINGS.items())


_known: dict[Any, int] = {}  # what code_of() has found out, by numpy's or torch's type


def code_of(dtype: Any, what: str = "") -> int:
    """Return the number of a dtype: numpy's, ml_dtypes', torch's, or its name.

    what: the name of an array that has it. InvalidError: aule has no such type.
    """
    try:
        return _known[dtype]
    except (KeyError, TypeError):
        pass
    spelled, of_what = str(dtype).removeprefix("torch."), f"{what}: " if what else ""
    if not isinstance(dtype, str) and not spelled.startswith("float8"):
        of_numpy = None
        with contextlib.suppress(TypeError, ValueError):
            of_numpy = np.dtype(dtype)
        if of_numpy is not None:
            if not of_numpy.isnative:
                raise errors.InvalidError(f"{of_what}dtype {of_numpy.str} has another byte order "
                                          "than this machine; convert the array by astype()")
            spelled = of_numpy.name
    code = _CODES.get(spelled, 0)
    for short, spellings in _SPELLINGS.items():
        if spelled in spellings:
            code = _CODES[short]
    if not code:
        raise errors.InvalidError(f"{of_what}dtype {dtype} is none of aule's: {accepted()}")
    if not isinstance(dtype, type):
        _known[dtype] = code
    return code


def numpy_dtype(code: int) -> Any:
    """Return numpy's dtype of a number. UnsupportedError: it needs ml_dtypes, which is missing."""
    spelled = _SPELLINGS[_NAMES[code]][1]
    if hasattr(np, spelled):
        return np.dtype(spelled)
    try:
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), spelled))
    except ImportError:
        raise errors.UnsupportedError(
            f"numpy has no {spelled}: install ml_dtypes, or ask for a torch tensor"
        ) from None


def torch_dtype(code: int) -> Any:
    """Return torch's dtype of a number."""
    torch = importlib.import_module("torch")
    return getattr(torch, _SPELLINGS[_NAMES[code]][0])


def is_torch(value: Any) -> bool:
    """Say whether `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_torch_dtype(dtype: Any) -> bool:
    """Say whether `dtype` is torch's."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(dtype, torch.dtype)
