"""``sm120 simulate`` and ``sm120 broker`` as a user runs them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sm120_wheels.cli.simulate import command, find_profile
from sm120_wheels.paths import recipes_root

WHOLE = str(recipes_root() / "sgl-kernel" / "profiles" / "0.4.4-sm120a-whole.csv")


def sm120(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sm120_wheels", *arguments], capture_output=True, text=True, check=False
    )


def test_two_machines_are_compared_with_fixed_job_counts() -> None:
    ran = sm120("simulate", "--profile", WHOLE, "--cores", "16", "--memory", "40GiB", "--memory", "128GiB", "--json")
    assert ran.returncode == 0, ran.stderr
    tight, roomy = json.loads(ran.stdout)
    assert tight["makespan_s"] > roomy["makespan_s"] >= roomy["lower_bound_s"] > 500
    assert tight["peak"] <= 40 * 2**30
    assert tight["fixed"]["-j cores"]["over_budget"] is True
    assert roomy["fixed"]["-j cores"]["over_budget"] is False


def test_people_get_a_table() -> None:
    ran = sm120("simulate", "--profile", WHOLE, "--cores", "4", "--memory", "24GiB")
    assert ran.returncode == 0, ran.stderr
    assert "-j cores = -j4" in ran.stdout
    assert "out of memory" in ran.stdout


def test_jobs_for_builders_fit_into_each_ones_memory_whichever_files_it_gets() -> None:
    asked = ("simulate", "--profile", WHOLE, "--machines", "8", "--cores", "32", "--memory", "128GiB")
    (row,) = json.loads(sm120(*asked, "--json").stdout)
    largest = 19.8e9
    assert row["safe_jobs"] % 8 == 0
    assert 0.7 * row["memory"] < row["safe_jobs"] / 8 * largest <= row["memory"]
    ran = sm120(*asked)
    assert ran.stdout.splitlines()[1].split()[-1] == str(row["safe_jobs"])


def test_a_machine_that_is_too_small_is_refused_with_the_file() -> None:
    ran = sm120("simulate", "--profile", WHOLE, "--memory", "10GiB")
    assert ran.returncode == 45
    assert "csrc/gemm/fp8_gemm_kernel.cu needs 19.8 GB" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_recipe_or_profile_that_does_not_exist_is_named(tmp_path: Path) -> None:
    ran = sm120("simulate", "sgl-kernl")
    assert ran.returncode == 11
    assert "did you mean sgl-kernel?" in ran.stderr
    ran = sm120("simulate", "sgl-kernel", "--arch", "9.0a")
    assert ran.returncode == 17
    assert "it has" in ran.stderr
    assert "0.4.4-sm120a" in ran.stderr
    ran = sm120("simulate", "--profile", str(tmp_path / "none.csv"))
    assert ran.returncode == 17
    assert "none.csv" in ran.stderr


def test_the_latest_version_counts_and_a_whole_build_only_where_its_profile_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "recipes" / "sgl-kernel" / "profiles"
    folder.mkdir(parents=True)
    shutil.copy(recipes_root() / "sgl-kernel" / "recipe.toml", folder.parent)
    for name in ("0.4.9-sm120a", "0.4.10-sm120a", "0.4.10-sm120a-whole", "0.4.10-sm90a"):
        (folder / f"{name}.csv").touch()
    monkeypatch.setenv("SM120_DATA_DIR", str(tmp_path))
    assert find_profile("sgl_kernel", None, "12.0a").stem == "0.4.10-sm120a"
    assert find_profile("sgl-kernel", "0.4.9", None).stem == "0.4.9-sm120a"


def test_neither_recipe_nor_profile_is_a_usage_error() -> None:
    ran = sm120("simulate")
    assert ran.returncode == 2
    assert "name a recipe" in ran.stderr
    assert command.help


def test_no_broker_is_an_answer_and_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM120_RUNTIME_DIR", str(tmp_path))
    ran = sm120("broker", "status")
    assert (ran.returncode, ran.stdout) == (0, "no broker is running: nothing is being compiled\n")
    assert json.loads(sm120("broker", "status", "--json").stdout) == {"pid": None}
    assert "no broker is running" in sm120("broker", "stop").stdout
