"""Logs of writes that are kept, so that a loss can be looked into."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guestmark.core.errors import UsageError
from guestmark.disks.logged import Logged
from guestmark.ledger.location import default_path
from guestmark.powercut.judge import Judged
from guestmark.powercut.records import Method
from guestmark.powercut.replay import copy_without_zeroes

_KEPT = 16
_ABOUT, _BASE, _LOG, _UNDER = "about.json", "base", "writes.log", "under"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one proof; `under` is the image on top of which the others lie."""

    base: Path
    log: Path
    filesystem: str
    form: str
    method: Method
    crashes: list[dict[str, Any]]  # `after`, `survival`, `acknowledged`, `lost`, `says`
    under: Path | None = None


def folder() -> Path:
    """Where logs are kept: beside the ledger."""
    return default_path().parent / "powercut"


def keep(files: Logged, filesystem: str, form: str, method: Method, judged: Judged) -> Path:
    """Keeps the log and the image before it; returns their directory. Only the newest few stay."""
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
    for old in sorted(parent.iterdir())[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def load(directory: str) -> Kept:
    """What was kept there: a directory, or the name (or its end) of one beside the ledger. Raises `UsageError`."""
    path = Path(directory)
    if not (path / _ABOUT).is_file():
        found = [known for known in _names() if known.name.endswith(directory)]
        if len(found) != 1:
            names = ", ".join(known.name for known in _names()[-3:])
            raise UsageError(
                f"there is no log of writes {directory!r}",
                hint=f"the newest are {names}" if names else "one is kept when a power cut loses something",
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


def _names() -> list[Path]:
    return sorted(Path(entry.path) for entry in os.scandir(folder())) if folder().is_dir() else []
