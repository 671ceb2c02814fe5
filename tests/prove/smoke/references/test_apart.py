"""Cases of rows that lie apart, and of no row: what they must catch is caught. Needs torch; the operators are stand-ins
in Python, and what is asked for on a GPU is made on the CPU."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sm120_wheels.prove.smoke

torch: Any = pytest.importorskip("torch", reason="not run: torch is not installed here")
PAYLOAD = Path(sm120_wheels.prove.smoke.__file__).parent / "payload"

Operator = Callable[..., Any]


class _OnTheCpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = dict(named or {})
        if named.get("device") == "cuda":
            named["device"] = "cpu"
        return given[0] if function is torch.Tensor.cuda else function(*given, **named)


class _StandIns:
    """A namespace of operators; one that is not given does nothing."""

    def __init__(self, given: dict[str, Operator]) -> None:
        self._given = given

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(default=self._given.get(name, lambda *given: None))


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Runs a case of sgl-kernel's with stand-ins for its operators."""
    monkeypatch.syspath_prepend(str(PAYLOAD))
    generator = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device: generator())
    stages = importlib.import_module("sm120_smoke.stages")
    backend = importlib.import_module("sm120_smoke.backend_torch").TorchBackend("cpu")
    before = torch.is_grad_enabled()
    backend.start(0)
    guard = SimpleNamespace(begin=lambda: None, end=list, reference=nullcontext, blind=False)

    def run(module: str, case: str, operators: dict[str, Operator], **parameters: Any) -> Any:
        monkeypatch.setattr(torch.ops, "sgl_kernel", _StandIns(operators), raising=False)
        function = getattr(importlib.import_module(f"sm120_smoke.suites.sgl_kernel.{module}"), case)
        runs = stages.Run(backend, guard, lambda stage, step: None, with_trace=False)
        with _OnTheCpu():
            return runs.run(lambda: function(**parameters), ())

    yield run
    torch.set_grad_enabled(before)


def _why(outcome: Any) -> str:
    return next((stage.why for stage in outcome.stages if stage.state == "failed"), "")


def _as_if_contiguous(x: Any) -> Any:
    """The memory that a kernel reads which multiplies the row by its length."""
    return x.as_strided(x.shape, torch.empty(x.shape).stride())


def _norm(out: Any, x: Any, weight: Any, eps: float, pdl: bool) -> None:
    wide = x.double()
    out.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double())


def _norm_of_other_rows(out: Any, x: Any, *more: Any) -> None:
    _norm(out, _as_if_contiguous(x), *more)


def _norm_into_other_rows(out: Any, x: Any, *more: Any) -> None:
    _norm(out, x, *more)
    rows = out.clone()
    _as_if_contiguous(out).copy_(rows)
    out.copy_(rows)


@pytest.mark.parametrize(
    ("operator", "why"),
    [
        (_norm, ""),
        (_norm_of_other_rows, "result 1 of 3: "),
        (_norm_into_other_rows, "result 3 of 3: "),
    ],
)
def test_a_norm_that_ignores_the_stride_of_a_row_fails(
    outcome: Callable[..., Any], operator: Operator, why: str
) -> None:
    found = outcome("test_norm", "test_rmsnorm_rows_apart", {"rmsnorm": operator}, dtype="bfloat16")
    assert found.state == ("failed" if why else "passed")
    assert _why(found).startswith(why)


def _rotary(contiguous: bool) -> Operator:
    def rotate(positions: Any, query: Any, key: Any, size: int, cache: Any, neox: bool) -> None:
        references = importlib.import_module("sm120_smoke.references.norm")
        for x in (query, key):
            memory = _as_if_contiguous(x) if contiguous else x
            memory.copy_(references.rotary_embedding(positions, memory, size, cache, neox=neox))

    return rotate


@pytest.mark.parametrize("by_heads", [True, False])
def test_a_rotation_that_takes_a_fused_projection_for_contiguous_fails(
    outcome: Callable[..., Any], by_heads: bool
) -> None:
    case = ("test_rope", "test_rotary_embedding_of_a_fused_projection")
    for contiguous, state in ((False, "passed"), (True, "failed")):
        operators = {"rotary_embedding": _rotary(contiguous)}
        assert outcome(*case, operators, dtype="float16", neox=True, by_heads=by_heads).state == state


def test_no_token_leaves_the_cache_as_it_is(outcome: Callable[..., Any]) -> None:
    name = "dsv4_fused_k_norm_rope_flashmla"
    case = ("test_dsv4", f"test_{name}_of_no_token")
    nothing = outcome(*case, {})
    assert (nothing.state, nothing.empty) == ("passed", True)
    assert "all zeros" in _why(outcome(*case, {name: lambda *given: given[5].zero_()}))


@pytest.mark.parametrize(
    ("module", "case"),
    [
        ("test_norm", "test_rmsnorm_rows_apart"),
        ("test_norm", "test_gemma_rmsnorm_rows_apart"),
        ("test_norm", "test_gemma_fused_add_rmsnorm_rows_apart"),
        ("test_rope", "test_rotary_embedding_of_a_fused_projection"),
        ("test_memory", "test_concat_mla_k_apart"),
        ("test_memory", "test_concat_mla_absorb_q_apart"),
        ("test_dsv4", "test_dsv4_fused_q_indexer_rope_hadamard_quant"),
        ("test_mamba", "test_causal_conv1d_fwd_channels_apart"),
        ("test_mamba", "test_causal_conv1d_update"),
        ("test_quant", "test_scales_of_columns_apart"),
    ],
)
def test_an_operator_that_does_nothing_is_right_for_nothing_only(
    outcome: Callable[..., Any], module: str, case: str
) -> None:
    function = getattr(importlib.import_module(f"sm120_smoke.suites.sgl_kernel.{module}"), case)
    for parameters in _parameter_sets(function):
        found = outcome(module, case, {}, **parameters)
        assert found.state == ("passed" if found.empty else "failed"), parameters
        assert found.empty or "result" in _why(found), parameters


def _parameter_sets(function: Any) -> Iterator[dict[str, Any]]:
    axes = []
    for mark in function.pytestmark:
        names, given = mark.args
        one = isinstance(names, str)
        axes.append([{names: each} if one else dict(zip(names, each, strict=True)) for each in given])
    for chosen in itertools.product(*axes):
        yield {name: value for part in chosen for name, value in part.items()}
