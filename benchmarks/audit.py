"""How long an audit takes, against the plain way: unpack the wheel, then let cuobjdump list each library.

    python benchmarks/audit.py WHEEL [--target 12.0]

The baseline unpacks all of the wheel with zipfile and runs ``cuobjdump --list-elf``, ``--list-ptx`` and, for the number
of kernels, ``-symbols`` on each library: less than the audit tells (no traps, no verdict, no sizes). cuobjdump is taken
from PATH, CUDA_HOME or the package index's ``nvidia-cuda-cuobjdump``. The last line is ``audit: ratio``, the audit's
time divided by the baseline's: below 1 the audit is faster. Seconds of CPU are printed too; they say more on a machine
that others use.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels.files import human_seconds
from sm120_wheels.prove import inputs
from sm120_wheels.prove.audit import audit
from sm120_wheels.prove.verdict import judge


def cuobjdump() -> Path:
    places = [shutil.which("cuobjdump")]
    if home := os.environ.get("CUDA_HOME"):
        places.append(f"{home}/bin/cuobjdump")
    try:
        files = importlib.metadata.files("nvidia-cuda-cuobjdump") or []
        places += [str(f.locate()) for f in files if f.name == "cuobjdump"]
    except importlib.metadata.PackageNotFoundError:
        pass
    for place in places:
        if place and Path(place).is_file():
            return Path(place)
    sys.exit("cuobjdump not found: pip install nvidia-cuda-cuobjdump, or set CUDA_HOME")


@dataclass(frozen=True)
class Spent:
    """Seconds: by the clock, and of CPU with all child processes."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{human_seconds(self.wall)} ({human_seconds(self.cpu)} of CPU)"


def spent(work: Callable[[], object]) -> Spent:
    wall, cpu = time.perf_counter(), _cpu()
    work()
    return Spent(time.perf_counter() - wall, _cpu() - cpu)


def _cpu() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def baseline(wheel: Path, program: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sm120-benchmark-") as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        for library in sorted(Path(folder).rglob("*.so*")):
            for option in ("--list-elf", "--list-ptx", "-symbols"):
                subprocess.run(
                    [program, option, library], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
                )


def ours(wheel: Path, target: tuple[int, int]) -> None:
    judge(audit(inputs.subject(str(wheel)), [target]), target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--target", default="12.0")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, alternating; the fastest counts")
    options = parser.parse_args()
    major, minor = map(int, options.target.split("."))
    program = cuobjdump()
    mine: list[Spent] = []
    theirs: list[Spent] = []
    for _ in range(options.repeat):
        mine.append(spent(lambda: ours(options.wheel, (major, minor))))
        print(f"audit {mine[-1]}", flush=True)
        theirs.append(spent(lambda: baseline(options.wheel, program)))
        print(f"unpack and cuobjdump {theirs[-1]}", flush=True)
    print(f"CPU: {min(s.cpu for s in mine) / min(s.cpu for s in theirs):.2f}")
    print(f"audit: {min(s.wall for s in mine) / min(s.wall for s in theirs):.2f}")


if __name__ == "__main__":
    main()
