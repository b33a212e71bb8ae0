"""The last screen of a tour: honest words for few rounds, and only commands that exist."""

import io
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from guestmark.cli.verbs import VERBS
from guestmark.core.metric import Better, Measurement, Metric
from guestmark.core.model import Cell, Plan, Policy, RunState, Trial, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.ledger.model import StoredRun
from guestmark.plan import library
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.report.render.terminal import print_page
from guestmark.report.sections.tour import DEEPER, PlatformFinding, describe_cost, make_page, suggest_commands
from guestmark.stats.analysis import analyse_run
from guestmark.stats.cost import Cost
from tests.framework.known import known
from tests.framework.runs import host_uml_tcg

TIME = Metric("wall_s", "s")
RATE = Metric("throughput", "B/s", Better.HIGHER)
FINDINGS = (
    PlatformFinding("host", usable=True),
    PlatformFinding(
        "kvm", usable=False, reason="/dev/kvm opens but no guest starts", hint="guestmark doctor tells more"
    ),
    PlatformFinding("uml", usable=True, ready_s=1.2),
    PlatformFinding("tcg", usable=True, ready_s=3.4),
)
WORKLOADS = {"cpu": TIME, "disk": RATE, "boot": TIME, "upload": RATE}


def toured(
    values: Mapping[tuple[str, str], Sequence[float]],
    *,
    blocks: int = 3,
    state: RunState = RunState.COMPLETE,
    failing: Iterable[tuple[str, str]] = (),
) -> StoredRun:
    """A run of the workloads named in `values`: by (workload, platform) one figure for each block."""
    cells: list[Cell] = []
    trials: list[Trial] = []
    for position, (key, platform) in enumerate(values):
        spec = WorkloadSpec("exec", {}, {"cpu": "computing", "disk": "writing a file"}.get(key, key), key)
        first = not any(cell.workload.key == key for cell in cells)
        cells.append(
            Cell(f"{key} {platform}", spec, PlatformSpec.read(platform), baseline=first, group=spec.label)
        )
        for block in range(blocks):
            good = (key, platform) not in failing
            measured = (Measurement(WORKLOADS[key], values[key, platform][block], ()),) if good else ()
            status = TrialStatus.OK if good else TrialStatus.FAILED
            trials.append(
                Trial(f"{key} {platform}", block, position, status, "" if good else "no answer", measured)
            )
    plan = Plan("tour", tuple(cells), Policy(blocks=3), (TIME,))
    return StoredRun("20261122-aaaa", plan, ({},), 1, state, 1.8e9, tuple(trials))


VALUES = {
    ("cpu", "host"): (1.0, 1.01, 0.99),
    ("cpu", "uml"): (1.02, 1.03, 1.0),
    ("cpu", "tcg"): (11.0, 11.2, 10.9),
    ("disk", "host"): (8e8, 8.1e8, 7.9e8),
    ("disk", "uml"): (2e8, 9e8, 4e8),
    ("disk", "tcg"): (1e8, 1.02e8, 0.98e8),
    ("boot", "uml"): (1.21, 1.22, 1.23),
    ("boot", "tcg"): (3.4, 3.5, 3.3),
}


def shown(run: StoredRun, width: int = 80, findings: Sequence[PlatformFinding] = FINDINGS) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    print_page(make_page(run, findings), console)
    return out.getvalue()


def test_the_screen_says_what_was_measured_and_no_more() -> None:
    text = shown(toured(VALUES))
    rows = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "1 s" in rows["computing"]
    assert "about the same" in rows["computing"]
    assert "11 times slower" in rows["computing"]
    assert "800 MB/s" in rows["writing a file"]
    assert "unclear" in rows["writing a file"]
    assert "8 times slower" in rows["writing a file"]
    # The host starts no guest; what guests take stands there as it is.
    assert "–" in rows["boot"]
    assert "1.2 s" in rows["boot"]
    assert "3.4 s" in rows["boot"]
    assert "/dev/kvm opens but no guest starts" in text
    assert "more: guestmark doctor" in text
    assert "3 rounds" in text
    assert "tcg: least writing a file (8 times slower), most computing (11 times slower)" in text
    assert "uml: least" not in text  # of two costs one is unclear: nothing is least or most


@pytest.mark.parametrize("width", [80, 100])
def test_it_is_one_screen(width: int) -> None:
    text = shown(toured(VALUES), width)
    assert all(cell_len(line) <= width for line in text.splitlines())
    assert len(text.splitlines()) <= 24
    assert text.splitlines()[-1].endswith("Run 20261122-aaaa.")
    where = text.index("What virtualization costs here")
    assert all(text.index(said) < where for said in ("works here", "guestmark exec --on"))


def test_one_round_is_a_first_impression() -> None:
    text = shown(toured(VALUES, blocks=1))
    assert "11 times slower ?" in text
    assert "a first impression" in text
    assert "In tcg" not in text


def test_an_interrupted_tour_says_how_to_go_on() -> None:
    run = toured(VALUES, blocks=2, state=RunState.INTERRUPTED)
    text = shown(run)
    assert "interrupted" in text
    assert (
        suggest_commands(run, analyse_run(run.plan, run.trials), FINDINGS)[0][0]
        == "guestmark resume 20261122-aaaa"
    )


def test_failed_cells_are_said_with_their_reason() -> None:
    text = shown(toured(VALUES, failing={("cpu", "uml")}))
    assert "failed" in text
    assert "computing, uml: 3 of 3 trials failed: no answer" in " ".join(text.split())


@pytest.mark.parametrize(
    ("ratio", "interval", "said"),
    [
        (1.02, (1.01, 1.03), "about the same"),
        (1.3, (1.25, 1.36), "1.3 times slower"),
        (0.5, (0.48, 0.52), "2 times faster"),
        (11.04, (10.1, 12.0), "11 times slower"),
        (234.0, (220.0, 250.0), "230 times slower"),
        (12345.0, (12000.0, 12700.0), "12 300 times slower"),
        (6.0, (3.0, 12.0), "3 to 12 times slower"),
        (0.25, (0.1, 0.6), "1.7 to 10 times faster"),
        (1.5, (0.4, 5.6), "unclear (×0.4 to ×5.6)"),
        (1.5, (0.002, 5.6), "unclear"),
        (1.5, (0.4, 206_000.0), "unclear"),
        (1.05, (0.9, 1.2), "about the same"),
        (9.97, (9.9, 10.1), "10 times slower"),
    ],
)
def test_words_for_ratios(ratio: float, interval: tuple[float, float], said: str) -> None:
    assert describe_cost(Cost(ratio, interval)) == said


@pytest.mark.parametrize("spread", [1.5, 3.0, 10.0, 100.0])
@pytest.mark.parametrize("middle", [0.07, 0.5, 1.0, 2.0, 31.0])
def test_the_longest_row_name_keeps_its_end_beside_two_guests(middle: float, spread: float) -> None:
    """On a busy machine the rounds scatter, which makes the words for a ratio longest."""
    name = "sending a file in"
    figures = {
        ("disk", "host"): (8e8, 8.1e8, 7.9e8),
        ("disk", "uml"): (8e8 / middle, 8e8 / middle / spread, 8e8 / middle * spread),
        ("disk", "tcg"): (8e8 / middle, 8e8 / middle / spread, 8e8 / middle * spread),
    }
    run = toured(figures)
    workload = replace(run.plan.cells[0].workload, label=name)
    cells = tuple(replace(cell, workload=workload, group=name) for cell in run.plan.cells)
    text = shown(replace(run, plan=replace(run.plan, cells=cells)))
    assert any(line.startswith(f"{name}  ") for line in text.splitlines()), text


def test_every_command_on_the_screen_exists() -> None:
    run = toured(VALUES)
    commands = suggest_commands(run, analyse_run(run.plan, run.trials), FINDINGS)
    assert len(commands) >= 3
    for command, _ in commands:
        words = shlex.split(command)
        assert words[0] == "guestmark"
        assert words[1] in VERBS
        if words[1] == "run":
            assert words[2] in library.list_plan_names()
            assert "kvm" not in command
    assert {plan for plan, _ in DEEPER.values()} <= set(library.list_plan_names())
    from guestmark.plan.load import load_outline

    assert set(DEEPER) == {
        entry.workload.key for entry in load_outline(*library.find_plan("tour")).shape.entries
    }


@pytest.mark.parametrize("form", [Format.HTML, Format.MARKDOWN, Format.JSON])
def test_files_begin_with_what_the_screen_says(form: Format) -> None:
    run = toured(VALUES)
    text = export_run(run, form, first=make_page(run, FINDINGS).sections).decode()
    beginning = text.partition("block by block")[0]
    for phrase in ("What virtualization costs here", "11 times slower", "/dev/kvm opens but no guest starts"):
        assert phrase in (text if form is Format.JSON else beginning)
    assert f"guestmark show {run.id}" in re.sub(r'<span class="word">|</span>', "", text)


def test_an_interval_that_reaches_0_bounds_no_cost() -> None:
    run = host_uml_tcg()
    comparison = next(
        known(result.answers).typical for result in analyse_run(run.plan, run.trials).cells if result.answers
    )
    for better in Better:
        cost = known(Cost.from_comparison(replace(comparison, ci=(0.0, 3.0)), Metric("x", "s", better)))
        assert describe_cost(cost).endswith("?")
