# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""The package itself: declarations, types, style, wheel, and what `python -m aule` says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import aule
import pytest
from aule import _native, errors
from conftest import LONG, PYTHON

ROOT = Path(__file__).parent.parent.parent
SOURCES = ROOT / "client/python"


def run(*command: Any, **options: Any) -> Any:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          check=False, timeout=600, **options)


def is_whole(name: str) -> bool:
    """Whether a struct has fields; cffi says so only by its size."""
    try:
        return bool(_native.ffi.sizeof(name))
    except _native.ffi.error:
        return False


def test_structs_are_as_large_as_the_compiler_makes_them(folder: Path) -> None:
    ffi = _native.ffi
    names = [name for name in (f"struct {tag}" for tag in ffi.list_types()[1]) if is_whole(name)]
    lines = [f'printf("{name} %zu\\n", sizeof({name}));\n' + "".join(
        f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));\n'
        for field, _ in ffi.typeof(name).fields) for name in names]
    headers = "".join(f"#include <aule/{path.name}>\n"
                      for path in sorted((ROOT / "client/include/aule").glob("*.h")))
    (folder / "sizes.c").write_text(
        f"#include <stdio.h>\n{headers}int main(void) {{\n{''.join(lines)}return 0; }}\n")
    made = run("cc", "-std=c17", "-I", ROOT / "client/include", folder / "sizes.c", "-o",
               folder / "sizes")
    assert made.returncode == 0, made.stderr
    said = {name: int(size) for name, size in
            re.findall(r"^(.*) (\d+)$", run(folder / "sizes").stdout, re.M)}
    ours = {name: ffi.sizeof(name) for name in names}
    ours.update({f"{name}.{field}": kind.offset for name in names
                 for field, kind in ffi.typeof(name).fields})
    assert ours == said and len(names) > 30


def test_the_library_has_every_function_of_the_headers() -> None:
    text = "".join(path.read_text() for path in (ROOT / "client/include/aule").glob("*.h"))
    names = set(re.findall(r"AULE_API [^;{]*?\b(aule_\w+)\(", text))
    assert len(names) > 60
    for name in names:
        assert _native.ffi.addressof(_native.lib, name)


def test_each_status_has_an_exception_with_its_name() -> None:
    for number, name in _native.ffi.typeof("enum aule_status").elements.items():
        if number == _native.OK:
            continue
        error = errors.of(number, "a sentence")
        assert type(error) is errors.CLASSES[number], name
        assert f"AULE_{error.name}" == name and str(error) == "a sentence"
        wanted = "".join(part.title() for part in error.name.split("_")) + "Error"
        assert type(error).__name__ == wanted
    assert type(errors.of(999, "newer")) is errors.AuleError
    assert errors.of(999, "newer").status == 999 and errors.of(999, "").name == "UNKNOWN"


def test_the_types_are_clean() -> None:
    package = Path(aule.__file__ or "").parent
    ran = run(PYTHON, "-m", "mypy", "--config-file", SOURCES / "pyproject.toml", "--cache-dir",
              package.parent / "mypy", "-p", "aule",
              env={**os.environ, "MYPYPATH": str(package.parent)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (package / "py.typed").exists()


def test_the_style_is_clean() -> None:
    ran = run(PYTHON, "-m", "ruff", "check", "--no-cache", "--config", SOURCES / "pyproject.toml",
              SOURCES, *(ROOT / folder for folder in
                         ("examples/python", "tests/python", "tools/bench")), cwd=ROOT)
    assert ran.returncode == 0, ran.stdout


def stand_ins(folder: Path, **sources: str) -> dict[str, str]:
    """Return an environment whose modules of these names have these sources."""
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    return {**os.environ, "PYTHONPATH": f"{folder}:{os.environ['PYTHONPATH']}"}


def test_the_example_of_own_kernels_says_what_it_needs(folder: Path) -> None:
    example = ROOT / "examples/python/attached.py"
    absent = "raise ImportError('it is not there')"
    ran = run(PYTHON, example, "--help", env=stand_ins(folder, torch=absent, triton=absent))
    assert ran.returncode == 0 and "--processes" in ran.stdout, ran.stderr
    blind = "class cuda: is_available = staticmethod(lambda: False)\n__version__ = '9'"
    ran = run(PYTHON, example, "--kernel", "triton",
              env=stand_ins(folder, torch=blind, triton=absent))
    assert ran.returncode == 1
    assert ran.stderr == "attached.py cannot run here: torch 9 finds no CUDA device\n"
    hides = "import sys\nsys.modules['flashinfer'] = None"  # Python runs it first
    ran = run(PYTHON, example, "--kernel", "flashinfer",
              env=stand_ins(folder, torch=blind, triton=absent, flashinfer="",
                            sitecustomize=hides))
    assert ran.returncode == 1 and "flashinfer is not installed" in ran.stderr


def test_the_module_says_what_is_there_and_what_is_wrong(session: aule.Session,
                                                         folder: Path) -> None:
    ran = run(PYTHON, "-m", "aule")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for words in (r"^aule +0\.", r"^numpy +\d", r"^daemon +answers, protocol 3\.", r"^device +\w",
                  r"^library +/", r"^lane +"):
        assert re.search(words, ran.stdout, re.M), words
    ran = run(PYTHON, "-m", "aule", "--socket", folder / "none")
    assert ran.returncode == 1 and "wrong: DAEMON_GONE: " in ran.stdout
    assert "Start a daemon with 'aule-daemon'" in ran.stdout
    ran = run(PYTHON, "-m", "aule", env={**os.environ, "AULE_LIBRARY": "/none"})
    assert ran.returncode == 1 and "aule cannot load libaule-client from /none" in ran.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("wheel")
    ran = run(PYTHON, SOURCES / "packaging/aule_packaging.py", "wheel", out)
    assert ran.returncode == 0, ran.stderr
    return out


def test_the_wheel_has_a_true_tag_and_links_only_libc(wheels: Path, folder: Path) -> None:
    (wheel,) = wheels.glob("*.whl")
    found = re.fullmatch(rf"aule-{re.escape(aule.__version__)}-py3-none-manylinux_2_(\d+)_\w+\.whl",
                         wheel.name)
    assert found
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("aule/_lib/libaule-client.so", folder)
        names = archive.namelist()
    assert {"aule/py.typed", "aule/_cffi.py"} <= set(names)
    said = run("readelf", "-d", "-V", library).stdout
    assert set(re.findall(r"NEEDED.*\[(.*)\]", said)) <= {
        "libc.so.6", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1"}
    newest = max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", said))
    assert newest == int(found.group(1)) or (newest < 17 and found.group(1) == "17")


def test_the_installed_wheel_computes(wheels: Path, folder: Path) -> None:
    (wheel,) = wheels.glob("*.whl")
    ran = run(PYTHON, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target",
              folder / "site", wheel)
    assert ran.returncode == 0, ran.stderr
    ran = run(PYTHON, "-c", """
import aule, numpy as np
assert "site" in aule.__file__
with aule.connect(autostart=True, daemon_options=["--cache-folder", "none"]) as session:
    cache = session.cache("c", num_layers=1, num_kv_heads=2, head_dim=32, dtype="f32")
    step = cache.step([cache.sequence([1, 2, 3])])
    print(step.attend(0, *[np.ones((3, heads, 32), np.float32) for heads in (4, 2, 2)]).sum())
""", env={**os.environ, "PYTHONPATH": str(folder / "site")})
    assert ran.stdout == "384.0\n", ran.stderr


def test_the_sdist_has_all_that_its_build_needs(wheels: Path, folder: Path) -> None:
    (sdist,) = wheels.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
        archive.extractall(folder, **({"filter": "data"} if sys.version_info >= (3, 12) else {}))
    top = folder / names[0].split("/")[0]
    assert {f"{top.name}/{name}" for name in ("PKG-INFO", "README.md", "pyproject.toml",
                                              "source/CMakeLists.txt")} <= set(names)
    assert not [name for name in names if "__pycache__" in name]
    if not LONG:
        return
    ran = run(PYTHON, top / "packaging/aule_packaging.py", "wheel", folder / "again")
    assert ran.returncode == 0, ran.stderr
    (wheel,) = (folder / "again").glob("*.whl")
    assert wheel.name == next(wheels.glob("*.whl")).name
    shutil.rmtree(folder / "again")
