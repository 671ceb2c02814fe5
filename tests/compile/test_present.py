"""What a build need not compile: known from the folder where its sessions write."""

from __future__ import annotations

import json
from pathlib import Path

from sm120_wheels.compile.present import Present


def records(path: Path, *rows: tuple[str, int]) -> Path:
    lines = [{"kind": "end", "uid": s, "attempt": 0, "source": s, "exit": code} for s, code in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_what_earlier_tries_compiled_and_what_ccache_found_is_there(tmp_path: Path) -> None:
    records(tmp_path / "compile-1.jsonl", ("/w/k/a.cu", 0), ("/w/k/broken.cu", 1))
    own = records(tmp_path / "compile-2.jsonl", ("/w/k/own.cu", 0))
    log = "# src/k/{}.cu\n{}\nlocal_storage_read_{}\n"
    (tmp_path / "ccache-statistics-7.log").write_text(log.format("b", "preprocessed_cache_hit", "hit"))
    present = Present(tmp_path, own)
    assert present.sources() == {"/w/k/a.cu", "src/k/b.cu"}
    (tmp_path / "ccache-statistics.log").write_text(
        log.format("c", "direct_cache_hit", "hit") + log.format("d", "cache_miss", "miss")
    )
    assert present.sources() == {"/w/k/a.cu", "src/k/b.cu", "src/k/c.cu"}


def test_a_first_build_has_nothing(tmp_path: Path) -> None:
    assert Present(tmp_path, tmp_path / "compile-1.jsonl").sources() == set()
