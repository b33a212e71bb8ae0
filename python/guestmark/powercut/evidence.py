"""Logs of writes that are kept, so that a proof or a loss can be looked into."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guestmark.core.errors import UsageError
from guestmark.core.home import default_path
from guestmark.disks.logged import Logged
from guestmark.powercut.judge import Judged
from guestmark.powercut.records import Method
from guestmark.powercut.replay import copy_without_zeroes

_KEPT = 64
_KEPT_BYTES = 512 << 20
_beside: ContextVar[Path | None] = ContextVar("_beside", default=None)
_ABOUT, _BASE, _LOG, _UNDER = "about.json", "base", "writes.log", "under"


@dataclass(frozen=True, slots=True)
class Kept:
    """The kept files of one proof; `under` is the base image of the others."""

    base: Path
    log: Path
    filesystem: str
    form: str
    method: Method
    crashes: list[dict[str, Any]]  # `after`, `survival`, `acknowledged`, `lost`, `says`
    under: Path | None = None


def folder(ledger: Path | None = None) -> Path:
    """The directory of kept logs: beside that ledger, else beside the one in use, else beside the default one."""
    return (ledger or _beside.get() or default_path()).parent / "powercut"


@contextlib.contextmanager
def beside(ledger: Path | None) -> Iterator[None]:
    """Keeps logs beside that ledger while the context lasts; beside the default one for one that is no file."""
    token = _beside.set(ledger)
    try:
        yield
    finally:
        _beside.reset(token)


def keep(files: Logged, filesystem: str, form: str, method: Method, judged: Judged) -> Path:
    """Keeps the log and the image before it; returns their directory. Only the newest stay, so many and so large."""
    parent = folder()
    parent.mkdir(parents=True, exist_ok=True)
    target = parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    target.mkdir()
    copy_without_zeroes(files.base, target / _BASE)
    copy_without_zeroes(files.log, target / _LOG)
    if files.under is not None:
        copy_without_zeroes(files.under, target / _UNDER)
    crashes = [
        {"after": crash.cut.after, "survival": crash.cut.survival.value, "acknowledged": crash.acknowledged,
         "lost": crash.lost, "says": crash.says}
        for crash in judged.crashes
    ]  # fmt: skip
    about = {"filesystem": filesystem, "format": form, "method": method.value, "crashes": crashes}
    (target / _ABOUT).write_text(json.dumps(about, indent=1))
    taken = 0
    for number, old in enumerate(sorted(parent.iterdir(), reverse=True)):
        taken += sum(file.stat().st_blocks * 512 for file in old.iterdir())
        if number and (number >= _KEPT or taken > _KEPT_BYTES):
            shutil.rmtree(old, ignore_errors=True)
    return target


def load(directory: str, ledger: Path | None = None) -> Kept:
    """Opens kept evidence: a directory, or the name (or its end) of one beside the ledger. Raises `UsageError`."""
    path = Path(directory)
    if not (path / _ABOUT).is_file():
        names = _names(folder(ledger))
        found = [known for known in names if known.name.endswith(directory)]
        if len(found) != 1:
            newest = ", ".join(known.name for known in names[-3:])
            raise UsageError(
                f"there is no log of writes {directory!r}",
                hint=f"the newest are {newest}"
                if newest
                else "guestmark powercut keeps one beside its ledger",
            )
        path = found[0]
    try:
        about = json.loads((path / _ABOUT).read_text())
        return Kept(
            path / _BASE, path / _LOG, about["filesystem"], about["format"], Method(about["method"]),
            list(about["crashes"]), path / _UNDER if (path / _UNDER).exists() else None,
        )  # fmt: skip
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"the log of writes in {path} cannot be read: {error}") from error


def _names(parent: Path) -> list[Path]:
    return sorted(Path(entry.path) for entry in os.scandir(parent)) if parent.is_dir() else []
