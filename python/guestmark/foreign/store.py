"""The store of parts for foreign machines: each is complete or absent, under the hash of what it was built from.

`CACHE/foreign/ARCHITECTURE/KIND-KEY-TOOLS` holds one part and `made.json`, which records what it was built from. KEY is
the hash of guestmark's inputs (sources, configuration, lists of packages), TOOLS that of the distribution's (compilers,
versions of packages). A part is used wherever KEY is the same, whatever tools built it, so the directory can be copied
to a machine without the tools.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from guestmark.appliance.paths import locate_cache
from guestmark.core.architectures import Architecture
from guestmark.core.errors import GuestmarkError
from guestmark.core.keeper import keeper
from guestmark.foreign.progress import Progress

MADE = "made.json"
_KEY_LENGTH = 12


def find_architecture_directory(architecture: Architecture) -> Path:
    """Returns the directory with all parts of an architecture; it can be copied to another host."""
    return locate_cache() / "foreign" / architecture.name


def hash_inputs(inputs: Any) -> str:
    """Returns a short hash of JSON-serializable inputs; the order of keys does not matter."""
    text = json.dumps(inputs, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]


def find_part(architecture: Architecture, kind: str, key: str) -> Path | None:
    """Returns the newest complete part with that key; None if there is none.

    Raises `GuestmarkError` if its files differ from those that were built.
    """
    parts = find_architecture_directory(architecture).glob(f"{kind}-{key}-*/{MADE}")
    newest = max(parts, key=lambda made: made.stat().st_mtime, default=None)
    if newest is None:
        return None
    _check_once(newest.parent, newest.stat().st_mtime_ns)
    return newest.parent


def read_inputs(part: Path) -> Mapping[str, Any]:
    """Returns the record in `made.json`: the tools that built the part, and the SHA-256 digests of its files."""
    made: Mapping[str, Any] = json.loads((part / MADE).read_text())
    return made


@functools.cache
def _check_once(part: Path, _changed_ns: int) -> None:
    """Checks a part once per process, and again if it has changed."""
    check_part(part)


def check_part(part: Path) -> None:
    """Compares the files of a part with their digests.

    Raises `GuestmarkError` if they differ: a part that was copied here may be incomplete.
    """
    for name, digest in read_inputs(part)["sha256"].items():
        try:
            with (part / name).open("rb") as stream:
                have = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError:
            have = ""
        if have != digest:
            raise GuestmarkError(
                f"{part / name} is not the file that was built: it is damaged, or was not copied completely",
                hint=f"remove {part} to have it built again, or copy it again",
            )


@contextlib.contextmanager
def make_part(
    architecture: Architecture, kind: str, key: str, progress: Progress, *, lock: str = ".lock"
) -> Iterator[PartInMaking]:
    """Yields a part to fill, in a directory that no other process uses until it is complete.

    The caller fills `PartInMaking.path` and calls `complete`. An interruption, even by SIGKILL, leaves nothing behind.
    Waits while another process builds a part with the same lock.
    """
    parent = find_architecture_directory(architecture)
    parent.mkdir(parents=True, exist_ok=True)
    with _hold_lock(parent / lock, architecture, progress):
        staged = keeper().directory("foreign", parent, 0o755)
        try:
            yield PartInMaking(staged, parent / f"{kind}-{key}", kind)
        except KeyboardInterrupt:
            progress.say(describe_interruption(kind, architecture))
            raise
        finally:
            keeper().remove(staged)


def describe_interruption(kind: str, architecture: Architecture) -> str:
    """Returns the message about a part whose build was interrupted."""
    part = f"the {kind} for {architecture.name}"
    return f"stopped: {part} was incomplete and has been removed; the same command builds it again"


class PartInMaking:
    """A part that is being built in `path`; `scratch` is a directory for temporary files."""

    def __init__(self, staged: Path, target: Path, kind: str) -> None:
        self.path = staged / kind
        self.path.mkdir()
        self.scratch = staged / "scratch"
        self.scratch.mkdir()
        self._target = target

    @property
    def log(self) -> Path:
        """The log of the programs that build the part; it is kept if they fail."""
        return self._target.with_name(f"{self._target.name}.log")

    def complete(self, tools: Mapping[str, Any], files: tuple[str, ...]) -> Path:
        """Moves the part to its final directory and returns that; the digests of `files` are recorded."""
        digests = {}
        for name in sorted(files):
            digests[name] = hashlib.sha256((self.path / name).read_bytes()).hexdigest()
        made = {"tools": dict(tools), "sha256": digests}
        (self.path / MADE).write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
        target = self._target.with_name(f"{self._target.name}-{hash_inputs(tools)}")
        # The same tools have built the same part before, and it may be in use.
        if target.exists():
            os.utime(target / MADE)
        else:
            # Removed before the sync, which would otherwise write gigabytes of it to the disk.
            shutil.rmtree(self.scratch)
            # A part under its final name is complete, even after a power cut.
            os.sync()
            self.path.rename(target)
        self.log.unlink(missing_ok=True)
        return target


@contextlib.contextmanager
def _hold_lock(path: Path, architecture: Architecture, progress: Progress) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"another guestmark is building parts for {architecture.name}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
