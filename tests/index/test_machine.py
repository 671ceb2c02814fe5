from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sm120_wheels.errors import SettingError
from sm120_wheels.index.machine import Gpu, detect, parse_smi, python_tags

HEADER = """
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
"""


def test_smi_tells_gpus_driver_and_cuda() -> None:
    table = "NVIDIA GeForce RTX 5090, 12.0, 580.95.05\nNVIDIA GB10, 12.1, 580.95.05\n"
    gpus, driver, cuda = parse_smi(table, HEADER)
    assert gpus == (
        Gpu(name="NVIDIA GeForce RTX 5090", capability=(12, 0)),
        Gpu(name="NVIDIA GB10", capability=(12, 1)),
    )
    assert (driver, cuda) == ("580.95.05", "13.0")


def test_old_smi_that_knows_no_capability_gives_none_not_a_guess() -> None:
    gpus, driver, cuda = parse_smi("Tesla, 40GB, [N/A], 470.1\n", "no header")
    assert gpus == (Gpu(name="Tesla, 40GB", capability=None),)
    assert (driver, cuda) == ("470.1", None)
    assert parse_smi("", "") == ((), None, None)


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
