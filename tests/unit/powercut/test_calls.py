"""What a program did to its files: which of its calls left something unsynced, and which files make a check fail."""

import itertools
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from guestmark.powercut.calls import (
    Call,
    CallKind,
    Change,
    Difference,
    find_late_call,
    find_unsynced_call,
    list_calls_before_record,
    list_sync_points,
    list_unsynced_writes,
    parse_calls,
    widen_sync_point,
)
from guestmark.powercut.explanation import list_differences
from guestmark.powercut.minimize import find_minimal_failing_subset


def done(*words: str) -> list[Call]:
    """Calls as they are written here: `rename a b`."""
    return [Call(CallKind(kind), tuple(paths)) for kind, *paths in (word.split(" ") for word in words)]


REPLACED = ("create d/f.new", "write d/f.new", "fsync d/f.new", "rename d/f.new d/f")
MISSING, BACK, CONTENT = Change.MISSING, Change.BACK, Change.CONTENT


@pytest.mark.parametrize(
    ("calls", "path", "change", "words", "cure"),
    [
        (REPLACED, "d/f", CONTENT, "the rename of d/f.new to d/f was never followed by a sync of d", ("rename", "d/f")),
        (REPLACED, "d/f", MISSING, "the rename of d/f.new to d/f was never followed by a sync of d", ("rename", "d/f")),
        ((*REPLACED, "fsync d"), "d/f", CONTENT, None, None),
        ((*REPLACED, "sync"), "d/f", MISSING, None, None),
        ((*REPLACED, "fsync e"), "d/f", MISSING, "the rename of d/f.new to d/f was never", ("rename", "d/f")),
        (
            ("create f.new", "write f.new", "rename f.new f"), "f", CONTENT,
            "what was written to f.new, which is f now, was never synced", ("write", "f.new"),
        ),
        (("write f", "fsync f", "write f"), "f", CONTENT, "what was written to f was never", ("write", "f")),
        (("write f", "fsync f"), "f", CONTENT, None, None),
        (("map f", "msync"), "f", CONTENT, None, None),
        (("map f",), "f", CONTENT, "what was written to f through a mapping", None),
        (("write f-journal", "fsync f-journal", "remove f-journal"), "f-journal", BACK,
         "the removal of f-journal was never followed by a sync of the top of the disk", ("remove", "f-journal")),
        (("create o/15", "create o/15/tmp_9a", "link o/15/tmp_9a o/15/6edf"), "o/15/6edf", MISSING,
         "the link of o/15/tmp_9a as o/15/6edf was never followed by a sync of o/15", ("link", "o/")),
        (("create 15", "create 15/6"), "15", MISSING, "the creation of 15 was never", ("create", "")),
        ((), "f", CONTENT, None, None),
    ],
)  # fmt: skip
def test_the_call_that_left_something_unsynced(
    calls: tuple[str, ...], path: str, change: Change, words: str | None, cure: tuple[str, str] | None
) -> None:
    found = find_unsynced_call(done(*calls), Difference(path, change))
    if words is None:
        assert found is None
    else:
        assert found is not None
        assert found.words.startswith(words)
        assert found.sync_point == cure


def test_where_the_file_itself_was_not_written_yet_all_unsynced_ones_are_suspects() -> None:
    calls = done("create db", "write db", "sync", "write log", "write other", "fsync other")
    assert find_unsynced_call(calls, Difference("db", CONTENT)) is None
    assert [each.words for each in list_unsynced_writes(calls)] == [
        "what was written to log was never synced"
    ]


def test_only_calls_before_the_acknowledgement_count() -> None:
    calls = done("write a", "said", "fsync a", "said")
    assert list_calls_before_record(calls, 2, 0) == calls[:1]
    assert list_calls_before_record(calls, 2, 1) == calls[:3]
    assert list_calls_before_record(calls, 3, 0) == calls  # it cannot be told which write said what


def test_lines_are_read_as_far_as_they_are_whole() -> None:
    assert parse_calls("rename 61 62\nsaid\nwri") == done("rename a b", "said")


@pytest.mark.parametrize("seed", range(20))
def test_the_smallest_part_is_found_whatever_it_is(seed: int) -> None:
    generator = random.Random(seed)
    every = list(range(generator.randint(1, 40)))
    guilty_ones = set(generator.sample(every, generator.randint(1, min(4, len(every)))))
    runs = itertools.count()

    def fails(part: Sequence[int]) -> bool:
        next(runs)
        return guilty_ones <= set(part)

    assert set(find_minimal_failing_subset(every, fails)) == guilty_ones
    assert next(runs) <= 250


def test_files_are_compared_by_what_a_program_sees(tmp_path: Path) -> None:
    whole, failing = tmp_path / "whole", tmp_path / "failing"
    for directory in (whole, failing):
        (directory / "d").mkdir(parents=True)
        (directory / "same").write_text("same")
        (directory / "content").write_text("abc" if directory == whole else "abX")
        os.symlink("same" if directory == whole else "content", directory / "link")
    (whole / "d" / "gone").write_text("")
    (whole / "tree").mkdir()
    (whole / "tree" / "in it").write_text("")
    (failing / "back").write_text("")
    assert list(map(str, list_differences(whole, failing))) == [
        "back is there again",
        "content has other content starting at byte 2",
        "d/gone is missing",
        "link has other content",
        "tree is missing",
    ]


@pytest.mark.parametrize(
    ("later", "path", "change", "words"),
    [
        (("write log", "fsync log"), "log", CONTENT, "log was written only after the acknowledgement"),
        (("write new", "rename new all"), "all", CONTENT, "new was written only after the acknowledgement"),
        (("rename new all",), "all", MISSING, "all was renamed only after the acknowledgement"),
        (("create d",), "d", MISSING, "d was created only after the acknowledgement"),
        (("remove old",), "old", BACK, "old was removed only after the acknowledgement"),
        (("write other",), "log", CONTENT, ""),
        ((), "log", MISSING, ""),
    ],
)
def test_what_was_done_only_after_the_acknowledgement(
    later: tuple[str, ...], path: str, change: Change, words: str
) -> None:
    found = find_late_call(done(*later), Difference(path, change))
    assert (found.words if found is not None else "") == words


@pytest.mark.parametrize(
    ("point", "wider"),
    [
        (("write", "o/tmp_abc"), ("write", "o/")),
        (("write", "o/tmp_xyz"), ("write", "o/tmp_xyz")),
        (("write", "o/new/tmp"), ("write", "o/")),
        (("write", "p/q/tmp"), ("write", "")),
        (("write", "p/q/"), ("write", "")),
        (("rename", "p/q"), ("rename", "p/q")),
    ],
)
def test_a_place_with_another_name_each_time_is_its_directory(
    point: tuple[str, str], wider: tuple[str, str]
) -> None:
    assert widen_sync_point(point, done("write o/tmp_xyz", "fsync o/tmp_abc")) == wider


def test_a_sync_may_be_added_after_each_change() -> None:
    calls = done(
        "create a", "write a", "write a", "map a", "fsync a", "rename a b", "create o/15", "sync", "said"
    )
    assert list_sync_points(calls) == [("create", "a"), ("write", "a"), ("rename", "b"), ("create", "o/")]
