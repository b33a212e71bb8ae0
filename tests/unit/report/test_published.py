"""Then and now: published figures find their cells, and percentages mean what they say."""

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from guestmark.core.metric import Better
from guestmark.core.model import Cell, Published, PublishedFigure, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.units import check_unit, compute_unit_size
from guestmark.ledger.model import StoredRun
from guestmark.page.figures import format_change
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.stats.analysis import analyse_run
from guestmark.stats.published import convert_ratio, find_figure
from tests.framework import made_facts
from tests.framework.runs import constructed, print_report

UPLOAD = WorkloadSpec("upload", {}, "upload from the host", "upload")
DD = WorkloadSpec("dd", {}, "dd from a disk", "dd")


def cell(workload: WorkloadSpec, platform: str, level: str, baseline: bool = False) -> Cell:
    levels = {"preallocation": level, "smp": "1"}
    name = f"{workload.key} {platform} preallocation={level}"
    return Cell(name, workload, PlatformSpec.read(platform), levels, baseline, group=platform)


CELLS = [
    (cell(UPLOAD, "tcg", "off", True), 1.0),
    (cell(UPLOAD, "tcg", "full"), 1.1),
    (cell(DD, "tcg", "full"), 0.5),
    (cell(UPLOAD, "kvm", "off", True), None),
    (cell(DD, "kvm", "full"), None),
]
FIGURES = (
    PublishedFigure({"workload": "upload", "preallocation": "off"}, 8.0, 8.0),
    PublishedFigure({"workload": "upload"}, 99.0, 8.0),
    PublishedFigure({"workload": "dd", "preallocation": "full"}, 7.5, 8.0),
    PublishedFigure({"workload": "dd", "platform": "uml"}, 138.0, 8.0),
)


def run_with(
    cells: Sequence[tuple[Cell, float | None]] = CELLS,
    figures: Iterable[PublishedFigure] = FIGURES,
    **changes: Any,
) -> StoredRun:
    run = constructed(cells, blocks=8)
    given_ = {"source": "Someone, 2012", "metric": "wall_s", "unit": "s", "percent_of": "time", **changes}
    plan = replace(run.plan, published=(Published(figures=tuple(figures), **given_),))
    return replace(run, plan=replace(plan, context=replace(plan.context, scale=0.05)))


def page(run: StoredRun) -> str:
    return export_run(run, Format.HTML).decode()


def cells_of(text: str, *names: str) -> list[str]:
    """The texts of the row of a page's table that is called so: its names, then its cells."""
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", text, re.DOTALL):
        found = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        texts = [re.sub(r"<[^>]+>", "", cell).strip() for cell in found]
        if texts[: len(names)] == list(names):
            return texts
    raise AssertionError(names)


def printed(run: StoredRun, width: int = 120, published: bool = True) -> str:
    out = io.StringIO()
    print_report(run, Console(file=out, width=width), published=published)
    return out.getvalue()


def row(text: str, *words: str) -> str:
    """The row, in the table of then and now, that holds all the words."""
    table = text[text.index("Then and now") :]
    return next(line for line in table.splitlines() if all(word in line for word in words))


def test_the_figure_that_names_most_is_the_one() -> None:
    run = run_with()
    results = {result.cell.id: result for result in analyse_run(run.plan, run.trials).cells}
    (published,) = run.plan.published
    found = {name: find_figure(result.cell, published) for name, result in results.items()}
    assert [figure and figure.value for figure in found.values()] == [8.0, 99.0, 7.5, 8.0, 7.5]


def test_both_are_shown_with_their_own_baselines() -> None:
    text = printed(run_with())
    assert row(text, "dd from a disk").split()[-6:] == ["−50", "%", "7.5", "×0.94", "−6.2", "%"]
    base = row(text, "upload from the host", "off").split()
    assert base[-7:] == ["×1.00", "0", "%", "8", "×1.00", "0", "%"]
    assert "Someone, 2012" in text
    assert "+6 % takes 6 % longer" in text
    said = " ".join(text.split())
    assert "this run is at scale 0.05, the published one at full size: compare ratios, not seconds" in said
    assert "×base: wall_s relative to the baseline; then: to the publication's own" in said
    assert "Then and now" not in printed(run_with(), published=False)


def test_percentages_of_throughput_are_the_other_way_round() -> None:
    text = printed(run_with(percent_of="throughput"))
    assert row(text, "dd from a disk").split()[-4:] == ["7.5", "×0.94", "+6.7", "%"]
    assert row(text, "dd from a disk").split()[-6].startswith("+")  # half the time is twice the throughput
    assert "moves 6 % more" in text


def test_published_figures_that_were_not_measured_are_named() -> None:
    text = printed(run_with())
    assert "not measured in this run" in text
    assert "workload=dd platform=uml: 138 s" in text
    assert "upload: 99" not in text.replace("workload=", "")  # it is about a measured cell


def test_markdown_has_both_for_every_plan_with_published_figures() -> None:
    text = export_run(run_with(), Format.MARKDOWN).decode()
    assert "Then and now: wall, s" in text
    table = text[text.index("Then and now") :]
    line = next(line for line in table.splitlines() if "dd from a disk" in line and "full" in line)
    assert [part.strip() for part in line.strip("|").split("|")][-3:] == ["7.5", "×0.94", "−6.2 %"]
    assert "Someone, 2012" in text
    assert "Then" not in export_run(constructed(CELLS, blocks=3), Format.MARKDOWN).decode()


def test_a_page_has_both_and_lets_nothing_become_markup() -> None:
    text = page(run_with(source="<b>2013</b>", conditions="a & b"))
    assert "<h3>Then and now: wall, s</h3>" in text
    cells = cells_of(text[text.index("<h3>Then and now") :], "dd from a disk", "full")[2:]
    assert cells[1:3] == ["×0.50", "−50 %"]
    assert cells[3:] == ["7.5", "×0.94", "−6.2 %"]
    assert "then: &lt;b&gt;2013&lt;/b&gt;" in text
    assert "a &amp; b" in text
    assert "<b>" not in text


def test_another_baseline_is_said() -> None:
    assert "the baselines differ" not in printed(run_with(baseline={"workload": "upload"}))
    text = printed(run_with(baseline={"platform": "kvm"}))
    assert "the baselines differ, now upload tcg preallocation=off, then platform=kvm" in text


def test_cells_that_could_not_be_measured_still_show_what_was_published() -> None:
    text = printed(run_with())
    assert "unusable" in row(text[text.index("Then and now") + 1 :], "unusable")


def test_a_figure_that_was_published_without_a_baseline_has_no_ratio() -> None:
    alone = PublishedFigure({"workload": "dd", "preallocation": "full"}, 7.5)
    assert row(printed(run_with(figures=[*FIGURES[:2], alone])), "dd from a disk").split()[-3:] == [
        "7.5",
        "–",
        "–",
    ]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_numbers_are_never_cut(width: int) -> None:
    text = printed(run_with(), width)
    assert "×0.94" in row(text, "7.5")
    assert all(cell_len(line) <= width for line in text.splitlines())


def test_what_varies_has_columns_and_what_does_not_is_said_once() -> None:
    text = printed(run_with(), published=False)
    head = next(line for line in text.splitlines() if line.startswith("workload "))
    assert "preallocation" in head
    assert "platform" not in head  # the table is that of one platform
    assert "smp" not in head
    assert "everywhere: smp=1" in text


def test_many_long_names_become_numbers_that_a_table_explains() -> None:
    cells = [
        (
            Cell(
                f"{level} {fs}",
                UPLOAD if fs == "ext2" else DD,
                PlatformSpec.read("tcg"),
                {
                    "preallocation": level,
                    "filesystem": fs,
                    "mount": "data=journal" if fs == "ext4" else "defaults",
                },
                level == "off" and fs == "ext2",
                group="tcg",
            ),
            1.0 + number / 10,
        )
        for number, (level, fs) in enumerate(
            (preallocation, fs) for preallocation in ("off", "full") for fs in ("ext2", "ext3", "ext4")
        )
    ]
    text = printed(run_with(cells), 80, published=False)
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    lines = text.splitlines()
    key = next(line for line in lines if line.startswith("6 "))
    assert key.split() == ["6", "dd", "from", "a", "disk", "full", "ext4", "data=journal"]
    numbered = [line for line in lines if line.startswith("6 ")]
    assert "slower" in numbered[1]
    assert "█" in numbered[2]  # the plot
    assert "dd full ext4 data=journal" in numbered[2]
    wide = printed(run_with(cells), 200, published=False)
    assert "#" not in wide
    assert "data=journal" in wide


def test_short_names_tell_levels_that_the_baseline_does_not_have() -> None:
    def filesystem(platform: str, kind: str, baseline: bool = False) -> Cell:
        levels = {"filesystem": kind, "block_size": "1M"} if kind else {}
        name = f"dd {platform} {kind}"
        return Cell(
            name,
            DD,
            PlatformSpec.read(platform),
            levels,
            baseline,
            group="a file copied with dd from a second disk",
        )

    cells = [(filesystem("host", "", True), 1.0)]
    cells += [(filesystem("tcg", kind), 2.0) for kind in ("ext2", "ext3", "btrfs")]
    lines = printed(run_with(cells), width=60, published=False).splitlines()
    bars = lines[lines.index(next(line for line in lines if line.startswith("4  tcg btrfs"))) - 3 :]
    assert [line[3:13].strip() for line in bars[:4]] == ["host", "tcg ext2", "tcg ext3", "tcg btrfs"]


def test_durability_stands_beside_speed() -> None:
    run = run_with()
    verdicts = {"upload tcg preallocation=off": "yes", "upload tcg preallocation=full": "no"}
    trials = tuple(
        replace(trial, facts=made_facts.of(made_facts.flushes(verdicts[trial.cell_id])))
        if trial.cell_id in verdicts
        else trial
        for trial in run.trials
    )
    run = replace(run, trials=trials)
    text = printed(run, published=False)
    lines = [line for line in text.splitlines() if "upload from the host" in line]
    assert " claimed " in lines[0]
    assert " lost " in lines[1]
    assert "durability of what the row itself flushed" in text
    html = page(run)
    assert "claimed" in cells_of(html, "upload from the host", "off")
    assert "lost" in cells_of(html, "upload from the host", "full")
    markdown = export_run(run, Format.MARKDOWN).decode().splitlines()
    assert any(line.startswith("| upload from the host | full |") and "| lost |" in line for line in markdown)
    assert "durability" not in page(run_with())


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "0 %"),
        (1.0625, "+6.2 %"),
        (0.5, "−50 %"),
        (17.25, "+1625 %"),
        (1.0001, "0 %"),
        (1.004, "+0.4 %"),
        (0.9999, "0 %"),
        (1.099, "+9.9 %"),
        (400.0, "+39 900 %"),
        (0.0031, "−99.7 %"),
        (0.01, "−99 %"),
        (0.0, "−100 %"),
        (1.104, "+10 %"),
    ],
)
def test_signed_percent(ratio: float, text: str) -> None:
    assert format_change(ratio) == text


@given(st.floats(0.01, 100))
def test_time_and_throughput_are_each_others_inverse(ratio: float) -> None:
    for better in Better:
        time = convert_ratio(ratio, "time", better)
        assert time * convert_ratio(ratio, "throughput", better) == pytest.approx(1)
    assert convert_ratio(ratio, "time", Better.LOWER) == ratio
    assert convert_ratio(ratio, "throughput", Better.HIGHER) == ratio


def test_units() -> None:
    from guestmark.core.errors import UsageError

    assert compute_unit_size("MB/s", "B/s") == 1e6
    assert compute_unit_size("MB/s", "MB/s") == 1
    with pytest.raises(UsageError, match="unknown unit"):
        check_unit("MB/s", "s")
