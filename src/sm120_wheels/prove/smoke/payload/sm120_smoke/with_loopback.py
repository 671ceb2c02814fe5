"""Brings the loopback interface up, then becomes the program of its arguments: in a network namespace of its own
compute-sanitizer could not reach its target otherwise. Run as ``python -I -B with_loopback.py PROGRAM ARGUMENT…``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    from sm120_smoke import guard, lifeline

    lifeline.hold()
    guard.loopback_up()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
