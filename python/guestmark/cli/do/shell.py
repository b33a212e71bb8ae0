"""Opens a shell in the very guest that would be measured."""

from __future__ import annotations

import os
import sys
from typing import Any

from guestmark.agent.client import Agent
from guestmark.cli.commands.shell import Options
from guestmark.cli.measure_options import add_kernel_setting
from guestmark.core.context import Caller
from guestmark.core.errors import MachineError, PlatformUnusableError, UsageError
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import parse_platforms
from guestmark.core.registry import parse_settings
from guestmark.core.workload_kind import find_packages
from guestmark.engine import preflight
from guestmark.foreign.progress import LineProgress
from guestmark.page.say import say
from guestmark.plan.matrix import NullCells, expand_workload
from guestmark.platforms import registry
from guestmark.platforms.base import Machine, find_login
from guestmark.workloads.common.program import check_command

# Lines of a dead machine's console that are printed above the error; they usually show the reason.
_CONSOLE_LINES = 10


def run(given: Options) -> int:
    """Boots the machine, runs the shell or the command on it, and returns its exit status."""
    cell = _build_cell(given)
    caller = Caller.current()
    _check_cell(cell, given.argv, caller)
    if sys.stderr.isatty() and cell.platform.is_guest:
        say(f"booting {cell.id} …")
    try:
        with registry.get_platform(cell.platform).start(cell) as machine:
            machine.attest()
            return _run_on_machine(machine, cell, given.argv, caller)
    except MachineError as error:
        tail = error.console.strip().splitlines()[-_CONSOLE_LINES:]
        if tail:
            say("\n".join(["the end of the machine's console:", *tail]), prefix="")
        raise


def _build_cell(given: Options) -> Cell:
    specs = parse_platforms([given.on])
    # Another architecture's root filesystem gets the package of the command, as it does for a trial.
    workload = WorkloadSpec("shell")
    if given.argv and specs[0].foreign_architecture is not None:
        workload = WorkloadSpec("exec", {"argv": given.argv})
    settings = parse_settings(add_kernel_setting(given.settings, given.kernel))
    matrix = expand_workload(workload, specs, settings, null=NullCells.NONE)
    if len(matrix.cells) != 1:
        raise UsageError("a shell runs in one machine", hint="give one platform and one level of each factor")
    return matrix.cells[0]


def _check_cell(cell: Cell, argv: list[str] | None, caller: Caller) -> None:
    """Raises what a run of this cell would raise before its machine starts; builds the kernel and root it boots."""
    preflight.check_kernels([cell])
    for entry in preflight.find_cells_larger_than_host([cell]):
        raise PlatformUnusableError(f"{cell.id}: {entry.reason}", hint=entry.hint)
    if cell.shares_root:
        check_command(_choose_command(cell, argv, caller), env=caller.env, cwd=caller.cwd, typed=True)
    if cell.platform.foreign_architecture is not None:
        _build_parts(cell)


def _choose_command(cell: Cell, argv: list[str] | None, caller: Caller) -> list[str]:
    if argv:
        return argv
    # Another architecture's machine has the usual shells only, and perhaps not the caller's own.
    if cell.platform.foreign_architecture is not None:
        return ["/bin/bash"]
    return [caller.env.get("SHELL") or "/bin/sh"]


def _run_on_machine(machine: Machine, cell: Cell, argv: list[str] | None, caller: Caller) -> int:
    words = _choose_command(cell, argv, caller)
    directory, environment = caller.cwd, caller.env
    if cell.platform.foreign_architecture is not None:
        # It has none of the caller's directories.
        directory = "/"
    identity: dict[str, Any] = {}
    if cell.platform.is_guest:
        identity = {"uid": caller.uid, "gid": caller.gid, "groups": caller.groups}
    if (login := find_login(machine)) is not None:
        # Another machine has its own users: shell, directory and environment are those of the user there.
        user = login.caller()
        identity = {}
        words = argv or [user.env.get("SHELL") or "/bin/sh"]
        directory, environment = user.cwd, dict(user.env)
        if "TERM" in caller.env:
            environment["TERM"] = caller.env["TERM"]
    return _run_connected(machine.agent, words, env=environment, cwd=directory, **identity)


def _build_parts(cell: Cell) -> None:
    """Builds what a machine of another architecture boots. Raises `PlatformUnusableError` if it has no shell."""
    architecture = cell.platform.foreign_architecture
    if architecture is not None and not architecture.root:
        raise PlatformUnusableError(
            f"no release of Debian has packages for {architecture.name}, so there is no shell to open",
            hint=f"its agent's own workloads run there: guestmark run filesystems --on {cell.platform}",
        )
    preflight.make_boot_files(cell.platform, find_packages(cell), LineProgress(say))


def _run_connected(agent: Agent, words: list[str], **where: Any) -> int:
    """Runs the command with our input and output, and returns its exit status.

    It gets a terminal when there is one at both of our ends. Otherwise it gets plain streams, so that scripts can be
    piped in and output be piped on.
    """
    if os.isatty(0) and os.isatty(1):
        return agent.run_interactive(words, **where)
    return agent.run_piped(words, **where)
