from __future__ import annotations

import ensurepip
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm120_wheels.errors import WheelInvalidError
from sm120_wheels.wheel import finish as finishing
from sm120_wheels.wheel.archive import open_wheel
from sm120_wheels.wheel.finish import FinishedWheel, FinishRequest, finish, read_build_record
from sm120_wheels.wheel.sbom import AppliedPatch, Source, Tool

VERSION = "0.1+cu130.torch211.sm120a"
EPOCH = 1_750_000_000


def finished(raw: Path, out: Path, **changes: Any) -> FinishedWheel:
    return finish(
        FinishRequest(**{"raw": raw, "out_dir": out, "version": VERSION, "source_date_epoch": EPOCH, **changes})
    )


def refused(raw: Path, out: Path, **changes: Any) -> WheelInvalidError:
    with pytest.raises(WheelInvalidError) as caught:
        finished(raw, out, **changes)
    assert caught.value.hint
    assert list(out.glob("**/*.whl")) == [], "a refusal leaves no wheel"
    assert list(out.iterdir()) == [], "a refusal leaves nothing at all"
    return caught.value


@pytest.fixture
def tiny(tmp_path: Path, raw_wheel: Any, extension: bytes) -> Path:
    files = {"tiny/__init__.py": b"from tiny._core import answer\n", "tiny/_core.abi3.so": extension}
    path: Path = raw_wheel(files=files).write(tmp_path / "raw")
    return path


def test_uv_installs_the_finished_wheel_and_its_extension_works(tiny: Path, tmp_path: Path) -> None:
    wheel = finished(tiny, tmp_path / "out", requires_dist=("packaging>=20",))
    venv = tmp_path / "venv"
    python = venv / "bin/python"
    uv: list[str | Path] = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, venv], check=True)
    install: list[str | Path] = [*uv, "pip", "install", "-q", "--offline", "--no-deps", "--python", python, wheel.path]
    subprocess.run(install, check=True)
    code = "import tiny, importlib.metadata as m; print(tiny.answer(), m.version('tiny'), m.requires('tiny'))"
    said = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said == f"42 {VERSION} ['packaging>=20']\n"
    subprocess.run([*uv, "pip", "uninstall", "-q", "--python", python, "tiny"], check=True)
    assert not list(venv.glob("lib/*/site-packages/tiny*")), "RECORD lists every file, or uninstalling leaves some"


def test_pip_itself_accepts_the_finished_wheel(tiny: Path, tmp_path: Path) -> None:
    wheel = finished(tiny, tmp_path / "out")
    (bundled,) = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
    pip: list[str | Path] = [
        sys.executable,
        bundled / "pip",
        "--isolated",
        "--disable-pip-version-check",
        "install",
        "--no-index",
    ]
    subprocess.run([*pip, "--no-deps", "--target", tmp_path / "site", wheel.path], check=True)
    said = subprocess.run(
        [sys.executable, "-c", "import tiny; print(tiny.answer())"],
        cwd=tmp_path / "site",
        check=True,
        capture_output=True,
    )
    assert said.stdout == b"42\n"


def test_version_is_the_same_in_filename_metadata_and_folder(tiny: Path, tmp_path: Path) -> None:
    wheel = finished(tiny, tmp_path / "out")
    assert wheel.filename.startswith(f"tiny-{VERSION}-cp310-abi3-manylinux")
    with open_wheel(wheel.path) as opened:  # refuses any disagreement
        opened.verify()
        assert opened.dist_info == f"tiny-{VERSION}.dist-info"
        assert opened.metadata["Version"] == VERSION
    assert wheel.version == VERSION
    assert wheel.distribution == "tiny"
    assert tiny.exists(), "the raw wheel is left as it was"


def test_the_platform_tag_comes_from_the_symbol_versions(tiny: Path, tmp_path: Path) -> None:
    wheel = finished(tiny, tmp_path / "out")
    assert all(t.startswith("cp310-abi3-manylinux") for t in wheel.tags)


def test_a_wheel_without_libraries_keeps_its_tag(tmp_path: Path, raw_wheel: Any) -> None:
    raw = raw_wheel(tag="py3-none-any").write(tmp_path / "raw")
    assert finished(raw, tmp_path / "out").filename == f"tiny-{VERSION}-py3-none-any.whl"


def test_a_library_in_a_wheel_tagged_any_gets_a_platform_tag(tmp_path: Path, raw_wheel: Any, extension: bytes) -> None:
    wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    raw = raw_wheel(tag="py3-none-any", wheel=wheel, files={"tiny/module.so": extension}).write(tmp_path / "raw")
    done = finished(raw, tmp_path / "out")
    assert all("manylinux" in tag for tag in done.tags)
    with open_wheel(done.path) as opened:
        assert "Root-Is-Purelib: false" in opened.wheel_text


def test_what_keeps_a_wheel_from_an_older_platform_names_library_and_symbol(
    tmp_path: Path, raw_wheel: Any, compile_library: Any
) -> None:
    """arc4random is of glibc 2.36; the library is stripped to its .dynsym."""
    source = "#include <stdlib.h>\nunsigned dice(void) { return arc4random(); }\n"
    files = {"tiny/dice.so": compile_library(source, strip=["--strip-all", "--remove-section=.comment"])}
    raw = raw_wheel(tag="py3-none-linux_x86_64", files=files).write(tmp_path / "raw")
    done = finished(raw, tmp_path / "out")
    assert done.tags == ("py3-none-manylinux_2_36_x86_64",)
    assert any("dice.so" in reason and "GLIBC_2.36" in reason for reason in done.platform_because)


def test_an_extension_outside_the_limited_api_is_refused_by_name(
    tmp_path: Path, raw_wheel: Any, compile_library: Any
) -> None:
    source = """
    #include <Python.h>
    static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_bad", "", -1, 0, 0, 0, 0, 0};
    PyMODINIT_FUNC PyInit__bad(void) { %s; return PyModule_Create(&module); }
    """
    files = {
        "tiny/_bad.abi3.so": compile_library(source % 'PyCode_NewEmpty("", "", 1)'),
        "tiny/_new.abi3.so": compile_library(source % "PyType_GetName(0)"),
    }
    error = refused(raw_wheel(files=files).write(tmp_path / "raw"), tmp_path / "out")
    assert error.what == "tiny/_bad.abi3.so does not honour the wheel's abi3 tag"
    assert "tiny/_bad.abi3.so: it uses what is outside the limited API: PyCode_NewEmpty" in error.why
    assert "tiny/_new.abi3.so: the tag promises Python 3.10, but it uses PyType_GetName (Python 3.11)" in error.why


def test_an_extension_for_one_python_inside_an_abi3_wheel_is_refused(
    tmp_path: Path, raw_wheel: Any, extension: bytes
) -> None:
    raw = raw_wheel(files={"tiny/_core.cpython-310-x86_64-linux-gnu.so": extension}).write(tmp_path / "raw")
    assert "only for cpython-310" in refused(raw, tmp_path / "out").why


def test_libraries_that_are_no_extensions_are_free_of_abi3(
    tmp_path: Path, raw_wheel: Any, compile_library: Any
) -> None:
    source = "extern void _PyObject_GC_New(void); void launch(void) { _PyObject_GC_New(); }\n"
    raw = raw_wheel(files={"tiny/jit.so": compile_library(source)}).write(tmp_path / "raw")
    assert "abi3" in finished(raw, tmp_path / "out").filename


def test_a_library_of_another_cuda_major_is_refused_by_name(
    tmp_path: Path, raw_wheel: Any, compile_library: Any, empty_library: Callable[[str], Path]
) -> None:
    stubs = empty_library("libcudart.so.12")
    linked = compile_library("int f;\n", "-Wl,--no-as-needed", f"-L{stubs}", "-l:libcudart.so.12")
    raw = raw_wheel(files={"tiny/ops.so": linked}).write(tmp_path / "raw")
    error = refused(raw, tmp_path / "out", expected_cuda_major=13)
    assert "another CUDA" in error.what
    assert "tiny/ops.so" in error.where
    assert "libcudart.so.12; the wheel is for CUDA 13" in error.why
    assert finished(raw, tmp_path / "out", expected_cuda_major=12).path.exists()


def test_search_paths_of_the_build_machine_are_refused(tmp_path: Path, raw_wheel: Any, compile_library: Any) -> None:
    linked = compile_library("int f;\n", "-Wl,-rpath,$ORIGIN/../torch/lib:/opt/build/lib:")
    raw = raw_wheel(files={"tiny/ops.so": linked}).write(tmp_path / "raw")
    error = refused(raw, tmp_path / "out")
    assert "build machine" in error.what
    assert "/opt/build/lib, '' (the current folder)" in error.why
    assert "$ORIGIN" not in error.why


def test_search_paths_relative_to_the_library_are_kept(tmp_path: Path, raw_wheel: Any, compile_library: Any) -> None:
    linked = compile_library("int f;\n", "-Wl,-rpath,$ORIGIN/../torch/lib")
    raw = raw_wheel(files={"tiny/ops.so": linked}).write(tmp_path / "raw")
    assert finished(raw, tmp_path / "out").path.exists()


def test_a_library_cut_in_half_is_refused_by_name(tmp_path: Path, raw_wheel: Any, extension: bytes) -> None:
    raw = raw_wheel(files={"tiny/_core.abi3.so": extension[: len(extension) // 2]}).write(tmp_path / "raw")
    error = refused(raw, tmp_path / "out")
    assert error.what == "tiny/_core.abi3.so is not a whole ELF file"
    assert "cut short" in error.why


def test_two_raw_wheels_of_one_content_give_the_same_bytes(tmp_path: Path, raw_wheel: Any, extension: bytes) -> None:
    files = {"tiny/__init__.py": b"", "tiny/_core.abi3.so": extension, "tiny-0.1.data/scripts/tool": b"#!python\n"}
    first = raw_wheel(files=files).write(tmp_path / "a")
    second = raw_wheel(files=files, date=(2026, 5, 6, 7, 8, 10), backwards=True, mode=0o600).write(tmp_path / "b")
    assert first.read_bytes() != second.read_bytes()
    done = [finished(raw, tmp_path / f"out{number}") for number, raw in enumerate((first, second))]
    assert done[0].path.read_bytes() == done[1].path.read_bytes()
    assert done[0].sha256 == done[1].sha256
    assert done[0].record_sha256 == done[1].record_sha256


def test_another_content_gives_another_record_digest(tmp_path: Path, raw_wheel: Any) -> None:
    raws = [raw_wheel(files={"a.py": text}).write(tmp_path / str(n)) for n, text in enumerate((b"1", b"2"))]
    digests = {finished(raw, tmp_path / "out").record_sha256 for raw in raws}
    assert len(digests) == 2


def test_the_archive_is_sorted_dated_by_the_epoch_and_ends_with_record(tiny: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(finished(tiny, tmp_path / "out").path) as archive:
        infos = archive.infolist()
    names = [i.filename for i in infos]
    own = [n for n in names if ".dist-info/" not in n]
    assert own == sorted(own) == names[: len(own)]
    assert names[-1].endswith("/RECORD")
    assert {i.date_time for i in infos} == {(2025, 6, 15, 15, 6, 40)}
    assert {i.external_attr >> 16 for i in infos} == {0o100644}


def test_an_epoch_before_the_zip_format_becomes_its_first_instant(tiny: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(finished(tiny, tmp_path / "out", source_date_epoch=0).path) as archive:
        assert {i.date_time for i in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_the_data_folder_and_scripts_move_with_the_version(tmp_path: Path, raw_wheel: Any) -> None:
    raw = raw_wheel(files={"tiny-0.1.data/scripts/tool": b"#!python\n"}, mode=0o755).write(tmp_path / "raw")
    with open_wheel(finished(raw, tmp_path / "out").path) as wheel:
        assert f"tiny-{VERSION}.data/scripts/tool" in wheel.members
        assert wheel.executable(f"tiny-{VERSION}.data/scripts/tool")


def test_build_record_sbom_and_requirements_are_inside(tiny: Path, tmp_path: Path) -> None:
    done = finished(
        tiny,
        tmp_path / "out",
        requires_dist=("torch~=2.11.0",),
        build_record={"recipe": "tiny", "content_key": "abc"},
        sources=(Source(name="tiny", url="https://example.org/tiny", revision="0" * 40, kind="upstream"),),
        patches=(AppliedPatch(name="tiny/0001-x.patch", sha256="a" * 64),),
        toolchain=(Tool(name="nvcc", version="13.0.88"),),
    )
    with open_wheel(done.path) as wheel:
        assert read_build_record(wheel) == {"content_key": "abc", "left_out": [], "recipe": "tiny"}
        assert wheel.metadata.get_all("Requires-Dist") == ["torch~=2.11.0"]
        sbom = json.loads(wheel.read(f"{wheel.dist_info}/{finishing.SBOM}"))
    assert sbom["components"][0]["version"] == "0" * 40


def test_a_partial_wheel_says_so_in_its_name_and_its_record(tiny: Path, tmp_path: Path) -> None:
    version = "0.1+cu130.torch211.partial.sm120a"
    done = finished(tiny, tmp_path / "out", version=version, left_out=("flash_ops", "a"))
    assert "partial" in done.filename
    with open_wheel(done.path) as wheel:
        record = read_build_record(wheel)
    assert record is not None
    assert record["left_out"] == ["a", "flash_ops"]


@pytest.mark.parametrize(("version", "missing"), [(VERSION, ("flash_ops",)), ("0.1+cu130.torch211.partial.sm120a", ())])
def test_a_label_that_disagrees_with_what_was_left_out_is_refused(
    tiny: Path, tmp_path: Path, version: str, missing: tuple[str, ...]
) -> None:
    (tmp_path / "out").mkdir()
    assert "disagree" in refused(tiny, tmp_path / "out", version=version, left_out=missing).what


def test_a_version_that_is_none_is_refused(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert "is not a version" in refused(tiny, tmp_path / "out", version="one").what


def test_a_raw_wheel_that_is_damaged_is_refused_before_anything_is_written(tiny: Path, tmp_path: Path) -> None:
    tiny.write_bytes(tiny.read_bytes()[:-40])
    assert "damaged" in refused(tiny, tmp_path / "out").what


def test_a_raw_wheel_whose_bytes_are_not_those_of_record_leaves_no_output(tmp_path: Path, raw_wheel: Any) -> None:
    raw = raw_wheel(record=lambda text: text.replace("__init__.py,sha256=", "__init__.py,sha256=A", 1))
    assert "not the one RECORD describes" in refused(raw.write(tmp_path / "raw"), tmp_path / "out").what
