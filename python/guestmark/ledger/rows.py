"""Converts rows of the ledger's tables to objects and back, and stores trials.

A trial is stored with its checksum and the end of its attempt, completely or not at all. In a file that is a
transaction. On a server it is one statement with one answer, as a lab's machines wait for each round trip.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol, TypeVar

from sqlalchemy import Table, bindparam, delete, func, insert, literal, select, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.selectable import TypedReturnsRows

from guestmark.core.errors import LedgerError, TakenError
from guestmark.core.model import LeftOut, Plan, RunState, Trial
from guestmark.ledger import checksums, codec, schema
from guestmark.ledger.environment_variables import strip_unrecorded
from guestmark.ledger.validation import FORGED, ReadBudget

PREPARED_OPTION = "guestmark_prepared"  # execution option
PREPARED_OPTIONS = {PREPARED_OPTION: True}  # for `Connection.execute`, on a server with the bundled driver
# The prefix of a cell's id among the names of entries that were left out.
_CELL = "cell:"


def make_run_row(plan: Plan, *, created_at: float, seed: int, state: RunState) -> dict[str, Any]:
    """Return the columns of a run's row, but for its id. `created_at` is in seconds since the epoch."""
    return {
        "name": plan.name,
        "created_at": created_at,
        "seed": str(seed),
        "state": state.value,
        "owner": "",
        "plan": codec.dump_json(replace(plan, context=strip_unrecorded(plan.context))),
    }


def lock_run(connection: Connection, run_id: str) -> None:
    """Let other transactions that lock the run wait for the end of this one.

    On a server two transactions at once would both delete a row and insert its successor. A file has one writer at a
    time anyway.
    """
    if connection.dialect.name != "sqlite":
        runs = schema.runs.c
        connection.execute(select(runs.id).where(runs.id == run_id).with_for_update(key_share=True))


def add_environment(connection: Connection, run_id: str, environment: Mapping[str, Any]) -> None:
    """Store one more environment of a run, unless it is the same as the last one."""
    table = schema.environments
    statement = select(table).where(table.c.run_id == run_id).order_by(table.c.position.desc()).limit(1)
    last, body = connection.execute(statement).first(), codec.dump_json(environment)
    if last is not None and last.body == body:
        return
    position = 0 if last is None else last.position + 1
    connection.execute(insert(table).values(run_id=run_id, position=position, body=body))
    checksums.store_checksums(connection, table, run_id, table.c.position == position)


def read_trial(row: Row[Any], budget: ReadBudget | None = None) -> Trial:
    """Return the trial of a row. Raises `LedgerError` if it is damaged."""
    what = f"the trial of cell {row.cell_id!r} in block {row.block + 1} of run {row.run_id}"
    trial = codec.unpack_trial(row.body, row.console, what, budget)
    if (trial.block, trial.cell_id) != (row.block, row.cell_id):
        raise LedgerError(f"{what} holds another trial", hint=FORGED)
    return trial


def measure_run_size(connection: Connection, run_id: str) -> int:
    """Return the bytes that the rows of a run hold, which is known before they are read."""
    trials, environments = schema.trials.c, schema.environments.c
    sums = (
        select(func.sum(func.length(trials.body) + func.length(trials.console))).where(
            trials.run_id == run_id
        ),
        select(func.sum(func.length(environments.body))).where(environments.run_id == run_id),
    )
    return sum(int(connection.execute(each).scalar() or 0) for each in sums)


def store_left_out(connection: Connection, run_id: str, entry: LeftOut) -> None:
    """Store a platform or cell that cannot be measured; a later record of the same one replaces it."""
    table = schema.unusable
    name = f"{_CELL}{entry.cell}" if entry.cell else entry.platform
    row = {"run_id": run_id, "platform": name, "reason": entry.reason, "hint": entry.hint}
    connection.execute(delete(table).where(table.c.run_id == run_id, table.c.platform == name))
    connection.execute(insert(table).values(**row))
    checksums.store_checksums(connection, table, run_id, table.c.platform == name)


def read_left_out(row: Row[Any], plan: Plan) -> LeftOut:
    """Return the entry that `store_left_out` stored in this row."""
    name = str(row.platform)
    wanted = name.removeprefix(_CELL)
    # Version 0.1 stored a cell's id without the prefix.
    is_cell = name != wanted or all(str(cell.platform) != name for cell in plan.cells)
    if is_cell:
        for cell in plan.cells:
            if cell.id == wanted:
                return LeftOut(str(cell.platform), row.reason, row.hint, cell=cell.id)
    return LeftOut(name, row.reason, row.hint)


def find_environments(connection: Connection, run_id: str, machine: str) -> list[Mapping[str, Any]]:
    """Return the environments of a run that were recorded on this machine."""
    table = schema.environments
    here = table.c.body.contains(f'"machine":{codec.dump_json(machine)}', autoescape=True)
    statement = select(table.c.body).where(table.c.run_id == run_id, here).order_by(table.c.position)
    found = []
    for body in connection.execute(statement).scalars():
        environment = load_environment(body, run_id)
        if environment.get("machine") == machine:
            found.append(environment)
    return found


def load_environment(body: str, run_id: str, budget: ReadBudget | None = None) -> Mapping[str, Any]:
    """Return an environment as `add_environment` stored it, its cost charged to the budget. Raises `LedgerError`."""
    return codec.load_json(body, dict[str, Any], f"the environment of run {run_id}", budget)


def read_last_environments(connection: Connection, run_ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return the environment that each of these runs was last started or resumed in; damaged ones are absent."""
    table = schema.environments
    statement = (
        select(table.c.run_id, table.c.body).where(table.c.run_id.in_(run_ids)).order_by(table.c.position)
    )
    bodies = {row.run_id: row.body for row in connection.execute(statement)}
    found: dict[str, Mapping[str, Any]] = {}
    for run_id in run_ids:
        with suppress(LedgerError):
            if run_id in bodies:
                found[run_id] = load_environment(bodies[run_id], run_id)
    return found


T = TypeVar("T")
BEGUN, STORED, LOST = "begun", "stored", "lost"  # the outcome of an attempt


class LedgerWriter(Protocol):
    """The part of a ledger that writers need."""

    @property
    def is_file(self) -> bool:
        """True if it is a file, not a server."""

    def change_run(self, doing: str, run_id: str, action: Callable[[Connection], T]) -> T:
        """Run `action`, which changes this run, in a transaction."""

    def run_transaction(self, doing: str, action: Callable[[Connection], T]) -> T:
        """Run `action` in a transaction."""

    def execute_autocommit(
        self, doing: str, statement: TypedReturnsRows[Any], values: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Execute one statement in autocommit mode."""


def store_trial(ledger: LedgerWriter, run_id: str, trial: Trial, token: str | None) -> None:
    """Store a trial; with a `token`, only while its attempt is in force. See `Ledger.store_trial`."""
    doing = f"storing the trial of cell {trial.cell_id!r} in block {trial.block + 1} of run {run_id}"
    values = {"run_id": run_id, **codec.make_trial_row(trial)}
    try:
        if ledger.is_file:
            in_force, stored = ledger.change_run(
                doing, run_id, lambda connection: _store_trial_once(connection, values, token)
            )
        else:
            in_force, stored = _store_on_server(ledger, doing, values, token)
    except LedgerError as error:
        if not isinstance(error.__cause__, IntegrityError):
            raise
        raise _make_not_stored_error(doing) from error.__cause__
    if not in_force:
        raise TakenError(
            f"the trial of cell {trial.cell_id!r} in block {trial.block + 1} of run {run_id} was "
            "recorded as lost before it ended",
            hint="it is not stored; a later block replaces it",
        )
    if not stored:
        raise _make_not_stored_error(doing)


def _make_not_stored_error(doing: str) -> TakenError:
    return TakenError(
        f"failed while {doing}: the run is not in the ledger, or the trial already is",
        hint="if two processes are executing the same run, stop one of them",
    )


def _store_trial_once(
    connection: Connection, values: Mapping[str, Any], token: str | None
) -> tuple[bool, bool]:
    """Return whether the attempt was in force, and whether the trial was stored."""
    attempts, trials = schema.attempts, schema.trials
    if token is not None:
        mine = *_match_trial(attempts, values), attempts.c.token == token, attempts.c.outcome != LOST
        if connection.execute(update(attempts).where(*mine).values(outcome=STORED)).rowcount != 1:
            return False, False
    connection.execute(insert(trials).values(**values))
    checksums.store_checksums(connection, trials, values["run_id"], *_match_trial(trials, values)[1:])
    return True, True


def _store_on_server(
    ledger: LedgerWriter, doing: str, values: Mapping[str, Any], token: str | None
) -> tuple[bool, bool]:
    row = SimpleNamespace(**values)
    trials = schema.trials
    told = {f"own_{name}": value for name, value in values.items()}
    told |= {
        "own_part": checksums.name_part(trials.name, row),
        "own_digest": checksums.compute_checksum(trials.name, row),
    }
    if token is not None:
        told["own_token"] = token
    in_force, stored = ledger.execute_autocommit(doing, _make_store_statement(token is not None), told)
    if in_force and not stored:
        # The stored trial may be this very one: the connection was lost just after it had been stored.
        found = ledger.run_transaction(
            doing,
            lambda connection: connection.execute(
                select(trials).where(*_match_trial(trials, values))
            ).first(),
        )
        stored = found is not None and holds_values(found, values)
    return bool(in_force), bool(stored)


def holds_values(row: Row[Any], values: Mapping[str, Any]) -> bool:
    """Return whether the row has these values in the columns of these names."""
    return all(getattr(row, name) == value for name, value in values.items())


def load_postgresql_dialect() -> ModuleType:
    """Return SQLAlchemy's module for PostgreSQL, which ledgers in files need not import."""
    from sqlalchemy.dialects import postgresql

    return postgresql


@functools.cache
def _make_store_statement(with_token: bool) -> TypedReturnsRows[Any]:
    """Return a statement that ends the attempt, then stores trial and checksum if the attempt was in force."""
    attempts, trials, checks = schema.attempts, schema.trials, schema.checks
    own = {column.name: bindparam(f"own_{column.name}", type_=column.type) for column in trials.columns}
    wanted = select(*own.values())
    in_force: Any = literal(1)
    if with_token:
        mine = (
            *_match_trial(attempts, own),
            attempts.c.token == bindparam("own_token"),
            # It may be stored already, if the connection was lost just after that.
            attempts.c.outcome != LOST,
        )
        settled = (
            update(attempts).where(*mine).values(outcome=STORED).returning(attempts.c.token).cte("settled")
        )
        wanted = select(*own.values()).select_from(settled)
        in_force = select(func.count()).select_from(settled).scalar_subquery()
    stored = (
        load_postgresql_dialect()
        .insert(trials)
        .from_select(list(own), wanted)
        .on_conflict_do_nothing()
        .returning(trials.c.run_id)
        .cte("stored")
    )
    part, digest = (bindparam(f"own_{name}", type_=checks.c[name].type) for name in ("part", "digest"))
    checked = insert(checks).from_select(
        ["run_id", "part", "digest"], select(stored.c.run_id, part, digest).select_from(stored)
    )
    return select(in_force, select(func.count()).select_from(stored).scalar_subquery()).add_cte(
        checked.cte("checked")
    )


def _match_trial(table: Table, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the conditions that select the row of one trial."""
    return tuple(table.c[name] == values[name] for name in ("run_id", "block", "cell_id"))
