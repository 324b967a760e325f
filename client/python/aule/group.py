# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Several daemons, one a GPU, that share the work of one call. Any thread."""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors
from ._args import choice, lengths, texts
from ._blocks import Pending, joined, table_of
from ._native import milliseconds
from ._tensors import Array, array_of
from .paged import submit_page_attention
from .session import Session, connect

if TYPE_CHECKING:
    from typing_extensions import Self

SPLITS = ("heads", "sequences")


class Group:
    """Sessions of several daemons. close() or `with` ends them.

    sockets: one path a daemon; the order gives the shares. options: those of `aule.connect()`.
    `sessions[n].empty()` makes memory for the share of daemon n.
    """

    def __init__(self, sockets: ListOf[str], **options: Any) -> None:
        sockets = texts(sockets, "sockets")
        if not sockets or len(set(sockets)) != len(sockets):
            raise errors.InvalidError(f"sockets = {sockets}; a group has at least one, and each "
                                      "once")
        self.sessions: list[Session] = []
        try:
            for socket in sockets:
                self.sessions.append(connect(socket, **options))
        except BaseException:
            self.close()
            raise

    def page_attention(self, query: Array, key_cache: Array, value_cache: Array,
                       context_lens: Any, block_tables: Any, /, *, split: str | None = None,
                       timeout: float | None = None, **options: Any) -> Any:
        """Do what `aule.page_attention` does, with all daemons at once.

        split: "heads" gives each daemon a range of KV heads and their query heads; "sequences"
        gives each a range of sequences; None: heads, if each daemon gets one. The result has the
        same bits as that of one daemon on the same kind of GPU. timeout: seconds a daemon; None:
        for ever. Other arguments and errors: as for `aule.page_attention`; an error of one daemon
        is raised after the others have ended.
        """
        query = array_of(query, "query")
        keys, values = array_of(key_cache, "key_cache"), array_of(value_cache, "value_cache")
        if query.ndim != 3 or keys.ndim != 4 or values.ndim != 4:
            raise errors.InvalidError(f"query {tuple(query.shape)} has 3 dimensions, key_cache "
                                      f"{tuple(keys.shape)} and value_cache 4")
        kv_heads, heads = keys.shape[1], query.shape[1]
        if split is None:
            split = "heads" if kv_heads >= len(self.sessions) else "sequences"
        choice(split, "split", SPLITS)
        milliseconds(timeout)
        context_lens = lengths(context_lens, "context_lens", query.shape[0])
        block_tables = table_of(block_tables, "block_tables")
        if not kv_heads or heads % kv_heads:
            raise errors.InvalidError(f"{heads} query heads are no multiple of {kv_heads} KV heads")
        by_heads = split == "heads"
        count = kv_heads if by_heads else query.shape[0]
        bounds = np.linspace(0, count, len(self.sessions) + 1).astype(int)
        queued: list[Pending] = []
        try:
            for session, start, stop in zip(self.sessions, bounds[:-1], bounds[1:], strict=True):
                if start == stop and (count or queued):
                    continue  # without any sequence the first daemon checks the arguments
                if by_heads:
                    each = heads // kv_heads
                    part = (query[:, start * each:stop * each], keys[:, start:stop],
                            values[:, start:stop], context_lens, block_tables)
                else:
                    part = (query[start:stop], keys, values, context_lens[start:stop],
                            block_tables[start:stop])
                queued.append(submit_page_attention(*part, session=session, **options))
        finally:
            outs, failure = _wait_all(queued, timeout)
        if failure:
            raise failure
        return joined(outs, 1 if by_heads else 0)

    def close(self) -> None:
        """End the sessions."""
        for session in self.sessions:
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _wait_all(queued: list[Pending],
              timeout: float | None) -> tuple[list[Array], errors.AuleError | None]:
    """Wait for each, and return the outputs and the first error."""
    outs, failure = [], None
    for pending in queued:
        try:
            outs.append(pending.wait(timeout))
        except errors.AuleError as error:
            failure = failure or error
    return outs, failure
