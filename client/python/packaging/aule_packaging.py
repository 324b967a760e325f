# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
"""Builds the wheel and the sdist of aule: a PEP 517 backend of the standard library and cffi.

It knows how to compile libaule-client with CMake, how to turn its public headers into cffi's
declarations, and which platform tag the library deserves. It uses no network.

`python aule_packaging.py stage FOLDER LIBRARY` makes an importable package in FOLDER from links to
the sources and a library that is already built. Tests use it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent  # client/python, or the top of an sdist
PACKAGE = HERE / "aule"

# What CMake needs of the repository to build libaule-client alone (-DAULE_CLIENT_ONLY=ON).
SOURCES = ("CMakeLists.txt", "LICENSE", "base", "client/CMakeLists.txt", "client/aule-client.map",
           "client/aule-client.pc.in", "client/aule-config.cmake.in", "client/include",
           "client/src", "cmake", "schema")

# A wheel may link only these, which every Linux with glibc has.
SYSTEM_LIBRARIES = {"libc.so.6", "libpthread.so.0", "librt.so.1", "libm.so.6",
                    "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def sources() -> Path:
    """Return the folder with CMakeLists.txt: the repository, or `source` of an sdist."""
    inside = HERE / "source"
    return inside if inside.is_dir() else HERE.parent.parent


def version() -> str:
    """Return the version of CMake's project."""
    text = (sources() / "CMakeLists.txt").read_text()
    found = re.search(r"project\(aule VERSION (\S+)", text)
    if not found:
        raise RuntimeError("CMakeLists.txt names no version")
    return found.group(1)


# ---- the declarations ----

def headers() -> list[Path]:
    """Return the public headers."""
    return sorted((sources() / "client/include/aule").glob("*.h"))


def declarations() -> str:
    """Return all declarations of the public headers, in the form that cffi takes.

    The preprocessor reads the headers without the system's. Inline functions go: bindings call
    the functions named _sized.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in ("stdbool.h", "stddef.h", "stdint.h"):
            Path(folder, name).touch()
        lines = [f"#include <aule/{path.name}>\n" for path in headers()]
        command = [os.environ.get("CC", "cc"), "-E", "-P", "-nostdinc", "-U__GNUC__", "-I", folder,
                   "-I", str(sources() / "client/include"), "-x", "c", "-"]
        text = subprocess.run(command, input="".join(lines), capture_output=True, text=True,
                              check=True).stdout
    text = re.sub(r"static inline [^;{]*\{[^}]*\}", "", text)
    text = re.sub(r"static inline [^;{]*;", "", text)
    numbers = []
    for path in headers():
        numbers += re.findall(r"^#define (AULE_VERSION_\w+) (\d+)$", path.read_text(), re.M)
    return text + "".join(f"\n#define {name} {value}" for name, value in numbers) + "\n"


def write_declarations(folder: Path) -> None:
    """Write _cffi.py, the compiled declarations."""
    from cffi import FFI

    ffi = FFI()
    ffi.set_source("aule._cffi", None)
    ffi.cdef(declarations())
    ffi.emit_python_code(str(folder / "_cffi.py"))


# ---- the library ----

def build_library(folder: Path) -> Path:
    """Compile libaule-client in `folder` and return the file."""
    configure = ["cmake", "-S", str(sources()), "-B", str(folder), "-DAULE_CLIENT_ONLY=ON",
                 "-DCMAKE_BUILD_TYPE=Release", "-DAULE_TESTS=OFF"]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", str(folder), "--target", "aule-client", "--parallel"],
                   check=True, stdout=sys.stderr)
    return (folder / "client/libaule-client.so").resolve()


def platform_tag(library: Path) -> str:
    """Return the tag of the oldest glibc that has every symbol that `library` needs.

    RuntimeError: the library links another one, which a bare system need not have.
    """
    dynamic = subprocess.run(["readelf", "-d", "-V", str(library)], capture_output=True, text=True,
                             check=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    if needed - SYSTEM_LIBRARIES:
        raise RuntimeError(f"{library.name} links {sorted(needed - SYSTEM_LIBRARIES)}, which a "
                           "wheel cannot expect of a system")
    minor = max(int(number) for number in re.findall(r"GLIBC_2\.(\d+)", dynamic))
    return f"manylinux_2_{max(minor, 17)}_{platform.machine()}"


# ---- wheel ----

def description() -> str:
    """Return the package's description: docs/python.md, which an sdist carries as README.md."""
    for path in (HERE / "README.md", sources() / "docs/python.md"):
        if path.is_file():
            return path.read_text()
    return ""


def _project() -> dict[str, list[str]]:
    """Read the lists of pyproject.toml that the metadata repeats. Python 3.10 has no tomllib."""
    text = (HERE / "pyproject.toml").read_text()
    lists = re.findall(r"^(\w+) = \[(.*)\]$", text, re.M)
    return {name: re.findall(r'"([^"]+)"', items) for name, items in lists}


def metadata() -> str:
    """Return METADATA of the wheel and PKG-INFO of the sdist."""
    lists = _project()
    lines = ["Metadata-Version: 2.1", "Name: aule", f"Version: {version()}",
             "Summary: Attention and one paged KV cache that several processes share",
             "License: Apache-2.0", "Requires-Python: >=3.10",
             "Description-Content-Type: text/markdown"]
    lines += [f"Requires-Dist: {item}" for item in lists["dependencies"]]
    for extra in ("torch", "transformers", "dtypes"):
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {item}; extra == "{extra}"' for item in lists[extra]]
    return "\n".join(lines) + "\n\n" + description()


def _package_files(folder: Path) -> dict[str, bytes]:
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            files[f"aule/{path.relative_to(folder)}"] = path.read_bytes()
    return files


def build_wheel(wheel_directory: str, config_settings: object = None,
                metadata_directory: object = None) -> str:
    """PEP 517: build the wheel and return its file name."""
    del config_settings, metadata_directory
    with tempfile.TemporaryDirectory() as folder:
        library = build_library(Path(folder, "build"))
        package = Path(folder, "aule")
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "_lib"))
        write_declarations(package)
        (package / "_lib").mkdir()
        subprocess.run(["strip", "--strip-unneeded", "-o",
                        str(package / "_lib/libaule-client.so"), str(library)], check=True)
        files = _package_files(package)
        tag = f"py3-none-{platform_tag(library)}"
    return _write_wheel(Path(wheel_directory), tag, files)


def _write_wheel(out: Path, tag: str, files: dict[str, bytes]) -> str:
    info = f"aule-{version()}.dist-info"
    files[f"{info}/METADATA"] = metadata().encode()
    files[f"{info}/WHEEL"] = ("Wheel-Version: 1.0\nGenerator: aule_packaging\n"
                              f"Root-Is-Purelib: false\nTag: {tag}\n").encode()
    files[f"{info}/licenses/LICENSE"] = (sources() / "LICENSE").read_bytes()
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n"
                     for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    name = f"aule-{version()}-{tag}.whl"
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0))  # the same files, the same bytes
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return name


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


# ---- sdist ----

def build_sdist(sdist_directory: str, config_settings: object = None) -> str:
    """PEP 517: write the sdist, which has the sources of libaule-client, and return its name."""
    del config_settings
    top = f"aule-{version()}"
    name = f"{top}.tar.gz"
    Path(sdist_directory).mkdir(parents=True, exist_ok=True)
    with tarfile.open(Path(sdist_directory, name), "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for part in ("aule", "packaging", "pyproject.toml"):
            archive.add(HERE / part, f"{top}/{part}", filter=_only_sources)
        for part in SOURCES:
            archive.add(sources() / part, f"{top}/source/{part}", filter=_only_sources)
        for path, text in (("PKG-INFO", metadata()), ("README.md", description())):
            entry = tarfile.TarInfo(f"{top}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return name


def _only_sources(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(entry.name).parts
    return None if {"__pycache__", "_lib", "_cffi.py"} & set(parts) else entry


# ---- for tests ----

def stage(folder: Path, library: Path) -> None:
    """Make FOLDER/aule: links to the sources and to `library`, and the declarations."""
    package = folder / "aule"
    shutil.rmtree(package, ignore_errors=True)
    for path in sorted(PACKAGE.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            link = package / path.relative_to(PACKAGE)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    write_declarations(package)
    (package / "_lib").mkdir()
    (package / "_lib/libaule-client.so").symlink_to(library.resolve())


def main() -> None:
    """Run one command of a shell."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "stage" and len(sys.argv) == 4:
        stage(Path(sys.argv[2]), Path(sys.argv[3]))
    elif command == "wheel" and len(sys.argv) == 3:
        print(build_wheel(sys.argv[2]))
        print(build_sdist(sys.argv[2]))
    else:
        sys.exit("usage: aule_packaging.py stage FOLDER LIBRARY | wheel FOLDER")


if __name__ == "__main__":
    main()
