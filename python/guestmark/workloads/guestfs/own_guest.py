"""Workloads in which libguestfs starts its own guest: `guestfs-run`, a peer of `boot`, and `guestfs-api`, many calls.

Inside an outer guest, as in `tcg/kvm`, guestfish runs there, and its own guest is a nested one.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from guestmark.core.errors import AttestationError, WorkloadError
from guestmark.core.metric import Measurement
from guestmark.core.model import Cell, Plan
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.platforms import libguestfs
from guestmark.platforms import phases as steps
from guestmark.platforms.base import Machine, Platform
from guestmark.platforms.host_like import HostPlatform
from guestmark.platforms.qemu.accelerators import ACCELERATORS, KVM, TCG
from guestmark.platforms.qemu.nested.platform import READY_DEADLINE_S, NestedPlatform
from guestmark.setting.machine import PLACEMENT
from guestmark.workloads import boot
from guestmark.workloads.base import P, Workload
from guestmark.workloads.boot.trial import compute_durations
from guestmark.workloads.common.metrics import LAUNCH, to_measurements
from guestmark.workloads.guestfs import GuestfsRunParams, guestfish, session
from guestmark.workloads.guestfs.guestfish import Guestfs, Mark, Timeline
from guestmark.workloads.guestfs.session import CALLS, WALL

# A path in the outer guest, all of whose writes are discarded.
_SCRIPT = "/tmp/guestmark-session"
_MARK = "guestmark-mark "
_KVM = "guestmark-kvm "
_ATTEST = f"!echo {_KVM}$(ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c kvm-vm)"
# Characters of output that a reason may quote.
_KEPT = 300


@dataclass(frozen=True, slots=True)
class GuestfishSession:
    """Times on the host's monotonic clock at which guestfish started and each mark arrived, and its output."""

    started_at: float
    marks: dict[str, float]
    printed: str


def machine(platform: Platform, cell: Cell) -> AbstractContextManager[Machine]:
    """Starts the machine on which guestfish runs: this host, or the outer guest of a nested platform."""
    if isinstance(platform, NestedPlatform):
        return platform.start_outer(cell, READY_DEADLINE_S)
    where = {name: level for name, level in cell.factors.items() if name == PLACEMENT.name}
    return HostPlatform().start(replace(cell, platform=HOST, factors=where))


def run(outer: Machine, accelerator: str, script: Sequence[str | Mark], timeout_s: float) -> GuestfishSession:
    """Runs guestfish in the guest `outer`, as `guestfish.run` does here; checks the accelerator after the first mark.

    Raises `WorkloadError` with guestfish's message if a command fails or time is up, `AttestationError` if its QEMU
    runs with another accelerator.
    """
    environment = {
        **libguestfs.prepare(accelerator),
        **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        "TMPDIR": "/dev/shm",
    }
    agent = outer.agent
    lines: list[str] = []
    names: list[str] = []
    for step in script:
        if not isinstance(step, Mark):
            lines.append(step)
            continue
        lines.append(f"!echo {_MARK}{step.name}")
        # QEMU runs from the first mark on, so later marks are not delayed by another check.
        if not names:
            lines.append(_ATTEST)
        names.append(step.name)
    agent.write_file(_SCRIPT, ("\n".join(lines) + "\n").encode())
    deadline = time.monotonic() + timeout_s
    started_at = time.monotonic()
    guestfish = agent.background([libguestfs.GUESTFISH, "-f", _SCRIPT], env=environment)
    marks: dict[str, float] = {}
    for name in names:
        sign = f"{_MARK}{name}\n".encode()
        arrived = guestfish.wait(deadline - time.monotonic(), _make_output_matcher(sign))
        if sign not in guestfish.output:
            problem = f"did not reach {name!r} within {timeout_s:.0f} s"
            if arrived:
                problem = f"exited before {name!r}"
            guestfish.send_signal(9)
            raise WorkloadError(f"guestfish {problem}: {_last_words(guestfish.read_text())}")
        marks[name] = time.monotonic()
    if not guestfish.wait(max(1.0, deadline - time.monotonic())) or guestfish.ended is None:
        raise WorkloadError(f"guestfish did not exit: {_last_words(guestfish.read_text())}")
    if guestfish.ended.status != 0:
        raise WorkloadError(
            f"guestfish exited with status {guestfish.ended.status}: {_last_words(guestfish.read_text())}"
        )
    printed = guestfish.read_text()
    _attest_accelerator(printed, accelerator)
    return GuestfishSession(started_at, marks, printed)


def _make_output_matcher(sign: bytes) -> Callable[[bytes], bool]:
    return lambda said: sign in said


def _attest_accelerator(script_output: str, accelerator: str) -> None:
    """Raises `AttestationError` if guestfish's QEMU runs with another accelerator, by the output of the script."""
    # The script counts open KVM machines in the outer guest: if there are none, its QEMU emulates.
    machines = ""
    for line in script_output.splitlines():
        if line.startswith(_KVM):
            machines = line.removeprefix(_KVM).strip()
            break
    found = {"": "nothing", "0": TCG.name}.get(machines, KVM.name)
    if found != accelerator:
        raise AttestationError(
            f"libguestfs does not run as requested: asked for {accelerator}, found {found} in the outer guest"
        )


def _last_words(printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip() and not line.startswith(_MARK)]
    # With tracing, guestfish prints a lot after the error.
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it printed nothing"])[-1][:_KEPT]


_DEEPEST = 2
_ANSWER_S = 30.0


class OwnGuestTrial(Workload[P]):
    """Runs libguestfs on the cell's accelerator, on this host or in one outer guest."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._found = self.facts.add(Guestfs())
        self._spec = cell.platform
        self._accelerator = cell.platform.inner.kind

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Raises `PlatformUnusableError`, which names a package, if libguestfs cannot be used here."""
        for accelerator in {cell.platform.inner.kind for cell in cells}:
            libguestfs.prepare(accelerator)
        return ()

    @classmethod
    def impossible(cls, cell: Cell) -> str:
        """Returns why libguestfs cannot start a guest of the cell's kind; empty if it can."""
        return explain_unusable(cell.platform)

    def machine(self, platform: Platform) -> AbstractContextManager[Machine]:
        """Starts the host's agent, or the outer guest of a nested platform; libguestfs starts its own guest there."""
        return machine(platform, self.cell)

    def prepare(self, machine: Machine) -> None:
        """Builds the appliance, so that no launch has to."""
        libguestfs.prepare(self._accelerator)


def explain_unusable(spec: PlatformSpec) -> str:
    """Returns why libguestfs cannot run on that platform, in one line; empty if it can."""
    if spec.is_guest and spec.inner.kind not in ACCELERATORS:
        return _explain_missing_uml()
    if spec.inner.kind not in ACCELERATORS or len(spec.layers) > _DEEPEST:
        return (
            "libguestfs can start its own guest with tcg or kvm on this host or inside one outer guest, "
            f"but not on {spec}"
        )
    return ""


@functools.cache
def _explain_missing_uml() -> str:
    """Returns why libguestfs cannot start a User-Mode Linux guest.

    libguestfs had a backend for UML until version 1.47, so the installed version is tried.
    """
    if shutil.which(libguestfs.GUESTFISH) is None:
        return ""  # `libguestfs.prepare` gives a better reason
    asked = subprocess.run(
        [libguestfs.GUESTFISH, "set-backend", "uml"],
        capture_output=True, text=True, check=False, timeout=_ANSWER_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if asked.returncode == 0:
        return f"{read_guestfish_version()} has a backend for User-Mode Linux, but guestmark does not use it"
    said = next(iter(asked.stderr.strip().splitlines()), "")
    return f"{read_guestfish_version()} no longer has a backend for User-Mode Linux: {said.rpartition('error: ')[2]}"


def read_guestfish_version() -> str:
    """Returns the name and version that guestfish prints."""
    asked = subprocess.run(
        [libguestfs.GUESTFISH, "--version"], capture_output=True, text=True, check=False, timeout=_ANSWER_S
    )
    return asked.stdout.strip() or libguestfs.GUESTFISH


class GuestfsApiTrial(OwnGuestTrial[session.GuestfsApiParams]):
    """The trial of `guestfs-api`: one launch and one session; its times exclude the launch."""

    def prepare(self, machine: Machine) -> None:
        """Builds the appliance, and records guestfish's version."""
        super().prepare(machine)
        self._found.version = read_guestfish_version()

    def run(self, machine: Machine) -> list[Measurement]:
        """Launches guestfish and makes the calls. Raises `WorkloadError` if one fails or prints the wrong output."""
        calls = session.build_session_commands(self.params.rounds)
        script: list[str | Mark] = [*guestfish.build_size_commands(self.cell.levels)]
        script += [session.build_drive_command(), "run", Mark("launched"), *calls, Mark("done"), "shutdown"]
        started_at, marks, printed = self._run_session(machine, script)
        self._found.calls = len(calls)
        if found := session.find_missing_output(printed, self.params.rounds):
            raise WorkloadError(f"libguestfs's output is not as expected: {found}")
        wall_s, launch_s = marks["done"] - marks["launched"], marks["launched"] - started_at
        values = ((WALL, wall_s), (CALLS, len(calls) / wall_s), (LAUNCH, launch_s))
        return to_measurements(values)

    def _run_session(
        self, machine: Machine, script: Sequence[str | Mark]
    ) -> tuple[float, Mapping[str, float], str]:
        """Returns when guestfish was started, when it reached its marks, and what it printed."""
        if self._spec.is_nested:
            inside = run(machine, self._accelerator, script, self.limit_s)
            return inside.started_at, inside.marks, inside.printed
        timeline = guestfish.run(self._accelerator, script, self.limit_s)
        self._found.qemu, self._found.confined = list(timeline.qemu), timeline.confined
        return timeline.started_at, timeline.marks, timeline.console.read_text()


_LAUNCHED, _CLOSED = "launched", "closed"
# Messages of libguestfs, its guest's kernel and its guest that end a phase.
_LINES = {
    steps.FIRMWARE: rb"SeaBIOS \(version",
    steps.HANDOVER: rb"Booting from ROM",
    steps.FIRST_LINE: rb"Linux version ",
    steps.KERNEL: rb"Run /init as init process",
    steps.MODULES: rb"supermin: picked ",
    steps.ROOT: rb"Starting /init script",
}
# Before the guest starts, libguestfs checks the appliance, then QEMU's features.
_BEFORE = (rb"finished building supermin appliance", rb"finished testing qemu features")
_ENDING = (boot.POWEROFF, boot.EXIT)


class GuestfsRunTrial(OwnGuestTrial[GuestfsRunParams]):
    """Launches silently for the times of start and shutdown, then verbosely for the phases."""

    ONCE = True

    def run(self, machine: Machine) -> list[Measurement]:
        """Times a launch and its end; on request traces the phases of a second launch."""
        launched = self._launch_inside(machine) if self._spec.is_nested else read_phases(self._launch_guest())
        values, _ = compute_durations(launched)
        kept = {metric: values[metric] for metric in (boot.READY, boot.TOTAL, *_ENDING)}
        if self.params.phases and not self._spec.is_nested:
            traced = self._launch_guest(verbose=True)
            values, missing = compute_durations(read_phases(traced))
            starting = boot.PHASES[: boot.PHASES.index(boot.WORK)]
            kept |= {metric: values[metric] for metric in starting if metric in values}
            self._found.traced_ready_s = values[boot.READY]
            self._found.appliance_s, self._found.features_s = split_start_time(traced)
            if missing:
                said = ", ".join(metric.name for metric in missing)
                self.warnings.append(f"libguestfs's messages do not show the end of {said}")
        return to_measurements(kept.items())

    def _make_script(self) -> list[str | Mark]:
        sized = guestfish.build_size_commands(self.cell.levels)
        return [*sized, "add /dev/null", "run", Mark(_LAUNCHED), "shutdown", Mark(_CLOSED)]

    def _launch_inside(self, outer: Machine) -> dict[str, float]:
        """Returns the phases of a launch in an outer guest, timed by the arrival of its lines here."""
        session = run(outer, self._accelerator, self._make_script(), self.limit_s)
        ended_at = time.monotonic()
        launched, closed = session.marks[_LAUNCHED], session.marks[_CLOSED]
        times = {steps.READY: launched, steps.ORDERED: launched, steps.DOWN: closed, steps.GONE: ended_at}
        return {name: at - session.started_at for name, at in times.items()}

    def _launch_guest(self, *, verbose: bool = False) -> Timeline:
        timeline = guestfish.run(self._accelerator, self._make_script(), self.limit_s, verbose=verbose)
        self._found.qemu, self._found.confined = list(timeline.qemu), timeline.confined
        return timeline


def read_phases(timeline: Timeline) -> dict[str, float]:
    """Returns the phases of a launch, named like those of guestmark's guests, in seconds since guestfish's start.

    Its guest is told to end as soon as it is ready; what it does afterwards is not reported.
    """
    times = {}
    for name, line in _LINES.items():
        at = timeline.console.find_arrival(re.compile(line))
        if at is not None:
            times[name] = at
    times[steps.READY] = times[steps.ORDERED] = timeline.marks[_LAUNCHED]
    times[steps.DOWN], times[steps.GONE] = timeline.marks[_CLOSED], timeline.ended_at
    return {name: at - timeline.started_at for name, at in times.items()}


def split_start_time(timeline: Timeline) -> Sequence[float | None]:
    """Returns the seconds until the appliance is checked, and from then until QEMU's features are known.

    A value is None if the messages do not show it; that time is then part of the next phase.
    """
    found: list[float | None] = []
    before = timeline.started_at
    for line in _BEFORE:
        at = timeline.console.find_arrival(re.compile(line))
        if at is None:
            found.append(None)
            continue
        found.append(at - before)
        before = at
    return found
