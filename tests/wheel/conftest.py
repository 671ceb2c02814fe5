"""Small real wheels: packed by hand so that each can be wrong in one way, and libraries compiled by the host's gcc."""

from __future__ import annotations

import hashlib
import subprocess
import sysconfig
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sm120_wheels.wheel.archive import record_hash


@dataclass(kw_only=True)
class RawWheel:
    """A wheel as a careless backend packs it; every part can be replaced by a wrong one."""

    name: str = "tiny"
    version: str = "0.1"
    tag: str = "cp310-abi3-linux_x86_64"
    files: Mapping[str, bytes] = field(default_factory=lambda: {"tiny/__init__.py": b"answer = 42\n"})
    metadata: str | None = None
    wheel: str | None = None
    record: Callable[[str], str] = lambda text: text
    extra: Sequence[tuple[zipfile.ZipInfo, bytes]] = ()
    """Members that RECORD does not list."""
    date: tuple[int, int, int, int, int, int] = (2020, 1, 2, 3, 4, 6)
    backwards: bool = False
    mode: int = 0o644
    filename: str | None = None

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        info = f"{self.name}-{self.version}.dist-info"
        metadata = self.metadata or f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n"
        wheel = self.wheel or f"Wheel-Version: 1.0\nGenerator: by-hand 1\nRoot-Is-Purelib: false\nTag: {self.tag}\n"
        members = {**self.files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}
        rows = [f"{n},{record_hash(hashlib.sha256(d).digest())},{len(d)}" for n, d in members.items()]
        record = self.record("\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
        members[f"{info}/RECORD"] = record.encode()
        path = folder / (self.filename or f"{self.name}-{self.version}-{self.tag}.whl")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(members, reverse=self.backwards):
                entry = zipfile.ZipInfo(name, self.date)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = (0o100000 | self.mode) << 16
                archive.writestr(entry, members[name])
            for entry, data in self.extra:
                archive.writestr(entry, data)
        return path


@pytest.fixture
def raw_wheel() -> type[RawWheel]:
    return RawWheel


Compile = Callable[..., bytes]

EXTENSION = """
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", "", -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="session")
def compile_library(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles C source to a shared object and returns its bytes."""
    folder = tmp_path_factory.mktemp("compiled")

    def compiled(source: str, *options: str, strip: Sequence[str] = ()) -> bytes:
        code, target = folder / "code.c", folder / "code.so"
        code.write_text(source)
        include = sysconfig.get_paths()["include"]
        command: list[str | Path] = ["gcc", "-shared", "-fPIC", "-O1", f"-I{include}", code, "-o", target, *options]
        subprocess.run(command, check=True, cwd=folder)
        if strip:
            subprocess.run(["strip", *strip, target], check=True)
        return target.read_bytes()

    return compiled


@pytest.fixture(scope="session")
def empty_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a folder with an empty shared object of a given soname, to link against as ``-l:<soname>``."""
    folder = tmp_path_factory.mktemp("stubs")

    def made(soname: str) -> Path:
        code = folder / "empty.c"
        code.write_text("void sm120_stub(void) {}\n")
        subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", code, "-o", folder / soname], check=True)
        return folder

    return made


@pytest.fixture(scope="session")
def extension(compile_library: Compile) -> bytes:
    """A Python extension that keeps to the limited API of Python 3.10."""
    return compile_library(EXTENSION)
