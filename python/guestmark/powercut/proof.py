"""A proof: the crash states of a log of writes, with the controls that show that a loss would have been found."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.core.findings import Control, Durability, Proven
from guestmark.disks import stack
from guestmark.disks.logged import LoggedFiles
from guestmark.powercut import cuts, evidence, records
from guestmark.powercut.cuts import Survival
from guestmark.powercut.judge import Crash, Evidence, Judged, judge
from guestmark.powercut.records import Acknowledged, Method
from guestmark.powercut.recovery import Reader
from guestmark.powercut.writelog import Entry, Flag, WriteLog
from guestmark.setting.location import SHARED_MEMORY

_CONTROL_STATES = 24
_ON_DISK = "/var/tmp"


@dataclass(frozen=True, slots=True)
class Tag:
    """The tag of the records in one part of the log, and their file."""

    text: str
    file: str


PROOF = Tag("guestmark-record:", "records")
CONTROL = Tag("guestmark-control:", "controls")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the log, from `start` to `end`, in which `count` records were written; after `settled` requests the
    machine had synced all it had.
    """

    tag: Tag
    count: int
    start: int
    end: int
    settled: int

    def acknowledged(self, log: WriteLog) -> Acknowledged:
        """The acknowledgements, each with its moment."""
        return Acknowledged.of(log.entries, self.start, self.end)


@dataclass(frozen=True, slots=True)
class Counts:
    """Flushes that the guest's kernel has sent, and that the hypervisor counted; None where they are not counted."""

    guest: int | None = None
    hypervisor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One proof to make: `location` is the directory in which the image lies, `control` what was written unsafely
    after what is judged, `seed` the seed of random states.
    """

    files: LoggedFiles
    filesystem: str
    form: str
    location: str
    method: Method
    states: int
    seed: int
    written: Part
    control: Part | None = None
    unsafe: str = "barrier=0"  # how the control was written
    reader: Reader | None = None
    counts: Counts = Counts()
    unfollowed: str = ""  # why the program may have flushed in ways that nobody saw


def prove(asked: Request) -> Proven:
    """Judges the log, and keeps it."""
    begin = time.monotonic()
    part = asked.written
    with WriteLog(asked.files.log) as log:
        main = log.entries[: part.end]
        seen = part.acknowledged(log)
        start = max(part.start, seen.begin)
        chosen = cuts.cover(
            main, seen.moments, start=start, count=asked.states, seed=asked.seed, most=_most(asked)
        )
        judged = judge(_evidence(asked, log, seen, part), main, chosen.cuts, _room(asked))
        settled = log.entries[: part.settled]
        nothing_cut = judge(
            _evidence(asked, log, seen, part),
            settled,
            [cuts.at(settled, part.settled, Survival.ALL)],
            _room(asked),
        )
        controls = [_dropped(asked, log, main)]
        if asked.control:
            controls.append(_barriers(asked, log, asked.control))
        found = _proven(asked, main[start:], judged, controls)
    found.coverage = chosen.coverage
    if asked.unfollowed and found.word is Durability.PROVEN:
        found.word, found.why = Durability.UNKNOWN, asked.unfollowed
    broken = next(iter(nothing_cut.crashes), None)
    if broken is not None and (broken.lost is not None or judged.losing):
        lost = broken.says if broken.lost is None else broken.what or f"record {broken.lost} is gone"
        found.word = Durability.UNKNOWN
        found.why = (
            f"no power cut is needed: {lost} in the disk as it was written, by a fault of it or of its log"
        )
    found.kept = str(evidence.keep(asked.files, asked.filesystem, asked.form, asked.method, judged))
    found.judge_s = time.monotonic() - begin
    return found


def _most(asked: Request) -> int | None:
    """A server takes a second for each state, so only the requested number is judged; of others all are."""
    return asked.states if asked.method.served else None


def _evidence(asked: Request, log: WriteLog, seen: Acknowledged, part: Part) -> Evidence:
    return Evidence(
        asked.files.base, log, asked.filesystem, asked.form, asked.method.files(part.tag.file), seen.after,
        functools.partial(_lost, asked.method, part.tag), seen.moment, asked.reader,
    )  # fmt: skip


def _lost(method: Method, tag: Tag, acknowledged: int, files: dict[str, bytes | None]) -> int | None:
    if method is Method.SQLITE:
        return records.lost_rows(tag.text, acknowledged, tag.file, files)
    return records.lost(method, tag.text, acknowledged, files.get(tag.file))


def _dropped(asked: Request, log: WriteLog, entries: Sequence[Entry]) -> Control:
    """The same log as a hypervisor that drops flushes would have left it."""
    start = max(asked.written.start, asked.written.acknowledged(log).begin)
    return _control(asked, log, cuts.without_flushes(entries, start), asked.written, "no-flush")


def _barriers(asked: Request, log: WriteLog, part: Part) -> Control:
    """The part that was written without barriers; nothing is ever in flight where each write is flushed at once."""
    entries = log.entries[: part.end]
    control = _control(asked, log, entries, part, asked.unsafe)
    through = not asked.method.served and cuts.write_through(entries, part.start)
    control.applies = not through
    return control


def _control(asked: Request, log: WriteLog, entries: Sequence[Entry], part: Part, name: str) -> Control:
    seen = part.acknowledged(log)
    start, most = max(part.start, seen.begin), _control_states(asked)
    chosen = cuts.cover(entries, seen.moments, start=start, count=0, seed=asked.seed, most=most)
    judged = judge(_evidence(asked, log, seen, part), entries, chosen.cuts, _room(asked))
    return Control(name=name, states=judged.states, losing=judged.losing)


def _control_states(asked: Request) -> int:
    """A server takes a second for each."""
    return min(_CONTROL_STATES, asked.states) if asked.method.served else _CONTROL_STATES


def _room(asked: Request) -> Path:
    """The directory for crash states: they are small and memory is fast, but confined servers cannot see it."""
    if asked.reader is not None:
        return Path(_ON_DISK)
    shared = Path(SHARED_MEMORY)
    return shared if shared.is_dir() else Path(_ON_DISK)


def _proven(asked: Request, part: Sequence[Entry], judged: Judged, controls: list[Control]) -> Proven:
    layers = stack.list_layers(asked.location)
    flushes = sum(entry.flushes or bool(entry.flags & Flag.FUA) for entry in part)
    word, why = _word(judged, controls, layers, reconciled(asked.counts, flushes))
    loss, repair = judged.first_loss, next((crash for crash in judged.crashes if crash.says), None)
    return Proven(
        word=word,
        why=why,
        method=asked.method.words,
        acknowledged=asked.written.count,
        states=judged.states,
        losing=judged.losing,
        repaired=judged.repaired,
        controls=controls,
        below=[str(layer) for layer in layers],
        writes=sum(entry.writes for entry in part),
        flushes=flushes,
        run_s=0.0,
        judge_s=0.0,
        first_loss=_lost_at(loss) if loss else "",
        first_repair=f"{repair.says} after cut {repair.cut.after}, {repair.cut.survival.said}"
        if repair
        else "",
        counted=asked.counts.hypervisor,
        asked=asked.counts.guest,
    )


def _lost_at(crash: Crash) -> str:
    lost = crash.what or f"record {crash.lost}"
    return f"{lost} after cut {crash.cut.after} ({crash.cut.survival.said})"


def reconciled(counts: Counts, flushes: int) -> str:
    """Who saw how many flushes; one of them who saw fewer than the one above has dropped or merged some."""
    seen = [
        *([f"the guest's kernel sent {counts.guest}"] if counts.guest is not None else []),
        *([f"the hypervisor counted {counts.hypervisor}"] if counts.hypervisor is not None else []),
        f"this host's kernel saw {flushes or 'none'}",
    ]
    return f"flushes: {', '.join(seen)}"


def _word(
    judged: Judged, controls: Sequence[Control], layers: list[stack.Layer], flushes: str
) -> tuple[Durability, str]:
    if judged.losing:
        return Durability.LOST, flushes
    below = stack.find_volatile(layers)
    if below is not None:
        word = Durability.MEMORY if below.loses is stack.Loses.MEMORY else Durability.LOST
        return word, str(below)
    if missed := [control.name for control in controls if not control.caught]:
        return Durability.REACHED, f"no proof: {' and '.join(missed)} should lose records here and did not"
    if unseen := [layer for layer in layers if layer.loses is stack.Loses.UNKNOWN]:
        return Durability.REACHED, f"below is {unseen[0]}"
    return Durability.PROVEN, f"no crash state loses an acknowledged record; {flushes}"
