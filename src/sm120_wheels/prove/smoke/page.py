"""The page of a smoke run: one file, readable without JavaScript, which only adds the filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sm120_wheels.files import human_bytes, human_seconds


def to_html(records: Sequence[Mapping[str, Any]]) -> str:
    """A page about these records (:func:`report.record`). Everything in them is somebody's text, and is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(bytes=human_bytes, seconds=human_seconds, slug=_slug)
    order = {"failed": 0, "not run": 1, "passed": 2}
    shown = [{**record, "cases": sorted(record["cases"], key=lambda case: order[case["state"]])} for record in records]
    return environment.get_template("page.html").render(records=shown)


def _slug(state: str) -> str:
    """A state as the name of a CSS class."""
    return state.replace(" ", "-")
