"""``sm120 profile`` as a maintainer runs it, on a summary as a build leaves it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sm120_wheels import cli
from sm120_wheels.compile.budget import MIB
from sm120_wheels.compile.profile import Footprint, Measured, Store, Unit, read_profile, store_path, write_profile

ROOT = "/work/kernels-c5ac98/src/kernels"


def unit(source: str, peak: int, exit_code: int = 0) -> dict[str, Any]:
    figures = {"source": f"{ROOT}/{source}", "peak_rss": peak, "seconds": 2.5, "cpu_seconds": 2.25}
    return figures | {"exit_code": exit_code, "reserved": 0, "waited_seconds": 0.0, "retries": 0, "basis": "default"}


def summary(folder: Path, *units: dict[str, Any]) -> Path:
    path = folder / "compile-summary.json"
    path.write_text(json.dumps({"units": units, "makespan": 5.0}))
    return path


def profile(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["profile", *map(str, arguments)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_builds_summary_becomes_the_profile_of_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SM120_CACHE_DIR", str(tmp_path / "cache"))
    store = Store(store_path("kernels-1.0"))
    here, before = Footprint(files=9, size=4096, cutlass_files=2), Footprint(files=7, size=2048)
    store.add(
        Measured(
            source="csrc/gemm/new.cu",
            targets="sm_120a",
            compiler="nvcc",
            variant="",
            parallel=1,
            peak=1,
            seconds=1.0,
            cpu_seconds=1.0,
            footprint=here,
        )
    )
    store.save()
    old = Unit(source="csrc/gemm/old.cu", peak=MIB, seconds=1, footprint=before)
    write_profile(tmp_path / "old.csv", [old], comment="")
    built = summary(
        tmp_path,
        unit("csrc/gemm/old.cu", 300 * MIB),
        unit("csrc/gemm/old.cu", 200 * MIB),
        unit("csrc/gemm/new.cu", 100 * MIB),
        unit("csrc/gemm/broken.cu", 900 * MIB, exit_code=1),
    )
    out = tmp_path / "new.csv"
    options = ("--like", tmp_path / "old.csv", "--package", "kernels-1.0", "--comment", "by hand")
    assert profile(built, *options, "-o", out) == 0
    assert "2 files in" in (said := capsys.readouterr().err)
    assert "1 that did not compile" in said
    assert out.read_text().splitlines()[0] == "# by hand"
    assert {u.source: asdict(u) for u in read_profile(out).units.values()} == {
        "csrc/gemm/old.cu": asdict(
            Unit(source="csrc/gemm/old.cu", peak=300 * MIB, seconds=2.5, cpu_seconds=2.25, footprint=before)
        ),
        "csrc/gemm/new.cu": asdict(
            Unit(source="csrc/gemm/new.cu", peak=100 * MIB, seconds=2.5, cpu_seconds=2.25, footprint=here)
        ),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [("[]", "that is no compile summary"), ('{"units": []}', "no file of that build was compiled")],
)
def test_what_holds_no_measurement_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "summary.json").write_text(text)
    assert profile(tmp_path / "summary.json", "--comment", "x", "-o", tmp_path / "p.csv") == 17
    assert message in capsys.readouterr().err
    assert not (tmp_path / "p.csv").exists()


def test_a_package_that_was_never_measured_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SM120_CACHE_DIR", str(tmp_path))
    built = summary(tmp_path, unit("csrc/a.cu", MIB))
    assert profile(built, "--package", "kernel-1.0", "--comment", "x", "-o", tmp_path / "p.csv") == 17
    assert "no build of kernel-1.0 was measured here" in capsys.readouterr().err
