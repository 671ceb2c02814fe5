"""``sm120 index``: publish wheels, look after what is published, serve it, and carry it elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from sm120_wheels import console
from sm120_wheels.cli.options import json_option
from sm120_wheels.errors import IndexDamagedError
from sm120_wheels.files import human_bytes
from sm120_wheels.index.gates import GATES, check_allowed
from sm120_wheels.index.layout import Layout, present

F = TypeVar("F", bound=Callable[..., Any])


def _root(function: F) -> F:
    return click.option(
        "--root",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("wheels"),
        show_default=True,
        envvar="SM120_INDEX_ROOT",
        help="Folder of the index (or SM120_INDEX_ROOT).",
    )(function)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """A static wheel index: one for each CUDA version, and one of all.

    Published files never change. Whatever is published together appears together.
    """


@command.command()
@click.argument("wheels", nargs=-1, required=True, type=click.Path(path_type=Path))
@_root
@click.option(
    "--cuda", multiple=True, metavar="CU", help="Index for wheels whose version names no CUDA: cu130 (repeatable)."
)
@click.option(
    "--allow",
    multiple=True,
    metavar="GATE",
    help=f"Overrule a gate; shown on the wheel's page (repeatable). Gates: {', '.join(GATES)}.",
)
@click.option("--require-smoke", is_flag=True, help="Refuse wheels without a passed GPU smoke record of this file.")
@click.option(
    "--allow-traps",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Known traps and absences, for wheels that are audited now.",
)
@click.option("--timeout", type=float, default=-1, metavar="SECONDS", help="Wait this long for another publish.")
@click.option("--to", "remote", metavar="REMOTE", help="Then push the index there (see `sm120 index push`).")
@json_option
def publish(
    wheels: tuple[Path, ...],
    root: Path,
    cuda: tuple[str, ...],
    allow: tuple[str, ...],
    require_smoke: bool,
    allow_traps: Path | None,
    timeout: float,
    remote: str | None,
    as_json: bool,
) -> None:
    """Publish WHEELS together: all of them appear at once, or none.

    Evidence lies beside a wheel as WHEEL.audit.json, WHEEL.equivalence.json, WHEEL.smoke.json or WHEEL.provenance and
    is published with it. A wheel without an audit is audited now.
    """
    from sm120_wheels.index.auditing import live_audit
    from sm120_wheels.index.publish import Options
    from sm120_wheels.index.publish import publish as publish_wheels

    options = Options(cuda=cuda, allow=check_allowed(allow), require_smoke=require_smoke, timeout_s=timeout)
    result = publish_wheels(root, wheels, options=options, audit=partial(live_audit, traps=allow_traps))
    if as_json:
        lines = [{"action": x.action, "notes": x.notes, **x.wheel.model_dump(mode="json")} for x in result.lines]
        console.out.print_json(json.dumps({"generation": result.generation, "wheels": lines}))
    else:
        for line in result.lines:
            wheel = line.wheel
            where = " ".join(wheel.indexes)
            console.out.print(f"{line.action:<10} {wheel.filename}", markup=False)
            console.out.print(f"           {where}  {human_bytes(wheel.size)}  sha256 {wheel.sha256}", markup=False)
            for exception in wheel.exceptions:
                console.out.print(f"           exception: [{exception}] asks that {GATES[exception]}", markup=False)
            for text in line.notes:
                console.note(f"note: {wheel.filename}: {text}")
    if remote:
        _push(root, remote)


@command.command()
@_root
@json_option
def verify(root: Path, as_json: bool) -> None:
    """Re-hash everything and say what is wrong."""
    from sm120_wheels.index.verify import verify as verify_index

    present(root)
    result = verify_index(root)
    if as_json:
        found = [{"kind": f.kind, "path": f.path, "what": f.what} for f in result.findings]
        console.out.print_json(json.dumps({"wheels": result.wheels, "bytes": result.bytes, "findings": found}))
    else:
        for finding in result.findings:
            console.out.print(f"{finding.kind}: {finding.path}: {finding.what}", markup=False)
    if result.damage:
        raise IndexDamagedError(
            f"the index is damaged in {len(result.damage)} place{'s' if len(result.damage) > 1 else ''}",
            where=str(root),
            why="\n".join(f"{f.path}: {f.what}" for f in result.damage[:5]),
            hint="bring lost files back from a copy; then `sm120 index rebuild` makes the pages anew",
        )
    if not as_json:
        console.out.print(f"{result.wheels} wheels, {human_bytes(result.bytes)}: as published", markup=False)


@command.command()
@_root
@click.option("--adopt", is_flag=True, help="Trust no page: take every wheel under files/. Forgets later yanks.")
def rebuild(root: Path, adopt: bool) -> None:
    """Make all pages anew from the files."""
    from sm120_wheels.index.maintain import rebuild as rebuild_index

    present_or_adopt(root, adopt)
    count = rebuild_index(root, adopt=adopt)
    console.out.print(f"pages of {count} wheels made anew", markup=False)


def present_or_adopt(root: Path, adopt: bool) -> None:
    """Refuse a folder that holds no index; with ``adopt``, its files are enough."""
    if not (adopt and Layout(root).files.is_dir()):
        present(root)


@command.command()
@click.argument("what")
@click.option("--reason", required=True, help="Shown by installers and on the page.")
@_root
def yank(what: str, reason: str, root: Path) -> None:
    """Yank WHAT (a filename, or name==version): installers then take it only where it is pinned."""
    from sm120_wheels.index.maintain import yank as yank_wheels

    present(root)
    for wheel in yank_wheels(root, what, reason=" ".join(reason.split())):
        console.out.print(f"yanked {wheel.filename}", markup=False)


@command.command()
@click.argument("what")
@_root
def unyank(what: str, root: Path) -> None:
    """Take a yank of WHAT back."""
    from sm120_wheels.index.maintain import yank as yank_wheels

    present(root)
    for wheel in yank_wheels(root, what, reason=None):
        console.out.print(f"no longer yanked: {wheel.filename}", markup=False)


@command.command()
@click.option("--keep", type=int, required=True, metavar="N", help="Newest releases of each project to keep.")
@click.option("--project", help="Only this project.")
@click.option("--dry-run", is_flag=True, help="Say what would go.")
@_root
def prune(keep: int, project: str | None, dry_run: bool, root: Path) -> None:
    """Remove all but the newest releases, and what no page shows any more."""
    from sm120_wheels.index.maintain import prune as prune_index

    present(root)
    result = prune_index(root, keep=keep, only=project, dry_run=dry_run)
    for wheel in result.wheels:
        console.out.print(f"{'would remove' if dry_run else 'removed'} {wheel.filename}", markup=False)
    console.out.print(f"{human_bytes(result.freed)} {'would be freed' if dry_run else 'freed'}", markup=False)


@command.command()
@_root
@click.option("--title", help="Title of the front page.")
@click.option("--base-url", help="Address the index is served at, for commands on its pages: https://host/whl/")
def configure(root: Path, title: str | None, base_url: str | None) -> None:
    """Set the title and the address of the index."""
    from sm120_wheels.index.maintain import configure as configure_index
    from sm120_wheels.index.maintain import settings_with

    configure_index(root, settings_with(Layout(root).read_settings(), title=title, base_url=base_url))


@command.command()
@_root
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=8120, show_default=True, help="0 takes a free one.")
def serve(root: Path, host: str, port: int) -> None:
    """Serve the index, read-only."""
    from sm120_wheels.index.serve import serve as serve_index

    serve_index(root, host=host, port=port)


@command.command()
@click.argument("remote")
@_root
@click.option("--delete", is_flag=True, help="Remove there what this index no longer shows, after the pages changed.")
def push(remote: str, root: Path, delete: bool) -> None:
    """Bring REMOTE to the state of this index, files first, so that its readers never miss one.

    REMOTE is a folder, s3://bucket/prefix, [user@]host:path (rsync over ssh) or rsync://host/module/path.
    """
    _push(root, remote, delete=delete)


@command.command()
@click.argument("wheels", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--repository-url", required=True, help="Upload address of the registry.")
@_root
def upload(wheels: tuple[Path, ...], repository_url: str, root: Path) -> None:
    """Upload published WHEELS (filenames, or name==version) to a registry that speaks twine's protocol.

    Only what this index has published goes out, so that its gates are behind it. Credentials are twine's:
    TWINE_USERNAME, TWINE_PASSWORD, keyring.
    """
    from sm120_wheels.index.remotes.registry import upload as upload_wheels

    for name in upload_wheels(root, [str(w) for w in wheels], url=repository_url):
        console.out.print(f"uploaded {name}", markup=False)


def _push(root: Path, remote: str, *, delete: bool = False) -> None:
    from sm120_wheels.index.remotes import push as push_index

    pushed = push_index(root, remote, delete=delete)
    console.out.print(
        f"{remote}: {pushed.files} files and {pushed.pages} pages sent, {human_bytes(pushed.bytes)}; "
        f"generation {pushed.generation}",
        markup=False,
    )
