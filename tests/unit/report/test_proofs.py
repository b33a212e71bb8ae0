"""Power cuts of `--prove` in the report of the workload whose disks they were about."""

import io
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from guestmark.core.findings import Control, Durability, Flushes, Proof, Proven, SecondLog, add_fact
from guestmark.core.model import WorkloadSpec
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Part
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.report.full_report import make_page
from guestmark.report.render.terminal import print_page
from guestmark.report.short_report import make_short_report
from guestmark.stats.analysis import analyse_run
from guestmark.stats.durability import describe_disk_durability, describe_row_durability
from tests.framework.runs import host_uml_tcg

LOST = Proven(
    word=Durability.LOST, why="this host's kernel saw 0 flushes", method="append", acknowledged=100, states=300,
    losing=238, repaired=54, controls=[Control(name="no-flush", states=24, losing=18)], below=[], writes=1, flushes=0,
    run_s=1.0, judge_s=1.0, first_loss="record 0 after cut 14 (torn sectors of 512 bytes survive)",
    kept="/logs/20261123-a",
)  # fmt: skip
SAFE = Proven(
    word=Durability.PROVEN, why="no crash state loses an acknowledged record", method="append", acknowledged=100,
    states=300, losing=0, repaired=0, controls=[Control(name="no-flush", states=24, losing=0)], below=[], writes=1,
    flushes=1, run_s=1.0, judge_s=1.0,
)  # fmt: skip


def proved(**proofs: Proven) -> StoredRun:
    """A run of which some platforms' disks were proven or not."""
    run = host_uml_tcg(blocks=2)
    trials = [
        replace(trial, facts=add_fact(trial.facts, Proof(proven=proofs[trial.cell_id])))
        if trial.cell_id in proofs
        else trial
        for trial in run.trials
    ]
    return replace(run, trials=tuple(trials))


@pytest.mark.parametrize("form", [Format.JSON, Format.MARKDOWN, Format.HTML], ids=str)
def test_what_was_lost_is_told_with_the_command_that_looks_into_it(form: Format) -> None:
    text = export_run(proved(uml=LOST, tcg=SAFE), form).decode()
    assert "238 of 300" in text
    assert (
        "record 0 after cut 14 (torn sectors of 512 bytes survive); 238 of 300 crash states lose some of 100"
        in text
    )
    assert "to inspect it: guestmark powercut replay 20261123-a" in text
    assert "missed: no-flush" in text  # a control that was not caught


def test_cells_with_one_proof_share_a_row() -> None:
    text = export_run(proved(uml=LOST, tcg=LOST), Format.MARKDOWN).decode()
    assert "uml and 1 more" in text
    assert text.count("238 of 300 crash states lose") == 1


def test_without_a_proof_there_is_no_table() -> None:
    assert "What a power cut leaves" not in export_run(host_uml_tcg(blocks=2), Format.MARKDOWN).decode()


def flushing(word: Durability) -> Flushes:
    """What a trial found out about its own flushes."""
    return Flushes(reached="yes", why="seen", in_memory=False, durability=str(word))


@pytest.mark.parametrize(
    ("flushes", "disk", "word"),
    [
        (Durability.NOTHING, SAFE, Durability.NOTHING),
        (Durability.CLAIMED, SAFE, Durability.CLAIMED),
        (Durability.REACHED, SAFE, Durability.REACHED),
        (Durability.REACHED, LOST, Durability.LOST),  # what was flushed is lost with the disk
        (Durability.NOTHING, LOST, Durability.NOTHING),
        (None, SAFE, Durability.UNKNOWN),  # `true`, or a command that was not watched
        (None, LOST, Durability.UNKNOWN),
    ],
)
def test_what_is_proven_of_a_disk_is_not_proven_of_the_row(
    flushes: Durability | None, disk: Proven, word: Durability
) -> None:
    run = proved(uml=disk)
    if flushes is not None:
        trials = tuple(replace(trial, facts=add_fact(trial.facts, flushing(flushes))) for trial in run.trials)
        run = replace(run, trials=trials)
    result = next(cell for cell in analyse_run(run.plan, run.trials).cells if cell.cell.id == "uml")
    assert (describe_row_durability(result), describe_disk_durability(result)) == (str(word), str(disk.word))


def test_what_is_proven_of_the_row_stands_in_the_row() -> None:
    run = proved(uml=msgspec.structs.replace(SAFE, of_row=True))
    result = next(cell for cell in analyse_run(run.plan, run.trials).cells if cell.cell.id == "uml")
    assert (describe_row_durability(result), describe_disk_durability(result)) == ("proven", "")


def test_the_table_tells_a_row_from_its_disk() -> None:
    text = export_run(proved(uml=SAFE), Format.MARKDOWN).decode()
    assert "its disk" in text
    assert "| unknown" in text


def test_a_power_cut_ends_in_what_it_comes_to() -> None:
    """A sentence for each cell, then the command; how it was found out is small print, and not on the screen."""
    cut = WorkloadSpec("powercut", {}, "power cut: append, fsync")
    again = SecondLog(word="lost", states=300, losing=230, why="")
    lost = msgspec.structs.replace(LOST, asked=202, again=again)
    unknown = msgspec.structs.replace(SAFE, word=Durability.UNKNOWN, why="the log ends too early")
    run = proved(host=SAFE, uml=lost, tcg=unknown)
    cells = tuple(replace(each, workload=cut) for each in run.plan.cells)
    run = replace(run, plan=replace(run.plan, cells=cells))
    analysis = analyse_run(run.plan, run.trials, run.unusable)
    console = Console(width=200, file=io.StringIO())
    print_page(make_short_report(run, analysis, width=200, latest=True), console)
    screen = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    at = screen.index("host: proven, none of 300 crash states loses any of 100 acknowledged records")
    assert screen[at + 1 : at + 4] == [
        "uml: lost, 238 of 300 crash states lose some of 100 acknowledged records; 230 of 300 in a second log; "
        "of 202 requested flushes, this host saw none",
        "tcg: unknown, the log ends too early",
        "Inspect the loss: guestmark powercut replay 20261123-a",
    ]
    assert not any("controls: no-flush" in each for each in screen)
    (conclusion,) = (each for each in make_page(run, analysis).sections if each.part is Part.CONCLUSION)
    assert len(conclusion.nodes) == 4
