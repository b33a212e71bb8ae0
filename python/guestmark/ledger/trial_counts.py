"""Counts a run's progress in the database, so that thousands of machines claim blocks without reading trials."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import and_, exists, func, select

from guestmark.core.model import Trial, TrialStatus
from guestmark.ledger import checksums, schema
from guestmark.ledger.rows import read_trial
from guestmark.ledger.schema import attempts, trials
from guestmark.ledger.store import Ledger


@dataclass(frozen=True, slots=True)
class TrialCounts:
    """Numbers of a run's trials, or of one machine's."""

    blocks: int
    trials: int
    failed: int
    lost: int


@dataclass(frozen=True, slots=True)
class CompleteBlocks:
    """The blocks that have a trial of every cell, as ranges in order."""

    whole: tuple[range, ...]

    @property
    def blocks(self) -> int:
        """The number of complete blocks."""
        return sum(map(len, self.whole))

    def find_incomplete(self, most: int) -> list[int]:
        """Return the first `most` blocks that are not complete, in order."""
        found: list[int] = []
        begin = 0
        for each in self.whole:
            found += range(begin, min(each.start, most))
            begin = each.stop
        found += range(begin, most)
        return found


def find_complete_blocks(ledger: Ledger, run_id: str, cells: Sequence[str]) -> CompleteBlocks:
    """Return the blocks of the run that have a trial of each of these cells, from the index of trials alone."""
    whole = (
        select(trials.c.block)
        .where(trials.c.run_id == run_id, trials.c.cell_id.in_(cells))
        .group_by(trials.c.block)
        .having(func.count() == len(cells))
        .subquery()
    )
    # Gaps and islands: consecutive blocks have the same distance from their rank, so each run of them is one group.
    ranked = select(
        whole.c.block, (whole.c.block - func.row_number().over(order_by=whole.c.block)).label("distance")
    ).subquery()
    first, last = func.min(ranked.c.block), func.max(ranked.c.block)
    statement = select(first, last).group_by(ranked.c.distance).order_by(first)
    with ledger.read_transaction(f"counting the blocks of run {run_id}") as connection:
        return CompleteBlocks(tuple(range(begin, end + 1) for begin, end in connection.execute(statement)))


def has_reached_block(ledger: Ledger, run_id: str, block: int) -> bool:
    """Return whether the run has a trial in this block or a later one."""
    statement = select(trials.c.block).where(trials.c.run_id == run_id, trials.c.block >= block).limit(1)
    with ledger.read_transaction(f"looking for the last block of run {run_id}") as connection:
        return connection.execute(statement).first() is not None


def count_blocks_with_losses(ledger: Ledger, run_id: str) -> int:
    """Return the number of blocks with at least one lost trial."""
    lost = trials.c.run_id == run_id, trials.c.status == TrialStatus.LOST.value
    with ledger.read_transaction(f"counting the blocks of run {run_id} with lost trials") as connection:
        found = connection.execute(select(func.count(trials.c.block.distinct())).where(*lost))
        return int(found.scalar_one())


def has_good_trial(ledger: Ledger, run_id: str) -> bool:
    """Return whether any trial of the run succeeded."""
    good = trials.c.run_id == run_id, trials.c.status == TrialStatus.OK.value
    with ledger.read_transaction(f"looking for good trials of run {run_id}") as connection:
        return connection.execute(select(trials.c.block).where(*good).limit(1)).first() is not None


def find_failing_cells(ledger: Ledger, run_id: str, cells: Sequence[str]) -> Mapping[str, int]:
    """Return those of the cells whose trials have all failed, with the number of these trials."""
    columns = []
    for at, cell in enumerate(cells):
        other = exists().where(
            trials.c.run_id == run_id, trials.c.cell_id == cell, trials.c.status != TrialStatus.FAILED.value
        )
        columns.append(other.label(f"has_{at}"))
    with ledger.read_transaction(f"looking for failing cells of run {run_id}") as connection:
        found = connection.execute(select(*columns)).one()
        suspects = [cell for cell, has_other in zip(cells, found, strict=True) if not has_other]
        if not suspects:
            return {}
        counted = (
            select(trials.c.cell_id, func.count())
            .where(trials.c.run_id == run_id, trials.c.cell_id.in_(suspects))
            .group_by(trials.c.cell_id)
        )
        return {row[0]: row[1] for row in connection.execute(counted)}


def read_block_trials(ledger: Ledger, run_id: str, block: int, cells: Collection[str]) -> list[Trial]:
    """Return all trials of a block, and all trials of these cells. Raises `LedgerError` if one is damaged."""
    wanted = trials.c.block == block
    if cells:
        wanted |= trials.c.cell_id.in_(cells)
    statement = select(trials, checksums.select_checksum(trials)).where(trials.c.run_id == run_id, wanted)
    with ledger.read_transaction(f"reading block {block + 1} of run {run_id}") as connection:
        rows = connection.execute(statement.order_by(trials.c.block, trials.c.position)).all()
        checksums.verify_rows(trials, run_id, rows)
        return [read_trial(row) for row in rows]


_SAME = and_(
    attempts.c.run_id == trials.c.run_id,
    attempts.c.block == trials.c.block,
    attempts.c.cell_id == trials.c.cell_id,
)


def find_cells_measured_on(ledger: Ledger, run_id: str, machine: str) -> frozenset[str]:
    """Return the cells with a successful trial on the machine of that name."""
    mine = attempts.c.run_id == run_id, attempts.c.machine == machine
    statement = (
        select(trials.c.cell_id)
        .join_from(attempts, trials, _SAME)
        .where(*mine, trials.c.status == TrialStatus.OK.value)
        .distinct()
    )
    with ledger.read_transaction(f"looking for what {machine} has measured of run {run_id}") as connection:
        if not schema.has_table(connection, attempts):
            return frozenset()
        return frozenset(connection.execute(statement).scalars())


def count_trials(ledger: Ledger, run_id: str, machine: str = "") -> TrialCounts:
    """Count the trials of the whole run, or those that the machine of that name has measured."""
    status = trials.c.status
    statement = select(
        func.count(trials.c.block.distinct()),
        func.count(),
        func.count().filter(status == TrialStatus.FAILED.value),
        func.count().filter(status == TrialStatus.LOST.value),
    ).where(trials.c.run_id == run_id)
    if machine:
        statement = statement.join_from(trials, attempts, _SAME).where(attempts.c.machine == machine)
    with ledger.read_transaction(f"counting the trials of run {run_id}") as connection:
        if machine and not schema.has_table(connection, attempts):
            return TrialCounts(0, 0, 0, 0)
        return TrialCounts(*map(int, connection.execute(statement).one()))
