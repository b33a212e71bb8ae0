"""Searches a crash state for the data that a program's own sync calls promised to be on its disk.

The agent stops the program after each such call and prints what the call has promised (`crates/agent/src/syncs`). At
that moment all of it has to be on the disk. Later the program may overwrite some of it. So for a file that was promised
earlier, only blocks that are unchanged when it is next seen are expected, under any path that it has had since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from guestmark.core.findings import Unsynced

# The status of a program that the agent stopped because it had promised enough.
_STOPPED = "stopped"
BLOCK = 4096  # bytes per digest
_SLASH = b"/".hex()
_MOST_PATHS = 100  # of one file; a program may rename it any number of times


@dataclass(frozen=True, slots=True)
class FileState:
    """A file as it was read: digests of its blocks by number, without blocks of zeroes; for a directory, its names."""

    size: int
    blocks: Mapping[int, int]
    names: frozenset[str] | None = None

    @classmethod
    def parse(cls, line: str) -> FileState | None:
        """Parse a line of `guestmark-agent digests`; None for a file that does not exist."""
        head, *rest = line.split(" ")
        match head:
            case "-":
                return None
            case "=":
                return cls(0, {}, frozenset(filter(None, rest[0].split(","))))
        return cls(int(head), dict(map(_parse_digest, rest)))


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file after `after` promises: the blocks promised then, and those changed since it was last seen."""

    after: int
    path: str
    size: int
    # Bytes that the file had at least during the whole call.
    sure: int
    whole: bool
    promised: Mapping[int, int]
    changed: frozenset[int]


@dataclass(slots=True)
class _File:
    seen: list[_Seen] = field(default_factory=list)
    paths: list[tuple[int, str]] = field(default_factory=list)  # digests since when; empty if it was removed
    blocks: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExpectedFile:
    """Data that must exist: the blocks of a file at one of `paths`, or a directory with exactly these `names`."""

    call: str
    paths: tuple[str, ...]
    least: int  # bytes
    most: int | None
    blocks: Mapping[int, int]
    names: frozenset[str] | None = None

    def describe_missing(self, found: Mapping[str, FileState | None]) -> str:
        """Return a description of missing data; empty if nothing is missing."""
        wrong = []
        for path in self.paths:
            if why := self._describe_fault(found.get(path)):
                wrong.append(why)
        if len(wrong) < len(self.paths):
            return ""
        return f"{self.call} of {PurePosixPath(_decode_name(self.paths[0])).name or 'the disk'}: {wrong[0]}"

    def _describe_fault(self, state: FileState | None) -> str:
        if state is None:
            return "it is missing"
        if self.names is not None:
            return _compare_names(self.names, state.names or frozenset())
        if state.size < self.least or (self.most is not None and state.size > self.most):
            return f"it has {state.size:,} bytes, not {self.least:,}"
        wrong = [number for number, digest in self.blocks.items() if state.blocks.get(number, 0) != digest]
        if not wrong:
            return ""
        count = f"{len(wrong)} of {len(self.blocks)} blocks"
        return f"{count} differ, the first at byte {min(wrong) * BLOCK:,}"


class Promises:
    """What a program's sync calls have promised, call by call. Paths and names are hexadecimal, as printed."""

    def __init__(self) -> None:
        # Each call, and whether the rest of the program could not write meanwhile.
        self.calls: list[tuple[str, bool]] = []
        self.status: str | None = None  # its exit status
        self.said = ""  # the last line of its error output
        self.errors = ""  # the end of its error output
        self.elsewhere = ""  # why it may have flushed in ways that are not traced
        # Data that it wrote to files still on the disk and never synced.
        self.unsynced: list[Unsynced] = []
        # The same for files that are recreated after a power cut.
        self.rebuilt: list[Unsynced] = []
        self._files: dict[int, _File] = {}
        # The paths from which files and directories were renamed to a path.
        self._renamed: dict[str, set[str]] = {}
        self._directories: list[tuple[int, str, frozenset[str]]] = []
        self._known: dict[tuple[int, bool], tuple[ExpectedFile, ...]] = {}

    def add_line(self, line: str) -> bool:
        """Add a line of the agent's output; return True if it completes a promise, after which the program waits."""
        kind, *words = line.split(" ")
        match kind:
            case "file":
                self._add_file(words)
            case "touched":
                blocks = frozenset(map(int, words[2:]))
                file = self._files[int(words[0])]
                size = int(words[1])
                file.seen.append(_Seen(len(self.calls), "", size, size, False, {}, blocks))
            case "path":
                path = "" if words[1] == "-" else words[1]
                self._files[int(words[0])].paths.append((len(self.calls), path))
            case "renamed":
                self._renamed.setdefault(words[1], set()).add(words[0])
            case "directory":
                names = frozenset(filter(None, words[1].split(",")))
                self._directories.append((len(self.calls), words[0], names))
            case "sync":
                self.calls.append((words[0], words[1] == "1"))
            case "unsynced":
                self.unsynced.append(Unsynced(_decode_name(words[1]), int(words[0])))
            case "said":
                self.errors = _decode_name(words[0])
                lines = self.errors.strip().splitlines()
                self.said = lines[-1] if lines else ""
            case "end":
                self.status, self.elsewhere = words[0], " ".join(words[1:])
        return kind == "sync"

    @property
    def was_stopped(self) -> bool:
        """True if the agent stopped the program because it had promised enough."""
        return self.status == _STOPPED

    def has_failed(self, statuses: Sequence[int]) -> bool:
        """Return True if the program exited with none of these statuses, and was not stopped by the agent."""
        return self.status not in (_STOPPED, *map(str, statuses))

    def _add_file(self, words: Sequence[str]) -> None:
        number, path, size, sure, first, end = int(words[0]), words[1], *map(int, words[2:6])
        file = self._files.setdefault(number, _File())
        unsure: set[int] = set()
        changed: dict[int, int] = {}
        for word in words[6:]:
            block, digest = _parse_digest(word.rstrip("?"))
            changed[block] = digest
            if word.endswith("?"):
                unsure.add(block)
        file.blocks = {block: digest for block, digest in (file.blocks | changed).items() if digest}
        promised = {block: file.blocks.get(block, 0) for block in range(first, end) if block not in unsure}
        whole = end > first == 0 and end == -(-sure // BLOCK)
        after = len(self.calls)
        file.seen.append(_Seen(after, path, size, sure, whole, promised, frozenset(changed)))
        file.paths.append((after, path))

    def list_expected_files(self, newest: int, *, exact: bool) -> tuple[ExpectedFile, ...]:
        """Return the data that must exist if promise `newest` was the last; with `exact` the program waits there."""
        exact = exact and newest >= 0 and self.calls[newest][1]
        if (newest, exact) not in self._known:
            found = []
            for file in self._files.values():
                if (one := self._make_expected_file(file, newest, exact)) is not None:
                    found.append(one)
            if exact:
                found += self._list_expected_directories(newest)
            self._known[newest, exact] = tuple(found)
        return self._known[newest, exact]

    def _list_expected_directories(self, newest: int) -> Iterator[ExpectedFile]:
        for after, path, names in self._directories:
            if after == newest:
                yield ExpectedFile(self.calls[newest][0], self._add_old_paths([path]), 0, None, {}, names)

    def _make_expected_file(self, file: _File, newest: int, exact: bool) -> ExpectedFile | None:
        promised, least, last = _collect_promised_blocks(file, newest)
        if last < 0:
            return None
        exactly = exact and last == newest
        if not exactly:
            least = _drop_overwritten(file, newest, promised, least)
        paths = self._list_possible_paths(file, last, newest, exactly)
        if not paths or (not promised and not least):
            return None
        most = least if exactly and self._is_promised_whole(file, last) else None
        return ExpectedFile(self.calls[last][0], paths, least, most, promised)

    def _list_possible_paths(self, file: _File, last: int, newest: int, exactly: bool) -> tuple[str, ...]:
        """Return the paths at which a file covered by promise `last` may be; empty if it may have been removed."""
        paths = [path for after, path in file.paths if after == last]
        if not all(paths):
            # Another thread removed the file while it was being promised.
            return ()
        until_cut = [path for after, path in file.paths if last < after <= newest]
        if not all(until_cut):
            return ()
        if not exactly:
            after_cut = [path for after, path in file.paths if after > newest]
            if after_cut and not after_cut[0]:
                return ()
            paths += [*until_cut, *filter(None, after_cut)]
        return self._add_old_paths(paths)

    def _add_old_paths(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Add the paths that files may still have after renames of them, or of directories above them.

        A sync of a file promises none of these: after fdatasync only the old path may exist.
        """
        found = dict.fromkeys(paths)
        waiting = list(found)
        while waiting and len(found) < _MOST_PATHS:
            path = waiting.pop(0)
            for new, olds in self._renamed.items():
                if path == new or path.startswith(new + _SLASH):
                    for old in sorted(olds):
                        older = old + path[len(new) :]
                        if older not in found:
                            waiting.append(older)
                            found[older] = None
        return tuple(found)

    @staticmethod
    def _is_promised_whole(file: _File, after: int) -> bool:
        return any(seen.whole for seen in file.seen if seen.after == after)


def _collect_promised_blocks(file: _File, newest: int) -> tuple[dict[int, int], int, int]:
    """Return the promised blocks still unchanged at `newest`, the least size, and the last promise (-1: none)."""
    promised: dict[int, int] = {}
    last, least = -1, 0
    for seen in file.seen:
        if seen.after > newest:
            break
        for block in seen.changed:
            promised.pop(block, None)
        least = min(least, seen.size)
        if seen.promised:
            promised |= seen.promised
            last = seen.after
            least = seen.sure if seen.whole else max(least, (max(seen.promised) * BLOCK) + 1)
    return promised, least, last


def _drop_overwritten(file: _File, newest: int, promised: dict[int, int], least: int) -> int:
    """Remove the blocks that the program may have overwritten after `newest`; return the least size that is left."""
    # The cut may be anywhere before the file is next seen, so what differs then may already differ in the state.
    upcoming = next((seen.after for seen in file.seen if seen.after > newest), None)
    for later in file.seen:
        if later.after == upcoming:
            for block in later.changed:
                promised.pop(block, None)
            least = min(least, later.size)
    return least


def _parse_digest(word: str) -> tuple[int, int]:
    number, _, digest = word.partition(":")
    return int(number), int(digest, 16)


def _compare_names(expected: frozenset[str], found: frozenset[str]) -> str:
    """Return which name a directory lacks or has again; empty if it has exactly those expected."""
    if gone := sorted(expected - found):
        return f"{_decode_name(gone[0])} is missing from it"
    if extra := sorted(found - expected):
        return f"{_decode_name(extra[0])} is in it again"
    return ""


def _decode_name(name: str) -> str:
    return bytes.fromhex(name).decode(errors="replace")
