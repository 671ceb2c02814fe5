"""The harness itself: workers, watchdog and outcomes, with real processes on the host backend."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from tests.prove.smoke.conftest import Ran

#: Case → words of the reason why it fails.
WRONG = {
    "test_wrong_numbers": "1 of 8 elements (float, shape (8,)) differ by more than allowed; worst at (7,): got ",
    "test_zeros": "the result is all zeros",
    "test_zeros_within_tolerance": "the result is all zeros",
    "test_reference_of_nan": "numbers where the reference is NaN",
    "test_never_written": "differ by more than allowed",
    "test_wrong_shape": "the result has shape (8,), the reference (7,)",
    "test_no_result": "the case returns no result",
    "test_nothing_to_compare": "no result has an element: there is nothing to check",
    "test_refuses_to_do_nothing": "RuntimeError: invalid configuration argument",
    "test_fails_in_a_graph_only": "differ by more than allowed",
    "test_never_reaches_its_operator": "it never reached demo::untested",
    "test_hangs_in_python": "hang: no end after 3 s at eager: run",
    "test_hangs_in_native_code": "hang: no end after 3 s at eager: run",
    "test_hangs_at_the_second_launch": "hang: no end after 3 s at eager: run",
    "test_hangs_once": "hang: no end after 3 s at eager: run",
    "test_aborts": "the process was killed by SIGABRT at eager: run",
    "test_segfaults": "the process was killed by SIGSEGV at eager: run",
    "test_compiles_at_run_time": "it started a compiler: nvcc",
    "test_compiles_and_hides_it": "it started a compiler: ninja -C build",
    "test_skips": "it asked to be skipped (no such module)",
    "test_skips_otherwise": "it asked to be skipped (out of memory)",
    "test_out_of_memory": "MemoryError: cannot allocate 1 TB",
    "test_missing_module": "No module named 'no_such_module_anywhere'",
    "test_leaves": "SystemExit",
    "test_one_rank_does_not_arrive": "hang: no end after 4 s",
    "test_one_rank_fails": "rank 1 of 2: ValueError: rank 1 has no such thing",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_fails_for_its_own_reason(demo: Ran, name: str) -> None:
    case = demo.case(name)
    assert case["state"] == "failed"
    assert WRONG[name] in case["why"]


@pytest.mark.parametrize(
    "name", ["test_right[1]", "test_right[8]", "test_no_graph", "test_two_ranks_meet", "test_something_to_do"]
)
def test_what_is_right_passes(demo: Ran, name: str) -> None:
    assert demo.case(name)["state"] == "passed"


def test_the_case_after_hangs_and_crashes_still_runs(demo: Ran) -> None:
    assert demo.case("test_right_after_all_of_that")["state"] == "passed"


def test_what_works_eagerly_and_breaks_in_a_graph_says_so_by_its_stages(demo: Ran) -> None:
    states = {s["name"]: s["state"] for s in demo.case("test_fails_in_a_graph_only")["stages"]}
    assert states["eager"] == "passed"
    assert states["graph"] == "failed"


def test_a_graph_that_is_left_out_is_not_run_with_its_reason(demo: Ran) -> None:
    graph = next(s for s in demo.case("test_no_graph")["stages"] if s["name"] == "graph")
    assert (graph["state"], graph["why"]) == ("not run", "it synchronises")


def test_a_graph_that_could_not_run_is_seen_in_its_case_and_counted(demo: Ran) -> None:
    case = demo.case("test_not_run_in_a_graph")
    graph = next(s for s in case["stages"] if s["name"] == "graph")
    assert (case["state"], graph["state"], graph["why"]) == ("passed", "not run", "not in a graph with this driver")
    states = [s["state"] for c in demo.record["cases"] for s in c["stages"] if s["name"] == "graph"]
    counted = {"passed": states.count("passed"), "failed": states.count("failed"), "not_run": states.count("not run")}
    assert demo.record["graphs"] == counted
    assert (
        f"graphs     {counted['passed']} passed, {counted['failed']} failed, {counted['not_run']} not run" in demo.out
    )
    assert "graph not run: 1 × not in a graph with this driver" in demo.out


def test_a_hang_shows_the_stack_of_the_line_that_hangs(demo: Ran) -> None:
    assert "sleeps" in demo.case("test_hangs_in_python")["hang"]["stacks"]
    assert "sleeps_in_c" in demo.case("test_hangs_in_native_code")["hang"]["stacks"]


def test_a_hang_names_what_was_launched_last_and_what_came_before(demo: Ran) -> None:
    case = demo.case("test_hangs_in_native_code")
    assert case["why"].endswith("; last kernel launched: demo::sleeps_in_c (at eager: run)")
    assert case["hang"]["launches"] == ["demo::sleeps_in_c (at eager: run)"]
    two = demo.case("test_hangs_at_the_second_launch")
    assert two["hang"]["launches"] == ["demo::double (at eager: run)", "demo::sleeps (at eager: run)"]
    ranks = demo.case("test_one_rank_does_not_arrive")["hang"]
    assert ranks["last_kernel"] == "rank 0: none was launched; rank 1: none was launched"


def test_a_hang_that_does_not_come_again_leaves_the_last_kernel_unknown(demo: Ran) -> None:
    assert demo.case("test_hangs_once")["hang"]["last_kernel"] == "not known: when it was repeated it did not hang"


def test_a_hang_of_ranks_shows_the_stacks_of_all(demo: Ran) -> None:
    stacks = demo.case("test_one_rank_does_not_arrive")["hang"]["stacks"]
    assert "rank 0, process" in stacks
    assert "rank 1, process" in stacks
    assert "exchange" in stacks, "rank 0 waits at the meeting place"


def test_a_hang_that_goes_away_with_p2p_off_is_blamed_on_the_host_and_still_a_failure(demo: Ran) -> None:
    case = demo.case("test_works_with_p2p_off")
    assert case["state"] == "failed"
    assert "the host is to blame" in case["why"]
    assert "the host is to blame" not in demo.case("test_one_rank_does_not_arrive")["why"]


def test_what_is_wrong_on_two_gpus_only_is_repeated_with_p2p_off_as_well(demo: Ran) -> None:
    case = demo.case("test_wrong_on_two_with_p2p")
    assert case["state"] == "failed"
    assert case["why"].startswith("rank 1 of 2: the result: 1 of 8 elements (float, shape (8,)) differ by more")
    assert "the host is to blame" in case["why"]
    assert "hang" not in case


def test_what_a_case_says_it_cannot_have_is_not_run(demo: Ran) -> None:
    assert demo.case("test_rightly_not_run")["why"] == "this package was built without it"
    case = demo.case("test_unmet_need")
    assert case["state"] == "not run"
    assert case["why"] == "it needs 99 GPUs, this run has 8 (a big machine)"


def test_operators_are_counted_and_one_without_a_case_is_not_run(demo: Ran) -> None:
    operators = {o["name"]: o for o in demo.record["operators"]["list"]}
    assert operators["demo::wrong"]["state"] == "failed"
    assert operators["demo::never_mentioned"] == {
        "name": "demo::never_mentioned",
        "state": "not run",
        "cases": 0,
        "why": "no case",
    }
    assert demo.record["operators"]["registered"] == len(operators)


def test_an_operator_with_nothing_to_do_is_tried_in_every_stage_and_not_covered_by_that(demo: Ran) -> None:
    case = demo.case("test_nothing_to_do")
    assert (case["state"], case["empty"]) == ("passed", True)
    assert {s["name"]: s["state"] for s in case["stages"]} == dict.fromkeys(("eager", "graph", "trace"), "passed")
    operators = {o["name"]: o for o in demo.record["operators"]["list"]}
    assert operators["demo::double_of_nothing"]["state"] == "not run"
    assert operators["demo::double_of_nothing"]["why"] == "only empty inputs were given to it"
    assert operators["demo::refuses_nothing"]["state"] == "failed", "a failure counts, whatever was given"


def test_a_failed_run_ends_with_70_and_names_the_cases(demo: Ran) -> None:
    assert demo.code == 70
    assert "error: the smoke test failed: " in demo.err
    assert "test_wrong_numbers" in demo.err
    assert "Traceback" not in demo.err


def test_the_record_is_bound_to_the_wheel_and_says_what_was_isolated(demo: Ran) -> None:
    record = demo.record
    assert len(record["wheel_sha256"]) == 64
    assert record["state"] == "failed"
    assert record["backend"] == "host"
    assert record["isolation"]["network"] in ("off", "on: no network namespace is allowed here")
    assert record["counts"]["passed"] == sum(c["state"] == "passed" for c in record["cases"])


def test_junit_holds_every_case_with_its_state(demo: Ran) -> None:
    suite = ElementTree.parse(demo.folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert int(suite.attrib["tests"]) == len(demo.record["cases"])
    assert int(suite.attrib["failures"]) == demo.record["counts"]["failed"]
    assert int(suite.attrib["skipped"]) == demo.record["counts"]["not_run"]
    hang = next(c for c in suite if c.attrib.get("name") == "test_hangs_in_python")
    failure = hang.find("failure")
    assert failure is not None
    assert "stacks when it was stopped" in (failure.text or "")


def test_nothing_is_written_beside_the_suites_or_the_wheel(demo: Ran) -> None:
    assert [p.name for p in (demo.folder / "dist").iterdir()] == ["demo-1.0-cp310-abi3-linux_x86_64.whl"]
    cases = demo.folder / "cache"
    assert (cases / "smoke" / "pytest").is_dir(), "pytest's cache, for --lf, lies in ours"
