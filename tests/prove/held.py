"""Reads a file three times, each time in its own process: twice until Ctrl-C. ``test_inputs.py`` interrupts it."""

from __future__ import annotations

import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

from sm120_wheels.prove import inputs


def read(subject: inputs.Subject, member: inputs.Member) -> None:
    if member.data:  # its process is idle from now on
        Path(tempfile.gettempdir(), "idle").touch()
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "begun").touch()
        threading.Event().wait()


if __name__ == "__main__":
    inputs._WORTH_PROCESSES = 0
    named = inputs.subject(sys.argv[1])
    (held,) = named.members
    try:
        inputs.read_members([(named, held), (named, held), (named, replace(held, data=True))], read, workers=3)
    except KeyboardInterrupt:
        sys.exit(130)
