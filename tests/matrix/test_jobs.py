"""The matrix: what the recipes give, what they cannot give, and that every name is one build."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sm120_wheels import recipe
from sm120_wheels.errors import DuplicateIdentifierError, UnsupportedTargetError
from sm120_wheels.matrix.jobs import Matrix, make_matrix
from sm120_wheels.plan import make_plan
from tests.support.world import World

Make = Callable[..., Matrix]
ABI3 = 'abi3 = "3.10"\n'


@pytest.fixture(scope="module")
def ours() -> Matrix:
    return make_matrix()


def test_one_job_for_each_python_unless_the_wheel_is_for_all_of_them(matrix_of: Make) -> None:
    bound = matrix_of()
    tags = {job.identifier.split("-")[4] for job in bound.jobs if job.cuda == "13.0"}
    assert tags == {"cp311_cp311", "cp312_cp312"}
    stable = matrix_of(extra=ABI3)
    assert {job.identifier.split("-")[4] for job in stable.jobs} == {"cp310_abi3"}
    first = next(job for job in stable.jobs if job.cuda == "13.0")
    assert (first.python, first.pythons) == ("3.11", ("3.11", "3.12"))


def test_every_axis_is_there(matrix_of: Make) -> None:
    jobs = matrix_of(extra=ABI3).jobs
    assert {(job.cuda, job.torch) for job in jobs} == {("13.0", "2.11.0"), ("13.2", "2.15.0"), ("12.8", "2.9.1")}
    assert {job.arch for job in jobs} == {"12.0a", "12.0f", "9.0a"}
    assert {job.platform for job in jobs} == {"linux_x86_64", "linux_aarch64"}


def test_a_target_that_the_cuda_cannot_compile_is_kept_with_its_reason(matrix_of: Make) -> None:
    matrix = matrix_of(extra=ABI3)
    name = "demo-1.0-cu128-torch2.9-cp310_abi3-sm120f-linux_x86_64"
    assert matrix.find(name) is None
    reason = next(one for one in matrix.impossible if one.identifier == name)
    assert (reason.what, reason.why) == ("CUDA 12.8 cannot compile for 12.0f", "12.0f needs CUDA 12.9 or newer")


def test_a_torch_that_has_no_cuda_on_one_platform_is_kept_with_its_reason(matrix_of: Make) -> None:
    matrix = matrix_of(extra=ABI3)
    reason = next(
        one for one in matrix.impossible if one.identifier.endswith("torch2.9-cp310_abi3-sm120a-linux_aarch64")
    )
    assert reason.what == "the index's torch 2.9.1 for linux_aarch64 has no CUDA"
    assert matrix.find("demo-1.0-cu128-torch2.9-cp310_abi3-sm120a-linux_x86_64")
    assert matrix.find("demo-1.0-cu130-torch2.11-cp310_abi3-sm120a-linux_aarch64")


def test_a_torch_of_another_cuda_major_stops_the_matrix(matrix_of: Make) -> None:
    with pytest.raises(UnsupportedTargetError, match=r"torch 2\.11\.0 does not go with CUDA 12\.8") as caught:
        matrix_of(pairings='{ cuda = "12.8", torch = "2.11.0", python = ["3.11"] }')
    assert "majors must agree" in caught.value.why
    assert caught.value.exit_code == 15


def test_two_patch_releases_of_one_torch_would_be_one_name(matrix_of: Make, world: World) -> None:
    (world.locks() / "torch-2.11.1.txt").write_text((world.locks() / "torch-2.11.0.txt").read_text())
    both = ", ".join(f'{{ cuda = "13.0", torch = "{t}", python = ["3.11"] }}' for t in ("2.11.0", "2.11.1"))
    with pytest.raises(DuplicateIdentifierError, match=r"demo-1\.0-cu130-torch2\.11-cp311_cp311-sm120a") as caught:
        matrix_of(pairings=both)
    assert "torch 2.11.0" in caught.value.why
    assert "torch 2.11.1" in caught.value.why
    assert caught.value.exit_code == 19


def test_two_recipes_of_one_distribution_would_be_one_name(matrix_of: Make, world: World) -> None:
    matrix_of("demo")
    text = (world.data / "recipes/demo/recipe.toml").read_text()
    world.recipe("fork", text.replace('name = "demo"', 'name = "fork"', 1))
    with pytest.raises(DuplicateIdentifierError) as caught:
        make_matrix(recipes_root=world.data / "recipes", patches_root=world.data / "patches")
    assert "recipes/demo/recipe.toml, recipes/fork/recipe.toml" in caught.value.where


def test_a_job_for_ci_names_exactly_the_build_that_it_makes(ours: Matrix) -> None:
    for job in ours.jobs[::7]:
        plan = make_plan(job.request)
        assert (plan.identifier, plan.key, plan.platform) == (job.identifier, job.key, job.platform)


def test_identifiers_are_unique_and_cover_every_recipe(ours: Matrix) -> None:
    names = [job.identifier for job in ours.jobs]
    assert len(set(names)) == len(names)
    assert {job.recipe for job in ours.jobs} == set(recipe.names())
    assert not {one.identifier for one in ours.impossible} & set(names)


def test_every_cuda_that_has_a_torch_on_the_index_is_there(ours: Matrix) -> None:
    pairs = {(job.cuda, job.torch) for job in ours.jobs if job.recipe == "selftest"}
    assert {("13.0", "2.11.0"), ("13.0", "2.14.1"), ("13.2", "2.15.0"), ("12.8", "2.9.1"), ("12.9", "2.9.1")} == pairs


def test_only_whole_wheels_of_flashinfer_are_in_the_matrix(ours: Matrix) -> None:
    jobs = [job for job in ours.jobs if job.recipe == "flashinfer"]
    assert jobs
    assert all(not job.partial and job.options[-2:] == ("--profile", "full") for job in jobs)
    assert {(job.cuda, job.torch) for job in jobs} == {("13.0", "2.11.0"), ("13.0", "2.14.1"), ("13.2", "2.15.0")}


def test_another_profile_gives_the_same_builds_as_partial_ones(ours: Matrix) -> None:
    whole = [job for job in ours.jobs if job.recipe == "flashinfer"]
    minimal = make_matrix(["flashinfer"], profile="minimal").jobs
    assert [job.identifier for job in minimal] == [job.identifier for job in whole]
    assert all(job.partial and job.options[-2:] == ("--profile", "minimal") for job in minimal)
    assert not {job.key for job in minimal} & {job.key for job in whole}
    plan = make_plan(minimal[0].request)
    assert (plan.key, ".partial." in plan.wheel_version) == (minimal[0].key, True)
