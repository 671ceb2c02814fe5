"""Cases that need several GPUs: the same function runs in one process for each, and they meet here.

The meeting place is a folder that all ranks share, so it needs neither torch nor a network; a process group of
torch.distributed is made over the same folder where a case asks for one.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from sm120_smoke.lazy import torch

_POLL_S = 0.002


@dataclass(kw_only=True)
class Ranks:
    """This process among those of the case."""

    rank: int
    world: int
    folder: Path
    """Shared by all ranks; empty when the case begins."""
    session: Path
    """Shared by all ranks for as long as the workers live."""
    _count: int = 0
    _groups: dict[str, Any] = field(default_factory=dict)

    def exchange(self, value: Any) -> list[Any]:
        """Give every rank's value to every rank, in rank order. Waits for all: the case's deadline is the limit."""
        self._count += 1
        mine = self.folder / f"{self._count}.{self.rank}"
        temporary = mine.with_suffix(f".{self.rank}.writing")
        temporary.write_bytes(pickle.dumps(value))
        temporary.rename(mine)
        found = []
        for rank in range(self.world):
            path = self.folder / f"{self._count}.{rank}"
            while not path.exists():
                time.sleep(_POLL_S)
            found.append(pickle.loads(path.read_bytes()))  # noqa: S301 - written by this run's own ranks
        return found

    def barrier(self) -> None:
        """Wait for every rank."""
        self.exchange(None)

    def group(self, backend: str = "nccl") -> Any:
        """A process group of torch.distributed over all ranks, made once for each backend."""
        if backend not in self._groups:
            distributed = torch.distributed
            if not distributed.is_initialized():
                distributed.init_process_group(
                    backend,
                    init_method=(self.session / "store").as_uri(),
                    rank=self.rank,
                    world_size=self.world,
                    timeout=timedelta(seconds=600),  # the watchdog's deadline comes first
                )
                self._groups[backend] = distributed.group.WORLD
            else:
                self._groups[backend] = distributed.new_group(backend=backend)
        return self._groups[backend]


_here: list[Ranks] = []


def here() -> Ranks:
    """This rank. Outside a case with ``Needs(gpus=N)`` it is the only one."""
    if not _here:
        raise RuntimeError("ranks.here() is for cases with Needs(gpus=2) or more")
    return _here[0]


def enter(rank: int, world: int, session: Path, case_number: int) -> None:
    """Begin a case: called by the worker."""
    folder = session / f"case{case_number}"
    folder.mkdir(parents=True, exist_ok=True)
    if _here:
        _here[0].folder, _here[0]._count = folder, 0
    else:
        _here.append(Ranks(rank=rank, world=world, folder=folder, session=session))
