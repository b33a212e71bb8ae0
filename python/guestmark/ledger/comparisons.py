"""The index of what runs found: a row for each ratio, so that earlier ones are looked up without reading whole runs.

It is made when the first run ends that fills it, in ledgers of any age, and can be lost without losing a result.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import delete, insert, inspect, select
from sqlalchemy.engine import Connection

from guestmark.ledger.model import Compared
from guestmark.ledger.schema import comparisons

MOST = 20  # earlier runs that are looked at for one ratio


def replace_rows(connection: Connection, run_id: str, rows: Sequence[Compared]) -> None:
    """Stores what a run found, in place of what it had found before it was resumed."""
    comparisons.create(connection, checkfirst=True)
    connection.execute(delete(comparisons).where(comparisons.c.run_id == run_id))
    if rows:
        connection.execute(
            insert(comparisons),
            [
                {
                    "run_id": run_id,
                    "cell_id": row.cell_id,
                    "host": row.host,
                    "what": row.what,
                    "created_at": row.created_at,
                    "log_ratio": row.log_ratio,
                    "low": row.low,
                    "high": row.high,
                    "blocks": row.blocks,
                    "typical": row.typical,
                }
                for row in rows
            ],
        )


def earlier(
    connection: Connection, host: str, what: Collection[str], before: float, most: int = MOST
) -> list[Compared]:
    """What runs of this host that were begun before then found of each of `what`: the `most` newest, oldest first."""
    if not inspect(connection).has_table(comparisons.name):
        return []
    found: list[Compared] = []
    for each in dict.fromkeys(what):
        table = comparisons.c
        statement = (
            select(comparisons)
            .where(table.host == host, table.what == each, table.created_at < before)
            .order_by(table.created_at.desc())
            .limit(most)
        )
        found += [
            Compared(
                run_id=row.run_id,
                cell_id=row.cell_id,
                host=row.host,
                what=row.what,
                created_at=row.created_at,
                log_ratio=row.log_ratio,
                low=row.low,
                high=row.high,
                blocks=row.blocks,
                typical=row.typical,
            )
            for row in connection.execute(statement)
        ]
    return sorted(found, key=lambda row: (row.created_at, row.run_id))
