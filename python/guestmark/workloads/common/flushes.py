"""Measures the I/O that a disk workload caused on the layers below it, and whether its flushes reached the host.

Counters of the hypervisor and the guest's kernel are read before and after; the verdict follows from them, never from
options. UML has no monitor, and QEMU's nvme device does not count flushes. For these, one flush is observed for each
program and kind of disk, outside any timing: one block is written and flushed in the guest while `strace` watches the
processes that do the disk's input and output.

Sources: QMP `query-blockstats` and `query-block` (QEMU's block/accounting.c), `/proc/PID/io` of the hypervisor's
processes, the guest's `/sys/block/*/stat` (kernel's Documentation/block/stat.rst) and `/proc/stat`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guestmark.agent.results import CallError
from guestmark.core.errors import AgentError
from guestmark.core.findings import Durability, Findings, Flushes, Reached
from guestmark.core.metric import Measurement, Metric
from guestmark.disks import stack
from guestmark.disks.attached import AttachedDisk
from guestmark.disks.daemon import DAEMON
from guestmark.disks.location import is_in_memory
from guestmark.disks.traffic import read_block_columns
from guestmark.platforms.base import Machine, find_innermost
from guestmark.platforms.place import HERE, HelperProgram, Place
from guestmark.setting.disk import Role
from guestmark.setting.drive import Aio, Bus
from guestmark.setting.filesystem import Filesystem
from guestmark.workloads.common import metrics

_ATTACH_S = 5.0
_seen: dict[tuple[object, ...], Verdict] = {}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether flushes reached the host: `word` is the verdict, `why` its reason in one line."""

    reached: Reached
    why: str
    word: Durability


def _make_unknown_verdict(why: str) -> Verdict:
    return Verdict(Reached.UNKNOWN, why, Durability.UNKNOWN)


_NONE_SENT = Verdict(Reached.NO, "the guest's kernel sent no flush to its disk", Durability.NOTHING)


def judge_flushes(
    machine: Machine,
    disk: AttachedDisk,
    guest_flushes: int | None,
    host_flushes: int | None,
    *,
    flushed: bool | None = True,
) -> Verdict:
    """Returns the verdict on the flushes between two readings of the counters.

    `flushed` tells whether the workload requests flushes; None if only a counter can tell. A layer below the image that
    drops flushes, or is in memory, decides before anything else.
    """
    if (settled := _judge_without_counters(machine, disk, flushed=flushed)) is not None:
        return settled
    if guest_flushes is None:
        return _make_unknown_verdict("the guest's kernel does not count flushes")
    if _has_counters(machine, disk):
        assert machine.query is not None
        blocks = machine.query("query-block")
        verdict = judge_qemu_counters(blocks, disk.spec.name, guest_flushes, host_flushes)
    # To a disk that shows no write cache the guest's kernel sends no flush; what serves it flushes every write.
    elif guest_flushes == 0 and not disk.spec.cache.writethrough:
        verdict = _NONE_SENT
    elif disk.spec.loop:
        verdict = Verdict(
            Reached.YES,
            f"{guest_flushes} sent by the filesystem; the host's loop device syncs the image for each",
            Durability.REACHED,
        )
    else:
        verdict = None
    if verdict is not None:
        return verdict
    how = _watch_flush_once(machine, disk)
    sent = "the guest sends none, as every write is flushed"
    if guest_flushes:
        sent = f"{guest_flushes} sent by the guest"
    return Verdict(how.reached, f"{sent}; {how.why}", how.word)


def _judge_without_counters(machine: Machine, disk: AttachedDisk, *, flushed: bool | None) -> Verdict | None:
    """Returns the verdict on disks for which no counter is needed; None for the others."""
    if (
        machine.place is HERE
        and (below := stack.find_volatile_layer(stack.list_layers(disk.spec.location))) is not None
    ):
        word = Durability.MEMORY if below.loses is stack.Loses.MEMORY else Durability.LOST
        return Verdict(Reached.NO, str(below), word)
    own = machine.vmm_pid is None and not disk.spec.loop
    if not own and not disk.spec.is_directory:
        return None
    if flushed is None:
        return _make_unknown_verdict("the command's flushes are not counted here; --prove observes them")
    if not flushed:
        return Verdict(Reached.NO, "the workload requests no flush", Durability.NOTHING)
    if own:
        return Verdict(Reached.YES, "the host's kernel flushes its own filesystem", Durability.REACHED)
    return _watch_flush_once(machine, disk)


def _has_counters(machine: Machine, disk: AttachedDisk) -> bool:
    """Returns whether the hypervisor counts the disk's requests: it issues them itself and has a monitor."""
    return machine.query is not None and disk.spec.bus is not Bus.VHOST_USER


def judge_qemu_counters(
    blocks: list[dict[str, object]], name: str, guest_flushes: int, host_flushes: int | None
) -> Verdict | None:
    """Returns the verdict from `query-block` and the counters; None if QEMU did not count (`host_flushes` is None)."""
    cache: dict[str, bool] = {}
    for entry in blocks:
        inserted = entry.get("inserted")
        if entry.get("device") == name and isinstance(inserted, dict):
            cache = inserted["cache"]
    if cache.get("no-flush"):
        why = f"{guest_flushes} sent by the guest; QEMU drops them (cache.no-flush)"
        return Verdict(Reached.NO, why, Durability.LOST)
    if not cache.get("writeback", True):
        return Verdict(
            Reached.YES, "QEMU flushes after every write (its cache is write-through)", Durability.CLAIMED
        )
    if guest_flushes == 0:
        return _NONE_SENT
    if host_flushes is None:
        return None
    reached = Reached.YES if host_flushes >= guest_flushes else Reached.NO
    why = f"{guest_flushes} sent by the guest, {host_flushes} passed on by QEMU"
    return Verdict(reached, why, Durability.CLAIMED if reached is Reached.YES else Durability.LOST)


def _watch_flush_once(machine: Machine, disk: AttachedDisk) -> Verdict:
    pid = machine.vmm_pid
    assert pid is not None
    try:
        # Outer guests have this host's root, so the program is the same.
        program = Path(machine.place.read_links(f"/proc/{pid}/exe")[0])
        stamp = program.stat()
    except (OSError, IndexError):
        return _make_unknown_verdict("the hypervisor has ended")
    spec = disk.spec
    if spec.aio is Aio.IO_URING:
        return _make_unknown_verdict(
            "the hypervisor does not count flushes, and strace cannot see requests made through io_uring"
        )
    # A script that starts the program may pass it other options.
    by = tuple(word for word in machine.command_line if os.path.isfile(word) and os.access(word, os.X_OK))
    key = (str(program), stamp.st_mtime_ns, stamp.st_size, by, spec.levels)
    if key not in _seen:
        verdict = _watch_flush(machine, disk, pid)
        if verdict.reached is Reached.UNKNOWN:
            return verdict
        _seen[key] = verdict
    return _seen[key]


def _watch_flush(machine: Machine, disk: AttachedDisk, pid: int) -> Verdict:
    """Writes and flushes one block in the guest and observes whether the hypervisor asks the host to flush."""
    if shutil.which("strace") is None:
        return _make_unknown_verdict(
            "the hypervisor does not count the flushes that it passes on, and strace is not installed"
        )
    place, watched = machine.place, _find_io_processes(machine, disk, pid)
    if not watched:
        return _make_unknown_verdict("UML's disk process was not found")
    command = ["strace"]
    # UML itself, which serves hostfs, starts processes that no one else may trace.
    if disk.spec.filesystem is not Filesystem.HOSTFS:
        command.append("-f")
    command += ["-e", "trace=fsync,fdatasync,sync_file_range"]
    for process in watched:
        command += ["-p", str(process)]
    trace = place.start_helper(command)
    said = ""
    try:
        if not _wait_for_strace(place, trace, watched):
            return _make_unknown_verdict("strace is not permitted to trace the hypervisor here")
        probe = f"{disk.directory}/.guestmark-flush"
        try:
            machine.agent.write_file(probe, b"x" * 4096, fsync=True)
            machine.agent.flush(probe)
            machine.agent.remove(probe)
        except AgentError as error:
            return _make_unknown_verdict(
                f"cannot observe flushes, because the probe block could not be flushed: {error.message}"
            )
    finally:
        said = trace.end_by_signal(signal.SIGINT, _ATTACH_S)
    return _judge_trace(disk, said)


def _find_io_processes(machine: Machine, disk: AttachedDisk, pid: int) -> list[int]:
    """Returns the processes that do the disk's input and output."""
    if disk.spec.is_directory:
        return [disk.server or pid]
    if not _is_served_by_child(disk):
        return [pid]
    place = machine.place
    return [process for process in place.list_descendants(pid) if _is_untraced(place, process)]


def _is_served_by_child(disk: AttachedDisk) -> bool:
    """Returns whether a process other than the hypervisor's first one issues the disk's requests.

    User-Mode Linux's main process is busy tracing others, and vhost-user disks are served by a daemon.
    """
    return disk.spec.bus in {Bus.UBD, Bus.VHOST_USER}


def _judge_trace(disk: AttachedDisk, said: str) -> Verdict:
    """Returns the verdict from strace's output."""
    who = "virtiofsd" if disk.server else "the hypervisor"
    if "sync(" not in said and "sync_file_range(" not in said:
        return Verdict(Reached.NO, f"{who} calls no fsync for them (traced with strace)", Durability.LOST)
    what = "fsync on the host's file" if disk.spec.is_directory else "fdatasync on the image"
    return Verdict(Reached.YES, f"{who} calls {what} for each (traced with strace)", Durability.REACHED)


def _wait_for_strace(place: Place, trace: HelperProgram, watched: list[int]) -> bool:
    deadline = time.monotonic() + _ATTACH_S
    while time.monotonic() < deadline and trace.is_running():
        if not any(_is_untraced(place, process) for process in watched):
            return True
        time.sleep(0.01)
    return False


def _is_untraced(place: Place, pid: int) -> bool:
    """Returns whether the process is untraced; UML itself traces those that run the guest's programs."""
    try:
        return "\nTracerPid:\t0\n" in place.read(f"/proc/{pid}/status")
    except OSError:
        return False


_SECTOR = 512
_USER_HZ = 100  # fixed in the kernel's interface


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the machine's start; None if unknown. The guest's counts cover its own disks only."""

    host_written: int | None = None
    host_writes: int | None = None
    host_read: int | None = None
    host_flushes: int | None = None
    guest_written: int | None = None
    guest_flushes: int | None = None
    guest_cpu_s: float | None = None
    vmm_cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Differences of counters over a period, and the verdict on flushes, which is None without a disk."""

    counters: Counters
    allocated_bytes: int | None = None
    flushes: Flushes | None = None

    def add_facts(self, facts: Findings) -> None:
        """Adds the verdict on flushes, if there is one."""
        if self.flushes is not None:
            facts.add(self.flushes)

    def to_measurements(self, amount: int) -> list[Measurement]:
        """Returns the known values as measurements; `amount` is the number of content bytes that were moved."""
        counted = self.counters
        megabytes = amount / 1e6
        values: list[tuple[Metric, float | None]] = [
            (metrics.HOST_WRITTEN, counted.host_written),
            (metrics.HOST_WRITES, counted.host_writes),
            (metrics.WRITES_PER_MB, _divide_if_known(counted.host_writes, megabytes)),
            (metrics.WRITE_AMPLIFICATION, _divide_if_known(counted.host_written, amount)),
            (metrics.HOST_READ, counted.host_read),
            (metrics.GUEST_FLUSHES, counted.guest_flushes),
            (metrics.HOST_FLUSHES, counted.host_flushes),
            (metrics.FLUSHES_PER_MB, _divide_if_known(counted.guest_flushes, megabytes)),
            (metrics.ALLOCATED, self.allocated_bytes),
            (metrics.GUEST_CPU, counted.guest_cpu_s),
            (metrics.VMM_CPU, counted.vmm_cpu_s),
        ]
        known = [(metric, float(value)) for metric, value in values if value is not None]
        return metrics.to_measurements(known)


@dataclass(frozen=True, slots=True)
class CounterReading:
    """A machine and its counters at the moment of the reading."""

    machine: Machine
    counters: Counters

    @classmethod
    def read_before(cls, machine: Machine) -> CounterReading:
        """Reads the counters, outside the timing."""
        machine = find_innermost(machine)
        return cls(machine, _count_writes_and_flushes(machine))

    def read_changes(self, *, flushed: bool | None = True) -> Changes:
        """Returns the changes since `read_before`; the image must have been flushed.

        `flushed` tells whether the workload reports that it requested a flush, which is the only source on the host
        itself; None if it reports nothing.
        """
        now = _count_writes_and_flushes(self.machine)
        changed: dict[str, Any] = {}
        for name in Counters.__slots__:
            start, end = getattr(self.counters, name), getattr(now, name)
            if start is not None and end is not None:
                changed[name] = end - start
        counters = Counters(**changed)
        target = next((disk for disk in self.machine.disks if disk.spec.role is Role.TARGET), None)
        if target is None:
            return Changes(counters)
        verdict = judge_flushes(
            self.machine, target, counters.guest_flushes, counters.host_flushes, flushed=flushed
        )
        mounts = None if self.machine.place is HERE else self.machine.place.read("/proc/self/mounts")
        kept = not is_in_memory(target.spec.location, mounts)
        found = Flushes(
            reached=verdict.reached,
            why=verdict.why,
            in_memory=not kept,
            durability=verdict.word if kept else Durability.MEMORY,
        )
        return Changes(counters, target.image.count_allocated_bytes(), found)


def _divide_if_known(value: float | None, of: float) -> float | None:
    return None if value is None or not of else value / of


def _count_writes_and_flushes(machine: Machine) -> Counters:
    if machine.vmm_pid is None:  # On the host itself only loop devices have counters.
        on_loop = any(disk.spec.loop for disk in machine.disks)
        written, flushed = _read_guest_counters(machine) if on_loop else (None, None)
        return Counters(guest_written=written, guest_flushes=flushed)
    stats = machine.vmm_stats()
    vmm_cpu_s = None
    if "vmm_user_s" in stats:
        beside = sum(_read_cpu_time(machine, process) for process in _find_daemons(machine, machine.vmm_pid))
        vmm_cpu_s = stats["vmm_user_s"] + stats["vmm_system_s"] + beside
    guest_written, guest_flushes = _read_guest_counters(machine)
    served = any(disk.spec.bus is Bus.VHOST_USER or disk.spec.is_directory for disk in machine.disks)
    if machine.query is not None and not served:
        names = {disk.spec.name for disk in machine.disks}
        host = _read_qemu_counters(machine.query, names)
    else:
        host = _read_process_counters(machine, machine.vmm_pid)
    if any(disk.spec.bus is Bus.NVME for disk in machine.disks):
        host["host_flushes"] = None  # QEMU's nvme device does not count flushes
    return Counters(
        **host,
        guest_written=guest_written,
        guest_flushes=guest_flushes,
        guest_cpu_s=read_guest_cpu_s(machine),
        vmm_cpu_s=vmm_cpu_s,
    )


def _read_qemu_counters(query: Any, names: Collection[str]) -> dict[str, int | None]:
    """Returns QEMU's counts of the guest's requests, summed over the drives with these names."""
    unsafe = set()
    for entry in query("query-block"):
        if entry.get("inserted", {}).get("cache", {}).get("no-flush"):
            unsafe.add(entry["device"])
    total = {"host_written": 0, "host_writes": 0, "host_read": 0, "host_flushes": 0}
    for drive in query("query-blockstats"):
        if drive.get("device") not in names:
            continue
        stats = drive["stats"]
        total["host_written"] += stats["wr_bytes"]
        total["host_writes"] += stats["wr_operations"]
        total["host_read"] += stats["rd_bytes"]
        # With cache.no-flush QEMU counts the guest's flushes but drops them.
        if drive["device"] not in unsafe:
            total["host_flushes"] += stats["flush_operations"]
    return {**total}


def _read_process_counters(machine: Machine, pid: int) -> dict[str, int | None]:
    """Returns the I/O that the hypervisor's processes passed to the host's kernel.

    This includes a few kilobytes for console and channel. It is unknown for processes that use io_uring, as the kernel
    does not attribute such requests to them.
    """
    unknown: dict[str, int | None] = {"host_written": None, "host_writes": None, "host_read": None}
    if any(disk.spec.aio is Aio.IO_URING for disk in machine.disks):
        return unknown
    total = {"wchar": 0, "syscw": 0, "rchar": 0}
    # Other descendants carry the channel and serve the root.
    children: list[int] = []
    if any(map(_is_served_by_child, machine.disks)):
        children = machine.place.list_descendants(pid)
    for process in _list_servers(machine) or (pid, *children):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            try:
                lines = machine.place.read(f"/proc/{process}/io").splitlines()
            except PermissionError:
                return unknown
            for line in lines:
                name, _, value = line.partition(": ")
                if name in total:
                    total[name] += int(value)
    return {"host_written": total["wchar"], "host_writes": total["syscw"], "host_read": total["rchar"]}


def _list_servers(machine: Machine) -> list[int]:
    return [disk.server for disk in machine.disks if disk.server is not None]


def _find_daemons(machine: Machine, pid: int) -> list[int]:
    """Returns the daemons that serve the machine's disks and directories; their work is part of the cost."""
    servers = _list_servers(machine)
    if any(disk.spec.bus is Bus.VHOST_USER for disk in machine.disks):
        for process in machine.place.list_descendants(pid):
            with contextlib.suppress(OSError):
                if DAEMON.startswith(machine.place.read(f"/proc/{process}/comm").strip()):
                    servers.append(process)
    return servers


def _read_cpu_time(machine: Machine, process: int) -> float:
    try:
        fields = machine.place.read(f"/proc/{process}/stat").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _USER_HZ


def _read_guest_counters(machine: Machine) -> tuple[int | None, int | None]:
    """Returns bytes written and flush requests sent to the guest's own disks, by its block layer's counts."""
    written, flushed = 0, 0
    for disk in machine.disks:
        fields = read_block_columns(machine, disk)
        if len(fields) < 17:  # a kernel before 5.5 does not count flushes
            return None, None
        written += fields[6] * _SECTOR
        flushed += fields[15]
    return written, flushed


def read_guest_cpu_s(machine: Machine) -> float | None:
    """Returns the seconds that the guest's processors were busy, including interrupts but not steal."""
    try:
        first = machine.agent.read_file("/proc/stat", limit=1 << 20).partition(b"\n")[0].split()
    except CallError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, *_ = (int(word) for word in first[1:])
    return (user + nice + system + irq + softirq) / _USER_HZ
