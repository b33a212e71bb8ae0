"""Proves durability by judging the crash states of a log of writes, with controls that must show a loss."""

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
from guestmark.powercut.early import EarlyReturns, find_early_returns
from guestmark.powercut.judge import Crash, JudgedStates, JudgeInput, judge_cuts
from guestmark.powercut.records import Acknowledged, Method
from guestmark.powercut.recovery import Reader
from guestmark.powercut.writelog import Entry, WriteLog, count_flushes, count_writes
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
class LogPart:
    """A part of the log, from request `start` to `end`, in which `count` records were written.

    After `settled` requests the machine had synced everything. During `checkpoints` a database wrote its pages.
    """

    tag: Tag
    count: int
    start: int
    end: int
    settled: int
    checkpoints: tuple[range, ...] = ()

    def read_acknowledgements(self, log: WriteLog) -> Acknowledged:
        """Return the acknowledgements, each with the number of requests before it."""
        return Acknowledged.from_marks(log.entries, self.start, self.end)


@dataclass(frozen=True, slots=True)
class FlushCounts:
    """Flushes that the guest's kernel sent, and those that the hypervisor counted; None if not counted."""

    guest: int | None = None
    hypervisor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRequest:
    """The input of one proof.

    `location` is the directory of the image, `control` the part of the log that was written unsafely after the judged
    part, `seed` the seed of the random states.
    """

    files: LoggedFiles
    filesystem: str
    form: str
    location: str
    method: Method
    states: int
    seed: int
    written: LogPart
    control: LogPart | None = None
    # The mount option with which the control was written.
    unsafe: str = "barrier=0"
    reader: Reader | None = None
    counts: FlushCounts = FlushCounts()
    # Why the program may have flushed in ways that were not traced.
    unfollowed: str = ""


def prove_durability(asked: ProofRequest) -> Proven:
    """Judge the log, keep it as evidence, and return the proof. Raises `MachineError`."""
    begin = time.monotonic()
    part = asked.written
    with WriteLog(asked.files.log) as log:
        main = log.entries[: part.end]
        seen = part.read_acknowledgements(log)
        # Before the first record nothing can be lost.
        start = max(part.start, seen.requests_before_first_record)
        chosen = cuts.choose_cuts(
            main,
            seen.acknowledgement_moments,
            start=start,
            count=asked.states,
            seed=asked.seed,
            most=_choose_most_states(asked),
            checkpoints=part.checkpoints,
        )
        judged = judge_cuts(
            _make_judge_input(asked, log, seen, part), main, chosen.cuts, _choose_scratch_parent(asked)
        )
        early = EarlyReturns()
        if judged.losing and asked.method.is_call:
            early = find_early_returns(
                _make_judge_input(asked, log, seen, part), main, judged, _choose_scratch_parent(asked)
            )
        settled = log.entries[: part.settled]
        # If a record is missing even without a cut, the disk or the log is at fault, and there is no verdict.
        nothing_cut = judge_cuts(
            _make_judge_input(asked, log, seen, part),
            settled,
            [cuts.make_cut_at(settled, part.settled, Survival.ALL)],
            _choose_scratch_parent(asked),
        )
        controls = [_run_control_without_flushes(asked, log, main)]
        if asked.control:
            controls.append(_run_control_without_barriers(asked, log, asked.control))
        found = _build_record_proof(asked, main[start:], judged, controls)
    found.coverage = chosen.coverage
    found.early_states, found.early_requests = early.states, early.requests
    if asked.unfollowed and found.word is Durability.PROVEN:
        found.word, found.why = Durability.UNKNOWN, asked.unfollowed
    broken = next(iter(nothing_cut.crashes), None)
    if broken is not None and (broken.lost is not None or judged.losing):
        lost = broken.what or f"record {broken.lost} is missing"
        if broken.lost is None:
            lost = broken.says
        found.word = Durability.UNKNOWN
        found.why = f"the disk, or the log of its writes, is faulty even without a power cut: {lost}"
    kept = evidence.keep_evidence(asked.files, asked.filesystem, asked.form, asked.method, judged)
    found.kept = str(kept or "")
    found.judge_s = time.monotonic() - begin
    return found


def _choose_most_states(asked: ProofRequest) -> int | None:
    """Return the limit on states for a database server, which takes about a second for each; else None."""
    return asked.states if asked.method.is_served else None


def _make_judge_input(asked: ProofRequest, log: WriteLog, seen: Acknowledged, part: LogPart) -> JudgeInput:
    return JudgeInput(
        asked.files.base, log, asked.filesystem, asked.form, asked.method.list_record_files(part.tag.file),
        seen.find_newest_after, functools.partial(_find_lost_record, asked.method, part.tag),
        seen.find_newest_moment, asked.reader,
    )  # fmt: skip


def _find_lost_record(
    method: Method, tag: Tag, acknowledged: int, files: dict[str, bytes | None]
) -> int | None:
    if method is Method.SQLITE:
        return records.find_lost_row(tag.text, acknowledged, tag.file, files)
    return records.find_lost_record(method, tag.text, acknowledged, files.get(tag.file))


def _run_control_without_flushes(asked: ProofRequest, log: WriteLog, entries: Sequence[Entry]) -> Control:
    """Judge the same log as if a hypervisor had dropped its flushes."""
    start = max(asked.written.start, asked.written.read_acknowledgements(log).requests_before_first_record)
    return _run_control(asked, log, cuts.drop_flushes(entries, start), asked.written, "no-flush")


def _run_control_without_barriers(asked: ProofRequest, log: WriteLog, part: LogPart) -> Control:
    """Judge the part written without barriers; this control does not apply if every write is flushed at once."""
    entries = log.entries[: part.end]
    control = _run_control(asked, log, entries, part, asked.unsafe)
    # Nothing is ever in flight then, so even a disk that drops flushes could not lose anything.
    through = not asked.method.is_served and cuts.is_write_through(entries, part.start)
    control.applies = not through
    return control


def _run_control(
    asked: ProofRequest, log: WriteLog, entries: Sequence[Entry], part: LogPart, name: str
) -> Control:
    seen = part.read_acknowledgements(log)
    start, most = max(part.start, seen.requests_before_first_record), _count_control_states(asked)
    chosen = cuts.choose_cuts(
        entries, seen.acknowledgement_moments, start=start, count=0, seed=asked.seed, most=most
    )
    judged = judge_cuts(
        _make_judge_input(asked, log, seen, part), entries, chosen.cuts, _choose_scratch_parent(asked)
    )
    return Control(name=name, states=judged.states, losing=judged.losing)


def _count_control_states(asked: ProofRequest) -> int:
    """Return the number of control states, fewer for a database server, which takes a second for each."""
    return min(_CONTROL_STATES, asked.states) if asked.method.is_served else _CONTROL_STATES


def _choose_scratch_parent(asked: ProofRequest) -> Path:
    """Return the directory for crash states: memory is fast, but confined servers cannot see it."""
    if asked.reader is not None:
        return Path(_ON_DISK)
    shared = Path(SHARED_MEMORY)
    return shared if shared.is_dir() else Path(_ON_DISK)


def _build_record_proof(
    asked: ProofRequest, part: Sequence[Entry], judged: JudgedStates, controls: list[Control]
) -> Proven:
    layers = stack.list_layers(asked.location)
    flushes = count_flushes(part)
    word, why = _decide_record_word(judged, controls, layers, describe_flush_counts(asked.counts, flushes))
    first_loss = first_repair = ""
    if (loss := judged.first_loss) is not None:
        first_loss = _describe_loss(loss)
    if (repair := judged.first_repair) is not None:
        first_repair = f"{repair.says} after cut {repair.cut.after}, {repair.cut.survival.as_clause}"
    return Proven(
        word=word,
        why=why,
        method=asked.method.description,
        acknowledged=asked.written.count,
        states=judged.states,
        losing=judged.losing,
        repaired=judged.repaired,
        torn_superblocks=judged.torn_superblocks,
        controls=controls,
        below=[str(layer) for layer in layers],
        writes=count_writes(part),
        flushes=flushes,
        run_s=0.0,
        judge_s=0.0,
        first_loss=first_loss,
        first_repair=first_repair,
        counted=asked.counts.hypervisor,
        asked=asked.counts.guest,
    )


def _describe_loss(crash: Crash) -> str:
    lost = crash.what or f"record {crash.lost}"
    return f"{lost} after cut {crash.cut.after} ({crash.cut.survival.as_clause})"


def describe_flush_counts(counts: FlushCounts, flushes: int) -> str:
    """Describe how many flushes each layer saw; a layer that saw fewer than the one above dropped or merged some."""
    seen = []
    if counts.guest is not None:
        seen.append(f"the guest's kernel sent {counts.guest}")
    if counts.hypervisor is not None:
        seen.append(f"the hypervisor counted {counts.hypervisor}")
    seen.append(f"this host's kernel saw {flushes or 'none'}")
    return f"flushes: {', '.join(seen)}"


def find_unseen_layer(layers: Sequence[stack.Layer]) -> stack.Layer | None:
    """Return the first layer below which flushes cannot be followed; None if all can be seen."""
    for layer in layers:
        if layer.loses is stack.Loses.UNKNOWN:
            return layer
    return None


def explain_unseen_layer(layer: stack.Layer) -> str:
    """Return why there is no proof: this layer hides what happens to flushed data."""
    return f"no proof: flushes cannot be followed below {layer}"


def judge_volatile_layer(layers: list[stack.Layer]) -> tuple[Durability, str] | None:
    """Return the verdict and its reason if a layer below the disk is volatile or drops flushes; else None."""
    below = stack.find_volatile_layer(layers)
    if below is None:
        return None
    word = Durability.MEMORY if below.loses is stack.Loses.MEMORY else Durability.LOST
    return word, str(below)


def list_missed_controls(controls: Sequence[Control]) -> list[str]:
    """Return the names of the controls that found no loss although they had to."""
    return [control.name for control in controls if not control.is_caught]


def _decide_record_word(
    judged: JudgedStates, controls: Sequence[Control], layers: list[stack.Layer], flushes: str
) -> tuple[Durability, str]:
    """Return the verdict of the proof, and its reason."""
    if judged.losing:
        return Durability.LOST, flushes
    if volatile := judge_volatile_layer(layers):
        return volatile
    if missed := list_missed_controls(controls):
        return Durability.REACHED, f"no proof: the control found no loss with {' and '.join(missed)}"
    if (unseen := find_unseen_layer(layers)) is not None:
        return Durability.REACHED, explain_unseen_layer(unseen)
    return Durability.PROVEN, f"no crash state loses an acknowledged record; {flushes}"
