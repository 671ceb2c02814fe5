"""Patches, applied by the real git: applied, already in, in conflict, damaged; and never with fuzz."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_wheels import patch
from sm120_wheels.errors import PatchConflictError, PatchInvalidError, PatchUnusedError, UnknownComponentError
from tests.support.world import git, make_patch

LINES = [f"line {n}\n" for n in range(1, 41)]
BEFORE = {"f.txt": "".join(LINES), "sub/g.txt": "g\n"}
AFTER = {"f.txt": BEFORE["f.txt"].replace("line 20\n", "line twenty\n"), "sub/g.txt": "g\n"}


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write(root: Path, text: str, *, versions: str = "1.0", name: str = "0001-change.patch") -> Path:
    file = root / "demo" / versions / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.fixture
def change(tmp_path: Path) -> patch.Patch:
    write(tmp_path / "patches", make_patch(BEFORE, AFTER, tmp_path / "scratch"))
    return patch.discover("demo", tmp_path / "patches")[0]


def test_a_patch_is_applied_once_and_then_already_in(change: patch.Patch, tmp_path: Path) -> None:
    tree = put(tmp_path / "tree", BEFORE)
    assert patch.apply(change, tree) == "applied"
    assert (tree / "f.txt").read_text() == AFTER["f.txt"]
    assert patch.apply(change, tree) == "already in"
    assert (tree / "f.txt").read_text() == AFTER["f.txt"]


def test_a_patch_whose_lines_have_moved_still_applies(change: patch.Patch, tmp_path: Path) -> None:
    tree = put(tmp_path / "tree", {**BEFORE, "f.txt": "new first line\n" + BEFORE["f.txt"]})
    assert patch.apply(change, tree) == "applied"


@pytest.mark.parametrize(
    ("old", "new"),
    [("line 18\n", "line 18 changed\n"), ("line 23\n", ""), ("line 21\n", "line  21\n"), ("line 22\n", "line 22 \n")],
    ids=["a changed context line", "a missing context line", "other spaces", "a space at the end"],
)
def test_context_that_differs_by_anything_is_a_conflict(
    change: patch.Patch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """Also where the user's git is told to be lenient."""
    home = put(tmp_path / "home", {".gitconfig": "[apply]\n\tignoreWhitespace = change\n\twhitespace = fix\n"})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    changed = BEFORE["f.txt"].replace(old, new, 1)
    tree = put(tmp_path / "tree", {**BEFORE, "f.txt": changed})
    with pytest.raises(PatchConflictError) as caught:
        patch.apply(change, tree)
    assert caught.value.where == "f.txt:17"
    assert "-line 20" in caught.value.why
    assert "+line twenty" in caught.value.why
    assert "   20 line" in caught.value.why
    assert (tree / "f.txt").read_text() == changed


def test_a_patch_to_two_files_is_applied_wholly_or_not_at_all(tmp_path: Path) -> None:
    after = {"f.txt": AFTER["f.txt"], "sub/g.txt": "other\n"}
    write(tmp_path / "patches", make_patch(BEFORE, after, tmp_path / "scratch"))
    tree = put(tmp_path / "tree", {**BEFORE, "sub/g.txt": "upstream\n"})
    with pytest.raises(PatchConflictError):
        patch.apply(patch.discover("demo", tmp_path / "patches")[0], tree)
    assert (tree / "f.txt").read_text() == BEFORE["f.txt"]


def test_a_file_that_is_gone_upstream_is_named(change: patch.Patch, tmp_path: Path) -> None:
    tree = put(tmp_path / "tree", {"sub/g.txt": "g\n"})
    with pytest.raises(PatchConflictError) as caught:
        patch.apply(change, tree)
    assert "f.txt" in caught.value.where


def test_files_are_added_removed_and_made_executable(tmp_path: Path) -> None:
    after = {"sub/g.txt": "g\n", "new/file": "new\n"}
    write(tmp_path / "patches", make_patch(BEFORE, after, tmp_path / "scratch"))
    tree = put(tmp_path / "tree", BEFORE)
    assert patch.apply(patch.discover("demo", tmp_path / "patches")[0], tree) == "applied"
    assert not (tree / "f.txt").exists()
    assert (tree / "new/file").read_text() == "new\n"


def test_a_tree_inside_another_checkout_is_patched_too(change: patch.Patch, tmp_path: Path) -> None:
    """git apply passes silently over paths outside the index of a repository that it finds above."""
    git(tmp_path, "init", "--quiet")
    tree = put(tmp_path / "build" / "tree", BEFORE)
    assert patch.apply(change, tree) == "applied"
    assert (tree / "f.txt").read_text() == AFTER["f.txt"]


def test_patches_come_in_the_order_of_their_numbers_over_all_ranges(tmp_path: Path) -> None:
    text = make_patch(BEFORE, AFTER, tmp_path / "scratch")
    for versions, name in [("1.0", "0003-c.patch"), ("0.9--1.10", "0001-a.patch"), ("1.0", "0002-b.patch")]:
        write(tmp_path / "patches", text, versions=versions, name=name)
    found = patch.discover("demo", tmp_path / "patches")
    assert [p.path.name for p in found] == ["0001-a.patch", "0002-b.patch", "0003-c.patch"]
    known = ["0.9", "1.0", "1.9", "1.10", "1.11"]
    assert [p.path.name for p in patch.select(found, "1.9", known)] == ["0001-a.patch"]
    assert [p.path.name for p in patch.select(found, "1.10", known)] == ["0001-a.patch"]
    assert patch.select(found, "1.11", known) == []


def test_a_range_without_a_version_of_the_recipe_is_an_error(change: patch.Patch) -> None:
    with pytest.raises(PatchUnusedError, match="matches no version"):
        patch.select([change], "2.0", ["2.0", "3.0"])


@pytest.mark.parametrize(
    ("versions", "name", "edit", "why"),
    [
        ("1.0", "change.patch", ("", ""), "NNNN-what-it-does"),
        ("1.0", "0001-Ünï.patch", ("", ""), "NNNN-what-it-does"),
        ("main", "0001-a.patch", ("", ""), "neither a version nor a range"),
        ("2.0--1.0", "0001-a.patch", ("", ""), "ends before it begins"),
        ("1.0", "0001-a.patch", ("Upstream-Status: not proposed\n", ""), "field Upstream-Status is missing"),
        ("1.0", "0001-a.patch", ("Subject", "Topic"), "field Subject is missing"),
        ("1.0", "0001-a.patch", ("not proposed", "soon"), "field Upstream-Status is 'soon'"),
        ("1.0", "0001-a.patch", ("Date: Mon, 6 May 2024 07:08:09 +0000", "Date: in May"), "field Date is 'in May'"),
        ("1.0", "0001-a.patch", ("Date: Mon, 6 May 2024 07:08:09 +0000\n", ""), "field Date is missing"),
        ("1.0", "0001-a.patch", ("Why it is needed.", ""), "field purpose is missing"),
        ("1.0", "0001-a.patch", ("Kernels removed: none.", ""), "field 'Kernels removed:' is missing"),
        ("1.0", "0001-a.patch", ("Kernels removed: none.", "Kernels removed:"), "field 'Kernels removed:' is empty"),
        ("1.0", "0001-a.patch", ("Subject:", "Group: Lean!\nSubject:"), "field Group is 'Lean!'"),
        ("1.0", "0001-a.patch", ("diff --git", "diff"), "no diff"),
        ("1.0", "0001-a.patch", (" line 23\n", ""), "damaged"),
        ("1.0/deeper", "0001-a.patch", ("", ""), "no folder of versions"),
    ],
)
def test_a_patch_that_breaks_the_format_says_which_rule(
    tmp_path: Path, versions: str, name: str, edit: tuple[str, str], why: str
) -> None:
    text = make_patch(BEFORE, AFTER, tmp_path / "scratch")
    file = write(tmp_path / "patches", text.replace(*edit) if edit[0] else text, versions=versions, name=name)
    with pytest.raises(PatchInvalidError) as caught:
        patch.discover("demo", tmp_path / "patches")
    assert why in caught.value.why
    assert caught.value.where == str(file)


def test_a_long_hunk_is_cut_in_the_message(tmp_path: Path) -> None:
    after = {"f.txt": "".join(f"other {n}\n" for n in range(1, 41)), "sub/g.txt": "g\n"}
    write(tmp_path / "patches", make_patch(BEFORE, after, tmp_path / "scratch"))
    tree = put(tmp_path / "tree", {"f.txt": "".join(f"upstream {n}\n" for n in range(1, 41))})
    with pytest.raises(PatchConflictError) as caught:
        patch.apply(patch.discover("demo", tmp_path / "patches")[0], tree)
    assert "more lines" in caught.value.why
    assert len(caught.value.why.splitlines()) < 60


def test_every_field_of_the_head_is_read(tmp_path: Path) -> None:
    text = make_patch(BEFORE, AFTER, tmp_path / "scratch", headers=["Group: lean", "Source: other"])
    text = text.replace(
        "Kernels removed: none.", "Kernels removed (SM120): a_kernel,\nb_kernel.\n\nMore of the purpose."
    )
    write(tmp_path / "patches", text)
    header = patch.discover("demo", tmp_path / "patches")[0].header
    assert (header.subject, header.date) == ("Change what has to change", "2024-05-06")
    assert (header.group, header.source, header.upstream_status) == ("lean", "other", "not proposed")
    assert header.purpose == "Why it is needed. More of the purpose."
    assert header.kernels_removed == "a_kernel, b_kernel."


def test_a_group_is_left_out_by_name_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "patches", make_patch(BEFORE, AFTER, tmp_path / "scratch"))
    lean = make_patch(BEFORE, AFTER, tmp_path / "scratch", headers=["Group: lean"])
    write(tmp_path / "patches", lean, name="0010-lean.patch")
    found = patch.discover("demo", tmp_path / "patches")
    assert [p.path.name for p in patch.select(found, "1.0", ["1.0"])] == ["0001-change.patch", "0010-lean.patch"]
    assert [p.path.name for p in patch.select(found, "1.0", ["1.0"], without=["lean"])] == ["0001-change.patch"]
    with pytest.raises(UnknownComponentError, match="group 'laen'") as caught:
        patch.select(found, "1.0", ["1.0"], without=["laen"])
    assert "did you mean lean" in caught.value.hint


def test_a_patch_of_every_build_may_not_stand_on_one_that_can_be_left_out(tmp_path: Path) -> None:
    lean = make_patch(BEFORE, AFTER, tmp_path / "scratch", headers=["Group: lean"])
    write(tmp_path / "patches", lean, name="0001-lean.patch")
    write(tmp_path / "patches", make_patch(BEFORE, AFTER, tmp_path / "scratch"), name="0002-always.patch")
    with pytest.raises(PatchInvalidError) as caught:
        patch.select(patch.discover("demo", tmp_path / "patches"), "1.0", ["1.0"])
    assert "comes after 0001-lean.patch of the group lean" in caught.value.why
