"""Published against expected, by the identifier in each wheel's build record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sm120_wheels.index.maintain import yank
from sm120_wheels.index.publish import Options, publish
from sm120_wheels.index.which import catalogue
from sm120_wheels.matrix.coverage import coverage
from sm120_wheels.matrix.jobs import Matrix
from tests.index.makewheel import beside, make_wheel
from tests.index.serving import served

Make = Callable[..., Matrix]


def record(identifier: str, *, left_out: tuple[str, ...] = ()) -> dict[str, object]:
    """As a build packs it."""
    plan = {"identifier": identifier, "cuda": "13.0", "torch": "2.11.0", "archs": ["12.0a"]}
    return {"plan": plan, "toolchain": {}, "left_out": list(left_out)}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """One whole wheel (smoke passed), one partial, one yanked, one of another build."""
    names = [f"demo-1.0-cu130-torch2.11-cp31{n}_cp31{n}-sm120a-linux_x86_64" for n in (1, 2)]
    old = "demo-1.0-cu130-torch2.11-cp311_cp311-sm90a-linux_x86_64"
    dist = tmp_path / "dist"
    whole = make_wheel(
        dist, "demo", "1.0+cu130.torch211.sm120a", build=record(names[0]), tag="cp311-cp311-linux_x86_64"
    )
    beside(whole, "smoke", state="passed", gpu="RTX 5090")
    partial = make_wheel(
        dist,
        "demo",
        "1.0+cu130.torch211.partial.sm120a",
        build=record(names[1], left_out=("extra",)),
        tag="cp312-cp312-linux_x86_64",
    )
    yanked = make_wheel(dist, "demo", "1.0+cu130.torch211.sm90a", build=record(old), tag="cp311-cp311-linux_x86_64")
    other = make_wheel(dist, "else", "3.0+cu130.torch211.sm120a", build=record("else-3.0-x"))
    publish(tmp_path / "wheels", [whole, partial, yanked, other], options=Options(allow=frozenset({"partial"})))
    yank(tmp_path / "wheels", yanked.name, reason="wrong")
    yield tmp_path / "wheels", [*names, old]


def test_each_expected_build_has_its_state(index: tuple[Path, list[str]], matrix_of: Make) -> None:
    root, names = index
    jobs = [job for job in matrix_of().jobs if job.platform == "linux_x86_64"]
    found = coverage(jobs, catalogue(str(root)))
    by_name = {one.job.identifier: one for one in found.expected}
    assert [by_name[name].state for name in names] == ["published", "partial", "yanked"]
    assert [by_name[name].smoke for name in names] == ["passed", "not run", "not run"]
    assert by_name[names[1]].exceptions == ("partial",)
    rest = [one for one in found.expected if one.job.identifier not in names]
    assert {one.state for one in rest} == {"missing"}
    assert found.others == ("else-3.0+cu130.torch211.sm120a-cp310-abi3-manylinux_2_34_x86_64.whl",)
    assert names[0] not in found.missing
    assert set(names[1:]) < set(found.missing)


def test_an_index_at_an_address_tells_the_same(index: tuple[Path, list[str]], matrix_of: Make) -> None:
    root, _ = index
    jobs = matrix_of().jobs
    with served(root) as address:
        assert coverage(jobs, catalogue(address)) == coverage(jobs, catalogue(str(root)))
