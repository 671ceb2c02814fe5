"""``sm120 lock``: a lock that is not known is refused before anything is asked of the index."""

from __future__ import annotations

import pytest

from sm120_wheels.cli import main


def test_an_unknown_lock_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["lock", "cuda-13.00"])
    assert caught.value.code == 11
    message = capsys.readouterr().err
    assert "no lock called 'cuda-13.00'" in message
    assert "did you mean cuda-13.0" in message
