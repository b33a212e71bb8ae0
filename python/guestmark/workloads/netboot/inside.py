"""Runs inside an outer guest: a whole network boot there, whose findings go back as one line of JSON."""

import fcntl
import json
import socket
import struct
import sys
from typing import Any, cast

import msgspec

from guestmark.core.errors import GuestmarkError, MachineError
from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import parse_platform
from guestmark.workloads import netboot
from guestmark.workloads.netboot import InnerBoot
from guestmark.workloads.netboot.machine import NetbootMachine
from guestmark.workloads.netboot.nested import Answer
from guestmark.workloads.netboot.workload import NetbootWorkload

_SIOCSIFFLAGS, _UP_RUNNING = 0x8914, 0x41


def main(order_text: str) -> None:
    """Carries out `order_text` (JSON: platform, factors, params, limit_s) and prints what came of it."""
    order: dict[str, Any] = json.loads(order_text)
    _loopback_up()
    spec = WorkloadSpec("netboot", order["params"])
    cell = Cell("inner", spec, parse_platform(order["platform"]), order["factors"], baseline=True)
    plan = Plan(
        "inner", (cell,), Policy(blocks=1, trial_limit_s=order["limit_s"]), netboot.of(order["params"])
    )
    workload = NetbootWorkload(plan, cell)
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
            answer = msgspec.to_builtins(Answer(values=values, warnings=workload.warnings, boot=boot))
    except GuestmarkError as error:
        console = error.console if isinstance(error, MachineError) else ""
        answer = {"error": error.message, "hint": error.hint, "console": console}
    sys.stdout.write(json.dumps(answer) + "\n")


def _loopback_up() -> None:
    """A guest without network has a loopback interface that is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _UP_RUNNING))


_NONE: Any = None  # this workload's machine needs no platform
