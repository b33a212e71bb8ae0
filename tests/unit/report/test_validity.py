"""A severe finding is seen in every format: the verdict is taken back, with the reason and what to do."""

import csv
import io
import json
from dataclasses import replace

from guestmark.core.metric import Measurement
from guestmark.ledger.model import StoredRun
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.report.long_form import list_column_names
from guestmark.report.sections.validity import make_notes
from guestmark.stats.analysis import analyse_run
from tests.framework.runs import host_uml_tcg
from tests.unit.page.test_terminal import printed

REASON = "tcg: the guest's clock is off by -50"
ADVICE = "Give the guest another clock source"


def half_speed() -> StoredRun:
    """The clock of tcg goes at half the speed of the host's."""
    run = host_uml_tcg()

    def halved(measurement: Measurement) -> Measurement:
        if measurement.metric.name != "guest_wall_s":
            return measurement
        (value,) = measurement.iterations
        return replace(measurement, value=value / 2, iterations=(value / 2,))

    trials = tuple(
        replace(trial, measurements=tuple(map(halved, trial.measurements)))
        if trial.cell_id == "tcg"
        else trial
        for trial in run.trials
    )
    return replace(run, trials=trials)


def test_the_terminal_says_why_and_what_to_do() -> None:
    shown = printed(half_speed(), 120)
    assert "inconclusive (clocks disagree)" in shown
    assert "Inconclusive: tcg – clocks disagree" in shown
    assert f"Severe: {REASON}" in shown
    assert ADVICE in shown
    assert "times faster than tcg" not in shown
    assert "times faster than uml" in shown


def test_pages_say_why_and_what_to_do() -> None:
    for form in (Format.MARKDOWN, Format.HTML):
        text = export_run(half_speed(), form).decode().replace("&#39;", "'")
        assert "What limits these figures" in text
        assert REASON in text
        assert ADVICE in text


def test_the_document_says_why_and_what_to_do() -> None:
    document = json.loads(export_run(half_speed(), Format.JSON))
    (severe,) = [finding for finding in document["validity"] if finding["severity"] == "severe"]
    assert severe["name"] == "clocks disagree"
    assert severe["reason"].startswith(REASON)
    assert severe["advice"]
    assert severe["inconclusive"] == ["tcg"]
    by_id = {cell["id"]: cell for cell in document["cells"]}
    assert by_id["tcg"]["vs_baseline"]["wall_s"]["verdict"] == "inconclusive"
    assert by_id["tcg"]["vs_baseline"]["wall_s"]["reason"] == "clocks disagree"
    assert by_id["uml"]["vs_baseline"]["wall_s"]["verdict"] == "slower"


def test_raw_figures_hold_the_verdict_and_what_takes_it_back() -> None:
    run = half_speed()
    assert {"verdict", "doubts"} <= set(list_column_names(run))
    rows = list(csv.DictReader(io.StringIO(export_run(run, Format.CSV).decode())))
    found = {row["cell"]: (row["verdict"], row["doubts"]) for row in rows if row["metric"] == "wall_s"}
    assert found["host"] == ("", "")
    assert found["uml"] == ("slower", "")
    assert found["tcg"] == ("inconclusive", "clocks disagree")


def test_the_severe_come_first_and_notes_are_short_where_room_is() -> None:
    run = half_speed()
    analysis = analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)

    def said(*, whole: bool) -> list[str]:
        return ["".join(span.text for span in node.text) for node in make_notes(analysis, whole=whole)]

    brief, full = said(whole=False), said(whole=True)
    assert [text.partition(":")[0] for text in full] == ["Severe", "Note", "Note"]
    assert brief[0] == full[0]
    assert all(len(short) < len(long) for short, long in zip(brief[1:], full[1:], strict=True))
