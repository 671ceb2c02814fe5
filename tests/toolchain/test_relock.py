"""Locks are written from .in files; what cannot be is told apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sm120_wheels.errors import CommandError, HostUnreachableError, UnknownRecipeError
from sm120_wheels.toolchain import relock
from sm120_wheels.toolchain.locks import read_lock
from sm120_wheels.toolchain.relock import least_python, lock_source, resolve_lock

if TYPE_CHECKING:
    from tests.toolchain.conftest import LocalIndex


def source(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.in"
    path.write_text(text)
    return path


def test_the_lock_holds_pins_and_hashes_and_not_the_index(local_index: LocalIndex, tmp_path: Path) -> None:
    digest = local_index.add("alpha")
    text = resolve_lock(source(tmp_path, "# why\nalpha\n"), "", cache_root=tmp_path, upgrade=False)
    assert text == f"alpha==1.0 \\\n    --hash=sha256:{digest}\n"


def test_pins_stay_unless_an_upgrade_is_asked_for(local_index: LocalIndex, tmp_path: Path) -> None:
    old = local_index.add("alpha")
    wanted = source(tmp_path, "alpha\n")
    first = resolve_lock(wanted, "", cache_root=tmp_path, upgrade=False)
    folder = local_index.root / "simple" / "alpha"
    page = (folder / "index.html").read_text()
    for name in list(folder.iterdir()):
        name.rename(local_index.root / name.name)
    folder.rmdir()
    new = local_index.add("alpha", "2.0")
    (local_index.root / "alpha-1.0-py3-none-any.whl").rename(folder / "alpha-1.0-py3-none-any.whl")
    (folder / "index.html").write_text(page + (folder / "index.html").read_text())
    cache = tmp_path / "second"
    assert old in resolve_lock(wanted, first, cache_root=cache, upgrade=False)
    upgraded = resolve_lock(wanted, first, cache_root=cache, upgrade=True)
    assert "alpha==2.0" in upgraded
    assert new in upgraded


def test_versions_that_do_not_fit_together_are_told_without_a_dump(local_index: LocalIndex, tmp_path: Path) -> None:
    local_index.add("alpha")
    with pytest.raises(CommandError) as caught:
        resolve_lock(source(tmp_path, "alpha>1\nalpha<1\n"), "", cache_root=tmp_path, upgrade=False)
    assert "alpha" in caught.value.why
    assert len(caught.value.why.splitlines()) <= 4


def test_an_index_that_does_not_answer_is_told(tmp_path: Path, clean_index_settings: Callable[..., None]) -> None:
    clean_index_settings(UV_DEFAULT_INDEX="http://127.0.0.1:9/simple", UV_HTTP_RETRIES="0")
    with pytest.raises(HostUnreachableError):
        resolve_lock(source(tmp_path, "alpha\n"), "", cache_root=tmp_path, upgrade=False)


def test_a_lock_says_its_oldest_python() -> None:
    assert least_python("# why\n# python >= 3.11\ntorch\n") == "3.11"
    assert least_python("torch\n") == "3.10"


def test_an_unknown_lock_offers_the_known() -> None:
    with pytest.raises(UnknownRecipeError, match="no lock called") as caught:
        lock_source("build-cmake33")
    assert "build-cmake3" in caught.value.hint


def test_a_written_lock_says_whether_it_changed(
    local_index: LocalIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_index.add("alpha")
    source(tmp_path, "alpha\n")
    monkeypatch.setattr(relock, "lock_path", lambda name: tmp_path / f"{name}.txt")
    assert relock.write_lock("x", cache_root=tmp_path, upgrade=False) is True
    assert relock.write_lock("x", cache_root=tmp_path, upgrade=False) is False
    assert [entry.name for entry in read_lock(tmp_path / "x.txt")] == ["alpha"]
