"""Ends a process at its n-th change of the file system, as a kill or a full disk would."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

_CHANGES = {"os.rename", "os.mkdir", "os.symlink", "os.link", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}


def changes_until(work: Callable[[], None], limit: int | None) -> tuple[bool, int]:
    """Run ``work`` in a child, killed at its ``limit``-th change; whether it ended well, and the changes it made."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal count
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if event in _CHANGES or writes:
                count += 1
                if limit is not None and count > limit:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(watch)
            work()
            os.write(write, str(count).encode())
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child must not run the rest of the tests
            import traceback

            traceback.print_exc()
            os._exit(1)
    os.close(write)
    _, status = os.waitpid(child, 0)
    told = os.read(read, 100)
    os.close(read)
    ended = os.waitstatus_to_exitcode(status)
    assert ended in (0, -signal.SIGKILL), f"the child ended with {ended}"
    return ended == 0, int(told or b"0")
