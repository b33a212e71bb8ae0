"""Where machines ran and where their disks were, in words: from what the trials found out."""

from collections.abc import Iterable, Mapping
from typing import Any

from guestmark.core.model import Trial, TrialStatus
from guestmark.stats.analysis import CellResult

PLACEMENT, STORAGE, PROCESSORS = "placement", "storage", "processors"  # in attestations
_EMULATORS = "\0"
_MEMORY_BEFORE = "location_in_memory"  # of trials before there was `storage`


def placement(trials: Iterable[Trial]) -> str:
    """`pinned: 1 processor each, CPU 1; control plane CPU 0`; several when they differ, empty when nobody looked."""
    found: dict[
        str, dict[str, None]
    ] = {}  # sentences that await where emulators are, when not with the machine
    for trial in trials:
        where = _mapping(
            trial.attestation.get(PLACEMENT) or _mapping(trial.attestation.get("outer")).get(PLACEMENT)
        )
        if where:
            emulators = found.setdefault(_placed(where), {})
            if where.get("emulator") != where.get("machine"):
                emulators[str(where.get("emulator"))] = None
    return "; or ".join(
        said.replace(
            _EMULATORS, f"emulators' own threads CPU {' or '.join(emulators)}; " if emulators else ""
        )
        for said, emulators in found.items()
    )


def storage(result: CellResult) -> str:
    """`on /var/tmp: ext4`, `on /dev/shm: memory`; empty for cells without disks."""
    return ", ".join(dict.fromkeys(said for trial in result.trials for said in _stored(trial, result)))


def processors(result: CellResult) -> int | None:
    """How many the cell's machines had; None when that is not known or not always the same."""
    found = {
        number
        for trial in result.trials
        if trial.status is TrialStatus.OK and (number := _processors(trial.attestation))
    }
    return found.pop() if len(found) == 1 else None


def _placed(where: Mapping[str, Any]) -> str:
    if where.get("level") == "free":
        return f"free: anywhere on CPU {where.get('machine')}"
    number = where.get(PROCESSORS)
    remarks = "".join(f"; {remark}" for remark in where.get("remarks", ()))
    return (
        f"{where.get('level')}: {number} processor{'' if number == 1 else 's'} each, CPU {where.get('machine')}; "
        f"{_EMULATORS}control plane CPU {where.get('control')}{remarks}"
    )


def _stored(trial: Trial, result: CellResult) -> list[str]:
    disks = trial.attestation.get(STORAGE)
    if isinstance(disks, Mapping):
        return [
            f"on {disk.get('location')}: {'memory' if disk.get('in_memory') else disk.get('filesystem')}"
            for disk in map(_mapping, disks.values())
        ]
    if trial.attestation.get(_MEMORY_BEFORE):
        return [f"on {result.cell.factors.get('location', '/dev/shm')}: memory"]
    return []


def _processors(attestation: Mapping[str, Any]) -> int | None:
    inner = _mapping(attestation.get("inner", attestation))
    number = _mapping(inner.get("guest")).get(PROCESSORS, inner.get(PROCESSORS))
    return number if isinstance(number, int) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
