# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""gpu_workers.py names what it cannot measure; its figures need a GPU."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import PYTHON

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "gpu_workers.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: run the script itself")
def test_parts_without_a_gpu_are_named_and_fail() -> None:
    build = Path(os.environ["AULE_DAEMON"]).parent.parent
    ran = subprocess.run([PYTHON, SCRIPT, "--small", "--parts", "exact,kills", "--build", build],
                         capture_output=True, text=True, timeout=400, check=False)
    assert ran.returncode == 1
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["rows"] == []
    assert said["failures"] == [f"{part}: RuntimeError: torch has no CUDA device here"
                                for part in ("exact", "kills")]


def test_a_part_that_is_none_is_refused() -> None:
    ran = subprocess.run([PYTHON, SCRIPT, "--parts", "exact,typo"], capture_output=True, text=True,
                         timeout=60, check=False)
    assert ran.returncode == 2 and "no part typo" in ran.stderr
