"""Whether the guest's flushes reached the host, decided from evidence and not from options.

UML has no monitor, and QEMU's nvme device does not count flushes. What becomes of a flush request there is seen once
for each program and kind of disk, outside any timing: one block is written and flushed in the guest while `strace`
watches the processes that do its disks' input and output.
"""

from __future__ import annotations

import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.core.errors import AgentError
from guestmark.core.findings import Durability, Reached
from guestmark.disks import stack
from guestmark.platforms.place import HERE
from guestmark.setting.drive import Aio, Bus
from guestmark.setting.filesystem import Filesystem

if TYPE_CHECKING:
    from guestmark.disks.attached import AttachedDisk
    from guestmark.platforms.base import Machine
    from guestmark.platforms.place import Beside, Place

_ATTACH_S = 5.0
_seen: dict[tuple[object, ...], Verdict] = {}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`why` is one line; `word` says how sure it is."""

    reached: Reached
    why: str
    word: Durability


def _unknown(why: str) -> Verdict:
    return Verdict(Reached.UNKNOWN, why, Durability.UNKNOWN)


_NONE_SENT = Verdict(Reached.NO, "the guest's kernel sent no flush to its disk", Durability.NOTHING)


def judge(
    machine: Machine,
    disk: AttachedDisk,
    guest_flushes: int | None,
    host_flushes: int | None,
    *,
    flushed: bool = True,
) -> Verdict:
    """The verdict on the flushes between two readings of the counters; `flushed`: whether the workload asks for any.

    What is below the place where the image is, and drops flushes or is memory, decides before all else.
    """
    if (settled := _uncounted(machine, disk, flushed=flushed)) is not None:
        return settled
    if guest_flushes is None:
        return _unknown("the guest's kernel does not count flushes")
    if _counts(machine, disk):
        assert machine.query is not None
        blocks = machine.query("query-block")
        verdict = of_qemu(blocks, disk.spec.name, guest_flushes, host_flushes)
    elif guest_flushes == 0:
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
    how = _seen_once(machine, disk)
    return Verdict(how.reached, f"{guest_flushes} sent by the guest; {how.why}", how.word)


def _uncounted(machine: Machine, disk: AttachedDisk, *, flushed: bool) -> Verdict | None:
    """The verdict where no counter of a disk decides; None where one does."""
    if machine.place is HERE and (below := stack.volatile(stack.layers(disk.spec.location))) is not None:
        word = Durability.MEMORY if below.loses is stack.Loses.MEMORY else Durability.LOST
        return Verdict(Reached.NO, str(below), word)
    if machine.vmm_pid is None and not disk.spec.loop:
        if not flushed:
            return Verdict(Reached.NO, "the workload asks for no flush", Durability.NOTHING)
        return Verdict(Reached.YES, "the host's kernel flushes its own filesystem", Durability.REACHED)
    if disk.spec.shared:
        if not flushed:
            return Verdict(Reached.NO, "the workload asks for no flush", Durability.NOTHING)
        return _seen_once(machine, disk)
    return None


def _counts(machine: Machine, disk: AttachedDisk) -> bool:
    """Whether the hypervisor has counters of the disk: it does its requests itself, and has a monitor."""
    return machine.query is not None and disk.spec.bus is not Bus.VHOST_USER


def of_qemu(
    blocks: list[dict[str, object]], name: str, guest_flushes: int, host_flushes: int | None
) -> Verdict | None:
    """The verdict from `query-block` and the counters; None when QEMU has not counted (`host_flushes` None)."""
    cache: dict[str, bool] = {}
    for entry in blocks:
        inserted = entry.get("inserted")
        if entry.get("device") == name and isinstance(inserted, dict):
            cache = inserted["cache"]
    if cache.get("no-flush"):
        why = f"{guest_flushes} sent by the guest; QEMU drops them (cache.no-flush)"
        return Verdict(Reached.NO, why, Durability.LOST)
    if not cache.get("writeback", True):
        return Verdict(Reached.YES, "QEMU flushes after every write (no write-back)", Durability.CLAIMED)
    if guest_flushes == 0:
        return _NONE_SENT
    if host_flushes is None:
        return None
    reached = Reached.YES if host_flushes >= guest_flushes else Reached.NO
    why = f"{guest_flushes} sent by the guest, {host_flushes} passed on by QEMU"
    return Verdict(reached, why, Durability.CLAIMED if reached is Reached.YES else Durability.LOST)


def _seen_once(machine: Machine, disk: AttachedDisk) -> Verdict:
    pid = machine.vmm_pid
    assert pid is not None
    try:
        # Outer guests have this host's root, so the program is the same one.
        program = Path(machine.place.links(f"/proc/{pid}/exe")[0])
        stamp = program.stat()
    except (OSError, IndexError):
        return _unknown("the hypervisor has ended")
    spec = disk.spec
    if spec.aio is Aio.IO_URING:
        return _unknown("QEMU does not count them, and strace does not see what passes through a ring")
    key = (str(program), stamp.st_mtime_ns, stamp.st_size, spec.levels)
    if key not in _seen:
        verdict = _watch(machine, disk, pid)
        if verdict.reached is Reached.UNKNOWN:
            return verdict
        _seen[key] = verdict
    return _seen[key]


def _watch(machine: Machine, disk: AttachedDisk, pid: int) -> Verdict:
    """Writes and flushes one block in the guest and observes whether the host is asked to flush."""
    if shutil.which("strace") is None:
        return _unknown("the hypervisor does not count what it passes on, and strace is not installed")
    place, watched = machine.place, _watched(machine, disk, pid)
    if not watched:
        return _unknown("UML's disk process was not found")
    # UML itself, which serves hostfs, starts processes that only it may trace.
    following = [] if disk.spec.filesystem is Filesystem.HOSTFS else ["-f"]
    command = ["strace", *following, "-e", "trace=fsync,fdatasync,sync_file_range"]
    for process in watched:
        command += ["-p", str(process)]
    trace = place.beside(command)
    said = ""
    try:
        if not _attached(place, trace, watched):
            return _unknown("strace may not watch the hypervisor here")
        probe = f"{disk.directory}/.guestmark-flush"
        try:
            machine.agent.write_file(probe, b"x" * 4096, fsync=True)
            machine.agent.flush(probe)
            machine.agent.remove(probe)
        except AgentError as error:
            return _unknown(f"no block could be flushed to see: {error.message}")
    finally:
        said = trace.end(signal.SIGINT, _ATTACH_S)
    return _told(disk, said)


def _watched(machine: Machine, disk: AttachedDisk, pid: int) -> list[int]:
    """The processes that do the disk's input and output."""
    if disk.spec.shared:
        return [disk.server or pid]
    if _counts(machine, disk):
        return [pid]
    # UML is busy tracing others; its disks are done by a child, as are those that are served over vhost-user.
    place = machine.place
    return [process for process in place.descendants(pid) if _untraced(place, process)]


def _told(disk: AttachedDisk, said: str) -> Verdict:
    """What strace's output says."""
    who = "virtiofsd" if disk.server else "the hypervisor"
    if not any("sync(" in line or "sync_file_range(" in line for line in said.splitlines()):
        return Verdict(Reached.NO, f"{who} makes no fsync of them (watched with strace)", Durability.LOST)
    what = "each an fsync of the host's file" if disk.spec.shared else "them fdatasync of the image"
    return Verdict(Reached.YES, f"{who} makes {what} (seen with strace)", Durability.REACHED)


def _attached(place: Place, trace: Beside, watched: list[int]) -> bool:
    deadline = time.monotonic() + _ATTACH_S
    while time.monotonic() < deadline and trace.running():
        if not any(_untraced(place, process) for process in watched):
            return True
        time.sleep(0.01)
    return False


def _untraced(place: Place, pid: int) -> bool:
    """Whether the process is not being traced: UML itself traces those that run the guest's programs."""
    try:
        return "\nTracerPid:\t0\n" in place.read(f"/proc/{pid}/status")
    except OSError:
        return False
