"""What makes two builds of one plan, in two folders and at two times, give the same bytes.

Found with nvcc 13.0.88 and gcc 12.2 by compiling the same file in two folders and comparing section by section
(tests/wheel/test_reproducible.py repeats it):

- Paths: ``__FILE__`` (assert, TORCH_CHECK), also in device code, and debug information. gcc preprocesses the device's
  side too, so its ``-ffile-prefix-map`` covers both. Not covered: device line tables (``-lineinfo``, ``-G``), which
  take the paths from line markers that no option maps.
- Names of what has internal linkage (``_GLOBAL__N__<hash>_…``, ``__nv_static_…``, ``_INTERNAL_<hash>_…``) carry a
  checksum of the source file's resolved absolute path, symbolic links followed. nvcc passes that path to cudafe++ as
  ``--orig_src_path_name``; given a second time through ``-Xcudafe``, the last one counts. We give the object file's
  path below the build folder: it differs for each translation unit, also where one source is compiled twice. CMake
  puts the whole path of a source into that of its object where the source lies outside of the project (sgl-kernel takes
  two from flashinfer); of such a path we give what is below the sources.
- The process id, where a file defines nothing with external linkage: ``-frandom-seed`` replaces it. gcc's own
  generated names obey the same option, which nvcc passes on.
- Temporary files: their names hold nvcc's process id and end up in the object's FILE symbol. With ``-objtemp`` they
  are named after the object file. Not behind sccache: it runs nvcc's steps itself under stable names, and with
  ``-objtemp`` reports success and leaves no object (seen with 0.16.0 and nvcc 13.0). Builds with and without sccache
  differ in that symbol.
- Where gcc preprocesses: without optimisation, what it compiles in one go and what it compiles from preprocessed text
  differ by a ``nop`` where a macro holds a whole function body, as CUDA's crt/host_runtime.h has one. Behind sccache a
  builder gets preprocessed text and this machine the source, so there ``-no-integrated-cpp`` makes both the former.
- ``__DATE__`` and ``__TIME__``: gcc takes them from SOURCE_DATE_EPOCH.
- The linker: a build id is a digest of the content (``sha1``), and CMake must not write search paths of the build
  folder and replace them later, which leaves gaps as long as those paths were.
- ``--split-compile=N`` changes the machine code's bytes with N: a build must not derive N from the machine.
  ``--threads`` does not.

The options differ for each file, so they are added by a script in front of each compile (``stable-compile.sh``), where
also projects that ignore CMAKE_CUDA_FLAGS are reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LAUNCHER = Path(__file__).with_name("stable-compile.sh")
#: Since when nvcc itself is known to take -frandom-seed. An older one only hands it to gcc, and a file that defines
#: nothing with external linkage keeps a process id in its names.
_NVCC_SEED_SINCE = (13, 0)


@dataclass(frozen=True, kw_only=True)
class Reproducible:
    """How to run a build so that its bytes do not depend on folder, time or process ids."""

    launcher: tuple[str, ...]
    """Put before every compile, and before any other launcher (so that memory and cache see the final command)."""
    environment: Mapping[str, str]
    """For the whole build."""
    cmake_defines: Mapping[str, str]
    ldflags: tuple[str, ...] = field(default=("-Wl,--build-id=sha1",))


def reproducible_build(
    *,
    source_root: Path,
    build_root: Path,
    source_date_epoch: int,
    others: Mapping[Path, str] | None = None,
    nvcc: tuple[int, int] = (13, 0),
    before_includes: Sequence[Path] = (),
) -> Reproducible:
    """What to add to a build whose sources and objects lie below these folders.

    ``others``: more folders with sources (third-party sources, the toolkit, torch's headers) and the name that stands
    for each. ``nvcc``: its version. ``before_includes``: include folders
    that nvcc searches before every other one.
    """
    roots = {source_root: "src", build_root: "build", **(others or {})}
    # gcc takes the last map that fits, so the innermost folder must come last
    ordered = sorted(roots.items(), key=lambda item: len(item[0].parts))
    maps = [f"-ffile-prefix-map={folder}={name}" for folder, name in ordered]
    # quoted for the shell that nvcc starts gcc with; inside quotes it does not split at commas either
    nvcc_maps = [f'-Xcompiler=-ffile-prefix-map="{folder}"={name}' for folder, name in ordered]
    seed = "-frandom-seed" if nvcc >= _NVCC_SEED_SINCE else "-Xcompiler=-frandom-seed"
    return Reproducible(
        launcher=("/bin/sh", str(LAUNCHER)),
        environment={
            "SOURCE_DATE_EPOCH": str(source_date_epoch),
            "SM120_STABLE_BUILD_ROOT": str(build_root),
            "SM120_STABLE_IN_NAMES": str(source_root).replace(" ", "_"),  # as CMake writes it
            "SM120_STABLE_HOST_FLAGS": "\n".join(maps),
            "SM120_STABLE_NVCC_FLAGS": "\n".join(nvcc_maps),
            "SM120_STABLE_NVCC_SEED": seed,
            "SM120_STABLE_NVCC_FIRST": "\n".join(f"-I{folder}" for folder in before_includes),
        },
        cmake_defines={"CMAKE_BUILD_WITH_INSTALL_RPATH": "ON"},
    )
