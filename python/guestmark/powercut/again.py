"""Looking into a log that was kept: its requests, what was wrong after which of them, and images of single cuts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from guestmark.core.errors import UsageError
from guestmark.disks import programs
from guestmark.powercut import cuts, evidence, recovery
from guestmark.powercut.cuts import Survival
from guestmark.powercut.replay import Replay
from guestmark.powercut.writelog import Entry, Flag, WriteLog

_SURVIVALS = {"all": Survival.ALL, "half": Survival.HALF, "none": Survival.NONE}


def lines(name: str, after: int | None, ledger: Path | None = None) -> Iterator[str]:
    """Reports on a log: every crash found; with `after`, only the crashes there and the requests before them."""
    kept = evidence.load(name, ledger)
    with WriteLog(kept.log) as log:
        flushes = sum(entry.flushes for entry in log.entries)
        yield f"{kept.log.parent}: {len(log)} requests, {flushes} flushes; {kept.filesystem} in {kept.form}"
        if after is not None:
            _check(after, len(log))
            for number in range(max(0, after - 8), after):
                yield f"  {number + 1}: {_said(log.entries[number])}"
    shown = [crash for crash in kept.crashes if after in (None, crash["after"])]
    for crash in shown:
        gone = f"lost record {crash['lost']}" if crash["lost"] is not None else "nothing lost"
        said = f"; {crash['says']}" if crash["says"] else ""
        newest = f"{crash['acknowledged']} acknowledged last"
        yield f"  cut {crash['after']}, {crash['survival']} survives: {gone}, {newest}{said}"


def write(name: str, after: int, survival: str, image: str, ledger: Path | None = None) -> str:
    """Writes the image that a cut leaves, not yet recovered, to a file; returns what there is to say of it."""
    if survival not in _SURVIVALS:
        raise UsageError(
            f"--survival {survival!r} is not one of {', '.join(_SURVIVALS)}", hint="e.g. --survival none"
        )
    kept = evidence.load(name, ledger)
    with WriteLog(kept.log) as log, tempfile.TemporaryDirectory(prefix="guestmark-replay-") as directory:
        _check(after, len(log))
        cut = cuts.at(log.entries, after, _SURVIVALS[survival])
        replay = Replay(kept.base, log, log.entries, Path(directory))
        made = replay.state(cut)
        replay.close()
        shutil.move(made, image)
    if kept.under is not None:  # it names the one of the trial, which is gone
        programs.run(
            "qemu-img", "rebase", "-u", "-f", kept.form, "-F", kept.form, "-b", str(kept.under), image,
            writable=[Path(image).resolve().parent],
        )  # fmt: skip
    why = recovery.why_not(kept.filesystem)
    said = f"{image}: {kept.filesystem} in {kept.form}, as a cut after {after} requests leaves it"
    return f"{said} ({why})" if why else said


def _check(after: int, count: int) -> None:
    if after > count:
        raise UsageError(f"--after {after}: the log has {count} requests", hint=f"e.g. --after {count}")


def _said(entry: Entry) -> str:
    if entry.mark is not None:
        return f"record {entry.mark - 1} acknowledged" if entry.mark else "the first record begins"
    what = "discard" if entry.flags & Flag.DISCARD else "write" if entry.length else "flush"
    where = f" {entry.length} bytes at {entry.offset}" if entry.length else ""
    return f"{what}{where}{', FUA' if entry.flags & Flag.FUA else ''}"
