"""A small filesystem of its own, for tests of a full or read-only disk. Only root can mount one."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """An empty filesystem of ``size`` (as tmpfs wants it: ``1m``); the test is not run where it cannot be mounted."""
    folder = Path(tempfile.mkdtemp(prefix="sm120-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
        why = mounted.stderr.strip() if mounted.returncode else ""
    except FileNotFoundError as exc:
        why = str(exc)
    if why:
        folder.rmdir()
        pytest.skip(f"not run: no small filesystem can be mounted ({why})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def make_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
