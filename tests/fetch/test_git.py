"""Commits of git repositories, fetched with the real git from repositories on disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sm120_wheels.errors import CommitNotFoundError, HostUnreachableError, OfflineError, ToolMissingError
from sm120_wheels.fetch.git import checkout
from sm120_wheels.settings import Mirror, Settings
from tests.support.world import Upstream, git

URL = "https://example.org/up/demo"


def mirrored(upstream: Upstream, *, offline: bool = False) -> Settings:
    return Settings(mirror=Mirror(template=upstream.mirror, origin="test"), offline=offline)


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def git_settings(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with these settings of git."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(text)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)


def test_a_commit_is_checked_out_whole(upstream: Upstream, tmp_path: Path) -> None:
    repository = upstream.work_tree("up", "demo")
    first = upstream.commit(repository, {"a.txt": "one", "deep/er/b.txt": "two"})
    upstream.commit(repository, {"a.txt": "later"})
    folder, came_from = checkout(URL, first, paths=(), cache_root=tmp_path / "c", settings=mirrored(upstream))
    assert listing(folder) == ["a.txt", "deep/er/b.txt"]
    assert (folder / "a.txt").read_text() == "one"
    assert came_from == f"file://{repository}"


def test_a_second_request_is_answered_from_the_cache_even_offline_without_a_mirror(
    upstream: Upstream, tmp_path: Path
) -> None:
    commit = upstream.commit(upstream.work_tree("up", "demo"), {"a": "1"})
    first, _ = checkout(URL, commit, paths=(), cache_root=tmp_path / "c", settings=mirrored(upstream))
    again, came_from = checkout(URL, commit, paths=(), cache_root=tmp_path / "c", settings=Settings(offline=True))
    assert (again, came_from) == (first, "cache")


def test_only_the_wanted_paths_are_checked_out_and_fetched(upstream: Upstream, tmp_path: Path) -> None:
    repository = upstream.work_tree("up", "demo")
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    files = {"in/a": "wanted", "in/sub/b": "wanted too", "LICENSE": "l", "out/big": "unwanted " * 1000}
    commit = upstream.commit(repository, files)
    folder, _ = checkout(URL, commit, paths=("in", "LICENSE"), cache_root=tmp_path / "c", settings=mirrored(upstream))
    assert listing(folder) == ["LICENSE", "in/a", "in/sub/b"]
    cached = next((tmp_path / "c" / "git").iterdir())
    missing = git(cached, "rev-list", "--objects", "--missing=print", "--no-walk", commit).splitlines()
    assert [line for line in missing if line.startswith("?")] == [
        "?" + git(repository, "rev-parse", f"{commit}:out/big")
    ]


def test_other_paths_of_a_cached_commit_are_fetched_when_they_are_asked_for(upstream: Upstream, tmp_path: Path) -> None:
    repository = upstream.work_tree("up", "demo")
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    commit = upstream.commit(repository, {"a/1": "1", "b/2": "2"})
    settings = mirrored(upstream)
    checkout(URL, commit, paths=("a",), cache_root=tmp_path / "c", settings=settings)
    folder, _ = checkout(URL, commit, paths=("b",), cache_root=tmp_path / "c", settings=settings)
    assert listing(folder) == ["b/2"]
    whole, _ = checkout(URL, commit, paths=(), cache_root=tmp_path / "c", settings=settings)
    assert listing(whole) == ["a/1", "b/2"]


def test_a_server_without_filters_and_protocol_2_still_serves_a_commit_no_ref_names(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protocol 0 with the default configuration refuses unadvertised objects and filters."""
    repository = upstream.work_tree("up", "demo")
    commit = upstream.commit(repository, {"a": "old"})
    upstream.commit(repository, {"a": "new"})
    git_settings("[protocol]\n\tversion = 0\n", tmp_path, monkeypatch)
    folder, _ = checkout(URL, commit, paths=("a",), cache_root=tmp_path / "c", settings=mirrored(upstream))
    assert (folder / "a").read_text() == "old"


def test_gitattributes_drop_and_change_nothing(upstream: Upstream, tmp_path: Path) -> None:
    repository = upstream.work_tree("up", "demo")
    commit = upstream.commit(
        repository,
        {".gitattributes": "secret export-ignore\nsubst export-subst\n", "secret": "kept", "subst": "$Format:%H$\n"},
    )
    folder, _ = checkout(URL, commit, paths=(), cache_root=tmp_path / "c", settings=mirrored(upstream))
    assert (folder / "secret").read_text() == "kept"
    assert (folder / "subst").read_text() == "$Format:%H$\n"


@pytest.mark.parametrize("paths", [(), ("d",)], ids=["all", "paths"])
def test_modes_links_and_odd_names_are_kept(upstream: Upstream, tmp_path: Path, paths: tuple[str, ...]) -> None:
    repository = upstream.work_tree("up", "demo")
    names = ["d/plain", "d/naïve ☃.txt", "d/new\nline", "d/-dash", 'd/"quo\'ted"', "d/crlf"]
    files: dict[str, str | bytes] = dict.fromkeys(names, "x")
    files["d/crlf"] = b"a\r\nb\r\n"
    for name, content in files.items():
        path = repository / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    latin = os.fsencode(repository / "d") + b"/latin-\xe9"
    Path(os.fsdecode(latin)).write_text("bytes")
    (repository / "d" / "run.sh").write_text("#!/bin/sh\n")
    (repository / "d" / "run.sh").chmod(0o755)
    (repository / "d" / "link").symlink_to("plain")
    (repository / "d" / "dangling").symlink_to("../nowhere")
    commit = upstream.commit(repository)
    folder, _ = checkout(URL, commit, paths=paths, cache_root=tmp_path / "c", settings=mirrored(upstream))
    expected = sorted([*names, "d/link", "d/dangling", "d/run.sh", os.fsdecode(b"d/latin-\xe9")])
    assert listing(folder) == expected
    assert (folder / "d/run.sh").stat().st_mode & stat.S_IXUSR
    assert not (folder / "d/plain").stat().st_mode & stat.S_IXUSR
    assert (folder / "d/link").readlink() == Path("plain")
    assert (folder / "d/dangling").readlink() == Path("../nowhere")
    assert (folder / "d/crlf").read_bytes() == b"a\r\nb\r\n"


def test_the_users_git_configuration_cannot_change_what_is_checked_out(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter in ~/.gitconfig (git-lfs puts one there) would give other bytes than the pinned ones."""
    repository = upstream.work_tree("up", "demo")
    commit = upstream.commit(repository, {".gitattributes": "* text=auto filter=shout\n", "a": "quiet\n"})
    git_settings('[filter "shout"]\n\tsmudge = tr a-z A-Z\n[core]\n\teol = crlf\n', tmp_path, monkeypatch)
    folder, _ = checkout(URL, commit, paths=(), cache_root=tmp_path / "c", settings=mirrored(upstream))
    assert (folder / "a").read_bytes() == b"quiet\n"


def test_a_commit_that_the_mirror_lacks_is_named_with_the_mirror(upstream: Upstream, tmp_path: Path) -> None:
    upstream.commit(upstream.work_tree("up", "demo"), {"a": "1"})
    with pytest.raises(CommitNotFoundError) as caught:
        checkout(URL, "1" * 40, paths=(), cache_root=tmp_path / "c", settings=mirrored(upstream))
    assert "1" * 40 in caught.value.what
    assert upstream.mirror.split("{")[0] in caught.value.where
    assert "--mirror" in caught.value.hint


def test_a_path_that_the_commit_lacks_is_named(upstream: Upstream, tmp_path: Path) -> None:
    commit = upstream.commit(upstream.work_tree("up", "demo"), {"a": "1"})
    with pytest.raises(CommitNotFoundError, match="has no gone"):
        checkout(URL, commit, paths=("gone",), cache_root=tmp_path / "c", settings=mirrored(upstream))


def test_a_mirror_without_the_repository_says_how_to_set_one(upstream: Upstream, tmp_path: Path) -> None:
    upstream.root.mkdir()
    with pytest.raises(HostUnreachableError) as caught:
        checkout(URL, "1" * 40, paths=(), cache_root=tmp_path / "c", settings=mirrored(upstream))
    assert "SM120_MIRROR" in caught.value.hint


def test_offline_without_cache_is_refused_before_git_is_asked(tmp_path: Path) -> None:
    with pytest.raises(OfflineError, match="offline mode"):
        checkout(URL, "1" * 40, paths=(), cache_root=tmp_path / "c", settings=Settings(offline=True))


def test_offline_a_missing_commit_of_a_known_repository_is_never_asked_of_the_server(
    upstream: Upstream, tmp_path: Path
) -> None:
    """A partial clone fetches what it lacks by itself; that must not happen behind offline mode's back."""
    repository = upstream.work_tree("up", "demo")
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    first = upstream.commit(repository, {"a": "1"})
    checkout(URL, first, paths=(), cache_root=tmp_path / "c", settings=mirrored(upstream))
    second = upstream.commit(repository, {"a": "2"})
    with pytest.raises(OfflineError):
        checkout(URL, second, paths=(), cache_root=tmp_path / "c", settings=Settings(offline=True))
    cached = next((tmp_path / "c" / "git").iterdir())
    listed = git(cached, "cat-file", "--batch-check", "--batch-all-objects")
    assert second not in listed


def test_locks_left_by_a_killed_git_do_not_stop_the_next_run(upstream: Upstream, tmp_path: Path) -> None:
    repository = upstream.work_tree("up", "demo")
    first = upstream.commit(repository, {"a": "1"})
    checkout(URL, first, paths=(), cache_root=tmp_path / "c", settings=mirrored(upstream))
    cached = next((tmp_path / "c" / "git").iterdir())
    for name in ("config.lock", "shallow.lock"):
        (cached / name).touch()
    second = upstream.commit(repository, {"a": "2"})
    folder, _ = checkout(URL, second, paths=(), cache_root=tmp_path / "c", settings=mirrored(upstream))
    assert (folder / "a").read_text() == "2"


def test_a_damaged_cached_copy_is_mended_by_fetching_again(upstream: Upstream, tmp_path: Path) -> None:
    repository = upstream.work_tree("up", "demo")
    first = upstream.commit(repository, {"a": "1"})
    checkout(URL, first, paths=(), cache_root=tmp_path / "c", settings=mirrored(upstream))
    cached = next((tmp_path / "c" / "git").iterdir())
    for pack in (cached / "objects").rglob("*"):
        if pack.is_file():
            pack.unlink()
    (tmp_path / "c" / "trees").rename(tmp_path / "c" / "gone")
    folder, _ = checkout(URL, first, paths=(), cache_root=tmp_path / "c", settings=mirrored(upstream))
    assert (folder / "a").read_text() == "1"


def test_without_git_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    with pytest.raises(ToolMissingError, match="git is not installed"):
        checkout(URL, "1" * 40, paths=(), cache_root=tmp_path / "c", settings=Settings())


def test_submodules_are_left_as_empty_folders(upstream: Upstream, tmp_path: Path) -> None:
    inner = upstream.work_tree("up", "inner")
    pinned = upstream.commit(inner, {"x": "1"})
    repository = upstream.work_tree("up", "demo")
    upstream.commit(repository, {"a": "1"})
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{pinned},third")
    git(repository, "commit", "--quiet", "-m", "submodule")
    commit = git(repository, "rev-parse", "HEAD")
    folder, _ = checkout(URL, commit, paths=(), cache_root=tmp_path / "c", settings=mirrored(upstream))
    assert listing(folder) == ["a"]
