"""The start and the end of a guest, phase by phase, and its slowest initcalls.

`docs/guide/boot.md` describes how the end of each phase is determined.
"""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any

import msgspec

from guestmark.core.findings import Fact
from guestmark.core.metric import Metric
from guestmark.core.params import Params, param
from guestmark.core.workload_kind import Topic
from guestmark.workloads.base import Sections, Workload
from guestmark.workloads.common.program import find_program_packages
from guestmark.workloads.exec.command import check_runnable

READY = Metric("ready_s", "s")  # process started → agent ready
# Process started → firmware's first sign of life (UML: → the kernel starts)
VMM = Metric("vmm_s", "s")
FIRMWARE = Metric("firmware_s", "s")  # → it hands over to the kernel
# Handover → the kernel's first line; includes unpacking, where the kernel does that.
ENTRY = Metric("entry_s", "s")
KERNEL = Metric("kernel_s", "s")  # → PID 1 runs
MODULES = Metric("modules_s", "s")  # → modules loaded
ROOT = Metric("root_s", "s")  # → root filesystem mounted
# Root mounted → the agent (for libguestfs: its daemon) answers.
AGENT = Metric("agent_s", "s")
# Agent answers → the order to power off: attestation, and the command if there is one.
WORK = Metric("work_s", "s")
POWEROFF = Metric("poweroff_s", "s")  # → the kernel's last line
EXIT = Metric("exit_s", "s")  # → the process is gone
TOTAL = Metric("total_s", "s")  # process started → gone
# In this order they add up to TOTAL.
PHASES = (
    VMM,
    FIRMWARE,
    ENTRY,
    KERNEL,
    MODULES,
    ROOT,
    AGENT,
    WORK,
    POWEROFF,
    EXIT,
)
ALL = (READY, TOTAL, *PHASES)


class WatchedParts(msgspec.Struct, frozen=True):
    """The parts of a start that are traced in addition to its phases."""

    initcalls: bool = False


def _check_command(command: list[str]) -> list[str]:
    return check_runnable(command) if command else []


class BootParams(Params, frozen=True, kw_only=True, omit_defaults=True):
    """`command` runs between ready and power-off; `initcalls` makes the kernel report its initcalls."""

    # Platforms read only this parameter.
    watch: Annotated[
        WatchedParts,
        param(
            "trace the kernel's initcalls", key="initcalls", accepts=bool, parse=WatchedParts, default=False
        ),
    ]
    command: Annotated[
        list[str],
        param("command that runs between ready and power-off", "list of arguments", parse=_check_command),
    ] = []

    def to_stored(self) -> dict[str, Any]:
        """Returns the parameters, with `watch` even if it is empty."""
        return {**super().to_stored(), "watch": {"initcalls": self.watch.initcalls}}


class Initcall(msgspec.Struct):
    """One of the kernel's initcalls."""

    name: str
    seconds: float


class Initcalls(msgspec.Struct, kw_only=True):
    """The slowest initcalls, slowest first, with the number and the sum of all."""

    slowest: list[Initcall]
    count: int
    seconds: float


class Boot(Fact, kw_only=True):
    """The initcalls of a kernel that reported how long each one took."""

    initcalls: Initcalls


class StartedUnit(msgspec.Struct):
    """A systemd unit, with the seconds from its activation until it was active."""

    name: str
    seconds: float


class StartedUnits(Fact, kw_only=True):
    """The units that the system of a disk image started during boot, slowest first."""

    slowest: list[StartedUnit]
    count: int
    # Hypervisor started → all units of the boot are active.
    settled_s: float


# Properties of systemd units.
UNIT_BEGUN, UNIT_ACTIVE = "InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic"
_SHOWN = 20
# Linux, init/main.c: `initcall %pS returned %d after %lld usecs`; modules follow in brackets.
_RETURNED = re.compile(
    r"initcall (?P<name>[\w.]+)\+\S+(?: \[(?P<module>\w+)\])? returned (?P<code>-?\d+) after (?P<us>\d+) usecs"
)


def parse_initcalls(log: str) -> list[tuple[str, float]]:
    """Returns the initcalls in a kernel's log with their seconds, in order; a module's is named `name [module]`."""
    calls = []
    for name, module, _, us in _RETURNED.findall(log):
        full_name = f"{name} [{module}]" if module else name
        calls.append((full_name, int(us) / 1e6))
    return calls


def select_slowest_initcalls(log: str) -> Initcalls:
    """Returns the slowest calls, which a trial keeps, with the number and the total seconds of all calls."""
    calls = parse_initcalls(log)
    ordered = sorted(calls, key=lambda call: call[1], reverse=True)
    return Initcalls(
        slowest=[Initcall(name, seconds) for name, seconds in ordered[:_SHOWN]],
        count=len(calls),
        seconds=sum(seconds for _, seconds in calls),
    )


def select_slowest_units(shown: str, settled_s: float) -> StartedUnits:
    """Returns the slowest units in the output of `systemctl show --property=Id,InactiveExitTimestampMonotonic,…`.

    Units are separated by empty lines. Timestamps are microseconds on the guest's clock, 0 if the event never happened.
    """
    units = []
    for block in shown.split("\n\n"):
        found = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        begun = _read_microseconds(found.get(UNIT_BEGUN, ""))
        active = _read_microseconds(found.get(UNIT_ACTIVE, ""))
        if found.get("Id") and begun and active and active >= begun:
            units.append(StartedUnit(found["Id"], (active - begun) / 1e6))
    units.sort(key=lambda unit: -unit.seconds)
    return StartedUnits(slowest=units[:_SHOWN], count=len(units), settled_s=settled_s)


def _read_microseconds(text: str) -> int:
    return int(text) if text.isdigit() else 0


class BootWorkload(Workload[BootParams]):
    """Starts a guest and shuts it down."""

    name = "boot"
    help = "times a guest's start and shutdown, phase by phase"
    measures = ALL
    topic = Topic.START

    @classmethod
    def describe_params(cls, params: BootParams) -> str:
        """Names the command, if there is one, and states whether initcalls are traced."""
        said = "boot"
        if params.command:
            said += f" with {shlex.join(params.command)}"
        if params.watch.initcalls:
            said += ", initcalls traced"
        return said

    @classmethod
    def watches_initcalls(cls, params: BootParams) -> bool | None:
        """Returns whether initcalls are traced; phases always are."""
        return params.watch.initcalls

    @classmethod
    def find_packages(cls, params: BootParams) -> tuple[str, ...]:
        """Returns the packages that contain the command's program."""
        return find_program_packages(params.command[0]) if params.command else ()

    @classmethod
    def needs_root(cls, params: BootParams) -> bool:
        """Returns whether a root is needed: for a command, or for modules whose initcalls are traced."""
        return bool(params.command) or params.watch.initcalls

    @classmethod
    def trial_class(cls) -> type[Workload[BootParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.boot.trial import BootTrial

        return BootTrial

    @classmethod
    def report_sections(cls) -> tuple[Sections, ...]:
        """Adds the phases, and the slowest initcalls."""
        from guestmark.workloads.boot.sections import render_phases

        return (render_phases,)
