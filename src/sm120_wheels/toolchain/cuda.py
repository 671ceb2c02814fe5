"""The CUDA toolkit of a build: assembled from the package index, or the system's, its version checked.

CUDA 13.0 and later are on the index whole. The index lacks nvcc's driver program for 12.x, so those come from the
system; nothing is installed into the system here.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sm120_wheels import files, process
from sm120_wheels.errors import CudaVersionError, Sm120Error, ToolMissingError, UnknownCudaError, near_misses
from sm120_wheels.toolchain import uv
from sm120_wheels.toolchain.assemble import assemble, prove_toolkit
from sm120_wheels.toolchain.hostcc import HostCompiler, find_host_compiler, read_limits
from sm120_wheels.toolchain.locks import LockEntry, LockRequest, choose, known_locks, lock_path

#: What a build needs of a toolkit: ``compiler`` (nvcc, runtime, headers) always; ``libs`` adds cuBLAS, cuSPARSE,
#: cuSOLVER, cuFFT, cuRAND, NVRTC and nvJitLink with their headers; ``tools`` adds cuobjdump and nvdisasm.
Need = Literal["compiler", "libs", "tools"]

#: Releases that only the system can supply.
SYSTEM_ONLY = ("12.8", "12.9")

_PROOF_ARCH = "-gencode=arch=compute_120a,code=sm_120a"
_VERSION = re.compile(r"release (\d+\.\d+), V(\d+\.\d+\.\d+)")
#: What each need must find in a system toolkit, below its root.
_PIECES: dict[Need, tuple[str, ...]] = {
    "compiler": ("bin/nvcc", "bin/ptxas", "nvvm/bin/cicc", "include/cuda_runtime.h", "lib64/libcudart.so"),
    "libs": ("include/cublas_v2.h", "include/cusparse.h", "include/cusolverDn.h", "lib64/libcublasLt.so"),
    "tools": ("bin/cuobjdump", "bin/nvdisasm"),
}


@dataclass(frozen=True, kw_only=True)
class CudaToolkit:
    """A toolkit in one folder, with the host compiler that its nvcc accepts. From the index it is shared: read only."""

    root: Path
    version: str
    """nvcc's own version, ``13.0.88``."""
    origin: Literal["pypi", "system"]
    key: str
    """What it is made of: the locked files, or the system's nvcc bytes."""
    host_compiler: HostCompiler
    packages: Mapping[str, str]
    """Locked package → version; empty for the system's."""

    @property
    def nvcc(self) -> Path:
        return self.root / "bin" / "nvcc"

    def record(self) -> dict[str, Any]:
        """What provenance keeps of it."""
        return {
            "version": self.version,
            "origin": self.origin,
            "key": self.key,
            "packages": dict(self.packages),
            "host_compiler": f"{self.host_compiler.kind} {self.host_compiler.version}",
        }


def index_releases() -> list[str]:
    """CUDA releases that the package index supplies, by our locks: ``['13.0', '13.2']``."""
    found = (re.fullmatch(r"cuda-(\d+\.\d+)", name) for name in known_locks())
    return sorted(match.group(1) for match in found if match)


def known_releases() -> list[str]:
    return sorted([*SYSTEM_ONLY, *index_releases()])


def ensure_cuda(
    version: str,
    *,
    cache_root: Path,
    offline: bool,
    source: Literal["auto", "pypi", "system"] = "auto",
    cuda_home: Path | None = None,
    need: Sequence[Need] = ("compiler", "libs"),
    host_compiler: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> CudaToolkit:
    """The toolkit of CUDA ``version`` (major.minor) with what ``need`` names.

    ``auto`` takes the index where it has the release, else the system. ``cuda_home`` means the system's at that
    place. Raises UnknownCudaError, CudaVersionError, ToolMissingError, HostCompilerError and what
    :func:`sm120_wheels.toolchain.uv.install` raises.
    """
    if version not in known_releases():
        raise UnknownCudaError(f"unknown CUDA version {version!r}", hint=near_misses(version, known_releases()))
    if source == "pypi" and version in SYSTEM_ONLY:
        raise _not_on_index(version, f"the package index has no whole CUDA {version}")
    if cuda_home is not None or source == "system" or version in SYSTEM_ONLY:
        return _system(version, cuda_home=cuda_home, need=need, host_compiler=host_compiler)
    return _from_index(
        version, cache_root=cache_root, offline=offline, need=need, host_compiler=host_compiler, on_line=on_line
    )


def cuda_locks(version: str, need: Sequence[Need]) -> tuple[LockRequest, ...]:
    """The locks that make up a toolkit from the index."""
    names = [f"cuda-{version}"]
    names += [f"cuda-{version}-libs"] if "libs" in need else []
    names += ["cuda-binary-tools"] if "tools" in need else []
    return tuple(LockRequest(path=lock_path(name)) for name in names)


def toolkit_key(entries: Sequence[LockEntry]) -> str:
    """Content key of an assembled toolkit: its locked files and the layout's number, raised when assembly changes."""
    return files.content_key({"layout": 1, "entries": [entry.line() for entry in entries]})


def _python_version() -> str:
    return ".".join(str(part) for part in sys.version_info[:3])


def _from_index(
    version: str,
    *,
    cache_root: Path,
    offline: bool,
    need: Sequence[Need],
    host_compiler: Path | None,
    on_line: Callable[[str], None] | None,
) -> CudaToolkit:
    locks = cuda_locks(version, need)
    entries = choose(locks, python_version=_python_version())
    key = toolkit_key(entries)
    root = cache_root / "cuda" / f"{version}-{key[:16]}"
    with files.locked(root.parent / f"{root.name}.lock", what=f"the CUDA toolkit {root.name}"):
        if not root.is_dir():
            with files.atomic_path(root) as aside:
                packages = aside.parent / "site"  # vanishes with ``aside`` if anything fails
                uv.install(
                    entries,
                    python=Path(sys.executable),
                    target=packages,
                    workdir=aside.parent,
                    locks=locks,
                    cache_root=cache_root,
                    offline=offline,
                    on_line=on_line,
                )
                compiler = _compiler_for(aside, host_compiler)
                assemble(packages, aside, entries, cuda=version, host_compiler=compiler.path)
                with tempfile.TemporaryDirectory(dir=aside.parent) as work:
                    prove_toolkit(aside, host_compiler=compiler.path, workdir=Path(work), gencode=_PROOF_ARCH)
    return CudaToolkit(
        root=root,
        version=checked_version(root / "bin" / "nvcc", version),
        origin="pypi",
        key=key,
        host_compiler=_compiler_for(root, host_compiler),
        packages={entry.name: entry.version for entry in entries},
    )


def _compiler_for(root: Path, explicit: Path | None) -> HostCompiler:
    include = root / "include"
    if not include.is_dir():  # not assembled yet: the packages' own folder
        include = next(iter(root.parent.glob("site/nvidia/cu[0-9]*/include")), include)
    nvcc = root.name.partition("-")[0]
    return find_host_compiler(explicit, limits=read_limits(include), nvcc_version=nvcc)


def nvcc_version(nvcc: Path) -> tuple[str, str]:
    """``("13.0", "13.0.88")`` as nvcc itself says. Raises :class:`ToolMissingError` where it does not run."""
    try:
        output = process.run([nvcc, "--version"]).output
    except Sm120Error as exc:
        raise ToolMissingError(f"{nvcc} does not run", why=exc.why or exc.what) from exc
    match = _VERSION.search(output)
    if match is None:
        raise ToolMissingError(f"{nvcc} does not say its version", why=output.strip())
    return match.group(1), match.group(2)


def checked_version(nvcc: Path, wanted: str) -> str:
    """nvcc's full version if its major.minor is ``wanted``, else :class:`CudaVersionError`."""
    release, full = nvcc_version(nvcc)
    if release != wanted:
        raise CudaVersionError(
            f"this nvcc is CUDA {release}, the build is for CUDA {wanted}",
            where=str(nvcc),
            why=f"nvcc --version says {full}",
            hint=f"set CUDA_HOME (or --cuda-home) to a CUDA {wanted} toolkit"
            + ("" if wanted in SYSTEM_ONLY else ", or leave both out: CUDA comes from the package index then")
            + f"; or build with --cuda {release}",
        )
    return full


def system_toolkits(environ: Mapping[str, str] | None = None) -> Iterator[tuple[Path, str]]:
    """Toolkit folders on this machine that hold an nvcc, with what named each, the preferred first."""
    environ = os.environ if environ is None else environ
    named = [(Path(environ[name]), name) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    versioned = sorted(Path("/usr/local").glob("cuda-[0-9]*.[0-9]*"), key=_release_number, reverse=True)
    named += [(path, str(path)) for path in [*versioned, Path("/usr/local/cuda")]]
    on_path = shutil.which("nvcc", path=environ.get("PATH", os.defpath))
    if on_path:
        named.append((Path(on_path).resolve().parent.parent, "nvcc on PATH"))
    seen: set[Path] = set()
    for root, source in named:
        # nvcc.profile stands beside a real nvcc, not beside a script of that name that starts one.
        if (root / "bin" / "nvcc.profile").is_file() and root.resolve() not in seen:
            seen.add(root.resolve())
            yield root, source


def _release_number(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.name))


def _system(version: str, *, cuda_home: Path | None, need: Sequence[Need], host_compiler: Path | None) -> CudaToolkit:
    if cuda_home is not None:
        if not (cuda_home / "bin" / "nvcc").is_file():
            raise ToolMissingError(
                f"no CUDA toolkit in {cuda_home}", why="it has no bin/nvcc", hint="check --cuda-home and CUDA_HOME"
            )
        root = cuda_home
    else:
        root = _choose_system(version)
    full = checked_version(root / "bin" / "nvcc", version)
    missing = missing_pieces(root, need)
    if missing:
        raise ToolMissingError(
            f"the CUDA toolkit in {root} is not whole",
            why=f"missing: {', '.join(missing)}",
            hint=_packages_hint(version),
        )
    return CudaToolkit(
        root=root,
        version=full,
        origin="system",
        key=files.content_key({"system": full, "nvcc": files.sha256_file(root / "bin" / "nvcc")}),
        host_compiler=find_host_compiler(host_compiler, limits=read_limits(root / "include"), nvcc_version=full),
        packages={},
    )


def _choose_system(version: str) -> Path:
    """CUDA_HOME if it is set (of whatever version: the check then says so), else the first of the right release."""
    found = list(system_toolkits())
    for root, source in found:
        if source in ("CUDA_HOME", "CUDA_PATH") or nvcc_version(root / "bin" / "nvcc")[0] == version:
            return root
    others = ", ".join(f"{nvcc_version(root / 'bin' / 'nvcc')[0]} in {root}" for root, _ in found)
    raise _not_on_index(version, f"found on this machine: {others or 'no CUDA toolkit'}")


def _not_on_index(version: str, why: str) -> ToolMissingError:
    reason = (
        f"\nthe index's nvcc package for CUDA {version} holds ptxas, but not the programs nvcc, cudafe++ and fatbinary"
        if version in SYSTEM_ONLY
        else ""
    )
    return ToolMissingError(
        f"there is no CUDA {version} toolkit to build with", why=why + reason, hint=_packages_hint(version)
    )


def _packages_hint(version: str) -> str:
    dashed = version.replace(".", "-")
    hint = (
        f"install NVIDIA's package cuda-toolkit-{dashed} (apt-get or dnf, from NVIDIA's repository), or unpack its"
        " runfile anywhere and set CUDA_HOME"
    )
    if version in SYSTEM_ONLY:
        return hint + f"; or build in the image nvidia/cuda:{version}.1-devel-ubuntu22.04"
    return hint + "; or leave out --cuda-from system and --cuda-home: the package index has this release"


def missing_pieces(root: Path, need: Sequence[Need]) -> list[str]:
    """Files that ``need`` asks for and the toolkit in ``root`` does not have, relative to it."""
    wanted = [piece for kind in ("compiler", *need) for piece in _PIECES[kind]]
    return [piece for piece in dict.fromkeys(wanted) if not (root / piece).exists()]
