"""Checks that compared cells had the same processors, disks, binaries and clocks."""

import itertools
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

from guestmark.core import registry
from guestmark.core.cause import Cause
from guestmark.core.findings import (
    Build,
    Facts,
    Flushes,
    ShellStart,
    Storage,
    Traffic,
    WorkingDirectory,
    Written,
)
from guestmark.core.machine_facts import (
    GuestMachine,
    HostMachine,
    NestedMachine,
    Sandboxed,
    find_attested_placement,
)
from guestmark.core.model import Cell, Trial
from guestmark.core.placement import FREE, NAME, PINNED, Crowded, parse_processor_list
from guestmark.stats.conditions.evidence import (
    ComparedCells,
    format_trial_count,
    group_by_platform,
    name_cells,
)
from guestmark.stats.validity import Finding, Severity, detect_clock_disagreement

_SMP = "smp"
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "rootfs", "devtmpfs"})
_SHARED = frozenset({"9p", "virtiofs", "hostfs", "nfs", "nfs4", "cifs", "smb3", "vboxsf"})
_LAYERED = "overlay"


class Ground(StrEnum):
    """The kind of storage that a command without a disk of its own writes to."""

    DISK = "a disk"
    OVERLAY = "an overlay"
    LAYER = "an overlay in memory"
    MEMORY = "memory"
    SHARE = "a share"


def check_processor_parity(compared: ComparedCells) -> Iterator[Finding]:
    """Check that all machines have equally many processors; severe if the difference was not requested.

    It is only a note where the rows that differ name their numbers. Machines that run at once on one host share its
    processors, and are not checked.
    """
    known: dict[str, frozenset[int]] = {}
    for cell in compared.cells:
        if not registry.has_several_machines(cell):
            numbers = _list_processor_counts(compared, cell)
            if numbers:
                known[cell.id] = numbers
    baseline = compared.baseline
    if baseline is None or baseline.id not in known:
        return
    mine = known[baseline.id]
    others = [name for name, number in known.items() if number != mine]
    if not others:
        return
    different = []
    for name, number in group_by_platform(compared.cells, known).items():
        if number != mine or name in {baseline.id, str(baseline.platform)}:
            different.append(f"{name} {_join_numbers(number)}")
    unequal = {baseline.id, *others}
    excuse = _explain_inequality_of_processors(compared, unequal)
    severity, affected = Severity.SEVERE, compared.list_affected_cells(others)
    if excuse:
        is_named = all(_SMP in cell.factors for cell in compared.cells if cell.id in unequal)
        severity, affected = Severity.NOTE if is_named else Severity.WARNING, ()
    yield Finding(
        "unequal processors",
        severity,
        f"the machines have different numbers of processors: {'; '.join(different)} ({excuse or 'not requested'})",
        cells=affected,
        advice="give all the same number (--set smp=N), or read the ratio as one between machines of these sizes",
    )


def _explain_inequality_of_processors(compared: ComparedCells, unequal: Collection[str]) -> str:
    """Return why unequal numbers of processors are intended; empty if they are not."""
    if any(_has_chosen_processors(cell) for cell in compared.cells if not cell.platform.is_elsewhere):
        return "as requested"
    if any(cell.platform.is_elsewhere for cell in compared.cells if cell.id in unequal):
        return "other machines keep their own number"
    return ""


def _has_chosen_processors(cell: Cell) -> bool:
    """Return True if the user chose the number of processors, or if the cell predates placements."""
    return _SMP in cell.factors or cell.factors.get(NAME) != PINNED


def _list_processor_counts(compared: ComparedCells, cell: Cell) -> frozenset[int]:
    numbers: set[int] = set()
    for trial in compared.list_good_trials(cell):
        number = _count_machine_processors(trial.facts)
        if number is not None:
            numbers.add(number)
    return frozenset(numbers)


def _count_machine_processors(facts: Facts) -> int | None:
    nested = facts.find_fact(NestedMachine)
    guest = nested.inner if nested is not None else facts.find_fact(GuestMachine)
    if guest is not None:
        return guest.guest.processors
    host = facts.find_fact(HostMachine)
    if host is None:
        return None
    if host.placement is not None and host.placement.level == FREE:
        # A machine with free placement may use all processors of the host, whatever number it was given.
        return len(parse_processor_list(host.placement.machine))
    return host.processors


def check_placement(compared: ComparedCells) -> Iterator[Finding]:
    """Check that every machine ran on the requested processors, and that any were requested."""
    yield from _check_attested_placement(compared)
    yield from _check_free_placement(compared)
    refused, whole = [], 0
    for cell in compared.cells:
        trials = compared.trials.get(cell.id, ())
        whole += len(trials)
        refused += [trial for trial in trials if trial.cause is Cause.PLACEMENT]
    if refused:
        yield Finding(
            "placement not held",
            Severity.WARNING,
            f"{format_trial_count(len(refused), whole)} failed because a thread ran on another processor; "
            "they have no values",
            advice="find out what moves processes here (a cgroup manager, numad), or use --set placement=free",
        )
    yield from _check_moved_machines(compared)
    yield from _check_shared_processors(compared)


def _check_attested_placement(compared: ComparedCells) -> Iterator[Finding]:
    """Yield a finding if trials did not run on the requested processors, or did not attest it."""
    wrong: dict[str, str] = {}
    for cell in compared.cells:
        asked = cell.factors.get(NAME)
        for trial in compared.list_good_trials(cell):
            if asked is None:
                continue
            found = find_attested_placement(trial.facts)
            if found is None:
                wrong[cell.id] = "no placement"
            elif found.level != asked:
                wrong[cell.id] = found.level
    if wrong:
        places = "; ".join(f"{name} attested {found}" for name, found in wrong.items())
        yield Finding(
            "placement not attested",
            Severity.SEVERE,
            f"machines did not run on the requested processors: {places}",
            cells=compared.list_affected_cells(wrong),
            advice="run it again; if this persists, the platform cannot be pinned: use --set placement=free",
        )


def _check_free_placement(compared: ComparedCells) -> Iterator[Finding]:
    free = []
    for cell in compared.cells:
        if (
            cell.factors.get(NAME) == FREE
            and cell.null_of is None
            and not registry.has_several_machines(cell)
        ):
            free.append(cell.id)
    if free:
        yield Finding(
            "placement free",
            Severity.WARNING,
            f"{name_cells(free, compared.cells)} ran wherever the scheduler chose, as requested: "
            "the choice of processors can decide a ratio",
            advice="leave out the factor placement (default: pinned) unless that is what you want to measure",
        )
    elif _is_placement_unknown(compared):
        yield Finding(
            "placement unknown",
            Severity.NOTE,
            "the processors of the machines were neither chosen nor recorded",
            advice="measure again with this version, which gives each machine its own processors",
        )


def _is_placement_unknown(compared: ComparedCells) -> bool:
    """Return True if trials ran on this host, and no cell has a placement."""
    if any(NAME in cell.factors for cell in compared.cells):
        return False
    here = [cell for cell in compared.cells if not cell.platform.is_elsewhere]
    return any(compared.list_good_trials(cell) for cell in here)


def _check_moved_machines(compared: ComparedCells) -> Iterator[Finding]:
    """Yield findings about cells whose machines moved between trials."""
    for cell in compared.cells:
        places: dict[str, None] = {}
        for trial in compared.list_good_trials(cell):
            found = find_attested_placement(trial.facts)
            if found is not None:
                places[found.machine] = None
        if len(places) > 1 and cell.factors.get(NAME) != FREE:
            yield Finding(
                "placement changed",
                Severity.WARNING,
                f"{cell.id} ran on CPU {' and later on CPU '.join(places)}",
                advice="resume a run on the processors on which it began (taskset, cpuset)",
            )


def _check_shared_processors(compared: ComparedCells) -> Iterator[Finding]:
    """Yield findings about machines whose processors were shared or unequal."""
    remarks: dict[str, Sequence[str]] = {}
    for cell in compared.cells:
        for trial in compared.list_good_trials(cell)[:1]:
            found = find_attested_placement(trial.facts)
            remarks[cell.id] = ()
            if found is not None and found.remarks:
                remarks[cell.id] = found.remarks
    for remark in dict.fromkeys(itertools.chain.from_iterable(remarks.values())):
        having = group_by_platform(compared.cells, {name: remark in own for name, own in remarks.items()})
        yield Finding(
            "placement shared",
            Severity.NOTE if remark == Crowded.CONTROL else Severity.WARNING,
            f"{name_cells(name for name, has in having.items() if has)}: {remark}",
            advice="use a host with more processors of one speed, or give machines fewer processors",
        )


def _join_numbers(numbers: frozenset[int]) -> str:
    return " or ".join(str(number) for number in sorted(numbers))


def check_storage(compared: ComparedCells) -> Iterator[Finding]:
    """Check for disks in memory: a warning if that location was requested, else severe.

    Images of guests inside guests always lie in the outer guest's memory, so they are only reported.
    """
    unnamed = set(compared.plan.context.default_locations)
    surprising: list[str] = []
    expected: list[str] = []
    for cell in compared.cells:
        if not any(map(_is_in_memory, compared.list_good_trials(cell))):
            continue
        if _find_copied_cell_id(cell) in unnamed and not cell.platform.is_nested:
            surprising.append(cell.id)
        elif cell.null_of is None:
            expected.append(cell.id)
    if surprising:
        disks = f"the disks of {name_cells(surprising, compared.cells)}"
        yield Finding(
            "storage in memory",
            Severity.SEVERE,
            f"{disks} are in memory, as no directory on a disk was found: the figure does not measure a disk",
            cells=compared.list_affected_cells(surprising),
            advice="name a directory on a disk: --set location=DIRECTORY, or TMPDIR=DIRECTORY",
        )
    if expected:
        disks = f"the disks of {name_cells(expected, compared.cells)}"
        yield Finding(
            "storage in memory",
            Severity.WARNING,
            f"{disks} are in memory: the figure does not measure a disk, and flushed data is not kept",
            advice="to measure a disk, name a directory on one: --set location=DIRECTORY",
        )


def check_unwritten_disks(compared: ComparedCells) -> Iterator[Finding]:
    """Check for disks that the workload of a row did not write to: a note if it read from them, else a warning."""
    idle, only_read = [], []
    for cell in compared.cells:
        if cell.null_of is not None:
            continue
        trials = compared.list_good_trials(cell)
        if any(_has_written_nothing(trial, read=False) for trial in trials):
            idle.append(cell.id)
        if any(_has_written_nothing(trial, read=True) for trial in trials):
            only_read.append(cell.id)
    if idle:
        yield Finding(
            "disk not used",
            Severity.WARNING,
            f"the workload wrote nothing to the disk of {name_cells(idle, compared.cells)}, "
            "so the figures say nothing about that disk",
            advice="let the command work in its own directory or in {disk}, or leave out the disk's factors",
        )
    if only_read:
        yield Finding(
            "disk only read",
            Severity.NOTE,
            f"the workload only read from the disk of {name_cells(only_read, compared.cells)}: "
            "this says nothing about durability",
        )


def check_ground(compared: ComparedCells) -> Iterator[Finding]:
    """Check for commands that wrote to a disk in some rows and to other storage, such as memory, in others."""
    grounds: dict[str, Ground] = {}
    wrote = False
    for cell in compared.cells:
        if cell.null_of is not None:
            continue
        for trial in compared.list_good_trials(cell)[:1]:
            ground = _find_ground(trial.facts)
            if ground is not None:
                grounds[cell.id] = ground
            written = trial.facts.find_fact(Written)
            wrote = wrote or (written is not None and written.least > 0)
            traffic = trial.facts.find_fact(Traffic)
            wrote = wrote or (traffic is not None and traffic.wrote)
    if not wrote or len(set(grounds.values())) < 2:
        return
    places = []
    for ground in dict.fromkeys(grounds.values()):
        cells = [name for name, other in grounds.items() if other is ground]
        places.append(f"{name_cells(cells)} to {ground}")
    yield Finding(
        "different ground",
        Severity.WARNING,
        f"the command writes to different storage: {'; '.join(places)}",
        advice="give all rows a disk (--set filesystem=ext4), or compare rows with one kind of storage",
    )


def _find_ground(facts: Facts) -> Ground | None:
    """Return the storage of the command's directory, as its machine's kernel reports it; None if unknown."""
    if facts.find_fact(Storage) is not None:
        return Ground.MEMORY if _is_stored_in_memory(facts) else Ground.DISK
    directory = facts.find_fact(WorkingDirectory)
    if directory is None:
        return None
    kind = directory.filesystem
    # A sandbox shows this host's files, but writes go to its own layer, which is deleted with it.
    sandboxed = facts.find_fact(Sandboxed) is not None
    guest = facts.find_fact(GuestMachine) is not None or facts.find_fact(NestedMachine) is not None
    if kind in _IN_MEMORY:
        ground = Ground.MEMORY
    elif sandboxed or (guest and kind == _LAYERED):
        ground = Ground.LAYER
    elif kind == _LAYERED:
        ground = Ground.OVERLAY
    elif kind in _SHARED or kind.startswith("fuse"):
        ground = Ground.SHARE
    else:
        ground = Ground.DISK
    return ground


def _has_written_nothing(trial: Trial, *, read: bool) -> bool:
    traffic = trial.facts.find_fact(Traffic)
    return traffic is not None and not traffic.wrote and bool(traffic.read) is read


def _find_copied_cell_id(cell: Cell) -> str:
    return cell.null_of or cell.id


def _is_in_memory(trial: Trial) -> bool:
    if trial.facts.find_fact(Storage) is not None:
        return _is_stored_in_memory(trial.facts)
    # Ledgers of earlier versions have no `Storage`.
    flushes = trial.facts.find_fact(Flushes)
    return flushes is not None and flushes.in_memory


def _is_stored_in_memory(facts: Facts) -> bool:
    stored = facts.find_fact(Storage)
    return stored is not None and any(disk.in_memory for disk in stored.disks.values())


def check_builds(compared: ComparedCells) -> Iterator[Finding]:
    """Check for different binaries: a ratio to a program of another architecture also compares compilers.

    It is a warning if only the architecture differs, as the user named it; severe for another version.
    """
    by_words: dict[tuple[str, bool], list[Cell]] = {}
    for cell in compared.cells:
        builds: set[tuple[str, bool]] = set()
        for trial in compared.list_good_trials(cell):
            found = trial.facts.find_fact(Build)
            if found:
                builds.add(_describe_build(found))
        for build in builds:
            by_words.setdefault(build, []).append(cell)
    for (program, same), cells in sorted(by_words.items()):
        ids = [cell.id for cell in cells if cell.null_of is None]
        if len(cells) == len(compared.cells) and len(by_words) == 1:
            continue
        severity, affected = Severity.SEVERE, compared.list_affected_cells(cell.id for cell in cells)
        advice = "install the same version on this host, or measure another program"
        if same:
            severity, affected = Severity.WARNING, ()
            advice = "to compare only the machines, use one architecture"
        yield Finding(
            "other binaries",
            severity,
            f"{name_cells(ids)} ran {program}: the ratio also compares compilers and code",
            cells=affected,
            advice=advice,
        )


def _describe_build(build: Build) -> tuple[str, bool]:
    return build.said, build.same_source is not False


# A shell's start varies by about this share, so a command that takes less time was not measured.
_SHELL_SPREAD = 0.1


def check_shell_starts(compared: ComparedCells) -> Iterator[Finding]:
    """Check for commands that take less time than their shell's start: a warning, severe if it hides them."""
    short: dict[str, float] = {}
    hidden: list[str] = []
    for cell in compared.cells:
        times = _list_shell_times(compared.list_good_trials(cell))
        if cell.null_of is not None or not times:
            continue
        start_s = statistics.median(start_s for start_s, _ in times)
        wall_s = statistics.median(wall_s for _, wall_s in times)
        if wall_s < start_s:
            short[cell.id] = start_s
        if wall_s < start_s * _SHELL_SPREAD:
            hidden.append(cell.id)
    if not short:
        return
    one, their = "take", "their"
    if len(short) == 1:
        one, their = "takes", "its"
    yield Finding(
        "shell start",
        Severity.SEVERE if hidden else Severity.WARNING,
        f"{name_cells(short, compared.cells)} {one} less time than {their} shell's start, which was subtracted "
        f"({max(short.values()) * 1e3:.3g} ms)",
        cells=compared.list_affected_cells(hidden),
        advice="-N runs a program without a shell; otherwise make each run do more work",
    )


def _list_shell_times(trials: Iterable[Trial]) -> list[tuple[float, float]]:
    """Return how long the shell's start and the command took, in each trial that has a shell."""
    times = []
    for trial in trials:
        start = trial.facts.find_fact(ShellStart)
        if start is None:
            continue
        for measured in trial.measurements:
            if measured.metric.name == _HOST:
                times.append((start.wall_s, measured.value))
    return times


_HOST, _GUEST = "wall_s", "guest_wall_s"
# With these metrics the host's duration includes work that the guest's does not.
_ON_HOST_ONLY = frozenset({"host_flush_s", "launch_s"})


def check_clocks(compared: ComparedCells) -> Iterator[Finding]:
    """Check for cells whose runs lasted longer or shorter on the guest's clock than on the host's."""
    for cell in compared.cells:
        finding = _compare_clocks(compared, cell)
        if finding is not None:
            affected: tuple[str, ...] = ()
            if finding.severity is Severity.SEVERE:
                affected = compared.list_affected_cells([cell.id])
            yield replace(finding, message=f"{cell.id}: {finding.message}", cells=affected)


def _compare_clocks(compared: ComparedCells, cell: Cell) -> Finding | None:
    host_s: list[float] = []
    guest_s: list[float] = []
    for trial in compared.list_good_trials(cell):
        for on_host, on_guest in _pair_durations(trial):
            host_s.append(on_host)
            guest_s.append(on_guest)
    return detect_clock_disagreement(host_s, guest_s)


def _pair_durations(trial: Trial) -> list[tuple[float, float]]:
    series = {measurement.metric.name: measurement.iterations for measurement in trial.measurements}
    if not {_HOST, _GUEST} <= series.keys() or series.keys() & _ON_HOST_ONLY:
        return []
    return list(zip(series[_HOST], series[_GUEST], strict=False))
