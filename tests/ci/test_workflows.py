"""CI for users: every step is a nox session that exists, with options that its command knows; nothing is unpinned."""

from __future__ import annotations

import ast
import fnmatch
import re
import shutil
import string
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from sm120_wheels.cli import cli
from sm120_wheels.matrix.jobs import make_matrix
from sm120_wheels.matrix.select import select
from sm120_wheels.plan import make_plan
from tests.support.world import ROOT, environment

yaml = pytest.importorskip("yaml", reason="not run: PyYAML is not installed here")

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
GITLAB = ROOT / "docs/examples/gitlab-ci.yml"
#: The commits of releases, as the actions' own repositories tag them.
RELEASES = {
    "actions/checkout": ("3d3c42e5aac5ba805825da76410c181273ba90b1", "v7.0.1"),
    "actions/setup-python": ("5fda3b95a4ea91299a34e894583c3862153e4b97", "v7.0.0"),
    "actions/cache": ("27d5ce7f107fe9357f9df03efb73ab90386fccae", "v5.0.5"),
    "actions/upload-artifact": ("bbbca2ddaa5d8feaa63e36b76fdaad77386f024f", "v7.0.0"),
    "actions/download-artifact": ("3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c", "v8.0.1"),
}
JOB = make_matrix(["selftest"]).jobs[0]
#: What a step's variables hold in a run.
VALUES = {
    "ONLY": "sm120_selftest-*-cu130-*",
    "SKIP": "*-sm90a-*",
    "SESSION": JOB.session,
    "IDENTIFIER": JOB.identifier,
    "REMOTE": "s3://bucket/whl",
    "SM120_INDEX_REMOTE": "s3://bucket/whl",
    "CUDA": "cu130",
    "TORCH": "torch2.11",
    "LABEL": "cu130.torch211",
}
WHEEL = "x-1.0+cu130.torch211.sm120a-py3-none-any.whl"


def workflow(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()))


def github_steps() -> Iterator[tuple[str, str]]:
    for path in WORKFLOWS:
        for name, job in workflow(path)["jobs"].items():
            for step in job["steps"]:
                if "run" in step:
                    yield f"{path.name}:{name}", step["run"]


def gitlab_steps() -> Iterator[tuple[str, str]]:
    for name, job in workflow(GITLAB).items():
        for line in job.get("script", []) if isinstance(job, dict) else []:
            yield f"{GITLAB.name}:{name}", line


STEPS = [*github_steps(), *gitlab_steps()]


def sessions() -> dict[str, list[str] | None]:
    """Session → the ``sm120`` arguments that it begins with; None where it runs something else."""
    found: dict[str, list[str] | None] = {}
    for node in ast.parse((ROOT / "noxfile.py").read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            found[node.name] = None
            for call in ast.walk(node):
                if not isinstance(call, ast.Call):
                    continue
                texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                if isinstance(call.func, ast.Name) and call.func.id == "_sm120":
                    found[node.name] = texts
                elif texts[:1] == ["sm120"] and any(isinstance(a, ast.Starred) for a in call.args):
                    found[node.name] = texts[1:]
    return found


def parse(arguments: list[str]) -> None:
    """Let click read a command line as it would, and run nothing."""
    command: click.Command = cli
    context = click.Context(cli, info_name="sm120")
    rest = list(arguments)
    while isinstance(command, click.Group):
        name = rest.pop(0)
        inner = command.get_command(context, name)
        assert inner is not None, f"no command {name}"
        command, context = inner, click.Context(inner, info_name=name, parent=context)
    command.make_context(command.name or "sm120", rest, parent=context)


def words_of(line: str, folder: Path, **values: str) -> list[str]:
    """What a step's command gets, after the shell has put in variables and matched the files of the folder."""
    script = f'python3() {{ printf "%s\\0" "$@"; }}; set -u; {line}'
    env = {"PATH": environment()["PATH"], **VALUES, **values}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize(("where", "line"), STEPS, ids=[f"{where} {n}" for n, (where, _) in enumerate(STEPS)])
def test_every_step_is_one_nox_session_with_options_that_its_command_knows(
    where: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "${{" not in line, "what a user typed must reach the shell in a variable, never in its text"
    assert not re.search(r"[;&|`]|\$\(", line), "a job holds no logic"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / WHEEL).touch()
    words = words_of(line, tmp_path)
    assert words[:2] == ["bootstrap.py", "-s"]
    assert not any("*" in word and "dist/" in word for word in words), "no file was matched"
    session, rest = words[2], words[4:] if words[3:4] == ["--"] else words[3:]
    known = sessions()
    assert session in known, f"{where}: no session {session}"
    begins = known[session]
    if begins is None:
        assert not rest
    else:
        parse([*begins, *rest])


def test_there_are_steps_to_check() -> None:
    assert len(STEPS) >= 12


def test_a_step_with_an_unknown_option_would_be_found() -> None:
    with pytest.raises(click.UsageError):
        parse(["matrix", "--olny", "x"])


def test_every_action_is_pinned_to_the_commit_of_a_release() -> None:
    for path in WORKFLOWS:
        uses = re.findall(r"uses: (\S+)@(\S+)(?: # (\S+))?", path.read_text())
        assert uses
        for action, commit, comment in uses:
            assert (commit, comment) == RELEASES[action], f"{path.name}: {action}"


def test_tokens_may_do_no_more_than_read() -> None:
    for path in WORKFLOWS:
        content = workflow(path)
        assert content["permissions"] == {}
        for name, job in content["jobs"].items():
            assert job["permissions"] == {"contents": "read"}, name
            assert job["timeout-minutes"], name
            with_secrets = "secrets." in str(job)
            assert not with_secrets or job.get("environment"), f"{name} uses secrets without an environment"
            for step in job["steps"]:
                if step.get("uses", "").startswith("actions/checkout@"):
                    assert step["with"]["persist-credentials"] is False


def test_caches_are_keyed_by_what_can_change_their_content() -> None:
    steps = workflow(ROOT / ".github/workflows/wheels.yml")["jobs"]["build"]["steps"]
    keys = [step["with"]["key"] for step in steps if step.get("uses", "").startswith("actions/cache@")]
    assert any("matrix.toolchain_key" in key for key in keys)
    assert any("matrix.key" in key for key in keys)
    assert {"key", "toolchain_key", "identifier", "session", "python", "platform", "cuda"} <= set(JOB.to_json())


def test_nothing_is_published_before_it_was_audited_and_launched() -> None:
    jobs = workflow(ROOT / ".github/workflows/wheels.yml")["jobs"]
    assert set(jobs["publish"]["needs"]) == {"audit", "smoke"}
    assert set(jobs["smoke"]["needs"]) == {"plan", "audit"}
    assert any("--require-smoke" in step.get("run", "") for step in jobs["publish"]["steps"])


def test_each_build_is_launched_by_itself_since_each_wants_its_own_torch() -> None:
    jobs = workflow(ROOT / ".github/workflows/wheels.yml")["jobs"]
    assert jobs["smoke"]["strategy"]["matrix"] == jobs["build"]["strategy"]["matrix"]
    (given,) = [step["with"]["name"] for step in jobs["build"]["steps"] if "upload-artifact" in step.get("uses", "")]
    (taken,) = [step["with"]["name"] for step in jobs["smoke"]["steps"] if "download-artifact" in step.get("uses", "")]
    assert given == taken
    assert "matrix.identifier" in given


def test_each_pair_of_the_gitlab_example_is_builds_of_one_torch_and_its_wheels_alone() -> None:
    content = workflow(GITLAB)
    pairs = content["build"]["parallel"]["matrix"]
    assert pairs == content["smoke"]["parallel"]["matrix"]
    (only,) = re.findall(r'--only "([^"]+)"', content["build"]["script"][0])
    (wheels,) = re.findall(r"dist/\S+", content["smoke"]["script"][0])
    matrix = make_matrix(["selftest"])
    versions = {job.identifier: make_plan(job.request).wheel_version for job in matrix.jobs}
    for pair in pairs:
        wanted = string.Template(only).substitute(pair)
        found = select(matrix.jobs, only=[wanted])
        assert len({(job.cuda, job.torch) for job in found}) == 1
        pattern = string.Template(wheels).substitute(pair)
        matched = {
            name for name, version in versions.items() if fnmatch.fnmatchcase(f"dist/x-{version}-t.whl", pattern)
        }
        assert {job.identifier for job in found} <= matched
        assert {name.split("-")[3] for name in matched} == {pair["TORCH"]}


def run_tool(name: str, *arguments: str | Path) -> None:
    program = shutil.which(name, path=f"{Path(__import__('sys').executable).parent}:{environment()['PATH']}")
    if program is None:
        pytest.skip(f"not run: {name} is not installed here (it is in the group lint)")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_actionlint_finds_nothing() -> None:
    run_tool("actionlint", *WORKFLOWS)


def test_the_gitlab_example_holds_to_gitlabs_own_schema() -> None:
    run_tool("check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci", GITLAB)


def test_zizmor_finds_nothing() -> None:
    run_tool("zizmor", "--offline", "--no-progress", "--persona", "pedantic", ROOT / ".github")
