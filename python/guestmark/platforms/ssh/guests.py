"""`ssh:DEST/tcg`, `ssh:DEST/uml` …: guests on another machine, that share its root."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import msgspec

from guestmark.agent.results import CallError, CommandError
from guestmark.core.context import Caller
from guestmark.core.discovery import settings_of
from guestmark.core.errors import AttestationError, MachineError, PlatformUnusableError, UsageError
from guestmark.core.factor import Machine
from guestmark.core.machine_facts import RemoteGuestMachine
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.platforms import registry
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.nested.outer import lodge
from guestmark.platforms.probe import NO_FACTORS, probe_by_start
from guestmark.platforms.qemu.accelerators import ACCELERATORS
from guestmark.platforms.ssh.place import RemotePlace
from guestmark.platforms.ssh.platform import Remote, SshPlatform
from guestmark.platforms.within import GuestWithin
from guestmark.setting.machine import MEMORY, PLACEMENT

if TYPE_CHECKING:
    from guestmark.core.platform_spec import PlatformSpec
    from guestmark.platforms.guest import Guest, GuestPlatform
    from guestmark.platforms.nested.place import OuterPlace
    from guestmark.platforms.place import Place

_READY_S = 300.0
_UML = ("linux.uml", "user-mode-linux")
_PROBE_MEMORY = "256M"
_NOT_THE_GUEST = {factor.name for factor in (*settings_of(Machine.OUTER), PLACEMENT)}


class RemoteGuestPlatform:
    """Guests on the machine of the outermost layer; each trial has its own."""

    def __init__(self, spec: PlatformSpec) -> None:
        for layer in spec.layers[1:]:
            if layer.foreign:
                raise PlatformUnusableError(
                    "guests of another architecture are not supported on other machines",
                    hint=f"measure {layer} here",
                )
        self.name = str(spec)
        self._spec = spec
        self._outer = cast("SshPlatform", registry.of_layer(spec.outer))
        self._inner = cast("GuestPlatform", registry.of_layer(spec.inner))

    @contextlib.contextmanager
    def start(self, cell: Cell, deadline_s: float | None = None) -> Iterator[RemoteGuest]:
        """Boots the guest there and yields it; see `Platform.start`."""
        if PLACEMENT.name in cell.factors:
            raise UsageError(
                f"{self.name} cannot be given a placement", hint="that is for machines of this host"
            )
        with self._outer.start(cell, deadline_s) as remote, contextlib.ExitStack() as stack:
            deadline = time.monotonic() + (deadline_s or _READY_S)
            self._check_program(remote)
            own = RemotePlace(remote)
            stack.callback(own.close)
            with self._faults():
                place: OuterPlace = own
                for layer in range(1, len(self._spec.layers) - 1):
                    place = lodge(stack, place, cell, layer, max(1.0, deadline - time.monotonic()))
                others = _NOT_THE_GUEST | {factor.name for factor in self._spec.outer.described.accepted}
                factors = {name: level for name, level in cell.factors.items() if name not in others}
                left_s = max(1.0, deadline - time.monotonic())
                made = self._inner.start(replace(cell, factors=factors), left_s, place=place)
                with made as guest:
                    yield RemoteGuest(guest, remote, place, own)

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] = NO_FACTORS
    ) -> Usable | Unusable:
        """Boots a guest there and attests it; what fails is the reason."""
        cell = Cell("probe", WorkloadSpec("probe"), self._spec, {MEMORY.name: _PROBE_MEMORY, **factors})
        return probe_by_start(self, deadline_s or _READY_S, cell)

    def _check_program(self, remote: Remote) -> None:
        layer = self._spec.layers[1]
        emulator = layer.architecture.emulator
        name, package = (emulator.name, emulator.package) if layer.kind in ACCELERATORS else _UML
        try:
            remote.agent.which(name, path=remote.caller().env.get("PATH"))
        except CommandError as error:
            raise PlatformUnusableError(
                f"{name} is not installed on {self._spec.outer.dest}",
                hint=f"install the package {package} there",
            ) from error

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """Adds to an error where it came from."""
        try:
            yield
        except CallError:
            raise
        except MachineError as error:
            told = AttestationError if isinstance(error, AttestationError) else MachineError
            raise told(
                f"on {self._spec.outer}: {error.message}",
                hint=error.hint,
                console=error.console,
                phases=error.phases,
            ) from error


class RemoteGuest(GuestWithin):
    """A guest on another machine: commands in it find that machine's files, and its user's surroundings."""

    def __init__(self, inner: Guest, remote: Remote, place: Place, own: RemotePlace) -> None:
        super().__init__(inner)
        self.place = place
        self._remote = remote
        self._own = own  # whose agent may be called by one thread at a time
        self._scratch = ""

    @property
    def command_line(self) -> tuple[str, ...]:
        """That of ssh, then the hypervisor's behind a `/`."""
        return (*self._remote.command_line, "/", *self.inner.command_line)

    @property
    def vmm_pid(self) -> int | None:
        """None: no process of this host."""
        return None

    @property
    def scratch(self) -> str:
        """A directory in the guest, for what is brought there."""
        if not self._scratch:
            self._scratch = f"/tmp/guestmark-{secrets.token_hex(8)}"
            self.agent.mkdir(self._scratch, mode=0o700)
        return self._scratch

    def caller(self) -> Caller:
        """The user of the machine, whom the guest runs as root."""
        with self._own.calling():
            return self._remote.caller()

    def attest(self) -> RemoteGuestMachine:
        """The guest as it is seen there, and the machine that it runs on."""
        found = self.inner.attest()
        with self._own.calling():
            return RemoteGuestMachine(**msgspec.structs.asdict(found), on=self._remote.attest())

    def console(self) -> str:
        """What the guest and its hypervisor printed."""
        return self.inner.console()

    def vmm_stats(self) -> Mapping[str, float]:
        """Of its hypervisor, asked there."""
        return self.inner.vmm_stats()

    def counters(self) -> Mapping[str, float]:
        """Of its hypervisor, asked there."""
        return self.inner.counters()

    def remarks(self) -> list[str]:
        """Of the machine it runs on."""
        with self._own.calling():
            return self._remote.remarks()
