"""What a compile uses now: the resident memory of a process and all that it has started, read from /proc.

The measure is the sum of resident set sizes over the tree. A compiler driver (nvcc, gcc) is small and runs its parts
(cicc, ptxas, cc1plus) one after another, so pages counted twice are the few megabytes of shared libraries;
proportional set sizes would be exact and cost a walk over every page table of processes with 19 GB. What lies
between two samples is covered by the kernel's own high-water mark of the largest process (``ru_maxrss``), which the
launcher reports at the end.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

_HAS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Below (not counting) a root process: resident bytes, and each process with its start time in clock ticks."""

    resident: int = 0
    processes: dict[int, int] = field(default_factory=dict)


def tree(root_pid: int) -> Tree:
    """The descendants of a process now. A process that ends meanwhile is left out."""
    resident = 0
    processes: dict[int, int] = {}
    pending = children(root_pid)
    while pending:
        pid = pending.pop()
        if pid in processes:
            continue
        stat = _stat(pid)
        if stat is None:
            continue
        resident += int(stat[21]) * _PAGE
        processes[pid] = int(stat[19])
        pending += children(pid)
    return Tree(resident=resident, processes=processes)


def children(pid: int) -> list[int]:
    """The direct children of a process, over all its threads."""
    found: list[int] = []
    if not _HAS_CHILDREN:
        return _children_by_search(pid)
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - runs ten times a second for each compile
    except OSError:
        return found
    for thread in threads:
        try:
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii")
        except OSError:
            continue
        found += map(int, text.split())
    return found


def _children_by_search(parent: int) -> list[int]:
    """For kernels without CONFIG_PROC_CHILDREN."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    return [pid for pid in numbers if (stat := _stat(pid)) is not None and int(stat[1]) == parent]


def alive(pid: int, start_ticks: int) -> bool:
    """Whether that very process (not a later one with its number) runs; a zombie does not."""
    stat = _stat(pid)
    return stat is not None and int(stat[19]) == start_ticks and stat[0] not in ("Z", "X")


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 for one that is gone."""
    stat = _stat(pid)
    return 0 if stat is None else int(stat[19])


def largest_programs(count: int, root: Path = Path("/proc")) -> list[tuple[str, int]]:
    """Who holds this machine's memory: (program, resident bytes of all its processes), the largest first."""
    held: dict[str, int] = {}
    for name in os.listdir(root):  # noqa: PTH208
        if not name.isdigit():
            continue
        try:
            text = (root / name / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        head, _, tail = text.rpartition(")")
        program = head.partition("(")[2]
        held[program] = held.get(program, 0) + int(tail.split()[21]) * _PAGE
    return sorted(held.items(), key=lambda item: (-item[1], item[0]))[:count]


def process_group(pid: int) -> int | None:
    stat = _stat(pid)
    return None if stat is None else int(stat[2])


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on: 0 state, 2 group, 19 start time, 21 resident pages (proc(5))."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
