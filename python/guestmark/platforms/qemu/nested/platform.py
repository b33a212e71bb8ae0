"""`OUTER/INNER`: a guest inside a guest, to any depth that memory allows.

The outer guest shares the host's root, so the inner hypervisor is the same program with the same files. The same code
starts it in both places (`OuterPlace`), and the control plane on this host talks to the inner agent directly, so
clocks, limits and results are the same as for any other machine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from guestmark.agent.clocks import Ping
from guestmark.agent.results import CallError
from guestmark.core.cause import Cause
from guestmark.core.errors import AttestationError, GuestmarkError, MachineError, PlatformUnusableError
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import NestedMachine
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.units import format_share
from guestmark.foreign.progress import Progress
from guestmark.platforms import registry
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.guest import EXIT_DEADLINE_S, Guest, GuestPlatform, GuestWithin
from guestmark.platforms.place import Place
from guestmark.platforms.probe import NO_FACTORS, probe_by_start
from guestmark.platforms.qemu.nested.images import check_disks as check_images
from guestmark.platforms.qemu.nested.outer import (
    OUTERS,
    RunningOuter,
    find_shortage,
    remove_outer_factors,
    start_nested_outer,
)
from guestmark.platforms.qemu.nested.place import OuterPlace
from guestmark.platforms.qemu.platform import QemuPlatform
from guestmark.setting.machine import MEMORY

READY_DEADLINE_S = 300.0
# An emulator in an emulator starts in one minute on a quiet machine, and in over six while five others compute.
_TWICE_READY_DEADLINE_S = 900.0
_PROBE_MEMORY = "256M"
# The relative difference between the clocks of two layers from which a trial gets a remark.
_CLOCK_TOLERANCE = 0.01


class NestedPlatform:
    """`tcg/kvm`, `tcg/uml`, `kvm/kvm`, `tcg/tcg/uml` and so on; inner layers are started afresh for every trial."""

    def __init__(self, spec: PlatformSpec) -> None:
        for layer in spec.layers[:-1]:
            if not layer.description.holds_guests:
                raise PlatformUnusableError(
                    f"{layer.kind} cannot run another guest", hint="use tcg or kvm as the outer platform"
                )
            if layer.is_foreign:
                raise PlatformUnusableError(
                    f"{layer.architecture.name} guests cannot run other guests: their root is built from packages, "
                    "and contains neither this host's files nor what an inner guest boots",
                    hint=f"measure {layer} itself; for kvm inside emulation, use tcg/kvm",
                )
        self.name = str(spec)
        self._spec = spec
        self._inner = cast("GuestPlatform", registry.get_layer_platform(spec.inner))
        for layer in spec.layers:
            # Raises for a layer that this host does not support.
            registry.get_layer_platform(layer)

    @contextlib.contextmanager
    def start(self, cell: Cell, deadline_s: float | None = None) -> Iterator[NestedGuest]:
        """Boots the inner guest in an outer guest, which may already run, and yields it; see `Platform.start`."""
        deadline = time.monotonic() + (deadline_s or self._ready_deadline_s)
        check_images(cell)
        self._check_program(cell)
        if short := find_shortage([cell]):
            raise short
        with (
            OUTERS.take_guest(cell, deadline) as held,
            self._locate_errors(held),
            contextlib.ExitStack() as stack,
        ):
            held.trials += 1
            place = held.place
            with place.hold_agent() as agent:
                before = agent.ping()
            for layer in range(1, len(self._spec.layers) - 1):
                place = start_nested_outer(stack, place, cell, layer, max(1.0, deadline - time.monotonic()))
            self._check_virtualization(place, held)
            inner = stack.enter_context(self._start_inner(cell, place, deadline))
            yield NestedGuest(inner, held, place, before)

    @contextlib.contextmanager
    def start_outer(self, cell: Cell, deadline_s: float) -> Iterator[Guest]:
        """Yields only the outer guest, able to run hypervisors, for workloads that start inner guests themselves.

        Other trials of the block may share it, as with `start`.
        """
        if short := find_shortage([cell]):
            raise short
        with OUTERS.take_guest(cell, time.monotonic() + deadline_s) as held:
            yield held.place.guest

    def find_missing(self, levels: Levels) -> Unusable | None:
        """Returns a finding about a program that this host lacks, and so does the outer guest, which has its root."""
        missing = self._inner.find_missing(levels)
        return missing and replace(missing, reason=f"inside {self._spec.outer}: {missing.reason}")

    def make_parts(self, packages: Sequence[str], progress: Progress) -> None:
        """Builds what an inner guest of another architecture boots. Raises `GuestmarkError`."""
        cast("QemuPlatform", self._inner).make_parts(packages, progress)

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] = NO_FACTORS
    ) -> Usable | Unusable:
        """Boots all layers and attests them; the error is the reason if one fails. Takes longer than for one layer."""
        cell = Cell("probe", WorkloadSpec("probe"), self._spec, {MEMORY.name: _PROBE_MEMORY, **factors})
        return probe_by_start(self, deadline_s or self._ready_deadline_s, cell)

    @property
    def _ready_deadline_s(self) -> float:
        return _TWICE_READY_DEADLINE_S if self._spec.translates_twice else READY_DEADLINE_S

    def _start_inner(
        self, cell: Cell, place: Place, deadline: float
    ) -> contextlib.AbstractContextManager[Guest]:
        left_s = max(1.0, deadline - time.monotonic())
        return self._inner.start(remove_outer_factors(cell), left_s, place=place)

    def _check_program(self, cell: Cell) -> None:
        if missing := self.find_missing(cell.levels):
            raise PlatformUnusableError(missing.reason, hint=missing.hint)

    def _check_virtualization(self, place: OuterPlace, held: RunningOuter) -> None:
        if self._spec.inner.description.needs_kvm and not place.has_kvm:
            raise PlatformUnusableError(
                f"inside {self._spec.outer.kind}: the outer guest's processor ({held.spec.cpu}) does not support "
                "nested virtualization: there is no /dev/kvm in it",
                hint=r"use --set outer_cpu=max\,svm=on, or an outer platform that supports it",
            )

    @contextlib.contextmanager
    def _locate_errors(self, held: RunningOuter) -> Iterator[None]:
        """Adds to an error which layer it came from, and both consoles."""
        outer = held.place.guest
        try:
            yield
        except CallError:
            raise
        except MachineError as error:
            # A killed hypervisor closes its sockets well before it has ended, because freeing its memory takes long.
            gone = not held.place.is_alive() and outer.process.wait(EXIT_DEADLINE_S) is not None
            where, cause = f"inside {self._spec.outer}", error.cause
            if gone:
                where, cause = f"the outer guest ({self._spec.outer}) ended", Cause.ENDED
            kind = AttestationError if isinstance(error, AttestationError) else MachineError
            raise kind(
                f"{where}: {error.message}",
                hint=error.hint,
                cause=cause,
                console=f"{error.console}\n--- outer guest ---\n{outer.console()}",
                phases=error.phases,
            ) from error


class NestedGuest(GuestWithin):
    """The innermost guest, with what is known about the layers around it.

    Process ids are the outer hypervisor's on this host; `inner` is the guest as the outer one sees it. Phases are the
    inner guest's, from the start of its hypervisor; phases of an outer guest that was started for it begin with
    `outer_`.
    """

    def __init__(self, inner: Guest, held: RunningOuter, place: OuterPlace, before: Ping) -> None:
        super().__init__(inner)
        self._held = held
        self._before = before
        self.place: Place = place
        if held.trials == 1:
            inner.phases |= {f"outer_{name}": value for name, value in held.phases.items()}

    @property
    def command_line(self) -> tuple[str, ...]:
        """The outer hypervisor's command line, then `/` and the inner one's."""
        return (*self._held.place.guest.command_line, "/", *self.inner.command_line)

    @property
    def vmm_pid(self) -> int | None:
        """The process id of the outer hypervisor, the only one on this host."""
        return self._held.place.guest.vmm_pid

    def attest(self) -> NestedMachine:
        """Attests both guests: the outer one from this host, the inner one from the outer guest."""
        return NestedMachine(outer=self._held.to_facts(), inner=self.inner.attest())

    def console(self) -> str:
        """Returns what the inner guest printed, then what the outer one printed."""
        return f"{self.inner.console()}\n--- outer guest ---\n{self._held.place.guest.console()}"

    def vmm_stats(self) -> Mapping[str, float]:
        """Returns counters of the outer hypervisor's process."""
        return self._held.place.guest.vmm_stats()

    def counters(self) -> Mapping[str, float]:
        """Returns the inner hypervisor's counters, which are read through the outer guest."""
        return self.inner.counters()

    def remarks(self) -> list[str]:
        """Returns a warning if the outer guest's clock and this host's have run at different rates since the start."""
        try:
            with self._held.place.hold_agent() as agent:
                after = agent.ping()
        except GuestmarkError:
            return []
        host_ns = after.host_ns - self._before.host_ns
        outer_ns = after.guest_ns - self._before.guest_ns
        error = (after.round_trip_ns + self._before.round_trip_ns) / 2
        if abs(outer_ns - host_ns) <= _CLOCK_TOLERANCE * host_ns + error:
            return []
        return [
            f"the clocks of the layers disagree: {host_ns / 1e9:.4g} s on the host's, {outer_ns / 1e9:.4g} s on the "
            f"outer guest's ({format_share(outer_ns / host_ns - 1, 1, signed=True)})"
        ]
