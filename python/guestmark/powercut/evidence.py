"""Stores logs of writes as evidence, lists their requests, and writes images of single cuts."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guestmark.core.errors import UsageError
from guestmark.core.temporary import scratch_directory
from guestmark.disks import daemon
from guestmark.disks.logged import LoggedFiles
from guestmark.powercut import cuts, recovery
from guestmark.powercut.cuts import Cut, Piece, Survival
from guestmark.powercut.evidence_directory import locate_evidence
from guestmark.powercut.judge import Crash, JudgedStates, Replay, copy_without_zeroes
from guestmark.powercut.records import Method
from guestmark.powercut.user_check import encode_lines
from guestmark.powercut.writelog import Entry, Flag, WriteLog

_KEPT = 64
_KEPT_BYTES = 512 << 20
_ABOUT, _BASE, _LOG, _UNDER, _TOLD = "about.json", "base", "writes.log", "under", "told"


@dataclass(frozen=True, slots=True)
class KeptLog:
    """The stored files of one proof; `under` is the backing file of the images."""

    base: Path
    log: Path
    filesystem: str
    form: str
    method: Method
    # Each has the keys `after`, `survival`, `acknowledged`, `lost` and `says`.
    crashes: list[dict[str, Any]]
    under: Path | None = None
    check: str = ""
    lines: tuple[bytes, ...] = ()  # acknowledged ones, which the check got as input


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """A check: its command, and all acknowledged lines, of which each run got the first ones as input."""

    command: str
    lines: tuple[bytes, ...]


def keep_evidence(  # noqa: PLR0917 (what there is to know)
    files: LoggedFiles,
    filesystem: str,
    form: str,
    method: Method,
    judged: JudgedStates,
    check: CheckRecord | None = None,
) -> Path | None:
    """Store the log and the image before it, and return their directory; None if there is no room for them.

    Only the newest logs are kept, up to a number and a total size.
    """
    parent = locate_evidence()
    # The random part distinguishes two proofs of the same second.
    target = parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    try:
        target.mkdir(parents=True)
        _write_evidence(target, files, filesystem, form, method, judged, check)
    except OSError:
        # The verdict is known, and is worth more than its evidence.
        shutil.rmtree(target, ignore_errors=True)
        return None
    _remove_old_evidence(parent)
    return target


def _write_evidence(  # noqa: PLR0917 (what there is to know)
    target: Path,
    files: LoggedFiles,
    filesystem: str,
    form: str,
    method: Method,
    judged: JudgedStates,
    check: CheckRecord | None,
) -> None:
    copy_without_zeroes(files.base, target / _BASE)
    copy_without_zeroes(files.log, target / _LOG)
    if files.under is not None:
        copy_without_zeroes(files.under, target / _UNDER)
    about = {
        "filesystem": filesystem, "format": form, "method": method.value,
        "crashes": [_encode_crash(crash) for crash in judged.crashes],
    }  # fmt: skip
    if check is not None:
        about["check"] = check.command
        (target / _TOLD).write_bytes(encode_lines(check.lines))
    (target / _ABOUT).write_text(json.dumps(about, indent=1))


def _remove_old_evidence(parent: Path) -> None:
    taken = 0
    # Names begin with the time, so the newest come first; the one just kept always stays.
    for number, old in enumerate(sorted(filter(Path.is_dir, parent.iterdir()), reverse=True)):
        # Another process may remove them at the same time.
        with contextlib.suppress(OSError):
            taken += sum(file.stat().st_blocks * 512 for file in old.iterdir())
        if number and (number >= _KEPT or taken > _KEPT_BYTES):
            shutil.rmtree(old, ignore_errors=True)


def _encode_crash(crash: Crash) -> dict[str, Any]:
    about: dict[str, Any] = {
        "after": crash.cut.after, "survival": crash.cut.survival.value, "acknowledged": crash.acknowledged,
        "lost": crash.lost, "says": crash.says, "kept": crash.cut.kept,
        "pieces": [[piece.entry, piece.skip, piece.length] for piece in crash.cut.pieces],
    }  # fmt: skip
    if crash.what:
        about["what"] = crash.what
    if crash.answer is not None:
        about["answer"] = {"status": crash.answer.status, "out": crash.answer.out, "err": crash.answer.err}
    return about


def load_evidence(directory: str, ledger: Path | None = None) -> KeptLog:
    """Open stored evidence by its path, or by the end of its name, beside the ledger. Raises `UsageError`."""
    path = Path(directory)
    if not (path / _ABOUT).is_file():
        names = _list_kept_directories(locate_evidence(ledger))
        found = [known for known in names if known.name.endswith(directory)]
        if len(found) != 1:
            hint = "guestmark powercut keeps its logs beside the ledger"
            if names:
                hint = f"the newest logs are {', '.join(known.name for known in names[-3:])}"
            raise UsageError(f"there is no log of writes {directory!r}", hint=hint)
        path = found[0]
    try:
        about = json.loads((path / _ABOUT).read_text())
        return KeptLog(
            path / _BASE, path / _LOG, about["filesystem"], about["format"], Method(about["method"]),
            list(about["crashes"]), _find_backing_image(path), about.get("check", ""),
            tuple((path / _TOLD).read_bytes().split(b"\n")[:-1]) if "check" in about else (),
        )  # fmt: skip
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"the log of writes in {path} cannot be read: {error}") from error


def _find_backing_image(kept: Path) -> Path | None:
    under = kept / _UNDER
    return under if under.exists() else None


def _list_kept_directories(parent: Path) -> list[Path]:
    return sorted(Path(entry.path) for entry in os.scandir(parent)) if parent.is_dir() else []


_SURVIVALS = {"all": Survival.ALL, "half": Survival.HALF, "none": Survival.NONE}


def describe_log(name: str, after: int | None, ledger: Path | None = None) -> Iterator[str]:
    """Yield lines about a log: every fault found; with `after`, only those at that cut, and the requests before it."""
    kept = load_evidence(name, ledger)
    with WriteLog(kept.log) as log:
        flushes = sum(entry.is_flush for entry in log.entries)
        yield f"{kept.log.parent}: {len(log)} requests, {flushes} flushes; {kept.filesystem} in {kept.form}"
        if after is not None:
            _check_position(after, len(log))
            for number in range(max(0, after - 8), after):
                yield f"  {number + 1}: {_describe_entry(log.entries[number])}"
    for crash in kept.crashes:
        if after not in (None, crash["after"]):
            continue
        gone = "nothing lost"
        if crash["lost"] is not None:
            gone = crash.get("what") or f"record {crash['lost']} lost"
        newest = f"record {crash['acknowledged']} acknowledged last"
        line = f"  cut {crash['after']}, {Survival(crash['survival']).as_clause}: {gone}, {newest}"
        if crash["says"]:
            line += f"; {crash['says']}"
        yield line
        if after is not None:
            yield from _describe_answer(crash.get("answer"))


def _describe_answer(answer: dict[str, Any] | None) -> Iterator[str]:
    """Yield what a check printed, indented; nothing for a state that no check judged."""
    if answer is None:
        return
    end = "was killed by a signal" if answer["status"] is None else f"exited with status {answer['status']}"
    yield f"    the check {end}"
    for stream in ("out", "err"):
        for line in answer[stream]:
            yield f"    {stream}: {line}"


def rebuild_cut(kept: KeptLog, log: WriteLog, after: int, survival: str | None) -> Cut:
    """Return the cut after `after` requests with this survival; by default, the first one stored, which lost something.

    Raises `UsageError`.
    """
    if survival is not None and survival not in _SURVIVALS:
        raise UsageError(
            f"--survival {survival!r} is not one of {', '.join(_SURVIVALS)}", hint="e.g. --survival none"
        )
    _check_position(after, len(log))
    found = _find_crash_with_pieces(kept.crashes, after)
    if survival is None and found is not None:
        pieces = tuple(Piece(*numbers) for numbers in found["pieces"])
        return Cut(after, found["kept"], Survival(found["survival"]), pieces)
    return cuts.make_cut_at(log.entries, after, _SURVIVALS[survival or "none"])


def _find_crash_with_pieces(crashes: Sequence[dict[str, Any]], after: int) -> dict[str, Any] | None:
    for crash in crashes:
        if crash["after"] == after and "pieces" in crash:
            return crash
    return None


def write_cut_image(
    name: str, after: int, survival: str | None, image: str, ledger: Path | None = None
) -> str:
    """Write the unrecovered image that a cut leaves to a file; return a description of it. Raises `UsageError`."""
    kept = load_evidence(name, ledger)
    with WriteLog(kept.log) as log, scratch_directory("replay") as directory:
        cut = rebuild_cut(kept, log, after, survival)
        replay = Replay(kept.base, log, log.entries, directory)
        made = replay.make_image(cut)
        replay.close()
        shutil.move(made, image)
    if kept.under is not None:
        # The image names the backing file of the trial, which is gone.
        daemon.run_program(
            "qemu-img", "rebase", "-u", "-f", kept.form, "-F", kept.form, "-b", str(kept.under), image,
            writable=[Path(image).resolve().parent],
        )  # fmt: skip
    why = recovery.explain_not_recoverable(kept.filesystem)
    description = (
        f"{image}: {kept.filesystem} in {kept.form}, as a power cut after {after} requests leaves it"
    )
    if why:
        description += f" ({why})"
    return description


def _check_position(after: int, count: int) -> None:
    if after > count:
        raise UsageError(f"--after {after}: the log has only {count} requests", hint=f"e.g. --after {count}")


def _describe_entry(entry: Entry) -> str:
    if entry.mark == 0:
        return "the first record begins"
    if entry.mark is not None:
        return f"record {entry.mark - 1} acknowledged"
    text = "flush"
    if entry.flags & Flag.DISCARD:
        text = "discard"
    elif entry.length:
        text = "write"
    if entry.length:
        text += f" {entry.length} bytes at {entry.offset}"
    if entry.flags & Flag.FUA:
        text += ", FUA"
    return text
