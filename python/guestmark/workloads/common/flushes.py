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

if TYPE_CHECKING:
    from guestmark.disks.attached import AttachedDisk
    from guestmark.platforms.base import Machine
    from guestmark.platforms.place import Beside, Place

_ATTACH_S = 5.0
_seen: dict[tuple[object, ...], Verdict] = {}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reached` is yes, no or unknown; `why` is one line."""

    reached: str
    why: str


def judge(
    machine: Machine, disk: AttachedDisk, guest_flushes: int | None, host_flushes: int | None
) -> Verdict:
    """The verdict on the flushes between two readings of the counters."""
    if machine.vmm_pid is None and not disk.spec.loop:
        return Verdict("yes", "the host flushes its own filesystem")
    if guest_flushes is None:
        return Verdict("unknown", "the guest's kernel does not count flushes")
    if machine.query is not None:
        blocks = machine.query("query-block")
        verdict = of_qemu(blocks, disk.spec.name, guest_flushes, host_flushes)
    elif guest_flushes == 0:
        verdict = Verdict("no", "the guest's kernel sent no flush to its disk")
    elif disk.spec.loop:
        verdict = Verdict(
            "yes", f"{guest_flushes} sent by the filesystem; the loop device syncs the image for each"
        )
    else:
        verdict = None
    if verdict is not None:
        return verdict
    how = _seen_once(machine, disk)
    return Verdict(how.reached, f"{guest_flushes} sent by the guest; {how.why}")


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
        return Verdict("no", f"{guest_flushes} sent by the guest; QEMU drops them (cache.no-flush)")
    if not cache.get("writeback", True):
        return Verdict("yes", "QEMU flushes after every write (no write-back)")
    if guest_flushes == 0:
        return Verdict("no", "the guest's kernel sent no flush to its disk")
    if host_flushes is None:
        return None
    reached = "yes" if host_flushes >= guest_flushes else "no"
    return Verdict(reached, f"{guest_flushes} sent by the guest, {host_flushes} passed on by QEMU")


def _seen_once(machine: Machine, disk: AttachedDisk) -> Verdict:
    pid = machine.vmm_pid
    assert pid is not None
    try:
        # Outer guests have this host's root, so the program is the same one.
        program = Path(machine.place.links(f"/proc/{pid}/exe")[0])
        stamp = program.stat()
    except (OSError, IndexError):
        return Verdict("unknown", "the hypervisor has ended")
    spec = disk.spec
    if spec.aio == "io_uring":
        return Verdict(
            "unknown", "QEMU does not count them, and strace does not see what passes through a ring"
        )
    key = (str(program), stamp.st_mtime_ns, stamp.st_size, spec.bus, spec.aio, spec.cache)
    if key not in _seen:
        verdict = _watch(machine, disk, pid)
        if verdict.reached == "unknown":
            return verdict
        _seen[key] = verdict
    return _seen[key]


def _watch(machine: Machine, disk: AttachedDisk, pid: int) -> Verdict:
    """Writes and flushes one block in the guest and observes whether the host is asked to flush."""
    if shutil.which("strace") is None:
        return Verdict(
            "unknown", "the hypervisor does not count what it passes on, and strace is not installed"
        )
    # The main process of UML is busy tracing others; its disks are done by a child.
    place = machine.place
    watched = (
        [pid]
        if machine.query
        else [process for process in place.descendants(pid) if _untraced(place, process)]
    )
    if not watched:
        return Verdict("unknown", "UML's disk process was not found")
    command = ["strace", "-f", "-e", "trace=fsync,fdatasync,sync_file_range"]
    for process in watched:
        command += ["-p", str(process)]
    trace = place.beside(command)
    said = ""
    try:
        if not _attached(place, trace, watched):
            return Verdict("unknown", "strace may not watch the hypervisor here")
        probe = f"{disk.directory}/.guestmark-flush"
        try:
            machine.agent.write_file(probe, b"x" * 4096, fsync=True)
            machine.agent.flush(probe)
            machine.agent.remove(probe)
        except AgentError as error:
            return Verdict("unknown", f"no block could be flushed to see: {error.message}")
    finally:
        said = trace.end(signal.SIGINT, _ATTACH_S)
    if any("sync(" in line or "sync_file_range(" in line for line in said.splitlines()):
        return Verdict("yes", "the hypervisor makes them fdatasync of the image (seen with strace)")
    return Verdict("no", "the hypervisor makes no fsync of them (watched with strace)")


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
