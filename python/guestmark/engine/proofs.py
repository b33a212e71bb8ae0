"""`--prove`: for each kind of disk in a run, one untimed proof of what a power cut would leave on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from guestmark.core import registry as kinds
from guestmark.core.errors import UsageError
from guestmark.core.findings import Facts, Proof, flatten_fact
from guestmark.core.model import Cell, Plan, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.tuning import Settings
from guestmark.disks.location import is_in_memory
from guestmark.engine.interrupt import Interruption
from guestmark.engine.progress import Observer
from guestmark.engine.trial import TrialSlot, run_trial
from guestmark.platforms import registry
from guestmark.setting.base import affects_durability, is_disk_setting
from guestmark.setting.disk import Disks, DiskSpec, Role, read_disk_requests
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.location import LOCATION
from guestmark.workloads import base as workloads

_WORKLOAD = "powercut"


@dataclass(frozen=True, slots=True)
class ProofKind:
    """The scope of a proof: a disk on a machine, with all settings of both except the disk's size.

    `row` holds the workload's own acknowledgements if these can be proven; it is empty if only the disk can be.
    """

    platform: PlatformSpec
    disk: DiskSpec
    settings: frozenset[tuple[str, str]]
    row: str


def find_proof_kind(cell: Cell) -> ProofKind | None:
    """Return the kind of the cell's target disk, or None if there is nothing to prove.

    That is the case for a cell that writes to no disk, or to a directory of this host.
    """
    try:
        disk = cell.view(Disks).find_target()
    except UsageError:
        return None
    if disk is None or disk.filesystem is Filesystem.NONE or disk.is_packed:
        return None
    if not cell.platform.is_guest and not disk.loop:
        return None
    # The disk's content does not decide what survives on it.
    kept = replace(disk, levels=disk.durability_levels, content="", holds=0, tree="")
    of_machine = set()
    for name, level in _read_settings(cell).items():
        if not is_disk_setting(name):
            of_machine.add((name, level))
    params = repr(sorted(_find_row_params(cell).items()) or "")
    return ProofKind(cell.platform, kept, frozenset(of_machine), params)


def _find_row_params(cell: Cell) -> Mapping[str, Any]:
    """Return the parameters with which the workload's own acknowledgements are proven; none if they cannot be."""
    kind = kinds.index_workload_kinds().get(cell.workload.name)
    return {} if kind is None else kind.acknowledging_params(cell)


def _read_settings(cell: Cell) -> dict[str, str]:
    """Return every level that matters to a proof: hypervisor, kernel and root decide as much as a cache mode."""
    settings = {}
    for name, level in cell.factors.items():
        if affects_durability(name) and cell.platform.takes_factor(name):
            settings[name] = level
    return settings


def make_proof_cell(cell: Cell) -> Cell:
    """Return the cell that proves what the target disk of `cell` keeps."""
    kind = kinds.workload_kind(_WORKLOAD)
    disk = cell.view(Disks).target
    # The levels that the workload requests for its disk apply to the proof as well.
    given: dict[str, Any] = {}
    for need in read_disk_requests(cell) or ():
        if need["role"] != Role.TARGET:
            continue
        for name, level in need.items():
            if is_disk_setting(name) and affects_durability(name):
                given[name] = level
    params = dict(kind.check_params(_find_row_params(cell)))
    params["disks"] = [{**params["disks"][0], **given}]
    factors = {**_read_settings(cell), LOCATION.name: disk.location}
    return Cell(f"proof for {cell.id}", WorkloadSpec(_WORKLOAD, params), cell.platform, factors)


def read_proofs(plan: Plan) -> dict[str, Proof]:
    """Return the proofs that a run already has, by cell id."""
    found = {}
    for cell_id, facts in plan.context.proofs.items():
        proof = facts.find_fact(Proof)
        if proof is not None:
            found[cell_id] = proof
    return found


def attach_proofs(plan: Plan, proofs: Mapping[str, Proof]) -> Plan:
    """Return the plan with its proofs, so that a resumed run need not repeat them."""
    facts = {cell_id: Facts(flatten_fact(proof)) for cell_id, proof in proofs.items()}
    return replace(plan, context=replace(plan.context, proofs=facts))


def prove_cells(
    plan: Plan,
    cells: Sequence[Cell],
    known: Mapping[str, Proof],
    observer: Observer,
    interruption: Interruption,
    *,
    find_left_s: Callable[[], float | None] = lambda: None,
) -> Iterator[Mapping[str, Proof]]:
    """Yield all proofs so far, by cell id, after each new one; `known` ones are not repeated.

    `find_left_s` returns the seconds left of the run's budget.
    """
    wanted: list[tuple[Cell, ProofKind]] = []
    proven: dict[ProofKind, Proof | None] = {}
    for cell in cells:
        found = find_proof_kind(cell)
        if found is None:
            continue
        wanted.append((cell, found))
        if cell.id in known:
            proven[found] = known[cell.id]
    for cell, kind in wanted:
        if kind not in proven:
            proof = _prove_one(plan, make_proof_cell(cell), observer, interruption, find_left_s())
            if proof is not None:
                proof.proven.of_row = bool(_find_row_params(cell))
            proven[kind] = proof
            yield _group_by_cell(wanted, proven)
    yield _group_by_cell(wanted, proven)


def _group_by_cell(
    wanted: Sequence[tuple[Cell, ProofKind]], proven: Mapping[ProofKind, Proof | None]
) -> dict[str, Proof]:
    found = {}
    for cell, kind in wanted:
        proof = proven.get(kind)
        if proof is not None:
            found[cell.id] = proof
    return found


def _prove_one(
    plan: Plan, cell: Cell, observer: Observer, interruption: Interruption, left_s: float | None
) -> Proof | None:
    """Return the proof of a cell; None, with a note to the observer, if nothing is proven."""
    if why := workloads.find_trial_class(cell.workload.name).impossible(cell):
        observer.note(f"{cell.id}: {why}")
        return None
    observer.note(f"{cell.id}: cutting the power …")
    alone = replace(plan, cells=(cell,))
    slot = TrialSlot(cell, 0, 0, left_s=left_s)
    trial = run_trial(alone, slot, registry.get_platform(cell.platform), interruption, observer)
    found = trial.facts.find_fact(Proof)
    if found is None:
        observer.note(f"{cell.id}: nothing is proven: {trial.reason}")
        return None
    observer.note(
        f"{cell.id}: {found.proven.word}: {found.proven.states} crash states, {found.proven.losing} lose data"
    )
    return found


def explain_barred_cells(
    settings: Settings, cells: Iterable[Cell], proofs: Mapping[str, Proof]
) -> dict[str, str]:
    """Return, by cell id, why cells may not take part in a race with these settings."""
    wanted = " or ".join(settings.durability)
    found = {}
    for cell in cells:
        if settings.on_disk and (memory := _find_memory_location(cell)):
            found[cell.id] = f"its disk is in memory: {memory}"
            continue
        if not settings.durability:
            continue
        proof = proofs.get(cell.id)
        if proof is None:
            found[cell.id] = f"its disk is not {wanted}: nothing could be proven"
        elif proof.proven.word not in settings.durability:
            why = proof.proven.first_loss or proof.proven.why
            found[cell.id] = f"its disk is not {wanted}: {proof.proven.word} ({why})"
        elif not (proof.proven.of_row or _is_flushing_writes(cell)):
            found[cell.id] = (
                f"its disk is {proof.proven.word}, but whether the workload syncs its writes cannot be judged"
            )
    return found


def _is_flushing_writes(cell: Cell) -> bool:
    kind = kinds.index_workload_kinds().get(cell.workload.name)
    return kind is not None and kind.flushes_writes


def _find_memory_location(cell: Cell) -> str:
    """Return the first location of the cell's disks that is in memory; empty if there is none."""
    for disk in cell.view(Disks):
        if is_in_memory(disk.location):
            return disk.location
    return ""
