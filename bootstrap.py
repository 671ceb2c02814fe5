#!/usr/bin/env python3
"""Run nox with nothing but Python at hand: ``python3 bootstrap.py -s build_selftest`` is ``nox -s build_selftest``.

Makes .venv with a hash-locked nox in it the first time (pip's or uv's own index settings count), then hands over. It
uses the standard library only and does nothing else.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
LOCK = ROOT / "recipes" / "locks" / "nox.txt"
VENV = ROOT / ".venv"


def fail(what, why, do):
    sys.exit(f"error: {what}\n  why:   {why}\n  do:    {do}")


def make_environment(python):
    """A venv through the standard library; through uv or virtualenv where a distribution split ensurepip off."""
    attempts = [[sys.executable, "-m", "venv", "--clear", str(VENV)]]
    if shutil.which("uv"):
        attempts.append(["uv", "venv", "--quiet", "--clear", "--seed", "--python", sys.executable, str(VENV)])
    attempts.append([sys.executable, "-m", "virtualenv", "--quiet", "--clear", str(VENV)])
    for command in attempts:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if (
            done.returncode == 0
            and subprocess.run(
                [str(python), "-m", "pip", "--version"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            ).returncode
            == 0
        ):
            return
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    fail(
        "no virtual environment can be made",
        f"{sys.executable} has no working venv module, and neither uv nor virtualenv is there",
        f"on Debian or Ubuntu: apt-get install python{version}-venv; elsewhere install uv or virtualenv",
    )


def main():
    if sys.version_info < (3, 10):
        fail(f"Python {sys.version.split()[0]} is too old", "3.10 is the oldest supported", "python3.12 bootstrap.py …")
    python = VENV / "bin" / "python"
    stamp = VENV / "nox-lock.sha256"
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if not (stamp.is_file() and stamp.read_text() == wanted and python.exists()):
        make_environment(python)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        if subprocess.run([*install, "--no-deps", "-r", str(LOCK)], check=False).returncode != 0:
            fail("nox cannot be installed", "pip's message stands above", "check the network or pip's index settings")
        stamp.write_text(wanted)
    environment = dict(os.environ, PATH=f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    os.execve(str(python), [str(python), "-m", "nox", "-f", str(ROOT / "noxfile.py"), *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
