"""What must be green before a publish: three states for each check, and a verdict that none of them can hide in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from sm120_wheels.errors import ReleaseFailedError, ReleaseIncompleteError, SettingError
from sm120_wheels.release import checkout
from sm120_wheels.release.check import Check, known_names, verdict
from sm120_wheels.release.wheels import of_index, of_wheels
from tests.index.makewheel import beside, make_wheel
from tests.support.inprocess import in_process
from tests.support.world import Outcome, World, git_source, make_patch, recipe_toml

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


def check(state: str, name: str = "smoke") -> Check:
    return Check(name=name, subject="x.whl", state=state, detail="because")  # type: ignore[arg-type]


def test_all_green_is_nothing_to_say() -> None:
    verdict([check("passed"), check("passed", "audit")])


def test_a_failure_and_something_not_run_have_different_exit_codes() -> None:
    with pytest.raises(ReleaseFailedError, match="1 check failed") as failed:
        verdict([check("failed", "audit"), check("not run")], may_be_missing=frozenset({"smoke", "audit"}))
    assert failed.value.exit_code == 83
    assert "audit x.whl: because" in failed.value.why
    with pytest.raises(ReleaseIncompleteError, match="nothing failed, but 1 check could not be run") as missing:
        verdict([check("passed", "audit"), check("not run")])
    assert missing.value.exit_code == 84
    assert "--may-be-missing smoke" in missing.value.hint
    verdict([check("passed", "audit"), check("not run")], may_be_missing=frozenset({"smoke"}))


def test_an_unknown_check_is_refused_with_near_misses() -> None:
    with pytest.raises(SettingError, match="no check is called 'smok'") as caught:
        known_names(["smok"])
    assert "did you mean smoke" in caught.value.hint


# -- tests


def junit(path: Path, *, timestamp: str, **counts: int) -> Path:
    values = {"tests": 3, "failures": 0, "errors": 0, "skipped": 1, **counts}
    told = " ".join(f'{name}="{value}"' for name, value in values.items())
    path.write_text(f'<testsuites><testsuite name="pytest" {told} timestamp="{timestamp}"/></testsuites>')
    return path


def test_a_test_run_counts_only_if_it_is_newer_than_the_checkout(tmp_path: Path) -> None:
    report = junit(tmp_path / "r.xml", timestamp=NOW.isoformat())
    (fresh,) = checkout.tests(report, changed=NOW - timedelta(hours=1))
    assert (fresh.state, fresh.detail) == ("passed", "2 passed, 0 failed, 1 not run")
    (old,) = checkout.tests(report, changed=NOW + timedelta(hours=1))
    assert old.state == "not run"
    assert "the checkout changed at" in old.detail


def test_failed_empty_and_missing_reports(tmp_path: Path) -> None:
    stamp = NOW.isoformat()
    assert checkout.tests(junit(tmp_path / "a", timestamp=stamp, failures=1), changed=None)[0].state == "failed"
    assert checkout.tests(junit(tmp_path / "b", timestamp=stamp, errors=1), changed=None)[0].state == "failed"
    assert checkout.tests(junit(tmp_path / "c", timestamp=stamp, skipped=3), changed=None)[0].state == "not run"
    assert checkout.tests(None, changed=None)[0].state == "not run"
    (tmp_path / "d").write_text("no xml")
    assert "is no JUnit report" in checkout.tests(tmp_path / "d", changed=None)[0].detail


def test_a_report_of_real_pytest_is_read(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_one(): pass\n")
    report = tmp_path / "report.xml"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(tmp_path)]
    subprocess.run(argv, check=True, capture_output=True, cwd=tmp_path)
    (told,) = checkout.tests(report, changed=datetime.now(timezone.utc) - timedelta(minutes=5))
    assert (told.state, told.detail) == ("passed", "1 passed, 0 failed, 0 not run")


# -- patches and locks


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(root=tmp_path)
    monkeypatch.setenv("SM120_DATA_DIR", str(world.data))
    monkeypatch.setenv("SM120_CACHE_DIR", str(world.root / "cache"))
    return world


def test_patches_are_applied_to_the_pinned_sources(world: World) -> None:
    from sm120_wheels.settings import resolve

    upstream = world.upstream
    tree = upstream.work_tree("up", "demo")
    commit = upstream.commit(tree, {"a": "1\n"})
    world.recipe("demo", recipe_toml(sources=git_source(commit)))
    good = make_patch({"a": "1\n"}, {"a": "2\n"}, world.root / "scratch")
    world.patch("demo", "1.0", "0001-one.patch", good)
    offline = resolve(mirror=upstream.mirror, offline=True, environ={})
    (told,) = checkout.patches(resolve(mirror=upstream.mirror, environ={}))
    assert (told.state, told.subject, told.detail) == ("passed", "demo 1.0", "1 patches")
    bad = make_patch({"a": "x\n"}, {"a": "y\n"}, world.root / "scratch")
    world.patch("demo", "1.0", "0002-two.patch", bad)
    (told,) = checkout.patches(offline)
    assert told.state == "failed"
    assert "0002-two.patch" in told.detail


def test_patches_whose_sources_are_nowhere_are_not_run(world: World) -> None:
    from sm120_wheels.settings import resolve

    world.recipe("demo", recipe_toml(sources=git_source("1" * 40)))
    world.patch("demo", "1.0", "0001-one.patch", make_patch({"a": "1\n"}, {"a": "2\n"}, world.root / "scratch"))
    (told,) = checkout.patches(resolve(offline=True, environ={}))
    assert (told.name, told.state) == ("patches", "not run")


def test_locks_offline_are_not_run_and_an_unknown_one_says_so() -> None:
    assert {told.state for told in checkout.locks(offline=True)} == {"not run"}


@pytest.mark.network
def test_a_lock_that_its_source_does_not_give_is_failed(world: World) -> None:
    world.recipe("demo", recipe_toml(sources=git_source("1" * 40)))
    locks = world.locks()
    (locks / "tiny.in").write_text("packaging==25.0\n")
    (locks / "tiny.txt").write_text("packaging==24.2 --hash=sha256:" + "0" * 64 + "\n")
    (told,) = checkout.locks(offline=False, names=["tiny"])
    assert (told.state, "sm120 lock tiny" in told.detail) == ("failed", True)
    (fresh,) = checkout.locks(offline=False, names=["nox"])
    assert (fresh.state, fresh.detail) == ("passed", "")


# -- wheels and index


def states(checks: list[Check]) -> dict[str, str]:
    return {one.name: one.state for one in checks}


def test_each_proof_of_a_wheel_is_a_row(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    assert states(of_wheels([wheel])) == {
        "complete": "passed",
        "audit": "passed",
        "promises": "passed",
        "equivalence": "not run",
        "smoke": "not run",
    }
    beside(wheel, "smoke", state="failed", reason="NaN")
    beside(wheel, "equivalence", state="passed")
    again = states(of_wheels([wheel]))
    assert (again["smoke"], again["equivalence"]) == ("failed", "passed")


def test_a_missing_audit_is_made_and_kept_for_the_publish(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, audit={}, version="0.1.0", tag="py3-none-any")
    (told,) = [one for one in of_wheels([wheel]) if one.name == "audit"]
    assert told.state == "passed"
    kept = json.loads(wheel.with_name(f"{wheel.name}.audit.json").read_text())
    assert set(kept["verdicts"].values()) == {"no-cuda"}


def test_a_broken_promise_of_the_platform_is_found(tmp_path: Path, old_promise: Callable[[Path], Path]) -> None:
    wheel = old_promise(tmp_path)
    (told,) = [one for one in of_wheels([wheel]) if one.name == "promises"]
    assert told.state == "failed"
    assert told.detail.startswith("manylinux_2_17_x86_64: ")


@pytest.fixture
def old_promise() -> Callable[[Path], Path]:
    """A wheel that promises glibc 2.17 and needs a newer one."""

    def make(folder: Path) -> Path:
        source = folder / "dice.c"
        source.write_text("#include <stdlib.h>\nunsigned dice(void) { return arc4random(); }\n")
        library = folder / "dice.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
        return make_wheel(
            folder,
            "dice",
            "1.0+cu130.sm120a",
            tag="py3-none-manylinux_2_17_x86_64",
            extra={"dice/dice.so": library.read_bytes()},
        )

    return make


def test_what_is_no_wheel_and_evidence_of_another_are_failures(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    beside(wheel, "smoke", state="passed", wheel_sha256="0" * 64)
    (told,) = of_wheels([wheel])
    assert (told.state, "is not about this wheel" in told.detail) == ("failed", True)


def test_an_index_is_verified(tmp_path: Path) -> None:
    from sm120_wheels.index.publish import publish

    root = tmp_path / "wheels"
    absent = of_index(root)[0]
    assert (absent.state, absent.detail) == ("not run", "there is no such folder (--index)")
    root.mkdir()
    assert (of_index(root)[0].state, of_index(root)[0].detail) == ("not run", "it holds no index yet")
    publish(root, [make_wheel(tmp_path)])
    assert (of_index(root)[0].state, of_index(root)[0].detail) == ("passed", "1 wheels")
    published = next(root.glob("files/*/*/*.whl"))
    published.chmod(0o644)
    published.write_bytes(b"x")
    assert of_index(root)[0].state == "failed"


def test_the_command_shows_one_table_and_its_own_exit_codes(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_process(world, monkeypatch, capsys)

    def release_check(world: World, *arguments: str | Path) -> Outcome:
        return world.sm120("release-check", *arguments)

    wheel = make_wheel(world.cwd / "dist")
    told = release_check(world, "--only", "audit", "--only", "smoke", "--only", "index")
    told.failed(
        84, "smoke " + wheel.name, "--may-be-missing smoke --may-be-missing index", "1 passed, 0 failed, 2 not run"
    )
    rows = [line.split()[:2] for line in told.out.splitlines()]
    assert rows == [["check", "state"], ["audit", "passed"], ["smoke", "not"], ["index", "not"]]
    as_json = release_check(world, wheel, "--only", "smoke", "--may-be-missing", "smoke", "--json").json()
    assert [(one["name"], one["state"]) for one in as_json] == [("smoke", "not run")]
    beside(wheel, "smoke", state="failed", reason="NaN")
    release_check(world, "--only", "smoke", "--may-be-missing", "smoke").failed(83, "1 check failed", "NaN")
    release_check(world, "--only", "nonsense").failed(17, "no check is called")
