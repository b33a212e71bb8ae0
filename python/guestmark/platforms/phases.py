"""Phases between a hypervisor's start and its exit, read from its console and timed by this host's clock.

A workload requests them in its parameters: `watch = {}` makes the firmware (QEMU's SeaBIOS, on its debug port), the
kernel (its first line, printed early) and the agent (a line after each step) print their progress. Each line's arrival
is the end of that phase. Guests that are not watched print as little as possible.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from guestmark.core.architectures import Architecture
from guestmark.core.model import Cell
from guestmark.core.workload_kind import watches_initcalls
from guestmark.platforms.process import Console

# Keys of `Machine.phases` of a watched guest, in order; the values are seconds since its hypervisor was started. Phases
# that a guest does not have (such as UML's firmware) or has not reached yet are absent.

# The firmware's first message.
FIRMWARE = "firmware"
# The kernel starts, after the firmware, or after User-Mode Linux's checks of the host.
HANDOVER = "handover"
# The first line of the kernel's log.
FIRST_LINE = "first_line"
# PID 1 runs.
KERNEL = "kernel"
# The modules are loaded.
MODULES = "modules"
# The host's root is mounted, with its overlay.
ROOT = "root"
# A restored guest has received the time and random bytes, and now mounts its root.
ANSWERED = "answered"
# The agent's greeting has arrived.
READY = "ready"
# The system of a disk image has finished booting.
SETTLED = "settled"
# The command to shut down was sent.
ORDERED = "ordered"
# The kernel's last line.
DOWN = "down"
# The hypervisor's process has exited.
GONE = "gone"

_LINES = {
    FIRMWARE: rb"SeaBIOS",
    # SeaBIOS prints this twice: what it boots from, then the address that it jumps to.
    HANDOVER: rb"Booting from [^\n]*\n|Checking PROT_EXEC mmap[^\n]*OK\n|Adding \d+ bytes to physical memory[^\n]*\n",
    FIRST_LINE: rb"Linux version ",
    KERNEL: rb"guestmark-agent: kernel done",
    MODULES: rb"guestmark-agent: modules done",
    ROOT: rb"guestmark-agent: root done",
    DOWN: rb"reboot: (?:Power down|System halted)",
}
# Phases for which the last matching line counts.
_LAST = {HANDOVER, DOWN}


@dataclass(frozen=True, slots=True)
class Watch:
    """What a guest prints about its boot. With `initcalls`, the kernel also logs the duration of each initcall."""

    initcalls: bool = False

    @classmethod
    def for_cell(cls, cell: Cell) -> Watch | None:
        """Returns what the cell's workload watches; None for most workloads."""
        initcalls = watches_initcalls(cell)
        return None if initcalls is None else cls(initcalls)

    def build_qemu_arguments(self, architecture: Architecture) -> list[str]:
        """Returns QEMU's arguments that send the firmware's messages to the console.

        The console's character device must have the id `console` and be a multiplexer.
        """
        if not architecture.firmware_log:
            return []
        return ["-device", f"{architecture.firmware_log},chardev=console"]

    def build_qemu_kernel_arguments(self, architecture: Architecture) -> list[str]:
        """Returns arguments for the beginning of the kernel's command line.

        A `quiet` after them still silences the kernel after its first line.
        """
        words = ["loglevel=6"]
        if architecture.early_console:
            words.append(architecture.early_console)
        return words + self.build_kernel_arguments()

    def build_uml_arguments(self) -> list[str]:
        """Returns arguments for UML in place of `quiet`, which would also silence UML's own messages."""
        return ["loglevel=4", *self.build_kernel_arguments()]

    def build_kernel_arguments(self) -> list[str]:
        """Returns arguments for any kernel."""
        debug = ["initcall_debug", "log_buf_len=4M"] if self.initcalls else []
        return ["GUESTMARK_MARKS=1", *debug]


class HasConsole(Protocol):
    """A process whose output is collected."""

    @property
    def console(self) -> Console:
        """The collected output."""

    @property
    def started_at(self) -> float:
        """When it was started, on the same clock as the console's times."""


def collect_phases(process: HasConsole) -> dict[str, float]:
    """Returns the phases whose lines are on the console, in chronological order."""
    times = {}
    for name in _LINES:
        at = _find_phase_end(process.console, name)
        if at is not None:
            times[name] = at - process.started_at
    return dict(sorted(times.items(), key=lambda item: item[1]))


def _find_phase_end(console: Console, name: str) -> float | None:
    return console.find_arrival(re.compile(_LINES[name]), last=name in _LAST)
