"""The head of a patch file: what it is for, whose date it bears, what upstream makes of it, which kernels go.

Only the text before the diff is read here; where a patch lies and whether it applies is patch.py's.
"""

from __future__ import annotations

import email.parser
import email.utils
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

#: ``not proposed``; ``proposed`` with a link; ``taken over`` with the version, commit or link that has it.
_STATUS = re.compile(r"not proposed|proposed https://\S+|taken over \S.*")
_REMOVED = re.compile(r"^Kernels removed(?: \([^)\n]*\))?:", re.MULTILINE)
_GROUP = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, kw_only=True)
class PatchHeader:
    """The head of one patch."""

    subject: str
    """Without a tag in brackets before it."""
    date: str
    """When it was written, ``YYYY-MM-DD``."""
    upstream_status: str
    purpose: str
    """Why it is needed."""
    kernels_removed: str
    """Which kernels the wheel no longer has, for the person who compares two wheels; often ``none.``"""
    source: str = ""
    """Name of the recipe's source that it applies to; empty: the main one."""
    group: str = ""
    """Name under which it can be left out of a build (``lean``); empty: it is in every build."""


def read_header(head: str) -> PatchHeader:
    """Read the text before the first ``diff --git``. Raises ``ValueError`` naming a field that is missing or wrong."""
    message = email.parser.Parser().parsestr(head)
    fields = {key: " ".join(str(value).split()) for key, value in message.items()}
    body = re.split(r"^---\s*$", str(message.get_payload()), maxsplit=1, flags=re.MULTILINE)[0]
    purpose, removed = _paragraphs(body)
    subject = re.sub(r"^\[[^]]*\]\s*", "", _needed(fields, "Subject"))
    status = _needed(fields, "Upstream-Status")
    if not _STATUS.fullmatch(status):
        raise ValueError(
            f"field Upstream-Status is {status!r}, not 'not proposed', 'proposed https://…' or 'taken over …'"
        )
    group = fields.get("Group", "")
    if "Group" in fields and not _GROUP.fullmatch(group):
        raise ValueError(f"field Group is {group!r}, not a lower-case name such as lean")
    return PatchHeader(
        subject=subject,
        date=_date(_needed(fields, "Date")),
        upstream_status=status,
        purpose=purpose,
        kernels_removed=removed,
        source=fields.get("Source", ""),
        group=group,
    )


def _needed(fields: Mapping[str, str], name: str) -> str:
    if not fields.get(name):
        raise ValueError(f"field {name} is missing")
    return fields[name]


def _date(text: str) -> str:
    """ISO, or as mail has it."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        try:
            return email.utils.parsedate_to_datetime(text).date().isoformat()
        except (TypeError, ValueError) as exc:
            raise ValueError(f"field Date is {text!r}, not a date such as 2026-11-30") from exc


def _paragraphs(body: str) -> tuple[str, str]:
    """The purpose, and what stands behind ``Kernels removed:`` up to an empty line."""
    found = _REMOVED.search(body)
    if found is None:
        raise ValueError("field 'Kernels removed:' is missing (a line of the text; 'none' where none is)")
    removed, _, rest = body[found.end() :].partition("\n\n")
    if not removed.strip():
        raise ValueError("field 'Kernels removed:' is empty (write 'none' where none is)")
    purpose = " ".join(f"{body[: found.start()]} {rest}".split())
    if not purpose:
        raise ValueError("field purpose is missing (the text between the header and 'Kernels removed:')")
    return purpose, " ".join(removed.split())
