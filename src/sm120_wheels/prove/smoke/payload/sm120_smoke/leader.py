"""Starts the ranks of a multi-GPU case as its own children: they share its network namespace and its process group.

Run as ``python -I -B leader.py CONFIGURATION`` (JSON: ``python``, ``worker`` and one configuration for each rank).
Leaves when all ranks have left, with the first exit code that is not 0.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    from sm120_smoke import guard, lifeline

    lifeline.hold()
    configuration = json.loads(sys.argv[1])
    guard.loopback_up()  # before the ranks look for it
    children = []
    for rank in configuration["ranks"]:
        pipes = (rank["commands"], rank["events"])
        argv = [configuration["python"], "-I", "-B", configuration["worker"], json.dumps(rank)]
        children.append(subprocess.Popen(argv, pass_fds=pipes))
    for rank in configuration["ranks"]:  # so that a rank's death ends its pipe
        os.close(rank["commands"])
        os.close(rank["events"])
    codes = [child.wait() for child in children]
    sys.exit(next((code if code > 0 else 128 - code for code in codes if code), 0))


if __name__ == "__main__":
    main()
