"""Which sources of a build need no compile any more: compiled by an earlier try, or found by ccache.

Only for what is told while a build goes on: the build tool alone decides what it compiles. Reads the records and the
statistics logs in the folder where a build's sessions write.
"""

from __future__ import annotations

import functools
from pathlib import Path

from sm120_wheels.compile.cache.stats import found_by_ccache
from sm120_wheels.compile.summary import read_records


class Present:
    """``work_dir``: where sessions write; ``records``: those of this one, which say for themselves what they did."""

    def __init__(self, work_dir: Path, records: Path) -> None:
        self._work_dir = work_dir
        self._own = records.name

    def sources(self) -> set[str]:
        """Their paths, as each compile named them."""
        found = (found_by_ccache(path) for path in self._work_dir.glob("ccache-statistics*.log"))
        return self._earlier.union(*found)

    @functools.cached_property
    def _earlier(self) -> set[str]:
        others = (path for path in self._work_dir.glob("compile-*.jsonl") if path.name != self._own)
        return {record["source"] for path in others for record in read_records(path) if _compiled(record)}


def _compiled(record: dict[str, object]) -> bool:
    return record["kind"] in ("end", "turn") and record["exit"] == 0
