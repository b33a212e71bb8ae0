"""Checks of runs from outside: a budget of memory and time for reading them, and the values that a run can have.

Bundles and other people's ledgers are untrusted data. Their size is unknown until they are unpacked, so every layer
charges its output to the same budget before it produces it.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from guestmark.core import environment
from guestmark.core.errors import LedgerError
from guestmark.core.home import LATEST
from guestmark.core.metric import Measurement, can_be_compared
from guestmark.core.model import Cell, Plan, Policy, Trial
from guestmark.ledger.model import StoredRun

# The limit also holds for iterations, and for positions in a block.
MOST_BLOCKS = 1_000_000
WORD_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,99}", re.ASCII)  # a run's name, a label's, a tag
FORGED = "it is damaged or forged"  # the hint for data that cannot have been measured
RESERVED = frozenset({LATEST})  # which cannot name a run
# The largest number of bytes that are read from another ledger, one run after another.
LARGEST_LEDGER = 8 << 30
MOST_VALUES_OF_LEDGER = 200_000_000
_MOST_ROWS = {"trials": 500_000, "environments": 20_000, "left out": 20_000}
_MOST_SAID = 1000  # notes, labels and tags of a run
# The largest length of a cell's id in characters, as a server's column holds no more.
_LONGEST_ID = 255
_RUN_ID = re.compile(r"[0-9a-z][0-9a-z-]{4,63}", re.ASCII)
# The Unix time of the year 10000, which datetime cannot represent.
_LAST = 253_402_300_800.0
# Another host's clock may be ahead by this much.
_AHEAD_S = 3600.0
LONGEST_S = 1e9
_STEP = 1 << 20

# Errors that reading data of an unexpected form raises.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error)


def describe_malformed(error: Exception) -> str:
    """Return what is wrong with data that raised this error while it was read."""
    # A KeyError's text is the key alone.
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(error)


class ReadBudget:
    """The memory and time that one source may still cost. Raises `LedgerError` once they are used up."""

    def __init__(self, size: int = 512 << 20, values: int = 4_000_000, seconds: float = 120.0) -> None:
        # Bytes of text, and values in it: a value in memory takes about 100 bytes, however short its text is.
        self._size, self._values = size, values
        self._seconds, self._end = seconds, time.monotonic() + seconds

    @property
    def size(self) -> int:
        """The bytes that are left."""
        return self._size

    def charge_amount(self, size: int) -> None:
        """Charge for this many bytes."""
        self._size -= size
        if self._size < 0:
            raise _make_too_large_error("it holds more bytes than a run's record needs")
        self.check_time()

    def check_time(self) -> None:
        """Raise `LedgerError` if the time is up."""
        if time.monotonic() > self._end:
            raise _make_too_large_error(f"reading it takes more than {self._seconds:g} s")

    def charge_encoded(self, text: str | bytes) -> None:
        """Charge for a text and for every value it can hold, each of which needs a comma or a bracket."""
        self.charge_amount(len(text))
        marks: tuple[Any, ...] = (b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")
        self._values -= sum(text.count(mark) for mark in marks)
        if self._values < 0:
            raise _make_too_large_error("it holds more values than a run's record needs")

    def inflate(self, packed: bytes) -> bytes:
        """Decompress. Raises `LedgerError` and `zlib.error`."""
        reader, pieces = zlib.decompressobj(), []
        while not reader.eof:
            piece = reader.decompress(packed, _STEP)
            if not piece and not reader.unconsumed_tail and not reader.eof:
                raise zlib.error("it ends too early")
            packed = reader.unconsumed_tail
            self.charge_amount(len(piece))
            pieces.append(piece)
        return b"".join(pieces)


def _make_too_large_error(why: str) -> LedgerError:
    return LedgerError(
        f"it is too large: {why}", hint="import it in smaller parts, from a source that you trust"
    )


def check_run(run: StoredRun, *, foreign: bool = True) -> None:
    """Raise `LedgerError` for a run that cannot have been measured: values out of range, trials of no cell.

    A run that is not `foreign` may be later than now, as this host's clock may have been wrong.
    """
    now = time.time() + _AHEAD_S if foreign else _LAST
    for problem in _find_run_problems(run, now):
        raise LedgerError(f"run {run.id[:80]!r} is invalid: {problem}", hint=FORGED)


def check_annotations(
    name: str, notes: Sequence[str], labels: Mapping[str, str], tags: Sequence[str]
) -> None:
    """Raise `LedgerError` for a name, note, label or tag that the command line would refuse."""
    if name and (not WORD_PATTERN.fullmatch(name) or name in RESERVED):
        raise LedgerError(f"{name[:80]!r} cannot be a run's name", hint=FORGED)
    for word in (*labels, *tags):
        if not WORD_PATTERN.fullmatch(word):
            raise LedgerError(f"{word[:80]!r} is not a label or tag", hint=FORGED)
    if max(len(notes), len(labels), len(tags)) > _MOST_SAID:
        raise LedgerError(f"over {_MOST_SAID} notes, labels or tags", hint=FORGED)
    if not all(map(is_text, (*notes, *labels.values()))):
        raise LedgerError("a note or a label is not text", hint=FORGED)


def is_text(text: str) -> bool:
    """Return whether a database can hold the text: no NUL, and no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def is_moment(value: Any, last: float = _LAST) -> bool:
    """Return whether the value is a Unix time in seconds that can be shown."""
    return isinstance(value, int | float) and 0 <= value < last


def _find_run_problems(run: StoredRun, now: float) -> Iterator[str]:
    if not _RUN_ID.fullmatch(run.id):
        yield "its id is malformed"
    if not is_moment(run.created_at, now):
        yield f"it began at {run.created_at!r} s since 1970"
    if abs(run.seed) >= 1 << 256:
        yield "its seed is too large"
    counts = {"trials": len(run.trials), "environments": len(run.environments), "left out": len(run.unusable)}
    for name, count in counts.items():
        if count > _MOST_ROWS[name]:
            yield f"{count} {name}"
    for recorded in run.environments:
        if said := environment.explain_problem(recorded):
            yield f"one of its environments: {said}"
    texts = [run.plan.name]
    for entry in run.unusable:
        texts += (entry.name, entry.reason, entry.hint)
    if not all(map(is_text, texts)):
        yield "a name or a reason is not text"
    yield from find_policy_problems(run.plan.policy)
    yield from _find_plan_problems(run.plan)
    yield from _find_problems_of_trials(run, now)


def _find_problems_of_trials(run: StoredRun, now: float) -> Iterator[str]:
    cells = {cell.id for cell in run.plan.cells}
    there: set[tuple[int, str]] = set()
    for trial in run.trials:
        key = (trial.block, trial.cell_id)
        if trial.cell_id not in cells:
            yield f"it has a trial of cell {trial.cell_id[:80]!r}, which the plan does not have"
        if key in there:
            yield f"cell {trial.cell_id!r} has two trials in block {trial.block + 1}"
        there.add(key)
        yield from _find_trial_problems(trial, now)


def find_policy_problems(policy: Policy) -> Iterator[str]:
    """Yield a phrase for each value that no run's policy can have."""
    counts = {
        "blocks": policy.blocks, "min_blocks": policy.min_blocks, "max_blocks": policy.max_blocks,
        "iterations": policy.iterations,
    }  # fmt: skip
    for name, count in counts.items():
        if count is not None and not 1 <= count <= MOST_BLOCKS:
            yield f"{name} is {count}"
    if not 0 <= policy.warmup <= MOST_BLOCKS:
        yield f"warmup is {policy.warmup}"
    sizes = {
        "precision": policy.precision, "margin": policy.margin, "time_limit_s": policy.time_limit_s,
        "trial_limit_s": policy.trial_limit_s, "enough_s": policy.enough_s or 0.0,
        "over_s": policy.over_s,
    }  # fmt: skip
    for name, size in sizes.items():
        if not 0 <= size <= LONGEST_S:
            yield f"{name} is {size!r}"
    if (rare := policy.find) is not None and not (1 < rare.factor <= LONGEST_S and 0 < rare.share <= 1):
        yield f"slow runs to find are {rare.factor!r} times as long in {rare.share!r}"
    if abs(policy.seed) >= 1 << 256:
        yield "the plan's seed is too large"


def _find_plan_problems(plan: Plan) -> Iterator[str]:
    ids = [cell.id for cell in plan.cells]
    for cell_id in _find_duplicates(ids):
        yield f"the plan has cell {cell_id!r} twice"
    for name in _find_duplicates(metric.name for metric in plan.metrics):
        yield f"the plan has metric {name!r} twice"
    known = set(ids)
    for cell in plan.cells:
        yield from _find_cell_problems(cell, known)


def _find_cell_problems(cell: Cell, known: set[str]) -> Iterator[str]:
    if not 0 < len(cell.id) <= _LONGEST_ID or not is_text(cell.id):
        yield f"a cell's id is {cell.id[:80]!r}, of {len(cell.id)} characters"
    if cell.null_of is not None and (cell.null_of not in known or cell.null_of == cell.id):
        yield f"cell {cell.id!r} is a copy of {cell.null_of[:80]!r}, which the plan does not have"
    if not 0 <= cell.processors <= MOST_BLOCKS:
        yield f"cell {cell.id!r} has {cell.processors} processors"


def _find_trial_problems(trial: Trial, now: float) -> Iterator[str]:
    where = f"the trial of cell {trial.cell_id!r} in block {trial.block + 1}"
    if not 0 <= trial.block < MOST_BLOCKS or not 0 <= trial.order < MOST_BLOCKS:
        yield f"{where} is at position {trial.order}"
    if not is_moment(trial.started_at, now):
        yield f"{where} began at {trial.started_at!r} s since 1970"
    if not 0 <= trial.duration_s <= LONGEST_S:
        yield f"{where} took {trial.duration_s!r} s"
    for name in _find_duplicates(measurement.metric.name for measurement in trial.measurements):
        yield f"{where} has metric {name!r} twice"
    for measurement in (*trial.measurements, *trial.warmups):
        for problem in _find_measurement_problems(measurement):
            yield f"{where}: {problem}"
    if not all(map(can_be_compared, (*trial.phases.values(), *trial.run_s))):
        yield f"{where} has a time that is not a number"


def _find_measurement_problems(measurement: Measurement) -> Iterator[str]:
    if not all(map(can_be_compared, (measurement.value, *measurement.iterations))):
        yield f"{measurement.metric.name} is not a usable number"


def _find_duplicates(names: Iterable[str]) -> set[str]:
    known: set[str] = set()
    twice: set[str] = set()
    for name in names:
        if name in known:
            twice.add(name)
        known.add(name)
    return twice
