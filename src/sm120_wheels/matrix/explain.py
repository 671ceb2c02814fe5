"""Says why an identifier is not in the matrix: a part of it is unknown, or known parts do not go together."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sm120_wheels import recipe
from sm120_wheels.arch import Arch
from sm120_wheels.errors import UnknownArchError, near_misses
from sm120_wheels.matrix.jobs import Matrix
from sm120_wheels.matrix.names import PLATFORMS, cuda_tag, torch_cuda

#: The parts of an identifier, in their order.
AXES = ("distribution", "version", "CUDA", "torch", "Python", "architecture", "platform")
_FORM = "distribution-version-cuXYZ-torchX.Y-python_abi-architecture-platform"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why one identifier is, or is not, in the matrix."""

    identifier: str
    present: bool
    axis: str
    """The part that rules it out; ``combination`` where each is known, ``form`` where it is no identifier."""
    why: str
    near: tuple[str, ...]
    """The closest identifiers that are in the matrix."""


def explain(identifier: str, matrix: Matrix, recipes: Sequence[recipe.Recipe]) -> Explanation:
    """Find out about one identifier."""
    identifier = identifier.strip()
    if matrix.find(identifier):
        return Explanation(identifier=identifier, present=True, axis="", why="it is in the matrix", near=())
    axis, why = _reason(identifier, matrix, recipes)
    return Explanation(
        identifier=identifier,
        present=False,
        axis=axis,
        why=why,
        near=_near(identifier, [j.identifier for j in matrix.jobs]),
    )


def _near(identifier: str, known: list[str]) -> tuple[str, ...]:
    """Those that differ in the fewest parts, then the most alike."""
    parts = identifier.split("-")

    def distance(other: str) -> tuple[int, float]:
        theirs = other.split("-")
        differing = sum(a != b for a, b in zip(parts, theirs, strict=False)) + abs(len(parts) - len(theirs))
        return differing, -difflib.SequenceMatcher(None, identifier, other).ratio()

    return tuple(sorted(known, key=distance)[:3])


def _reason(identifier: str, matrix: Matrix, recipes: Sequence[recipe.Recipe]) -> tuple[str, str]:
    for impossible in matrix.impossible:
        if impossible.identifier == identifier:
            return "combination", f"{impossible.what}: {impossible.why}"
    parts = identifier.split("-")
    if len(parts) != len(AXES):
        return "form", f"it has {len(parts)} parts between dashes; an identifier has {len(AXES)}: {_FORM}"
    distribution, version, cuda, torch, python, arch, platform = parts
    owners = _owners(recipes)
    if distribution not in owners:
        return "distribution", f"no recipe makes {distribution}; {near_misses(distribution, owners)}"
    versions = owners[distribution]
    if version not in versions:
        return "version", f"{distribution} has no version {version}; {near_misses(version, versions)}"
    package, pins = versions[version]
    where = f"recipes/{package.name}/recipe.toml, version {version}"
    if (found := _arch_reason(arch, package)) is not None:
        return "architecture", found
    if platform not in PLATFORMS:
        return "platform", f"nothing is built for {platform}; {near_misses(platform, PLATFORMS)}"
    pairs = {(cuda_tag(p.cuda), _torch_part(p.torch)): p for p in pins.pairings}
    told = ", ".join(f"{c} with {t}" for c, t in pairs)
    if cuda not in {c for c, _ in pairs}:
        return "CUDA", f"{where} has no pairing with {cuda}; it has {told}"
    if torch not in {t for _, t in pairs}:
        return "torch", f"{where} has no pairing with {torch}; it has {told}"
    if (cuda, torch) not in pairs:
        return "combination", f"{cuda} and {torch} are not paired in {where}; it has {told}{_major_reason(cuda, torch)}"
    alike = [j for j in matrix.jobs if _without_python(j.identifier) == _without_python(identifier)]
    if alike:
        tags = ", ".join(sorted({j.identifier.split("-")[4] for j in alike}))
        return "Python", f"this build is tagged {tags}, not {python}; the pairing has Python " + ", ".join(
            pairs[cuda, torch].python
        )
    same = [i for i in matrix.impossible if _without_python(i.identifier) == _without_python(identifier)]
    if same:
        return "combination", f"{same[0].what}: {same[0].why}"
    return "combination", f"each part is known, but {where} does not give them together"


def _owners(
    recipes: Sequence[recipe.Recipe],
) -> dict[str, dict[str, tuple[recipe.Recipe, recipe.PackageVersion]]]:
    """Distribution, as identifiers write it, → version → its recipe and pins."""
    found: dict[str, dict[str, tuple[recipe.Recipe, recipe.PackageVersion]]] = {}
    for package in recipes:
        for number, pins in package.versions.items():
            found.setdefault(re.sub(r"[-.]+", "_", pins.distribution), {})[number] = (package, pins)
    return found


def _arch_reason(text: str, package: recipe.Recipe) -> str | None:
    names = text.split(".")
    supported = [Arch.parse(name) for name in package.architectures.supported]
    spelt = [arch.sm.replace("_", "") for arch in supported]
    if len(names) > 1 and all(name in spelt for name in names):
        numbers = ",".join(str(arch) for arch in supported if arch.sm.replace("_", "") in names)
        return (
            "the matrix holds one target a wheel; a wheel for several is built with "
            f"`sm120 build {package.name} --arch {numbers}`"
        )
    for name in names:
        if name in spelt:
            continue
        match = re.fullmatch(r"sm(\d+)(\d)([af]?)", name)
        try:
            arch = str(Arch.parse(f"{match[1]}.{match[2]}{match[3]}" if match else name))
        except UnknownArchError as exc:
            return f"{name} is no target that is known; {near_misses(name, spelt)} ({exc.what})"
        if reason := package.architectures.refused.get(arch):
            return f"{package.name} cannot be built for {arch}: {reason}"
        return f"{package.name} is not built for {arch}; {near_misses(name, spelt)}"
    return None


def _torch_part(torch: str) -> str:
    return f"torch{'.'.join(torch.split('.')[:2])}"


def _major_reason(cuda: str, torch: str) -> str:
    built_for = torch_cuda(f"{torch.removeprefix('torch')}.0")
    if built_for is None or cuda_tag(built_for)[2:4] == cuda[2:4]:
        return ""
    return f"; {torch} is built for CUDA {built_for}, and majors must agree"


def _without_python(identifier: str) -> tuple[str, ...]:
    parts = identifier.split("-")
    return (*parts[:4], *parts[5:])
