"""`guestmark shell`: look around in the very guest that would be measured."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guestmark.cli import options
from guestmark.page.say import say

if TYPE_CHECKING:
    from guestmark.agent.client import Agent
    from guestmark.core.model import Cell

SETTINGS = {"allow_interspersed_args": False}


def command(
    argv: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="Run this instead of a shell.")
    ] = None,
    *,
    on: Annotated[
        str,
        options.on("The platform.", "PLATFORM"),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FACTOR=LEVEL",
            help="Give the guest this setting. May be repeated.",
            autocompletion=options.complete_setting,
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Boot guests from this kernel; short for --set kernel=PATH."),
    ] = None,
) -> None:
    """Open a shell in the very guest that would be measured.

    It boots as for a trial, in the current directory with the current environment and user. Everything written in it is
    lost when it ends. Without a terminal, the shell reads its commands from standard input. The exit status is the
    shell's.
    """
    from dataclasses import replace

    from guestmark.core.context import Caller
    from guestmark.core.errors import MachineError, PlatformUnusableError, UsageError
    from guestmark.core.model import WorkloadSpec
    from guestmark.core.platform_spec import parse_platforms
    from guestmark.core.registry import parse_settings
    from guestmark.engine import preflight
    from guestmark.plan.matrix import NullCells, expand_workload
    from guestmark.platforms import registry
    from guestmark.platforms.base import LoggedIn
    from guestmark.workloads.common.program import check_command

    specs = parse_platforms([on])
    # Another architecture's root gets the package of the command, as it does for a trial.
    foreign = bool(argv) and specs[0].foreign_architecture is not None
    matrix = expand_workload(
        WorkloadSpec("exec", {"argv": argv}) if foreign else WorkloadSpec("shell"),
        specs,
        parse_settings(options.with_kernel(settings, kernel)),
        null=NullCells.NONE,
    )
    if len(matrix.cells) != 1:
        raise UsageError("a shell runs in one machine", hint="give one platform and one level of each factor")
    (cell,) = matrix.cells
    caller = Caller.current()
    row = cell.platform.foreign_architecture
    # Another architecture's machines have none of the caller's directories, and the usual shells only.
    words = argv or [(caller.env.get("SHELL") if row is None else "/bin/bash") or "/bin/sh"]
    where = caller.cwd if row is None else "/"
    preflight.check_kernels([cell])
    for entry in preflight.find_cells_larger_than_host([cell]):
        raise PlatformUnusableError(f"{cell.id}: {entry.reason}", hint=entry.hint)
    if cell.shares_root:
        check_command(words, env=caller.env, cwd=caller.cwd, typed=True)
    if row is not None:
        _make_parts(cell)
    identity: dict[str, Any] = (
        {} if not cell.platform.is_guest else {"uid": caller.uid, "gid": caller.gid, "groups": caller.groups}
    )
    if sys.stderr.isatty() and cell.platform.is_guest:
        say(f"booting {cell.id} …")
    try:
        with registry.get_platform(cell.platform).start(cell) as machine:
            machine.attest()
            if isinstance(machine, LoggedIn):  # a shell of the user there
                user = machine.caller()
                words = argv or [user.env.get("SHELL") or "/bin/sh"]
                env = {**user.env, **{name: caller.env[name] for name in ("TERM",) if name in caller.env}}
                caller, where = replace(user, env=env), user.cwd
            status = _joined(machine.agent, words, env=caller.env, cwd=where, **identity)
    except MachineError as error:
        tail = error.console.strip().splitlines()[-10:]
        if tail:
            say("\n".join(["the machine's last words:", *tail]), prefix="")
        raise
    raise typer.Exit(status)


def _make_parts(cell: Cell) -> None:
    """Makes what a machine of another architecture boots. Raises `PlatformUnusableError` where it has no shell."""
    from guestmark.core.errors import PlatformUnusableError
    from guestmark.core.workload_kind import find_packages_of
    from guestmark.engine.preflight import make_boot_files
    from guestmark.foreign.progress import LineProgress

    row = cell.platform.foreign_architecture
    if row is not None and not row.root:
        raise PlatformUnusableError(
            f"no release of Debian has packages of {row.name}, so there is no shell to open",
            hint=f"its agent's own workloads run there: guestmark run filesystems --on {cell.platform}",
        )
    make_boot_files(cell.platform, find_packages_of(cell), LineProgress(say))


def _joined(agent: Agent, words: list[str], **where: Any) -> int:
    """Runs the command on a terminal when we have one at both ends, else on plain streams, so that scripts can be
    piped in and output be piped on; its exit status.
    """
    if os.isatty(0) and os.isatty(1):
        return agent.run_interactive(words, **where)
    return agent.run_piped(words, **where)
