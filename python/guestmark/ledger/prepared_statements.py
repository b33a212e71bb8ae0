"""Lets the bundled driver of PostgreSQL prepare statements, which saves two of three round trips for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pg8000.converters import make_params
from pg8000.dbapi import convert_paramstyle
from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql.pg8000 import PGExecutionContext_pg8000

from guestmark.ledger.rows import PREPARED_OPTION


def enable_prepared_statements(engine: Engine) -> None:
    """Let connections of the bundled driver prepare the statements that are executed with `PREPARED_OPTIONS`."""

    class Execution(PGExecutionContext_pg8000):
        """The context that SQLAlchemy creates for each execution of a statement."""

        def create_cursor(self) -> Any:
            """Return the cursor for the statement; a statement to prepare gets `_PreparedCursor`."""
            if not self.execution_options.get(PREPARED_OPTION):
                return super().create_cursor()
            session = self.root_connection
            # `session.info` lives as long as the connection, as prepared statements do on the server.
            return _PreparedCursor(session.connection.dbapi_connection, session.info)

    engine.dialect.execution_ctx_cls = Execution
    engine.dialect.do_ping = _ping  # type: ignore[method-assign, assignment]


def _ping(link: Any) -> bool:
    """Return whether the server answers, in one round trip and without beginning a transaction."""
    link.execute_simple(";")
    return True


class _PreparedCursor:
    """The part of a cursor (PEP 249) that SQLAlchemy uses."""

    def __init__(self, driver: Any, prepared: dict[Any, Any]) -> None:
        self._driver = driver
        self._prepared = prepared
        self._rows: list[Any] = []
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount = -1

    def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Execute the statement, and prepare it first if this connection has not done so yet."""
        made = self._prepared.get(statement)
        if made is None:
            numbered, _ = convert_paramstyle("format", statement, parameters)
            made = self._prepared[statement] = (numbered, *self._driver.prepare_statement(numbered, ()))
        numbered, name, columns, readers = made
        values = make_params(self._driver.py_types, parameters)
        answer = self._driver.execute_named(name, values, columns, readers, numbered)
        self._rows, self.rowcount = list(answer.rows or ()), answer.row_count
        self.description = [_describe_column(column) for column in answer.columns or ()] or None

    def fetchone(self) -> Any:
        """Return the next row, None after the last."""
        return self._rows.pop(0) if self._rows else None

    def fetchmany(self, size: int = 1) -> list[Any]:
        """Return up to `size` more rows."""
        found, self._rows = self._rows[:size], self._rows[size:]
        return found

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""
        found, self._rows = self._rows, []
        return found

    def close(self) -> None:
        """Do nothing: the statement stays prepared."""


def _describe_column(column: Mapping[str, Any]) -> tuple[Any, ...]:
    return (column["name"], column["type_oid"], None, None, None, None, None)
