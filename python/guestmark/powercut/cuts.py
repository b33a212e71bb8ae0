"""Chooses crash states: moments at which the power is cut, and which of the writes in flight survive.

Everything that a completed flush covers is on the disk, and so is a write with FUA. Any subset of the later writes may
have survived, and any sectors of a torn write.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import TypeVar

import msgspec

from guestmark.core.findings import Coverage
from guestmark.powercut.writelog import Entry, Flag, count_flushes, count_writes

# Bytes that a disk writes entirely or not at all. Only devices with `queue/atomic_write_unit_max_bytes` promise more
# than a logical block, and no device of a guest does.
_ATOMIC = 512
# Pages of databases end at multiples of this, so a write torn there would leave whole pages only.
_PAGE, _BEFORE_PAGE = 8192, 4096
# Parts of a checkpoint's write after which it is torn: pages that had no content before cannot be damaged.
_TORN_AT = (0.5, 0.25, 0.75)
# Attempts for each random state, since many cuts have the same outcome.
_ATTEMPTS = 8
_MOST = 6000  # states of one log
# How many flushes may follow a single missing write; later, its blocks have often been rewritten.
_FLUSHES_AFTER = 6
# Number of writes that a disk which ignores flushes has lost; at most half of those in flight.
_MISSING = (1, 1, 2, 4, 16, 1 << 30)


T = TypeVar("T")


class Survival(StrEnum):
    """Which of the writes since the last completed flush reach the disk."""

    ALL = "all"
    HALF = "the first half"
    NONE = "none"
    SUBSET = "a random subset"
    TORN_512 = "torn sectors of 512 bytes"
    TORN_4096 = "torn sectors of 4096 bytes"
    TORN_LAST = "half of the last write"

    @property
    def as_clause(self) -> str:
        """The value as a clause: `the first half survives`."""
        plural = self in {Survival.ALL, Survival.TORN_512, Survival.TORN_4096}
        return f"{self} survive" if plural else f"{self} survives"


_RANDOM = (Survival.HALF, Survival.SUBSET, Survival.TORN_512, Survival.TORN_4096)
TORN = {Survival.TORN_512: 512, Survival.TORN_4096: 4096}
TEARING = frozenset({*TORN, Survival.TORN_LAST})


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one request, `skip` bytes into its data."""

    entry: int
    skip: int
    length: int


Outcome = tuple[int, tuple[Piece, ...]]  # the kept requests, and pieces of the others


@dataclass(frozen=True, slots=True)
class Cut:
    """A crash state after `after` requests: the first `kept` are on the disk, and so are `pieces` of the others."""

    after: int
    kept: int
    survival: Survival
    pieces: tuple[Piece, ...]

    @property
    def outcome(self) -> Outcome:
        """A key that is equal for cuts that leave the same bytes on the disk."""
        return self.kept, self.pieces


class CutKind(Enum):
    """Why a state was chosen."""

    WORST = auto()
    BETWEEN = auto()
    TORN = auto()
    RANDOM = auto()


@dataclass(frozen=True, slots=True)
class ChosenCuts:
    """Crash states with different outcomes, in the order in which their images are created, and what they cover.

    `kinds` has the outcomes of each kind in the order of their moments; one outcome may be of several kinds.
    """

    cuts: tuple[Cut, ...]
    coverage: Coverage
    kinds: Mapping[CutKind, tuple[Outcome, ...]]

    def choose_sampling_order(self) -> list[Cut]:
        """Return the states ordered so that every prefix is a fair sample.

        The worst states come first, then equal shares of all other kinds.
        """
        worst = _order_by_bit_reversal(self.kinds[CutKind.WORST])
        shares = []
        for kind, outcomes in self.kinds.items():
            if kind is CutKind.WORST:
                continue
            # Sorted by its place within its kind, every beginning has as large a part of each kind.
            for number, outcome in enumerate(_order_by_bit_reversal(outcomes)):
                shares.append(((number + 0.5) / len(outcomes), kind.value, outcome))
        shares.sort(key=lambda share: share[:2])
        order = dict.fromkeys(worst)
        for _, _, outcome in shares:
            order[outcome] = None
        by_outcome = {cut.outcome: cut for cut in self.cuts}
        return [by_outcome[outcome] for outcome in order]

    def compute_coverage(self, judged: Collection[Cut]) -> Coverage:
        """Return the coverage if only these states were judged."""
        seen = {cut.outcome for cut in judged}
        part = {}
        for kind, outcomes in self.kinds.items():
            part[kind] = sum(outcome in seen for outcome in outcomes)
        return msgspec.structs.replace(
            self.coverage, worst=part[CutKind.WORST], cuts=part[CutKind.BETWEEN], torn=part[CutKind.TORN],
            random=part[CutKind.RANDOM],
        )  # fmt: skip


def _order_by_bit_reversal(values: Sequence[Outcome]) -> list[Outcome]:
    """Return the values ordered so that every prefix is spread over all of them (base-2 Van der Corput sequence)."""
    width = max(len(values) - 1, 1).bit_length()
    order = []
    for number in range(1 << width):
        place = int(f"{number:0{width}b}"[::-1], 2)
        if place < len(values):
            order.append(values[place])
    return order


def choose_cuts(
    entries: Sequence[Entry],
    moments: Sequence[int],
    *,
    start: int,
    count: int,
    seed: int,
    most: int | None = None,
    checkpoints: Sequence[range] = (),
) -> ChosenCuts:
    """Return the crash states that a proof judges, for a log whose first `start` requests are not cut.

    - For each of `moments`, at which something had just been acknowledged, the worst state: only what was flushed
      survives.
    - A cut between any two requests, with everything before it on the disk; if there are too many, those in the
      smallest flush epochs.
    - Each write larger than what a disk writes atomically, torn in half, with everything before it on the disk; if
      there are more than `count`, the largest. Those of `checkpoints`, in which a database overwrites its pages, come
      first, and are torn in several places.
    - `count` random states.

    With `most`, about that many states are chosen in all.
    """
    flushed = _count_flushed_requests(entries)
    # Survivals of these kinds draw no random numbers.
    none = random.Random(0)
    found: dict[Outcome, Cut] = {}
    kinds: dict[CutKind, list[Outcome]] = {kind: [] for kind in CutKind}

    def take(cut: Cut, kind: CutKind | None) -> None:
        # Of equal states the latest is kept, because it has the most acknowledgements to lose.
        known = found.get(cut.outcome)
        if kind is not None:
            kinds[kind].append(cut.outcome)
        if known is None or known.after < cut.after:
            found[cut.outcome] = cut

    most_worst, most_between, most_torn = _MOST, _MOST, count
    if most is not None:
        most_worst, most_between, most_torn = max(1, most // 2), most // 4, max(1, most // 4)
    worst = _pick_evenly(moments, most_worst)
    for after in worst:
        take(_make_cut(entries, flushed, after, Survival.NONE, none), CutKind.WORST)
    ends = sorted(range(start, len(entries) + 1), key=lambda after: after - flushed[after])
    between = ends[:most_between]
    for after in sorted(between):
        take(_make_cut(entries, flushed, after, Survival.ALL, none), CutKind.BETWEEN)
    tearable = [number for number in range(start, len(entries)) if _can_tear(entries[number])]
    torn, states = _tear_writes(entries, flushed, tearable, checkpoints, most_torn)
    for state in sorted(states, key=lambda cut: cut.after):
        take(state, CutKind.TORN)
    before = len(found)
    wanted = count if most is None else max(1, most - before)
    generator = random.Random(seed)
    for number in range(_count_attempts(entries, start, wanted)):
        if len(found) - before >= wanted:
            break
        after = generator.randint(start + 1, len(entries))
        cut = _make_cut(entries, flushed, after, _RANDOM[number % len(_RANDOM)], generator)
        take(cut, None if cut.outcome in found else CutKind.RANDOM)
    coverage = Coverage(
        worst=len(worst), acknowledgements=len(moments), cuts=len(between), requests=len(ends),
        torn=torn, tearable=len(tearable), random=len(found) - before, seed=seed,
    )  # fmt: skip
    in_order = sorted(found.values(), key=lambda cut: (cut.kept, cut.after))
    return ChosenCuts(tuple(in_order), coverage, {kind: tuple(outcomes) for kind, outcomes in kinds.items()})


def _count_attempts(entries: Sequence[Entry], start: int, states: int) -> int:
    """Return how many random cuts to try for this many states; 0 if the log has no request that may be cut."""
    return states * _ATTEMPTS if start < len(entries) else 0


def _tear_writes(
    entries: Sequence[Entry],
    flushed: Sequence[int],
    tearable: Sequence[int],
    checkpoints: Sequence[range],
    most: int,
) -> tuple[int, list[Cut]]:
    """Return about `most` states with a torn write, and the number of torn writes: pages first, then the largest."""
    paging = set[int]().union(*checkpoints)
    in_order = sorted(tearable, key=lambda number: (number not in paging, -entries[number].length, number))
    torn = 0
    states: list[Cut] = []
    for number in in_order:
        if len(states) >= most:
            break
        torn += 1
        parts = _TORN_AT if number in paging else _TORN_AT[:1]
        for part in parts:
            states.append(_cut_torn_write(entries, flushed, number, part))
    return torn, states


def choose_scrambled_cuts(entries: Sequence[Entry], *, start: int, count: int, seed: int) -> ChosenCuts:
    """Return crash states of a disk that ignores flushes, for a log whose first `start` requests are not cut.

    In up to half of them, only the first write before a flush is missing, while everything after it is present, because
    programs sync what later writes depend on. In the others, a random choice of one, some or half of the writes in
    flight is missing, and in every other state one more write is torn.
    """
    flushes = [position for position, entry in enumerate(entries) if entry.is_flush and position >= start]
    entries = drop_flushes(entries, start)
    flushed, generator = _count_flushed_requests(entries), random.Random(seed)
    found = _omit_first_writes(entries, flushed, flushes, start, count // 2)
    for number in range(_count_attempts(entries, start, count)):
        if len(found) == count:
            break
        after = generator.randint(start + 1, len(entries))
        pending = _list_pending_requests(entries, flushed[after], after)
        missing = set(generator.sample(pending, min(_MISSING[number % len(_MISSING)], len(pending) // 2)))
        left = [position for position in pending if position not in missing]
        torn = generator.choice(left) if left and number % 2 else None
        pieces = []
        for position in left:
            length = entries[position].length
            if position == torn:
                length = _choose_torn_length(entries[position])
            pieces.append(Piece(position, 0, length))
        cut = _normalize_cut(entries, after, flushed[after], Survival.SUBSET, pieces)
        found.setdefault(cut.outcome, cut)
    coverage = Coverage(worst=0, acknowledgements=0, cuts=0, requests=0, random=len(found), seed=seed)
    in_order = tuple(sorted(found.values(), key=lambda cut: (cut.kept, cut.after)))
    kinds: dict[CutKind, tuple[Outcome, ...]] = dict.fromkeys(CutKind, ())
    return ChosenCuts(in_order, coverage, {**kinds, CutKind.RANDOM: tuple(found)})


def _omit_first_writes(
    entries: Sequence[Entry], flushed: Sequence[int], flushes: Sequence[int], start: int, count: int
) -> dict[Outcome, Cut]:
    """Return cuts at flushes that each lack one write: the first of the writes that an earlier flush covers."""
    firsts: list[tuple[int, int]] = []
    before = start
    for number, flush in enumerate(flushes):
        first_write = _find_first_write(entries, before, flush)
        if first_write is not None:
            firsts.append((number, first_write))
        before = flush + 1
    pairs: list[tuple[int, int]] = []
    for number, first in firsts:
        for flush in flushes[number + 1 : number + 1 + _FLUSHES_AFTER]:
            pairs.append((first, flush + 1))
    found: dict[Outcome, Cut] = {}
    for first, after in _pick_evenly(pairs, count):
        whole = _list_whole_pieces(entries, flushed[after], after)
        pieces = [piece for piece in whole if piece.entry != first]
        cut = _normalize_cut(entries, after, flushed[after], Survival.SUBSET, pieces)
        found.setdefault(cut.outcome, cut)
    return found


def _find_first_write(entries: Sequence[Entry], start: int, end: int) -> int | None:
    for position in range(start, end):
        if entries[position].is_write:
            return position
    return None


def _list_pending_requests(entries: Sequence[Entry], start: int, end: int) -> list[int]:
    return [position for position in range(start, end) if entries[position].length]


def _list_whole_pieces(entries: Sequence[Entry], start: int, end: int) -> list[Piece]:
    pending = _list_pending_requests(entries, start, end)
    return [Piece(position, 0, entries[position].length) for position in pending]


def _choose_torn_length(entry: Entry, part: float = 0.5) -> int:
    """Return the length of about that part of a write, in whole atomic units, ending inside a database page.

    Returns the full length of a write that cannot be torn.
    """
    if not _can_tear(entry):
        return entry.length
    length = max(int(entry.length * part) // _ATOMIC * _ATOMIC, _ATOMIC)
    return length - _BEFORE_PAGE if length % _PAGE == 0 else length


def _can_tear(entry: Entry) -> bool:
    return bool(entry.is_write) and entry.length > _ATOMIC


def _cut_torn_write(entries: Sequence[Entry], flushed: Sequence[int], number: int, part: float) -> Cut:
    """Return the cut that leaves everything before a write, and about that part of the write."""
    kept = flushed[number]
    pieces = _list_whole_pieces(entries, kept, number)
    pieces.append(Piece(number, 0, _choose_torn_length(entries[number], part)))
    return _normalize_cut(entries, number + 1, kept, Survival.TORN_LAST, pieces)


def _pick_evenly(values: Sequence[T], most: int) -> list[T]:
    """Return `most` of the values, evenly spread, always with the last one."""
    if len(values) <= most:
        return list(values)
    if most == 0:
        return []
    step = len(values) / most
    return [values[len(values) - 1 - int(number * step)] for number in range(most)]


def make_cut_at(entries: Sequence[Entry], after: int, survival: Survival) -> Cut:
    """Return one crash state; a random survival always gives the same state."""
    return _make_cut(entries, _count_flushed_requests(entries), after, survival, random.Random(0))


def _make_cut(
    entries: Sequence[Entry], flushed: Sequence[int], after: int, survival: Survival, generator: random.Random
) -> Cut:
    """Return the normalized cut after `after` requests."""
    kept = flushed[after]
    pieces = list(_iterate_surviving_pieces(entries, kept, after, survival, generator))
    return _normalize_cut(entries, after, kept, survival, pieces)


def _normalize_cut(
    entries: Sequence[Entry], after: int, kept: int, survival: Survival, pieces: Sequence[Piece]
) -> Cut:
    """Return the cut with `kept` raised up to the first gap in the survivors, so that equal outcomes compare equal."""
    gone = 0
    while kept < after:
        entry = entries[kept]
        if entry.length:
            if gone == len(pieces) or pieces[gone] != Piece(kept, 0, entry.length):
                break
            gone += 1
        kept += 1
    return Cut(after, kept, survival, tuple(pieces[gone:]))


def drop_flushes(entries: Sequence[Entry], start: int) -> list[Entry]:
    """Return the log as left by a hypervisor that drops all flushes after the first `start` requests."""
    kept = list(entries[:start])
    kept += [replace(entry, flags=entry.flags & ~(Flag.FLUSH | Flag.FUA)) for entry in entries[start:]]
    return kept


def is_write_through(entries: Sequence[Entry], start: int) -> bool:
    """Return True if, after the first `start` requests, there is at least one flush for every two writes.

    Then no write is in flight for long. A disk with a writeback cache gets hardly any flushes unless a filesystem sends
    them.
    """
    part = entries[start:]
    writes, flushes = count_writes(part), count_flushes(part)
    return writes > 0 and 2 * flushes >= writes


def _count_flushed_requests(entries: Sequence[Entry]) -> list[int]:
    """Return, for each number of executed requests, how many of them the last completed flush covers."""
    covered = [0]
    for position, entry in enumerate(entries):
        last = covered[-1]
        if entry.is_flush:
            # Requests that were written while the flush was going on need not be covered by it.
            done = position if entry.covers is None else min(entry.covers, position)
            last = max(last, done)
        covered.append(last)
    return covered


def _iterate_surviving_pieces(
    entries: Sequence[Entry], flushed: int, after: int, survival: Survival, generator: random.Random
) -> Iterator[Piece]:
    pending = _list_pending_requests(entries, flushed, after)
    # A write with FUA is on the disk once it is done.
    sure = {number for number in pending if entries[number].flags & Flag.FUA}
    in_flight = [number for number in pending if number not in sure]
    kept = sure | _choose_survivors(in_flight, survival, generator)
    torn: int | None = None
    if survival in TORN:
        tearable = []
        for number in in_flight:
            if entries[number].is_write and entries[number].length > TORN[survival]:
                tearable.append(number)
        if tearable:
            torn = generator.choice(tearable)
    for number in pending:
        length = entries[number].length
        if number == torn:
            unit = TORN[survival]
            for skip in range(0, length, unit):
                if generator.random() < 0.5:
                    yield Piece(number, skip, min(unit, length - skip))
        elif number in kept:
            yield Piece(number, 0, length)


def _choose_survivors(in_flight: Sequence[int], survival: Survival, generator: random.Random) -> set[int]:
    match survival:
        case Survival.ALL:
            return set(in_flight)
        case Survival.NONE:
            return set()
        case Survival.HALF:
            return set(in_flight[: len(in_flight) // 2])
        case _:
            return {number for number in in_flight if generator.random() < 0.5}
