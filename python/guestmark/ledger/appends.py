"""How a trial comes into the ledger: with its checksum and the end of its attempt, all of it or nothing.

In a file that is a transaction. On a server it is one statement, sent once and answered once: the ways to the server
and back are what a lab's machines wait for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sqlalchemy import bindparam, func, insert, literal, select, update
from sqlalchemy.exc import IntegrityError

from guestmark.core.errors import LedgerError
from guestmark.core.model import Trial
from guestmark.ledger import checksums, codec, schema

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.engine import Connection
    from sqlalchemy.sql.selectable import TypedReturnsRows

T = TypeVar("T")
BEGUN, STORED, LOST = "begun", "stored", "lost"  # what became of an attempt


class Writer(Protocol):
    """What a ledger gives to whoever writes into it."""

    @property
    def is_file(self) -> bool:
        """Whether it is a file, and no server."""

    def write(self, doing: str, action: Callable[[Connection], T]) -> T:
        """Does `action` in a transaction."""

    def write_at_once(
        self, doing: str, statement: TypedReturnsRows[Any], values: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Executes one statement, which is a transaction of its own."""


def append(ledger: Writer, run_id: str, trial: Trial, token: str | None) -> None:
    """Stores a trial; with a `token` only while the attempt that has it is in force. See `Ledger.append`."""
    doing = f"storing the trial of cell {trial.cell_id!r} in block {trial.block + 1} of run {run_id}"
    values = {"run_id": run_id, **codec.trial_row(trial)}
    try:
        if ledger.is_file:
            in_force, stored = ledger.write(
                doing, lambda connection: _in_transaction(connection, values, token)
            )
        else:
            in_force, stored = _on_server(ledger, doing, values, token)
    except LedgerError as error:
        if not isinstance(error.__cause__, IntegrityError):
            raise
        raise _not_stored(doing) from error.__cause__
    if not in_force:
        raise LedgerError(
            f"the trial of cell {trial.cell_id!r} in block {trial.block + 1} of run {run_id} was "
            "recorded as lost before it ended",
            hint="it is not stored; a later block makes up for it",
        )
    if not stored:
        raise _not_stored(doing)


def _not_stored(doing: str) -> LedgerError:
    return LedgerError(
        f"failed while {doing}: the run is not in the ledger, or the trial already is",
        hint="stop one of them if two guestmarks are executing the same run",
    )


def _in_transaction(
    connection: Connection, values: Mapping[str, Any], token: str | None
) -> tuple[bool, bool]:
    """Whether the attempt was in force, and whether the trial is stored."""
    attempts, trials = schema.attempts, schema.trials
    if token is not None:
        mine = *_of(attempts, values), attempts.c.token == token, attempts.c.outcome != LOST
        if connection.execute(update(attempts).where(*mine).values(outcome=STORED)).rowcount != 1:
            return False, False
    connection.execute(insert(trials).values(**values))
    checksums.store(connection, trials, values["run_id"], *_of(trials, values)[1:])
    return True, True


def _on_server(ledger: Writer, doing: str, values: Mapping[str, Any], token: str | None) -> tuple[bool, bool]:
    row = SimpleNamespace(**values)
    trials = schema.trials
    told = {f"own_{name}": value for name, value in values.items()}
    told |= {
        "own_part": checksums.part_of(trials.name, row),
        "own_digest": checksums.of_row(trials.name, row),
    }
    if token is not None:
        told["own_token"] = token
    in_force, stored = ledger.write_at_once(doing, _statement(token is not None), told)
    if in_force and not stored:
        # It may be this very one, to the last bit: the connection was lost when it had just been stored.
        found = ledger.write(
            doing, lambda connection: connection.execute(select(trials).where(*_of(trials, values))).first()
        )
        stored = found is not None and all(getattr(found, name) == value for name, value in values.items())
    return bool(in_force), bool(stored)


@functools.cache
def _statement(with_token: bool) -> TypedReturnsRows[Any]:
    """Settles the attempt, stores the trial if that was in force, and the checksum if the trial was stored."""
    from sqlalchemy.dialects import postgresql  # which ledgers in files do without

    attempts, trials, checks = schema.attempts, schema.trials, schema.checks
    own = {column.name: bindparam(f"own_{column.name}", type_=column.type) for column in trials.columns}
    wanted = select(*own.values())
    in_force: Any = literal(1)
    if with_token:
        mine = (
            *_of(attempts, own),
            attempts.c.token == bindparam("own_token"),
            attempts.c.outcome != LOST,  # stored already: the connection was lost when it had just been
        )
        settled = (
            update(attempts).where(*mine).values(outcome=STORED).returning(attempts.c.token).cte("settled")
        )
        wanted = select(*own.values()).select_from(settled)
        in_force = select(func.count()).select_from(settled).scalar_subquery()
    stored = (
        postgresql.insert(trials)
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


def _of(table: Table, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """What says which trial a row is about."""
    return tuple(table.c[name] == values[name] for name in ("run_id", "block", "cell_id"))
