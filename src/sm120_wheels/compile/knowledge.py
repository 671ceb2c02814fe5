"""What the broker knows about compiles: it joins profile, store, model and footprint, and learns from each end.

The reading and writing that ``predict`` leaves out is here. It admits nothing.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from sm120_wheels.compile.command import CompileCommand
from sm120_wheels.compile.footprint import Scanner
from sm120_wheels.compile.predict import Model, Prediction, bias_of, fit, key_of, predict, units_of
from sm120_wheels.compile.profile import Footprint, Profile, Store, read_profile
from sm120_wheels.compile.task import Tail
from sm120_wheels.errors import SettingError

_VERSION_TIMEOUT_S = 3.0
#: Compiles shorter than this are not worth reading their headers for.
_WORTH_SCANNING_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Whose compile it is: the package, its session, its profile and its store (paths as text, may be empty)."""

    package: str = ""
    session: str = ""
    profile: str = ""
    store: str = ""


@dataclass(kw_only=True)
class Knowledge:
    _stores: dict[str, Store] = field(default_factory=dict)
    _profiles: dict[str, Profile | None] = field(default_factory=dict)
    _models: dict[tuple[str, str], tuple[int, Model | None]] = field(default_factory=dict)
    _versions: dict[tuple[str, int, int], str] = field(default_factory=dict)
    _session_errors: dict[str, list[float]] = field(default_factory=dict)
    _scanner: Scanner = field(default_factory=Scanner)
    _footprints: dict[str, Future[Footprint | None]] = field(default_factory=dict)
    _reader: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    on_footprint: Callable[[], None] = lambda: None
    """Called (in another thread) when a footprint that a prediction lacked is there: predict again."""
    complaints: list[str] = field(default_factory=list)

    def predict(self, command: CompileCommand, origin: Origin) -> Prediction:
        store, profile = self._store(origin), self._profile(origin.profile)
        compiler = self._version(command.compiler)
        direct = key_of(command, compiler)
        bias = bias_of(self._session_errors.get(origin.session, ()))
        prediction = predict(
            command, compiler=compiler, store=store, profile=profile, footprint=None, model=None, bias=bias
        )
        if prediction.basis != "default" or not direct.source:
            return prediction
        model = self._model(origin, store, profile)
        if model is None:
            return prediction
        scan = self._scan(command)
        if not scan.done():
            return replace(prediction, basis="pending")
        return predict(
            command, compiler=compiler, store=store, profile=profile, footprint=scan.result(), model=model, bias=bias
        )

    def bias(self, session: str) -> float:
        """How much too small this build's predictions have been."""
        return bias_of(self._session_errors.get(session, ()))

    def learn(
        self,
        command: CompileCommand,
        origin: Origin,
        prediction: Prediction,
        *,
        peak: int,
        seconds: float,
        cpu_seconds: float,
        complete: bool,
        tail: Tail | None = None,
    ) -> None:
        """Take in a compile that ended. ``complete`` is false for one that was killed: then its peak is only a lower
        bound."""
        if not command.source or not peak or command.elsewhere:
            return
        error = math.log(peak / max(1, prediction.expected))
        if prediction.basis != "measured" and (complete or error > 0):
            # The bias of that time is inside ``expected``; the raw error is against the prediction without it. With
            # the bias of now, every file that started before it was known would raise it again, without end.
            raw = error + math.log(prediction.bias)
            self._session_errors.setdefault(origin.session, []).append(raw)
        if not complete:
            return
        store = self._store(origin)
        store.add_error(prediction.basis, error)
        measured = replace(
            key_of(command, self._version(command.compiler)),
            peak=peak,
            tail=tail,
            seconds=round(seconds, 3),
            cpu_seconds=round(cpu_seconds, 3),
        )
        store.add(measured)
        if seconds >= _WORTH_SCANNING_S:
            self._scan(command).add_done_callback(lambda scan: store.add_footprint(measured, scan.result()))

    def save(self) -> None:
        """Write what was learnt. A store that cannot be written is complained about once and given up."""
        for key, store in list(self._stores.items()):
            try:
                store.save()
            except (OSError, SettingError) as exc:
                self.complaints.append(f"{store.path}: {exc}")
                del self._stores[key]

    def rest(self) -> None:
        """Nothing is compiled now: save, and drop what may be stale when the next build comes."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        self.save()
        for cache in (self._stores, self._profiles, self._models, self._session_errors, self._footprints):
            cache.clear()
        self._scanner, self._reader = Scanner(), ThreadPoolExecutor(1)

    def _store(self, origin: Origin) -> Store:
        if origin.store not in self._stores:
            self._stores[origin.store] = Store(Path(origin.store or "/nonexistent/none"))
        return self._stores[origin.store]

    def _profile(self, path: str) -> Profile | None:
        if path not in self._profiles:
            profile = None
            if path:
                try:
                    profile = read_profile(Path(path))
                except SettingError as exc:
                    self.complaints.append(str(exc))
            self._profiles[path] = profile
        return self._profiles[path]

    def _model(self, origin: Origin, store: Store, profile: Profile | None) -> Model | None:
        """Fitted anew when the store has grown by a quarter since."""
        known = len(store.entries)
        fitted = self._models.get((origin.store, origin.profile))
        if fitted is None or known > fitted[0] * 1.25 + 4:
            units = units_of(store) + (list(profile.units.values()) if profile else [])
            fitted = (known, fit(units))
            self._models[origin.store, origin.profile] = fitted
        return fitted[1]

    def _scan(self, command: CompileCommand) -> Future[Footprint | None]:
        """Read the headers in another thread: the first source of a build may have thousands, and launchers wait."""
        if command.source not in self._footprints:
            scanner = self._scanner
            scan = self._reader.submit(scanner.scan, Path(command.source), command.include_folders)
            scan.add_done_callback(lambda _: self.on_footprint())
            self._footprints[command.source] = scan
        return self._footprints[command.source]

    def _version(self, compiler: str) -> str:
        """The last line of ``COMPILER --version``'s first paragraph, e.g. nvcc's build; asked once for each program."""
        try:
            stat = Path(compiler).stat()
        except OSError:
            return Path(compiler).name
        key = (compiler, stat.st_mtime_ns, stat.st_size)
        if key not in self._versions:
            try:
                ran = subprocess.run(
                    [compiler, "--version"],
                    capture_output=True,
                    stdin=subprocess.DEVNULL,
                    timeout=_VERSION_TIMEOUT_S,
                    check=False,
                    text=True,
                    errors="replace",
                )
                lines = [line.strip() for line in ran.stdout.splitlines() if line.strip()]
            except (OSError, subprocess.TimeoutExpired):
                lines = []
            chosen = next((line for line in lines if line.startswith("Cuda compilation tools")), "")
            self._versions[key] = chosen or (lines[0] if lines else Path(compiler).name)
        return self._versions[key]
