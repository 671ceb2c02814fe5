"""Which tags a wheel may carry: the platform from its libraries' symbol versions, abi3 only where it is honoured.

The manylinux policies are auditwheel's and the limited API's symbols abi3info's; this module only asks them. It never
copies a library into the wheel: CUDA, torch and the driver come from elsewhere at run time and are excluded by name.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abi3info import DATAS, FUNCTIONS
from abi3info.models import PyVersion, Symbol
from packaging.tags import Tag

from sm120_wheels.errors import UnsupportedTargetError, WheelInvalidError
from sm120_wheels.wheel.library import Library

if TYPE_CHECKING:
    from auditwheel.policy import Policy, WheelPolicies

#: Libraries that a CUDA wheel takes from the torch and nvidia wheels and from the driver, as file name patterns.
CUDA_AND_TORCH = (
    "libc10*.so*",
    "libtorch*.so*",
    "libshm.so*",
    "libcuda.so*",
    "libnvidia-ml.so*",
    "libcudart.so*",
    "libcublas*.so*",
    "libcudnn*.so*",
    "libcufft*.so*",
    "libcufile*.so*",
    "libcupti.so*",
    "libcurand.so*",
    "libcusolver*.so*",
    "libcusparse*.so*",
    "libnccl.so*",
    "libnvJitLink.so*",
    "libnvfatbin.so*",
    "libnvjpeg.so*",
    "libnvrtc*.so*",
    "libnvshmem*.so*",
    "libnvToolsExt.so*",
)


def provided_elsewhere(*, numa: bool) -> tuple[str, ...]:
    """These and, for a package that asks for it, libnuma: it comes with the system as the driver does; no policy lists
    it, and it is never bundled."""
    return (*CUDA_AND_TORCH, *(("libnuma.so*",) if numa else ()))


@dataclass(frozen=True, kw_only=True)
class PlatformDecision:
    """A platform tag and what keeps the wheel from an older (more widely installable) one."""

    tags: tuple[str, ...]
    """``("manylinux_2_17_x86_64", "manylinux2014_x86_64")``: the tag and its older spellings."""
    because: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Abi3Problem:
    """An extension that some Python promised by the abi3 tag cannot load."""

    member: str
    why: str


def decide_platform(libraries: Sequence[Library], *, excluded: Iterable[str]) -> PlatformDecision:
    """The oldest manylinux policy that all libraries keep, else ``linux_<machine>`` with the reasons.

    ``excluded``: file name patterns of libraries that others provide. Raises :class:`WheelInvalidError` for
    libraries of two machines and :class:`UnsupportedTargetError` for a machine that has no policies.
    """
    policies = _policies(libraries)
    patterns = tuple(excluded)
    because: list[str] = []
    for policy in sorted(policies, key=lambda p: p.priority, reverse=True):  # widest first, plain linux last
        problems = _problems(libraries, policy, patterns)
        if not problems:
            return PlatformDecision(tags=(policy.name, *policy.aliases), because=tuple(because))
        because = problems
    raise AssertionError("the linux policy has no conditions")


def platform_problems(libraries: Sequence[Library], tag: str, *, excluded: Iterable[str]) -> list[str]:
    """What the libraries need that a platform tag does not promise; each a sentence naming the library.

    For a plain ``linux_*`` tag nothing is promised, so nothing can be wrong.
    """
    if not libraries or not tag.startswith("manylinux"):
        return []
    try:
        policy = _policies(libraries).get_policy_by_name(tag)
    except LookupError:
        return [f"no policy named {tag} is known for {libraries[0].machine}"]
    return _problems(libraries, policy, tuple(excluded))


def _policies(libraries: Sequence[Library]) -> WheelPolicies:
    from auditwheel.architecture import Architecture  # a third of a second, and the audit's workers need none of it
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    machines = {library.machine: library.member for library in libraries}
    if len(machines) != 1:
        raise WheelInvalidError(
            "the wheel holds libraries of more than one machine",
            where=", ".join(machines.values()),
            why=", ".join(machines),
            hint="build one wheel for each machine",
        )
    (machine,) = machines
    try:
        return WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))
    except ValueError as exc:
        raise UnsupportedTargetError(
            f"no platform tag is known for {machine}", where=machines[machine], hint="build for x86_64 or aarch64"
        ) from exc


def _problems(libraries: Sequence[Library], policy: Policy, excluded: tuple[str, ...]) -> list[str]:
    if policy.priority == 0:
        return []
    inside = {name for library in libraries for name in (library.soname, library.filename) if name}
    problems = []
    for library in libraries:
        for needed in library.needed:
            foreign = needed not in inside and not _matches(needed, excluded) and not needed.startswith("ld-linux")
            if foreign and needed not in policy.whitelist:
                problems.append(f"{library.member} needs {needed}, which {policy.name} does not promise")
            refused = policy.blacklist.get(needed, frozenset()) & library.undefined
            if refused and foreign:
                problems.append(f"{library.member} uses {min(refused)} of {needed}, which {policy.name} forbids")
        for provider, versions in sorted(library.versions.items()):
            if provider in inside or _matches(provider, excluded):
                continue
            newer = [v for v in versions if not _promised(v, policy)]
            if newer:
                last = max(newer, key=_version_key)
                problems.append(f"{library.member} asks {provider} for {last}, newer than {policy.name} promises")
    return problems


def _promised(symbol_version: str, policy: Policy) -> bool:
    family, _, version = symbol_version.partition("_")
    return family not in policy.symbol_versions or version in policy.symbol_versions[family]


def _version_key(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def abi3_baseline(tags: Iterable[Tag]) -> tuple[int, int] | None:
    """The oldest Python that a wheel's abi3 tags promise to run on; None where it promises none."""
    found = [re.fullmatch(r"cp(\d)(\d+)", t.interpreter) for t in tags if t.abi == "abi3"]
    versions = [(int(m.group(1)), int(m.group(2))) for m in found if m]
    return min(versions) if versions else None


def abi3_problems(libraries: Sequence[Library], *, baseline: tuple[int, int]) -> list[Abi3Problem]:
    """The Python extensions among ``libraries`` that do not keep to the limited API of ``baseline``.

    What exports no ``PyInit_*`` function (a module loaded by ctypes or torch) is not an extension and is not judged.
    The rule is abi3audit's, over the table that it takes from abi3info. abi3audit itself is a program that takes
    seconds to start, for each library of an audit; the tests compare with it.
    """
    problems = []
    for library in libraries:
        if library.init_functions and (why := _beyond_abi3(library, PyVersion(*baseline))):
            problems.append(Abi3Problem(member=library.member, why=why))
    return problems


def _beyond_abi3(library: Library, baseline: PyVersion) -> str:
    """What is outside the limited API of a Python in an extension, or nothing."""
    if marker := re.search(r"\.(cpython-\d+\w*)[-.]", library.filename):
        return f"its name says it is only for {marker.group(1)}"
    added = {name: _added(name) for name in library.python_symbols}
    outside = sorted(name for name, version in added.items() if version is None)
    if outside:
        return f"it uses what is outside the limited API: {', '.join(outside[:5])}"
    newer = sorted((name, version) for name, version in added.items() if version is not None and version > baseline)
    if newer:
        named = ", ".join(f"{name} (Python {version})" for name, version in newer[:5])
        return f"the tag promises Python {baseline}, but it uses {named}"
    return ""


def _added(symbol: str) -> PyVersion | None:
    """The Python that brought a symbol into the limited API; None where it is in none."""
    known = FUNCTIONS.get(Symbol(symbol)) or DATAS.get(Symbol(symbol))
    return known.added if known else None
