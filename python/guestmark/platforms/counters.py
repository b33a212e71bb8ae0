"""Reads a hypervisor's counters, which explain its times. All are cumulative: use the difference of two readings.

| name | of | meaning |
| --- | --- | --- |
| `kvm_exits` | KVM | exits from the guest, of all virtual processors |
| `kvm_*` | KVM | exits by kind and reason, named as in KVM's own statistics |
| `tcg_blocks`, `tcg_code_bytes` | TCG | translated blocks and the size of their code; reset to 0 by a flush |
| `tcg_invalidations`, `tcg_flushes` | TCG | blocks dropped because their code was modified; drops of all blocks |
| `tcg_tlb_flushes` | TCG | full and partial flushes of an emulated TLB |
| `uml_stops` | UML | number of times that the kernel resumed a process of its guest and waited until it stopped |
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from guestmark.agent import syscalls
from guestmark.agent.confinement import STOPS_FILE
from guestmark.agent.wire import COMPUTE
from guestmark.core import procfs
from guestmark.core.cause import Cause
from guestmark.core.errors import MachineError
from guestmark.disks import processes
from guestmark.page import figures
from guestmark.platforms.base import Machine
from guestmark.platforms.place import HERE, Place
from guestmark.platforms.qmp import UnknownCommandError, require_shape

Query = Callable[..., Any]
# The clock of a process's processor time; see Linux, include/linux/posix-timers.h.
_CPUCLOCK_SCHED = 2
_KVM_COUNTERS = frozenset(
    {"exits", "pf_taken", "pf_fixed", "tlb_flush", "invlpg", "insn_emulation", "hypercalls"}
)
_TCG_COUNTERS = {
    "gen code size": "tcg_code_bytes",
    "TB count": "tcg_blocks",
    "TB flush count": "tcg_flushes",
    "TB invalidate count": "tcg_invalidations",
    "TLB full flushes": "tcg_tlb_flushes",
    "TLB partial flushes": "tcg_tlb_flushes",
}
_DEBUGFS = Path("/sys/kernel/debug/kvm")
# Headings of the counters in tables.
COLUMN_NAMES = {
    "kvm_exits": "exits",
    "uml_stops": "stops",
    "tcg_tlb_flushes": "flushes",
    "tcg_blocks": "blocks",
}
COLUMN_MEANINGS = {
    "exits": "exits from the guest to KVM",
    "stops": "ptrace stops",
    "flushes": "flushes of an emulated TLB",
    "blocks": "blocks of code that TCG translated",
}
KVM_PREFIX = "kvm_"
# Kinds of exits with a smaller share of all exits are not named.
_NOTABLE_SHARE = 0.02


def read_guest_counters(
    pid: int | None, query: Query | None, place: Place = HERE, scratch: Path | None = None
) -> dict[str, float]:
    """Returns the counters of the hypervisor with process id `pid` at `place`.

    With a monitor it is QEMU, otherwise UML or a small hypervisor. `scratch` is the hypervisor's directory. Unknown
    counters are absent. Raises `MachineError` if the monitor does not answer.
    """
    if query is None:
        if scratch and (found := read_uml_stops(scratch, place)):
            return found
        if place is HERE:
            return _read_debugfs(pid, _DEBUGFS)
        return {}
    # A hypervisor elsewhere has a process id of that machine.
    if place is not HERE:
        pid = None
    with require_shape():
        return read_kvm_counters(query, pid) or read_tcg_counters(query)


def drop_restarted(advanced: Mapping[str, float]) -> dict[str, float]:
    """Returns differences of two readings without counters that were reset in between.

    When its buffer is full, TCG drops all blocks and resets the counters of translated blocks.
    """
    kept = dict(advanced)
    if kept.get("tcg_flushes"):
        kept.pop("tcg_blocks", None)
        kept.pop("tcg_code_bytes", None)
    return kept


_BACKGROUND_S = 1.0
# guestmark's counter of the guest's timer interrupts, beside the hypervisor's counters.
_TICKS = "ticks"
_FEWEST_TICKS = 20
# Exits for interrupts of the host's kernel. Their number depends on how much of the time the guest runs, so it cannot
# be estimated from another measurement; KVM counts them separately.
_INTERRUPTS = ("kvm_irq_exits", "kvm_irq_window_exits")


def count_with_ticks(machine: Machine) -> dict[str, float]:
    """Returns the machine's counters, with its number of timer interrupts. Raises `MachineError`."""
    ticks = 0
    for line in machine.agent.read_file("/proc/interrupts").decode(errors="replace").splitlines():
        name, _, counts = line.partition(":")
        # LOC is the local timer of x86; other architectures name a timer at the end of its line.
        if name.strip() == "LOC" or counts.rstrip().endswith("timer"):
            ticks += sum(int(word) for word in counts.split() if word.isdecimal())
    return {**machine.counters(), _TICKS: float(ticks)}


def measure_per_tick(machine: Machine) -> dict[str, float]:
    """Returns the hypervisor's counts per timer interrupt of the guest, without interrupts of the host's kernel.

    During the measurement the agent computes on one of the guest's processors without system calls, so that timer
    interrupts are the only cause. Empty if the guest has hardly any. Raises `GuestmarkError` if the machine has ended.
    """
    _, computing = syscalls.measure_syscalls(
        machine.agent,
        operations=1,
        time_s=_BACKGROUND_S,
        names=[COMPUTE],
        counters=lambda: count_with_ticks(machine),
        timeout_s=_BACKGROUND_S * 20 + 60,
    )
    ticks = computing.counted.get(_TICKS, 0.0)
    if ticks < _FEWEST_TICKS:
        return {}
    caused = subtract_interrupts(drop_restarted(computing.counted))
    return {name: value / ticks for name, value in caused.items()}


def subtract_ticks(counted: Mapping[str, float], each: Mapping[str, float]) -> dict[str, float]:
    """Returns the counts of `count_with_ticks` without those caused by timer and host interrupts.

    `each` is the result of `measure_per_tick`.
    """
    ticks = counted.get(_TICKS, 0.0)
    rest = {}
    for name, value in subtract_interrupts(counted).items():
        if name != _TICKS:
            rest[name] = max(0.0, value - ticks * each.get(name, 0.0))
    return rest


def subtract_interrupts(counted: Mapping[str, float]) -> dict[str, float]:
    """Returns the counts without exits that were caused by interrupts of the host's kernel."""
    rest = {name: value for name, value in counted.items() if name not in _INTERRUPTS}
    if "kvm_exits" in rest:
        rest["kvm_exits"] -= sum(counted.get(name, 0.0) for name in _INTERRUPTS)
    return rest


_STOPS_BYTES = 8


def read_uml_stops(scratch: Path, place: Place = HERE) -> dict[str, float]:
    """Returns how often UML's kernel resumed a process, as counted by the library that the agent preloads into UML.

    Each request is one stop, whichever of the two processes ran first. Empty if none was counted: a statically linked
    kernel does not load the library, and one that does not use ptrace makes no such requests.
    """
    with contextlib.suppress(OSError):
        content = place.read_bytes(f"{scratch}/{STOPS_FILE}")
        if len(content) == _STOPS_BYTES and (stops := int.from_bytes(content, sys.byteorder)):
            return {"uml_stops": float(stops)}
    return {}


def read_kvm_counters(query: Query, pid: int | None, debugfs: Path = _DEBUGFS) -> dict[str, float]:
    """Returns KVM's statistics from QEMU's monitor, or from debugfs if QEMU is older than 7.1. Empty without KVM."""
    totals: dict[str, float] = {}
    try:
        answer = query("query-stats", {"target": "vcpu"})
    except UnknownCommandError:
        return _read_debugfs(pid, debugfs)
    for processor in answer:
        for counter in processor["stats"]:
            if _is_counted(counter["name"]) and isinstance(counter["value"], int):
                key = f"kvm_{counter['name']}"
                totals[key] = totals.get(key, 0.0) + counter["value"]
    return totals


def _read_debugfs(pid: int | None, debugfs: Path) -> dict[str, float]:
    """Returns the same counts from the directory `PID-FD` that KVM has for each machine; only root may read it."""
    totals: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError):
        for folder in debugfs.glob(f"{pid}-*"):
            for file in folder.iterdir():
                if _is_counted(file.name) and file.is_file():
                    totals[f"kvm_{file.name}"] = float(file.read_text())
    return totals


def _is_counted(name: str) -> bool:
    return name in _KVM_COUNTERS or name.endswith("_exits")


def read_tcg_counters(query: Query) -> dict[str, float]:
    """Returns TCG's counts of translations and flushes. Empty if QEMU does not report them or does not use TCG."""
    try:
        text = query("x-query-jit")["human-readable-text"]
    except UnknownCommandError:
        text = query("human-monitor-command", {"command-line": "info jit"})
    except MachineError as error:
        if error.cause is Cause.NO_TRANSLATION:
            return {}
        raise
    totals: dict[str, float] = {}
    for name, key in _TCG_COUNTERS.items():
        if match := re.search(rf"^{name}\s+(\d+)", text, re.MULTILINE):
            totals[key] = totals.get(key, 0.0) + float(match.group(1))
    return totals


def read_processor_s(pid: int | None) -> float | None:
    """Returns the processor seconds of a process on this host and its descendants; None if it has ended.

    The resolution is one nanosecond for running processes, and one clock tick for children that have ended.
    """
    if pid is None:
        return None
    total = None
    for member in (pid, *processes.list_descendants(pid)):
        with contextlib.suppress(OSError, IndexError, ValueError):
            total = (total or 0.0) + _read_process_s(member)
    return total


def read_vhost_s(pid: int) -> float:
    """Returns the processor seconds of the kernel threads that carry the traffic of a process on this host.

    Since Linux 6.4 they are threads of that process, so its own time includes them, and this is 0.
    """
    total = 0.0
    for thread in procfs.list_processes():
        if procfs.read_text(f"/proc/{thread}/comm").strip() == f"vhost-{pid}":
            first, *_ = procfs.read_text(f"/proc/{thread}/schedstat").split() or ["0"]
            total += int(first) / 1e9
    return total


def _read_process_s(pid: int) -> float:
    fields = processes.read_status(pid)
    # cutime and cstime, the processor time of children that have been waited for.
    ticks = int(fields[13]) + int(fields[14])
    # The id of a process's clock has the complement of the process id in its upper bits; see the kernel's
    # MAKE_PROCESS_CPUCLOCK.
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED) + ticks / os.sysconf("SC_CLK_TCK")


def describe_kinds(counted: Mapping[str, float]) -> str:
    """Returns the kinds of exits with a notable share of all exits, the most frequent first."""
    every = counted.get("kvm_exits", 0.0)
    notable = []
    for name, value in counted.items():
        is_kind = name.startswith(KVM_PREFIX) and name != "kvm_exits"
        if is_kind and value >= _NOTABLE_SHARE * every > 0:
            notable.append((value, name.removeprefix(KVM_PREFIX)))
    notable.sort(reverse=True)
    return ", ".join(f"{name} {figures.format_number(value, int(value < 1000))}" for value, name in notable)
