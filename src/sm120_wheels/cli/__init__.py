"""The ``sm120`` command: finds the command asked for and turns errors into one message and one exit code.

No logic of a stage lives here; each command is a module beside this one, loaded only when it is used.
"""

from __future__ import annotations

import difflib
import importlib
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import cast

import click

from sm120_wheels import __version__
from sm120_wheels.errors import Interrupted, Sm120Error

#: command name -> (module:attribute, one line of help). The help stands here so that --help loads nothing.
COMMANDS: dict[str, tuple[str, str]] = {
    "build": ("sm120_wheels.cli.build:command", "Build a recipe into wheels."),
    "plan": ("sm120_wheels.cli.plan:command", "Show what a build would use, before anything is downloaded."),
    "matrix": ("sm120_wheels.cli.matrix:command", "List, select, explain, build and cover what the recipes give."),
    "prepare": ("sm120_wheels.cli.prepare:command", "Sources, patches and tools for another build frontend."),
    "check": ("sm120_wheels.cli.check:command", "Validate recipes, patches and locks."),
    "doctor": ("sm120_wheels.cli.doctor:command", "Tell what this machine can build, and how to mend the rest."),
    "lock": ("sm120_wheels.cli.lock:command", "Write the hash-locked requirement files again."),
    "patches": ("sm120_wheels.cli.patches:command", "List the patches to upstream's sources."),
    "refresh-patches": ("sm120_wheels.cli.refresh_patches:command", "Move a patch series to another version."),
    "simulate": ("sm120_wheels.cli.simulate:command", "How long a build would take with other cores and memory."),
    "profile": ("sm120_wheels.cli.profile:command", "Make a recipe's compile profile of what a build measured."),
    "broker": ("sm120_wheels.cli.broker:command", "What the compile broker of this host is doing."),
    "audit": ("sm120_wheels.cli.audit:command", "Show what GPU code a wheel carries, and what a GPU would make of it."),
    "smoke": ("sm120_wheels.cli.smoke:command", "Launch a wheel's operators on a GPU and check what they compute."),
    "index": ("sm120_wheels.cli.index:command", "Publish wheels, look after the index, serve it, push it elsewhere."),
    "which": ("sm120_wheels.cli.which:command", "Say which published wheel fits this machine, or why none does."),
    "image": ("sm120_wheels.cli.image:command", "Build an image to build or serve in, if everything in it is pinned."),
    "summary": ("sm120_wheels.cli.summary:command", "One table of wheels: cost, size, hash, and what is proved."),
    "release-check": ("sm120_wheels.cli.release_check:command", "Everything that must be green before a publish."),
    "equivalence": ("sm120_wheels.cli.equivalence:command", "Compare two builds' machine code, kernel by kernel."),
}


class _LazyGroup(click.Group):
    """A click group that imports a command only when it is invoked."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        return cast(click.Command, getattr(importlib.import_module(module), attribute))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and name not in COMMANDS and not name.startswith("-"):
            close = difflib.get_close_matches(name, COMMANDS, n=1)
            ctx.fail(f"no command {name!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sm120")
def cli() -> None:
    """Build, prove and publish CUDA kernel wheels for NVIDIA SM120 and SM121 GPUs."""


def _on_sigterm(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of ``sm120``. Exit codes: errors.py lists them; 2 is a usage error, 130 an interruption."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        code = cli.main(args=None if argv is None else list(argv), prog_name="sm120", standalone_mode=False)
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _fail(Interrupted("interrupted", hint="run the same command again: finished stages are not repeated"))
    except Sm120Error as exc:
        _fail(exc)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(error: Sm120Error) -> None:
    sys.stdout.flush()
    click.echo(f"{click.style('error:', fg='red', bold=True)} {error}", err=True)
    sys.exit(error.exit_code)
