"""A build's compiles through ccache: hits elsewhere with the same bytes, and keys that leave nothing out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sm120_wheels.compile.cache.ccache import find
from sm120_wheels.compile.cache.front import NAMES_DEFINE
from sm120_wheels.compile.isolation import no_network_prefix
from sm120_wheels.compile.present import Present
from sm120_wheels.errors import ToolMissingError
from tests.compile.building import Runtime
from tests.compile.cache.building import Tree

pytestmark = pytest.mark.skipif(isinstance(find(), str), reason=f"not run: {find()}")

HOST = '#include "shared.h"\nconst char *where() { return __FILE__; }\nint value() { return VALUE; }\n'
SHARED = "#define VALUE 3\n"


def test_a_hit_in_another_folder_has_the_same_bytes_and_asks_for_no_memory(runtime: Runtime, tmp_path: Path) -> None:
    first = Tree(top=tmp_path / "one").write(a__cpp=HOST, shared__h=SHARED)
    second = Tree(top=tmp_path / "another, and longer").write(a__cpp=HOST, shared__h=SHARED)
    plain = first.build("a.cpp", choice="off")
    cold, warm = first.build("a.cpp"), second.build("a.cpp")
    assert (cold.cache.hits, cold.cache.misses, len(cold.summary.units)) == (0, 1, 1)
    assert (warm.cache.hits, warm.cache.misses, len(warm.summary.units)) == (1, 0, 0)
    assert plain.objects == cold.objects == warm.objects
    assert warm.summary.lines() == [
        "nothing was compiled",
        f"compiler cache: {warm.cache.tool}, 1 of 1 compiles were there already",
    ]
    assert warm.summary.to_json()["cache"]["hit_rate"] == 1.0
    assert cold.summary.units[0].source == str(first.sources / "a.cpp"), "named as it lies, not by a link"


def test_what_an_earlier_try_found_or_compiled_is_known_to_the_next(runtime: Runtime, tmp_path: Path) -> None:
    Tree(top=tmp_path / "one").write(a__cpp=HOST, shared__h=SHARED).build("a.cpp")
    again = Tree(top=tmp_path / "two").write(a__cpp=HOST, b__cpp=HOST + "int more;", shared__h=SHARED)
    assert (again.build("a.cpp").cache.hits, again.build("b.cpp").cache.hits) == (1, 0)
    work = again.top / "work"
    there = Present(work, work / "compile-next.jsonl").sources()
    assert {Path(source).name for source in there} == {"a.cpp", "b.cpp"}


def test_an_object_named_after_the_whole_path_of_its_source_hits_in_another_folder(
    runtime: Runtime, tmp_path: Path
) -> None:
    files = {"a__cpp": f"namespace {{ struct At {{ At(); }} at; At::At() {{}} }}\n{HOST}", "shared__h": SHARED}
    cold, warm = (
        Tree(top=tmp_path / name).write(**files).build("a.cpp", outside=True) for name in ("one", "another, and longer")
    )
    assert (cold.cache.misses, warm.cache.hits) == (1, 1)
    assert cold.objects == warm.objects


def test_a_changed_header_compiles_only_what_reads_it(runtime: Runtime, tmp_path: Path) -> None:
    files = {"a__cpp": HOST, "b__cpp": "int b() { return 1; }\n", "shared__h": SHARED}
    Tree(top=tmp_path / "one").write(**files).build("a.cpp", "b.cpp")
    patched = Tree(top=tmp_path / "two").write(**files | {"shared__h": "#define VALUE 4\n"}).build("a.cpp", "b.cpp")
    assert (patched.cache.hits, patched.cache.misses) == (1, 1)
    assert [Path(unit.source).name for unit in patched.summary.units] == ["a.cpp"]


def test_a_new_header_that_hides_another_one_is_seen(runtime: Runtime, tmp_path: Path) -> None:
    """ccache remembers which headers were read, not which ones were looked for in vain."""
    source = '#if __has_include("extra.h")\n#include "extra.h"\n#else\n#define VALUE 1\n#endif\nint v = VALUE;\n'
    before = Tree(top=tmp_path / "one").write(a__cpp=source).build("a.cpp")
    after = Tree(top=tmp_path / "two").write(a__cpp=source, extra__h="#define VALUE 2\n").build("a.cpp")
    assert after.cache.hits == 0
    assert after.objects != before.objects
    unrelated = Tree(top=tmp_path / "three").write(a__cpp=source, unrelated__h="").build("a.cpp")
    assert unrelated.cache.hits == 1, "found by its preprocessed text"
    assert unrelated.objects == before.objects


def test_the_time_that_is_compiled_in_is_part_of_the_key(runtime: Runtime, tmp_path: Path) -> None:
    source = "const char *when() { return __DATE__; }\n"
    first = Tree(top=tmp_path / "one").write(a__cpp=source).build("a.cpp")
    later = Tree(top=tmp_path / "two", epoch=1_800_000_000).write(a__cpp=source)
    assert later.build("a.cpp").objects != first.objects
    assert later.build("a.cpp", choice="off").objects == later.build("a.cpp").objects


def test_the_dependency_file_of_a_hit_names_files_that_are_there(runtime: Runtime, tmp_path: Path) -> None:
    Tree(top=tmp_path / "one").write(a__cpp=HOST, shared__h=SHARED).build("a.cpp")
    tree = Tree(top=tmp_path / "two").write(a__cpp=HOST, shared__h=SHARED)
    tree.build("a.cpp")
    shutil.rmtree(tmp_path / "one")
    text = (tree.top / "objects" / "a.cpp.d").read_text().replace("\\\n", " ")
    read = text.partition(":")[2].split()
    assert all((tree.top / "objects" / name).is_file() for name in read)
    assert any((tree.top / "objects" / name).samefile(tree.sources / "shared.h") for name in read)


def test_another_compiler_is_another_key(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is the same program; one of its parts is not."""
    real = shutil.which("g++")
    driver = tmp_path / "bin" / "g++"
    driver.parent.mkdir()
    part = tmp_path / "cc1plus"
    driver.write_text(f'#!/bin/sh\ncase "$1" in -print-prog-name=cc1plus) echo {part} ;; *) exec {real} "$@" ;; esac\n')
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}:{os.environ['PATH']}")
    counts: list[int] = []
    for text in ("first", "second", "first"):
        part.write_text(text)
        tree = Tree(top=tmp_path / f"t{len(counts)}").write(a__cpp=HOST, shared__h=SHARED)
        counts.append(tree.build("a.cpp").cache.hits)
    assert counts == [0, 0, 1]


def test_another_cuda_is_another_key_and_the_same_one_elsewhere_is_not(runtime: Runtime, tmp_path: Path) -> None:
    """A part of nvcc changes; nvcc itself, which is what caches look at, does not."""
    hits: list[int] = []
    for folder, cicc in (("a", "13.0"), ("b, elsewhere", "13.0"), ("a", "13.1"), ("a", "13.0")):
        cuda = tmp_path / folder
        for name, text in {"bin/nvcc": "", "bin/ptxas": "", "nvvm/bin/cicc": cicc}.items():
            (cuda / name).parent.mkdir(parents=True, exist_ok=True)
            (cuda / name).write_text(text)
        tree = Tree(top=tmp_path / f"t{len(hits)}", cuda=cuda).write(a__cpp=HOST, shared__h=SHARED)
        hits.append(tree.build("a.cpp").cache.hits)
    assert hits == [0, 1, 0, 1]


def test_another_torch_compiles_what_reads_the_headers_that_changed(runtime: Runtime, tmp_path: Path) -> None:
    files = {"a__cpp": "#include <torch/all.h>\nint v = TORCH;\n", "b__cpp": "int b() { return 1; }\n"}
    counts: list[tuple[int, list[str]]] = []
    for folder, torch in (("one", "211"), ("two, far", "211"), ("one", "212")):
        header = tmp_path / folder / "include/torch/all.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(f"#define TORCH {torch}\n")
        tree = Tree(top=tmp_path / f"t{len(counts)}", environment=tmp_path / folder).write(**files)
        built = tree.build("a.cpp", "b.cpp", options=("-isystem", str(tmp_path / folder / "include")))
        counts.append((built.cache.hits, sorted(Path(unit.source).name for unit in built.summary.units)))
    assert counts == [(0, ["a.cpp", "b.cpp"]), (2, []), (1, ["a.cpp"])]


def test_a_compile_that_fails_fails_with_the_compilers_words(
    runtime: Runtime, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = Tree(top=tmp_path / "one").write(a__cpp="int a( { }\n")
    with pytest.raises(subprocess.CalledProcessError):
        tree.build("a.cpp")
    said = capfd.readouterr().err
    assert "error:" in said
    assert "a.cpp" in said
    assert NAMES_DEFINE not in said


def _entries(tmp_path: Path) -> list[Path]:
    """The objects and lists of headers; ccache 4.7 puts a letter behind their names, 4.14 none."""
    found = (tmp_path / "cache/ccache/objects").rglob("*")
    return sorted(p for p in found if p.is_file() and re.fullmatch(r"[0-9a-z]{25,}[RM]?", p.name))


def test_a_damaged_entry_is_compiled_again(runtime: Runtime, tmp_path: Path) -> None:
    tree = Tree(top=tmp_path / "one").write(a__cpp=HOST, shared__h=SHARED)
    good = tree.build("a.cpp")
    entries = _entries(tmp_path)
    assert len(entries) == 2, "the list of headers and the object"
    for entry in entries:
        whole = entry.read_bytes()
        place = len(whole) * 2 // 3
        turned = whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :]
        for damage in (turned, whole[:-9], b"", bytes(len(whole))):
            entry.write_bytes(damage)
            assert tree.build("a.cpp").objects == good.objects, entry.name
        entry.write_bytes(whole)
        assert tree.build("a.cpp").cache.hits == 1


def test_a_cache_that_cannot_be_written_stops_no_compile(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tree = Tree(top=tmp_path / "one", environ={"CCACHE_DIR": str(tmp_path / "file" / "below")})
    built = tree.write(a__cpp=HOST, shared__h=SHARED).build("a.cpp")
    assert built.cache.tool == "none"
    assert built.said == [f"compiling without a compiler cache: {tmp_path}/file/below: Not a directory"]


def test_off_leaves_the_launcher_alone_and_says_so(runtime: Runtime, tmp_path: Path) -> None:
    built = Tree(top=tmp_path / "one").write(a__cpp=HOST, shared__h=SHARED).build("a.cpp", choice="off")
    assert built.cache.lines() == ["compiler cache: none (switched off)"]
    assert not (tmp_path / "cache/ccache").exists()


def test_without_ccache_auto_compiles_and_asking_for_it_is_an_error(runtime: Runtime, tmp_path: Path) -> None:
    tree = Tree(top=tmp_path / "one", environ={"PATH": str(tmp_path)}).write(a__cpp=HOST, shared__h=SHARED)
    assert tree.build("a.cpp", choice="auto").cache.lines() == ["compiler cache: none (ccache is not installed)"]
    with pytest.raises(ToolMissingError, match="ccache is not installed") as caught:
        tree.build("a.cpp", choice="ccache")
    assert caught.value.exit_code == ToolMissingError.exit_code
    assert "--compiler-cache off" in caught.value.hint


def test_an_old_ccache_is_not_used(tmp_path: Path) -> None:
    program = tmp_path / "ccache"
    program.write_text("#!/bin/sh\necho ccache version 4.5.1\n")
    program.chmod(0o755)
    assert find({"PATH": str(tmp_path)}) == "ccache 4.5.1 is older than 4.7"


def test_it_works_without_network(runtime: Runtime, tmp_path: Path) -> None:
    if not no_network_prefix():
        pytest.skip("not run: no network namespaces here")
    tree = Tree(top=tmp_path / "one").write(a__cpp=HOST, shared__h=SHARED)
    assert [tree.build("a.cpp", prefix=no_network_prefix()).cache.hits for _ in range(2)] == [0, 1]
