"""Copies complete parts from one machine to another in an archive."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from guestmark.appliance.paths import locate_cache
from guestmark.core.architectures import ARCHITECTURES, Architecture
from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.core.keeper import keeper
from guestmark.core.temporary import replace_file
from guestmark.foreign import roots, store
from guestmark.foreign.progress import Progress

_TAR_S = 600


def list_parts(architecture: Architecture) -> list[Path]:
    """Returns the complete parts of an architecture, sorted by path: all roots, the latest agent and kernel."""
    parts: dict[str, Path] = {}
    made = store.find_architecture_directory(architecture).glob(f"*-*-*/{store.MADE}")
    # The oldest first, so that the latest agent and kernel replace earlier ones.
    for part in sorted(
        (path.parent for path in made), key=lambda part: (part / store.MADE).stat().st_mtime_ns
    ):
        kind = part.name.partition("-")[0]
        if kind == roots.KIND:
            kind = part.name
        parts[kind] = part
    return sorted(parts.values())


def save_parts(architectures: Iterable[Architecture], archive: Path, progress: Progress) -> None:
    """Writes all roots and the latest agents and kernels to an archive. Raises `GuestmarkError`."""
    home = locate_cache() / "foreign"
    names = []
    for row in architectures:
        names += [str(part.relative_to(home)) for part in list_parts(row)]
    progress.show_elapsed(f"writing {archive}", 0, None)
    try:
        with replace_file(archive, 0o644) as part:
            _run_tar(
                ["-czf", str(part), "--owner=0", "--group=0", "--numeric-owner", "-C", str(home), *names],
                str(archive),
            )
    except OSError as error:
        raise GuestmarkError(f"{archive} cannot be written: {error.strerror or error}") from error
    finally:
        progress.done(f"writing {archive}", 0)


def load_parts(archive: Path) -> list[Path]:
    """Unpacks the parts of an archive that are not in the cache yet; returns where all of them are.

    Raises `UsageError` for a file that is not such an archive, `GuestmarkError` if it is damaged; both change nothing.
    """
    if not archive.is_file():
        raise UsageError(
            f"there is no file {archive}",
            hint="create it on the other machine: guestmark prepare … --save FILE",
        )
    home = locate_cache() / "foreign"
    home.mkdir(exist_ok=True)
    staged = keeper().directory("foreign", home, 0o755)
    try:
        _run_tar(["-xf", str(archive), "--no-same-owner", "-C", str(staged)], str(archive))
        found = sorted(made.parent for made in staged.glob(f"*/*-*-*/{store.MADE}"))
        if not found or any(part.parent.name not in ARCHITECTURES for part in found):
            raise UsageError(
                f"{archive} contains no parts for foreign machines",
                hint="create one: guestmark prepare … --save FILE",
            )
        # All parts are checked before the first one is moved, so a damaged archive changes nothing.
        for part in found:
            store.check_part(part)
        return [_place_part(part, home) for part in found]
    finally:
        keeper().remove(staged)


def _place_part(part: Path, home: Path) -> Path:
    target = home / part.parent.name / part.name
    target.parent.mkdir(exist_ok=True)
    if not target.exists():
        shutil.move(part, target)
    return target


def _run_tar(arguments: list[str], archive: str) -> None:
    done = subprocess.run(["tar", *arguments], capture_output=True, text=True, check=False, timeout=_TAR_S)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise GuestmarkError(
            f"{archive}: {message}", hint="check the free space, and that the archive is complete"
        )
