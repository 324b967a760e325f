# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""The Python blocks of README.md and docs/ run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import aule
import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent
BLOCKS = [(path, text) for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
          for text in re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.M | re.S)]


@pytest.mark.parametrize(("path", "text"), BLOCKS,
                         ids=[f"{path.stem}-{i}" for i, (path, _) in enumerate(BLOCKS)])
def test_a_block_of_a_document_runs(session: aule.Session, folder: Path, path: Path,
                                    text: str) -> None:
    prompt = list(range(40))
    names: dict[str, Any] = {"aule": aule, "np": np, "prompt": prompt}
    if "torch" in text:
        names["torch"] = pytest.importorskip("torch")
    if "transformers" in text:
        pytest.importorskip("transformers")
        import hf_models

        hf_models.model_of("llama").save_pretrained(folder)
        names |= {"name": str(folder), "ids": hf_models.prompt(1, 50)}
    names["qkv"] = lambda _, count: [np.ones((count, heads, 64), np.float32)
                                     for heads in (4, 2, 2)]
    try:
        exec(compile(text, str(path), "exec"), names)
    finally:
        if isinstance(names.get("session"), aule.Session):
            names["session"].close()


def test_the_lines_of_the_readme_stand_in_the_document() -> None:
    [lines] = [text for path, text in BLOCKS if path.name == "README.md"]
    assert lines in [text for path, text in BLOCKS if path.name == "python.md"]
