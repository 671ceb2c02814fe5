"""Where compute-sanitizer is found, how it is run, and whom its report costs. What it finds is seen only on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sm120_wheels.prove.smoke import sanitizer
from tests.prove.smoke.conftest import run_demo


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


#: Runs its target as compute-sanitizer does, and reports one error after it has ended.
_TOOL = """\
#!{python}
import subprocess, sys
words = sys.argv[1:]
log = words[words.index("--log-file") + 1]
with open(log, "w") as stream:
    stream.write("========= COMPUTE-SANITIZER\\n")
code = subprocess.call(words[2 * sum(word.startswith("--") for word in words) :], close_fds=False)
with open(log, "a") as stream:
    stream.write("========= Invalid __global__ write of size 4 bytes\\n========= ERROR SUMMARY: 1 error\\n")
sys.exit(code % 256)
"""


def test_a_report_costs_the_case_that_ended_the_worker_and_else_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "cuda" / "bin" / "compute-sanitizer", "#!/bin/sh\nexit 1\n")
    program(tmp_path / "cuda" / "compute-sanitizer" / "compute-sanitizer", _TOOL.format(python=sys.executable))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    ran = run_demo(tmp_path, "--sanitizer", "memcheck", "-k", "test_right and not ranks or test_aborts")
    assert ran.code == 70, ran.err
    report = "compute-sanitizer memcheck: Invalid __global__ write of size 4 bytes"
    assert ran.case("test_aborts")["why"].endswith(f"at eager: run; {report}")
    assert ran.case("test_right[1]")["state"] == "passed"
    last = ran.case("test_right_after_all_of_that")
    assert (last["state"], last["why"]) == ("failed", report)
    assert ran.record["selection"].endswith("under memcheck")


def test_deadlines_are_longer_under_the_sanitizer_and_the_last_kernel_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "cuda" / "compute-sanitizer" / "compute-sanitizer", _TOOL.format(python=sys.executable))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    ran = run_demo(tmp_path, "--sanitizer", "memcheck", "-k", "test_hangs_in_python", "--deadline", "0.25")
    why = ran.case("test_hangs_in_python")["why"]
    assert why.startswith("hang: no end after 5 s at eager: run")
    assert "last kernel launched: not known: compute-sanitizer leaves no room for CUPTI" in why
    assert ran.record["workers"] == 1
