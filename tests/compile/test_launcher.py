"""The launcher as a program: how it is made, and where."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sm120_wheels.compile.launcher import launcher
from sm120_wheels.compile.protocol import decode, encode, socket_path
from sm120_wheels.errors import HostCompilerError
from tests.compile.building import Runtime


def test_it_is_made_once_and_found_again(runtime: Runtime) -> None:
    first = launcher()
    made = first.stat().st_mtime_ns
    assert launcher() == first
    assert first.stat().st_mtime_ns == made
    assert launcher(python="/another/python") != first


def test_its_path_never_has_a_space(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SM120_CACHE_DIR", str(tmp_path / "a cache"))
    monkeypatch.setenv("TMPDIR", "/tmp")
    path = launcher()
    assert " " not in str(path)
    assert os.access(path, os.X_OK)


def test_a_socket_path_that_is_too_long_moves_to_a_private_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    assert len(str(socket_path(deep))) < 100
    assert socket_path(deep) != socket_path(tmp_path / ("y" * 120))
    assert socket_path(Path("/run/user/7/sm120-wheels")).parent == Path("/run/user/7/sm120-wheels")


def test_without_a_c_compiler_the_error_says_what_to_install(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostCompilerError) as raised:
        launcher()
    assert raised.value.exit_code == 41
    assert "no C compiler was found" in str(raised.value)
    assert "apt install g++" in str(raised.value)


def test_a_c_compiler_that_fails_is_quoted(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho stdio.h: no such file\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(HostCompilerError, match="cannot build the compile launcher") as raised:
        launcher()
    assert "stdio.h: no such file" in str(raised.value)


def test_without_a_command_it_says_how_it_is_used(runtime: Runtime) -> None:
    ran = subprocess.run([launcher()], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (2, "usage: sm120-launch COMPILER ARGUMENT...\n")


def test_messages_survive_any_bytes_in_arguments() -> None:
    arguments = ("-DX=a b\n", b"\xff.cu".decode("utf-8", "surrogateescape"), "arg=x")
    message = decode(encode({"state": "waiting", "n": "12", "bad": "1x"}, arguments))
    assert message.arguments == arguments
    assert (message.fields["state"], message.number("n"), message.number("bad"), message.number("none")) == (
        "waiting",
        12,
        0,
        0,
    )
