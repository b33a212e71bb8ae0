"""Makes a file in a source distribution executable, because maturin packs all files as not executable.

usage: python -m tools.executable ARCHIVE.tar.gz PATH
"""

import gzip
import io
import sys
import tarfile
from pathlib import Path


def make_executable(archive: Path, path: str) -> None:
    """Repack the archive with this file, whose path begins below its topmost directory, executable.

    Raises `SystemExit` when the archive lacks it.
    """
    packed = io.BytesIO()
    found = False
    with (
        tarfile.open(archive) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w") as new,
    ):
        for entry in old:
            if entry.name.partition("/")[2] == path:
                entry.mode |= 0o111
                found = True
            new.addfile(entry, old.extractfile(entry) if entry.isfile() else None)
    if not found:
        raise SystemExit(f"executable: {archive} has no {path}")
    archive.write_bytes(packed.getvalue())


if __name__ == "__main__":
    make_executable(Path(sys.argv[1]), sys.argv[2])
