"""Several builders and a client, on a made-up clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_wheels.compile.simulate_machines import Link, Machines, repeated, simulate_machines
from sm120_wheels.compile.task import Task

FREE = Link(bytes_each=0, bytes_per_s=1.0, seconds_each=0.0)
TASKS = st.lists(st.tuples(st.integers(1, 100), st.floats(0.5, 50)), min_size=1, max_size=20).map(
    lambda rows: [Task(key=f"t{i}", memory=m, seconds=s) for i, (m, s) in enumerate(rows)]
)


def run(tasks: list[Task], *, machines: int, budget: int = 100, share: float = 0.0, link: Link = FREE) -> Machines:
    return simulate_machines(
        tasks, machines=machines, cores=2, budget=budget, client_cores=2, local_share=share, link=link
    )


@given(TASKS, st.integers(1, 4), st.floats(0, 1))
def test_every_file_is_compiled_once_within_each_builders_memory(
    tasks: list[Task], machines: int, share: float
) -> None:
    outcome = run(tasks, machines=machines, share=share)
    assert sum(outcome.files_each) == len(tasks)
    assert outcome.peak <= 100
    assert outcome.makespan >= outcome.lower_bound - 1e-6


def test_two_builders_halve_what_splits_evenly() -> None:
    tasks = [Task(key=f"t{i}", memory=10, seconds=10) for i in range(8)]
    assert (run(tasks, machines=1).makespan, run(tasks, machines=2).makespan) == (40, 20)


def test_memory_on_a_builder_holds_back_what_its_cores_could_do() -> None:
    tasks = [Task(key=f"t{i}", memory=60, seconds=10) for i in range(4)]
    assert run(tasks, machines=2).makespan == 20
    assert run(tasks, machines=2, budget=120).makespan == 10


def test_what_stays_on_the_client_bounds_any_number_of_builders() -> None:
    tasks = [Task(key=f"t{i}", memory=1, seconds=10) for i in range(16)]
    assert run(tasks, machines=8, share=0.5).makespan == pytest.approx(16 * 5 / 2 + 5)


def test_a_slow_link_sends_one_file_after_the_other() -> None:
    tasks = [Task(key=f"t{i}", memory=1, seconds=1) for i in range(4)]
    slow = Link(bytes_each=100, bytes_per_s=10, seconds_each=0.5)
    assert run(tasks, machines=4, link=slow).makespan == pytest.approx(40 + 0.5 + 1)


def test_repeated_files_have_names_of_their_own() -> None:
    tasks = repeated([Task(key="a", memory=1, seconds=1), Task(key="b", memory=2, seconds=2)], 5)
    assert [t.memory for t in tasks] == [1, 2, 1, 2, 1]
    assert len({t.key for t in tasks}) == 5
