"""Judges crash states: recovers each one, and checks whether it holds every record acknowledged by then.

Images of crash states are created one after the other without writing the whole image again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from guestmark.core.errors import MachineError
from guestmark.core.keeper import keeper
from guestmark.disks import preflight, sparse
from guestmark.disks.location import is_in_memory
from guestmark.powercut import recovery
from guestmark.powercut.check_answer import Answer
from guestmark.powercut.cuts import Cut
from guestmark.powercut.recovery import Reader, Recovered
from guestmark.powercut.writelog import Entry, Flag, WriteLog
from guestmark.setting.image import Format

_HOLE = 4096
_MEMORY = Path("/dev/shm")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_MEMORY_SHARE = 0.5  # share of the free memory


class Replay:
    """Turns cuts into images in `directory`; for cuts in ascending order no work is repeated.

    One image advances with the kept requests. Each state is a sparse copy of it (a reflink if the filesystem supports
    that), to which the surviving later writes are applied. So neither the size of the image nor that of the log
    determines memory or time.
    """

    def __init__(self, base: Path, log: WriteLog, entries: Sequence[Entry], directory: Path) -> None:
        self._log = log
        self._entries = entries
        self._directory = directory
        self._durable = directory / "kept"
        self._base = base
        self._descriptor = self._open_durable()

    def close(self) -> None:
        """Remove the advancing image."""
        os.close(self._descriptor)
        self._durable.unlink(missing_ok=True)

    def _open_durable(self) -> int:
        self._applied = 0
        self._durable.unlink(missing_ok=True)
        copy_without_zeroes(self._base, self._durable)
        return os.open(self._durable, os.O_RDWR)

    def make_image(self, cut: Cut, name: str = "state") -> Path:
        """Return the image of a cut; the caller removes it."""
        if cut.kept < self._applied:
            os.close(self._descriptor)
            self._descriptor = self._open_durable()
        for position in range(self._applied, cut.kept):
            entry = self._entries[position]
            self._write_entry(self._descriptor, entry, 0, entry.length)
        self._applied = max(self._applied, cut.kept)
        target = self._directory / name
        target.unlink(missing_ok=True)
        sparse.copy_file(self._durable, target)
        descriptor = os.open(target, os.O_RDWR)
        try:
            for piece in cut.pieces:
                self._write_entry(descriptor, self._entries[piece.entry], piece.skip, piece.length)
        finally:
            os.close(descriptor)
        return target

    def _write_entry(self, descriptor: int, entry: Entry, skip: int, length: int) -> None:
        if entry.flags & Flag.MARK or not length:
            return
        if entry.flags & Flag.DISCARD:
            # Discarded blocks of an image file read as zeroes.
            for part in _split_range(length):
                os.pwrite(descriptor, bytes(part[1]), entry.offset + skip + part[0])
            return
        data = self._log.read_data(entry)[skip : skip + length]
        os.pwrite(descriptor, data, entry.offset + skip)


def choose_image_parent(base: Path, log: Path, form: str, parent: Path, workers: int) -> Path:
    """Return where to create the images of crash states: in memory if it has room for all of them, else in `parent`.

    Programs that recover an image sync it, which takes longer than all their other work and is useless here. A check
    may fill its disk, so each image counts at the full size of its disk.
    """
    if form != Format.RAW or not _MEMORY.is_dir() or not is_in_memory(str(_MEMORY)):
        return parent
    about = base.stat()
    most = workers * (about.st_size + about.st_blocks * 512 + log.stat().st_size)
    free = min(preflight.count_free_bytes(str(_MEMORY)), _read_free_group_memory())
    return _MEMORY if most <= _MEMORY_SHARE * free else parent


def _read_free_group_memory() -> int:
    """Return how many bytes of memory this process's control groups still allow; a huge number without a limit."""
    free = 1 << 63
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, _, path = line.split(":", 2)
        if number != "0":
            continue
        group = _CONTROL_GROUPS / path.lstrip("/")
        while group != _CONTROL_GROUPS.parent:
            with contextlib.suppress(OSError, ValueError):
                limit = int((group / "memory.max").read_text())
                free = min(free, limit - int((group / "memory.current").read_text()))
            group = group.parent
    return max(free, 0)


def copy_without_zeroes(source: Path, target: Path) -> None:
    """Copy a file so that it has holes where the source has blocks of zeroes."""
    with source.open("rb") as read, target.open("xb") as write:
        size = os.fstat(read.fileno()).st_size
        os.ftruncate(write.fileno(), size)
        zeroes = bytes(_HOLE)
        for start, end in sparse.iterate_data_ranges(read.fileno(), size):
            for offset, length in _split_range(end - start):
                data = os.pread(read.fileno(), length, start + offset)
                if not any(data):
                    continue
                for block in range(0, len(data), _HOLE):
                    piece = data[block : block + _HOLE]
                    if piece != zeroes[: len(piece)]:
                        os.pwrite(write.fileno(), piece, start + offset + block)


def _split_range(length: int, most: int = 1 << 20) -> Iterator[tuple[int, int]]:
    for start in range(0, length, most):
        yield start, min(most, length - start)


@dataclass(frozen=True, slots=True)
class Crash:
    """The faults of one state.

    `lost` is the first acknowledged record that is missing, `what` describes the loss if a number does not, `says`
    describes all other faults, `answer` is the result of a check. With `torn_superblock` records are missing, but the
    program is not at fault.
    """

    cut: Cut
    acknowledged: int
    lost: int | None
    says: str
    what: str = ""
    answer: Answer | None = None
    torn_superblock: bool = False


@dataclass(slots=True)
class JudgedStates:
    """The judged states in total, and those with faults."""

    states: int = 0
    losing: int = 0  # acknowledged records are gone
    repaired: int = 0  # beyond a journal's replay
    torn_superblocks: int = 0  # records are gone with the filesystem's own superblock
    crashes: list[Crash] = field(default_factory=list)

    def add_crash(self, crash: Crash) -> None:
        """Count one state."""
        self.states += 1
        self.losing += crash.lost is not None
        self.repaired += bool(crash.says)
        self.torn_superblocks += crash.torn_superblock
        if crash.lost is not None or crash.says:
            self.crashes.append(crash)

    @property
    def first_loss(self) -> Crash | None:
        """The loss with the earliest cut; None if nothing was lost."""
        losing = (crash for crash in self.crashes if crash.lost is not None)
        return min(losing, key=lambda crash: crash.cut.after, default=None)

    @property
    def first_repair(self) -> Crash | None:
        """The first state with a fault besides lost records; None if there is none."""
        for crash in self.crashes:
            if crash.says:
                return crash
        return None


@dataclass(frozen=True, slots=True)
class JudgeInput:
    """The input for judging states: the image before the first write, the log, and how to examine a recovered disk."""

    base: Path
    log: WriteLog
    filesystem: str
    form: str
    names: tuple[str, ...]  # of the files to read
    # The newest record acknowledged after so many requests.
    acknowledged: Callable[[int], int]
    lost: Callable[[int, dict[str, bytes | None]], int | None]
    # The number of requests when that record had just been acknowledged.
    moment: Callable[[int], int]
    reader: Reader | None = None

    def is_exact(self, entries: Sequence[Entry], cut: Cut) -> bool:
        """Return True if nothing survives that was written after the newest record had been acknowledged."""
        moment = self.moment(cut.after)
        later = entries[moment : cut.kept]
        return not any(entry.length for entry in later) and all(piece.entry < moment for piece in cut.pieces)


def judge_cuts(
    evidence: JudgeInput, entries: Sequence[Entry], cuts: Sequence[Cut], parent: Path
) -> JudgedStates:
    """Judge every cut, with several workers in parallel; images are created below `parent`. Raises `MachineError`."""
    directory = keeper().directory("cut", parent, mode=0o711)
    total = JudgedStates()
    try:
        count = (
            min(recovery.count_workers(evidence.filesystem, mounted=evidence.reader is not None), len(cuts))
            or 1
        )
        # Each worker gets consecutive cuts, so that its image only ever advances.
        share = -(-len(cuts) // count)
        with ThreadPoolExecutor(count) as pool:
            parts = []
            for start in range(0, len(cuts), share):
                parts.append(
                    pool.submit(
                        _judge_some, evidence, entries, cuts[start : start + share], directory / str(start)
                    )
                )
            for part in parts:
                for crash in part.result():
                    total.add_crash(crash)
    except OSError as error:
        raise MachineError(
            f"crash states cannot be created in {parent}: {error.strerror or error}",
            hint="free some space there: the states need little more than the written data",
        ) from error
    finally:
        keeper().remove(directory)
    return total


def _judge_some(
    evidence: JudgeInput, entries: Sequence[Entry], cuts: Sequence[Cut], directory: Path
) -> list[Crash]:
    directory.mkdir()
    found = []
    with contextlib.ExitStack() as stack:
        replay = Replay(evidence.base, evidence.log, entries, directory)
        stack.callback(replay.close)
        recovers = stack.enter_context(
            recovery.start_recovery(evidence.filesystem, evidence.form, directory, evidence.reader)
        )
        for cut in cuts:
            image = replay.make_image(cut)
            newest = evidence.acknowledged(cut.after)
            exact = evidence.is_exact(entries, cut)
            left = recovers.recover(image, evidence.names, newest, exact=exact)
            image.unlink()
            # Nothing can be read from a damaged disk, so the very first record counts as lost.
            gone = 0 if left.damage and newest >= 0 else evidence.lost(newest, left.files)
            what = left.lost
            if not what and gone is not None:
                what = left.damage
            found.append(_describe_crash(cut, newest, gone, what, left))
    return found


def _describe_crash(cut: Cut, newest: int, gone: int | None, what: str, left: Recovered) -> Crash:
    says = left.damage or "; ".join(left.repairs[:2])
    if left.torn_superblock and gone is not None:
        return Crash(cut, newest, None, "; ".join(filter(None, (says, left.lost))), torn_superblock=True)
    return Crash(cut, newest, gone, says, what)
