"""The README's pictures show what the program prints of a run that was really made."""

import re
from pathlib import Path
from xml.etree import ElementTree

from guestmark.core.model import TrialStatus
from tools import pictures

CHECKOUT = Path(__file__).parents[3]


def test_the_pictures_are_what_the_program_draws_today() -> None:
    run = pictures.load_kept_run()
    assert pictures.draw_terminal(run) == pictures.TERMINAL.read_text(), (
        "python -m tools.pictures draws it anew"
    )
    assert pictures.draw_chart(run) == pictures.CHART.read_text(), "python -m tools.pictures draws it anew"


def test_the_run_was_made_and_names_nobody() -> None:
    run = pictures.load_kept_run()
    assert len({trial.block for trial in run.trials if trial.status is TrialStatus.OK}) >= 6
    assert {str(cell.platform) for cell in run.plan.cells} == {"host", "uml", "tcg"}
    assert all(not trial.command_line for trial in run.trials)
    screen = pictures.render_screen(run)
    assert len(screen.splitlines()) <= 14
    assert "times slower" in screen


def test_the_pictures_load_nothing_and_hold_the_figures() -> None:
    for file in (pictures.TERMINAL, pictures.CHART):
        text = file.read_text()
        assert not re.search(r"(href|src|url)\W+(https?:)?//", text)
        shown = "".join(ElementTree.fromstring(text).itertext()).replace("\xa0", " ")
        assert "tcg" in shown
        assert "uml" in shown


def test_the_readme_is_short_and_shows_both() -> None:
    text = (CHECKOUT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    for file in (pictures.TERMINAL, pictures.CHART):
        assert str(file.relative_to(CHECKOUT)) in text
