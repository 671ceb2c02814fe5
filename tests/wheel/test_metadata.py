from __future__ import annotations

from email.parser import HeaderParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_wheels.errors import WheelInvalidError
from sm120_wheels.wheel.metadata import edit_metadata, edit_wheel

METADATA = """\
Metadata-Version: 2.1
Name: tiny
Version: 0.1
License:                                  Apache License
                                    Version 2.0, January 2004
         
            1. Definitions.
Requires-Python: >=3.9
Requires-Dist: torch
Requires-Dist: numpy ; extra == "all"
Requires-Dist: torch ; extra == "all"

# Tiny

Version: 9.9 is only text here.
"""  # noqa: W293 - blank lines of a folded licence hold spaces


def test_only_the_version_changes_and_licence_and_description_stay() -> None:
    edited = edit_metadata(METADATA, version="0.1+cu130")
    assert edited == METADATA.replace("Version: 0.1\n", "Version: 0.1+cu130\n", 1).replace(
        "Metadata-Version: 0.1+cu130", "Metadata-Version: 2.1"
    )


def test_a_requirement_replaces_upstreams_on_the_same_distribution_and_marker_alone() -> None:
    edited = edit_metadata(METADATA, version="0.1", requires_dist=["torch~=2.11.0"])
    assert HeaderParser().parsestr(edited).get_all("Requires-Dist") == [
        'numpy ; extra == "all"',
        'torch ; extra == "all"',
        "torch~=2.11.0",
    ]


def test_a_metadata_version_too_old_for_requirements_is_raised() -> None:
    edited = edit_metadata("Metadata-Version: 1.0\nName: a\nVersion: 1\n", version="2", requires_dist=["b"])
    assert edited == "Metadata-Version: 2.1\nName: a\nVersion: 2\nRequires-Dist: b\n"


def test_windows_newlines_in_the_header_do_not_hide_the_description() -> None:
    edited = edit_metadata("Metadata-Version: 2.1\r\nName: a\r\nVersion: 1\r\n\r\nText\r\n", version="2")
    assert edited == "Metadata-Version: 2.1\nName: a\nVersion: 2\n\nText\r\n"


def test_what_cannot_be_parsed_is_refused_with_an_example() -> None:
    with pytest.raises(WheelInvalidError) as caught:
        edit_metadata(METADATA, version="1", requires_dist=["torch=2"])
    assert caught.value.hint


def test_tags_are_written_sorted_one_a_line() -> None:
    text = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\nBuild: 1\n"
    assert edit_wheel(text, tags=["b-b-b", "a-a-a"], purelib=False) == (
        "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nBuild: 1\nTag: a-a-a\nTag: b-b-b\n"
    )


@given(body=st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"])))
def test_any_description_survives_letter_by_letter(body: str) -> None:
    head = "Metadata-Version: 2.1\nName: a\nVersion: 1\n\n"
    edited = edit_metadata(head + body, version="2", requires_dist=["torch"])
    assert edited == "Metadata-Version: 2.1\nName: a\nVersion: 2\nRequires-Dist: torch\n\n" + body
