"""The last launches of a worker: noted by CUPTI's callbacks (a stand-in library here: there is no GPU), read back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm120_wheels.prove.smoke import engine, isolation
from sm120_wheels.prove.smoke.launches import Launched, last_kernel, launches, shown
from sm120_wheels.prove.smoke.model import CaseSpec
from sm120_wheels.prove.smoke.workers import Setup
from tests.prove.smoke.conftest import HERE
from tests.prove.smoke.test_payload import worker_python

CAPTURE = "graph: capture"

#: CUPTI's functions as cupti_callbacks.h declares them, and launch() in place of the driver.
_CUPTI = r"""
#include <stdint.h>
#include <string.h>
typedef struct {
  int site; const char *function; const void *parameters; void *answer; const char *symbol;
  void *context; uint32_t context_uid; uint64_t *correlation_data; uint32_t correlation;
} Data;
typedef void (*Callback)(void *, int, uint32_t, const Data *);
static Callback subscribed;
static char enabled[2000];
int cuptiSubscribe(void **subscriber, Callback callback, void *user) {
  if (subscribed) return 39;
  subscribed = callback;
  *subscriber = &subscribed;
  return 0;
}
int cuptiGetCallbackName(int domain, uint32_t id, const char **name) {
  static const char *names[] = {"", "cuMemAlloc_v2", "cuLaunchKernel", "cuLaunchKernelEx_ptsz", "cuGraphLaunch"};
  if (id > 4 || domain != 1) return 1;
  *name = names[id];
  return 0;
}
int cuptiEnableCallback(uint32_t enable, void *subscriber, int domain, uint32_t id) {
  enabled[id] = enable && subscriber == &subscribed;
  return 0;
}
int cuptiGetResultString(int error, const char **text) {
  *text = error == 39 ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "another";
  return 0;
}
void launch(int id, const char *function, const char *symbol) {
  uint64_t correlation = 0;
  for (int site = 0; site < 2 && enabled[id]; ++site) {
    Data data = {site, function, 0, 0, symbol, 0, 1, &correlation, 7};
    subscribed(0, 1, id, &data);
  }
}
"""

_WATCH = """
import ctypes
from pathlib import Path
from sm120_smoke.launches import Launches
cupti = ctypes.CDLL({library!r})
noted = Launches(Path({file!r}))
why = noted.watch()
"""


@pytest.fixture(scope="module")
def cupti(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cupti")
    source, library = folder / "cupti.c", folder / "libcupti.so.13"
    source.write_text(_CUPTI)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def test_each_launch_is_noted_once_with_the_step_it_came_from_and_nothing_else_is(cupti: Path, tmp_path: Path) -> None:
    file = tmp_path / "launches"
    told = worker_python(
        _WATCH.format(library=str(cupti), file=str(file))
        + """
from sm120_smoke.launches import CAPTURE
assert CAPTURE == "graph: capture"
noted.at = "eager: run"
cupti.launch(1, b"cuMemAlloc_v2", None)
cupti.launch(2, b"cuLaunchKernel", b"_Z6kernelPf")
noted.at = "graph: replay"
cupti.launch(3, b"cuLaunchKernelEx_ptsz", None)
print(repr(why))
"""
    )
    assert told == "''"
    assert launches(file) == [
        Launched(kernel="_Z6kernelPf", step="eager: run"),
        Launched(kernel="cuLaunchKernelEx_ptsz", step="graph: replay"),
    ]


def test_of_many_launches_the_last_are_kept_in_order(cupti: Path, tmp_path: Path) -> None:
    file = tmp_path / "launches"
    worker_python(
        _WATCH.format(library=str(cupti), file=str(file))
        + "for i in range(300): cupti.launch(2, b'cuLaunchKernel', b'kernel%d' % i)\n"
        + "cupti.launch(2, b'cuLaunchKernel', b'x' * 9000)"
    )
    found = launches(file)
    assert [each.kernel for each in found[:-1]] == [f"kernel{i}" for i in range(45, 300)]
    assert set(found[-1].kernel) == {"x"}
    assert file.stat().st_size == 256 * 4096


def test_why_launches_cannot_be_noted_is_said(cupti: Path, tmp_path: Path) -> None:
    watch = _WATCH.format(library=str(cupti), file=str(tmp_path / "launches"))
    assert "MULTIPLE_SUBSCRIBERS" in worker_python(watch + "print(Launches(Path('/dev/null')).watch())")
    assert worker_python(watch.replace(f"ctypes.CDLL({str(cupti)!r})", "None") + "print(why)") == "CUPTI is not loaded"


def test_the_last_kernel_is_told_in_a_line_and_a_graph_by_what_was_captured() -> None:
    warm = Launched(kernel="_Z4warmPf", step="graph: warm up and capture")
    first = Launched(kernel="_Z5firstPf", step=CAPTURE)
    second = Launched(kernel="_Z6secondPf", step=CAPTURE)
    draw = Launched(kernel="_Z4drawPf", step="graph: draw inputs from seed 4")
    replay = Launched(kernel="cuGraphLaunch", step="graph: replay")
    assert last_kernel([]) == "none was launched"
    assert last_kernel([warm, first, second]) == "second (at graph: capture)"
    assert last_kernel([warm, first, second, draw, replay]) == "a graph of first, second (at graph: replay)"
    assert last_kernel([draw, replay]) == "cuGraphLaunch (at graph: replay)"
    assert shown([replay] * 20) == ("cuGraphLaunch (at graph: replay)",) * 8


def test_only_the_first_hangs_of_a_run_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_REPEATS", 1)
    setup = Setup(
        python=Path(sys.executable),
        backend="host",
        environment=isolation.worker_environment(os.environ, scratch=tmp_path, visible=None, network=True),
        packages=[{"imports": ["demo_ops"], "parts": [], "namespaces": ["demo"], "root": ""}],
        overlays=[HERE],
        scratch=tmp_path,
    )
    hangs = CaseSpec(
        node="test_demo.py::test_hangs_in_python",
        suite="cases",
        module="test_demo",
        file=str(HERE / "cases" / "test_demo.py"),
        function="test_hangs_in_python",
        parameters={},
        operators=("demo::sleeps",),
        deadline=3,
    )
    run = engine.Engine(setup=setup, gpus=[])
    first, second = run.run(hangs).hang, run.run(hangs).hang
    assert first is not None
    assert second is not None
    assert first.last_kernel == "demo::sleeps (at eager: run)"
    assert second.last_kernel == "not known: only the first 1 hangs of a run are repeated"
    assert run.started == 3
