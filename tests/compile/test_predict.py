"""Predictions: where they come from, what margin they carry, and how they learn."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from sm120_wheels.compile.budget import GIB, MIB
from sm120_wheels.compile.command import CompileCommand, parse
from sm120_wheels.compile.knowledge import Knowledge, Origin
from sm120_wheels.compile.predict import Prediction, bias_of, claimed, fit, key_of, margin, predict
from sm120_wheels.compile.profile import Footprint, Profile, Store, Unit, read_profile
from sm120_wheels.compile.task import Tail
from sm120_wheels.paths import recipes_root

SHIPPED = recipes_root() / "sgl-kernel" / "profiles" / "0.4.4-sm120a-whole.csv"


def command(source: str = "/b/src/csrc/gemm/a.cu", flags: str = "-arch=sm_120a") -> CompileCommand:
    return parse(["nvcc", *flags.split(), "-c", source, "-o", "a.o"], "/b")


def predicted(what: CompileCommand, store: Store, profile: Profile | None = None, bias: float = 1.0) -> Prediction:
    return predict(what, compiler="nvcc 13", store=store, profile=profile, footprint=None, model=None, bias=bias)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store.json")


@pytest.fixture
def profile() -> Profile:
    return Profile(units={"csrc/gemm/a.cu": Unit(source="csrc/gemm/a.cu", peak=4 * GIB, seconds=90)})


def test_the_profile_is_found_wherever_the_sources_lie(store: Store, profile: Profile) -> None:
    found = predicted(command(), store, profile)
    assert (found.basis, found.seconds) == ("profile", 90)
    assert 4 * GIB < found.memory < 4.3 * GIB


def test_a_tail_is_reserved_with_a_margin_and_only_where_it_is_clearly_less(store: Store) -> None:
    def tail_of(memory: int, flags: str = "-arch=sm_120a", bias: float = 1.0) -> Tail | None:
        unit = Unit(source="csrc/gemm/a.cu", peak=4 * GIB, seconds=90, tail=Tail(memory=memory, after=50.0))
        return predicted(command(flags=flags), store, Profile(units={unit.source: unit}), bias).tail

    assert tail_of(GIB) == Tail(memory=int(1.1 * GIB) + 32 * MIB, after=50.0)
    assert tail_of(GIB, bias=2.0) == Tail(memory=int(2 * 1.1 * GIB) + 32 * MIB, after=50.0)
    assert tail_of(int(3.4 * GIB)) is None, "with its margin it is nearly the peak"
    two = "-gencode arch=compute_90a,code=sm_90a -gencode arch=compute_120a,code=sm_120a"
    assert tail_of(GIB, flags=two) is None, "each target has a peak"


def test_a_measured_tail_is_for_one_target_alone(store: Store) -> None:
    for flags, tails in (("-arch=sm_120a", True), ("-gencode arch=compute_90a -gencode arch=compute_120a", False)):
        what = command(flags=flags)
        store.add(replace(key_of(what, "nvcc 13"), peak=4 * GIB, seconds=9.0, tail=Tail(memory=GIB, after=5.0)))
        found = predicted(what, store)
        assert (found.basis, found.tail is not None) == ("measured", tails)


def test_a_simulation_reserves_what_the_broker_would(store: Store) -> None:
    unit = Unit(source="csrc/gemm/a.cu", peak=4 * GIB, seconds=90, tail=Tail(memory=GIB, after=50.0))
    profile = Profile(units={unit.source: unit})
    real = predicted(command(), store, profile)
    (made_up,) = [claimed(task) for task in profile.tasks()]
    assert (made_up.memory, made_up.tail) == (real.memory, real.tail)


@pytest.mark.parametrize("proxy", ["sccache", "/usr/bin/distcc", "icecc"])
def test_what_a_server_compiles_teaches_nothing(tmp_path: Path, proxy: str) -> None:
    origin = Origin(package="p", session="s", store=str(tmp_path / "p.json"))
    what = parse([proxy, "nvcc", "-arch=sm_120a", "-c", "/b/csrc/gemm/a.cu"], "/b")
    knowledge = Knowledge()
    guess = knowledge.predict(what, origin)
    knowledge.learn(what, origin, guess, peak=15 * MIB, seconds=9, cpu_seconds=0.1, complete=True)
    assert knowledge.predict(what, origin).basis == "default"
    assert knowledge.predict(parse(["ccache", *what_is_behind(what)], "/b"), origin).basis == "default"


def what_is_behind(what: CompileCommand) -> list[str]:
    return [what.compiler, "-arch=sm_120a", "-c", what.source]


def test_what_was_measured_here_comes_first(store: Store, profile: Profile) -> None:
    store.add(replace(key_of(command(), "nvcc 13"), peak=5 * GIB, seconds=70.0))
    found = predicted(command(), store, profile)
    assert (found.basis, found.expected, found.seconds) == ("measured", 5 * GIB, 70)


def test_the_same_source_with_other_flags_is_similar(store: Store) -> None:
    store.add(replace(key_of(command(), "nvcc 13"), peak=5 * GIB, seconds=70.0))
    found = predicted(command(flags="-arch=sm_120a -G"), store)
    assert found.basis == "similar"
    assert found.memory > 5.5 * GIB


def test_targets_compiled_at_once_multiply_memory_and_in_turn_multiply_time(store: Store, profile: Profile) -> None:
    two = "-gencode arch=compute_90a,code=sm_90a -gencode arch=compute_120a,code=sm_120a"
    in_turn = predicted(command(flags=two), store, profile)
    at_once = predicted(command(flags=two + " --threads 2"), store, profile)
    assert (in_turn.expected, in_turn.seconds) == (4 * GIB, 180)
    assert (at_once.expected, at_once.seconds) == (8 * GIB, 90)


def test_nothing_known_gives_a_careful_default(store: Store) -> None:
    assert (predicted(command(), store).basis, predicted(command(), store).memory) == ("default", 4 * GIB)
    assert predicted(command("/b/x.cc"), store).memory < 4 * GIB


def test_a_build_whose_profile_lies_is_corrected_after_two_ends(store: Store, profile: Profile) -> None:
    assert bias_of([]) == bias_of([2.3]) == 1.0
    bias = bias_of([math.log(10), math.log(9)])
    assert bias == pytest.approx(9)
    assert predicted(command(), store, profile, bias).memory > 36 * GIB
    assert bias_of([math.log(0.1), math.log(0.1)]) == 1.0, "too large is never corrected downwards"


def test_margins_follow_past_errors() -> None:
    assert margin("similar", [0.0] * 7) == pytest.approx(1.15), "too few errors to learn from"
    assert margin("similar", [math.log(1.4)] * 20) == pytest.approx(1.4)
    assert margin("profile", [0.0] * 50) == pytest.approx(1.03), "never below the least"


def test_the_model_covers_nearly_all_files_it_was_not_fitted_on() -> None:
    units = [u for u in read_profile(SHIPPED).units.values() if u.footprint is not None]
    covered = 0
    for left_out in units:
        model = fit([u for u in units if u is not left_out])
        assert model is not None
        found = predict(
            command("/b/somewhere/else/" + left_out.source.rpartition("/")[2]),
            compiler="nvcc 13",
            store=Store(Path("/nonexistent")),
            profile=None,
            footprint=left_out.footprint,
            model=model,
        )
        assert found.basis == "model"
        covered += found.memory >= left_out.peak
    assert covered / len(units) >= 0.9


def test_a_model_needs_eight_files() -> None:
    units = [Unit(source="a.cu", peak=GIB, seconds=1, footprint=Footprint(files=1, size=1))] * 8
    assert fit(units[:7]) is None
    assert fit(units) is not None


def test_knowledge_outlives_the_broker_and_a_kill_teaches_only_upwards(tmp_path: Path) -> None:
    origin = Origin(package="p", session="s", store=str(tmp_path / "p.json"))
    compiler = tmp_path / "nvcc"
    compiler.write_text("#!/bin/sh\necho fake 1.0\n")
    compiler.chmod(0o755)
    what = parse([str(compiler), "-c", "/b/csrc/gemm/a.cu"], "/b")
    first = Knowledge()
    guess = first.predict(what, origin)
    first.learn(what, origin, guess, peak=300 * MIB, seconds=1.5, cpu_seconds=1.0, complete=False)
    assert first.predict(what, origin).basis == "default", "a killed compile has no peak to remember"
    first.learn(what, origin, guess, peak=300 * MIB, seconds=1.5, cpu_seconds=1.0, complete=True)
    first.save()
    again = Knowledge().predict(what, origin)
    assert (again.basis, again.expected, again.seconds) == ("measured", 300 * MIB, 1.5)


def test_files_that_started_before_the_bias_was_known_do_not_raise_it_again(tmp_path: Path) -> None:
    profile = tmp_path / "p.csv"
    profile.write_text("source,peak_mib,seconds\n" + "".join(f"csrc/gemm/{n}.cu,1000,60\n" for n in range(9)))
    origin = Origin(package="p", session="s", profile=str(profile), store=str(tmp_path / "p.json"))
    knowledge = Knowledge()
    commands = [parse(["nvcc", "-c", f"/b/csrc/gemm/{n}.cu"], "/b") for n in range(9)]
    guesses = [knowledge.predict(what, origin) for what in commands[:8]]
    for what, guess in zip(commands, guesses, strict=False):
        knowledge.learn(what, origin, guess, peak=2500 * MIB, seconds=60, cpu_seconds=60, complete=True)
    assert knowledge.bias("s") == pytest.approx(2.5)
    late = knowledge.predict(commands[8], origin)
    assert late.expected == pytest.approx(2500 * MIB, rel=0.01)
    knowledge.learn(commands[8], origin, late, peak=2500 * MIB, seconds=60, cpu_seconds=60, complete=True)
    assert knowledge.bias("s") == pytest.approx(2.5), "what is corrected already needs no more"


def test_a_damaged_store_is_started_anew(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text('{"format": 1, "entries": [{"sour')
    store = Store(tmp_path / "store.json")
    assert store.entries == {}
    store.add(replace(key_of(command(), "nvcc 13"), peak=1, seconds=1.0))
    store.save()
    assert len(Store(tmp_path / "store.json").entries) == 1
