"""Facts about files, cached until the files change, so that a 10 MB kernel is not read at every start."""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """The results of `look` by path, each as long as the files it depends on have not changed."""

    def __init__(self, look: Callable[[Path], T]) -> None:
        self._look = look
        self._found: dict[Path, tuple[tuple[str, ...], T]] = {}

    def of(self, path: Path, *depends_on: Path) -> T:
        """What `look(path)` gives; `depends_on` are the files that decide it (none: the path itself)."""
        stamps = tuple(identity(file) for file in depends_on or (path,))
        known = self._found.get(path)
        if known is None or known[0] != stamps:
            known = self._found[path] = (stamps, self._look(path))
        return known[1]


def identity(path: Path) -> str:
    """Changes whenever the file does; empty when there is none."""
    try:
        stamp = path.stat()
    except FileNotFoundError:
        return ""
    return f"{stamp.st_size}-{stamp.st_mtime_ns}-{stamp.st_ino}"
