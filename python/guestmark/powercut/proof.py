"""A proof: the crash states of a log of writes, with the controls that show that a loss would have been found."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.core.findings import Control, Durability, Proven
from guestmark.disks import stack
from guestmark.disks.logged import Logged
from guestmark.powercut import cuts, evidence, records, sqlite
from guestmark.powercut.judge import Evidence, Judged, judge
from guestmark.powercut.records import Acknowledged, Method
from guestmark.powercut.recovery import Reader
from guestmark.powercut.writelog import Entry, Flag, WriteLog
from guestmark.setting.location import SHARED_MEMORY

_CONTROL_STATES = 24
_SEED = 7
_ON_DISK = "/var/tmp"


@dataclass(frozen=True, slots=True)
class Tag:
    """How records of one part of the log are told from all else, and the file they are in."""

    text: str
    file: str


PROOF = Tag("guestmark-record:", "records")
CONTROL = Tag("guestmark-control:", "controls")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the log: `count` records were begun after `start` requests, and all acknowledged after `end`."""

    tag: Tag
    count: int
    start: int
    end: int

    def acknowledged(self, log: WriteLog) -> Acknowledged:
        """What had been acknowledged when."""
        return Acknowledged.of(log, log.entries, self.tag.text).ended(self.end, self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be proven: `location` is the directory in which the image lies, `counted` the flushes by the
    hypervisor's account, `control` what was written unsafely after it.
    """

    files: Logged
    filesystem: str
    form: str
    location: str
    method: Method
    states: int
    written: Part
    control: Part | None = None
    unsafe: str = "barrier=0"  # how the control was written
    reader: Reader | None = None
    counted: int | None = None


def prove(asked: Request) -> Proven:
    """Judges the log. Where something is lost it is kept."""
    begin = time.monotonic()
    with WriteLog(asked.files.log) as log:
        main = log.entries[: asked.written.end]
        seen = asked.written.acknowledged(log)
        start, end = seen.begin(asked.written.start), asked.written.end
        chosen = cuts.choose(main, start=start, count=asked.states, seed=_SEED, always=end)
        judged = judge(_evidence(asked, log, seen, asked.written), main, chosen, _room(asked))
        controls = [_dropped(asked, log, main, seen)]
        if asked.control:
            controls.append(_barriers(asked, log, asked.control))
        unseen = asked.written.count - len(Acknowledged.of(log, main, asked.written.tag.text).newest)
        found = _proven(asked, main[start:], judged, controls)
        if found.word is Durability.PROVEN and unseen > asked.written.count / 2:
            found.word = Durability.REACHED
            found.why = (
                f"no proof: {unseen} of {asked.written.count} records cannot be read in the log (encrypted, "
                "compressed?), which does not tell what was acknowledged when"
            )
    if judged.crashes:
        found.kept = str(evidence.keep(asked.files, asked.filesystem, asked.form, asked.method, judged))
    found.judge_s = time.monotonic() - begin
    return found


def _evidence(asked: Request, log: WriteLog, seen: Acknowledged, part: Part) -> Evidence:
    return Evidence(
        asked.files.base, log, asked.filesystem, asked.form, asked.method.files(part.tag.file), seen.after,
        functools.partial(_lost, asked.method, part.tag), asked.reader,
    )  # fmt: skip


def _lost(method: Method, tag: Tag, acknowledged: int, files: dict[str, bytes | None]) -> int | None:
    if method is Method.SQLITE:
        return sqlite.lost(tag.text, acknowledged, tag.file, files)
    return records.lost(method, tag.text, acknowledged, files.get(tag.file))


def _dropped(asked: Request, log: WriteLog, entries: Sequence[Entry], seen: Acknowledged) -> Control:
    """The same log as a hypervisor that drops flushes would have left it."""
    start = seen.begin(asked.written.start)
    without = cuts.without_flushes(entries, start)
    chosen = cuts.choose(
        without, start=start, count=_control_states(asked), seed=_SEED, always=asked.written.end
    )
    judged = judge(_evidence(asked, log, seen, asked.written), without, chosen, _room(asked))
    return Control(name="no-flush", states=judged.states, losing=judged.losing)


def _barriers(asked: Request, log: WriteLog, part: Part) -> Control:
    """The part that was written without barriers; nothing is ever in flight where each write is flushed at once."""
    seen = part.acknowledged(log)
    start = seen.begin(part.start)
    chosen = cuts.choose(log.entries, start=start, count=_control_states(asked), seed=_SEED, always=part.end)
    judged = judge(_evidence(asked, log, seen, part), log.entries, chosen, _room(asked))
    through = not asked.method.served and cuts.write_through(log.entries, start)
    return Control(name=asked.unsafe, states=judged.states, losing=judged.losing, applies=not through)


def _control_states(asked: Request) -> int:
    """A server takes a second for each."""
    return min(_CONTROL_STATES, asked.states) if asked.method.served else _CONTROL_STATES


def _room(asked: Request) -> Path:
    """Where crash states are made: their bytes are few, and memory is fast, but confined servers do not see it."""
    if asked.reader is not None:
        return Path(_ON_DISK)
    shared = Path(SHARED_MEMORY)
    return shared if shared.is_dir() else Path(_ON_DISK)


def _proven(asked: Request, part: Sequence[Entry], judged: Judged, controls: list[Control]) -> Proven:
    layers = stack.layers(asked.location)
    flushes = sum(entry.flushes or bool(entry.flags & Flag.FUA) for entry in part)
    word, why = _word(judged, controls, layers, flushes, asked.counted)
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
        first_loss=f"record {loss.lost} after cut {loss.cut.after} ({loss.cut.survival.value} survives)"
        if loss
        else "",
        first_repair=f"{repair.says} after cut {repair.cut.after}, {repair.cut.survival.value} survives"
        if repair
        else "",
        counted=asked.counted,
    )


def _word(
    judged: Judged, controls: Sequence[Control], layers: list[stack.Layer], flushes: int, counted: int | None
) -> tuple[Durability, str]:
    if judged.losing:
        if counted and not flushes:
            return Durability.LOST, f"the hypervisor counted {counted} flushes, this host's kernel saw none"
        return (
            Durability.LOST,
            f"this host's kernel saw {flushes} flushes, which did not cover what was acknowledged",
        )
    below = stack.volatile(layers)
    if below is not None:
        word = Durability.MEMORY if below.loses is stack.Loses.MEMORY else Durability.LOST
        return word, str(below)
    if missed := [control.name for control in controls if not control.caught]:
        return Durability.REACHED, f"no proof: {' and '.join(missed)} should lose records here and did not"
    if unseen := [layer for layer in layers if layer.loses is stack.Loses.UNKNOWN]:
        return Durability.REACHED, f"below is {unseen[0]}"
    return Durability.PROVEN, "no crash state loses an acknowledged record"
