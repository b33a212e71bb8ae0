"""`OUTER/INNER`: a guest inside a guest. The outer one shares the host's root, so guestmark runs there too.

The outer guest gets a second channel. In it runs `platforms.relay`, which starts the inner machine with the same code
as the host would and then passes bytes between that channel and the inner agent; the control plane on the host talks
to the inner agent itself, so clocks, limits and results are the same as for any other machine. Deeper nesting is the
relay starting a nested platform in turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guestmark.agent.client import Agent
from guestmark.agent.frames import Transport
from guestmark.disks.attached import AttachedDisk
from guestmark.errors import AgentError, MachineError, PlatformUnusableError
from guestmark.plan.model import Cell, WorkloadSpec
from guestmark.plan.platform_spec import PlatformSpec
from guestmark.plan.units import format_size, parse_size
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.guest import Guest, channel
from guestmark.platforms.probe import probe_by_start
from guestmark.platforms.qemu import DEFAULTS, TCG_CPU, Extras, QemuPlatform

if TYPE_CHECKING:
    from guestmark.agent.results import ExecResult

PORT = "guestmark-inner"
_OUTER_NEEDS = 768 << 20  # for the outer kernel, the relay, the inner hypervisor and files it writes
_HYPERVISOR_MODULES = ("kvm_amd", "kvm_intel")
_READY_DEADLINE_S = 180.0
_OUTER_CPU = {"tcg": f"{TCG_CPU},svm=on", "kvm": "host"}


class NestedPlatform:
    """`tcg/kvm`, `tcg/uml`, `kvm/kvm`, `tcg/tcg/uml` …; every trial starts all layers afresh."""

    def __init__(self, spec: PlatformSpec) -> None:
        if spec.outer.kind not in _OUTER_CPU:
            raise PlatformUnusableError(
                f"{spec}: {spec.outer.kind} cannot hold another guest", hint="nest in tcg or kvm"
            )
        self.name = str(spec)
        self._outer = QemuPlatform(spec.outer.kind, spec.outer.arch or "")
        self._inner = "/".join(str(layer) for layer in spec.layers[1:])

    @contextlib.contextmanager
    def start(self, cell: Cell, deadline_s: float | None = None) -> Iterator[NestedGuest]:
        """Boots the outer guest and the inner one in it, and yields the inner one; see `Platform.start`."""
        deadline = time.monotonic() + (deadline_s or _READY_DEADLINE_S)
        outer_cell = self._outer_cell(cell)
        ours, theirs = channel()
        with contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            stack.callback(theirs.close)
            extras = Extras(_port(theirs.fileno()), (theirs.fileno(),), _HYPERVISOR_MODULES)
            outer = stack.enter_context(self._outer.start(outer_cell, deadline - time.monotonic(), extras))
            theirs.close()
            outer_is = outer.attest()  # from here on the outer agent is the relay's
            relay = _Relay(outer, self._inner, cell, deadline)
            stack.callback(relay.close)
            stack.callback(ours.close)  # its end is what the relay ends at
            header = relay.header(ours, deadline)
            if "error" in header:
                raise MachineError(
                    f"inside {self._outer.name}: {header['error']}",
                    hint=header["hint"],
                    console=f"{header['console']}\n--- outer guest ---\n{outer.console()}",
                )
            agent = Agent(Transport.of_socket(ours))
            agent.hello(max(1.0, deadline - time.monotonic()))
            inner_ready = time.monotonic() - outer.process.started_at
            yield NestedGuest(cell, agent, outer=outer, outer_is=outer_is, header=header, ready_s=inner_ready)

    @contextlib.contextmanager
    def outer(self, cell: Cell, deadline_s: float) -> Iterator[Guest]:
        """The outer guest alone, able to run hypervisors, for workloads that start what is inside themselves."""
        extras = Extras(modules=_HYPERVISOR_MODULES)
        with self._outer.start(self._outer_cell(cell), deadline_s, extras) as guest:
            yield guest

    def probe(self, deadline_s: float | None = None) -> Usable | Unusable:
        """Boots all layers and attests them; what fails is the reason. Takes longer than a probe of one layer may."""
        return probe_by_start(self, max(deadline_s or 0.0, _READY_DEADLINE_S))

    def _outer_cell(self, cell: Cell) -> Cell:
        """The outer guest: as many processors as the inner one, and its memory on top of the inner one's."""
        inner_memory = parse_size(cell.factors.get("memory", DEFAULTS["memory"]))
        memory = inner_memory + _OUTER_NEEDS
        available = _available_bytes()
        if memory > available:
            raise PlatformUnusableError(
                f"{self.name} needs {format_size(memory)} ({format_size(inner_memory)} for the inner guest, "
                f"{format_size(_OUTER_NEEDS)} for the outer), this host has {format_size(available >> 20 << 20)} free",
                hint="give the inner guest less: --set memory=256M",
            )
        factors = {
            "memory": format_size(memory),
            "smp": cell.factors.get("smp", DEFAULTS["smp"]),
            "cpu": _OUTER_CPU[self._outer.accelerator],
        }
        # The disks that a workload wants are the inner machine's.
        return replace(cell, workload=WorkloadSpec("outer"), platform=self._outer.name, factors=factors)


class NestedGuest:
    """The innermost guest, with what is known of the layers around it."""

    def __init__(
        self,
        cell: Cell,
        agent: Agent,
        *,
        outer: Guest,
        outer_is: Mapping[str, Any],
        header: Mapping[str, Any],
        ready_s: float,
    ) -> None:
        self.cell = cell
        self.agent = agent
        self.disks: tuple[AttachedDisk, ...] = ()  # cannot be given any yet
        self.query = None
        self._outer = outer
        self._outer_is = outer_is
        self._header = header
        self.phases: Mapping[str, float] = {
            **{f"outer_{name}": value for name, value in outer.phases.items()},
            **{f"inner_{name}": value for name, value in header["phases"].items()},
            "ready": ready_s,
        }

    @property
    def command_line(self) -> tuple[str, ...]:
        """The outer hypervisor's command line, then the inner one's behind a `/`."""
        return (*self._outer.command_line, "/", *self._header["command_line"])

    @property
    def vmm_pid(self) -> int | None:
        """Process id of the outer hypervisor, the one this host sees."""
        return self._outer.vmm_pid

    def attest(self) -> Mapping[str, Any]:
        """Both layers: the outer as this host sees it, the inner as the relay attested it in the outer guest."""
        return {"outer": self._outer_is, "inner": self._header["attestation"]}

    def console(self) -> str:
        """What the outer guest printed; the inner console is part of the error when it does not start."""
        return self._outer.console()

    def vmm_stats(self) -> Mapping[str, float]:
        """Of the outer hypervisor."""
        return self._outer.vmm_stats()


class _Relay:
    """The relay's process in the outer guest; its call blocks, so it has a thread and the outer agent for itself."""

    def __init__(self, outer: Guest, inner: str, cell: Cell, deadline: float) -> None:
        self._outer = outer
        self._result: ExecResult | None = None
        self._error: AgentError | None = None
        order = {
            "platform": inner,
            "factors": dict(cell.factors),
            "deadline_s": max(1.0, deadline - time.monotonic()),
        }
        source = str(Path(__file__).resolve().parents[2])
        command = [
            sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {source!r}); "
            "from guestmark.platforms.relay import main; main(sys.argv[1])", json.dumps(order),
        ]  # fmt: skip
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        self._thread = threading.Thread(
            target=self._run, args=(command, environment), name="relay", daemon=True
        )
        self._thread.start()

    def header(self, ours: socket.socket, deadline: float) -> dict[str, Any]:
        """The relay's first line: what it started, or why it could not. Raises `MachineError` when it says nothing."""
        line = bytearray()
        while not line.endswith(b"\n"):
            if not self._thread.is_alive():
                raise self._failure("the relay ended without starting the inner guest")
            if time.monotonic() > deadline:
                raise self._failure("the inner guest was not ready in time")
            if select.select([ours], [], [], 0.2)[0]:
                # One byte a time: what follows the line is the inner agent's.
                byte = ours.recv(1)
                if not byte:
                    raise self._failure("the outer guest ended")
                line += byte
        header: dict[str, Any] = json.loads(line)
        return header

    def close(self) -> None:
        """Waits briefly for the relay's end; the outer guest is stopped right after in any case."""
        self._thread.join(0.2)

    def _run(self, command: list[str], environment: dict[str, str]) -> None:
        try:
            self._result = self._outer.agent.exec(command, env=environment, timeout_s=86400.0)
        except AgentError as error:
            self._error = error

    def _failure(self, what: str) -> MachineError:
        said = self._error.message if self._error else ""
        if self._result is not None:
            said = (self._result.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
        return MachineError(f"{what}{': ' if said else ''}{said}", console=self._outer.console())


_KEPT_VARIABLES = ("HOME", "PATH", "XDG_CACHE_HOME", "GUESTMARK_AGENT", "LANG")


def _port(fd: int) -> tuple[str, ...]:
    return (
        "-chardev", f"socket,id=inner,fd={fd}",
        "-device", f"virtserialport,chardev=inner,name={PORT}",
    )  # fmt: skip


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
