"""Selectors: shell patterns for whole identifiers, with braces, several with spaces."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_wheels.errors import EmptySelectionError, SettingError
from sm120_wheels.matrix.jobs import Matrix
from sm120_wheels.matrix.select import expand, matches, select, unused

Make = Callable[..., Matrix]
NAME = "sglang_kernel-0.4.4-cu130-torch2.11-cp310_abi3-sm120a-linux_x86_64"


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ("sglang_kernel-0.4.*-cu13*", True),
        ("*", True),
        (NAME, True),
        ("sglang_kernel", False),
        ("*-sm120{a,f}-*", True),
        ("*-sm12{0f,1a}-*", False),
        ("*-cu{12{8,9},130}-*", True),
        ("nothing *-linux_x86_64", True),
        ("*-SM120A-*", False),
        ("*-cu13[0-2]-*", True),
        ("", False),
    ],
)
def test_a_selector_matches_whole_identifiers(selector: str, wanted: bool) -> None:
    assert matches(NAME, [selector]) is wanted


@given(st.lists(st.text(alphabet="abc*?-", min_size=1, max_size=6), min_size=1, max_size=4), st.text(alphabet="abc-"))
def test_several_patterns_match_what_any_of_them_matches(patterns: list[str], name: str) -> None:
    together = matches(name, [" ".join(patterns)])
    assert together == any(matches(name, [pattern]) for pattern in patterns) == matches(name, patterns)


def test_the_same_selectors_as_cibuildwheel() -> None:
    selector = pytest.importorskip("cibuildwheel.selector", reason="not run: cibuildwheel is not installed here")
    for pattern in ("*-{sm120a,sm120f}-*", "sglang*-cu13* x", "*x86_64", "sgl?ng*", "{a,b", "*-cu{12{8,9},130}-*"):
        assert matches(NAME, [pattern]) == selector.selector_matches(pattern, NAME), pattern


def test_only_and_skip(matrix_of: Make) -> None:
    jobs = matrix_of().jobs
    chosen = select(jobs, only=["demo-*-cu130-*"], skip=["*-sm90a-* *aarch64"])
    assert {job.cuda for job in chosen} == {"13.0"}
    assert {job.arch for job in chosen} == {"12.0a", "12.0f"}
    assert {job.platform for job in chosen} == {"linux_x86_64"}
    assert select(jobs) == jobs


def test_an_empty_selection_names_the_pattern_and_what_is_close(matrix_of: Make) -> None:
    jobs = matrix_of().jobs
    with pytest.raises(EmptySelectionError, match="no build of the matrix is selected") as caught:
        select(jobs, only=["demo-1.0-cu131-*"])
    assert caught.value.exit_code == 18
    assert caught.value.why == "no identifier matches demo-1.0-cu131-*"
    assert "close to it: demo-1.0-cu13" in caught.value.hint


def test_skipping_everything_is_an_empty_selection(matrix_of: Make) -> None:
    with pytest.raises(EmptySelectionError, match="nothing of the matrix is left") as caught:
        select(matrix_of().jobs, only=["*-cu132-*"], skip=["demo*"])
    assert caught.value.why == "--skip 'demo*' matches all 6 builds that were chosen"


def test_a_pattern_that_matches_nothing_is_known(matrix_of: Make) -> None:
    assert unused(matrix_of().jobs, ["*-cu130-* *-cu999-*", "{demo,domo}-*"]) == ("*-cu999-*", "domo-*")


def test_a_selector_that_explodes_is_refused() -> None:
    with pytest.raises(SettingError, match="expands to too many patterns"):
        expand("{1..100000}")
