"""Take the network away from configure and compile where the kernel lets us: enforced, not hoped for."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess


@functools.cache
def no_network_prefix() -> tuple[str, ...]:
    """The arguments to put before a command so that it has no network; empty where this machine forbids it.

    Unix sockets by path go on working, which is how compilers reach the scheduler.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    options = ("--net",) if os.geteuid() == 0 else ("--map-current-user", "--net")
    try:
        works = (
            subprocess.run([unshare, *options, "true"], capture_output=True, timeout=60, check=False).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return (unshare, *options) if works else ()
