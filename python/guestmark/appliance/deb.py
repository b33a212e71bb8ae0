"""Reads packages of Debian and Ubuntu without the programs of these distributions."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from guestmark.core.temporary import open_unnamed_file

# Magic number and header size of an ar archive, which a .deb is: deb(5).
_ARCHIVE, _HEADER = b"!<arch>\n", 60


@contextlib.contextmanager
def open_package_files(archive: Path) -> Iterator[IO[bytes]]:
    """Yields a package's files as a tar archive, compressed or not. Raises `ValueError` for an incomplete package."""
    with archive.open("rb", buffering=0) as stream, open_unnamed_file() as packed:
        name, size = _find_files_member(stream)
        # dpkg-deb unpacks in parallel to this process, in later versions with several threads.
        if shutil.which("dpkg-deb"):
            with _stream_output(["dpkg-deb", "--fsys-tarfile", str(archive)], packed) as files:
                yield files
        elif not name.endswith(".zst"):
            yield stream
        elif shutil.which("zstd") is None:
            raise ValueError("it is compressed with zstd, which is not installed")
        else:
            # Python before 3.14 cannot unpack zstd.
            while size and (data := stream.read(min(size, 1 << 20))):
                packed.write(data)
                size -= len(data)
            packed.seek(0)
            with _stream_output(["zstd", "-dcq"], packed) as files:
                yield files


def _find_files_member(stream: IO[bytes]) -> tuple[str, int]:
    """Returns name and size of the member that contains the package's files; leaves the stream at its beginning."""
    if stream.read(len(_ARCHIVE)) != _ARCHIVE:
        raise ValueError("it is not an ar archive")
    while len(header := stream.read(_HEADER)) == _HEADER:
        name, size = header[:16].decode("ascii", "replace").rstrip(" /"), int(header[48:58])
        if stream.tell() + size > os.fstat(stream.fileno()).st_size:
            raise ValueError("it is truncated")
        if name.startswith("data.tar"):
            return name, size
        # Members are padded to an even size.
        stream.seek(size + size % 2, os.SEEK_CUR)
    raise ValueError("it contains no files")


@contextlib.contextmanager
def _stream_output(command: Sequence[str], given: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yields the program's standard output. Raises `ValueError` if it fails."""
    with subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield process.stdout
        while process.stdout.read(1 << 20):
            pass
    if process.returncode:
        raise ValueError("it is damaged")
