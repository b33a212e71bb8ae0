"""Finds by experiment why a check fails: the fewest files that have to differ.

The files of a failing state are compared with those that the program left, which pass. Delta debugging (Zeller,
Hildebrandt 2002) finds a smallest set of differences with which the check still fails in the same way.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.agent.client import Agent
from guestmark.core.errors import MachineError
from guestmark.core.temporary import scratch_directory
from guestmark.powercut import recovery
from guestmark.powercut.calls import Change, Difference
from guestmark.powercut.check_answer import Ending, mask_numbers
from guestmark.powercut.cuts import Cut
from guestmark.powercut.judge import Replay
from guestmark.powercut.minimize import find_minimal_failing_subset
from guestmark.powercut.recovery import Recovered
from guestmark.powercut.survey import Disk
from guestmark.powercut.user_check import Check, run_check_here

_ROOM = Path("/var/tmp")
_COPY_S = 120.0
_MOST_RUNS = 150
_SKIPPED = "lost+found"
_READ = 1 << 20


@dataclass(slots=True)
class FileCopier:
    """A `recovery.Reader` that copies all files to a directory."""

    target: Path

    def read(
        self, agent: Agent, directory: Path, names: Sequence[str], newest: int, *, exact: bool
    ) -> Recovered:
        """Copy the files; see `recovery.Reader`."""
        done = agent.exec(
            ["cp", "-a", "--sparse=always", f"{directory}/.", str(self.target)], timeout_s=_COPY_S
        )
        if not done.ok:
            raise MachineError(
                f"a crash state cannot be copied: {done.stderr.decode(errors='replace').strip()}",
                hint=f"free some space in {_ROOM}",
            )
        shutil.rmtree(self.target / _SKIPPED, ignore_errors=True)
        return Recovered({})


def copy_files(disk: Disk, cut: Cut, target: Path) -> None:
    """Copy the recovered files of a state to a new directory. Raises `MachineError`."""
    target.mkdir()
    with scratch_directory("copied", _ROOM, 0o711) as room:
        replay = Replay(disk.base, disk.log, disk.entries, room)
        try:
            image = replay.make_image(cut)
            with recovery.start_recovery(disk.filesystem, disk.form, room, FileCopier(target)) as recovers:
                left = recovers.recover(image, (), -1, exact=False)
        finally:
            replay.close()
    if left.damage:
        raise MachineError(f"a crash state cannot be copied: {left.damage}", hint="see the kernel log: dmesg")


def find_fewest_differences(  # noqa: PLR0917 (an experiment and its material)
    check: Check, acknowledged: Sequence[bytes], message: str, whole: Path, failing: Path, until: float
) -> list[Difference]:
    """Return the fewest differences with which the check fails with the same `message`.

    `whole` has the files as the program left them, `failing` those of the failing state. At `until` (monotonic clock),
    the fewest found so far are returned. Empty if the files do not explain the failure.
    """
    runs = 0
    fewest: list[Difference] = []

    def fails_with_files(differences: Sequence[Difference]) -> bool:
        nonlocal runs, fewest
        runs += 1
        if runs > _MOST_RUNS or time.monotonic() > until:
            raise TimeoutError
        with scratch_directory("state", _ROOM, 0o755) as room:
            work = room / "work"
            subprocess.run(
                ["cp", "-a", "--sparse=always", "--reflink=auto", str(whole), str(work)], check=True
            )
            for difference in differences:
                _apply_difference(difference, work, failing)
            answer = run_check_here(check, room, work, acknowledged)
        failed = answer.ending is Ending.FAILED and mask_numbers(answer.summary) == mask_numbers(message)
        if failed and (not fewest or len(differences) < len(fewest)):
            fewest = list(differences)
        return failed

    every = list(list_differences(whole, failing))
    try:
        if not every or fails_with_files([]) or not fails_with_files(every):
            return []
        return find_minimal_failing_subset(every, fails_with_files)
    except TimeoutError:
        return fewest


def list_differences(whole: Path, failing: Path) -> Iterator[Difference]:
    """Yield the differences between two trees by path: missing or additional files, other types, other content."""
    ours, theirs = _list_paths_below(whole), _list_paths_below(failing)
    for path in sorted(ours | theirs):
        one, other = whole / path, failing / path
        if path not in theirs:
            # The content of a missing directory is not listed.
            if str(Path(path).parent) in {".", *theirs}:
                yield Difference(path, Change.MISSING)
        elif path not in ours:
            yield Difference(path, Change.BACK)
        elif _get_file_type(one) != _get_file_type(other):
            yield Difference(path, Change.CONTENT)
        elif one.is_symlink():
            if os.readlink(one) != os.readlink(other):
                yield Difference(path, Change.CONTENT)
        elif one.is_file() and not filecmp.cmp(one, other, shallow=False):
            yield Difference(path, Change.CONTENT, _find_first_difference(one, other))


def _list_paths_below(directory: Path) -> set[str]:
    found = set()
    for folder, folders, files in os.walk(directory):
        here = os.path.relpath(folder, directory)
        found |= {os.path.normpath(os.path.join(here, name)) for name in (*folders, *files)}
    return found


def _get_file_type(path: Path) -> int:
    return os.lstat(path).st_mode >> 12


def _find_first_difference(one: Path, other: Path) -> int:
    with one.open("rb") as ours, other.open("rb") as theirs:
        at = 0
        while True:
            left, right = ours.read(_READ), theirs.read(_READ)
            if left != right:
                shorter = min(len(left), len(right))
                for offset in range(shorter):
                    if left[offset] != right[offset]:
                        return at + offset
                return at + shorter
            if not left:
                return at
            at += len(left)


def _apply_difference(difference: Difference, work: Path, failing: Path) -> None:
    target, source = work / difference.path, failing / difference.path
    # A file may have become a directory, or the other way round, so the old one goes first.
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    elif difference.change is not Change.CONTENT or not source.is_file():
        target.unlink(missing_ok=True)
    if difference.change is Change.MISSING:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir() and not source.is_symlink():
        target.mkdir(exist_ok=True)
    elif not (source.is_socket() or source.is_fifo()):
        subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)
