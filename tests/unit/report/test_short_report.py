"""What stands on the screen first: short, with the figures of the whole report, and never wider than the screen."""

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from guestmark.core.model import Cell
from guestmark.core.platform_spec import PlatformSpec
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Note, NoteKind
from guestmark.page.tables import Table
from guestmark.page.text import Span, Tone, spans
from guestmark.report.full_report import make_page
from guestmark.report.render.terminal import print_page
from guestmark.report.sections import validity
from guestmark.report.short_report import make_short_report
from guestmark.stats.analysis import Analysis, analyse_run
from tests.framework.command_line import CommandLine
from tests.framework.run_kinds import RUNS, analysed, run_of
from tests.framework.runs import EXEC, constructed

EXPLAINED = {
    "starts": "Phases of start and end",
    "calls": "For each call",
    "netboot": "Slow side (more than half",
}
ONE_TABLE = [name for name in RUNS if name not in {"disks", "nothing", *EXPLAINED}]
FIGURES = re.compile(r"\d+(?:\.\d+)? ± \d+(?:\.\d+)?|\[[^\]]+\]")


def printed(run: StoredRun, width: int, *, whole: bool = False, found: Analysis | None = None) -> str:
    analysis = found or analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)
    made = make_page(run, analysis) if whole else make_short_report(run, analysis, width=width, latest=True)
    out = io.StringIO()
    print_page(made, Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("name", ONE_TABLE)
def test_a_command_is_answered_in_about_ten_lines(name: str) -> None:
    run = RUNS[name]()
    rows = len([cell for cell in run.plan.cells if cell.null_of is None])
    lines = printed(run, 80).splitlines()
    assert len(lines) <= rows + 10
    if not run.unusable and len(run.plan.cells) <= 3:
        assert len(lines) <= 10
    assert all(cell_len(line) <= 80 for line in lines)


@pytest.mark.parametrize(("name", "why"), EXPLAINED.items())
def test_a_workload_that_explains_its_figures_does_so_in_the_answer(name: str, why: str) -> None:
    shown = printed(RUNS[name](), 80)
    assert why in shown
    assert all(cell_len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize("name", list(RUNS))
@pytest.mark.parametrize("width", [60, 80, 110, 140])
def test_the_figures_are_those_of_the_report(name: str, width: int) -> None:
    run, found = run_of(name), analysed(name)
    whole = re.sub(r"\s+", " ", printed(run, 400, whole=True, found=found))
    for figure in FIGURES.findall(re.sub(r" +", " ", printed(run, width, found=found))):
        if figure.startswith("[") and figure not in whole:  # turned round, so that the ratio is above 1
            low, high = (float(end.strip("<>")) for end in figure.strip("[]").split(", "))
            ends = re.findall(r"\[<?([\d.]+), >?([\d.]+)\]", whole)
            assert any(
                abs(1 / low / float(b) - 1) < 0.01 and abs(1 / high / float(a) - 1) < 0.01 for a, b in ends
            )
        else:
            assert figure in whole


def test_what_is_unclear_says_why() -> None:
    said = printed(RUNS["few"](), 80)
    assert "Inconclusive: " in said
    assert "Continue: guestmark resume" in said
    assert "Severe: " in printed(RUNS["refused"](), 80)


def test_the_verdict_stays_on_the_screen(tmp_path: Path) -> None:
    """On a terminal of 80 columns and 24 lines, with the prompt below it."""
    line = CommandLine(tmp_path)
    done = line("exec", "--quiet", "--blocks", "6", "--", "true", "---", "sleep", "0.02")
    assert done.status == 0, done.stderr
    shown = done.stdout.splitlines()
    assert len(shown) <= 10
    assert any(re.search("times slower|inconclusive", text) for text in shown)
    assert shown[-1].endswith("guestmark show --details")
    assert len(line("show", "--details").stdout.splitlines()) > 20


def test_a_long_report_goes_through_a_pager_but_not_after_a_measurement(tmp_path: Path) -> None:
    """Only on a terminal; `script` gives one."""
    line = CommandLine(tmp_path)
    environment = {**line.environment, "GUESTMARK_PAGER": "sed s/^/paged:/", "TERM": "xterm", "COLUMNS": "80"}

    def shown(rows: int, *words: str, **more: str) -> str:
        # LINES, which a caller's shell may have exported, counts for more than the terminal's own size.
        done = subprocess.run(
            ["script", "-qec", shlex.join([sys.executable, "-m", "guestmark", *words]), "/dev/null"],
            env=environment | {"LINES": str(rows)} | more, capture_output=True, text=True, timeout=60,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    for quiet in ((), ("-q",)):
        measured = shown(3, "exec", *quiet, "-r", "3", "--details", "--", "true")
        assert measured.count("\n") > 5
        assert "paged:" not in measured
    assert "paged:" not in shown(3, "resume", "last", "--blocks", "4")
    assert shown(12, "show", "--details").startswith("paged:")
    assert "paged:" not in shown(200, "show", "--details")
    # Ctrl-C is for the pager, which reaches guestmark as well; and a pager that cannot be read is none.
    stopping = "sh -c 'kill -INT $PPID; exec sed s/^/paged:/'"
    assert shown(12, "show", "--details", GUESTMARK_PAGER=stopping).startswith("paged:")
    assert "blocks" in shown(12, "show", "--details", GUESTMARK_PAGER="less '")


@pytest.mark.parametrize("parts", [("one thing; and why", "one thing"), ("one thing. Do that", "one thing")])
def test_what_limits_the_figures_is_said_up_to_its_reason(
    parts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, said = parts
    note = Note(spans(Span("Warning: ", Tone.WARNING), found), NoteKind.WARNING)
    monkeypatch.setattr(validity, "make_notes", lambda *_analysis, **_whole: [note])
    lines = printed(RUNS["plain"](), 80).splitlines()
    assert f"Warning: {said}" in [line.strip() for line in lines]


@pytest.mark.parametrize(("names", "strong"), [(["host"], [False]), (["host", "uml"], [True, False])])
def test_the_baseline_stands_out_where_it_is_not_alone(names: list[str], strong: list[bool]) -> None:
    cells = [
        (Cell(name, EXEC, PlatformSpec.read(name), {}, number == 0), 1.0 + number)
        for number, name in enumerate(names)
    ]
    run = constructed(cells)
    made = make_short_report(run, analyse_run(run.plan, run.trials, run.unusable), width=80, latest=True)
    (table,) = (node for section in made.sections for node in section.nodes if isinstance(node, Table))
    assert [row.strong for row in table.rows] == strong
