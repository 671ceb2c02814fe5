from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sm120_wheels.errors import DownloadError, HostUnreachableError, SettingError
from sm120_wheels.gpus import Gpu
from sm120_wheels.index.layout import Snapshot
from sm120_wheels.index.machine import Machine, python_tags
from sm120_wheels.index.maintain import yank
from sm120_wheels.index.model import Evidence, Wheel
from sm120_wheels.index.publish import Options, publish
from sm120_wheels.index.which import choose, offered
from tests.index.makewheel import beside, make_wheel
from tests.index.serving import served

RTX_5090 = Machine(
    gpus=(Gpu(name="NVIDIA GeForce RTX 5090", capability=(12, 0)),),
    driver="580.95",
    driver_cuda="13.0",
    python="3.12.1",
    tags=python_tags((3, 12)),
    torch="2.11.0+cu130",
    torch_cuda="13.0",
)
SPARK = dataclasses.replace(RTX_5090, gpus=(Gpu(name="NVIDIA GB10", capability=(12, 1)),))


def wheel(version: str = "0.4.4", local: str = "cu130.torch211.sm120a", **changed: Any) -> Wheel:
    values: dict[str, Any] = {
        "filename": f"tiny-{version}+{local}-cp310-abi3-linux_x86_64.whl",
        "sha256": "0" * 64,
        "size": 1,
        "uploaded": "2026-01-01T00:00:00Z",
        "project": "tiny",
        "version": f"{version}+{local}",
        "metadata_sha256": "0" * 64,
        "indexes": ("cu130",),
        "cuda": "13.0",
        "torch": "2.11",
        "archs": ("12.0a",),
        "evidence": (smoke("passed"),),
    }
    return Wheel(**{**values, **changed})


def smoke(state: str, **values: Any) -> Evidence:
    return Evidence(kind="smoke", sha256="0" * 64, size=1, state=state, **values)  # type: ignore[arg-type]


#: An audit for another GPU only.
RAN = Evidence(kind="audit", sha256="0" * 64, size=1, verdicts={"9.0": "runs"})


def reasons(published: Wheel, machine: Machine = RTX_5090) -> str:
    choice = choose([published], machine)
    assert choice.wheel is None
    (rejected,) = choice.rejected
    return "; ".join(rejected.reasons)


def test_the_one_that_fits_is_chosen_without_remarks() -> None:
    choice = choose([wheel()], RTX_5090)
    assert choice.wheel == wheel()
    assert choice.notes == ()


@pytest.mark.parametrize(
    ("published", "machine", "reason"),
    [
        (wheel(archs=("12.0a",)), SPARK, "has code for 12.0a; this GPU is 12.1"),
        (wheel(archs=("12.1a",)), RTX_5090, "has code for 12.1a; this GPU is 12.0"),
        (wheel(torch="2.10"), RTX_5090, "was built against torch 2.10; torch 2.11.0+cu130 is installed"),
        (
            wheel(torch=None, requires_dist=("torch==2.9.*",)),
            RTX_5090,
            "needs torch==2.9.*; torch 2.11.0+cu130 is installed",
        ),
        (wheel(cuda="12.8"), RTX_5090, "is for CUDA 12.8; the installed torch is for CUDA 13.0"),
        (
            wheel(),
            dataclasses.replace(RTX_5090, driver="570.86", driver_cuda="12.8"),
            "needs a driver for CUDA 13, which is driver 580 or later; this one (570.86) reaches CUDA 12.8",
        ),
        (wheel(requires_python=">=3.13"), RTX_5090, "needs Python >=3.13; this is 3.12.1"),
        (
            wheel(filename="tiny-1-cp313-cp313-linux_x86_64.whl"),
            RTX_5090,
            "is for cp313-cp313-linux_x86_64, which Python 3.12.1 on this system does not install",
        ),
        (wheel(), dataclasses.replace(RTX_5090, gpus=()), "no NVIDIA GPU was found"),
        (wheel(yanked="wrong FP4"), RTX_5090, "yanked: wrong FP4"),
    ],
)
def test_each_misfit_is_named(published: Wheel, machine: Machine, reason: str) -> None:
    assert reason in reasons(published, machine)


def test_the_audit_is_believed_before_the_label() -> None:
    audit = Evidence(kind="audit", sha256="0" * 64, size=1, verdicts={"12.0": "part", "12.1": "runs"})
    told = wheel(archs=("12.0f",), evidence=(audit, smoke("passed")))
    assert "has no complete code for compute capability 12.0 (audit: part)" in reasons(told)
    assert choose([told], SPARK).wheel == told


def test_a_wheel_whose_traps_were_not_looked_for_is_not_chosen() -> None:
    audit = Evidence(kind="audit", sha256="0" * 64, size=1, verdicts={"12.0": "unread"})
    told = wheel(archs=("12.0f",), evidence=(audit, smoke("passed")))
    assert "is not known to run on compute capability 12.0" in reasons(told)


def test_wheel_without_gpu_code_fits_any_gpu_and_none() -> None:
    audit = Evidence(kind="audit", sha256="0" * 64, size=1, verdicts={"12.0": "no-cuda"})
    pure = wheel(archs=(), cuda=None, torch=None, evidence=(audit,), filename="tiny-1-py3-none-any.whl")
    assert choose([pure], dataclasses.replace(RTX_5090, gpus=())).wheel == pure


def test_pure_wheel_of_a_set_fits_the_gpus_its_label_names() -> None:
    audit = Evidence(kind="audit", sha256="0" * 64, size=1, verdicts={"12.0": "no-cuda", "12.1": "no-cuda"})
    part = wheel(archs=("12.0f",), evidence=(audit,), filename="tiny-1-py3-none-any.whl")
    assert choose([part], SPARK).wheel == part
    assert "has code for 12.0a; this GPU is 12.1" in reasons(part.model_copy(update={"archs": ("12.0a",)}), SPARK)


def test_wheel_of_unknown_target_is_not_taken_on_trust() -> None:
    assert "has code for 12.9z; this GPU is 12.0" in reasons(wheel(archs=("12.9z",), evidence=()))
    assert "has code for no known target" in reasons(wheel(archs=(), evidence=(smoke("passed"), RAN)))


def test_newest_release_wins_then_the_cuda_of_torch_then_proof() -> None:
    old, new = wheel("0.4.4"), wheel("0.4.10")
    assert choose([new, old], RTX_5090).wheel == new
    other_minor = wheel(local="cu132.torch211.sm120a", cuda="13.2")
    assert choose([other_minor, old], RTX_5090).wheel == old
    unproved = wheel(local="cu130.torch211.sm120f", archs=("12.0f",), evidence=(), uploaded="2027-01-01T00:00:00Z")
    assert choose([unproved, old], RTX_5090).wheel == old


def test_wheel_that_failed_on_a_gpu_is_taken_only_if_nothing_else_fits() -> None:
    failed = wheel("0.5.0", evidence=(smoke("failed", gpu="RTX 5090", detail="all zeros"),))
    assert choose([failed, wheel("0.4.4")], RTX_5090).wheel == wheel("0.4.4")
    alone = choose([failed], RTX_5090)
    assert alone.wheel == failed
    assert any("a GPU smoke test failed on RTX 5090: all zeros" in note for note in alone.notes)


def test_torch_that_is_not_installed_is_a_remark_not_a_refusal() -> None:
    choice = choose([wheel()], dataclasses.replace(RTX_5090, torch=None, torch_cuda=None))
    assert choice.wheel == wheel()
    assert "built against torch 2.11" in choice.notes[0]


def test_unproved_partial_and_excepted_wheels_say_so() -> None:
    notes = " ".join(choose([wheel(evidence=(), without=("flash_ops",), exceptions=("partial",))], RTX_5090).notes)
    assert "no GPU smoke test of this wheel has passed" in notes
    assert "built without flash_ops" in notes
    assert "partial" in notes


def test_closest_miss_comes_first() -> None:
    far = wheel("0.9.0", torch="2.8", cuda="12.8", archs=("12.1a",))
    near = wheel("0.4.4", torch="2.10")
    choice = choose([far, near], RTX_5090)
    assert [r.wheel for r in choice.rejected] == [near, far]


@pytest.fixture
def index(root: Path, dist: Path) -> Path:
    first = make_wheel(
        dist,
        build={"without": ["flash_ops"], "archs": ["12.0a"], "identifier": "id"},
        requires_dist=("torch==2.11.*",),
    )
    beside(first, "smoke", state="passed", gpu="RTX 5090", driver="580", reason="21 ops")
    second = make_wheel(dist, version="0.2.0+cu128.torch28.sm120a")
    publish(root, [first, second], options=Options(allow=frozenset({"partial"})))
    yank(root, second.name, reason="bad")
    return root


def test_a_served_index_offers_exactly_what_the_folder_does(index: Path) -> None:
    with served(index) as address:
        assert offered(address, "SM120_Selftest") == offered(str(index), "sm120-selftest")
        assert offered(address.rstrip("/"), "sm120-selftest")
        with pytest.raises(SettingError, match="no package is called") as refused:
            offered(address, "sm120-selftets")
        assert "did you mean sm120-selftest" in refused.value.hint
        with pytest.raises(DownloadError, match="there is no index of this project's kind there"):
            offered(f"{address}cu130/", "sm120-selftest")
    with pytest.raises(HostUnreachableError, match="cannot be reached"):
        offered(address, "sm120-selftest")


def test_folder_that_is_no_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no index here"):
        offered(str(tmp_path), "tiny")


def test_index_of_another_program_is_refused(index: Path) -> None:
    for page in Snapshot.current(index).layout.nodes.glob("*/simple/index.json"):
        page.write_text(page.read_text().replace("_sm120", "_other"))
    with served(index) as address, pytest.raises(DownloadError, match="was not made by this program"):
        offered(address, "sm120-selftest")
