"""Statements that a server is sent again and again: parsed and planned once for each connection.

The bundled driver sends a statement in three steps, waits for the answer to each, and scans its text for parameters
every time. One that is prepared is sent in a single step and answered at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import event

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.engine import Connection
    from sqlalchemy.engine.interfaces import ExecutionContext

_WANTED = "guestmark_prepared"  # execution option
OPTIONS = {_WANTED: True}  # for `Connection.execute`


def prepare_for(engine: Engine) -> None:
    """Lets connections of the bundled driver prepare the statements that are executed with `OPTIONS`."""
    from pg8000.converters import make_params
    from pg8000.dbapi import convert_paramstyle

    @event.listens_for(engine, "do_execute")
    def _execute(cursor: Any, statement: str, parameters: Any, context: ExecutionContext | None) -> bool:
        if context is None or not context.execution_options.get(_WANTED):
            return False  # as usual
        session: Connection = context.root_connection
        driver: Any = session.connection.dbapi_connection
        made = session.info.get(statement)  # is forgotten with the connection, as the server forgets it
        if made is None:
            numbered, _ = convert_paramstyle("format", statement, parameters)
            made = session.info[statement] = (numbered, *driver.prepare_statement(numbered, ()))
        numbered, name, columns, readers = made
        values = make_params(driver.py_types, parameters)
        # What the driver's cursor does itself with a statement that is not prepared.
        cursor._context = driver.execute_named(name, values, columns, readers, numbered)
        cursor._row_iter = iter(cursor._context.rows or ())
        return True
