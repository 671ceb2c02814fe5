"""What runs in the worker, as far as it needs no GPU: the guard, the comparison, the suites' stand-in for pytest."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sm120_wheels.prove.smoke.packages import PAYLOAD


def worker_python(code: str) -> str:
    """Run code as the worker does: isolated, with the payload at the end of the search path."""
    start = f"import sys; sys.path.append({str(PAYLOAD)!r})\n"
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", start + code], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


GUARDED = """
import os, subprocess
from sm120_smoke.guard import Guard
guard = Guard()
guard.begin()
try:
    {body}
except OSError as exc:
    print(type(exc).__name__)
print(guard.end())
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("subprocess.run(['/usr/local/cuda/bin/nvcc', '-c', 'x.cu'])", "/usr/local/cuda/bin/nvcc -c x.cu"),
        ("subprocess.run('cd /tmp && g++ -shared x.cc', shell=True)", "g++ -shared x.cc"),
        ("os.system('ninja -v')", "ninja -v"),
        ("os.posix_spawn('/usr/bin/x86_64-linux-gnu-gcc-12', ['gcc', 'x.c'], {})", "x86_64-linux-gnu-gcc-12"),
        ("os.execv('/opt/ptxas', ['ptxas', 'x.ptx'])", "/opt/ptxas"),
    ],
)
def test_a_compiler_is_refused_as_if_it_were_not_installed_and_noted(body: str, said: str) -> None:
    refused, attempts = worker_python(GUARDED.format(body=body)).splitlines()
    assert refused == "FileNotFoundError"
    assert "it started a compiler: " in attempts
    assert said in attempts


@pytest.mark.parametrize(
    "body", ["subprocess.run(['nvcc', '--version'])", "subprocess.run(['/bin/true'], check=True)", "open('/bin/true')"]
)
def test_asking_for_a_version_or_running_something_else_is_no_compile(body: str) -> None:
    assert worker_python(GUARDED.format(body=body)).endswith("[]")


def test_a_program_that_native_code_starts_is_noted() -> None:
    body = "import ctypes; ctypes.CDLL(None).system(b'true')"
    assert "a program was started by native code" in worker_python(GUARDED.format(body=body))


def test_the_network_is_noted_and_loopback_is_not() -> None:
    body = "import socket; s = socket.socket(); s.settimeout(0.01); s.connect(('{}', 9))"
    assert "it used the network: 192.0.2.1" in worker_python(GUARDED.format(body=body.format("192.0.2.1")))
    assert worker_python(GUARDED.format(body=body.format("127.0.0.1"))).endswith("[]")


def test_a_suite_is_imported_without_pytest_and_a_skip_raises() -> None:
    code = """
from sm120_smoke import stand_in_pytest
stand_in_pytest.install()
import pytest
@pytest.mark.parametrize("a", [pytest.param(1, id="x")])
@pytest.mark.anything
def test_a(a): return a
assert test_a(3) == 3
try:
    pytest.skip("why")
except Exception as exc:
    print(type(exc).__name__, exc)
"""
    assert worker_python(code) == "SkipAttempt why"
