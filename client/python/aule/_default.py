# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""The session of functions that are called without one. Any thread."""

from __future__ import annotations

import threading
from typing import Any

from . import _native, errors
from .session import Session, connect

ARENA_SIZE = 256 << 20  # bytes; these functions mostly get tensors that must be copied in

_lock = threading.Lock()
_session: Session | None = None


def default_session(**options: Any) -> Session:
    """Return this process's session for functions that are called without `session=`.

    The first call connects, with `options` as for `aule.connect()`; the arena has 256 MiB unless
    arena_size says otherwise. After close() the next call connects anew. After a call has failed
    because the daemon is gone, the next call connects anew, too; arrays of the old session stay
    readable.
    InvalidError: options are given, but the session is open.
    """
    global _session  # noqa: PLW0603
    with _lock:
        if _native.lost and _session is not None and not _session.closed:
            _native.lost = False
            if issubclass(errors.CLASSES.get(_session._probe(), errors.AuleError),
                          ConnectionError):
                _session.close()
        if _session is None or _session.closed:
            _session = connect(**{"arena_size": ARENA_SIZE, **options})
        elif options:
            raise errors.InvalidError(
                f"the default session is open; close it before {', '.join(options)} can change")
        return _session
