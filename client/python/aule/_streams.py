# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Waits for CUDA's streams, with a deadline. The daemon gets no work before its stream has passed.

An event is polled. On an H100 that is as fast as cudaEventSynchronize(), which has no deadline.
"""

from __future__ import annotations

import time
from typing import Any

from . import errors

SPIN_S = 0.002  # a wait for a stream polls so long, and then in pauses
PAUSE_S = 0.0001


def wait_for(event: Any, timeout: float | None) -> None:
    """Wait until a stream has passed an event; the daemon gets nothing before.

    TimeoutError: the stream has not passed after `timeout` seconds; None: for ever.
    """
    started = time.perf_counter()
    while not event.query():
        waited = time.perf_counter() - started
        if timeout is not None and waited >= timeout:
            raise errors.TimeoutError(
                f"a CUDA stream has not passed after {waited:.1f} s (stream_timeout = {timeout:g} "
                "of connect()); does it wait for something that never comes?")
        time.sleep(PAUSE_S if waited > SPIN_S else 0)  # 0: other threads may run
