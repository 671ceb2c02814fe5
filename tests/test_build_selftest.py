"""The quickstart's promise: the real selftest package, built by the real command with CUDA from the package index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

from sm120_wheels.toolchain.cuda import CudaToolkit

pytestmark = [pytest.mark.long, pytest.mark.cuda, pytest.mark.network]


def sm120(*arguments: str | Path, cwd: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "sm120_wheels", *map(str, arguments), "--json"],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "SM120_BROKER_IDLE_S": "20"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory, pypi_cuda: CudaToolkit) -> list[dict[str, Any]]:
    """The same build in two folders whose paths differ in length, and one has spaces and a comma."""
    assert pypi_cuda.version.startswith("13.0.")
    folders = [tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("another folder, with a longer name")]
    return [sm120("build", "selftest", "--arch", "12.0a", cwd=folder) for folder in folders]


def test_two_folders_give_the_same_bytes(builds: list[dict[str, Any]]) -> None:
    first, second = (build["wheels"][0] for build in builds)
    assert first["path"] != second["path"]
    assert first["sha256"] == second["sha256"]


def test_the_wheel_holds_machine_code_for_sm_120a_and_nothing_else(
    builds: list[dict[str, Any]], tmp_path: Path
) -> None:
    audit = sm120("audit", builds[0]["wheels"][0]["path"], cwd=tmp_path)
    report = audit["wheels"][0] if "wheels" in audit else audit
    with_code = [library for library in report["libraries"] if library["sass"] or library["ptx"]]
    assert [sorted(library["sass"]) for library in with_code] == [["sm_120a"]]
    assert not any(library["ptx"] for library in with_code)
    assert report["verdicts"]["12.0"] == "runs"
    assert report["verdicts"]["12.1"] == "none"


def test_name_metadata_and_record_agree_on_what_it_is_for(builds: list[dict[str, Any]]) -> None:
    wheel = Path(builds[0]["wheels"][0]["path"])
    assert wheel.name.startswith("sm120_selftest-0.1.0+cu130.torch211.sm120a-cp310-abi3-manylinux_2_")
    with zipfile.ZipFile(wheel) as bundle:
        info = "sm120_selftest-0.1.0+cu130.torch211.sm120a.dist-info"
        metadata = message_from_bytes(bundle.read(f"{info}/METADATA"))
        record = json.loads(bundle.read(f"{info}/sm120/build.json"))
        assert f"{info}/sboms/sm120.cdx.json" in bundle.namelist()
    assert metadata["Version"] == "0.1.0+cu130.torch211.sm120a"
    assert metadata.get_all("Requires-Dist") == ["torch~=2.11.0"]
    assert record["plan"]["key"] == builds[0]["key"]
    assert record["toolchain"]["cuda"]["version"] == "13.0.88"


def test_the_network_was_taken_away_or_the_record_says_that_it_was_not(builds: list[dict[str, Any]]) -> None:
    network = builds[0]["stages"]["compile"]["output"]["network"]
    allowed = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0
    if os.geteuid() == 0 and allowed:
        assert network == "none (own network namespace)"
    else:
        assert network in ("none (own network namespace)", "not isolated")
