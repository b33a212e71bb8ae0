"""Rows of the ledger's tables and what they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import delete, func, insert, select
from sqlalchemy.engine import Connection, Row

from guestmark.core.errors import LedgerError
from guestmark.core.model import LeftOut, Plan, RunState, Trial
from guestmark.ledger import checksums, codec, schema
from guestmark.ledger.intake import Budget
from guestmark.ledger.variables import recorded

_CELL = "cell:"  # before the id of a cell among the names of what is left out


def run_row(plan: Plan, *, created_at: float, seed: int, state: RunState) -> dict[str, Any]:
    """The columns of a run's row, but for its id. `created_at` is in seconds since the epoch."""
    return {
        "name": plan.name,
        "created_at": created_at,
        "seed": str(seed),
        "state": state.value,
        "owner": "",
        "plan": codec.dump(replace(plan, context=recorded(plan.context))),
    }


def add_environment(connection: Connection, run_id: str, environment: Mapping[str, Any]) -> None:
    """Stores one more environment of a run; the very same as the last one is not stored again."""
    table = schema.environments
    statement = select(table).where(table.c.run_id == run_id).order_by(table.c.position.desc()).limit(1)
    last, body = connection.execute(statement).first(), codec.dump(environment)
    if last is not None and last.body == body:
        return
    position = 0 if last is None else last.position + 1
    connection.execute(insert(table).values(run_id=run_id, position=position, body=body))
    checksums.store(connection, table, run_id, table.c.position == position)


def trial_of(row: Row[Any], budget: Budget | None = None) -> Trial:
    """The trial of a row. Raises `LedgerError` when it is damaged."""
    what = f"the trial of cell {row.cell_id!r} in block {row.block + 1} of run {row.run_id}"
    trial = codec.unpack_trial(row.body, row.console, what, budget)
    if (trial.block, trial.cell_id) != (row.block, row.cell_id):
        raise LedgerError(f"{what} is that of another", hint="it is damaged, or made to mislead")
    return trial


def size_of(connection: Connection, run_id: str) -> int:
    """Bytes that the rows of a run hold, asked for before they are read."""
    trials, environments = schema.trials.c, schema.environments.c
    sums = (
        select(func.sum(func.length(trials.body) + func.length(trials.console))).where(
            trials.run_id == run_id
        ),
        select(func.sum(func.length(environments.body))).where(environments.run_id == run_id),
    )
    return sum(int(connection.execute(each).scalar() or 0) for each in sums)


def add_left_out(connection: Connection, run_id: str, entry: LeftOut) -> None:
    """Stores what cannot be measured; a later record of the same replaces it."""
    table = schema.unusable
    name = f"{_CELL}{entry.cell}" if entry.cell else entry.platform
    row = {"run_id": run_id, "platform": name, "reason": entry.reason, "hint": entry.hint}
    connection.execute(delete(table).where(table.c.run_id == run_id, table.c.platform == name))
    connection.execute(insert(table).values(**row))
    checksums.store(connection, table, run_id, table.c.platform == name)


def left_out_of(row: Row[Any], plan: Plan) -> LeftOut:
    """What a row of `add_left_out` says cannot be measured."""
    name = str(row.platform)
    wanted = name.removeprefix(_CELL)
    # Ledgers of version 0.1 hold a cell's id as it is.
    is_cell = name != wanted or all(str(cell.platform) != name for cell in plan.cells)
    cell = next((cell for cell in plan.cells if is_cell and cell.id == wanted), None)
    if cell is None:
        return LeftOut(name, row.reason, row.hint)
    return LeftOut(str(cell.platform), row.reason, row.hint, cell=cell.id)


def last_environments(connection: Connection, run_ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """The environment that each of these runs was last started or resumed in, in this order."""
    table = schema.environments
    statement = (
        select(table.c.run_id, table.c.body).where(table.c.run_id.in_(run_ids)).order_by(table.c.position)
    )
    bodies = {row.run_id: row.body for row in connection.execute(statement)}
    return {
        run_id: codec.load(bodies[run_id], dict[str, Any], f"the environment of run {run_id}")
        for run_id in run_ids
        if run_id in bodies
    }
