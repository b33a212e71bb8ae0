"""Finds runs of a ledger by id, name or `runs --filter`, lists them, and indexes the ratios that history reads."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from sqlalchemy import delete, func, insert, select
from sqlalchemy.engine import Connection, Row

from guestmark.core.errors import LedgerError, UsageError
from guestmark.core.home import LATEST
from guestmark.core.model import Cell, Plan, RunState, TrialStatus
from guestmark.core.units import parse_duration
from guestmark.ledger import checksums, codec, run_annotations, schema, signatures
from guestmark.ledger.model import RunOverview, SignatureStatus, StoredRatio
from guestmark.ledger.run_annotations import NO_ANNOTATIONS, Annotations
from guestmark.ledger.schema import comparisons
from guestmark.ledger.validation import is_moment, is_text

# The largest number of earlier runs that are read for one ratio.
MOST_EARLIER_RUNS = 20
_MOST_LOG = 100.0  # no ratio is this far from 1


def replace_ratios(connection: Connection, run_id: str, rows: Sequence[StoredRatio]) -> None:
    """Store a run's ratios, replacing those from before it was resumed."""
    comparisons.create(connection, checkfirst=True)
    connection.execute(delete(comparisons).where(comparisons.c.run_id == run_id))
    if rows:
        connection.execute(insert(comparisons), [{**asdict(row), "run_id": run_id} for row in rows])


def find_earlier_ratios(
    connection: Connection,
    host: str,
    what: Collection[str],
    before: float,
    *,
    most: int = MOST_EARLIER_RUNS,
    gone: Collection[str] = (),
) -> list[StoredRatio]:
    """Return the `most` newest ratios for each question in `what`, of runs of this host begun before `before`.

    Those of the runs that are `gone` are left out. They are sorted by time, oldest first.
    """
    if not schema.has_table(connection, comparisons):
        return []
    found: list[StoredRatio] = []
    table = comparisons.c
    for question in dict.fromkeys(what):
        statement = (
            select(comparisons)
            .where(table.host == host, table.what == question, table.created_at < before)
            .order_by(table.created_at.desc())
            .limit(most + len(gone))
        )
        rows = _read_ratios(connection.execute(statement))
        found += [row for row in rows if row.run_id not in gone][:most]
    return sorted(found, key=lambda row: (row.created_at, row.run_id))


def read_all_ratios(connection: Connection) -> list[StoredRatio]:
    """Return all ratios that runs found, oldest first."""
    if not schema.has_table(connection, comparisons):
        return []
    order = (comparisons.c.created_at, comparisons.c.run_id)
    return _read_ratios(connection.execute(select(comparisons).order_by(*order)))


def _read_ratios(rows: Iterable[Any]) -> list[StoredRatio]:
    names = [field.name for field in fields(StoredRatio)]
    found = []
    for row in rows:
        if _is_possible(row):
            found.append(StoredRatio(**{name: getattr(row, name) for name in names}))
    return found


def _is_possible(row: Any) -> bool:
    """Return whether a row has numbers where they belong, with possible values: a damaged row is ignored."""
    for log in (row.log_ratio, row.low, row.high):
        if not isinstance(log, float) or not abs(log) < _MOST_LOG:
            return False
    for value in (row.created_at, row.typical):
        if not isinstance(value, int | float) or not math.isfinite(value):
            return False
    return isinstance(row.blocks, int)


def list_overviews(
    connection: Connection, state: Callable[[str, str], RunState], *, removed: bool, checked: bool
) -> list[RunOverview]:
    """Return the visible runs, or the `removed` ones, oldest first.

    `state` derives the state of a run with this id from the stored one; `checked` ledgers have checksums.
    """
    trials = schema.trials
    counts = (
        select(
            trials.c.run_id,
            func.count().label("trials"),
            func.count(trials.c.block.distinct()).label("blocks"),
            func.count().filter(trials.c.status != TrialStatus.OK.value).label("failed"),
        )
        .group_by(trials.c.run_id)
        .subquery()
    )
    statement = (
        select(schema.runs, counts.c.trials, counts.c.blocks, counts.c.failed)
        .outerjoin(counts, counts.c.run_id == schema.runs.c.id)
        .order_by(schema.runs.c.created_at, schema.runs.c.id)
    )
    rows = connection.execute(statement).all()
    damaged: set[str] = set()
    if checked:
        damaged = checksums.find_damaged_plans(connection)
    said = run_annotations.read_all_annotations(connection)
    wanted = [row for row in rows if (said.get(row.id, NO_ANNOTATIONS).removed is not None) == removed]
    standings: dict[str, SignatureStatus] = {}
    if signatures.signs_all_rows(connection):
        standings = signatures.verify_signatures(connection, [row.id for row in wanted])
    found = []
    for row in wanted:
        of_run = said.get(row.id, NO_ANNOTATIONS)
        standing = standings.get(row.id, SignatureStatus.OWN)
        found.append(_make_overview(row, of_run, standing, state, damaged=row.id in damaged))
    return found


def _make_overview(
    row: Row[Any],
    said: Annotations,
    standing: SignatureStatus,
    state: Callable[[str, str], RunState],
    *,
    damaged: bool,
) -> RunOverview:
    """Return the overview of a row, whatever its columns contain: one damaged run must not hide the others."""
    cells: tuple[Cell, ...] = ()
    label, title = "(the plan is damaged)", ""
    try:
        ended = state(str(row.id), str(row.state))
    except ValueError:
        damaged, ended = True, RunState.FAILED
    has_moment = is_moment(row.created_at)
    if not damaged and has_moment:
        with suppress(LedgerError):
            plan = codec.load_json(row.plan, Plan, f"the plan of run {row.id}")
            cells, title, label = plan.cells, plan.title, ""
            if cells:
                label = cells[0].workload.label or cells[0].workload.name
    return RunOverview(
        id=str(row.id),
        name=str(row.name),
        created_at=float(row.created_at) if has_moment else 0.0,
        state=ended,
        cells=len(cells),
        blocks=row.blocks or 0,
        trials=row.trials or 0,
        failed=row.failed or 0,
        label=label,
        title=title,
        platforms=tuple(dict.fromkeys(str(cell.platform) for cell in cells)),
        given_name=said.name,
        notes=said.notes,
        labels=said.labels,
        tags=said.tags,
        removed=said.removed,
        imported=said.origin.source if said.origin is not None else "",
        standing=standing,
    )


def resolve_run(connection: Connection, wanted: str, where: str, *, removed: bool = False) -> str:
    """Return the id of a visible or a `removed` run. Raises `LedgerError` naming the nearest ids."""
    check_name(wanted, where)
    statement = select(schema.runs.c.id).order_by(schema.runs.c.created_at)
    gone = run_annotations.find_removed_runs(connection)
    ids = []
    for run_id in map(str, connection.execute(statement).scalars()):
        if (run_id in gone) == removed:
            ids.append(run_id)
    if wanted == LATEST and ids:
        return ids[-1]
    said = run_annotations.read_all_annotations(connection)
    found = _find_matches(wanted, ids, said)
    if len(found) > 1:
        raise LedgerError(
            f"{wanted!r} matches {len(found)} runs: {', '.join(found[-5:])}", hint="type more of the id"
        )
    if found:
        return found[0]
    if not removed and _find_matches(wanted, sorted(gone), said):
        raise LedgerError(f"run {wanted} was removed", hint=f"guestmark rm --undo {wanted} brings it back")
    if removed:
        hint = "no run can be brought back; guestmark vacuum deletes for good"
        if ids:
            hint = "guestmark runs --removed lists the runs that can be brought back"
        raise LedgerError(f"there is no removed run {wanted!r} in the ledger {where}", hint=hint)
    raise make_missing_run_error(connection, wanted, where, ids)


def check_name(wanted: str, where: str) -> None:
    """Raise `LedgerError` for a text that cannot be a run's name: a database refuses it even in a query."""
    if not is_text(wanted):
        raise LedgerError(
            f"there is no run {wanted!r} in the ledger {where}", hint="`guestmark runs` lists all"
        )


def _find_matches(wanted: str, ids: Sequence[str], said: Mapping[str, Annotations]) -> list[str]:
    """Return the run of that id, else those of that name, else those whose ids begin or end with the text."""
    if not wanted:
        return []
    if wanted in ids:
        return [wanted]
    named = [run_id for run_id in ids if run_id in said and said[run_id].name == wanted]
    return named or [run_id for run_id in ids if run_id.startswith(wanted) or run_id.endswith(wanted)]


def list_run_ids(connection: Connection) -> list[str]:
    """Return the ids of all runs, the removed ones too, in no particular order."""
    return [str(run_id) for run_id in connection.execute(select(schema.runs.c.id)).scalars()]


def make_missing_run_error(
    connection: Connection, wanted: str, where: str, ids: Sequence[str] | None = None
) -> LedgerError:
    """Return the error for a run that does not exist, with the nearest ids."""
    if ids is None:
        ids = list_run_ids(connection)
    hint = "it holds no runs yet"
    if near := get_close_matches(wanted, ids, n=3, cutoff=0.5) or ids[-3:]:
        hint = f"nearest: {', '.join(near)}; `guestmark runs` lists all"
    return LedgerError(f"there is no run {wanted!r} in the ledger {where}", hint=hint)


RunFilter = Callable[[RunOverview], bool]

_HINT = (
    "e.g. 'state=complete and platform=tcg', 'tag=release', 'commit=1a2b3c', 'workload~sysbench', 'since=2d'"
)
_CONDITION = re.compile(r"\s*([A-Za-z][A-Za-z0-9_.-]*)\s*(!=|=|~)\s*(.+?)\s*", re.ASCII | re.DOTALL)
_FIELDS: dict[str, Callable[[RunOverview], tuple[str, ...]]] = {
    "id": lambda run: (run.id,),
    "name": lambda run: (run.given_name,),
    "plan": lambda run: (run.name,),
    "state": lambda run: (run.state.value, run.state.describe_state(run.trials)),
    "platform": lambda run: run.platforms,
    "workload": lambda run: (run.label,),
    "tag": lambda run: run.tags,
    "note": lambda run: run.notes,
}


def parse_filter(text: str) -> RunFilter:
    """Parse conditions joined by `and` or commas: `=` is, `!=` is not, `~` contains. Raises `UsageError`.

    A name that is not a field of a run is a label's; `label.NAME` always is. `since` and `before` take a date, or a
    duration counted back from now.
    """
    conditions = [_parse_condition(part, text) for part in re.split(r"\s+and(?:\s+|$)|,", text.strip())]
    return lambda run: all(holds(run) for holds in conditions)


def _parse_condition(part: str, whole: str) -> RunFilter:
    found = _CONDITION.fullmatch(part)
    if found is None:
        raise UsageError(f"--filter {whole!r}: {part.strip()!r} is not NAME=VALUE", hint=_HINT)
    name, sign, value = found.groups()
    if name in {"since", "before"}:
        if sign != "=":
            raise UsageError(f"--filter {whole!r}: {name} takes =", hint=_HINT)
        moment = _parse_moment(value, whole)
        return lambda run: (run.created_at >= moment) == (name == "since")
    values = _FIELDS.get(name) or _make_label_reader(name.removeprefix("label."))
    if sign == "~":
        return lambda run: any(value.lower() in each.lower() for each in values(run))
    return lambda run: (value in values(run)) == (sign == "=")


def _make_label_reader(name: str) -> Callable[[RunOverview], tuple[str, ...]]:
    def read_label(run: RunOverview) -> tuple[str, ...]:
        if name not in run.labels:
            return ()
        return (run.labels[name],)

    return read_label


def _parse_moment(text: str, whole: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        pass
    try:
        return time.time() - parse_duration(text)
    except ValueError as error:
        raise UsageError(
            f"--filter {whole!r}: {text!r} is neither a date nor a duration",
            hint="e.g. since=2026-11-20, since=2d",
        ) from error
