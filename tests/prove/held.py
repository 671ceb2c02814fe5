"""Reads a file twice, each time in its own process, until Ctrl-C: what ``test_inputs.py`` interrupts."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

from sm120_wheels.prove import inputs


def read(subject: inputs.Subject, member: inputs.Member) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "begun").touch()
        threading.Event().wait()


if __name__ == "__main__":
    inputs._WORTH_PROCESSES = 0
    named = inputs.subject(sys.argv[1])
    try:
        inputs.read_members([(named, named.members[0])] * 2, read, workers=2)
    except KeyboardInterrupt:
        sys.exit(130)
