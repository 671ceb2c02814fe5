"""The process that launches: takes commands and gives events, one JSON object a line, on two pipes of its own.

Started by the interpreter under test as ``python -I -B worker.py CONFIGURATION`` (JSON). The libraries under test
write where they like on stdout and stderr: the protocol is not there. Whatever breaks this process, the controller
sees its last event and starts another one.

Commands: ``{"do": "case", …}`` and end of file. Events: ``hello`` (once), ``at`` (what comes next), ``end``, ``bye``.
"""

from __future__ import annotations

import ast
import ctypes
import faulthandler
import importlib
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

_PR_SET_PTRACER = 0x59616D61  # prctl(2); with -1 any process of the same user may read our stack
_BROKEN_EXIT = 3


def main() -> None:
    configuration = json.loads(sys.argv[1])
    sys.path[:0] = configuration["overlays"]
    sys.path.append(configuration["payload"])
    Worker(configuration).work()


class Worker:
    """One worker."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        from sm120_smoke import guard, lifeline

        lifeline.hold()
        self._configuration = configuration
        self._commands = os.fdopen(configuration["commands"], encoding="utf-8")
        self._events = os.fdopen(configuration["events"], "w", encoding="utf-8", buffering=1)
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
        _allow_tracing()
        self._loopback = guard.loopback_up()
        self._guard = guard.Guard()
        self._backend: Any = None
        self._launches: Any = None
        self._cases = 0

    def work(self) -> None:
        """Until the commands end, or this process is of no more use."""
        hello = self._hello()
        self._send("hello", **hello)
        if hello["problem"]:
            self._leave(_BROKEN_EXIT)
        for line in self._commands:
            command = json.loads(line)
            broken = self._case(command)
            if broken:
                self._leave(_BROKEN_EXIT)
        self._send("bye")
        self._leave(0)

    def _leave(self, code: int) -> None:
        """Without destructors: after a lost context they may hang or abort."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._events.flush()
        os._exit(code)

    def _send(self, event: str, **facts: Any) -> None:
        self._events.write(json.dumps({"event": event, **facts}) + "\n")

    def _hello(self) -> dict[str, Any]:
        from sm120_smoke import functions, guard, stand_in_pytest

        began = time.perf_counter()
        facts: dict[str, Any] = {
            "pid": os.getpid(),
            "python": sys.version.split()[0],
            "loopback": self._loopback,
            "interfaces": list(guard.interfaces()),
            "problem": "",
            "notes": [],
            "modules": {},
        }
        rank = self._configuration.get("rank")
        try:
            self._backend = _backend(self._configuration["backend"])
            facts.update(self._backend.start(self._configuration["device"] if rank is None else rank))
            facts["launches"] = self._watch_launches()
            functions.watch()
            self._guard.begin()
            for package in self._configuration["packages"]:
                facts["modules"].update(_import_all(package, facts["notes"]))
            attempts = self._guard.end()
            facts["notes"] += [f"importing the packages: {attempt}" for attempt in attempts]
            facts["notes"] += [note for note in [self._guard.settle()] if note]
            stand_in_pytest.install()
            namespaces = [name for p in self._configuration["packages"] for name in p["namespaces"]]
            facts["operators"] = self._backend.operators(namespaces)
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is why nothing can be launched here
            traceback.print_exc()
            facts["problem"] = f"{type(exc).__name__}: {' '.join(str(exc).split())[:1500]}"
        facts["seconds"] = time.perf_counter() - began
        return facts

    def _case(self, command: dict[str, Any]) -> str:
        from sm120_smoke import ranks
        from sm120_smoke.stages import CaseOutcome, Run, Stage, describe

        self._cases += 1
        began = time.perf_counter()
        self._at("prepare", "import the case")
        try:
            function = getattr(_module(command["file"], command["module"]), command["function"])
            parameters = ast.literal_eval(command["parameters"])
            if self._configuration.get("rank") is not None:
                session = Path(self._configuration["folder"])
                ranks.enter(self._configuration["rank"], self._configuration["world"], session, self._cases)
            short = command["memory"] and self._backend.free_memory() < command["memory"]
        except Exception as exc:  # noqa: BLE001 - a suite that cannot be imported here is that case's failure
            traceback.print_exc()
            outcome = CaseOutcome(stages=[Stage(name="prepare", state="failed", why=describe(exc))])
            short = False
        else:
            if short:
                why = f"it needs {command['memory']} bytes of GPU memory, {self._backend.free_memory()} are free"
                outcome = CaseOutcome(stages=[Stage(name="prepare", state="not run", why=why)])
            else:
                run = Run(self._backend, self._guard, self._at, with_trace=command["trace"])
                outcome = run.run(lambda: function(**parameters), command["operators"])
        peak = 0 if outcome.broken else self._backend.clean()  # a lost context answers nothing
        self._send(
            "end",
            state=outcome.state,
            stages=[vars(stage) for stage in outcome.stages],
            operators=list(outcome.operators),
            kernels=list(outcome.kernels),
            kernels_unknown=outcome.kernels_unknown,
            broken=outcome.broken,
            empty=outcome.empty,
            peak_memory=peak,
            notes=list(dict.fromkeys(self._guard.notes)),
            seconds=time.perf_counter() - began,
        )
        return outcome.broken

    def _watch_launches(self) -> str:
        """Where asked to: why it cannot be done; empty where it is."""
        if not self._configuration["launches"]:
            return ""
        from sm120_smoke.launches import Launches

        self._launches = Launches(Path(self._configuration["launches"]))
        return str(self._backend.watch(self._launches))

    def _at(self, stage: str, step: str) -> None:
        if self._launches is not None:
            self._launches.at = f"{stage}: {step}"
        self._send("at", stage=stage, step=step)


def _backend(name: str) -> Any:
    if name == "host":
        return importlib.import_module("sm120_smoke.backend_host").HostBackend()
    return importlib.import_module("sm120_smoke.backend_torch").TorchBackend(name)


def _import_all(package: dict[str, Any], notes: list[str]) -> dict[str, str]:
    """Import a package and its parts; where each came from. It must come from the wheel, where there is one."""
    places = {}
    for name in package["imports"]:
        module = importlib.import_module(name)
        places[name] = str(getattr(module, "__file__", "") or next(iter(getattr(module, "__path__", [""]))))
        root = package["root"]
        if root and not Path(places[name]).is_relative_to(root):
            raise ImportError(f"{name} was imported from {places[name]}, not from the wheel")
    for name in package["parts"]:
        try:
            importlib.import_module(name)
        except Exception as exc:  # noqa: BLE001 - a part that was left out of the wheel; its operators are then missing
            notes.append(f"{name} cannot be imported: {type(exc).__name__}: {' '.join(str(exc).split())[:300]}")
    return places


def _module(file: str, name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    if not file:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _allow_tracing() -> None:
    """Let py-spy, which is no parent of ours, read our stack where Yama restricts ptrace."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1 & 0xFFFFFFFFFFFFFFFF), 0, 0, 0)


if __name__ == "__main__":
    main()
