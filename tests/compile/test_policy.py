"""The policy's promises, as properties over any tasks, machines and crashes; the clock is a number."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sm120_wheels.compile.policy import Policy
from sm120_wheels.compile.task import Tail, Task, lower_bound

MEMORY = st.integers(1, 120)
TAIL = st.none() | st.builds(Tail, memory=MEMORY, after=st.floats(0.0, 100.0))
ROWS = st.tuples(MEMORY, st.floats(0.1, 100.0), st.integers(1, 4), st.sampled_from(["", "a", "b"]), TAIL)
TASKS = st.lists(ROWS, min_size=1, max_size=25).map(
    lambda rows: [
        Task(key=f"t{i:02}", memory=m, seconds=s, cores=c, build=b, tail=t) for i, (m, s, c, b, t) in enumerate(rows)
    ]
)
MACHINE = st.tuples(st.integers(1, 8), st.integers(10, 150))


def within(policy: Policy) -> bool:
    """Never over budget or cores by prediction; only a task that is alone may need more."""
    if len(policy.running) == 1:
        return True
    return policy.held <= policy.budget and policy.cores_held <= policy.cores


def next_end(policy: Policy) -> tuple[float, str]:
    return min((r.started + r.task.seconds, r.task.key) for r in policy.running.values())


def next_moment(policy: Policy) -> float:
    """When the next running task ends or comes to its tail."""
    tails = [
        r.started + r.task.tail.after
        for r in policy.running.values()
        if r.task.tail is not None and not r.in_tail and r.task.tail.after < r.task.seconds
    ]
    return min([next_end(policy)[0], *tails])


def run_to_end(policy: Policy, now: float = 0.0) -> dict[str, float]:
    """Drive the clock until nothing is left; the starts in order. Fails when the policy is stuck."""
    starts: dict[str, float] = {}
    while policy.waiting or policy.running:
        for task in policy.admit(now):
            starts[task.key] = now
        assert within(policy)
        if policy.running:
            now = next_moment(policy)
            for running in list(policy.running.values()):
                if running.task.tail is not None and running.started + running.task.tail.after <= now:
                    policy.enter_tail(running.task.key, min(running.task.memory, running.task.tail.memory))
                if running.started + running.task.seconds <= now:
                    policy.finish(running.task.key)
        else:
            assert now < 1e6, f"stuck with {sorted(policy.waiting)}"
            now += 30.0
    return starts


@given(TASKS, MACHINE)
def test_it_never_goes_over_budget_and_every_task_ends(tasks: list[Task], machine: tuple[int, int]) -> None:
    cores, budget = machine
    policy = Policy(budget=budget, cores=cores)
    for task in tasks:
        policy.submit(task)
    starts = run_to_end(policy)
    assert set(starts) == policy.done == {t.key for t in tasks}
    assert policy.held == policy.cores_held == 0


@given(TASKS, MACHINE, st.randoms(use_true_random=False))
def test_the_schedule_does_not_depend_on_who_came_first(
    tasks: list[Task], machine: tuple[int, int], chance: random.Random
) -> None:
    cores, budget = machine
    outcomes = []
    for _ in range(2):
        policy = Policy(budget=budget, cores=cores)
        for task in tasks:
            policy.submit(task)
        outcomes.append(run_to_end(policy))
        tasks = chance.sample(tasks, len(tasks))
    assert outcomes[0] == outcomes[1]


@given(TASKS, MACHINE)
def test_the_first_in_order_is_never_delayed_by_those_behind_it(tasks: list[Task], machine: tuple[int, int]) -> None:
    """With exact predictions, the first waiting task of a build starts no later than if nothing else could start any
    more. (Between builds the turn goes by what each was given, which changes while they wait.)"""
    cores, budget = machine
    policy = Policy(budget=budget, cores=cores)
    for task in tasks:
        policy.submit(replace(task, build=""))
    policy.admit(0.0)
    fitting = [t for t in policy.order() if t.memory <= budget]
    if not fitting:
        return
    first = fitting[0]
    alone = Policy(budget=budget, cores=cores)
    for running in policy.running.values():
        alone.resume(running.task, started=running.started)
    alone.submit(first)
    assert run_to_end(policy)[first.key] <= run_to_end(alone)[first.key] + 1e-6


@settings(max_examples=50)
@given(MACHINE, st.integers(0, 2**32))
def test_a_large_task_is_not_starved_by_an_endless_stream(machine: tuple[int, int], seed: int) -> None:
    cores, budget = machine
    chance = random.Random(seed)
    policy = Policy(budget=budget, cores=cores, patience_s=500.0)
    policy.submit(Task(key="large", memory=budget, seconds=1.0))
    now, number, start = 0.0, 0, None
    while start is None:
        while len(policy.waiting) < 2 * cores + 2:
            number += 1
            memory = chance.randint(1, max(1, budget // 2))
            policy.submit(Task(key=f"s{number}", memory=memory, seconds=chance.uniform(5, 50), arrived=now))
        start = next((now for task in policy.admit(now) if task.key == "large"), None)
        assert within(policy)
        assert now < 500.0 + 4 * 50.0, "starved"
        now, key = next_end(policy)
        policy.forget(key)


STEPS = st.lists(
    st.sampled_from(["submit", "admit", "finish", "crash", "resume", "observe", "resize", "tail", "peak"]), max_size=60
)


@given(STEPS, st.integers(0, 2**32))
def test_any_sequence_of_crashes_releases_everything(steps: list[str], seed: int) -> None:
    chance = random.Random(seed)
    policy = Policy(budget=100, cores=4)
    now = 0.0
    for number, step in enumerate(steps):
        now += chance.uniform(0, 5)
        tail = Tail(memory=chance.randint(1, 150), after=chance.uniform(0, 9)) if chance.random() < 0.5 else None
        task = Task(
            key=f"t{number}", memory=chance.randint(1, 150), seconds=chance.uniform(1, 9), arrived=now, tail=tail
        )
        if step == "submit":
            policy.submit(task)
        elif step == "resume":
            policy.resume(task, started=now)
        elif step == "admit":
            held = policy.held
            started = policy.admit(now)
            assert not started or policy.held <= policy.budget or (held == 0 and len(started) == 1)
        elif step == "resize":
            policy.resize(budget=chance.randint(20, 150), cores=chance.randint(1, 6), ceiling=150)
        elif policy.running and step == "observe":
            policy.observe(chance.choice(sorted(policy.running)), chance.randint(1, 200))
        elif policy.running and step == "tail":
            policy.enter_tail(chance.choice(sorted(policy.running)), chance.randint(1, 200))
        elif policy.running and step == "peak":
            policy.leave_tail(chance.choice(sorted(policy.running)), chance.randint(1, 200))
        elif (policy.running or policy.waiting) and step in ("finish", "crash"):
            policy.forget(chance.choice(sorted({**policy.running, **policy.waiting})))
    for key in [*policy.running, *policy.waiting]:
        policy.forget(key)
    assert policy.held == policy.cores_held == 0
    policy.submit(Task(key="after", memory=policy.budget, seconds=1.0, arrived=now))
    assert [t.key for t in policy.admit(now)] == ["after"]


@given(TASKS, MACHINE, st.integers(1, 100))
def test_less_memory_holds_back_new_tasks_and_keeps_running_ones(
    tasks: list[Task], machine: tuple[int, int], percent: int
) -> None:
    cores, budget = machine
    policy = Policy(budget=budget, cores=cores)
    for task in tasks:
        policy.submit(task)
    before = {t.key for t in policy.admit(0.0)}
    policy.resize(budget=max(1, budget * percent // 100), cores=cores, ceiling=budget)
    held = policy.held
    after = policy.admit(1.0)
    assert before <= set(policy.running)
    assert held <= policy.budget or not after


def test_a_task_that_outgrows_its_prediction_holds_back_others_at_once() -> None:
    policy = Policy(budget=100, cores=4)
    policy.submit(Task(key="liar", memory=10, seconds=9))
    assert [t.key for t in policy.admit(0)] == ["liar"]
    policy.observe("liar", 95)
    policy.submit(Task(key="next", memory=10, seconds=1))
    assert policy.admit(1) == []
    assert policy.why_waiting() == "memory"


def test_a_task_past_its_peak_makes_room_and_takes_it_back_if_it_was_not() -> None:
    policy = Policy(budget=100, cores=4)
    policy.submit(Task(key="first", memory=80, seconds=100, tail=Tail(memory=10, after=50)))
    policy.submit(Task(key="second", memory=80, seconds=40))
    assert [t.key for t in policy.admit(0)] == ["first"]
    policy.enter_tail("first", used=20)
    assert policy.held == 20, "what is in use counts, where it is more than the tail"
    assert [t.key for t in policy.admit(50)] == ["second"]
    policy.leave_tail("first", 20)
    assert policy.held == 160
    policy.submit(Task(key="third", memory=10, seconds=1))
    assert policy.admit(51) == []


def test_a_measured_peak_above_the_prediction_is_given_back_at_the_tail_too() -> None:
    policy = Policy(budget=100, cores=4)
    policy.submit(Task(key="liar", memory=50, seconds=100, tail=Tail(memory=10, after=50)))
    policy.admit(0)
    policy.observe("liar", 90)
    policy.enter_tail("liar", used=5)
    assert policy.held == 10
    policy.leave_tail("liar", 90)
    assert policy.held == 90, "not what was predicted: what was seen"


def test_room_for_the_first_that_does_not_fit_is_expected_when_a_tail_begins_not_when_a_task_ends() -> None:
    policy = Policy(budget=100, cores=4)
    policy.submit(Task(key="running", memory=80, seconds=100, tail=Tail(memory=10, after=40)))
    policy.admit(0)
    policy.submit(Task(key="large", memory=90, seconds=1000))
    policy.submit(Task(key="short", memory=20, seconds=30))
    policy.submit(Task(key="longer", memory=20, seconds=60))
    assert [t.key for t in policy.admit(1)] == ["short"], "the longer one would hold what is needed in 40 s"


def test_a_task_whose_tail_fits_beside_the_reservation_may_start_before_it() -> None:
    policy = Policy(budget=100, cores=4)
    policy.submit(Task(key="running", memory=60, seconds=50))
    policy.admit(0)
    policy.submit(Task(key="large", memory=95, seconds=1000))
    policy.submit(Task(key="beside", memory=30, seconds=100, tail=Tail(memory=5, after=40)))
    policy.submit(Task(key="not", memory=6, seconds=100))
    assert [t.key for t in policy.admit(1)] == ["beside"]


def test_with_room_for_all_the_longest_is_first_and_with_little_the_largest_rectangle() -> None:
    long = Task(key="long", memory=10, seconds=100)
    wide = Task(key="wide", memory=90, seconds=60)
    roomy, tight = Policy(budget=10_000, cores=1), Policy(budget=100, cores=64)
    for policy in (roomy, tight):
        policy.submit(long)
        policy.submit(wide)
    assert roomy.order()[0].key == "long"
    assert tight.order()[0].key == "wide"


def test_a_task_too_large_for_now_waits_for_other_programs_and_then_goes_alone() -> None:
    policy = Policy(budget=50, cores=4, ceiling=100, patience_alone_s=60)
    policy.submit(Task(key="large", memory=80, seconds=10))
    policy.submit(Task(key="small", memory=10, seconds=5))
    assert [t.key for t in policy.admit(0)] == ["small"]
    policy.finish("small")
    assert policy.admit(5) == []
    assert policy.why_waiting() == "other programs"
    assert [t.key for t in policy.admit(66)] == ["large"]
    policy.submit(Task(key="beside", memory=1, seconds=1))
    assert policy.admit(67) == []


def test_a_task_larger_than_the_machine_goes_alone_at_once() -> None:
    policy = Policy(budget=50, cores=4, ceiling=60)
    policy.submit(Task(key="huge", memory=80, seconds=10))
    assert [t.key for t in policy.admit(0)] == ["huge"]


def test_a_last_try_runs_with_nothing_beside_it() -> None:
    policy = Policy(budget=100, cores=4)
    policy.submit(Task(key="other", memory=10, seconds=10))
    policy.admit(0)
    policy.submit(Task(key="again", memory=20, seconds=100, alone=True))
    policy.submit(Task(key="long", memory=1, seconds=50))
    assert policy.admit(1) == [], "a task that would outlast the running one would delay the last try"
    policy.finish("other")
    assert [t.key for t in policy.admit(10)] == ["again"]
    assert policy.admit(11) == []
    policy.finish("again")
    assert [t.key for t in policy.admit(12)] == ["long"]


def two_builds(cores: int = 2) -> Policy:
    """A first build of eight large files, and a second of six small ones that comes when two of the large ones run."""
    policy = Policy(budget=100, cores=cores)
    for i in range(8):
        policy.submit(Task(key=f"large{i}", memory=45, seconds=500, build="first"))
    policy.admit(0)
    for i in range(6):
        policy.submit(Task(key=f"small{i}", memory=5, seconds=10, arrived=1, build="second"))
    return policy


def test_small_files_of_a_second_build_do_not_wait_for_all_the_large_ones_of_the_first() -> None:
    policy = two_builds()
    assert policy.admit(1) == [], "both cores are taken"
    policy.finish("large0")
    started = []
    for now in range(500, 560, 10):
        started += [task.key for task in policy.admit(now)]
        policy.finish(started[-1])
    assert started == [f"small{i}" for i in range(6)]
    assert [t.key for t in policy.admit(560)] == ["large2"]


def test_they_start_at_once_in_memory_that_is_free_while_a_large_one_waits() -> None:
    policy = two_builds(cores=8)
    assert [t.key for t in policy.admit(1)] == [f"small{i}" for i in range(2)], "beside what is kept for the next"
    policy.finish("small0")
    assert [t.key for t in policy.admit(11)] == ["small2"]


def test_a_large_file_is_not_starved_by_an_endless_stream_of_another_builds_small_ones() -> None:
    policy = Policy(budget=100, cores=4)
    policy.submit(Task(key="large", memory=100, seconds=60, build="first"))
    now, number, given = 0.0, 0, 0.0
    while "large" not in policy.running:
        while sum(task.build == "second" for task in policy.waiting.values()) < 8:
            number += 1
            policy.submit(Task(key=f"s{number}", memory=25, seconds=7 + number % 5, arrived=now, build="second"))
        given += sum(0.25 * task.seconds for task in policy.admit(now) if task.build == "second")
        assert given < 100, "starved"
        if "large" not in policy.running:
            now, key = next_end(policy)
            policy.forget(key)


def test_a_build_whose_first_file_is_long_does_not_stand_behind_the_others_for_it() -> None:
    policy = Policy(budget=1000, cores=32)
    for build, seconds in (("a", 30), ("b", 30), ("c", 30)):
        for i in range(60):
            policy.submit(Task(key=f"{build}{i}", memory=5, seconds=seconds, build=build))
    policy.submit(Task(key="long", memory=100, seconds=600, build="c"))
    most = 0
    policy.admit(0)
    for now in range(1, 60):
        for running in list(policy.running.values()):
            if now >= running.started + running.task.seconds:
                policy.finish(running.task.key)
        policy.admit(now)
        most = max(most, sum(r.task.build == "c" for r in policy.running.values()))
    assert "long" in policy.running
    assert most >= 8, "its share of the cores is a third"


def test_a_build_that_was_away_or_comes_late_gets_no_more_than_its_turn() -> None:
    policy = Policy(budget=100, cores=1)
    for i in range(3):
        policy.submit(Task(key=f"a{i}", memory=1, seconds=100, build="a"))
    for now in (0, 100):
        policy.finish(policy.admit(now)[0].key)
    for i in range(3):
        policy.submit(Task(key=f"b{i}", memory=1, seconds=100, arrived=200, build="b"))
    assert [t.build for t in policy.order()] == ["a", "b", "b", "b"]


def test_a_job_count_holds_back_its_own_build_only() -> None:
    policy = Policy(budget=100, cores=4)
    policy.limit_jobs({"one": 1})
    for i in range(3):
        policy.submit(Task(key=f"one{i}", memory=10, seconds=10, build="one"))
        policy.submit(Task(key=f"free{i}", memory=10, seconds=10, build="free"))
    assert sorted(t.key for t in policy.admit(0)) == ["free0", "free1", "free2", "one0"]
    for i in range(3):
        policy.finish(f"free{i}")
    assert policy.admit(1) == []
    assert policy.why_waiting("one") == "cores"


def test_what_a_build_waits_for_is_said_for_each() -> None:
    policy = two_builds()
    policy.admit(1)
    assert (policy.why_waiting("first"), policy.why_waiting("second")) == ("cores", "another build")
    assert policy.why_waiting("third") == ""


def test_the_lower_bound_is_the_largest_of_its_three_parts() -> None:
    tasks = [Task(key="a", memory=50, seconds=10), Task(key="b", memory=50, seconds=20)]
    assert lower_bound(tasks, cores=8, budget=1000) == 20
    assert lower_bound(tasks, cores=1, budget=1000) == 30
    assert lower_bound(tasks, cores=8, budget=50) == 30
    assert lower_bound([], cores=8, budget=50) == 0


def test_one_batch_keeps_its_order_however_long_it_waits_and_a_later_one_stands_behind() -> None:
    policy = Policy(budget=1000, cores=1, patience_s=100)
    for key, seconds, arrived in (("a", 1.0, 0.0), ("b", 9.0, 5.0), ("late", 99.0, 101.0)):
        policy.submit(Task(key=key, memory=1, seconds=seconds, arrived=arrived))
    assert [t.key for t in policy.order()] == ["b", "a", "late"]
    policy.finish("a")
    policy.finish("b")
    policy.submit(Task(key="later", memory=1, seconds=100.0, arrived=150.0))
    assert [t.key for t in policy.order()] == ["later", "late"]


def test_the_reserve_never_keeps_back_the_only_compile() -> None:
    policy = Policy(budget=50, cores=4)
    policy.resize(budget=0, cores=4, ceiling=100, free=10)
    policy.submit(Task(key="small", memory=8, seconds=9))
    policy.submit(Task(key="other", memory=8, seconds=1))
    assert [t.key for t in policy.admit(0)] == ["small"]
    assert policy.admit(1) == []


def test_patience_with_other_programs_is_spent_once_and_not_for_every_file() -> None:
    policy = Policy(budget=50, cores=4, patience_alone_s=60)
    policy.resize(budget=1, cores=4, ceiling=100)
    for key in ("a", "b"):
        policy.submit(Task(key=key, memory=8, seconds=9))
    assert policy.admit(0) == []
    assert [t.key for t in policy.admit(61)] == ["a"]
    policy.finish("a")
    assert [t.key for t in policy.admit(62)] == ["b"]
