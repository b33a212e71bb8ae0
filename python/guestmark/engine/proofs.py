"""`--prove`: what a power cut would leave of the disks of a run, found out once for each kind of disk, untimed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guestmark.core import registry as kinds
from guestmark.core.errors import UsageError
from guestmark.core.findings import Facts, Proof, flat
from guestmark.core.model import Cell, Plan, WorkloadSpec
from guestmark.engine.interrupt import Interruption
from guestmark.engine.progress import Observer
from guestmark.engine.trial import Slot, run_trial
from guestmark.platforms import registry
from guestmark.setting.base import is_disk_setting, keeps
from guestmark.setting.disk import Disks, DiskSpec, Role, asked_of
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.location import LOCATION
from guestmark.workloads import base as workloads

if TYPE_CHECKING:
    from guestmark.core.platform_spec import PlatformSpec

_WORKLOAD = "powercut"


@dataclass(frozen=True, slots=True)
class Kind:
    """What one proof holds for: a disk on a machine, with every setting of the two but the disk's size."""

    platform: PlatformSpec
    disk: DiskSpec
    settings: frozenset[tuple[str, str]]
    row: str  # what the row itself acknowledges, and how; empty where only the disk can be proven


def kind_of(cell: Cell) -> Kind | None:
    """The kind of the cell's target; None for a cell without one that is written, or with a directory of this host."""
    try:
        disk = cell.view(Disks).find_target()
    except UsageError:
        return None
    if (
        disk is None
        or disk.filesystem is Filesystem.NONE
        or disk.packed
        or (not cell.platform.is_guest and not disk.loop)
    ):
        return None
    kept = replace(disk, levels=disk.kept_by, content="", holds=0, tree="")
    of_machine = frozenset(item for item in _settings(cell).items() if not is_disk_setting(item[0]))
    return Kind(cell.platform, kept, of_machine, repr(sorted(_of_row(cell).items()) or ""))


def _of_row(cell: Cell) -> Mapping[str, Any]:
    """The parameters with which the workload's own acknowledgements are proven; none where they cannot be."""
    kind = kinds.workload_kinds().get(cell.workload.name)
    if kind is None or kind.acknowledges is None:
        return {}
    return kind.acknowledges(cell)


def _settings(cell: Cell) -> dict[str, str]:
    """All that its machine was given: which hypervisor, kernel or root it is decides as much as a cache mode."""
    return {name: level for name, level in cell.factors.items() if keeps(name) and cell.platform.takes(name)}


def cell_for(cell: Cell) -> Cell:
    """The cell that proves what the target of `cell` keeps."""
    kind = kinds.workload_kind(_WORKLOAD)
    disk = cell.view(Disks).target
    needs = [need for need in asked_of(cell) or () if need["role"] == Role.TARGET]
    # What the workload itself says of its disk holds as well.
    given = {
        name: level for need in needs for name, level in need.items() if is_disk_setting(name) and keeps(name)
    }
    params = dict(kind.checked(_of_row(cell)))
    params["disks"] = [{**params["disks"][0], **given}]
    factors = {**_settings(cell), LOCATION.name: disk.location}
    return Cell(f"proof for {cell.id}", WorkloadSpec(_WORKLOAD, params), cell.platform, factors)


def kept(plan: Plan) -> dict[str, Proof]:
    """The proofs that a run has already, by the ids of its cells."""
    found = {name: facts.of(Proof) for name, facts in plan.context.proofs.items()}
    return {name: proof for name, proof in found.items() if proof is not None}


def keeping(plan: Plan, proofs: Mapping[str, Proof]) -> Plan:
    """The plan with its proofs, so that a run that goes on need not make them again."""
    facts = {name: Facts(flat(proof)) for name, proof in proofs.items()}
    return replace(plan, context=replace(plan.context, proofs=facts))


def prove(
    plan: Plan,
    cells: Sequence[Cell],
    known: Mapping[str, Proof],
    observer: Observer,
    interruption: Interruption,
) -> Iterator[Mapping[str, Proof]]:
    """Proofs by the cells' ids, after each one that was made; what is `known` is not proven again."""
    wanted = [(cell, kind) for cell in cells if (kind := kind_of(cell)) is not None]
    proven: dict[Kind, Proof | None] = {kind: known[cell.id] for cell, kind in wanted if cell.id in known}
    for cell, kind in wanted:
        if kind not in proven:
            proof = _proof(plan, cell_for(cell), observer, interruption)
            if proof is not None:
                proof.proven.of_row = bool(_of_row(cell))
            proven[kind] = proof
            yield _by_cell(wanted, proven)
    yield _by_cell(wanted, proven)


def _by_cell(wanted: Sequence[tuple[Cell, Kind]], proven: Mapping[Kind, Proof | None]) -> dict[str, Proof]:
    return {cell.id: proof for cell, kind in wanted if (proof := proven.get(kind)) is not None}


def _proof(plan: Plan, cell: Cell, observer: Observer, interruption: Interruption) -> Proof | None:
    if why := workloads.of(cell.workload.name).impossible(cell):
        observer.note(f"{cell.id}: {why}")
        return None
    observer.note(f"{cell.id}: cutting the power …")
    alone = replace(plan, cells=(cell,))
    trial = run_trial(alone, Slot(cell, 0, 0, 1), registry.get(cell.platform), interruption, observer)
    found = trial.facts.of(Proof)
    if found is None:
        observer.note(f"{cell.id}: nothing is proven: {trial.reason}")
        return None
    observer.note(
        f"{cell.id}: {found.proven.word}: {found.proven.states} crash states, {found.proven.losing} lose"
    )
    return found
