"""What was covered, counted: every registered operator, and every kernel of the wheel that the GPU would run.

An operator with no case is "not run"; only a case that is its test, and that passed, makes it "passed". A case that
gives its operators nothing to do can fail them, but covers neither them nor a kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sm120_wheels.elf import Elf
from sm120_wheels.prove.audit import Audit
from sm120_wheels.prove.images import choose
from sm120_wheels.prove.inputs import Subject, mapped
from sm120_wheels.prove.names import demangle
from sm120_wheels.prove.smoke.model import Capability, CaseResult, State
from sm120_wheels.prove.verdict import loader_skips

_FFI = "__tvm_ffi_"


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One registered operator."""

    name: str
    state: State
    why: str = ""
    cases: int = 0
    reached: bool = False
    """Whether any case reached it, also one that is no test of it."""


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The kernels of a wheel that this GPU would run, by mangled name."""

    in_wheel: int
    launched: tuple[str, ...]
    never: tuple[str, ...]
    unknown: str = ""
    """Why nothing is known; empty where it is."""


def operators(registered: Iterable[str], results: Sequence[CaseResult]) -> list[Operator]:
    """The state of each registered operator, and of those that cases name though they are not registered."""
    by_name: dict[str, list[CaseResult]] = defaultdict(list)
    for result in results:
        for name in result.spec.operators:
            by_name[name].append(result)
    reached = {name for result in results for name in result.operators}
    return [_operator(name, by_name.get(name, []), name in reached) for name in sorted(set(registered))]


def unregistered(registered: Iterable[str], results: Sequence[CaseResult]) -> list[str]:
    """Operators that cases name and the package does not register: left out of the wheel, or misspelt."""
    return sorted({name for result in results for name in result.spec.operators} - set(registered))


def _operator(name: str, results: Sequence[CaseResult], reached: bool) -> Operator:
    failed = [r for r in results if r.state == "failed"]
    passed = [r for r in results if r.state == "passed" and not r.empty]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return Operator(
            name=name,
            state="failed",
            why=f"{failed[0].spec.node}: {failed[0].why}{more}",
            cases=len(results),
            reached=reached,
        )
    if passed:
        return Operator(name=name, state="passed", cases=len(results), reached=reached)
    tried = [r for r in results if r.state == "not run"]
    why = "no case" if not results else tried[0].why if tried else "only empty inputs were given to it"
    return Operator(name=name, state="not run", why=why, cases=len(results), reached=reached)


def kernels(audit: Audit | None, capability: Capability | None, results: Sequence[CaseResult]) -> Kernels:
    """Match what CUPTI saw with the kernels that the audit found for this GPU."""
    if audit is None or capability is None:
        return Kernels(in_wheel=0, launched=(), never=(), unknown="there is no wheel or no GPU to match with")
    skipped = loader_skips([lib.path for lib in audit.libraries], capability)
    mine: dict[str, str] = {}
    for library in audit.gpu_libraries:
        if library.path in skipped:
            continue
        chosen = [index for index in choose(library.images, capability).values() if index is not None]
        mine |= {kernel: demangle(kernel) for index in chosen for kernel in library.images[index].kernels}
    seen = {kernel for result in results if not result.empty for kernel in result.kernels}
    unknown = ""
    if not seen:
        unknown = next((r.kernels_unknown for r in results if r.kernels_unknown), "no case reached a kernel")
    # the profiler leaves names of more than 1,024 characters as they are in the library
    launched = {kernel for kernel, readable in mine.items() if readable in seen or kernel in seen}
    return Kernels(
        in_wheel=len(mine),
        launched=tuple(sorted(launched)),
        never=tuple(sorted(mine.keys() - launched)),
        unknown=unknown,
    )


def left_out(named: Sequence[str], there: Iterable[str]) -> str:
    """Why a partial wheel, whose libraries hold the functions ``there``, cannot be asked for the functions ``named``:
    none of their libraries is in it. Empty where one is: a function that its library lacks is a failure."""
    libraries = {name.partition("::")[0] for name in named if name.startswith("flashinfer.")}
    if not libraries or libraries & {name.partition("::")[0] for name in there}:
        return ""
    return f"{', '.join(sorted(libraries))} is not in this wheel, which is partial"


def module_functions(subject: Subject) -> list[str]:
    """The functions that the TVM-FFI libraries of a wheel export: ``flashinfer.norm::rmsnorm``."""
    found = set()
    for member in subject.members:
        if member.kind != "host":
            continue
        with mapped(subject, member) as (buffer, path):
            elf = Elf(buffer, str(path))
            stem = member.name.rpartition("/")[2].partition(".so")[0]
            names = {s.name for s in elf.symbols(".dynsym") if s.section and s.name.startswith(_FFI)}
        functions = {name.removeprefix(_FFI) for name in names}
        found |= {f"flashinfer.{stem}::{name}" for name in functions if not name.startswith("_")}
    return sorted(found)
