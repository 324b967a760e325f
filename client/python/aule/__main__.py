# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""`python -m aule`: versions, the daemon that answers, and what is wrong.

Exit code: 0 a daemon of this version answers, 1 something is wrong; the last lines say what.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys

from . import _native, connect, daemon, errors

PACKAGES = ("numpy", "cffi", "torch", "transformers", "ml_dtypes")
NEEDED = ("numpy", "cffi")


def installed(package: str) -> str:
    """Return the version of a package, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed" if package in NEEDED else "not installed (optional)"


def show(name: str, value: object) -> None:
    """Print one line of the report."""
    print(f"{name:<14}{value}")


def report(socket: str | None) -> int:
    """Print the report and return the exit code."""
    show("python", platform.python_version())
    for package in PACKAGES:
        show(package, installed(package))
    show("aule", _native.version())
    show("library", _native.library_path())
    show("aule-daemon", daemon.find_daemon() or "not in $AULE_DAEMON or $PATH (for autostart)")
    try:
        with connect(socket, name="python -m aule", arena_size=1 << 20) as session:
            info = session.info
            show("daemon", f"answers, protocol {info['protocol_major']}.{info['protocol_minor']}")
            show("device", info["device_name"])
            lane = f"ring lane, {info['ring_entries']} entries"
            show("lane", lane if info["ring_entries"] else "messages only")
            show("arena", "in place" if info["arena_imported"] else "copied for each run")
    except errors.AuleError as reason:
        show("daemon", "does not answer")
        print(f"\nwrong: {reason.name}: {reason}")
        return 1
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m aule", description=__doc__.split("\n\n")[0])
    parser.add_argument("--socket", help="of the daemon; default: $AULE_SOCKET, else the rule")
    return report(parser.parse_args().socket)


if __name__ == "__main__":
    sys.exit(main())
