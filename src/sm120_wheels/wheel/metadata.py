"""Edits METADATA and WHEEL as text: only the lines that must change do; licence and description stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from sm120_wheels.errors import WheelInvalidError

#: Requires-Dist exists since 1.2, which nobody writes any more.
_FIRST_SUFFICIENT = (1, 2)
_RAISED_TO = "2.1"


def edit_metadata(text: str, *, version: str, requires_dist: Sequence[str] = ()) -> str:
    """METADATA with another version, and requirements added.

    A requirement takes the place of one of upstream's on the same distribution with the same marker (so that a recipe
    can widen a range as well as narrow it). Metadata-Version is raised only where it is too old for that field.
    Raises :class:`WheelInvalidError` for a requirement that cannot be parsed.
    """
    head, separator, body = _split(text)
    added = [_requirement(r) for r in requires_dist]
    replaced = {_identity(r) for r in added}
    kept = []
    for field in _fields(head):
        name, _, value = field.partition(":")
        if name.lower() == "requires-dist" and _identity(_requirement(value.strip())) in replaced:
            continue
        kept.append(_changed(field, name, version))
    kept += [f"Requires-Dist: {requirement}" for requirement in map(str, added)]
    return "\n".join(kept) + "\n" + separator + body


def edit_wheel(text: str, *, tags: Iterable[str], purelib: bool | None = None) -> str:
    """WHEEL with other tags (each written as its own line, sorted), and where given another Root-Is-Purelib."""
    head, _, _ = _split(text)
    kept = []
    for field in _fields(head):
        name = field.partition(":")[0].lower()
        if name == "tag":
            continue
        if name == "root-is-purelib" and purelib is not None:
            field = f"Root-Is-Purelib: {str(purelib).lower()}"
        kept.append(field)
    return "\n".join([*kept, *(f"Tag: {t}" for t in sorted(tags))]) + "\n"


def _split(text: str) -> tuple[str, str, str]:
    """Header, the empty line, and the body, each as it was (newlines made Unix's in the header alone)."""
    match = re.search(r"\r?\n(\r?\n)", text)
    if not match:
        return text.replace("\r\n", "\n"), "", ""
    return text[: match.start()].replace("\r\n", "\n"), "\n", text[match.end() :]


def _fields(head: str) -> list[str]:
    """Header fields, each with its continuation lines."""
    fields: list[str] = []
    for line in head.rstrip("\n").split("\n"):
        if line[:1] in (" ", "\t") and fields:
            fields[-1] += "\n" + line
        else:
            fields.append(line)
    return fields


def _changed(field: str, name: str, version: str) -> str:
    if name.lower() == "version":
        return f"Version: {version}"
    if name.lower() == "metadata-version":
        numbers = tuple(int(n) for n in re.findall(r"\d+", field))[:2]
        return field if numbers >= _FIRST_SUFFICIENT else f"Metadata-Version: {_RAISED_TO}"
    return field


def _identity(requirement: Requirement) -> tuple[str, str]:
    return canonicalize_name(requirement.name), str(requirement.marker or "")


def _requirement(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as exc:
        raise WheelInvalidError(
            f"{text!r} is not a requirement", why=str(exc), hint="write it as in requirements files: torch~=2.11.0"
        ) from exc
