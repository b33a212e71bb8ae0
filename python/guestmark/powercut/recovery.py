"""Recovers a disk after a power cut: checks its format and its filesystem, and reads the files that are left.

Filesystems whose tools recover an image by themselves (ext2 to ext4) need neither root nor a mount. The others are
mounted through a loop device, in a mount namespace that ends with the agent in it, because only a kernel replays their
journals.

A qcow2 image is read here, as starting a program takes longer than reading a small image. The format is described in
QEMU's docs/interop/qcow2.txt. Compressed clusters, a backing image or an external data file are left to qemu-img.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.agent.results import CallError
from guestmark.core.cause import Cause, Speaker, classify_message
from guestmark.core.errors import AgentError, MachineError
from guestmark.core.keeper import keeper
from guestmark.disks import daemon, loop
from guestmark.powercut.check_answer import Answer
from guestmark.powercut.ext_image import digest_image
from guestmark.powercut.superblock import has_torn_superblock
from guestmark.setting.image import Format

_HEADER = struct.Struct(">4sIQIIQIIQQIIQ")  # to the offset of the snapshots
_FEATURES = struct.Struct(">Q")
_MAGIC = b"QFI\xfb"
# Incompatible features that do not matter here: dirty and corrupt, which the format's own check has judged.
_HARMLESS = 0b11
_OFFSET = 0x00FF_FFFF_FFFF_FE00
_COMPRESSED, _ZERO = 1 << 62, 1
_PIECE = 1 << 20


def convert_to_raw(image: Path, raw: Path) -> bool:
    """Write a qcow2 image's content to `raw`; return False, without writing, if it is not plain. Raises `OSError`."""
    with image.open("rb") as read:
        first = read.read(_HEADER.size + _FEATURES.size)
        if len(first) < _HEADER.size + _FEATURES.size:
            return False
        magic, version, backing, _, bits, size, encrypted, entries, table, *_ = _HEADER.unpack_from(first)
        features = _FEATURES.unpack_from(first, _HEADER.size)[0] if version > 2 else 0
        if magic != _MAGIC or backing or encrypted or features & ~_HARMLESS or not 9 <= bits <= 21:
            return False
        cluster = 1 << bits
        extents = _read_extents(read.fileno(), table, entries, cluster, size)
        if extents is None:
            return False
        with raw.open("xb") as write:
            os.ftruncate(write.fileno(), size)
            for at, where, length in extents:
                for done in range(0, length, _PIECE):
                    data = os.pread(read.fileno(), min(_PIECE, length - done), where + done)
                    os.pwrite(write.fileno(), data[: max(0, size - at - done)], at + done)
    return True


def _read_extents(
    image: int, table: int, entries: int, cluster: int, size: int
) -> list[tuple[int, int, int]] | None:
    """Return the disk's data as (disk offset, image offset, length), adjacent ones merged; None if it is compressed."""
    found: list[tuple[int, int, int]] = []
    per_table = cluster // 8
    wanted = -(-size // (cluster * per_table))
    for number, entry in enumerate(_read_big_endian(image, table, min(entries, wanted))):
        if not entry & _OFFSET:
            continue
        for index, each in enumerate(_read_big_endian(image, entry & _OFFSET, per_table)):
            if each & _COMPRESSED:
                return None
            where, at = each & _OFFSET, (number * per_table + index) * cluster
            if not where or each & _ZERO or at >= size:
                continue
            if found and (last := found[-1])[0] + last[2] == at and last[1] + last[2] == where:
                found[-1] = (last[0], last[1], last[2] + cluster)
            else:
                found.append((at, where, cluster))
    return found


def _read_big_endian(image: int, at: int, count: int) -> array[int]:
    """Return big-endian 64-bit numbers, fewer than `count` at the end of the image."""
    data = os.pread(image, count * 8, at)
    numbers = array("Q", data[: len(data) // 8 * 8])
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


_DEADLINE_S = 60.0
_TRUNCATED = 64 << 20
# How long another copy of a disk may be in the way, and the pause between two attempts.
_TWIN_S, _TWIN_PAUSE_S = 5.0, 0.05
_MOST_PROCESSORS = 2
# Exit status of `btrfs rescue super-recover`.
_SUPERBLOCK_MENDED = 2
# Lines of e2fsck about repairs, and those among them that any journal replay prints or that only shrink a tree.
_REPAIR = re.compile(r"\? yes|FIXED|Clear")
_ORDINARY = re.compile(
    r"recovering journal|^Fix\? yes$|orphaned inode|extent tree .*could be (shorter|narrower)|"
    r"(free (blocks|inodes) count|[Ff]ree (blocks|inodes) count wrong).*"
)
# The kernel identifies btrfs filesystems by an id that copies share; newer kernels give a mounted copy another one.
_TEMPORARY_ID = Path("/sys/fs/btrfs/features/temp_fsid")


@dataclass(frozen=True, slots=True)
class Recovered:
    """The records that are left after recovery.

    `files` has the requested files by name (None: missing), `repairs` lists repairs beyond a replay of the journal,
    `damage` tells why the disk cannot be mounted, `lost` describes what is missing. `answer` is the result of a reader
    that runs a check. With `torn_superblock` the program is not at fault for any of it: see `superblock`.
    """

    files: dict[str, bytes | None]
    repairs: tuple[str, ...] = ()
    damage: str = ""
    lost: str = ""
    answer: Answer | None = None
    torn_superblock: bool = False


class Reader(Protocol):
    """Examines a mounted filesystem.

    It is mounted read-only, because unmounting then takes half as long. A reader that changes it, such as a database
    server that recovers its files, calls `allow_changes` first.
    """

    def read(
        self, agent: Agent, directory: Path, names: Sequence[str], newest: int, *, exact: bool
    ) -> Recovered:
        """Return what the directory contains, as seen by `agent`.

        `newest` is the record acknowledged last, -1 for none. With `exact`, nothing written after it has survived.
        """


def allow_changes(agent: Agent, directory: Path) -> None:
    """Remount a filesystem for writing, as a booting machine does after checking it. Raises `MachineError`."""
    try:
        agent.mount("none", str(directory), "none", "remount,rw", timeout_s=_DEADLINE_S)
    except CallError as error:
        raise MachineError(
            f"a crash state cannot be mounted for writing: {error.message}",
            hint="see the kernel log: dmesg",
            cause=error.cause,
        ) from error


class Recovery(Protocol):
    """Recovers images of one filesystem."""

    def recover(self, image: Path, names: Sequence[str], newest: int, *, exact: bool) -> Recovered:
        """Recover a raw image in place and read the files `names` in its root directory.

        `newest` and `exact` as in `Reader.read`.
        """


class ExtRecovery:
    """Recovers ext2, ext3 and ext4: e2fsck replays the journal and checks, debugfs reads."""

    def __init__(self) -> None:
        self._check, self._read = daemon.find_program("e2fsck"), daemon.find_program("debugfs")

    def recover(self, image: Path, names: Sequence[str], newest: int, *, exact: bool) -> Recovered:
        """See `Recovery`."""
        found = self.replay_journal(image)
        if found.damage:
            return found
        return replace(found, files={name: self._read_content(image, name) for name in names})

    def replay_journal(self, image: Path) -> Recovered:
        """Leave the image as a booting machine would: with the journal replayed and repaired by e2fsck."""
        done = _run_tool([self._check, "-fy", str(image)])
        output = done.stdout.decode(errors="replace")
        if done.returncode & ~3:
            last = (done.stderr.decode(errors="replace").strip() or output.strip()).splitlines()
            reason = last[-1] if last else f"exit status {done.returncode}"
            return Recovered({}, damage=f"e2fsck: {reason}")
        repairs = []
        for line in output.splitlines():
            if _REPAIR.search(line) and not _ORDINARY.search(line.strip()):
                repairs.append(line.strip())
        return Recovered({}, tuple(repairs))

    def _read_content(self, image: Path, name: str) -> bytes | None:
        done = _run_tool([self._read, "-R", f"cat /{name}", str(image)])
        message = classify_message(Speaker.DEBUGFS, done.stderr.decode(errors="replace"))
        return None if message.cause is Cause.NO_FILE else done.stdout


class ReadStates:
    """A cache of a reader's results for images with equal files; several recoveries may share it."""

    def __init__(self) -> None:
        self._found: dict[tuple[bytes, int], Recovered] = {}

    def recall(self, digest: bytes, newest: int) -> Recovered | None:
        """Return the result for an equal image after the same record; None if there was none."""
        return self._found.get((digest, newest))

    def remember(self, digest: bytes, newest: int, found: Recovered) -> None:
        """Store the result for images with this digest."""
        self._found[digest, newest] = found


class MountedRecovery:
    """Recovers any other filesystem: this host's kernel mounts the image, then the filesystem's checker examines it.

    With `known` an image of ext2 to ext4 is only mounted if no equal one was read before.
    """

    def __init__(
        self,
        filesystem: str,
        agent: Agent,
        directory: Path,
        reader: Reader | None = None,
        known: ReadStates | None = None,
    ) -> None:
        self._known = known
        self._filesystem = filesystem
        self._reader = reader
        self._agent = agent
        self._at = directory / "mounted"
        self._at.mkdir()

    def recover(self, image: Path, names: Sequence[str], newest: int, *, exact: bool) -> Recovered:
        """See `Recovery`."""
        # A torn superblock keeps the kernel from mounting; booting machines check their disks first.
        if not self._filesystem.startswith("ext"):
            return self._mount_and_read(image, Recovered({}), names, newest, exact=exact)
        checked = ExtRecovery().replay_journal(image)
        if checked.damage:
            return checked
        digest = digest_image(image) if self._known is not None else None
        if self._known is None or digest is None:
            return self._mount_and_read(image, checked, names, newest, exact=exact)
        found = self._known.recall(digest, newest)
        if found is None:
            found = self._mount_and_read(image, checked, names, newest, exact=exact)
            self._known.remember(digest, newest, found)
        return replace(found, repairs=checked.repairs)

    def _mount_and_read(
        self, image: Path, checked: Recovered, names: Sequence[str], newest: int, *, exact: bool
    ) -> Recovered:
        # A filesystem that is mounted read-only replays its journal nevertheless.
        options = "ro,nouuid" if self._filesystem == "xfs" else "ro"
        with loop.attach_loop(image) as device:
            failed = self._mount_image(device, options)
            torn = bool(failed) and has_torn_superblock(self._filesystem, image)
            if failed and self._mend_superblock(device):
                checked = replace(checked, repairs=("a torn superblock was restored from its copy",))
                failed = self._mount_image(device, options)
            if failed:
                damage = f"the filesystem cannot be mounted: {failed[:200]}"
                return Recovered({}, damage=damage, torn_superblock=torn)
            if self._reader is not None:
                found = self._reader.read(self._agent, self._at, names, newest, exact=exact)
            else:
                found = Recovered({name: self._read_content(name) for name in names})
            try:
                self._agent.umount(str(self._at), timeout_s=_DEADLINE_S)
            except CallError as error:
                raise MachineError(
                    f"a crash state cannot be unmounted: {error.message}",
                    hint="see the kernel log: dmesg",
                    cause=error.cause,
                ) from error
        repairs = (*checked.repairs, *found.repairs, *self._find_repairs(image))
        return replace(found, repairs=repairs, torn_superblock=torn)

    def _mount_image(self, device: str, options: str) -> str:
        """Mount the image and return why it cannot be mounted; empty if it is mounted.

        btrfs may take a device for another copy that is just being mounted or unmounted, here or by another run, and
        then fails with EEXIST. Only a disk that is refused for longer counts as damaged.
        """
        deadline = time.monotonic() + _TWIN_S
        while True:
            try:
                self._agent.mount(device, str(self._at), self._filesystem, options, timeout_s=_DEADLINE_S)
            except CallError as error:
                if error.errno != errno.EEXIST or time.monotonic() > deadline:
                    return error.message
                time.sleep(_TWIN_PAUSE_S)
            else:
                return ""

    def _mend_superblock(self, device: str) -> bool:
        """Repair a superblock torn by a power cut, which the kernel does not do; return True if it was repaired.

        A disk with 512-byte sectors may tear the 4096-byte superblock of btrfs. `btrfs-rescue(8)` restores it from its
        copy, whose trees still exist.
        """
        if self._filesystem != "btrfs":
            return False
        done = _run_tool([daemon.find_program("btrfs"), "rescue", "super-recover", "-y", device])
        return done.returncode == _SUPERBLOCK_MENDED

    def _read_content(self, name: str) -> bytes | None:
        try:
            return self._agent.read_file(str(self._at / name), limit=_TRUNCATED)
        except AgentError:
            return None

    def _find_repairs(self, image: Path) -> tuple[str, ...]:
        checkers = {
            # Preparing its usual cache takes longer than checking a small image.
            "xfs": ("xfs_repair", "-n", "-f", "-o", "bhash=512", str(image)),
            "btrfs": ("btrfs", "check", "--readonly", str(image)),
        }
        if self._filesystem not in checkers:
            return ()
        program, *arguments = checkers[self._filesystem]
        done = _run_tool([daemon.find_program(program), *arguments])
        if done.returncode == 0:
            return ()
        lines = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
        return (lines[-1] if lines else f"{program} reports errors",)


class FormattedRecovery:
    """Recovers an image in a format: checks the format first, then recovers the filesystem in it."""

    def __init__(self, inner: Recovery, form: Format) -> None:
        self._inner = inner
        self._format = form
        self._program = daemon.find_program("qemu-img")

    def recover(self, image: Path, names: Sequence[str], newest: int, *, exact: bool) -> Recovered:
        """See `Recovery`."""
        if self._format.checked:
            done = _run_tool([self._program, "check", *self._format.name_image(image)])
            # 3 means leaked clusters, which lose no data.
            if done.returncode not in (0, 3):
                lines = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
                reason = lines[0] if lines else done.returncode
                return Recovered({}, damage=f"qemu-img check: {reason}")
        raw = image.with_suffix(".raw")
        try:
            if self._format.name != "qcow2" or not convert_to_raw(image, raw):
                done = _run_tool(
                    [self._program, "convert", "-O", "raw", *self._format.name_image(image), str(raw)]
                )
                if done.returncode:
                    return Recovered({}, damage=done.stderr.decode(errors="replace").strip()[:200])
            return self._inner.recover(raw, names, newest, exact=exact)
        finally:
            raw.unlink(missing_ok=True)


def explain_not_recoverable(filesystem: str, *, mounted: bool = False) -> str:
    """Return why crash states of a filesystem cannot be judged here; empty if they can.

    With `mounted` the files are not only read, so the filesystem has to be mounted.
    """
    if filesystem.startswith("ext") and not mounted:
        return ""
    return loop.explain_no_loop() or loop.explain_unknown_filesystem(filesystem)


def count_workers(filesystem: str, *, mounted: bool = False) -> int:
    """Return how many states to judge in parallel: several per processor where they mostly wait for mounts."""
    # Older kernels refuse to mount two copies of one btrfs at the same time.
    if filesystem == "btrfs" and not _TEMPORARY_ID.exists():
        return 1
    processors = min(_MOST_PROCESSORS, os.cpu_count() or 1)
    if filesystem.startswith("ext") and not mounted:
        return processors
    return 4 * processors


@contextlib.contextmanager
def start_recovery(
    filesystem: str,
    form: str,
    directory: Path,
    reader: Reader | None = None,
    known: ReadStates | None = None,
) -> Iterator[Recovery]:
    """Yield a recovery for images of a filesystem in a format; `directory` is for its own use.

    With `known`, equal images are read only once.
    """
    with contextlib.ExitStack() as stack:
        inner: Recovery
        if filesystem.startswith("ext") and reader is None:
            inner = ExtRecovery()
        else:
            loop.check_loop()
            process, transport = start_host_agent(loop.PRIVATE_MOUNTS, hold=keeper().handles)
            agent = Agent(transport)
            stack.callback(process.wait)
            stack.callback(agent.close)
            inner = MountedRecovery(filesystem, agent, directory, reader, known)
        if form != Format.RAW:
            inner = FormattedRecovery(inner, Format(form))
        yield inner


def _run_tool(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_DEADLINE_S, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        program = os.path.basename(command[0])
        raise MachineError(f"{program} did not finish within {_DEADLINE_S:g} s on a crash state") from None
