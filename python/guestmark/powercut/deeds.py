"""What a program did to the files of its disk, call by call, and which of its calls left something unsynced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

_TOP = "the top of the disk"


class Deed(StrEnum):
    """A kind of call, as `guestmark-agent follow` names it."""

    WRITE = "write"
    WRITE_SYNCED = "write-synced"
    TRUNCATE = "truncate"
    MAP = "map"
    CREATE = "create"
    RENAME = "rename"
    LINK = "link"
    REMOVE = "remove"
    FSYNC = "fsync"
    MSYNC = "msync"
    SYNC = "sync"
    SAID = "said"


_OF_NAMES = frozenset({Deed.CREATE, Deed.RENAME, Deed.LINK, Deed.REMOVE})
_OF_CONTENT = frozenset({Deed.WRITE, Deed.TRUNCATE, Deed.MAP})


@dataclass(frozen=True, slots=True)
class Done:
    """One call, with the paths that it is about, from the top of the disk."""

    deed: Deed
    paths: tuple[str, ...]

    @property
    def path(self) -> str:
        """The path that is changed."""
        return self.paths[-1] if self.paths else ""


def parsed(text: str) -> list[Done]:
    """From the lines of `guestmark-agent follow`; what is cut short is left out."""
    found = []
    for line in text.splitlines():
        deed, *paths = line.split(" ")
        if deed in set(Deed):
            found.append(
                Done(Deed(deed), tuple(bytes.fromhex(path).decode(errors="replace") for path in paths))
            )
    return found


class Change(StrEnum):
    """How a file differs from what the program left."""

    MISSING = "is missing"
    BACK = "is there again"
    CONTENT = "has other content"


@dataclass(frozen=True, slots=True)
class Difference:
    """A file that differs; `at` is the first byte that does."""

    path: str
    change: Change
    at: int = 0

    def __str__(self) -> str:
        where = f" from byte {self.at:,} on" if self.change is Change.CONTENT and self.at else ""
        return f"{self.path} {self.change}{where}"


@dataclass(frozen=True, slots=True)
class Guilty:
    """A call that left something unsynced, in words, and where a sync would have to be added."""

    words: str
    done: Done

    @property
    def cure(self) -> tuple[str, str]:
        """The call and the path after which to sync: all below a directory, where names are made of numbers."""
        path = PurePosixPath(self.done.path)
        while any(character.isdigit() for character in path.name) and path.parent != path:
            path = path.parent
        exact = str(path) == self.done.path
        return self.done.deed.value, self.done.path if exact else ("" if str(path) == "." else f"{path}/")


def acknowledged(done: Sequence[Done], lines: int, newest: int) -> Sequence[Done]:
    """The calls before record `newest` was acknowledged, of `lines` of them; all where that cannot be told."""
    said = [number for number, each in enumerate(done) if each.deed is Deed.SAID]
    return done[: said[newest]] if len(said) == lines and newest >= 0 else done


def guilty(done: Sequence[Done], difference: Difference) -> Guilty | None:
    """The call that left this unsynced; None when none did."""
    named = _last(done, difference.path, _OF_NAMES)
    bare = None if named is None or _name_synced(done, named) else named
    if difference.change is not Change.CONTENT:
        return _of_name(done[bare]) if bare is not None else None
    written, aliases = _written(done, difference.path)
    if written is not None and not _content_synced(done, written, aliases):
        path = done[written].path
        if done[written].deed is Deed.MAP:
            return Guilty(
                f"what was written to {path} through a mapping was never followed by a sync of it",
                done[written],
            )
        as_now = "" if path == difference.path else f", which is {difference.path} now,"
        return Guilty(f"what was written to {path}{as_now} was never followed by a sync of it", done[written])
    return _of_name(done[bare]) if bare is not None else None


def suspects(done: Sequence[Done]) -> list[Guilty]:
    """All calls that left the content of a file unsynced, where nothing says which of them mattered."""
    paths = dict.fromkeys(each.path for each in reversed(done) if each.deed in _OF_CONTENT)
    found = (guilty(done, Difference(path, Change.CONTENT)) for path in paths)
    return [each for each in found if each is not None and each.done.deed in _OF_CONTENT]


def _last(done: Sequence[Done], path: str, kinds: frozenset[Deed]) -> int | None:
    return next(
        (n for n in reversed(range(len(done))) if done[n].deed in kinds and _changes(done[n], path)), None
    )


def _changes(done: Done, path: str) -> bool:
    """Whether a call changes that name; of those that are given two, a link leaves the first."""
    return path == done.path or (done.deed is Deed.RENAME and path in done.paths)


def _name_synced(done: Sequence[Done], at: int) -> bool:
    parent = _parent(done[at].path)
    return any(
        each.deed is Deed.SYNC or (each.deed is Deed.FSYNC and each.path == parent) for each in done[at + 1 :]
    )


def _written(done: Sequence[Done], path: str) -> tuple[int | None, set[str]]:
    """The last call that changed a file's content, and the names that it has had since."""
    aliases = {path}
    for number in reversed(range(len(done))):
        each = done[number]
        if each.deed in {Deed.RENAME, Deed.LINK} and each.path in aliases:
            aliases.add(each.paths[0])
        elif each.deed in _OF_CONTENT and each.path in aliases:
            return number, aliases
    return None, aliases


def _content_synced(done: Sequence[Done], at: int, aliases: set[str]) -> bool:
    synced = {Deed.SYNC, Deed.MSYNC} if done[at].deed is Deed.MAP else {Deed.SYNC}
    return any(
        each.deed in synced or (each.deed is Deed.FSYNC and each.path in aliases) for each in done[at + 1 :]
    )


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _of_name(done: Done) -> Guilty:
    parent = _parent(done.path) or _TOP
    match done.deed:
        case Deed.RENAME:
            what = f"the rename of {done.paths[0]} to {done.path}"
        case Deed.LINK:
            what = f"the link of {done.paths[0]} as {done.path}"
        case Deed.REMOVE:
            what = f"the removal of {done.path}"
        case _:
            what = f"the creation of {done.path}"
    return Guilty(f"{what} was never followed by a sync of {parent}", done)
