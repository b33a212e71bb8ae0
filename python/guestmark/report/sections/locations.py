"""Descriptions of where machines ran and where their disks were, from the facts of trials."""

from collections.abc import Iterable, Iterator

from guestmark.core.findings import Build, Facts, Flushes, Program, Storage, WorkingDirectory
from guestmark.core.machine_facts import (
    GuestMachine,
    HostMachine,
    Inside,
    NestedMachine,
    PlacementFacts,
    RemoteMachine,
    find_attested_placement,
)
from guestmark.core.model import Trial
from guestmark.core.units import format_count
from guestmark.stats.analysis import CellResult
from guestmark.workloads.netboot import Netboot
from guestmark.workloads.syscalls import Syscalls

# Longer mount options are shortened; the stored trials have all of them.
_MOST_OPTIONS = 60


def describe_placement(trials: Iterable[Trial]) -> str:
    """Return `pinned: 1 processor each, CPU 1; control plane CPU 0`; several when they differ, empty if unknown."""
    # Places of the emulators' own threads, by the rest of the placement.
    emulators: dict[tuple[str, str], dict[str, None]] = {}
    for trial in trials:
        placed = find_attested_placement(trial.facts)
        if placed is not None:
            threads = emulators.setdefault(_describe_processors(placed), {})
            if placed.emulator != placed.machine:
                threads[placed.emulator] = None
    texts = []
    for (head, tail), threads in emulators.items():
        own = f"; emulators' own threads CPU {' or '.join(threads)}" if threads else ""
        texts.append(f"{head}{own}{tail}")
    return "; or ".join(texts)


def describe_storage(result: CellResult) -> str:
    """Return `on /var/tmp: ext4` or `on /dev/shm: memory`; empty for cells without disks."""
    places: dict[str, None] = {}
    for trial in result.trials:
        places |= dict.fromkeys(_yield_storage_places(trial, result))
    return ", ".join(places)


def describe_working_directory(result: CellResult) -> str:
    """Return `/dev/vda, ext4 (rw,relatime)`, as the machines' kernels report it; empty if no directory was used."""
    mounts: dict[str, None] = {}
    for trial in result.trials:
        directory = trial.facts.find_fact(WorkingDirectory)
        if directory is not None:
            options = _shorten_options(directory.options)
            mounts[f"{directory.source}, {directory.filesystem} ({options})"] = None
    return " or ".join(mounts)


def count_processors(result: CellResult) -> int | None:
    """Return how many processors the cell's machines had; None if that is unknown or not always the same."""
    numbers = {_read_processor_count(trial.facts) for trial in result.good_trials} - {None, 0}
    if len(numbers) != 1:
        return None
    return numbers.pop()


def describe_build(result: CellResult) -> str:
    """Return which binaries were run: `arm64, another build`, or the host's; empty if no program was run."""
    builds = set()
    for trial in result.trials:
        build = trial.facts.find_fact(Build)
        if build is not None:
            builds.add(f"{build.architecture}, {build.said.partition(':')[0]}")
        elif trial.facts.find_fact(Program) or trial.facts.find_fact(Syscalls):
            builds.add("the host's")
    return " or ".join(sorted(builds))


def find_inner_guest(facts: Facts) -> Inside | None:
    """Return the facts of the innermost guest; None if firmware booted another inside, about which nothing is known."""
    nested, netboot = facts.find_fact(NestedMachine), facts.find_fact(Netboot)
    if netboot is not None and netboot.inner is not None:
        return None
    machine = nested.inner if nested is not None else facts.find_fact(GuestMachine)
    return None if machine is None else machine.guest


def _describe_processors(placed: PlacementFacts) -> tuple[str, str]:
    """Return the text before and after the place of the emulator's own threads."""
    if placed.level == "free":
        return f"free: anywhere on CPU {placed.machine}", ""
    number = placed.processors
    head = f"{placed.level}: {format_count(number, 'processor')} each, CPU {placed.machine}"
    return head, "; ".join(["", f"control plane CPU {placed.control}", *(placed.remarks or ())])


def _yield_storage_places(trial: Trial, result: CellResult) -> Iterator[str]:
    stored, flushes = trial.facts.find_fact(Storage), trial.facts.find_fact(Flushes)
    if stored is not None:
        for disk in stored.disks.values():
            kind = "memory" if disk.in_memory else disk.filesystem
            yield f"on {disk.location}: {kind}"
    # Trials recorded before `Storage` existed show a disk in memory only by their flushes.
    elif flushes is not None and flushes.in_memory:
        yield f"on {result.cell.factors.get('location', '/dev/shm')}: memory"


def _shorten_options(options: str) -> str:
    if len(options) <= _MOST_OPTIONS:
        return options
    return f"{options[:_MOST_OPTIONS].rpartition(',')[0]},…"


def _read_processor_count(facts: Facts) -> int | None:
    guest, host = find_inner_guest(facts), facts.find_fact(HostMachine) or facts.find_fact(RemoteMachine)
    if guest is not None:
        return guest.processors
    return None if host is None else host.processors
