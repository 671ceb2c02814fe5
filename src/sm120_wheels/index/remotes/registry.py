"""Uploads published wheels to an existing registry, with twine."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

from sm120_wheels.errors import PublishRefusedError, RemoteError, ToolMissingError
from sm120_wheels.index.layout import present
from sm120_wheels.index.maintain import select
from sm120_wheels.process import run

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def upload(root: Path, what: list[str], *, url: str) -> list[str]:
    """Upload the published wheels that filenames or requirements name; returns the filenames, in upload order.

    Raises :class:`PublishRefusedError` for yanked wheels and :class:`RemoteError` where the registry refuses.
    """
    snapshot = present(root)
    wheels = {w.filename: w for text in what for w in select(snapshot, Path(text).name if "/" in text else text)}
    if yanked := sorted(w.filename for w in wheels.values() if w.yanked is not None):
        raise PublishRefusedError(
            "a yanked wheel is not uploaded", why=", ".join(yanked), hint="name the others, or `sm120 index unyank` it"
        )
    if importlib.util.find_spec("twine") is None:
        raise ToolMissingError(
            "uploading needs twine, which is not installed", hint="pip install 'sm120-wheels[upload]'"
        )
    argv = [sys.executable, "-m", "twine", "upload", "--non-interactive", "--disable-progress-bar"]
    argv += ["--repository-url", url]
    # twine draws with rich, which would break lines at the width of our terminal.
    env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    finished = run([*argv, *(str(root / w.path) for w in wheels.values())], env=env, check=False)
    if not finished.ok:
        raise RemoteError(
            "the registry did not take the upload",
            where=url,
            why="\n".join(" ".join(_COLOUR.sub("", x).split()) for x in finished.output.splitlines() if x.strip()),
            hint="registries that forbid local versions (+cu130) take no such wheel; credentials come from "
            "TWINE_USERNAME and TWINE_PASSWORD; what was uploaded before stays",
        )
    return list(wheels)
