"""Models the system calls that a program made on the files of its disk, and finds those that left data unsynced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

_TOP = "the top of the disk"


class CallKind(StrEnum):
    """A kind of call, by its name in the output of `guestmark-agent follow`."""

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


SyncPoint = tuple[
    str, str
]  # a kind of call and a path, or a directory that ends in /, after which to sync; "": anywhere

_OF_NAMES = frozenset({CallKind.CREATE, CallKind.RENAME, CallKind.LINK, CallKind.REMOVE})
_OF_CONTENT = frozenset({CallKind.WRITE, CallKind.TRUNCATE, CallKind.MAP})


@dataclass(frozen=True, slots=True)
class Call:
    """One call, with the paths that it affects, relative to the root directory of the disk."""

    kind: CallKind
    paths: tuple[str, ...]

    @property
    def path(self) -> str:
        """The path that is changed."""
        return self.paths[-1] if self.paths else ""


def parse_calls(text: str) -> list[Call]:
    """Parse the output of `guestmark-agent follow`; an incomplete line is ignored."""
    found = []
    for line in text.splitlines():
        deed, *paths = line.split(" ")
        if deed in set(CallKind):
            names = (bytes.fromhex(path).decode(errors="replace") for path in paths)
            found.append(Call(CallKind(deed), tuple(names)))
    return found


class Change(StrEnum):
    """How a file differs from the state in which the program left it."""

    MISSING = "is missing"
    BACK = "is there again"
    CONTENT = "has other content"


@dataclass(frozen=True, slots=True)
class Difference:
    """A file that differs; `at` is the offset of the first byte that does."""

    path: str
    change: Change
    at: int = 0

    def __str__(self) -> str:
        if self.change is Change.CONTENT and self.at:
            return f"{self.path} {self.change} starting at byte {self.at:,}"
        return f"{self.path} {self.change}"


@dataclass(frozen=True, slots=True)
class UnsyncedCall:
    """A call that left something unsynced, and a description of what."""

    words: str
    call: Call

    @property
    def sync_point(self) -> SyncPoint | None:
        """The place after which to sync; None after writes through a mapping, which are not calls."""
        return None if self.call.kind is CallKind.MAP else locate_sync_point(self.call)


@dataclass(frozen=True, slots=True)
class AddedSyncs:
    """Syncs added to a program: `after` some calls, before `each` acknowledgement, or after `every` change."""

    after: tuple[SyncPoint, ...] = ()
    each: bool = False
    every: bool = False

    def is_within(self, other: AddedSyncs) -> bool:
        """Return True if the other one has at least these syncs."""
        has_calls = set(self.after) <= set(other.after)
        return has_calls and self.each <= other.each and self.every <= other.every


def locate_sync_point(call: Call) -> SyncPoint:
    """Return the place after which to sync; a whole directory if the names in it contain numbers."""
    path = PurePosixPath(call.path)
    while any(character.isdigit() for character in path.name) and path.parent != path:
        path = path.parent
    if str(path) == call.path:
        return call.kind.value, call.path
    # Numbers differ from run to run, so the whole directory is named; the top of the disk has no name.
    if str(path) == ".":
        return call.kind.value, ""
    return call.kind.value, f"{path}/"


def list_sync_points(done: Sequence[Call]) -> list[SyncPoint]:
    """Return all places after which data stayed unsynced for a while, without duplicates."""
    changing = (_OF_NAMES | _OF_CONTENT) - {CallKind.MAP}
    return list(dict.fromkeys(locate_sync_point(call) for call in done if call.kind in changing))


def widen_sync_point(point: SyncPoint, done: Sequence[Call]) -> SyncPoint:
    """Return the narrowest place around `point` in which `done` has a call of its kind; without any, `point` itself."""
    kind, path = point
    if not any(call.kind == kind for call in done):
        return point
    while path and not any(call.kind == kind and _is_at(call.path, path) for call in done):
        parent = _get_parent_directory(path.rstrip("/"))
        path = f"{parent}/" if parent else ""
    return kind, path


def _is_at(path: str, place: str) -> bool:
    return path == place or (place.endswith("/") and path.startswith(place))


def list_calls_before_record(done: Sequence[Call], lines: int, newest: int) -> Sequence[Call]:
    """Return the calls before record `newest` of `lines` was acknowledged; all calls if that is unknown."""
    acknowledgements = [number for number, call in enumerate(done) if call.kind is CallKind.SAID]
    # If the trace lacks an acknowledgement, their numbers do not match, and no call can be excluded.
    if newest < 0 or len(acknowledgements) != lines:
        return done
    return done[: acknowledgements[newest]]


def find_unsynced_call(done: Sequence[Call], difference: Difference) -> UnsyncedCall | None:
    """Return the call that left this difference unsynced; None if there is none."""
    if difference.change is Change.CONTENT:
        unsynced = _find_unsynced_content(done, difference.path)
        if unsynced is not None:
            return unsynced
    named = _last_call(done, difference.path, _OF_NAMES)
    if named is None or _is_name_synced(done, named):
        return None
    return _make_unsynced_name_call(done[named])


def _find_unsynced_content(done: Sequence[Call], path: str) -> UnsyncedCall | None:
    written, aliases = _last_content_change(done, path)
    if written is None or _is_content_synced(done, written, aliases):
        return None
    call = done[written]
    what = f"what was written to {call.path}"
    if call.kind is CallKind.MAP:
        what += " through a mapping"
    elif call.path != path:
        what += f", which is {path} now,"
    return UnsyncedCall(f"{what} was never synced", call)


def find_late_call(later: Sequence[Call], difference: Difference) -> UnsyncedCall | None:
    """Return the call that changed the file after the acknowledgement; None if there is none."""
    changed, _ = _last_content_change(later, difference.path)
    if difference.change is Change.CONTENT and changed is not None:
        call = later[changed]
        return UnsyncedCall(f"{call.path} was written only after the acknowledgement", call)
    named = _last_call(later, difference.path, _OF_NAMES)
    if named is None:
        return None
    done = {CallKind.RENAME: "renamed", CallKind.LINK: "linked", CallKind.REMOVE: "removed"}
    call = later[named]
    how = done.get(call.kind, "created")
    return UnsyncedCall(f"{difference.path} was {how} only after the acknowledgement", call)


def list_unsynced_writes(done: Sequence[Call]) -> list[UnsyncedCall]:
    """Return all calls that left a file's content unsynced; used when it is unknown which of them mattered."""
    paths = dict.fromkeys(call.path for call in reversed(done) if call.kind in _OF_CONTENT)
    unsynced = []
    for path in paths:
        found = find_unsynced_call(done, Difference(path, Change.CONTENT))
        if found is not None and found.call.kind in _OF_CONTENT:
            unsynced.append(found)
    return unsynced


def _last_call(done: Sequence[Call], path: str, kinds: frozenset[CallKind]) -> int | None:
    for number in reversed(range(len(done))):
        if done[number].kind in kinds and _changes_name(done[number], path):
            return number
    return None


def _changes_name(done: Call, path: str) -> bool:
    """Return True if a call changes the directory entry of a path: a rename changes both, a link only the new one."""
    return path == done.path or (done.kind is CallKind.RENAME and path in done.paths)


def _is_name_synced(done: Sequence[Call], at: int) -> bool:
    parent = _get_parent_directory(done[at].path)
    return _is_synced_by(done[at + 1 :], {CallKind.SYNC}, {parent})


def _last_content_change(done: Sequence[Call], path: str) -> tuple[int | None, set[str]]:
    """Return the last call that changed a file's content, and the names that the file has had since."""
    aliases = {path}
    for number in reversed(range(len(done))):
        call = done[number]
        if call.kind in {CallKind.RENAME, CallKind.LINK} and call.path in aliases:
            aliases.add(call.paths[0])
        elif call.kind in _OF_CONTENT and call.path in aliases:
            return number, aliases
    return None, aliases


def _is_content_synced(done: Sequence[Call], at: int, aliases: set[str]) -> bool:
    synced = {CallKind.SYNC, CallKind.MSYNC} if done[at].kind is CallKind.MAP else {CallKind.SYNC}
    return _is_synced_by(done[at + 1 :], synced, aliases)


def _is_synced_by(later: Sequence[Call], kinds: set[CallKind], paths: set[str]) -> bool:
    """Return True if one of the calls is of these kinds, or an fsync of one of these paths."""
    for call in later:
        if call.kind in kinds:
            return True
        if call.kind is CallKind.FSYNC and call.path in paths:
            return True
    return False


def _get_parent_directory(path: str) -> str:
    return path.rpartition("/")[0]


def _make_unsynced_name_call(done: Call) -> UnsyncedCall:
    parent = _get_parent_directory(done.path) or _TOP
    match done.kind:
        case CallKind.RENAME:
            what = f"the rename of {done.paths[0]} to {done.path}"
        case CallKind.LINK:
            what = f"the link of {done.paths[0]} as {done.path}"
        case CallKind.REMOVE:
            what = f"the removal of {done.path}"
        case _:
            what = f"the creation of {done.path}"
    return UnsyncedCall(f"{what} was never followed by a sync of {parent}", done)
