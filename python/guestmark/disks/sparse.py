"""Copies and allocates image files cheaply: by reflink where possible, else without the holes."""

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_FICLONE = 0x40049409  # linux/fs.h
_ZEROES = bytes(4 << 20)


def copy_file(source: Path, target: Path) -> None:
    """Create `target` with the content and the holes of `source`."""
    with source.open("rb") as read, target.open("xb") as write:
        try:
            # A reflink shares the blocks until one side is written (btrfs, XFS, bcachefs).
            fcntl.ioctl(write.fileno(), _FICLONE, read.fileno())
        except OSError:
            os.ftruncate(write.fileno(), os.fstat(read.fileno()).st_size)
            copy_data(read.fileno(), write.fileno())


def copy_data(read: int, write: int) -> None:
    """Copy everything that is not a hole to the same offsets."""
    for start, end in iterate_data_ranges(read, os.fstat(read).st_size):
        _copy_range(read, write, start, end)


def copy_tree(source: Path, target: Path) -> None:
    """Copy the content of the directory `source` into `target`: files with holes, permissions and, as root, owners.

    Sockets and pipes are left out.
    """
    for entry in sorted(source.iterdir()):
        copied = target / entry.name
        if entry.is_symlink():
            copied.symlink_to(entry.readlink())
            continue
        if entry.is_dir():
            copied.mkdir()
            copy_tree(entry, copied)
        elif entry.is_file():
            copy_file(entry, copied)
        else:
            continue
        _copy_owner(entry, copied)
    _copy_owner(source, target)


def _copy_owner(source: Path, target: Path) -> None:
    status = source.stat()
    if os.geteuid() == 0:
        os.chown(target, status.st_uid, status.st_gid)
    target.chmod(status.st_mode & 0o7777)


def iterate_data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file that are not holes, as start and end offsets."""
    start = 0
    while start < size:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end
        start = end


def allocate_holes(path: Path) -> None:
    """Allocate every hole of the file without writing to it, and flush it."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        os.fsync(file.fileno())


def write_holes(path: Path) -> None:
    """Write zeroes into every hole of the file and flush them: the host must not write them during a measurement."""
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        position = 0
        # The extra range at the end makes the loop fill the hole after the last data.
        for start, end in [*iterate_data_ranges(file.fileno(), size), (size, size)]:
            while position < start:
                position += os.pwrite(file.fileno(), _ZEROES[: start - position], position)
            position = end
        os.fsync(file.fileno())


def _copy_range(read: int, write: int, start: int, end: int) -> None:
    os.lseek(write, start, os.SEEK_SET)
    while start < end:
        count = os.sendfile(write, read, start, end - start)
        if count == 0:
            raise OSError(errno.EIO, "the template shrank while it was being copied")
        start += count
