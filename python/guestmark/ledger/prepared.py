"""Statements that a server is sent again and again: parsed and planned once for each connection.

The bundled driver sends a statement in three steps, waits for the answer to each, and scans its text for parameters
every time. One that is prepared is sent in a single step and answered at once. Its cursors cannot do that, so these
statements get a cursor of ours, on the functions that the driver's own prepared statements call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy.dialects.postgresql.pg8000 import PGExecutionContext_pg8000

if TYPE_CHECKING:
    from sqlalchemy import Engine

_WANTED = "guestmark_prepared"  # execution option
OPTIONS = {_WANTED: True}  # for `Connection.execute`


def prepare_for(engine: Engine) -> None:
    """Lets connections of the bundled driver prepare the statements that are executed with `OPTIONS`."""
    engine.dialect.execution_ctx_cls = _Execution


class _Execution(PGExecutionContext_pg8000):
    """What SQLAlchemy makes for each statement that is executed."""

    def create_cursor(self) -> Any:
        """The cursor for it: ours when it is to be prepared."""
        if not self.execution_options.get(_WANTED):
            return super().create_cursor()
        session = self.root_connection
        # What is prepared is forgotten with the connection, as the server forgets it.
        return _Cursor(session.connection.dbapi_connection, session.info)


class _Cursor:
    """As much of a cursor (PEP 249) as SQLAlchemy asks for."""

    def __init__(self, driver: Any, prepared: dict[Any, Any]) -> None:
        self._driver = driver
        self._prepared = prepared
        self._rows: list[Any] = []
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount = -1

    def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Executes it; prepares it when this is the first time on this connection."""
        from pg8000.converters import make_params
        from pg8000.dbapi import convert_paramstyle

        made = self._prepared.get(statement)
        if made is None:
            numbered, _ = convert_paramstyle("format", statement, parameters)
            made = self._prepared[statement] = (numbered, *self._driver.prepare_statement(numbered, ()))
        numbered, name, columns, readers = made
        values = make_params(self._driver.py_types, parameters)
        answer = self._driver.execute_named(name, values, columns, readers, numbered)
        self._rows, self.rowcount = list(answer.rows or ()), answer.row_count
        self.description = [_described(column) for column in answer.columns or ()] or None

    def fetchone(self) -> Any:
        """The next row, None after the last."""
        return self._rows.pop(0) if self._rows else None

    def fetchmany(self, size: int = 1) -> list[Any]:
        """So many rows more."""
        found, self._rows = self._rows[:size], self._rows[size:]
        return found

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        found, self._rows = self._rows, []
        return found

    def close(self) -> None:
        """Nothing: the statement stays prepared."""


def _described(column: Mapping[str, Any]) -> tuple[Any, ...]:
    return (column["name"], column["type_oid"], None, None, None, None, None)
