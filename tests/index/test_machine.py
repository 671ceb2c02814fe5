from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm120_wheels.errors import SettingError
from sm120_wheels.index.machine import cuda_in_header, detect, python_tags

HEADER = """
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
"""


def test_the_driver_s_cuda_is_read_from_the_header_or_is_none() -> None:
    assert cuda_in_header(HEADER) == "13.0"
    assert cuda_in_header("no header") is None


def test_the_gpus_are_those_that_programs_would_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    rows = "0, GPU-a, 9.0, 580.95.05, 143771 MiB, NVIDIA H200\n1, GPU-b, 12.0, 580.95.05, 32607 MiB, NVIDIA GeForce"
    smi.write_text(f'#!/bin/sh\ncase "$*" in *query*) echo "{rows}";; *) echo "{HEADER.strip()}";; esac\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    machine = detect()
    assert machine.capability == (12, 0)
    assert (machine.driver, machine.driver_cuda) == ("580.95.05", "13.0")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment with something called torch that must not be imported."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (site,) = (tmp_path / "env/lib").glob("python*/site-packages")
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text("raise SystemExit('imported')")
    (site / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    (site / "torch-2.11.0+cu130.dist-info").mkdir()
    (site / "torch-2.11.0+cu130.dist-info/METADATA").write_text("Name: torch\nVersion: 2.11.0+cu130\n")
    return tmp_path / "env/bin/python"


def test_torch_is_read_without_importing_it(environment: Path) -> None:
    machine = detect(environment)
    assert (machine.torch, machine.torch_cuda) == ("2.11.0+cu130", "13.0")
    assert machine.python == ".".join(map(str, sys.version_info[:3]))


def test_absent_torch_is_none() -> None:
    machine = detect(Path(sys.executable))
    assert (machine.torch is None) == (machine.torch_cuda is None)


def test_file_that_is_no_python_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is not a Python that can be asked"):
        detect(tmp_path / "nothing")


def test_tags_are_those_of_the_asked_version() -> None:
    found = {(t.interpreter, t.abi) for t in python_tags((3, 12))}
    assert {("cp312", "cp312"), ("cp310", "abi3"), ("py3", "none")} <= found
    assert ("cp313", "cp313") not in found
    assert ("cp310", "abi3") not in {(t.interpreter, t.abi) for t in python_tags((3, 13), threaded=True)}
