# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""gpu_measure.py works, also on a CPU. Its numbers mean nothing there."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from aule import errors
from conftest import PYTHON

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("aule._hf_batch", exc_type=errors.UnsupportedError)

SCRIPT = Path(__file__).parent / "gpu_measure.py"


def test_one_command_measures_all_rows() -> None:
    build = Path(os.environ["AULE_DAEMON"]).parent.parent
    ran = subprocess.run([PYTHON, SCRIPT, "--small", "--processes", "1", "--build", build],
                         capture_output=True, text=True, timeout=400, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = json.loads(ran.stdout.splitlines()[-1])
    assert not said["failures"] and re.search("passed|skipped", said["tests"])
    rows = said["layers"]["rows"]
    assert [row["name"] for row in rows[:4]] == [
        "decode, in the arena", "decode, copied", "prefill, in the arena", "prefill, copied"]
    assert all(row["time_us"] >= row["kernels_us"] > 0 for row in rows)
    whole, inner = said["layers"]["own_us"]
    assert whole > 0 and inner > 0
    aule, sdpa = said["batches"]
    assert (aule["name"], sdpa["name"]) == ("aule, 1 process", "sdpa, 1 process")
    assert aule["prompted"] == 6 * 49 and aule["found"] > 0
    assert aule["cache_bytes"] > 0 < sdpa["tokens_per_s"]


def test_a_part_that_fails_is_named(folder: Path) -> None:
    """This build has no daemon."""
    client = Path(os.environ["AULE_DAEMON"]).parent.parent / "client"
    (folder / "client").symlink_to(client)
    ran = subprocess.run([PYTHON, SCRIPT, "--small", "--processes", "0", "--build", folder],
                         capture_output=True, text=True, timeout=400, check=False)
    assert ran.returncode == 1
    failures = json.loads(ran.stdout.splitlines()[-1])["failures"]
    assert any(failure.startswith("layers: aule.errors.DaemonGoneError: autostart finds no")
               for failure in failures), failures
