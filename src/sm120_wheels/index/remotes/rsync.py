"""A host reached by rsync, over ssh or its own protocol: a true copy of the index, switched by replacing one link.

rsync replaces a link by a rename, as it does files, so readers there see the old state or the new one. An rsync daemon
must leave links as they are: ``munge symlinks = no``, which is not its default without a chroot.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels.errors import CommandError, RemoteError, SettingError, ToolMissingError
from sm120_wheels.index.layout import Snapshot
from sm120_wheels.index.remotes.plan import MEMORY, Memory, Pushed, check, file_keys, links_of, node_names, wheels_of
from sm120_wheels.process import Finished, run

#: rsync's own exit code for "some files could not be transferred", which is what a missing source gives.
_PARTIAL = 23


@dataclass(frozen=True)
class Host:
    target: str
    """As rsync takes it, ending in a slash."""
    port: int | None = None
    """ssh's port, where the address names one."""

    @classmethod
    def parse(cls, address: str) -> Host:
        """Read ``[user@]host:path``, ``ssh://[user@]host[:port]/path`` or ``rsync://host/module/path``."""
        if address.startswith("-") or any(c.isspace() for c in address):
            raise SettingError(f"{address!r} is not a remote", hint="write it as host:path")
        if address.startswith("ssh://"):
            host, slash, path = address.removeprefix("ssh://").partition("/")
            name, colon, port = host.partition(":")
            if not slash or (colon and not port.isdigit()):
                raise SettingError(f"{address} is not a remote", hint="write it as ssh://user@host:22/path")
            return cls(f"{name}:/{path.rstrip('/')}/", int(port) if port else None)
        return cls(f"{address.rstrip('/')}/")

    def push(self, snapshot: Snapshot, *, delete: bool) -> Pushed:
        """See :func:`sm120_wheels.index.remotes.push`."""
        wheels = wheels_of(snapshot)
        root = snapshot.layout.root
        check(self._memory(), wheels, delete=delete, where=self.target)
        keys = [key for key, _ in file_keys(snapshot, wheels)]
        nodes = [f".state/nodes/{name}" for name in node_names(snapshot)]
        with tempfile.TemporaryDirectory(prefix="sm120-push-") as scratch:
            memory = Path(scratch) / MEMORY
            memory.parent.mkdir()
            memory.write_text(Memory(wheels={w.filename: w.sha256 for w in wheels}).text(), encoding="utf-8")
            self._send(Path(scratch), [MEMORY])
        sent, size = self._send(root, keys)
        pages, page_bytes = self._send(root, [*nodes, f".state/generations/{snapshot.number:09d}"])
        self._send(root, list(links_of(snapshot)))
        self._send(root, [".state/current"])
        if delete:
            self._delete(root, snapshot)
        return Pushed(generation=snapshot.number, files=sent, pages=pages, bytes=size + page_bytes)

    def _memory(self) -> Memory:
        with tempfile.TemporaryDirectory(prefix="sm120-push-") as scratch:
            target = Path(scratch) / "pushed.json"
            finished = self._rsync(["-L", f"{self.target}{MEMORY}", target], cwd=Path(scratch), check=False)
            if finished.ok:
                return Memory.read(target.read_bytes(), self.target)
            missing = finished.returncode == _PARTIAL and "No such file or directory" in finished.output
            if not missing:
                raise self._failed(finished)
            return Memory()

    def _send(self, root: Path, paths: list[str]) -> tuple[int, int]:
        """Send files, links and whole folders; returns how many files, and their bytes."""
        options = ["-rltR", "--chmod=D755,F644", "--out-format=%i %l", "--files-from=-", "--from0"]
        finished = self._rsync([*options, f"{root}/", self.target], cwd=root, stdin="\0".join(paths).encode())
        lines = [x.split() for x in finished.output.splitlines() if x.startswith("<f")]
        return len(lines), sum(int(x[1]) for x in lines)

    def _delete(self, root: Path, snapshot: Snapshot) -> None:
        """Make the remote's folders equal to ours, now that nothing there shows what goes."""
        for folder in (".state/generations", ".state/nodes", "files"):
            shown = root / folder
            if shown.is_dir():
                self._rsync(["-rltR", "--chmod=D755,F644", "--delete", f"./{folder}/", self.target], cwd=root)

    def _rsync(
        self, arguments: list[str | Path], *, cwd: Path, stdin: bytes | None = None, check: bool = True
    ) -> Finished:
        ssh = "ssh -o BatchMode=yes" + (f" -p {self.port}" if self.port else "")
        shell: list[str | Path] = [] if "::" in self.target or "rsync://" in self.target else ["-e", ssh]
        try:
            finished = run(["rsync", *shell, *arguments], cwd=cwd, stdin=stdin, check=False)
        except ToolMissingError as exc:
            raise ToolMissingError("rsync is not installed", hint="install rsync, here and on the other host") from exc
        except CommandError as exc:
            raise RemoteError("rsync could not be run", where=self.target, why=str(exc)) from exc
        if check and not finished.ok:
            raise self._failed(finished)
        return finished

    def _failed(self, finished: Finished) -> RemoteError:
        return RemoteError(
            f"rsync failed (exit code {finished.returncode})",
            where=self.target,
            why="\n".join(finished.output.strip().splitlines()[-5:]),
            hint="its readers still see what they saw before; mend it and push again",
        )
