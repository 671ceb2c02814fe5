"""Serves an index with the real command, on a free port of the loopback interface."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def served(root: Path) -> Iterator[str]:
    """The address of a running ``sm120 index serve``, ending in a slash."""
    argv = [sys.executable, "-m", "sm120_wheels", "index", "serve", "--root", str(root), "--port", "0"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+/", line)
        assert found, line + process.stderr.read()
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(120)
        finally:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()
