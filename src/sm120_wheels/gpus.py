"""Which GPUs there are, and how busy they are: asked of nvidia-smi, and of the driver where that program is missing.

No CUDA context is made here.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sm120_wheels.errors import Sm120Error, ToolMissingError
from sm120_wheels.process import run

#: The driver branch that each CUDA major needs at least; within a major, minor versions are compatible. Source: the
#: CUDA toolkit release notes, "CUDA Toolkit and Corresponding Driver Versions".
LEAST_DRIVER = {12: 525, 13: 580}
_FIELDS = "index,uuid,compute_cap,driver_version,memory.total,name"
#: Asks the driver's library, in a process of its own: cuInit may abort where the driver is broken.
_ASK_DRIVER = """
import ctypes, json, sys
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit("no libcuda.so.1")
def check(code):
    if code:
        sys.exit(f"the driver answers {code}")
check(cuda.cuInit(0))
count, version, found = ctypes.c_int(), ctypes.c_int(), []
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
for index in range(count.value):
    name, major, minor, size = ctypes.create_string_buffer(100), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    check(cuda.cuDeviceGetName(name, 100, index))
    check(cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, index))
    check(cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, index))
    check(cuda.cuDeviceTotalMem_v2(ctypes.byref(size), index))
    found.append([name.value.decode(), major.value, minor.value, size.value])
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU that programs of this user may use."""

    index: int = 0
    uuid: str = ""
    """Empty where nvidia-smi is missing."""
    name: str
    capability: tuple[int, int]
    memory: int = 0
    """Bytes."""
    driver: str = ""
    """``580.95.05``; empty where nvidia-smi is missing."""

    @property
    def visible(self) -> str:
        """What CUDA_VISIBLE_DEVICES must say to mean it."""
        return self.uuid or str(self.index)

    @property
    def compute(self) -> str:
        return f"{self.capability[0]}.{self.capability[1]}"

    def facts(self) -> dict[str, Any]:
        """What a record says of it."""
        return {"name": self.name, "capability": self.compute, "memory": self.memory, "driver": self.driver}


def find_gpus(environ: Mapping[str, str] | None = None) -> tuple[list[Gpu], str]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; and why there is none."""
    environ = os.environ if environ is None else environ
    gpus, why = _smi()
    if not gpus:
        gpus, also = _driver()
        why = f"{why}; {also}" if not gpus else ""
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if gpus and wanted is not None:
        gpus = visible(gpus, wanted)
        why = "" if gpus else f"CUDA_VISIBLE_DEVICES={wanted!r} leaves none"
    return gpus, why


def visible(gpus: list[Gpu], wanted: str) -> list[Gpu]:
    """Those that a value of CUDA_VISIBLE_DEVICES names, up to its first wrong name, as CUDA reads it."""
    chosen: list[Gpu] = []
    for name in (n.strip() for n in wanted.split(",")):
        found = [g for g in gpus if name and (str(g.index) == name or (len(name) > 4 and g.uuid.startswith(name)))]
        if not found:
            break
        chosen += found[:1]
    return chosen


def parse(table: str) -> list[Gpu]:
    """Read ``nvidia-smi --query-gpu=index,uuid,compute_cap,driver_version,memory.total,name --format=csv,noheader``."""
    found = []
    for line in table.strip().splitlines():
        parts = [p.strip() for p in line.split(",", 5)]
        number = re.fullmatch(r"(\d+)\.(\d+)", parts[2]) if len(parts) == 6 else None
        if number is None:
            continue
        memory = re.match(r"(\d+) MiB", parts[4])
        found.append(
            Gpu(
                index=int(parts[0]),
                uuid=parts[1],
                name=parts[5],
                capability=(int(number[1]), int(number[2])),
                memory=int(memory[1]) << 20 if memory else 0,
                driver=parts[3],
            )
        )
    return found


def _smi() -> tuple[list[Gpu], str]:
    try:
        answer = run(["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader"], check=False)
    except ToolMissingError:
        return [], "nvidia-smi is not installed"
    if not answer.ok:
        return [], " ".join(answer.output.split())[:200] or "nvidia-smi fails"
    found = parse(answer.output)
    return found, "" if found else "nvidia-smi lists no GPU"


def _driver() -> tuple[list[Gpu], str]:
    try:
        answer = run([sys.executable, "-I", "-c", _ASK_DRIVER], check=False)
        told = json.loads(answer.output.strip().splitlines()[-1]) if answer.ok else None
    except (Sm120Error, ValueError, IndexError) as exc:
        return [], str(exc)
    if told is None:
        return [], " ".join(answer.output.split())[:200]
    return [
        Gpu(index=i, name=name, capability=(major, minor), memory=size)
        for i, (name, major, minor, size) in enumerate(told)
    ], "the driver lists no GPU"


def usage() -> str:
    """Utilisation, memory and the processes on each GPU, in a few lines; why not, where nvidia-smi cannot say."""
    lines = []
    try:
        for query in (
            ["--query-gpu=index,utilization.gpu,memory.used,memory.total", "--format=csv,noheader"],
            ["--query-compute-apps=pid,used_memory", "--format=csv,noheader"],
        ):
            answer = run(["nvidia-smi", *query], check=False)
            lines += answer.output.strip().splitlines()
    except ToolMissingError:
        return "not available: nvidia-smi is not installed"
    return "\n".join(lines)


def busy(gpu: Gpu) -> bool | None:
    """Whether a GPU is at work; None where nobody can say."""
    try:
        query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", f"--id={gpu.visible}"]
        answer = run(["nvidia-smi", *query], check=False)
    except ToolMissingError:
        return None
    text = answer.output.strip()
    return int(text) > 0 if answer.ok and text.isdigit() else None
