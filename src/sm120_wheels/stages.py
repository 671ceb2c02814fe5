"""Stage records: what each stage of a build did, as JSON in the work folder, and whether it need not run again.

A record is written when its stage has ended well, so a run that was stopped goes on at the first stage without one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm120_wheels import files

Record = dict[str, Any]

#: Of the records; raised when a stage writes something that another stage newly reads.
FORMAT = 1

#: The order in which data flows.
STAGES = ("plan", "fetch", "patch", "provision", "compile", "finish")


@dataclass(frozen=True, kw_only=True)
class WorkFolder:
    """The folder of one build; its name holds the plan's key, so another plan never finds these records."""

    root: Path
    key: str

    @property
    def sources(self) -> Path:
        return self.root / "src"

    @property
    def compile(self) -> Path:
        return self.root / "compile"

    @property
    def raw(self) -> Path:
        return self.root / "raw"

    @property
    def log(self) -> Path:
        return self.root / "build.log"

    def record_path(self, stage: str) -> Path:
        return self.root / "records" / f"{STAGES.index(stage)}-{stage}.json"

    def read(self, stage: str) -> Record | None:
        """The record of a finished stage, or None. A record that cannot be read counts as none."""
        try:
            record: Record = json.loads(self.record_path(stage).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(record, dict) or "output" not in record:
            return None
        return record if (record.get("key"), record.get("format")) == (self.key, FORMAT) else None

    def run(
        self, stage: str, work: Callable[[], Record], *, still_there: Callable[[Record], bool], spent: float = 0.0
    ) -> Record:
        """The record of a stage: the one on disk where ``still_there`` finds its outputs, else that of ``work()``.

        ``spent``: seconds that the stage took before this call.
        """
        record = self.read(stage)
        if record is not None and still_there(record["output"]):
            return record
        for later in STAGES[STAGES.index(stage) :]:
            self.record_path(later).unlink(missing_ok=True)
        started = time.time()
        clock = time.monotonic()
        output = work()
        record = {
            "stage": stage,
            "format": FORMAT,
            "key": self.key,
            "started": round(started, 3),
            "seconds": round(time.monotonic() - clock + spent, 3),
            "output": output,
        }
        files.write_json(self.record_path(stage), record)
        return record
