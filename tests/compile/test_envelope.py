"""When a compile is past its peak, from samples of what it held."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_wheels.compile.envelope import Envelope
from sm120_wheels.compile.task import Tail


def envelope(samples: Sequence[int], every: float = 0.5) -> Envelope:
    made = Envelope()
    for number, used in enumerate(samples):
        made.add(number * every, used)
    return made


def test_the_time_is_cut_where_most_memory_is_given_back() -> None:
    assert envelope([10, 50, 100, 90, 20, 15, 20, 5, 5, 5]).tail() == Tail(memory=20, after=2.0)


def test_memory_that_falls_between_two_peaks_is_never_taken_for_the_tail() -> None:
    samples = [100, 100, 5, 5, 100, 100, 10, 10]
    tail = envelope(samples).tail()
    assert tail == Tail(memory=100, after=0.0), "10 after the second peak would be believed after the first"
    assert envelope([60, 60, 5, 5, 100, 100, 10, 10]).tail() == Tail(memory=10, after=3.0)


def test_a_fall_shorter_than_a_step_counts_as_one() -> None:
    samples = [100] * 15 + [5] + [100] * 14 + [8] * 30
    assert envelope(samples, 0.1).tail() == Tail(memory=100, after=0.0)


def test_the_step_in_which_memory_falls_for_good_is_no_fall_between_two_peaks() -> None:
    samples = [50] * 10 + [100] * 22 + [5] * 30
    assert envelope(samples, 0.1).tail() == Tail(memory=5, after=3.5)


def test_a_compile_that_was_not_seen_from_its_start_says_nothing() -> None:
    made = Envelope(whole=False)
    for second in range(60, 80):
        made.add(second, 10)
    assert (made.tail(), made.mean) == (None, None)


def test_the_average_is_of_the_whole_time() -> None:
    assert envelope([0, 100, 100, 0]).mean == 50


@given(st.lists(st.integers(1, 1000), min_size=6, max_size=60))
def test_on_its_own_samples_a_tail_is_believed_only_when_no_more_is_needed(samples: list[int]) -> None:
    made = envelope(samples)
    tail = made.tail()
    assert tail is not None
    claim = Tail(memory=int(1.1 * tail.memory), after=tail.after)
    if not claim.saves(made.peak):
        return
    again = Envelope()
    for number, used in enumerate(samples):
        again.add(number * 0.5, used)
        if again.in_tail(claim, elapsed=number * 0.5, used=used, expected=made.peak):
            assert max(samples[number:]) <= 1.25 * tail.memory or (number + 2) * 0.5 > tail.after
            return


def test_a_compile_that_holds_its_memory_to_the_end_has_a_tail_that_saves_nothing() -> None:
    tail = envelope([50, 60, 70, 80, 90, 100]).tail()
    assert tail is not None
    assert not tail.saves(100)


def test_a_compile_of_a_moment_says_nothing() -> None:
    assert envelope([100, 5]).tail() is None


@given(st.lists(st.integers(1, 1000), min_size=6, max_size=80), st.sampled_from([0.1, 0.5, 1.3]))
def test_after_the_cut_never_more_was_held_than_the_tail_says(samples: list[int], every: float) -> None:
    made = envelope(samples, every)
    tail = made.tail()
    if tail is not None:
        assert all(used <= tail.memory for i, used in enumerate(samples) if i * every >= tail.after)
        assert tail.memory <= made.peak == max(samples)


@pytest.mark.parametrize(
    ("samples", "reached"),
    [
        ([100, 100, 100, 100, 20], True),
        ([100, 100, 100, 100, 21], False),
        ([80, 80, 80, 80, 20], False),
        ([100, 20], False),
    ],
    ids=["low after the peak", "not low yet", "no peak yet", "far too early"],
)
def test_a_tail_is_believed_only_after_a_peak_as_high_and_about_as_late_as_known(
    samples: list[int], reached: bool
) -> None:
    made = envelope(samples)
    tail = Tail(memory=20, after=2.0)
    elapsed = (len(samples) - 1) * 0.5
    assert made.in_tail(tail, elapsed=elapsed, used=samples[-1], expected=100) is reached
