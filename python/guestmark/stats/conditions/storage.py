"""Whether figures of disks are about these disks: not memory, and used."""

from collections.abc import Iterator

from guestmark.core.findings import Flushes, Storage, Traffic
from guestmark.core.model import Cell, Trial
from guestmark.stats.conditions.evidence import Compared, named
from guestmark.stats.validity import Finding, Severity


def storage(compared: Compared) -> Iterator[Finding]:
    """Disks in memory: severe where nobody named the place, a warning where it was asked for.

    Images of guests inside guests are in the outer guest's memory always, which is told and no more.
    """
    unnamed = set(compared.plan.context.default_locations)
    found = [cell for cell in compared.cells if any(map(_in_memory, compared.good(cell)))]
    surprising = [cell for cell in found if _origin(cell) in unnamed and not cell.platform.nested]
    expected = [cell for cell in found if cell not in surprising and cell.null_of is None]
    if surprising:
        ids = [cell.id for cell in surprising]
        disks = f"the disks of {named(ids, compared.cells)}"
        yield Finding(
            "storage in memory",
            Severity.SEVERE,
            f"{disks} are in memory, as no directory on a disk was found: the figure is not a disk's",
            cells=compared.spoilt_by(ids),
            advice="name a directory on a disk: --set location=DIRECTORY, or TMPDIR=DIRECTORY",
        )
    if expected:
        disks = f"the disks of {named((cell.id for cell in expected), compared.cells)}"
        yield Finding(
            "storage in memory",
            Severity.WARNING,
            f"{disks} are in memory: the figure is not a disk's, and a flush keeps nothing",
            advice="for a disk's figure name a directory on one: --set location=DIRECTORY",
        )


def unwritten(compared: Compared) -> Iterator[Finding]:
    """Disks that rows name and to which their workload wrote nothing: a note where it read, else a warning."""
    found = [cell for cell in compared.cells if cell.null_of is None]
    idle = [
        cell.id for cell in found if any(_wrote_nothing(trial, read=False) for trial in compared.good(cell))
    ]
    only_read = [
        cell.id for cell in found if any(_wrote_nothing(trial, read=True) for trial in compared.good(cell))
    ]
    if idle:
        yield Finding(
            "disk not used",
            Severity.WARNING,
            f"the workload wrote nothing to the disk of {named(idle, compared.cells)}, so the figure is not about it",
            advice="let the command work in its own directory or in {disk}, or leave the disk's factors out",
        )
    if only_read:
        yield Finding(
            "disk only read",
            Severity.NOTE,
            f"the workload only read from the disk of {named(only_read, compared.cells)}: no durability follows",
        )


def _wrote_nothing(trial: Trial, *, read: bool) -> bool:
    traffic = trial.facts.of(Traffic)
    return traffic is not None and not traffic.wrote and bool(traffic.read) is read


def _origin(cell: Cell) -> str:
    return cell.null_of or cell.id


def _in_memory(trial: Trial) -> bool:
    stored = trial.facts.of(Storage)
    if stored is not None:
        return any(disk.in_memory for disk in stored.disks.values())
    flushes = trial.facts.of(Flushes)  # of trials before there was `Storage`
    return flushes is not None and flushes.in_memory
