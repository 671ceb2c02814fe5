"""What a smoke case is: a function that makes inputs on the GPU and says how to launch one operator and check it.

A suite is a module of pytest functions, one for each operator, parametrised over shapes and dtypes::

    @case("sgl_kernel::rmsnorm")
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    @pytest.mark.parametrize(("rows", "hidden"), [(1, 128), (17, 4096), (4099, 1536)])
    def test_rmsnorm(dtype: str, rows: int, hidden: int) -> Launch:
        x, weight = tensors(dtype, (rows, hidden), (hidden,))
        out = torch.empty_like(x)

        def run() -> torch.Tensor:
            torch.ops.sgl_kernel.rmsnorm.default(out, x, weight, 1e-6, False)
            return out

        return Launch(
            run=run,
            reference=lambda: references.rmsnorm(x, weight, 1e-6),
            redraw=lambda seed: redraw(seed, x, weight),
            tolerance=rounding(dtype, float32_steps=32, source="one rounding to dtype; float32 tree sum, rsqrt"),
        )

The function is never called where pytest runs; the worker calls it, in the environment under test. It must not import
anything at module level but pytest, the standard library and this package (:mod:`lazy` stands for torch).

What the worker does with a :class:`Launch`, each step a stage of its own with its own outcome:

1. ``eager``: ``redraw(1)``; ``expected = reference()``; results poisoned where they are preallocated and no inputs;
   ``run()``; synchronise; compare.
2. ``graph``: a warm-up ``run()`` on a side stream; capture of ``run()``; then twice, with new seeds: ``redraw(seed)``,
   ``expected = reference()``, ``replay()``, synchronise, compare. Left out where ``no_graph`` gives a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

ATTRIBUTE = "__sm120_case__"
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a case needs of the machine. A case whose needs are not met is "not run", with the need as the reason."""

    capability: tuple[tuple[int, int], ...] = ()
    """Compute capabilities that have code for it, ``((9, 0),)``; empty: every one that the wheel has code for."""
    least_capability: tuple[int, int] = (0, 0)
    gpus: int = 1
    """More than one: the case runs in that many processes, one for each GPU; see :mod:`ranks`."""
    memory: int = 0
    """Bytes of GPU memory."""
    why: str = ""
    """Why only these: shown beside "not run"."""


@dataclass(frozen=True, kw_only=True)
class Marked:
    """What :func:`case` leaves on a function."""

    operators: tuple[str, ...]
    needs: Needs
    deadline: float
    """Seconds for all stages of one parameter set together, the first use of a library included."""


def case(*operators: str, needs: Needs | None = None, deadline: float = 30.0) -> Callable[[_Function], _Function]:
    """Mark a function as a case that launches these operators, by qualified name (``sgl_kernel::rmsnorm``).

    The worker checks that each of them was really dispatched: a case that never reaches its operator fails.
    """

    def mark(function: _Function) -> _Function:
        setattr(function, ATTRIBUTE, Marked(operators=operators, needs=needs or Needs(), deadline=deadline))
        return function

    return mark


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """An element may differ by ``absolute + relative * |expected|``, and ``share`` of the elements by more.

    ``share`` is for results with a discontinuity (a quantised value that rounds the other way), never for sums.
    ``source`` says where the numbers come from.
    """

    absolute: float = 0.0
    relative: float = 0.0
    share: float = 0.0
    source: str


EXACT = Tolerance(source="integers, copies or choices: exact")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One operator on one set of inputs.

    ``run`` launches on the current stream and returns its results: one tensor or several (inputs that it changes in
    place are results too). ``reference`` gives the expected results in the same order from the inputs as they are now,
    in plain PyTorch (float64 or float32), and changes nothing. ``redraw`` fills the same tensors with new values from a
    seed. ``tolerance`` is one for all results, or one for each.
    """

    run: Callable[[], Any]
    reference: Callable[[], Any]
    redraw: Callable[[int], None]
    tolerance: Tolerance | Sequence[Tolerance]
    no_graph: str = ""
    """Why it cannot be captured (it synchronises, say); empty where it can."""
    keep: tuple[Any, ...] = field(default=())
    """Objects that must live as long as the launch."""
    may_be_zero: bool = False
    """All results may rightly be zero; elsewhere that is a failure even where the tolerance would allow it."""
    empty: bool = False
    """No row, token or request is given: the operator must come back and leave everything else as it was.

    It may launch no kernel, and results without an element, or of zeros, are right; elsewhere a case none of whose
    results has an element compares nothing and fails. Such a case can fail its operators, and never makes one "passed".
    """


class NotRun(Exception):  # noqa: N818 - a state, not an error
    """Raised by a case, with the reason, where this GPU or package cannot have it: the outcome is "not run"."""
