"""A build's compiles through ccache: hits elsewhere, the same bytes, true keys."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.compile.building import Runtime
from tests.compile.cache.building import Tree

pytestmark = pytest.mark.skipif(shutil.which("ccache") is None, reason="not run: ccache is not installed")

HOST = '#include "shared.h"\nconst char *where() { return __FILE__; }\nint value() { return VALUE; }\n'


def test_a_hit_in_another_folder_has_the_same_bytes_and_asks_for_no_memory(runtime: Runtime, tmp_path: Path) -> None:
    first = Tree(top=tmp_path / "one").write(a__cpp=HOST, shared__h="#define VALUE 3\n")
    second = Tree(top=tmp_path / "another, and longer").write(a__cpp=HOST, shared__h="#define VALUE 3\n")
    plain = first.build("a.cpp", choice="off")
    cold, warm = first.build("a.cpp"), second.build("a.cpp")
    assert (cold.cache.hits, cold.cache.misses, len(cold.summary.units)) == (0, 1, 1)
    assert (warm.cache.hits, warm.cache.misses, len(warm.summary.units)) == (1, 0, 0)
    assert plain.objects == cold.objects == warm.objects
    assert warm.summary.lines()[-1].startswith("compiler cache: ccache 4")
    assert warm.summary.to_json()["cache"]["hit_rate"] == 1.0
