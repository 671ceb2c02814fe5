"""Brings another place to the state of an index, in an order that keeps its readers safe.

Files first, then their metadata and evidence, then the pages, then what is switched last; a push that stops on the
way leaves pages that only name files which are there. A remote remembers what was pushed to it, so that two indexes
cannot overwrite each other's wheels.
"""

from __future__ import annotations

from pathlib import Path

from sm120_wheels.errors import SettingError
from sm120_wheels.index.layout import present
from sm120_wheels.index.remotes.plan import Pushed, Remote
from sm120_wheels.index.store import writing

__all__ = ["Pushed", "open_remote", "push"]


def push(root: Path, remote: str, *, delete: bool = False) -> Pushed:
    """Bring a remote to the present state of the index at ``root``; other publishers wait meanwhile.

    With ``delete``, what the index no longer shows is removed there, last. Raises :class:`PublishRefusedError` where
    the remote holds other wheels, and :class:`RemoteError` where it fails.
    """
    present(root)
    target = open_remote(remote)
    with writing(root) as transaction:
        snapshot = transaction.snapshot
        if not snapshot.number:
            raise SettingError("there is nothing to push", where=str(root), hint="publish wheels first")
        return target.push(snapshot, delete=delete)


def open_remote(address: str) -> Remote:
    """The remote an address means. Raises :class:`SettingError` for one that is none."""
    from sm120_wheels.index.remotes import folder, rsync, s3

    if address.startswith("s3://"):
        return s3.Bucket.parse(address)
    if address.startswith(("rsync://", "ssh://")) or (":" in address.split("/")[0] and "://" not in address):
        return rsync.Host.parse(address)
    if address.startswith("file://"):
        return folder.Folder(Path(address.removeprefix("file://")))
    if "://" in address:
        raise SettingError(
            f"{address} is no remote that is known",
            hint="a folder, s3://bucket/prefix, [user@]host:path or rsync://host/module/path; "
            "`sm120 index upload` speaks to registries",
        )
    return folder.Folder(Path(address))
