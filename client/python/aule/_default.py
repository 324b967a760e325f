# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Sessions of functions that are called without one. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from . import _native, errors
from ._args import said
from .session import Session, connect

ARENA_SIZE = 256 << 20  # bytes; these functions mostly get tensors that must be copied in

T = TypeVar("T")


class KeptSession:
    """A session that functions share. After its daemon has gone, the next get() connects anew.

    options: of `aule.connect()`.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._losses = 0  # of _native, when the session was last known to live

    def get(self, **options: Any) -> Session:
        """Return the session; the first call connects, also with these options."""
        with self._lock:
            losses = _native.losses
            session = self._session
            if session is not None and losses != self._losses and not session.closed and issubclass(
                    errors.CLASSES.get(session._probe(), errors.AuleError), ConnectionError):
                self._session = None  # before the close, which calls of other threads notice
                session.close()
            self._losses = losses
            if session is None or session.closed:
                session = self._session = connect(**{**self._options, **options})
            elif options:
                raise errors.InvalidError(f"the default session is open; close it before "
                                          f"{', '.join(options)} can change")
            return session

    def call(self, function: Callable[[Session], T]) -> T:
        """Return function(session), which keeps nothing in the daemon.

        If the daemon has gone, it is called once more, with a new session. Another thread may have
        closed the old one meanwhile, in get().
        """
        session = self.get()
        try:
            return function(session)
        except (ConnectionError, errors.ClosedError) as failure:
            if isinstance(failure, errors.ClosedError) and self._session is session:
                raise  # get() has not closed it
            again = self.get()
            if again is session:
                raise
        return function(again)


_default = KeptSession(arena_size=ARENA_SIZE)


def session_of(session: Session | None) -> Session:
    """Return a session that a function was given; None: the default one."""
    if session is not None and not isinstance(session, Session):
        raise errors.InvalidError(f"session = {said(session)}; it is an aule.Session or None")
    return default_session() if session is None else session


def default_session(**options: Any) -> Session:
    """Return this process's session for functions that are called without `session=`.

    The first call connects, with `options` as for `aule.connect()`; the arena has 256 MiB unless
    arena_size says otherwise. After close() the next call connects anew. After a call has failed
    because the daemon is gone, the next call connects anew, too; arrays of the old session stay
    readable.
    InvalidError: options are given, but the session is open.
    """
    return _default.get(**options)
