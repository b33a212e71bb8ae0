"""Where machines ran and where their disks were, in words: from what the trials found out."""

from collections.abc import Iterable

from guestmark.core.findings import Build, Facts, Flushes, Program, Storage, WorkingDirectory
from guestmark.core.machine_facts import (
    GuestMachine,
    HostMachine,
    Inside,
    NestedMachine,
    Placed,
    RemoteMachine,
    attested_placement,
)
from guestmark.core.model import Trial, TrialStatus
from guestmark.core.units import counted
from guestmark.stats.analysis import CellResult
from guestmark.workloads.netboot import Netboot
from guestmark.workloads.syscalls import Syscalls

_OPTIONS = 60  # characters of mount options; trials have them all


def placement(trials: Iterable[Trial]) -> str:
    """`pinned: 1 processor each, CPU 1; control plane CPU 0`; several when they differ, empty when nobody looked."""
    emulators: dict[
        tuple[str, str], dict[str, None]
    ] = {}  # where their own threads are, by what else is said
    for trial in trials:
        where = attested_placement(trial.facts)
        if where is not None:
            own = emulators.setdefault(_words(where), {})
            if where.emulator != where.machine:
                own[where.emulator] = None
    return "; or ".join(
        head + (f"; emulators' own threads CPU {' or '.join(own)}" if own else "") + tail
        for (head, tail), own in emulators.items()
    )


def storage(result: CellResult) -> str:
    """`on /var/tmp: ext4`, `on /dev/shm: memory`; empty for cells without disks."""
    return ", ".join(dict.fromkeys(said for trial in result.trials for said in _stored(trial, result)))


def ran_on(result: CellResult) -> str:
    """`/dev/vda, ext4 (rw,relatime)`, as the kernels of its machines said; empty where no directory was looked at."""
    return " or ".join(
        dict.fromkeys(
            f"{found.source}, {found.filesystem} ({_shortened(found.options)})"
            for trial in result.trials
            if (found := trial.facts.of(WorkingDirectory)) is not None
        )
    )


def processors(result: CellResult) -> int | None:
    """How many the cell's machines had; None when that is not known or not always the same."""
    found = {
        number
        for trial in result.trials
        if trial.status is TrialStatus.OK and (number := _processors(trial.facts))
    }
    return found.pop() if len(found) == 1 else None


def build(result: CellResult) -> str:
    """Which binaries were run: `arm64, another build`, or the host's; empty where no program was."""
    said = {
        f"{found.architecture}, {found.said.partition(':')[0]}" if found else "the host's"
        for trial in result.trials
        for found in [trial.facts.of(Build)]
        if found or trial.facts.of(Program) or trial.facts.of(Syscalls)
    }
    return " or ".join(sorted(said))


def guest_of(facts: Facts) -> Inside | None:
    """What is known of the innermost guest; of one that was booted inside by firmware, nothing."""
    nested, netboot = facts.of(NestedMachine), facts.of(Netboot)
    if netboot is not None and netboot.inner is not None:
        return None
    found = nested.inner if nested is not None else facts.of(GuestMachine)
    return None if found is None else found.guest


def _words(where: Placed) -> tuple[str, str]:
    """What is said before and after where the emulator's own threads are."""
    if where.level == "free":
        return f"free: anywhere on CPU {where.machine}", ""
    number = where.processors
    head = f"{where.level}: {counted(number, 'processor')} each, CPU {where.machine}"
    return head, "; ".join(["", f"control plane CPU {where.control}", *(where.remarks or ())])


def _stored(trial: Trial, result: CellResult) -> list[str]:
    stored = trial.facts.of(Storage)
    if stored is not None:
        return [
            f"on {disk.location}: {'memory' if disk.in_memory else disk.filesystem}"
            for disk in stored.disks.values()
        ]
    flushes = trial.facts.of(Flushes)  # of trials before there was `Storage`
    if flushes is not None and flushes.in_memory:
        return [f"on {result.cell.factors.get('location', '/dev/shm')}: memory"]
    return []


def _shortened(options: str) -> str:
    return options if len(options) <= _OPTIONS else f"{options[:_OPTIONS].rpartition(',')[0]},…"


def _processors(facts: Facts) -> int | None:
    guest, host = guest_of(facts), facts.of(HostMachine) or facts.of(RemoteMachine)
    return guest.processors if guest is not None else host.processors if host is not None else None
