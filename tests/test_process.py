"""Programs: their output, their logs, and that none is left behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sm120_wheels.errors import CommandError, ToolMissingError
from sm120_wheels.process import describe_status, run
from tests.support.waiting import until


def test_output_and_errors_come_together() -> None:
    finished = run(["sh", "-c", "echo out; echo err >&2; exit 3"], check=False)
    assert (finished.returncode, finished.output, finished.ok) == (3, "out\nerr\n", False)


def test_with_a_log_everything_is_there_and_only_the_end_is_kept(tmp_path: Path) -> None:
    seen: list[str] = []
    finished = run(["seq", "1000"], log=tmp_path / "new" / "log", on_line=seen.append)
    assert (tmp_path / "new" / "log").read_text().splitlines() == [str(n) for n in range(1, 1001)] == seen
    assert finished.output.splitlines() == [str(n) for n in range(941, 1001)]


def test_a_log_is_appended_to(tmp_path: Path) -> None:
    for word in ("one", "two"):
        run(["echo", word], log=tmp_path / "log")
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_bytes_that_are_no_text_do_no_harm() -> None:
    assert run(["printf", r"a\377b\000c"]).output == "a\N{REPLACEMENT CHARACTER}b\0c"


def test_input_larger_than_a_pipe_is_fed_and_a_program_that_ignores_it_is_no_error() -> None:
    data = b"x" * 1_000_000
    assert run(["wc", "-c"], stdin=data).output.strip() == "1000000"
    assert run(["true"], stdin=data).ok


def test_nothing_is_read_from_our_own_input() -> None:
    assert run(["cat"]).output == ""


def test_a_failure_says_the_command_and_its_last_lines() -> None:
    with pytest.raises(CommandError, match=r"sh failed \(exit code 4\)") as caught:
        run(["sh", "-c", "seq 100; exit 4"])
    assert caught.value.why.splitlines() == [str(n) for n in range(86, 101)]
    assert caught.value.where.startswith("sh -c")


def test_a_program_that_is_not_there_or_no_program_is_told(tmp_path: Path) -> None:
    with pytest.raises(ToolMissingError, match="no-such-program is not installed"):
        run(["no-such-program"])
    (tmp_path / "text").write_text("x")
    with pytest.raises(ToolMissingError, match="cannot be executed"):
        run([tmp_path / "text"])
    with pytest.raises(CommandError, match="no folder"):
        run(["true"], cwd=tmp_path / "gone")


def test_a_file_of_another_machine_is_told(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o755)
    with pytest.raises(ToolMissingError, match="cannot be executed"):
        run([program])


def test_secrets_of_a_shared_cache_are_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM120_SHARED_CACHE", "redis://there")
    monkeypatch.setenv("SM120_SHARED_CACHE_PASSWORD", "hunter2")
    show = [sys.executable, "-c", "import os; print(os.environ)"]
    for said in (run(show).output, run(show, env=dict(os.environ)).output):
        assert "redis://there" in said
        assert "hunter2" not in said


def test_the_environment_is_replaced_and_not_added_to() -> None:
    assert (
        run([sys.executable, "-c", "import os; print(os.environ.get('HOME'), os.environ['A'])"], env={"A": "b"}).output
        == "None b\n"
    )


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit code 0"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99")]
)
def test_a_status_is_said_in_words(code: int, text: str) -> None:
    assert describe_status(code) == text


def test_an_exception_ends_the_program_and_all_it_started() -> None:
    pids: list[int] = []

    def stop(line: str) -> None:
        pids.extend(int(word) for word in line.split())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", "sleep 1000 & echo $$ $!; wait"], on_line=stop)
    assert len(pids) == 2
    until(lambda: not any(alive(pid) for pid in pids), what="both processes end")


def test_a_program_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120_wheels.process._TERM_GRACE_S", 0.2)
    pids: list[int] = []

    def stop(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", "trap '' TERM; echo $$; while :; do sleep 0.05; done"], on_line=stop)
    assert not alive(pids[0])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_background_child_that_keeps_the_pipe_open_is_waited_for() -> None:
    assert run(["sh", "-c", "(sleep 0.2; echo late) &"]).output == "late\n"


def test_a_program_has_its_own_process_group_so_that_ctrl_c_reaches_it_only_through_us() -> None:
    group = int(run(["sh", "-c", "cut -d' ' -f5 /proc/$$/stat"]).output)
    assert group != os.getpgrp()
