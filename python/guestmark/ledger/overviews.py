"""The list of runs: a line for each, without reading a trial."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from guestmark.core.errors import LedgerError
from guestmark.core.model import Cell, Plan, RunState, TrialStatus
from guestmark.ledger import checksums, codec, remarks, schema
from guestmark.ledger.intake import is_moment
from guestmark.ledger.model import RunOverview
from guestmark.ledger.remarks import NOTHING, Remarks

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Row


def overviews(
    connection: Connection, state: Callable[[str, str], RunState], *, removed: bool, checked: bool
) -> list[RunOverview]:
    """The runs that are in sight, or those that were removed, oldest first.

    `state` tells the state of a run with this id from the stored one; `checked` ledgers have checksums.
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
    damaged = checksums.damaged_plans(connection) if checked else set()
    said = remarks.of_runs(connection)
    return [
        _overview(row, said.get(row.id, NOTHING), state, damaged=row.id in damaged)
        for row in rows
        if (said.get(row.id, NOTHING).removed is not None) == removed
    ]


def _overview(
    row: Row[Any], said: Remarks, state: Callable[[str, str], RunState], *, damaged: bool
) -> RunOverview:
    """The overview of a row, whatever SQLite has in its columns: one damaged run must not hide the others."""
    cells: tuple[Cell, ...] = ()
    label = "(the plan is damaged)"
    try:
        ended = state(str(row.id), str(row.state))
    except ValueError:
        damaged, ended = True, RunState.FAILED
    if not damaged and is_moment(row.created_at):
        with suppress(LedgerError):
            cells = codec.load(row.plan, Plan, f"the plan of run {row.id}").cells
            label = (cells[0].workload.label or cells[0].workload.name) if cells else ""
    return RunOverview(
        id=str(row.id),
        name=str(row.name),
        created_at=float(row.created_at) if is_moment(row.created_at) else 0.0,
        state=ended,
        cells=len(cells),
        blocks=row.blocks or 0,
        trials=row.trials or 0,
        failed=row.failed or 0,
        label=label,
        platforms=tuple(dict.fromkeys(str(cell.platform) for cell in cells)),
        given_name=said.name,
        notes=said.notes,
        labels=said.labels,
        tags=said.tags,
        removed=said.removed,
        imported=said.origin.source if said.origin is not None else "",
    )
