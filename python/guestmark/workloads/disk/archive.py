"""Archives to be sent: made once, kept in the run's store, removed with it."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.disks.store import store

if TYPE_CHECKING:
    from guestmark.disks.image import Image

_LEVEL = 1
_made: dict[tuple[Path, str], Path] = {}


def tar_gz(image: Image, name: str) -> Path:
    """A compressed archive that holds the bytes of `image` as one file called `name`."""
    key = (image.path, name)
    made = _made.get(key)
    if made is not None and made.exists():
        return made
    handle, text = tempfile.mkstemp(
        prefix="archive-", suffix=".tar.gz", dir=store().directory(image.spec.location)
    )
    path = Path(text)
    try:
        with (
            os.fdopen(handle, "wb") as raw,
            gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=_LEVEL, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT, bufsize=1 << 20) as archive,
            image.path.open("rb") as content,
        ):
            member = tarfile.TarInfo(name)
            member.size = image.spec.size
            archive.addfile(member, io.BufferedReader(content.raw, 1 << 20))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    _made[key] = path
    return path
