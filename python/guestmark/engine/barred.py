"""Who may not take part in a race: cells whose disks are not as durable as was asked, or are in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from guestmark.core.findings import Proof, Proven
from guestmark.core.model import Cell
from guestmark.core.tuning import Settings
from guestmark.disks.location import in_memory
from guestmark.setting.disk import disks_of


def barred(settings: Settings, cells: Iterable[Cell], proofs: Mapping[str, Proof]) -> dict[str, str]:
    """Why cells may not take part, by what is proven of their disks. Nothing is barred for what nobody asked."""
    wanted = " or ".join(settings.durability)
    found = {}
    for cell in cells:
        if settings.on_disk and (there := _in_memory(cell)):
            found[cell.id] = f"its disk is in memory: {there}"
            continue
        if not settings.durability:
            continue
        proof = proofs.get(cell.id)
        if proof is None:
            found[cell.id] = f"its disk is not {wanted}: nothing could be proven"
        elif proof.proven.word not in settings.durability:
            found[cell.id] = f"its disk is not {wanted}: {_said(proof.proven)}"
    return found


def _in_memory(cell: Cell) -> str:
    """The first location of the cell's disks that is memory; empty when there is none."""
    return next((disk.location for disk in disks_of(cell) if in_memory(disk.location)), "")


def _said(proven: Proven) -> str:
    return f"{proven.word} ({proven.first_loss or proven.why})"
