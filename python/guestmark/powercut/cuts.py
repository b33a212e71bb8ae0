"""Which crash states are looked at: moments at which the power is cut, and what of the writes in flight survives.

Everything that a completed flush covers is on the disk, and so is a write with FUA. Of what came after the last flush a
disk may have kept anything: all, nothing, the first half, or any subset; and of one write any of its sectors.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from guestmark.powercut.writelog import Entry, Flag

_ATTEMPTS = 8  # for each state that is wanted: many cuts have the same outcome


class Survival(StrEnum):
    """What of the writes since the last completed flush is on the disk."""

    ALL = "all"
    HALF = "the first half"
    NONE = "none"
    SUBSET = "a random subset"
    TORN_512 = "torn sectors of 512 bytes"
    TORN_4096 = "torn sectors of 4096 bytes"


TORN = {Survival.TORN_512: 512, Survival.TORN_4096: 4096}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one request: `skip` bytes into its data."""

    entry: int
    skip: int
    length: int


@dataclass(frozen=True, slots=True)
class Cut:
    """One crash state: `after` so many requests, of which `flushed` are on the disk, and of the others `pieces`."""

    after: int
    flushed: int
    survival: Survival
    pieces: tuple[Piece, ...]

    @property
    def outcome(self) -> tuple[int, tuple[Piece, ...]]:
        """Equal for cuts that leave the same bytes."""
        return self.flushed, self.pieces


def choose(
    entries: Sequence[Entry], *, start: int, count: int, seed: int = 0, always: int | None = None
) -> list[Cut]:
    """Up to `count` different crash states after more than `start` requests, by where they are cut.

    There are fewer when the log has no more. Among them is what is on the disk for sure after `always` requests.
    Depends only on the arguments.
    """
    chosen = tuple(Survival)
    flushed = _flushed(entries)
    generator = random.Random(seed)
    found: dict[tuple[int, tuple[Piece, ...]], Cut] = {}
    if always is not None:
        sure = at(entries, always, Survival.NONE)
        found[sure.outcome] = sure
    if start >= len(entries):
        return list(found.values())
    for number in range(count * _ATTEMPTS):
        after = generator.randint(start + 1, len(entries))
        survival = chosen[number % len(chosen)]
        pieces = tuple(_pieces(entries, flushed[after], after, survival, generator))
        cut = Cut(after, flushed[after], survival, pieces)
        found.setdefault(cut.outcome, cut)
        if len(found) == count:
            break
    return sorted(found.values(), key=lambda cut: cut.after)


def at(entries: Sequence[Entry], after: int, survival: Survival) -> Cut:
    """One crash state; of those that are random, always the same."""
    flushed = _flushed(entries)[after]
    return Cut(after, flushed, survival, tuple(_pieces(entries, flushed, after, survival, random.Random(0))))


def without_flushes(entries: Sequence[Entry], start: int) -> list[Entry]:
    """The log as a hypervisor that drops flushes would have left it, from one request on."""
    kept = list(entries[:start])
    kept += [replace(entry, flags=entry.flags & ~(Flag.FLUSH | Flag.FUA)) for entry in entries[start:]]
    return kept


def write_through(entries: Sequence[Entry], start: int) -> bool:
    """Whether nearly every write from one request on is flushed at once, so that none is ever in flight."""
    writes = alone = 0
    for position in range(start, len(entries)):
        entry = entries[position]
        if entry.writes:
            writes += 1
            behind = entries[position + 1] if position + 1 < len(entries) else entry
            alone += bool(entry.flags & Flag.FUA) or behind.flushes
    return writes > 0 and alone >= 0.95 * writes


def _flushed(entries: Sequence[Entry]) -> list[int]:
    """For every number of requests how many of them the last completed flush covers."""
    covered = [0]
    for position, entry in enumerate(entries):
        covered.append(position if entry.flushes else covered[-1])
    return covered


def _pieces(
    entries: Sequence[Entry], flushed: int, after: int, survival: Survival, generator: random.Random
) -> Iterator[Piece]:
    pending = [number for number in range(flushed, after) if entries[number].length]
    sure = [number for number in pending if entries[number].flags & Flag.FUA]
    open_ = [number for number in pending if number not in set(sure)]
    torn: int | None = None
    match survival:
        case Survival.ALL:
            kept = set(open_)
        case Survival.NONE:
            kept = set()
        case Survival.HALF:
            kept = set(open_[: len(open_) // 2])
        case _:
            kept = {number for number in open_ if generator.random() < 0.5}
    if survival in TORN:
        tearable = [
            number for number in open_ if entries[number].writes and entries[number].length > TORN[survival]
        ]
        torn = generator.choice(tearable) if tearable else None
    for number in pending:
        length = entries[number].length
        if number == torn:
            unit = TORN[survival]
            yield from (
                Piece(number, skip, min(unit, length - skip))
                for skip in range(0, length, unit)
                if generator.random() < 0.5
            )
        elif number in kept or number in sure:
            yield Piece(number, 0, length)
