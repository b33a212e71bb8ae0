"""Locations of files that guestmark can recreate (XDG cache), and of files that a machine needs while it runs."""

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from guestmark.core.errors import GuestmarkError
from guestmark.core.home import find_cache_home
from guestmark.core.temporary import replace_file


def locate_cache() -> Path:
    """Returns `$XDG_CACHE_HOME/guestmark` (default `~/.cache/guestmark`); creates it if necessary.

    If it is not writable, as in a read-only or missing home, returns this user's own directory in the temporary one.
    Raises `GuestmarkError` if that cannot be created either.
    """
    path = find_cache_home()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _make_temporary_cache(path)
    if not os.access(path, os.W_OK | os.X_OK):
        return _make_temporary_cache(path)
    return path


def put_into_cache(target: Path, content: bytes, what: str) -> None:
    """Writes a file to the cache atomically. Raises `GuestmarkError` if there is no room for it."""
    try:
        with replace_file(target, 0o644) as part:
            part.write_bytes(content)
    except OSError as error:
        raise GuestmarkError(
            f"{what} ({len(content) / 1e6:.0f} MB) cannot be written to {target.parent}: {error.strerror}",
            hint="free some space there, or choose another cache directory: XDG_CACHE_HOME=DIRECTORY guestmark …",
        ) from error


def _make_temporary_cache(wanted: Path) -> Path:
    path = get_temporary_directory() / f"guestmark-cache-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise _make_cache_error(wanted, str(path), error.strerror or str(error)) from error
    # This user executes files from there, so no other user may be able to write to it.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise _make_cache_error(wanted, str(path), "it belongs to another user, or others can write to it")
    return path


def _make_cache_error(wanted: Path, path: str, reason: str) -> GuestmarkError:
    return GuestmarkError(
        f"neither {wanted} nor {path} can be written to: {reason}",
        hint="choose a writable cache directory: XDG_CACHE_HOME=DIRECTORY guestmark …",
    )


def get_temporary_directory() -> Path:
    """Returns `$TMPDIR`, or `/tmp`, as an absolute path. Raises `GuestmarkError` if it is not a directory."""
    path = Path(os.environ.get("TMPDIR") or "/tmp").absolute()
    if not path.is_dir():
        raise GuestmarkError(
            f"there is no directory {path} for temporary files", hint="create it, or set TMPDIR"
        )
    return path


def choose_scratch_parent() -> Path:
    """Returns the parent of machines' scratch directories: the session's runtime directory, else the temporary one."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and runtime.startswith("/") and os.access(runtime, os.W_OK):
        return Path(runtime)
    return get_temporary_directory()


T = TypeVar("T")


class FileCache(Generic[T]):
    """Caches the results of `look` by path, each until one of the files it depends on changes."""

    def __init__(self, look: Callable[[Path], T]) -> None:
        self._look = look
        self._found: dict[Path, tuple[tuple[str, ...], T]] = {}

    def look_up(self, path: Path, *depends_on: Path) -> T:
        """Returns `look(path)`, computed again only if one of the files `depends_on` (default: `path`) has changed."""
        stamps = tuple(compute_file_identity(file) for file in depends_on or (path,))
        known = self._found.get(path)
        if known is None or known[0] != stamps:
            known = self._found[path] = (stamps, self._look(path))
        return known[1]


def compute_file_identity(path: Path) -> str:
    """Returns a string that changes whenever the file does; empty if there is no file."""
    try:
        stamp = path.stat()
    except FileNotFoundError:
        return ""
    return f"{stamp.st_size}-{stamp.st_mtime_ns}-{stamp.st_ino}"


def remove_least_used(paths: Iterable[Path], keep: int) -> None:
    """Removes files and directories of a cache but for the `keep` that were changed last.

    Other processes may use the same cache, and remove some of them at the same time.
    """
    changed: list[tuple[float, Path]] = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            changed.append((path.stat().st_mtime, path))
    for _, path in sorted(changed, reverse=True)[keep:]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
