"""The words of the controller: a case as it is sent to a worker, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["passed", "failed", "not run"]
Capability = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class CaseSpec:
    """One case with one set of parameters."""

    node: str
    """pytest's name of it."""
    suite: str
    """The folder of suites it is in: ``sgl_kernel``."""
    module: str
    file: str
    """Where its module lies; empty for the suites that we bring, which the worker imports by name."""
    function: str
    parameters: Mapping[str, Any]
    operators: tuple[str, ...]
    deadline: float
    """Seconds."""
    gpus: int = 1
    memory: int = 0
    """Bytes of GPU memory."""
    capabilities: tuple[Capability, ...] = ()
    least_capability: Capability = (0, 0)
    needs_why: str = ""

    def command(self, *, trace: bool) -> dict[str, Any]:
        """What a worker is told."""
        return {
            "do": "case",
            "module": self.module,
            "file": self.file,
            "function": self.function,
            "parameters": repr(dict(self.parameters)),
            "operators": list(self.operators),
            "memory": self.memory,
            "trace": trace,
        }

    def unmet(self, *, capability: Capability | None, gpus: int) -> str:
        """Which of its needs this machine does not meet; empty where all are met. Memory is asked for by the worker."""
        why = f" ({self.needs_why})" if self.needs_why else ""
        if self.gpus > gpus:
            return f"it needs {self.gpus} GPUs, this run has {gpus}{why}"
        if capability is None:
            return ""
        if self.capabilities and capability not in self.capabilities:
            wanted = ", ".join(map(_text, self.capabilities))
            return f"it needs compute capability {wanted}, the GPU has {_text(capability)}{why}"
        if capability < self.least_capability:
            wanted = f"{_text(self.least_capability)} or more"
            return f"it needs compute capability {wanted}, the GPU has {_text(capability)}{why}"
        return ""


def _text(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


@dataclass(frozen=True, kw_only=True)
class StageResult:
    name: str
    state: State
    why: str = ""
    seconds: float = 0.0
    results: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Hang:
    """What was found where a case passed its deadline, before it was killed."""

    stage: str
    step: str
    """What the worker was about to do when it said its last word."""
    stacks: str
    """Native and Python stacks of every process of the case."""
    gpu: str
    """What nvidia-smi said of utilisation and memory, before and after the kill."""
    last_kernel: str = "not known"
    """The last launch before it hung, seen when the case was repeated under CUPTI; or why it is not known."""
    launches: tuple[str, ...] = ()
    """The last few, oldest first."""


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """What became of one case."""

    spec: CaseSpec
    state: State
    why: str = ""
    stages: tuple[StageResult, ...] = ()
    seconds: float = 0.0
    operators: tuple[str, ...] = ()
    """Operators that it reached."""
    kernels: tuple[str, ...] = ()
    kernels_unknown: str = ""
    empty: bool = False
    """Whether it gave its operators nothing to do: then it shows nothing of what they compute."""
    peak_memory: int = 0
    """Bytes of GPU memory that tensors took."""
    hang: Hang | None = None
    output: str = ""
    """The last of what it and the libraries printed; only kept where it failed."""
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a worker said of itself when it was ready."""

    pid: int
    facts: Mapping[str, Any]
    problem: str
    """Why nothing can be launched; empty where it can."""
    operators: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return float(self.facts.get("seconds", 0.0))
