"""``sm120 broker``: what the compile broker of this user on this host is doing."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

import click
from rich.table import Table

from sm120_wheels import console
from sm120_wheels.cli.options import json_option
from sm120_wheels.compile.protocol import MESSAGE_MAX, connect, encode, socket_path
from sm120_wheels.files import human_bytes, human_seconds


@click.group("broker")
def command() -> None:
    """Look at the broker that admits compiles by the memory they need.

    It starts with the first compile of a build and ends by itself when nothing has been compiled for two minutes.
    """


@command.command("status")
@json_option
def status(as_json: bool) -> None:
    """Show what compiles, what waits and why, and the memory for both. Ends with 0 also when no broker runs."""
    answer = _ask()
    if as_json:
        console.out.print_json(json.dumps(answer if answer is not None else {"pid": None}))
        return
    if answer is None:
        console.out.print("no broker is running: nothing is being compiled")
        return
    console.out.print(
        f"broker {answer['pid']}: {human_bytes(answer['used'])} in use, {human_bytes(answer['held'])} reserved, "
        f"{human_bytes(answer['budget'])} allowed (set by {answer['bound_by']}), {answer['cores']} cores"
    )
    waiting_for = f" for {answer['why_waiting']}" if answer["why_waiting"] else ""
    console.out.print(f"{answer['running_count']} running, {answer['waiting_count']} waiting{waiting_for}")
    table = Table(box=None, pad_edge=False)
    for heading in ("", "package", "file", "in use", "reserved", "for", "of about", "known from"):
        table.add_column(heading)
    for client in [*answer["running"], *answer["waiting"]]:
        table.add_row(
            client["stage"] + (f" (try {client['attempt'] + 1})" if client["attempt"] else ""),
            client["package"],
            PurePosixPath(client["source"]).name,
            human_bytes(client["used"]) if client["used"] else "",
            human_bytes(client["needs"]),
            human_seconds(client["for_s"]),
            human_seconds(client["expected_s"]),
            client["basis"],
        )
    if table.row_count:
        console.out.print(table)


@command.command("stop")
def stop() -> None:
    """End the broker. Compiles go on; their launchers start a new one and tell it what runs."""
    try:
        with connect(socket_path()) as connection:
            connection.send(encode({"state": "stop"}))
    except OSError:
        console.out.print("no broker is running")
        return
    console.out.print("the broker was told to end")


def _ask() -> dict[str, Any] | None:
    try:
        with connect(socket_path()) as connection:
            connection.send(encode({"state": "status"}))
            return dict(json.loads(connection.recv(MESSAGE_MAX)))
    except (OSError, ValueError):
        return None
