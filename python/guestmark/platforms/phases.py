"""Where the time between a hypervisor's start and its exit goes, read from its console by this machine's clock.

A workload that wants to know says so in its parameters: `watch = {}` makes the firmware (QEMU's SeaBIOS, on its debug
port), the kernel (its first line, printed early) and the agent (a line after each step) say on the console how far they
are, and the time each of these lines arrived is that phase's end. Other guests stay as silent as can be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from guestmark.core.workload_kind import watches_initcalls

if TYPE_CHECKING:
    from guestmark.core.architectures import Architecture
    from guestmark.core.model import Cell
    from guestmark.platforms.process import Console

# In `Machine.phases` of a watched guest, in order; seconds since its hypervisor was started. Those that a guest does
# not have (UML has no firmware), or has not come to yet, are absent.
FIRMWARE = "firmware"  # the firmware's first sign of life
HANDOVER = "handover"  # the firmware, or User-Mode Linux's check of the host, is done: the kernel starts
FIRST_LINE = "first_line"  # of the kernel's log
KERNEL = "kernel"  # PID 1 runs
MODULES = "modules"  # loaded
ROOT = "root"  # the host's root is mounted, with its overlay
ANSWERED = "answered"  # a restored guest has the time and random bytes, and goes on to its root
READY = "ready"  # the agent's greeting has arrived
ORDERED = "ordered"  # the order to switch off was sent
DOWN = "down"  # the kernel's last line
GONE = "gone"  # the hypervisor's process has exited

_LINES = {
    FIRMWARE: rb"SeaBIOS",
    # SeaBIOS says so twice: where it boots from, then where it jumps to.
    HANDOVER: rb"Booting from [^\n]*\n|Checking PROT_EXEC mmap[^\n]*OK\n|Adding \d+ bytes to physical memory[^\n]*\n",
    FIRST_LINE: rb"Linux version ",
    KERNEL: rb"guestmark-agent: kernel done",
    MODULES: rb"guestmark-agent: modules done",
    ROOT: rb"guestmark-agent: root done",
    DOWN: rb"reboot: (?:Power down|System halted)",
}
_LAST = {HANDOVER, DOWN}  # of several such lines the last counts


@dataclass(frozen=True, slots=True)
class Watch:
    """What a guest is made to say; `initcalls`: also how long each of the kernel's initcalls took, in its log."""

    initcalls: bool = False

    @classmethod
    def for_cell(cls, cell: Cell) -> Watch | None:
        """What the cell's workload wants to watch; None for most."""
        initcalls = watches_initcalls(cell)
        return None if initcalls is None else cls(initcalls)

    def qemu_arguments(self, architecture: Architecture) -> list[str]:
        """The firmware's messages, to the console (whose character device must be called so and be a multiplexer)."""
        port = architecture.firmware_log
        return ["-device", f"{port},chardev=console"] if port else []

    def qemu_kernel_arguments(self, architecture: Architecture) -> list[str]:
        """To be put first: a `quiet` after these silences the kernel after its first line."""
        early = [architecture.early_console] if architecture.early_console else []
        return ["loglevel=6", *early, *self.kernel_arguments()]

    def uml_arguments(self) -> list[str]:
        """In place of `quiet`, which silences more than the kernel."""
        return ["loglevel=4", *self.kernel_arguments()]

    def kernel_arguments(self) -> list[str]:
        """For any kernel."""
        debug = ["initcall_debug", "log_buf_len=4M"] if self.initcalls else []
        return ["GUESTMARK_MARKS=1", *debug]


class HasConsole(Protocol):
    """What a process has printed since it was started."""

    @property
    def console(self) -> Console:
        """The collected output."""

    @property
    def started_at(self) -> float:
        """On the clock of the console's times."""


def collect_phases(process: HasConsole) -> dict[str, float]:
    """The phases whose lines are on the console, in the order of time."""
    found = {name: _find_phase_end(process.console, name) for name in _LINES}
    times = {name: at - process.started_at for name, at in found.items() if at is not None}
    return dict(sorted(times.items(), key=lambda item: item[1]))


def _find_phase_end(console: Console, name: str) -> float | None:
    return console.find_arrival(re.compile(_LINES[name]), last=name in _LAST)
