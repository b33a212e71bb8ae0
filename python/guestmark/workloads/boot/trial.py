"""The workload `boot`: starts a guest, shuts it down, and measures each phase."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast

from guestmark.core.errors import MachineError, UsageError, WorkloadError
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, Plan, WorkloadSpec
from guestmark.platforms import phases as steps
from guestmark.platforms.base import Machine, Platform
from guestmark.platforms.probe import Startable
from guestmark.platforms.qemu.disk_images import ImageGuest
from guestmark.setting.machine import IMAGE
from guestmark.workloads import boot
from guestmark.workloads.boot import Boot, BootWorkload
from guestmark.workloads.common.metrics import to_measurements
from guestmark.workloads.exec.trial import ExecTrial

_END_S = 30.0
# A complete system stops its services first.
_IMAGE_END_S = 120.0
_LOG_LIMIT = 16 << 20
# Each phase with its end. A phase that a platform lacks is part of the one that follows.
_ENDS = (
    (boot.VMM, steps.FIRMWARE), (boot.FIRMWARE, steps.HANDOVER), (boot.ENTRY, steps.FIRST_LINE),
    (boot.KERNEL, steps.KERNEL), (boot.MODULES, steps.MODULES), (boot.ROOT, steps.ROOT),
    (boot.AGENT, steps.READY), (boot.WORK, steps.ORDERED), (boot.POWEROFF, steps.DOWN),
    (boot.EXIT, steps.GONE),
)  # fmt: skip
# In a disk image the initrd loads the modules and mounts the root filesystem; that time is part of `root`.
_OF_IMAGES = tuple(pair for pair in _ENDS if pair[0] not in (boot.MODULES, boot.POWEROFF))
_WITHOUT_FIRMWARE: tuple[tuple[Metric, str], ...] = ((boot.VMM, steps.HANDOVER), *_ENDS[3:])
# Tolerated difference of the time from PID 1 to ready between host and guest: a share of it, plus seconds.
_CLOCKS_APART = (0.1, 0.1)


class _BootedMachine(Machine, Protocol):
    """A machine that boots a kernel and can be told to power off."""

    def shut_down(self, timeout_s: float) -> None:
        """Powers the machine off and waits until its hypervisor has ended. Raises `MachineError`."""


class BootTrial(BootWorkload):
    """Runs one start and one orderly shutdown; every iteration needs a fresh machine."""

    ONCE = True

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._watch = steps.Watch.for_cell(cell) or steps.Watch()
        self._work: ExecTrial | None = None
        if command := self.params.command:
            self._work = ExecTrial(plan, replace(cell, workload=WorkloadSpec("exec", {"argv": command})))

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Raises `UsageError` for a cell that cannot be booted, before anything is started."""
        for cell in cells:
            if not cell.platform.is_guest:
                what = "the host" if cell.platform.is_this_host else str(cell.platform)
                raise UsageError(f"{what} cannot be booted", hint="measure guests: --on tcg,uml,kvm,tcg/kvm")
        remarks = []
        if (plan.policy.iterations or 1) > 1 or plan.policy.warmup > 1:
            remarks.append(
                "a machine starts only once, so each trial of boot is one iteration without warm-up"
            )
        if any(cls.params_of(cell.workload).watch.initcalls for cell in cells):
            remarks.append("tracing initcalls makes kernels start more slowly")
        return remarks

    @contextlib.contextmanager
    def machine(self, platform: Platform) -> Iterator[Machine]:
        """Starts the platform's guest, within its usual limit or the trial's time limit, whichever is shorter."""
        limit_s = self.plan.policy.trial_limit_s
        startable = cast("Startable", platform)
        if not self.cell.platform.is_nested:
            limit_s = min(limit_s, self.cell.platform.inner.description.start_limit_s)
        with startable.start(self.cell, limit_s) as machine:
            yield machine

    def prepare(self, machine: Machine) -> None:
        """Finds the command on the machine, if there is one."""
        if self._work:
            self._work.prepare(machine)
            self.facts.add_all(self._work.facts)

    def run(self, machine: Machine) -> list[Measurement]:
        """Runs the command, reads the kernel's log if requested, and shuts the machine down."""
        guest = cast("_BootedMachine", machine)
        if self._work:
            self._work.run(guest)
            self.warnings += self._work.warnings
        if self._watch.initcalls:
            self.facts.add(Boot(initcalls=boot.select_slowest_initcalls(self._read_boot_log(guest))))
        of_image = isinstance(guest, ImageGuest)
        if of_image:
            self.facts.add(self._list_units(guest))
        guest.shut_down(_IMAGE_END_S if of_image else _END_S)
        return self._measure_phases(guest.phases)

    def _list_units(self, guest: _BootedMachine) -> boot.StartedUnits:
        properties = ",".join(("Id", boot.UNIT_BEGUN, boot.UNIT_ACTIVE))
        words = ["systemctl", "show", "*", f"--property={properties}", "--no-pager"]
        done = guest.agent.exec(words, timeout_s=60.0, output_limit=_LOG_LIMIT)
        shown = done.stdout.decode(errors="replace")
        return boot.select_slowest_units(shown, guest.phases[steps.SETTLED])

    def _read_boot_log(self, guest: _BootedMachine) -> str:
        done = guest.agent.exec(["dmesg"], timeout_s=60.0, output_limit=_LOG_LIMIT)
        if not done.ok:
            raise WorkloadError(
                "the kernel's log cannot be read with dmesg", hint="dmesg is part of the package util-linux"
            )
        return done.stdout.decode(errors="replace")

    def _measure_phases(self, phases: Mapping[str, float]) -> list[Measurement]:
        ends = _WITHOUT_FIRMWARE
        if IMAGE in self.cell.levels:
            ends = _OF_IMAGES
        elif self.cell.platform.inner.description.boots_firmware:
            ends = _ENDS
        values, missing = compute_durations(phases, ends)
        if missing:
            said = ", ".join(metric.name for metric in missing)
            self.warnings.append(
                f"the console does not show the end of {said}; that time counts towards the next phase"
            )
        self._warn_of_clock_difference(phases)
        return to_measurements(values.items())

    def _warn_of_clock_difference(self, phases: Mapping[str, float]) -> None:
        """Warns when host and guest disagree about the time from PID 1 to the agent's last step."""
        first, last = f"guest_{steps.KERNEL}", "guest_channel"
        if not {first, last, steps.KERNEL} <= phases.keys():
            return
        host, inside = phases[steps.READY] - phases[steps.KERNEL], phases[last] - phases[first]
        share, seconds = _CLOCKS_APART
        if abs(host - inside) > seconds + share * host:
            self.warnings.append(
                f"from PID 1 to ready, the host's clock shows {host:.3f} s and the guest's clock {inside:.3f} s"
            )


def compute_durations(
    phases: Mapping[str, float], ends: Sequence[tuple[Metric, str]] = _ENDS
) -> tuple[dict[Metric, float], list[Metric]]:
    """Returns the seconds of each phase, of the start and in total, by metric; then the phases whose end is unknown.

    `phases` are seconds since the start. The known phases add up to the total exactly; one whose end is unknown is
    part of the next. Raises `MachineError` if the machine was never ready or never ended.
    """
    for needed in (steps.READY, steps.GONE):
        if needed not in phases:
            raise MachineError(f"the time when the guest was {needed} is unknown")
    found = {boot.READY: phases[steps.READY], boot.TOTAL: phases[steps.GONE]}
    missing, before = [], 0.0
    for metric, end in ends:
        if end not in phases:
            missing.append(metric)
            continue
        # Lines of the console may arrive out of order, but phases must not be negative.
        latest = phases[steps.READY] if metric in _STARTING else phases[steps.GONE]
        at = min(max(phases[end], before), latest)
        found[metric] = max(0.0, at - before)
        before = max(at, before)
    return found, missing


_STARTING = frozenset(boot.PHASES[: boot.PHASES.index(boot.AGENT) + 1])
