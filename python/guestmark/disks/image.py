"""Disk images of one trial: created before the timing, flushed inside it, checked and read after it."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from guestmark.agent.confinement import HYPERVISOR
from guestmark.agent.results import CallError
from guestmark.agent.wire import Checksum, Pattern
from guestmark.core.cause import Cause, classify_errno
from guestmark.core.errors import AttestationError, MachineError, WorkloadError
from guestmark.disks import daemon, devices, packed, page_cache, sparse
from guestmark.disks.daemon import serve_over_nbd
from guestmark.disks.logged import LoggedFiles, serve_logged
from guestmark.disks.scratch import get_scratch_store
from guestmark.disks.template import copy_template, format_fresh
from guestmark.setting.base import collect_options, repeat_option
from guestmark.setting.disk import DiskSpec, Role
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.image import BACKING, PROTOCOL, Format, Preallocation, Protocol

_FILL_S = 600.0
_checksums: dict[Path, Checksum] = {}
_sources: dict[tuple[object, ...], Path] = {}
_number = itertools.count()


class Allocation:
    """Allocates an image in a thread: gigabytes take about a second, and the boot meanwhile takes longer."""

    def __init__(self, allocate: Callable[[Path], None], path: Path) -> None:
        self._error: OSError | None = None
        self._thread = threading.Thread(
            target=self._run, args=(allocate, path), name="allocation", daemon=True
        )
        self._thread.start()

    def _run(self, allocate: Callable[[Path], None], path: Path) -> None:
        try:
            allocate(path)
        except OSError as error:
            self._error = error

    def wait(self) -> None:
        """Wait until the image is allocated. Raises the `OSError` of a failed allocation."""
        self._thread.join()
        if self._error is not None:
            raise self._error


@dataclass(frozen=True, slots=True)
class Image:
    """An existing image. `prepared_s` is the delay that creating it caused; `from_template` is true for a copy."""

    spec: DiskSpec
    path: Path
    prepared_s: float = 0.0
    from_template: bool = False
    allocation: Allocation | None = field(default=None, compare=False, repr=False)
    # The files of an image whose writes are logged; a hypervisor still opens `path`.
    logged: LoggedFiles | None = None
    # The socket of an image that is served over NBD, which a hypervisor opens instead.
    socket: Path | None = None

    @property
    def open_path(self) -> str:
        """The path or address that a hypervisor opens."""
        if self.socket is None:
            return str(self.path)
        return f"nbd+unix:///disk?socket={self.socket}"

    def finish_allocation(self) -> Image:
        """Wait until the image is allocated, which continues while the machine boots.

        Raises `MachineError` if there is no room, and `AttestationError` if it is not fully allocated.
        """
        if self.allocation is None:
            return self
        begin = time.monotonic()
        try:
            self.allocation.wait()
        except OSError as error:
            raise _describe_failure(self.spec, error) from error
        # A file that is smaller than its disk would have no place for all of it, however full the file is.
        self.check_allocation(max(self.spec.size, self.path.stat().st_size))
        return replace(self, prepared_s=self.prepared_s + time.monotonic() - begin, allocation=None)

    def check_allocation(self, length: int) -> None:
        """Raises `AttestationError` if the image occupies less than `length` bytes on the host's disk."""
        if (found := self.count_allocated_bytes()) < length:
            raise AttestationError(
                f"preallocation={self.spec.preallocation} did not take effect: asked for {length} bytes, "
                f"found {found} allocated"
            )

    def flush(self) -> float:
        """Flush the image, or all files of a directory, to the host's disk (fsync); return the seconds it took."""
        begin = time.monotonic()
        for path in (*_list_contents(str(self.path)), str(self.path.parent)):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        return time.monotonic() - begin

    def evict_from_cache(self) -> None:
        """Flush the image, or all files of a directory, and remove them from the host's page cache.

        The next read then comes from the host's disk. Nothing else that is cached is lost. Raises `OSError`.
        """
        for path in _list_contents(str(self.path)):
            if not os.path.isdir(path):
                page_cache.evict_file(path)

    def read_into_cache(self) -> None:
        """Read a source into the host's page cache, so that it is there for each row, whatever ran before."""
        # What is opened with O_DIRECT is not read from there.
        if not self.spec.cache.direct:
            page_cache.read_into_cache(self.path)

    def count_allocated_bytes(self) -> int:
        """Return the bytes that the image occupies on the host's disk."""
        if self.spec.is_device:
            return self.spec.size
        files = self.path.rglob("*") if self.path.is_dir() else (self.path,)
        return sum(file.stat().st_blocks for file in files) * 512

    def checksum(self) -> Checksum:
        """Return the digest of a source's bytes, computed once by an agent on the host."""
        if self.path not in _checksums:
            _checksums[self.path] = (
                get_scratch_store().start_agent().checksum(str(self.path), timeout_s=_FILL_S)
            )
        return _checksums[self.path]

    def check_filesystem(self) -> None:
        """Check the image with `qemu-img check`, or a raw image with its filesystem's checker; it must be unmounted.

        Raises `MachineError` with what the checker found.
        """
        if self.path.is_dir():
            return
        if self.spec.format is not Format.RAW:
            if self.spec.format.checked:
                self.run_on_image("qemu-img", "check", "-q", "-U", *self.spec.format.name_image(self.path))
        elif self.spec.filesystem.is_ext:
            self.run_on_image("e2fsck", "-fn", str(self.path))
        elif self.spec.filesystem is Filesystem.XFS:
            self.run_on_image("xfs_repair", "-n", "-f", str(self.path))
        elif self.spec.filesystem is Filesystem.BTRFS:
            # btrfs check asks a device about its zones, which its cage allows only for writable paths.
            self.run_on_image("btrfs", "check", "--readonly", str(self.path), writable=[self.path])

    def digest_past_guest(self, name: str) -> Checksum:
        """Return the digest of the file `name` in the root of a raw image's ext filesystem, as debugfs reads it.

        The disk must be unmounted. Raises `WorkloadError` with debugfs's message.
        """
        return digest_past_guest(self.path, name)

    def run_on_image(self, program: str, *arguments: str, writable: Sequence[Path] = ()) -> None:
        """Run a program on the machine that holds the image. Raises `MachineError` with its message."""
        daemon.run_program(program, *arguments, writable=writable)


@contextmanager
def make_images(specs: Sequence[DiskSpec], *, formatted: bool = True) -> Iterator[tuple[Image, ...]]:
    """Create fresh images for one trial; they are removed when the block ends, or when the process is killed.

    If the store keeps images, an exception in the context leaves them in place. Without `formatted` a target is an
    empty directory, as on the host, unless it is to be mounted there. Raises `MachineError` if there is no room, and
    `PlatformUnusableError` if a program is missing.
    """
    directories: list[Path] = []
    made: list[Image] = []
    whole = False
    exports = ExitStack()
    try:
        for spec in specs:
            try:
                made.append(_make_image(spec, directories, exports, formatted=formatted))
            except OSError as error:
                raise _describe_failure(spec, error) from error
        yield tuple(made)
        whole = True
    finally:
        # The allocating thread still writes to its image, which must not be removed before.
        for image in made:
            if image.allocation:
                with suppress(OSError):
                    image.allocation.wait()
        exports.close()
        if get_scratch_store().keep and not whole:
            get_scratch_store().left += directories
        else:
            for directory in directories:
                shutil.rmtree(directory, ignore_errors=True)


def _make_image(spec: DiskSpec, directories: list[Path], exports: ExitStack, *, formatted: bool) -> Image:
    if spec.role is Role.SOURCE:
        return _make_source_image(spec)
    if spec.is_directory or not (formatted or spec.loop):
        return _make_directory_image(spec, directories)
    if spec.is_packed:
        return _make_packed_image(spec)
    if spec.is_device:
        return _format_device(spec)
    image = _make_target_image(spec, directories)
    if spec.logged:
        image = _log_writes(image, exports)
    if spec.level(PROTOCOL) is Protocol.NBD:
        image = _serve_over_nbd(image, exports)
    return image


def _make_trial_directory(spec: DiskSpec, directories: list[Path]) -> Path:
    parent = get_scratch_store().directory(spec.location)
    # The parent belongs to this process alone, so a counter makes the name unique.
    path = parent / f"guestmark-trial-{next(_number)}"
    path.mkdir(0o700)
    directories.append(path)
    # The tree's files may belong to another user, who must be able to enter the directory.
    if spec.tree:
        for directory in (parent, path):
            directory.chmod(0o711)
    return path


def _make_directory_image(spec: DiskSpec, directories: list[Path]) -> Image:
    """Make the host's own disk: a directory, with a copy of the tree if there is one."""
    begin = time.monotonic()
    path = _make_trial_directory(spec, directories)
    if spec.tree:
        sparse.copy_tree(Path(spec.tree), path)
    return Image(spec, path, time.monotonic() - begin, bool(spec.tree))


def _make_target_image(spec: DiskSpec, directories: list[Path]) -> Image:
    begin = time.monotonic()
    path = _make_trial_directory(spec, directories) / f"{spec.name}.{spec.format}"
    was_there = _make_overlay(spec, path) if spec.level(BACKING) else copy_template(spec, path)
    allocate = {Preallocation.FALLOC: sparse.allocate_holes, Preallocation.FULL: sparse.write_holes}.get(
        spec.preallocation
    )
    allocation = Allocation(allocate, path) if allocate else None
    return Image(spec, path, time.monotonic() - begin, was_there, allocation)


def _format_device(spec: DiskSpec) -> Image:
    """Claim a block device and create its filesystem."""
    begin = time.monotonic()
    devices.take_device(spec.location)
    path = Path(spec.location)
    format_fresh(spec, path)
    return Image(spec, path, time.monotonic() - begin)


def _make_overlay(spec: DiskSpec, path: Path) -> bool:
    """Create an empty overlay on a copy of the template; return whether the template existed already.

    The overlay names the copy by its full path.
    """
    base = _locate_backing_file(path)
    was_there = copy_template(spec, base)
    created = repeat_option("-o", collect_options(spec, lambda factor: factor.create))
    daemon.run_program(
        "qemu-img", "create", "-q", "-f", "qcow2", "-b", str(base), "-F", "qcow2", *created, str(path),
        writable=[path.parent],
    )  # fmt: skip
    return was_there


def _locate_backing_file(path: Path) -> Path:
    """Return the path of the image that an overlay is based on."""
    return path.with_name(f"under-{path.name}")


def _log_writes(image: Image, exports: ExitStack) -> Image:
    """Return the same image behind a log of its writes, which ends with `exports`."""
    image = image.finish_allocation()
    below = image.path.with_name(f"below-{image.path.name}")
    image.path.rename(below)
    under = _locate_backing_file(image.path) if image.spec.level(BACKING) else None
    files = LoggedFiles(
        image.path.with_name(f"base-{image.path.name}"), image.path.with_name("writes.log"), below, under
    )
    # A replay begins with the image that the machine began with, so that is kept before the server starts.
    sparse.copy_file(below, files.base)
    kill = exports.enter_context(serve_logged(files, image.path))
    return replace(image, logged=replace(files, at=image.path, kill=kill))


def _serve_over_nbd(image: Image, exports: ExitStack) -> Image:
    """Return the same image behind an NBD server, which ends with `exports`."""
    image = image.finish_allocation()
    socket = image.path.with_name("nbd.socket")
    exports.enter_context(serve_over_nbd(image.path, socket))
    return replace(image, socket=socket)


def _make_source_image(spec: DiskSpec) -> Image:
    """Return a source, one file for all trials of the run, as it is never written."""
    return _share_image(spec, (spec.content,), lambda path: _fill_source(spec, path, spec.size))


def _make_packed_image(spec: DiskSpec) -> Image:
    """Return a packed filesystem, one file for all trials of the run, as it is never written."""
    key = (spec.content, spec.filesystem, spec.mkfs_options, spec.holds)
    return _share_image(
        spec,
        key,
        lambda path: packed.make_packed_image(spec, path, lambda file: _fill_source(spec, file, spec.holds)),
    )


def _share_image(spec: DiskSpec, shape: tuple[object, ...], make: Callable[[Path], None]) -> Image:
    """Return an image that all trials of the run share, and all cells that need one of the same shape."""
    key = (spec.location, spec.size, *shape)
    begin = time.monotonic()
    path = _sources.get(key)
    was_there = path is not None and path.exists()
    if path is None or not was_there:
        parent = get_scratch_store().directory(spec.location)
        path = parent / f"source-{next(_number)}.raw"
        # Sources may be copies of the user's files: no other user may read them.
        path.touch(0o600)
        try:
            make(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        _sources[key] = path
    return Image(spec, path, time.monotonic() - begin, was_there)


def _fill_source(spec: DiskSpec, path: Path, size: int) -> None:
    agent = get_scratch_store().start_agent()
    kind, _, name = spec.content.partition(":")
    try:
        if kind == "file":
            agent.copy(name, str(path), length=size, preallocate=False, flush=False, timeout_s=_FILL_S)
        else:
            agent.fill(str(path), size, Pattern(kind), flush=False, timeout_s=_FILL_S)
    except CallError as error:
        raise MachineError(
            f"the source disk cannot be created: {error.message}", cause=error.cause
        ) from error


def _list_contents(path: str) -> list[str]:
    """Return a file or device; or a directory, with all regular files and directories below it."""
    found = [path]
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            entry = os.path.join(folder, name)
            if stat.S_IFMT(os.lstat(entry).st_mode) in (stat.S_IFREG, stat.S_IFDIR):
                found.append(entry)
    return found


def _describe_failure(spec: DiskSpec, error: OSError) -> MachineError:
    if classify_errno(error.errno) is Cause.NO_ROOM:
        return MachineError(
            f"no room for a {spec.size}-byte image in {spec.location}",
            hint="choose another directory with --set location=DIRECTORY or a smaller size",
            cause=Cause.NO_ROOM,
        )
    return MachineError(f"an image cannot be created in {spec.location}: {error.strerror}")


_READ_S = 600.0


def digest_past_guest(image: Path, name: str) -> Checksum:
    """Return the digest of the file `name` in the root of a raw image's filesystem, which must not be mounted."""
    # A guest may have written the image, so debugfs is confined like a hypervisor.
    program = daemon.find_program("debugfs")
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        HYPERVISOR.wrap_command([program, "-R", f"cat {name}", str(image)], ()),
        stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        os.close(write_end)
        said: list[bytes] = []
        assert process.stderr is not None
        drain = threading.Thread(target=lambda stream: said.append(stream.read()), args=(process.stderr,))
        drain.start()
        try:
            found = (
                get_scratch_store()
                .start_agent()
                .checksum(f"/proc/{os.getpid()}/fd/{read_end}", timeout_s=_READ_S)
            )
        finally:
            os.close(read_end)
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            drain.join()
    lines = [line for line in b"".join(said).decode(errors="replace").splitlines() if line.strip()]
    complaints = [line for line in lines if not line.startswith("debugfs ")]
    if complaints:
        raise WorkloadError(f"the data cannot be read back: debugfs: {complaints[0]}")
    return found
