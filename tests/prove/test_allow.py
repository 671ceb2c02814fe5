from __future__ import annotations

from pathlib import Path

import pytest

from sm120_wheels.errors import SettingError
from sm120_wheels.paths import recipes_root
from sm120_wheels.prove.allow import AllowList, known_traps, merged, read_allow_list
from sm120_wheels.prove.traps import Trap

TRAP = Trap(kernel="_ZN3foo3barEPf", reason="guard", message="without CUTE_ARCH_X")


def test_a_trap_is_allowed_by_mangled_or_readable_name_message_and_target(tmp_path: Path) -> None:
    file = tmp_path / "allowed.toml"
    file.write_text(
        '[[trap]]\nkernel = "foo::bar(*"\nmessage = "*CUTE_ARCH_X*"\ntargets = ["12.0"]\nwhy = "known"\n'
        '[[absent]]\nlibrary = "a/*.so"\nwhy = "not built"\n'
    )
    allow = read_allow_list(file)
    assert allow.allows_trap(TRAP, "12.0") == "known"
    assert allow.allows_trap(TRAP, "12.1") == ""
    assert allow.allows_trap(Trap(kernel=TRAP.kernel, reason="guard", message="other"), "12.0") == ""
    assert allow.allows_absence("a/b.so", "9.0") == "not built"
    assert allow.allows_absence("b.so", "9.0") == ""


def test_every_list_that_is_shipped_is_valid_and_gives_reasons() -> None:
    files = sorted(recipes_root().glob("*/traps-allowed.toml"))
    assert files
    for file in files:
        rules = read_allow_list(file)
        assert rules.trap or rules.absent


def test_lists_are_joined_and_a_package_without_one_has_none() -> None:
    one = AllowList.model_validate({"trap": [{"kernel": "a", "why": "x"}]})
    other = AllowList.model_validate({"trap": [{"kernel": "b", "why": "y"}]})
    assert [r.kernel for r in merged(one, other).trap] == ["a", "b"]
    assert known_traps("no-such-package") == AllowList()


@pytest.mark.parametrize(
    "text", ["[[trap", '[[trap]]\nkernel = 1\nwhy = "x"\n', '[[trap]]\nkernal = "a"\n', "edition = 2\n"]
)
def test_what_is_wrong_with_a_list_is_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "allowed.toml"
    file.write_text(text)
    with pytest.raises(SettingError) as failure:
        read_allow_list(file)
    assert str(file) in str(failure.value)
    assert failure.value.exit_code == 17
