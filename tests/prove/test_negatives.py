"""What is wrong on purpose: each fault is caught for its own reason, and what is sound beside it passes."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm120_wheels.arch import Arch
from sm120_wheels.backends import machine_code
from sm120_wheels.elf import Elf
from sm120_wheels.errors import AuditFailedError
from sm120_wheels.prove.cubin import Cubin
from sm120_wheels.prove.fatbin import entries_of_elf
from sm120_wheels.wheel.archive import record_hash
from tests.prove.conftest import Said, Samples
from tests.wheel.conftest import RawWheel

Run = Callable[..., Said]
SYMBOL_OF_GLIBC_2_36 = "#include <stdlib.h>\nunsigned dice(void) { return arc4random(); }\n"


def with_one_byte_changed(library: bytes) -> bytes:
    """Another byte in the fourth instruction of the kernel ``add``, as a flipped bit on a disk would be."""
    entry = max(entries_of_elf(Elf(library, "")), key=lambda e: e.stored_bytes)
    kernel = next(k for k in Cubin(entry.payload(library, ""), "").kernels if "add" in k.name)
    data = bytearray(library)
    data[library.index(bytes(kernel.code)) + 16 * 3 + 4] ^= 1
    return bytes(data)


@pytest.mark.cuda
@pytest.mark.network
@pytest.mark.parametrize(
    ("sound", "faulty", "options", "code", "reason"),
    [
        pytest.param(
            "libmulti.so", "libhopper.so", ("--target=12.0",), 66, "compute capability 12.0: does not run",
            id="sm_120 missing",
        ),
        pytest.param(
            "libfamily.so", "libonly.so", ("--target=12.1",), 66, "compute capability 12.1: does not run",
            id="12.0a offered as 12.1",
        ),
        pytest.param(
            "libmulti.so", "libonly.so", ("--expect=12.0a,9.0",), 61, "sm_90 was asked for and is missing",
            id="an architecture dropped by the build",
        ),
        pytest.param(
            "libonly.so", "libtraps.so", ("--target=12.0",), 65, "a guard says: Attempting to use TMEM allocation",
            id="a trap",
        ),
        pytest.param(
            "libonly.so", "libtraps.so", ("--target=12.0", "--allow-traps=none.toml"), 61,
            "a kernel is a trap on 12.0 and not on the list of known ones",
            id="a trap that is not on the list",
        ),
    ],
)  # fmt: skip
def test_gpu_code_that_is_not_what_was_asked_for(
    samples: Samples, sm120: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    sound: str, faulty: str, options: tuple[str, ...], code: int, reason: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("none.toml").write_text("edition = 1\n")
    wheels = [
        RawWheel(name=name, files={"m/lib.so": samples[sample].read_bytes()}).write(tmp_path)
        for name, sample in (("sound", sound), ("faulty", faulty))
    ]
    assert sm120("audit", wheels[0], *options).code == 0
    said = sm120("audit", wheels[1], *options)
    assert said.code == code
    assert reason in " ".join(said.out.split())


@pytest.mark.cuda
@pytest.mark.network
def test_a_build_that_dropped_an_architecture_is_stopped_before_its_wheel_is_finished(
    samples: Samples, packed: Callable[..., Path]
) -> None:
    wheel = packed({"tiny/libonly.so": samples["libonly.so"]})
    asked, dropped = Arch.parse("12.0a"), Arch.parse("9.0")
    assert machine_code([wheel], wanted=[asked]) == ["sm_120a"]
    with pytest.raises(AuditFailedError, match="the build made no machine code for sm_90") as refused:
        machine_code([wheel], wanted=[asked, dropped])
    assert refused.value.why == "it was asked for, and there is code for sm_120a"
    assert machine_code([packed({"tiny/__init__.py": b""}, name="pure")], wanted=[asked]) == []


@pytest.mark.cuda
@pytest.mark.network
def test_one_byte_of_machine_code_that_changed(samples: Samples, sm120: Run, tmp_path: Path) -> None:
    library = samples["libonly.so"].read_bytes()
    wheels = [
        RawWheel(name=name, files={"m/lib.so": data}).write(tmp_path)
        for name, data in (("sound", library), ("faulty", with_one_byte_changed(library)))
    ]
    assert sm120("equivalence", wheels[0], samples["elsewhere.o"], "--arch=120a").code == 0
    said = sm120("equivalence", wheels[1], samples["elsewhere.o"], "--arch=120a")
    assert said.code == 62
    assert "1 kernels differ, 0 are missing" in said.err
    assert "add: code" in " ".join(said.out.split())


def test_a_symbol_newer_than_the_platform_tag_in_a_library_without_any_other_table(
    sm120: Run, tmp_path: Path, compile_library: Any
) -> None:
    library = bytearray(compile_library(SYMBOL_OF_GLIBC_2_36, strip=["--strip-all", "--remove-section=.comment"]))
    library[40:48] = bytes(8)  # no section headers either, as strip --strip-section-headers leaves it
    library[60:64] = bytes(4)

    def audited(tag: str) -> Said:
        wheel = RawWheel(tag=f"py3-none-{tag}", files={"m/lib.so": bytes(library)}).write(tmp_path)
        return sm120("audit", wheel, "--strict")

    assert audited("manylinux_2_36_x86_64").code == 0
    said = audited("manylinux_2_28_x86_64")
    assert said.code == 61
    assert "m/lib.so asks libc.so.6 for GLIBC_2.36, newer than manylinux_2_28_x86_64" in " ".join(said.out.split())


def test_a_cuda_major_in_needed_that_is_not_the_labels(
    sm120: Run, tmp_path: Path, compile_library: Any, empty_library: Callable[[str], Path]
) -> None:
    stubs = empty_library("libcudart.so.12")
    library = compile_library("int f;\n", "-Wl,--no-as-needed", f"-L{stubs}", "-l:libcudart.so.12")
    files = {"m/lib.so": library}
    assert sm120("audit", RawWheel(version="0.1+cu128.torch29", files=files).write(tmp_path)).code == 0
    said = sm120("audit", RawWheel(version="0.1+cu130.torch211", files=files).write(tmp_path))
    assert said.code == 61
    assert "m/lib.so needs CUDA 12, the wheel is labelled CUDA 13" in said.err


def truncated(folder: Path, library: bytes) -> Path:
    path = RawWheel(files={"m/lib.so": library}).write(folder)
    path.write_bytes(path.read_bytes()[:-200])
    return path


def misrecorded(folder: Path, library: bytes) -> Path:
    ours, other = (record_hash(hashlib.sha256(data).digest()) for data in (library, b"another file"))
    return RawWheel(files={"m/lib.so": library}, record=lambda text: text.replace(ours, other)).write(folder)


def escaping(folder: Path, library: bytes) -> Path:
    return RawWheel(files={"m/lib.so": library}, extra=[(zipfile.ZipInfo("../../escaped.so"), library)]).write(folder)


def renamed(folder: Path, library: bytes) -> Path:
    return RawWheel(files={"m/lib.so": library}, metadata="Metadata-Version: 2.1\nName: tiny\nVersion: 9\n").write(
        folder
    )


def halved(folder: Path, library: bytes) -> Path:
    return RawWheel(files={"m/lib.so": library[: len(library) // 2]}).write(folder)


def bomb(folder: Path, library: bytes) -> Path:
    return RawWheel(files={"m/lib.so": library + bytes(80 << 20)}).write(folder)


@pytest.mark.parametrize("command", ["audit", "equivalence"])
@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (truncated, "is a damaged zip archive"),
        (misrecorded, "has a member that is not the one RECORD describes"),
        (escaping, "has a member with an unsafe name"),
        (renamed, "has another version inside than outside"),
        (halved, "is damaged or cut short"),
        (bomb, "looks like a zip bomb"),
    ],
)
def test_bad_input_is_one_clear_error_and_leaves_nothing_behind(
    sm120: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: bytes,
    command: str, damaged: Callable[[Path, bytes], Path], message: str,
) -> None:  # fmt: skip
    room, temporary = tmp_path / "a/b/c", tmp_path / "temporary"
    room.mkdir(parents=True)
    temporary.mkdir()
    wheel = damaged(room, extension)
    monkeypatch.chdir(room)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = sorted(tmp_path.rglob("*"))
    said = sm120(command, wheel, *((wheel, "--arch=12.0a") if command == "equivalence" else ()))
    assert said.code == 60
    errors = [line for line in said.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert message in errors[0] or (damaged is halved and "is not a whole ELF file" in errors[0])
    assert wheel.name in said.err
    assert sorted(tmp_path.rglob("*")) == before
