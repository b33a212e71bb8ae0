"""Runs inside an outer guest: measures a complete network boot there and prints the findings as one line of JSON."""

import fcntl
import socket
import struct
import sys
from typing import Any, cast

import msgspec

from guestmark.core.errors import GuestmarkError, MachineError
from guestmark.core.trial_order import TrialOrder
from guestmark.workloads.netboot import InnerBoot
from guestmark.workloads.netboot.machine import NetbootMachine
from guestmark.workloads.netboot.nested import Failed, Measured, Reply
from guestmark.workloads.netboot.trial import NetbootTrial

_SIOCSIFFLAGS, _UP_RUNNING = 0x8914, 0x41


def main(order: str) -> None:
    """Carries out an encoded `TrialOrder` and prints an encoded `Reply`."""
    _enable_loopback()
    reply = measure_boot(TrialOrder.decode(order))
    sys.stdout.write(msgspec.json.encode(reply).decode() + "\n")


def measure_boot(order: TrialOrder) -> Reply:
    """Measures one boot and its downloads; returns the results or the error."""
    plan = order.make_plan()
    (cell,) = plan.cells
    workload = NetbootTrial(plan, cell)
    try:
        with workload.machine(_NONE) as machine:
            attestation = cast(NetbootMachine, machine).attest()
            phases = dict(machine.phases)
            workload.prepare(machine)
            values = {measurement.metric.name: measurement.value for measurement in workload.run(machine)}
            boot = InnerBoot(
                attestation=attestation,
                phases=phases,
                facts=workload.found,
                command_line=list(machine.command_line),
            )
            return Measured(values=values, warnings=workload.warnings, boot=boot)
    except GuestmarkError as error:
        console = error.console if isinstance(error, MachineError) else ""
        return Failed(message=error.message, hint=error.hint, cause=error.cause, console=console)


def _enable_loopback() -> None:
    """Brings up the loopback interface, which is down in a guest without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _UP_RUNNING))


# The workload starts this machine itself and needs no platform.
_NONE: Any = None
