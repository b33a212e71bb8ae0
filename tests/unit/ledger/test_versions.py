"""Ledgers that earlier versions wrote are read whole, shown in every format, and go on being written."""

from pathlib import Path

import pytest

from guestmark.core.cause import Cause
from guestmark.core.findings import Durability, Flushes
from guestmark.ledger import open_ledger
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.stats.analysis import analyse_run
from tests.framework import recorded
from tests.framework.command_line import CommandLine
from tests.framework.known import known


@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_ledgers_of_every_version_are_checked_shown_and_written(
    guestmark: CommandLine, tmp_path: Path, version: str
) -> None:
    """Whole, in every format, and with the next run beside what was stored; see the README beside each of them."""
    old = recorded.ledger(tmp_path, version)
    with open_ledger(old, writable=False) as opened:
        stored = [opened.load_run(run.id) for run in opened.list_runs()]
    for run in stored:
        found = analyse_run(run.plan, run.trials, run.unusable)
        assert all(export_run(run, form, found) for form in Format)
    assert guestmark("exec", "-q", "-r", "1", "--ledger", old, "--", "true").status == 0
    with open_ledger(old) as opened:
        assert opened.check_all().problems == ()
        kept = [opened.load_run(run.id) for run in opened.list_runs()]
    assert [run.trials for run in kept[: len(stored)]] == [run.trials for run in stored]
    assert len(kept) == len(stored) + 1


def test_what_0_3_found_out_is_read(tmp_path: Path) -> None:
    with open_ledger(recorded.ledger(tmp_path, "0_3"), writable=False) as opened:
        command, failed, plan, proven = (opened.load_run(run.id) for run in opened.list_runs())
    assert [trial.cause for trial in command.trials] == [None, None]
    assert [trial.cause for trial in failed.trials] == [Cause.STATUS, Cause.STATUS]
    assert {cell.id for cell in plan.plan.cells} >= {"short host", "short uml", "fill uml"}
    fills = [trial for trial in (*plan.trials, *proven.trials) if trial.cell_id.startswith("fill uml")]
    assert {known(trial.facts.find_fact(Flushes)).durability_word for trial in fills} == {Durability.LOST}
