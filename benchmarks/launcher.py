"""What a launcher costs: its time for each compile, its memory while it waits, and the same for a Python one.

    python benchmarks/launcher.py

The compile is /bin/true, alone (the worst case: the broker also hears out whether others arrive) and 200 of them under
ninja. The last line is the median over single compiles, in milliseconds.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sm120_wheels.compile.session import compile_session

_SINGLE = 100
_MANY = 200


def timed(argv: Sequence[str], env: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def median_ms(argv: Sequence[str], env: Mapping[str, str]) -> float:
    return statistics.median(timed(argv, env) for _ in range(_SINGLE))


def ninja_ms(folder: Path, launcher: str, jobs: int, env: Mapping[str, str]) -> float:
    """Milliseconds for each of 200 compiles of no work."""
    name = f"{'launched' if launcher else 'plain'}.ninja"
    edges = "".join(f"build {name}.{i}: cc x.cu\n" for i in range(_MANY))
    (folder / name).write_text(f"rule cc\n  command = {launcher} /bin/true -c $in -o $out && touch $out\n{edges}")
    return timed(["ninja", "-C", str(folder), "-f", name, f"-j{jobs}"], env) / _MANY


def waiting_kib(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Proportional set size (what each of many costs) of a process that waits for the end of its input, in KiB."""
    processes = [subprocess.Popen(argv, env=env, stdin=subprocess.PIPE) for _ in range(8)]
    try:
        time.sleep(1.0)
        text = Path(f"/proc/{processes[0].pid}/smaps_rollup").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="sm120-bench-"))
    os.environ |= {"SM120_RUNTIME_DIR": str(folder / "run"), "SM120_CACHE_DIR": str(folder / "cache")}
    os.environ["SM120_BROKER_IDLE_S"] = "3"
    (folder / "x.cu").write_text("")
    python = [sys.executable, "-I", "-S", "-c", "import socket, os, resource, sys; sys.stdin.read()"]
    python_start = [*python[:-1], "import socket, os, resource"]
    with compile_session(package="bench", work_dir=folder / "work") as session:
        env = {**os.environ, **session.environment}
        timed([*session.launcher, "/bin/true"], env)
        time.sleep(1.5)  # a young broker hears arrivals out for longer
        plain, launched = median_ms(["/bin/true"], env), median_ms([*session.launcher, "/bin/true"], env)
        many_plain = ninja_ms(folder, "", 2, env)
        many = ninja_ms(folder, session.launcher[0], session.ninja_jobs, env)
        # One compile holds all cores while eight launchers wait for it.
        env["SM120_CORES"] = "1"
        holder = subprocess.Popen([*session.launcher, "sleep", "60"], env=env)
        time.sleep(0.5)
        held = waiting_kib([*session.launcher, "/bin/true"], env)
        holder.terminate()
        holder.wait()
    print("| | launcher (C) | Python -I -S |\n|---|--:|--:|")
    print(
        f"| start, ms | {launched - plain:.1f} with the broker's answer | {median_ms(python_start, env) - plain:.1f} |"
    )
    print(f"| memory while waiting, KiB (PSS) | {held} | {waiting_kib(python, env)} |")
    print(f"\n{_MANY} compiles of nothing under ninja: {many_plain:.2f} ms each, {many:.2f} ms each with the launcher")
    print(f"load average: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    shutil.rmtree(folder, ignore_errors=True)
    print(f"launcher_overhead_ms: {launched - plain:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
