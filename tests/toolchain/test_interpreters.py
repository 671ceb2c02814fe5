"""Finding Pythons: real ones by version and path; shims and other implementations are no answer."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from sm120_wheels.errors import SettingError, ToolMissingError
from sm120_wheels.toolchain.interpreters import all_interpreters, candidates, find_interpreter, probe

MINOR = ".".join(platform.python_version_tuple()[:2])


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_running_one_is_known_by_its_base_not_its_environment() -> None:
    found = probe(Path(sys.executable))
    assert found is not None
    assert found.version == platform.python_version()
    assert found.minor == MINOR
    assert not (found.executable.parent.parent / "pyvenv.cfg").exists()


def test_a_version_finds_one_of_that_version() -> None:
    assert find_interpreter(MINOR).minor == MINOR
    assert find_interpreter(platform.python_version()).version == platform.python_version()


def test_a_path_is_taken_as_it_is() -> None:
    assert find_interpreter(Path(sys.executable)).version == platform.python_version()


def test_a_version_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(ToolMissingError, match=r"no Python 3\.99 on this machine") as caught:
        find_interpreter("3.99")
    assert platform.python_version() in caught.value.why
    assert "uv python install 3.99" in caught.value.hint
    assert caught.value.exit_code == 40


def test_what_is_neither_version_nor_path_is_a_setting_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="neither a Python version"):
        find_interpreter("python-three")
    with pytest.raises(ToolMissingError, match="not a working CPython"):
        find_interpreter(script(tmp_path / "python3", "#!/bin/sh\nexit 0\n"))


@pytest.mark.parametrize(
    "body",
    [
        "echo 'pyenv: python3.12: command not found' >&2; exit 127",
        "echo not json",
        """echo '{"implementation": "pypy", "free_threaded": false}'""",
        """echo '{"implementation": "cpython", "free_threaded": true}'""",
    ],
)
def test_shims_other_implementations_and_free_threaded_builds_are_no_answer(tmp_path: Path, body: str) -> None:
    assert probe(script(tmp_path / "python3", f"#!/bin/sh\n{body}\n")) is None


def test_version_managers_folders_are_searched_and_shims_are_not(tmp_path: Path) -> None:
    managed = script(tmp_path / ".pyenv/versions/3.11.9/bin/python3", "#!/bin/sh\n")
    shim = script(tmp_path / ".pyenv/shims/python3.11", "#!/bin/sh\n")
    other = script(tmp_path / "bin/python3.11", "#!/bin/sh\n")
    found = list(candidates({"HOME": str(tmp_path), "PATH": f"{shim.parent}:{other.parent}"}))
    assert managed in found
    assert other in found
    assert shim not in found


def test_all_interpreters_are_listed_once_newest_first() -> None:
    found = all_interpreters()
    keys = [tuple(int(part) for part in i.version.split(".") if part.isdigit()) for i in found]
    assert keys == sorted(keys, reverse=True)
    assert len({i.executable.resolve() for i in found}) == len(found)


def test_headers_are_asked_for_by_the_package_that_has_them(tmp_path: Path) -> None:
    facts = (
        '{"implementation": "cpython", "free_threaded": false, "executable": "/x/python3", "version": "3.12.4",'
        ' "headers": false, "platform": "linux-x86_64"}'
    )
    python = script(tmp_path / "python3", f"#!/bin/sh\necho '{facts}'\n")
    assert find_interpreter(python).version == "3.12.4"
    with pytest.raises(ToolMissingError, match=r"no headers \(Python.h\)") as caught:
        find_interpreter(python, need_headers=True)
    assert "python3.12-dev" in caught.value.hint
