"""Whether machines that are compared had equally many processors, and were where they were asked to be."""

from collections.abc import Iterator

from guestmark.core.facts import Facts
from guestmark.core.machine_facts import GuestMachine, HostMachine, NestedMachine, attested_placement
from guestmark.core.model import Cell
from guestmark.core.placement import FREE, NAME, PINNED, read_list
from guestmark.stats.conditions.evidence import Compared, by_platform, named, trials_of
from guestmark.stats.validity import Finding, Severity

_SMP = "smp"
_FAILED = "the placement of "  # how a trial's reason begins when attestation found a thread elsewhere


def parity(compared: Compared) -> Iterator[Finding]:
    """Whether the machines have equally many processors; severe where nobody asked for anything else."""
    numbers = {cell.id: _processors(compared, cell) for cell in compared.cells}
    baseline = compared.baseline
    if baseline is None or not numbers[baseline.id]:
        return
    mine = numbers[baseline.id]
    others = [name for name, number in numbers.items() if number and number != mine]
    if not others:
        return
    known = by_platform(compared.cells, {name: number for name, number in numbers.items() if number})
    said = "; ".join(
        f"{name} {_listed(number)}"
        for name, number in known.items()
        if number != mine or name in {baseline.id, str(baseline.platform)}
    )
    elsewhere = any(
        cell.platform.is_elsewhere for cell in compared.cells if cell.id in {baseline.id, *others}
    )
    asked = any(_chosen(cell) for cell in compared.cells if not cell.platform.is_elsewhere)
    if asked:
        why = ", as was asked for"
    elif elsewhere:
        why = ", as other machines have what they have"
    else:
        why = ", which nobody asked for"
    yield Finding(
        "unequal processors",
        Severity.WARNING if asked or elsewhere else Severity.SEVERE,
        f"the machines have different numbers of processors: {said}{why}",
        cells=() if asked or elsewhere else compared.spoilt_by(others),
        advice="give them equally many (--set smp=N), or read the ratio as one of machines of these sizes",
    )


def _chosen(cell: Cell) -> bool:
    """Whether its number of processors is the user's choice, or that of a time before placements."""
    return _SMP in cell.factors or cell.factors.get(NAME) != PINNED


def _processors(compared: Compared, cell: Cell) -> frozenset[int]:
    return frozenset(
        number for trial in compared.good(cell) if (number := _of_machine(trial.facts)) is not None
    )


def _of_machine(facts: Facts) -> int | None:
    nested = facts.of(NestedMachine)
    guest = nested.inner if nested is not None else facts.of(GuestMachine)
    if guest is not None:
        return guest.guest.processors
    host = facts.of(HostMachine)
    if host is not None and host.placement is not None and host.placement.level == FREE:
        return len(read_list(host.placement.machine))  # it may use them all, whatever it was to have
    return None if host is None else host.processors


def placement(compared: Compared) -> Iterator[Finding]:
    """Whether every machine was where it was asked to be, and whether that says anything about where."""
    yield from _not_attested(compared)
    yield from _free(compared)
    refused = [
        trial for cell in compared.cells for trial in compared.trials.get(cell.id, ())
        if trial.reason.startswith(_FAILED)
    ]  # fmt: skip
    if refused:
        whole = sum(len(compared.trials.get(cell.id, ())) for cell in compared.cells)
        yield Finding(
            "placement not held",
            Severity.WARNING,
            f"{trials_of(len(refused), whole)} failed because a thread was not where it was put; they give no values",
            advice="find out what moves processes here (a cgroup manager, numad), or use --set placement=free",
        )
    yield from _moved(compared)


def _not_attested(compared: Compared) -> Iterator[Finding]:
    """A placement that was asked for and is not what trials found, or that none of them looked at."""
    wrong: dict[str, str] = {}
    for cell in compared.cells:
        asked = cell.factors.get(NAME)
        for trial in compared.good(cell):
            found = attested_placement(trial.facts)
            if asked is not None and (found is None or found.level != asked):
                wrong[cell.id] = "nothing" if found is None else found.level
    if wrong:
        said = "; ".join(f"{name} found {found}" for name, found in wrong.items())
        yield Finding(
            "placement not attested",
            Severity.SEVERE,
            f"where machines ran is not what was asked for: {said}",
            cells=compared.spoilt_by(wrong),
            advice="run it again; if it stays, this platform cannot be placed: use --set placement=free",
        )


def _free(compared: Compared) -> Iterator[Finding]:
    free = [cell.id for cell in compared.cells if cell.factors.get(NAME) == FREE and cell.null_of is None]
    if free:
        yield Finding(
            "placement free",
            Severity.WARNING,
            f"{named(free, compared.cells)} ran wherever the scheduler liked, as was asked for: where that is can "
            "decide a ratio",
            advice="leave the factor placement out (pinned) unless that is what you want to know",
        )
    elif not any(NAME in cell.factors for cell in compared.cells) and any(
        compared.good(cell) and not cell.platform.is_elsewhere for cell in compared.cells
    ):
        yield Finding(
            "placement unknown",
            Severity.NOTE,
            "where the machines ran was neither chosen nor recorded",
            advice="measure again with this version, which gives each machine processors of its own",
        )


def _moved(compared: Compared) -> Iterator[Finding]:
    """Machines of one cell that were on other processors later, and what could not be kept apart."""
    for cell in compared.cells:
        places = list(
            dict.fromkeys(
                found.machine
                for trial in compared.good(cell)
                if (found := attested_placement(trial.facts)) is not None
            )
        )
        if len(places) > 1 and cell.factors.get(NAME) != FREE:
            yield Finding(
                "placement changed",
                Severity.WARNING,
                f"{cell.id} was on CPU {' and later on CPU '.join(places)}",
                advice="resume a run with the processors it was begun with (taskset, cpuset)",
            )
    remarks: dict[str, tuple[str, ...]] = {}
    for cell in compared.cells:
        for trial in compared.good(cell)[:1]:
            found = attested_placement(trial.facts)
            made = (found.remarks or ()) if found is not None else ()
            remarks[cell.id] = tuple(made)
    for remark in dict.fromkeys(remark for made in remarks.values() for remark in made):
        having = by_platform(compared.cells, {name: remark in made for name, made in remarks.items()})
        yield Finding(
            "placement shared",
            Severity.NOTE if remark.startswith("the control plane") else Severity.WARNING,
            f"{named(name for name, has in having.items() if has)}: {remark}",
            advice="use a host with more processors that are equal, or fewer virtual ones",
        )


def _listed(numbers: frozenset[int]) -> str:
    return " or ".join(str(number) for number in sorted(numbers))
