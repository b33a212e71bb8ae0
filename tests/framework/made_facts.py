"""Facts of trials in the form in which they are recorded; values that do not matter are filled in."""

import importlib
import pkgutil
from collections.abc import Sequence

import guestmark.workloads
from guestmark.core.findings import Fact, Facts, Findings, Flushes, Program
from guestmark.core.machine_facts import Connection, GuestMachine, Inside, MachineFacts, RemoteMachine
from guestmark.workloads.syscalls import Call


def of(*facts: Fact) -> Facts:
    """Return facts as a trial stores them."""
    findings = Findings()
    for fact in facts:
        findings.add(fact)
    return findings.facts()


def program(sha256: str, host_sha256: str = "a" * 64) -> Program:
    return Program(path="/bin/x", sha256=sha256, host_path="/bin/x", host_sha256=host_sha256)


def guest(flags_missing: Sequence[str] = ()) -> GuestMachine:
    inside = Inside(
        kernel="6.1.0",
        root="overlay",
        arch="x86_64",
        boot_id="1",
        cpu="QEMU",
        processors=1,
        memory_bytes=1 << 30,
        clocksource="tsc",
        cpu_flags_missing=list(flags_missing),
        cpu_flags_more=[],
    )
    return GuestMachine(asked={}, guest=inside)


def remote(mitigations: dict[str, str], fresh: str = "") -> RemoteMachine:
    return RemoteMachine(
        dest="lab1",
        machine="1",
        kernel="6.1.0",
        arch="x86_64",
        boot_id="1",
        processors=2,
        cpu="Core <5>",
        memory_bytes=1 << 30,
        clocksource="tsc",
        hypervisor="none",
        mitigations=mitigations,
        fresh=fresh,
        connection=Connection(round_trip_ns=100_000),
    )


def flushes(reached: str) -> Flushes:
    return Flushes(reached=reached, why="as counted", in_memory=False)


def call(median_ns: float, **counted: float) -> Call:
    return Call(
        operations=20,
        batches=1,
        elapsed_s=0.1,
        guest_cpu_s=0.1,
        median_ns=median_ns,
        lowest_ns=median_ns,
        loop_ns=0.0,
        clock_ns=0.0,
        per_operation=counted,
    )


def every_kind() -> list[type[Fact]]:
    """Return all types of facts of guestmark and its workloads, except the abstract `MachineFacts`."""
    for module in pkgutil.walk_packages(guestmark.workloads.__path__, "guestmark.workloads."):
        importlib.import_module(module.name)
    found, left = [], [Fact]
    while left:
        children = left.pop().__subclasses__()
        found += children
        left += children
    return [kind for kind in found if kind is not MachineFacts]
