# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""libaule-client by cffi: where it is, its statuses as exceptions, and who ends its objects.

It knows no cache and no tensor. Any thread.
"""

from __future__ import annotations

import asyncio
import math
import numbers
import os
import re
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import errors

if TYPE_CHECKING:
    from typing_extensions import Self

try:
    from . import _cffi
except ImportError as reason:  # a checkout, not a package
    raise ImportError(
        "aule._cffi is missing: this folder is a source tree. Build the wheel with tools/wheel and "
        "install it from build/wheel"
    ) from reason

ffi: Any = _cffi.ffi
SLICE_MS = 100  # a wait looks at signals and at closed sessions this often
FOREVER = -1
T = TypeVar("T")
FIRST_PAUSE_S, LAST_PAUSE_S = 0.001, 0.02  # of a coroutine, between asks; each is twice the last


def library_path() -> Path:
    """Return the file of libaule-client: $AULE_LIBRARY, else the package's own."""
    given = os.environ.get("AULE_LIBRARY")
    return Path(given) if given else Path(__file__).parent / "_lib" / "libaule-client.so"


def _load() -> Any:
    path = library_path()
    try:
        return ffi.dlopen(str(path))
    except OSError as reason:
        raise ImportError(f"aule cannot load libaule-client from {path}: {reason}") from reason


lib: Any = _load()
NULL: Any = ffi.NULL


def text(pointer: Any) -> str:
    """Return a C string as str."""
    return str(ffi.string(pointer).decode("utf-8", "replace")) if pointer else ""


def version() -> str:
    """Return the version of libaule-client."""
    return text(lib.aule_version())


# Before 1.0 a minor version may break what an earlier one promised.
_built = (lib.AULE_VERSION_MAJOR, lib.AULE_VERSION_MINOR)
_loaded = tuple(int(part) for part in re.findall(r"\d+", version())[:2])
if _loaded != _built:
    raise ImportError(
        f"aule was built for libaule-client {_built[0]}.{_built[1]}, and {library_path()} is "
        f"{version()}; unset AULE_LIBRARY or install the wheel of that version"
    )

for _number, _name in ffi.typeof("enum aule_status").elements.items():
    errors._NAMES[_number] = _name.removeprefix("AULE_")

OK: int = lib.AULE_OK
TIMEOUT: int = lib.AULE_TIMEOUT
BUSY: int = lib.AULE_BUSY


losses = 0  # calls that failed because their daemon was gone

_WAY_OUT = ("A session that has ended has lost its caches, sequences and blocks: call "
            "aule.connect() again, open the caches, and make the sequences anew from their tokens. "
            "Functions that were given no session connect anew by themselves")


def opening_error(status: int) -> errors.AuleError:
    """Make the exception of this thread's last failing call, which opened a session."""
    return errors.of(status, text(lib.aule_error()) or text(lib.aule_status_text(status)))


def error(status: int) -> errors.AuleError:
    """Make the exception of this thread's last failing call."""
    global losses  # noqa: PLW0603
    failure = opening_error(status)
    if not isinstance(failure, ConnectionError):
        return failure
    losses += 1
    return errors.of(status, f"{failure}. {_WAY_OUT}")


def check(status: int) -> None:
    """Raise the exception of a status that is not AULE_OK."""
    if status:
        raise error(status)


def milliseconds(timeout: float | None, name: str = "timeout") -> int:
    """Turn seconds (None: for ever) into what C takes, rounded up."""
    if timeout is None:
        return FOREVER
    if (isinstance(timeout, bool) or not isinstance(timeout, numbers.Real)
            or not 0 <= timeout < math.inf):
        from ._args import said  # which imports this module

        raise errors.InvalidError(f"{name} = {said(timeout)} seconds; it is a finite number from "
                                  "0, or None for ever")
    return min(int(timeout * 1000 + 0.999), 2**31 - 1)


def countdown(timeout: float | None, name: str = "timeout") -> Callable[[], float]:
    """Return what says how many of `timeout` seconds (None: for ever) are left."""
    milliseconds(timeout, name)  # InvalidError
    if timeout is None:
        return lambda: float("inf")
    end = time.monotonic() + timeout
    return lambda: max(0.0, end - time.monotonic())


def ask_in_part(call: Callable[..., int], *args: int) -> int:
    """Return call(*args), a part of a wait: if it is refused, it is called again.

    The daemon counts no refusal then. Source: aule_wait_goes_on().
    """
    before = lib.aule_wait_goes_on(1)
    try:
        return call(*args)
    finally:
        lib.aule_wait_goes_on(before)


def sliced(call: Callable[[int], int], timeout: float | None, again: tuple[int, ...],
           alive: Callable[[], object]) -> int:
    """Call `call(timeout_ms)` in slices, so that Ctrl-C ends a wait, and return its status.

    It goes on after the statuses `again` until `timeout` seconds have passed; None: for ever.
    `alive` raises once another thread has closed the object.
    """
    left = milliseconds(timeout)
    end = None if timeout is None else time.monotonic() + timeout
    while not 0 <= left <= SLICE_MS:
        status = ask_in_part(call, SLICE_MS)
        if status not in again:
            return status
        alive()
        left = FOREVER if end is None else max(int((end - time.monotonic()) * 1000), 0)
    return call(left)


async def polled(ask: Callable[[], int], timeout: float | None, again: tuple[int, ...],
                 alive: Callable[[], object]) -> int:
    """Do for a coroutine what sliced() does for a thread. `ask` waits for nothing.

    Between asks it sleeps. Cancellation can only happen in the sleep, so no lease is lost.
    """
    left = countdown(timeout)
    pause = FIRST_PAUSE_S
    while left():
        status = ask_in_part(ask)
        if status not in again:
            return status
        await asyncio.sleep(min(pause, left()))
        pause = min(2 * pause, LAST_PAUSE_S)
        alive()
    return ask()


class Handle:
    """Owns one object of the library and ends it after its last user, whatever dies first.

    The owner and each handle that was made from this one have a token. The return of the last
    token ends the object. So a parent outlives its children, even if the garbage collector
    finalises them in another order. A call that runs keeps a reference, so another thread may
    close the owner meanwhile.
    """

    __slots__ = ("_destroy", "_own", "_parent", "_tokens", "pointer")

    def __init__(self, pointer: Any, destroy: Callable[[Any], object],
                 parent: Handle | None = None) -> None:
        self.pointer = pointer
        self._destroy = destroy
        self._parent = parent
        self._own = [None]  # empty: the owner has given its token back
        self._tokens = [True]  # the first is the last to go; list operations are atomic
        if parent is not None:
            parent._tokens.append(False)

    def lend(self, pointer: Any, free: Callable[[Any, Any], object]) -> Any:
        """Return `pointer` as a cdata that ends by free(self.pointer, pointer), and keeps this."""
        self._tokens.append(False)

        def give_back(lent: Any) -> None:
            free(self.pointer, lent)
            self._drop()

        return ffi.gc(pointer, give_back)

    @property
    def ended(self) -> bool:
        """Whether end() was called."""
        return not self._own

    def end(self) -> None:
        """Give the owner's token back. No call may use the pointer any more; so ask locks first."""
        try:
            self._own.pop()
        except IndexError:
            return
        self._drop()

    def __del__(self) -> None:
        self.end()

    def _drop(self) -> None:
        handle: Handle | None = self
        while handle is not None and handle._tokens.pop():
            handle._destroy(handle.pointer)
            parent, handle._parent = handle._parent, None  # a traceback may keep this handle
            handle = parent


def listed(things: Iterable[T]) -> list[T]:
    """Return a list of a set's or dict's entries, which others change meanwhile.

    They are other threads, and finalisers, which run at any moment.
    """
    while True:
        try:
            return list(things)
        except RuntimeError:  # its size has changed
            continue


class Owner:
    """What has a close(): a context manager over one Handle and over what was made from it."""

    _what = "object"

    def __init__(self, handle: Handle) -> None:
        self._handle: Handle | None = handle
        self._children: weakref.WeakSet[Owner] = weakref.WeakSet()

    def _open(self) -> Handle:
        """Return the handle, which the caller keeps while it uses the pointer."""
        handle = self._handle
        if handle is None:
            raise errors.ClosedError(f"this {self._what} is closed")
        return handle

    def _living(self) -> list[Owner]:
        """Return what was made from this and still is."""
        return listed(self._children)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._handle is None

    def close(self) -> None:
        """End this and all that was made from it. A call that runs in another thread ends first.

        A call that waits there raises ClosedError. May be called again. The garbage collector does
        the same, later.
        """
        handle, self._handle = self._handle, None  # first: a wait that holds a child's lock sees it
        for child in self._living():
            child.close()
        del handle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<aule {self._what}, {'closed' if self.closed else 'open'}>"


def fields(struct: Any) -> dict[str, Any]:
    """Turn a struct of the library into a dict: numbers, bools, str for char arrays, bytes."""
    values: dict[str, Any] = {}
    for field, kind in ffi.typeof(struct).fields:
        value = getattr(struct, field)
        if kind.type.kind == "array":
            is_text = kind.type.item.cname == "char"
            value = text(value) if is_text else bytes(value)
        values[field] = value
    return values
