# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""A private daemon of this process. It ends with the process, however the process ends."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence as ListOf
from pathlib import Path

from . import errors

START_S = 60  # a software device compiles its first shaders in this time
STOP_S = 20

_ERROR = re.compile(r"\S+Z error |aule-daemon: ")  # how the daemon begins such a line

# A guardian between this process and the daemon: a line on its standard input, or the end of this
# process, ends the daemon and removes the folder. It exits as the daemon does.
_GUARDIAN = """exec 3<&0
"$@" <&- 3<&- & daemon=$!
{ read -r line <&3; : >"$FOLDER/told"; kill -TERM $daemon; } 2>&- & watch=$!
wait $daemon; code=$?
kill $watch 2>&-
[ ! -e "$FOLDER/told" ] || rm -rf "$FOLDER"
exit $code
"""


def find_daemon() -> str | None:
    """Return the program: $AULE_DAEMON, else aule-daemon in $PATH; None: there is none."""
    return shutil.which(os.environ.get("AULE_DAEMON") or "aule-daemon")


class PrivateDaemon:
    """An aule-daemon in a folder of its own. Only the process that made it ends it."""

    def __init__(self, options: ListOf[str] = ()) -> None:
        program = find_daemon()
        if not program:
            raise errors.DaemonGoneError(
                "autostart finds no aule-daemon in $AULE_DAEMON or $PATH; tools/quickstart builds "
                "it, and 'cmake --install build/release --prefix DIR' puts it into DIR/bin")
        self._folder = Path(tempfile.mkdtemp(prefix="aule-"))
        self.socket = str(self._folder / "sock")
        self._pid = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start([program, "--socket", self.socket, *options])
        except BaseException:
            self.stop()
            raise

    @property
    def log(self) -> str:
        """What the daemon has written so far."""
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _start(self, command: list[str]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            notify = str(self._folder / "notify")
            ready.bind(notify)
            ready.settimeout(0.05)
            with open(self._folder / "log", "wb") as log:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _GUARDIAN, "aule-guardian", *command],
                    stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                    env={**os.environ, "NOTIFY_SOCKET": notify, "FOLDER": str(self._folder)})
            for _ in range(START_S * 20):
                try:
                    if b"READY=1" in ready.recv(4096):
                        return
                except TimeoutError:
                    pass
                if self._process.poll() is not None:
                    raise errors.DaemonGoneError(
                        f"the private daemon ended with code {self._process.returncode}: "
                        f"{self.last_words}")
        raise errors.TimeoutError(f"the private daemon was not ready after {START_S} s: "
                                  f"{self.last_words}")

    @property
    def last_words(self) -> str:
        """The daemon's last lines that say an error, else its last line."""
        lines = self.log.strip().splitlines()
        wrong = [line for line in lines if _ERROR.match(line)]
        return "; ".join(wrong[-3:] or lines[-1:]) or "it wrote nothing"

    def stop(self) -> None:
        """End the daemon and remove its folder. A forked child does nothing."""
        if os.getpid() != self._pid:
            return
        process, self._process = self._process, None
        if process:
            try:
                if process.stdin:
                    process.stdin.write(b"\n")
                    process.stdin.close()
            except OSError:
                pass  # it has ended already
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
