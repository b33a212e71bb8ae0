"""Searches by experiment for the smallest set of syncs with which a program loses nothing.

Syncs are added where the trace lacks them, then before each acknowledgement, and finally after every call that changes
the disk. If something is lost even then, no sync cures it. Otherwise delta debugging (Zeller, Hildebrandt 2002)
leaves out every sync without which nothing is lost either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from guestmark.core.findings import Durability, Explanation, LossCause, Proven
from guestmark.powercut.calls import AddedSyncs, Call, CallKind, SyncPoint, list_sync_points, widen_sync_point
from guestmark.powercut.minimize import find_minimal_failing_subset

# Number of rounds in which syncs are added where the last log's trace lacks them.
_ROUNDS = 4
# A log without a loss is conclusive if the probability that this is chance is at most this.
_CHANCE = 0.05
# Number of logs that are written to leave out syncs.
_MOST_LOGS = 24


@dataclass(frozen=True, slots=True)
class TriedSyncs:
    """The proof of a log that was written with syncs added.

    `points` are the places where its explained losses call for more syncs, `calls` is the trace.
    """

    syncs: AddedSyncs
    proven: Proven
    points: Sequence[SyncPoint]
    calls: Sequence[Call]

    @property
    def is_conclusive(self) -> bool:
        """True if enough states were judged for a verdict, and the check gave consistent results."""
        return self.proven.word is not Durability.UNKNOWN


class SyncTrial(Protocol):
    """Writes and judges a log of the program with syncs added."""

    def __call__(self, syncs: AddedSyncs, *, until_loss: bool) -> TriedSyncs | None:
        """Return what is lost, or with `until_loss` only whether anything is; None if no log could be recorded."""


@dataclass(slots=True)
class CureSearch:
    """A search for syncs that cure a loss.

    `has_time` returns whether it may continue, `acknowledges` tells whether the program acknowledges anything.
    """

    try_syncs: SyncTrial
    has_time: Callable[[], bool]
    acknowledges: bool
    # The reasons for losses found with syncs added, in order.
    causes: list[LossCause] = field(default_factory=list)
    _lost: list[AddedSyncs] = field(default_factory=list)
    # The smallest share of states that failed in a log.
    _rarest: float = 1.0

    def add_cure_to_explanation(
        self, explained: Explanation, points: Sequence[SyncPoint], first: Proven
    ) -> Explanation:
        """Return the explanation with the effect of added syncs; the first log lacked them at `points`."""
        self._note_share(first)
        # For a torn write no sync is missing, and rare ones may not appear in another log.
        torn_only = first.untorn is not None and not first.untorn.losing
        tried = self._try_all_syncs() if torn_only else self._add_syncs(points)
        if tried is None or (torn_only and not tried.proven.losing):
            return explained
        if not tried.proven.losing:
            tried = self._leave_out_syncs(tried)
        syncs = tried.syncs
        # If the trace lacks an acknowledgement, nothing is known of what had been synced before it.
        heard = sum(call.kind is CallKind.SAID for call in tried.calls)
        untorn = tried.proven.untorn
        if syncs.each and heard != tried.proven.acknowledged:
            untorn = None
        return msgspec.structs.replace(
            explained,
            further=self.causes,
            added=[f"{kind} {path or 'any file'}" for kind, path in syncs.after],
            each=syncs.each,
            every=syncs.every,
            states=tried.proven.states,
            losing=tried.proven.losing,
            untorn=untorn,
        )

    def _add_syncs(self, points: Sequence[SyncPoint]) -> TriedSyncs | None:
        """Return the first log that loses nothing, or else the one with the most syncs; None if no log was judged."""
        added: tuple[SyncPoint, ...] = ()
        last: TriedSyncs | None = None
        for _ in range(_ROUNDS):
            new = tuple(point for point in dict.fromkeys(points) if point not in added)
            if not new:
                break
            tried = self._try_and_explain(AddedSyncs((*added, *new)))
            if tried is None or not tried.proven.losing:
                return tried or last
            last, added, points = tried, tried.syncs.after, tried.points
        if self.acknowledges:
            tried = self._try_and_explain(AddedSyncs(added, each=True))
            if tried is None or not tried.proven.losing:
                return tried or last
            last = tried
        return self._try_all_syncs() or last

    def _try_all_syncs(self) -> TriedSyncs | None:
        return self._try_and_explain(AddedSyncs(each=self.acknowledges, every=True))

    def _try_and_explain(self, syncs: AddedSyncs) -> TriedSyncs | None:
        """Try syncs, for whole directories where names differ from log to log; record the cause of a loss."""
        tried = self._try_conclusively(syncs)
        if tried is None:
            return None
        wider = tuple(dict.fromkeys(widen_sync_point(point, tried.calls) for point in syncs.after))
        if wider != syncs.after and tried.proven.losing:
            tried = self._try_conclusively(AddedSyncs(wider, each=syncs.each, every=syncs.every)) or tried
        if tried.proven.explanation is not None:
            why = tried.proven.explanation
            self.causes.append(LossCause(files=why.files, calls=why.calls))
        return tried

    def _try_conclusively(self, syncs: AddedSyncs, *, until_loss: bool = False) -> TriedSyncs | None:
        """Return the attempt if it lost data, or judged enough states to show that it does not; else None."""
        if not self.has_time():
            return None
        tried = self.try_syncs(syncs, until_loss=until_loss)
        if tried is None or not tried.is_conclusive:
            return None
        if tried.proven.losing:
            self._lost.append(syncs)
            if not until_loss:
                self._note_share(tried.proven)
            return tried
        # The probability that no state fails, if as large a share failed as in the other logs.
        chance = (1.0 - self._rarest) ** tried.proven.states
        return tried if chance <= _CHANCE else None

    def _note_share(self, found: Proven) -> None:
        if found.losing:
            self._rarest = min(self._rarest, found.losing / found.states)

    def _leave_out_syncs(self, tried: TriedSyncs) -> TriedSyncs:
        """Return the log with the fewest syncs that still loses nothing, as far as time allows."""
        places: list[SyncPoint | None] = [*tried.syncs.after]
        if tried.syncs.every:
            places = [*list_sync_points(tried.calls)]
        if tried.syncs.each:
            # The one before each acknowledgement.
            places.append(None)
        held, logs = [tried], 0

        def holds_with_syncs(left: Sequence[SyncPoint | None]) -> bool:
            nonlocal logs
            syncs = AddedSyncs(tuple(_select_necessary_places(left)), each=None in left)
            # A log may pass by chance where another one lost data, so one loss is enough.
            if self._has_lost(syncs):
                return False
            logs += 1
            if logs > _MOST_LOGS or not self.has_time():
                raise TimeoutError
            found = self._try_conclusively(syncs, until_loss=True)
            if found is None or found.proven.losing:
                return False
            held.append(found)
            return True

        with contextlib.suppress(TimeoutError):
            find_minimal_failing_subset(places, holds_with_syncs)
        # It was selected because it passed, which may be chance, so it has to pass once more.
        while len(held) > 1:
            again = self._try_conclusively(held[-1].syncs, until_loss=True)
            if again is None or not again.proven.losing:
                break
            held.pop()
        return held[-1]

    def _has_lost(self, syncs: AddedSyncs) -> bool:
        """Return True if a log with at least these syncs has lost something."""
        return any(syncs.is_within(known) for known in self._lost)


def _select_necessary_places(left: Iterable[SyncPoint | None]) -> Iterable[SyncPoint]:
    return (place for place in left if place is not None)
