"""Make one CUDA toolkit folder, as nvcc and CMake's FindCUDAToolkit expect it, of the packages' ``nvidia/cu13``.

What the packages lack: lib64, the unversioned names of most libraries, the link-time stubs of the driver's libraries
(``-lcuda``, ``-lnvidia-ml``) and version.json.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from sm120_wheels import process
from sm120_wheels.errors import CommandError, Sm120Error
from sm120_wheels.toolchain.locks import LockEntry

#: Library of the driver → (the toolkit's header that declares it, the prefix of its functions).
_STUBS = {"cuda": ("cuda.h", "cu"), "nvidia-ml": ("nvml.h", "nvml")}

#: A kernel and a call of the runtime and of the driver: compiles, links and needs no GPU for either.
_PROOF = """
#include <cuda.h>
#include <cuda_runtime.h>
__global__ void k(float *x) { x[threadIdx.x] *= 2.0f; }
int main() { k<<<1, 32>>>(nullptr); return cuInit(0) == CUDA_SUCCESS ? (int)cudaGetLastError() : 0; }
"""


def assemble(site: Path, root: Path, entries: Sequence[LockEntry], *, cuda: str, host_compiler: Path) -> None:
    """Move what was installed into ``site`` to the toolkit folder ``root`` (not there yet) and complete it.

    All links are relative, so the folder may be moved. ``cuda`` is the release, ``13.0``; ``host_compiler`` makes
    the stubs.
    """
    packages = sorted((site / "nvidia").glob("cu[0-9]*"))
    if len(packages) != 1:
        names = ", ".join(p.name for p in packages) or "none"
        raise CommandError("the CUDA packages do not unpack into one folder", where=str(site), why=f"found: {names}")
    packages[0].rename(root)
    licences = root / "dist-info"
    licences.mkdir()
    for info in sorted(site.glob("*.dist-info")):
        info.rename(licences / info.name)
    shutil.rmtree(root / ".metadata", ignore_errors=True)
    for folder in (root / "bin", root / "nvvm" / "bin"):
        for program in folder.glob("*"):
            if program.is_file() and program.suffix not in (".profile", ".stub"):
                program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    complete_libraries(root)
    write_stubs(root, host_compiler)
    versions = {entry.name.removeprefix("nvidia-").replace("-", "_"): entry.version for entry in entries}
    sdk = {"name": "CUDA SDK", "version": versions.get("cuda_toolkit", cuda)}
    named = {name: {"name": name, "version": version} for name, version in versions.items()}
    (root / "version.json").write_text(json.dumps({"cuda": sdk, **named}, indent=2) + "\n", encoding="utf-8")


def complete_libraries(root: Path) -> list[Path]:
    """Add lib64 → lib and ``libX.so`` → the one ``libX.so.N``. Returns the links made."""
    made = []
    lib = root / "lib"
    lib.mkdir(exist_ok=True)
    if not (root / "lib64").exists():
        (root / "lib64").symlink_to("lib")
        made.append(root / "lib64")
    for library in sorted(lib.glob("*.so.*")):
        plain = lib / re.sub(r"\.so\..*$", ".so", library.name)
        if not plain.exists():
            plain.symlink_to(library.name)
            made.append(plain)
    return made


def stub_functions(header: str, prefix: str) -> list[str]:
    """Names of the functions that a driver header declares, and those its macros rename them to (``_v2``)."""
    return sorted(set(re.findall(rf"\b({prefix}[A-Z]\w*)\s*\(", header)) | _renamed(header, prefix))


def _renamed(header: str, prefix: str) -> set[str]:
    pairs = re.findall(rf"^\s*#\s*define\s+{prefix}[A-Z]\w*\s+({prefix}[A-Z]\w*)\s*$", header, re.M)
    return set(pairs)


def write_stubs(root: Path, host_compiler: Path) -> None:
    """Make lib/stubs/libcuda.so and libnvidia-ml.so: for linking only, their soname is the driver's own library."""
    stubs = root / "lib" / "stubs"
    stubs.mkdir(parents=True, exist_ok=True)
    for library, (header, prefix) in _STUBS.items():
        path = root / "include" / header
        if not path.is_file():
            continue
        names = stub_functions(path.read_text(encoding="utf-8", errors="replace"), prefix)
        source = "".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in names)
        target = stubs / f"lib{library}.so"
        argv: list[str | Path] = [host_compiler, "-shared", "-fPIC", "-x", "c", "-w", "-fno-builtin"]
        argv += [f"-Wl,-soname,lib{library}.so.1", "-o", target, "-"]
        process.run(argv, stdin=source.encode())


def prove_toolkit(root: Path, *, host_compiler: Path, workdir: Path, gencode: str) -> None:
    """Compile and link a small program with this toolkit and this compiler, without LD_LIBRARY_PATH.

    Raises :class:`CommandError` showing nvcc's first lines: better here than half an hour into a build.
    """
    source = workdir / "proof.cu"
    source.write_text(_PROOF, encoding="utf-8")
    argv: list[str | Path] = [root / "bin" / "nvcc", "-ccbin", host_compiler, gencode, source]
    argv += ["-o", workdir / "proof", "-lcuda"]
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    environment["TMPDIR"] = str(workdir)
    try:
        process.run(argv, cwd=workdir, env=environment)
    except Sm120Error as exc:
        raise CommandError(
            "the CUDA toolkit does not compile a small program with this host compiler",
            where=exc.where,
            why=exc.why or exc.what,
            hint="try another host compiler (--host-compiler); `sm120 doctor` shows what is there",
        ) from exc
