"""Finds acknowledgements that came before the disk was asked to flush the promised data.

A call that returns too early looks like a flush that was dropped, but the data are on their way: they are safe after
one of the next flushes. The fault is in a layer below the program, such as its kernel's filesystem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from guestmark.powercut import cuts
from guestmark.powercut.cuts import Survival
from guestmark.powercut.judge import Crash, JudgedStates, JudgeInput, judge_cuts
from guestmark.powercut.writelog import Entry

# Acknowledgements that are looked at, and flushes after each of them: later, the program has often synced again.
_ACKNOWLEDGEMENTS = 16
_FLUSHES = 8


@dataclass(frozen=True, slots=True)
class EarlyReturns:
    """The number of states that lost data because a call returned early, and by how many requests in the first."""

    states: int = 0
    requests: int = 0


def find_early_returns(
    evidence: JudgeInput, entries: Sequence[Entry], judged: JudgedStates, parent: Path
) -> EarlyReturns:
    """Return in how many losing states one of the next flushes would have saved the data. Raises `MachineError`."""
    by_newest: dict[int, list[Crash]] = {}
    for crash in judged.crashes:
        if crash.lost is not None:
            by_newest.setdefault(crash.acknowledged, []).append(crash)
    states = requests = 0
    for newest in sorted(by_newest)[:_ACKNOWLEDGEMENTS]:
        moment = evidence.moment(by_newest[newest][0].cut.after)
        late = _count_late_requests(evidence, entries, newest, moment, parent)
        if late:
            states += len(by_newest[newest])
            requests = requests or late
    return EarlyReturns(states, requests)


def _count_late_requests(
    evidence: JudgeInput, entries: Sequence[Entry], newest: int, moment: int, parent: Path
) -> int:
    """Return how many requests after its acknowledgement a record became safe; 0 if no flush made it safe."""
    flushes: list[int] = []
    for position in range(moment, len(entries)):
        if entries[position].is_flush and len(flushes) < _FLUSHES:
            flushes.append(position + 1)
    if not flushes:
        return 0
    # At those moments more had been acknowledged, and more written, which does not matter here.
    asked = replace(evidence, acknowledged=lambda _: newest, moment=lambda _: 0)
    states = [cuts.make_cut_at(entries, after, Survival.NONE) for after in flushes]
    judged = judge_cuts(asked, entries, states, parent)
    lost = {crash.cut.after for crash in judged.crashes if crash.lost is not None or crash.torn_superblock}
    for after in flushes:
        if after not in lost:
            return after - moment
    return 0
