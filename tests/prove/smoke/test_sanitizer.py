"""Where compute-sanitizer is found. What it reports is seen only on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_wheels.prove.smoke import sanitizer


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_behind_a_toolkits_script_the_program_itself_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "_files", lambda distribution: [])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    script = program(tmp_path / "bin" / "compute-sanitizer", '#!/bin/sh\nexec "$(dirname "$0")/…"\n')
    assert sanitizer.find_sanitizer() == script, "nothing else is there: better than nothing"
    real = program(tmp_path / "compute-sanitizer" / "compute-sanitizer", "\x7fELF")
    assert sanitizer.find_sanitizer() == real
