"""Settings: who wins, and how a mirror template maps URLs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_wheels.errors import SettingError
from sm120_wheels.settings import Mirror, resolve

REPOSITORY = "https://github.com/NVIDIA/cutlass"
FILE = "https://github.com/triton-lang/triton/archive/v3.6.0.tar.gz"


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "sm120-wheels" / "config.toml"


@pytest.mark.parametrize(
    ("template", "repository", "file"),
    [
        ("file:///m/{owner}+{name}/repo", "file:///m/NVIDIA+cutlass/repo", None),
        (
            "https://m.example/{host}/{path}",
            "https://m.example/github.com/NVIDIA/cutlass",
            "https://m.example/github.com/triton-lang/triton/archive/v3.6.0.tar.gz",
        ),
        ("file:///m/{file}", "file:///m/cutlass", "file:///m/v3.6.0.tar.gz"),
        ("{scheme}://m/{name}", "https://m/cutlass", None),
    ],
)
def test_a_template_maps_repositories_and_where_it_can_files(template: str, repository: str, file: str | None) -> None:
    mirror = resolve(mirror=template, environ={}).mirror
    assert mirror is not None
    assert mirror.map_url(REPOSITORY) == repository
    assert mirror.map_url(FILE) == file


def test_a_git_suffix_is_no_part_of_the_name() -> None:
    assert Mirror(template="m://{name}", origin="").map_url("https://h/o/n.git") == "m://n"


def test_a_folder_as_template_becomes_a_file_url(tmp_path: Path) -> None:
    mirror = resolve(mirror=f"{tmp_path}/with space/{{owner}}+{{name}}", environ={}).mirror
    assert mirror is not None
    assert mirror.map_url(REPOSITORY) == f"file://{tmp_path}/with%20space/NVIDIA+cutlass"


def test_an_ssh_address_is_left_as_it_is() -> None:
    mirror = resolve(mirror="git@git.example.org:{owner}/{name}", environ={}).mirror
    assert mirror is not None
    assert mirror.map_url(REPOSITORY) == "git@git.example.org:NVIDIA/cutlass"


def test_option_beats_variable_beats_folder_beats_user(tmp_path: Path, own_config: Path) -> None:
    own_config.parent.mkdir(parents=True)
    own_config.write_text('mirror = "u://{name}"\noffline = true\n')
    (tmp_path / "cwd").mkdir()

    def mirror(option: str | None = None, variable: str = "") -> tuple[str, str]:
        found = resolve(mirror=option, environ={"SM120_MIRROR": variable}, cwd=tmp_path / "cwd").mirror
        assert found is not None
        return found.template, found.origin

    assert mirror() == ("u://{name}", f"{own_config}, key mirror")
    (tmp_path / "cwd" / "sm120.toml").write_text('mirror = "f://{name}"\n')
    assert mirror()[0] == "f://{name}"
    assert mirror(variable="v://{name}") == ("v://{name}", "environment variable SM120_MIRROR")
    assert mirror("o://{name}", "v://{name}") == ("o://{name}", "option --mirror")
    assert resolve(environ={}, cwd=tmp_path / "cwd").offline is True
    assert resolve(environ={}, cwd=tmp_path / "cwd", offline=False).offline is False


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("off", False), ("FALSE", False)])
def test_offline_is_read_from_the_environment(text: str, value: bool) -> None:
    assert resolve(environ={"SM120_OFFLINE": text}).offline is value


@given(st.text(alphabet="{}!:.[]ownermx-/", max_size=20))
def test_any_template_is_refused_or_maps_without_failing(template: str) -> None:
    try:
        mirror = resolve(mirror=template, environ={}, cwd=Path("/nonexistent")).mirror
    except SettingError as exc:
        assert exc.where == "option --mirror"
    else:
        assert mirror is None or isinstance(mirror.map_url(REPOSITORY), str)


def test_compiler_caches_come_from_option_environment_and_file(tmp_path: Path, own_config: Path) -> None:
    own_config.parent.mkdir(parents=True)
    own_config.write_text('compiler_cache = "off"\nshared_cache = "redis://from-the-file"\n')
    environ = {"SM120_COMPILER_CACHE": "sccache", "SM120_SHARED_CACHE": "https://from.the/environment"}
    found = [
        resolve(environ={}, cwd=tmp_path),
        resolve(environ=environ, cwd=tmp_path),
        resolve(environ=environ, cwd=tmp_path, compiler_cache="ccache", shared_cache="redis://option"),
    ]
    assert [(s.compiler_cache, s.shared_cache and s.shared_cache.address) for s in found] == [
        ("off", "redis://from-the-file"),
        ("sccache", "https://from.the/environment"),
        ("ccache", "redis://option"),
    ]
    assert resolve(environ={}, cwd=tmp_path, shared_cache="off").shared_cache is None


def test_a_compiler_cache_that_is_none_is_an_error_that_names_its_place(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="'cache' is no compiler cache") as caught:
        resolve(environ={"SM120_COMPILER_CACHE": "cache"}, cwd=tmp_path)
    assert "environment variable SM120_COMPILER_CACHE" in str(caught.value)
    assert "ccache" in caught.value.hint
