# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Claims: a look-up that also says who computes which of the missing blocks. Any thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from ._native import TIMEOUT, check, ffi, lib, sliced

if TYPE_CHECKING:
    from .cache import Cache


class Claim:
    """What `cache.claim()` found of a prompt, and its claim on the rest.

    Call wait() while `promised` is not 0. Then compute the blocks behind `ids`, and publish them,
    which ends the claim. release() gives it up.
    """

    def __init__(self, cache: Cache, prefix: Any, keep: Any, max_tokens: int) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._claim = ffi.new("struct aule_claim *")
        self._ids = np.empty(prefix.num_tokens // cache.block_size, np.int32)
        self._array = ffi.from_buffer("int32_t[]", self._ids)
        check(lib.aule_prefix_claim_sized(cache._open().pointer, prefix, ffi.sizeof(prefix[0]),
                                          max_tokens, self._array, self._claim))
        del keep

    @property
    def ids(self) -> Any:
        """The blocks so far, held by the session until `cache.release(ids)`; int32 [found]."""
        return self._ids[:self._claim.num_blocks]

    @property
    def found(self) -> int:
        """How many blocks of the prompt there are so far."""
        return int(self._claim.num_blocks)

    @property
    def promised(self) -> int:
        """How many blocks behind `ids` others compute or tiers load; the rest is the caller's."""
        return int(self._claim.num_promised)

    @property
    def open(self) -> bool:
        """Whether blocks are claimed: some are missing, and neither published nor given up."""
        return bool(self._claim.id)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there are more blocks, or until those that are missing are the caller's.

        timeout: seconds; None: for ever. False: neither happened; the claim stays. Call it before
        you publish blocks of the prompt. NotFoundError: the claim has ended. Source:
        aule_claim_wait() in aule.h.
        """
        with self._lock:
            if not self._claim.num_promised:
                return True
            status = sliced(self._ask, timeout, (TIMEOUT,), self._cache._open)
        if status != TIMEOUT:
            check(status)
        return status != TIMEOUT

    def _ask(self, ms: int) -> int:
        pointer = self._cache._open().pointer
        return int(lib.aule_claim_wait(pointer, self._claim, ms, self._array))

    def release(self) -> None:
        """Give the claim up, so that others compute what is missing. `ids` stay held."""
        with self._lock:
            check(lib.aule_claim_release(self._cache._open().pointer, self._claim, 0))
