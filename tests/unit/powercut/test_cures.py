"""The search for the fewest syncs that cure a loss, on programs of which it is known which syncs they lack."""

import random
from collections.abc import Sequence

import pytest

from guestmark.core.findings import Durability, Explanation, Proven, Untorn
from guestmark.powercut.calls import AddedSyncs, Call, CallKind, SyncPoint
from guestmark.powercut.cures import CureSearch, TriedSyncs

WHY = Explanation(said="a record is lost", files=["f"])
EACH = ("each", "")


def judged(*, losing: int, untorn: Untorn | None = None, word: Durability | None = None) -> Proven:
    found = word or (Durability.LOST if losing else Durability.PROVEN)
    return Proven(
        word=found, why="", method="", acknowledged=3, states=50, losing=losing, repaired=0, controls=[], below=[],
        writes=1, flushes=1, run_s=0.0, judge_s=0.0, untorn=untorn, explanation=WHY if losing else None,
    )  # fmt: skip


class Lacking:
    """A program that loses something unless it has all of these syncs; the trace tells of `told`, one at a time."""

    def __init__(
        self, changed: Sequence[str], lacked: Sequence[SyncPoint], told: Sequence[SyncPoint]
    ) -> None:
        self.calls = [Call(CallKind.WRITE, (path,)) for path in changed]
        self.lacked, self.told = lacked, told
        self.logs: list[AddedSyncs] = []

    def find_points(self, syncs: AddedSyncs) -> list[SyncPoint]:
        return [point for point in self.told if point not in syncs.after][:1]

    def __call__(self, syncs: AddedSyncs, *, until_loss: bool) -> TriedSyncs | None:
        self.logs.append(syncs)
        there = {*syncs.after, *([EACH] if syncs.each else [])}
        if syncs.every:
            there |= {("write", call.path) for call in self.calls}
        losing = 5 * len(set(self.lacked) - there)
        return TriedSyncs(syncs, judged(losing=losing), self.find_points(syncs), self.calls)

    def search(self, first: Proven | None = None) -> Explanation:
        search = CureSearch(self, lambda: True, acknowledges=True)
        return search.add_cure_to_explanation(WHY, self.find_points(AddedSyncs()), first or judged(losing=5))


@pytest.mark.parametrize("seed", range(30))
def test_exactly_the_syncs_that_are_lacking_are_found(seed: int) -> None:
    generator = random.Random(seed)
    changed = [f"file-{chr(97 + number)}" for number in range(generator.randint(1, 20))]
    places: list[SyncPoint] = [("write", path) for path in changed]
    lacked = generator.sample([*places, EACH], generator.randint(1, min(3, len(places))))
    # A trace may tell of some of them, and of others that do not matter.
    told = generator.sample(places, generator.randint(0, len(places)))
    program = Lacking(changed, lacked, told)
    found = program.search()
    assert found.losing == 0
    assert found.states == 50
    added = {f"{kind} {path}" for kind, path in lacked if (kind, path) != EACH}
    if len(program.logs) <= 24:
        assert (set(found.added), found.each, found.every) == (added, EACH in lacked, False)
    else:
        assert added <= set(found.added) or found.every
    assert len(program.logs) <= 33


@pytest.mark.parametrize("seed", range(10))
def test_what_chance_spares_in_one_log_is_no_cure(seed: int) -> None:
    generator = random.Random(seed)
    program = Lacking(["f", "g"], [("write", "f"), ("write", "g")], [("write", "f"), ("write", "g")])

    def try_syncs(syncs: AddedSyncs, *, until_loss: bool) -> TriedSyncs | None:
        tried = program(syncs, until_loss=until_loss)
        spared = tried is not None and set(syncs.after) == {("write", "f")} and generator.random() < 0.5
        return TriedSyncs(syncs, judged(losing=0), tried.points, tried.calls) if spared and tried else tried

    # The sync of f alone was seen to lose something, or it is tried a second time.
    search = CureSearch(try_syncs, lambda: True, acknowledges=True)
    search.add_cure_to_explanation(WHY, [("write", "f")], judged(losing=5))
    alone = [syncs for syncs in program.logs if syncs == AddedSyncs((("write", "f"),))]
    assert len(alone) <= 2


def test_what_no_sync_cures_is_tried_with_all_of_them() -> None:
    program = Lacking(["f"], [("write", "elsewhere")], [("write", "f")])
    found = program.search()
    assert (found.every, found.each, found.losing) == (True, True, 5)
    assert program.logs[-1] == AddedSyncs(each=True, every=True)


def test_no_single_sync_is_tried_against_torn_writes() -> None:
    program = Lacking(["f"], [("write", "elsewhere")], [("write", "f")])
    program.search(judged(losing=5, untorn=Untorn(40, 0, 0)))
    assert program.logs == [AddedSyncs(each=True, every=True)]


@pytest.mark.parametrize("logs", range(5))
def test_a_search_ends_when_time_is_up(logs: int) -> None:
    program = Lacking(["f", "g", "h"], [("write", "g"), EACH], [])
    search = CureSearch(program, lambda: len(program.logs) < logs, acknowledges=True)
    found = search.add_cure_to_explanation(WHY, [], judged(losing=5))
    assert len(program.logs) == logs
    # Half a search says what held, or what was tried and did not.
    assert bool(found.states) == bool(logs)
    assert bool(found.losing) == (logs == 1)


def test_what_is_rare_needs_many_states() -> None:
    """With 1 of 50 failing, 50 more states without a failure say little."""
    program = Lacking(["f"], [("write", "f")], [("write", "f")])
    found = program.search(judged(losing=1))
    assert (found.states, found.added) == (0, [])


def test_that_a_rare_torn_write_did_not_appear_is_no_cure() -> None:
    program = Lacking(["f"], [("write", "f")], [("write", "f")])
    assert program.search(judged(losing=5, untorn=Untorn(40, 0, 0))) == WHY


def test_a_log_with_too_few_states_is_no_cure() -> None:
    def try_syncs(syncs: AddedSyncs, *, until_loss: bool) -> TriedSyncs:
        return TriedSyncs(syncs, judged(losing=0, word=Durability.UNKNOWN), (), ())

    search = CureSearch(try_syncs, lambda: True, acknowledges=True)
    assert search.add_cure_to_explanation(WHY, [("write", "f")], judged(losing=5)) == WHY
