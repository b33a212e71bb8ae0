"""Nested over bare, and the published conclusions in words, from runs whose ratios are known."""

import re
from collections.abc import Sequence

import numpy as np
import pytest

from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.page.text import join_plain_text
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.report.sections.backend_conclusions import list_backend_conclusions
from guestmark.report.sections.nested import make_tables
from guestmark.stats.analysis import Analysis, analyse_run
from guestmark.stats.nested import pair_nested_with_bare
from tests.framework.known import known
from tests.framework.runs import constructed

CALLS = WorkloadSpec("syscalls", {}, "system calls")
HALVES = {
    half: WorkloadSpec("upload", {"amount": "1M", "variant": half}, half, key=half)
    for half in ("full", "channel", "disk")
}


def analysed(cells: Sequence[tuple[Cell, float]]) -> Analysis:
    run = constructed(cells)
    return analyse_run(run.plan, run.trials, run.unusable)


def sentences(cells: Sequence[tuple[Cell, float]]) -> list[str]:
    (found,) = list_backend_conclusions(analysed(cells))
    assert join_plain_text(found.lead) == "What this says about the backends"
    return [join_plain_text(item) for item in found.items]


def calls() -> list[tuple[Cell, float]]:
    ratios = {"uml": 2.0, "tcg": 1.0, "tcg/uml": 3.0, "tcg/kvm": 6.0, "tcg/tcg": 12.0}
    return [
        (Cell(name, CALLS, PlatformSpec.read(name), {}, name == "uml"), ratio)
        for name, ratio in ratios.items()
    ]


def test_nested_is_divided_by_bare_within_blocks() -> None:
    found = {str(pair.nested.cell.platform): pair.ratio for pair in pair_nested_with_bare(analysed(calls()))}
    assert found.keys() == {"tcg/uml", "tcg/tcg"}  # bare kvm was not measured
    for platform, truth in {"tcg/uml": 1.5, "tcg/tcg": 12.0}.items():
        ratio = known(found[platform])
        assert ratio.value == pytest.approx(truth, rel=0.02)
        low, high = known(ratio.ci)
        assert low < truth < high
        assert np.log(high / low) < 0.05  # what blocks have in common cancels out


def test_the_table_says_both_and_the_ratio() -> None:
    (found,) = make_tables(analysed(calls()))
    assert found.heading == "Nested over bare"
    rows = {row.name.parts: [cell.text for cell in row.cells] for row in found.rows}
    bare, nested, ratio = rows["system calls", "uml → tcg/uml"]
    assert ratio.startswith("×1.5")
    assert [text.split()[1] for text in (bare, nested)] == ["s", "s"]
    assert make_tables(analysed([cell for cell in calls() if "/" not in cell[0].id])) == []


def test_pages_and_markdown_have_it_as_a_table_and_the_conclusions_below() -> None:
    run = constructed(calls())
    page, markdown = (export_run(run, form).decode() for form in (Format.HTML, Format.MARKDOWN))
    row = re.search(r"<th scope=\"row\">uml → tcg/uml</th>(.*?)</tr>", page, re.DOTALL)
    assert row
    assert re.search(r"×1\.5", re.findall(r"<td.*?</td>", row[1], re.DOTALL)[2])
    said = re.search(
        r"<strong>What this says about the backends</strong></p>\s*<ul>(.*?)</ul>", page, re.DOTALL
    )
    assert said
    assert "<li>system calls, bare: " in said[1]
    assert re.search(r"^\| system calls \| uml → tcg/uml \|.*\| ×1\.5", markdown, re.M)
    assert re.search(r"^- system calls, nested: .*Fastest nested: tcg/uml", markdown, re.M)
    bare = constructed([pair for pair in calls() if "/" not in pair[0].id])
    assert "Nested over bare" not in export_run(bare, Format.HTML).decode()


def test_factors_of_the_outer_guest_do_not_part_a_pair() -> None:
    bare = Cell("uml", CALLS, PlatformSpec.read("uml"), {"memory": "1G"}, True)
    nested = Cell("n", CALLS, PlatformSpec.read("tcg/uml"), {"memory": "1G", "outer": "trial"})
    other = Cell("o", CALLS, PlatformSpec.read("tcg/uml"), {"memory": "2G"})
    found = list(pair_nested_with_bare(analysed([(bare, 1.0), (nested, 2.0), (other, 2.0)])))
    assert [pair.nested.cell.id for pair in found] == ["n"]


def test_who_is_faster_bare_and_nested() -> None:
    said = sentences(calls())
    bare = next(line for line in said if ", bare" in line)
    nested = next(line for line in said if ", nested" in line)
    assert "Fastest bare: tcg" in bare
    assert "Fastest nested: tcg/uml" in nested
    assert "the time of tcg/kvm" in nested
    assert "the time of tcg/tcg" in nested


def test_nothing_is_fastest_that_is_not_shown_to_be() -> None:
    """The least mean of equal cells is chance, however many blocks there are."""
    cells = [
        (Cell(name, CALLS, PlatformSpec.read(name), {}, name == "uml"), 1.0) for name in ("uml", "tcg", "kvm")
    ]
    (said,) = sentences(cells)
    assert "uml takes ×" in said
    assert "Fastest" not in said
    halves = [
        (Cell(f"{half} {name}", HALVES[half], PlatformSpec.read(name), {}, name == "uml"), ratio)
        for name in ("uml", "tcg")
        for half, ratio in (("full", 3.0), ("channel", 2.0), ("disk", 1.0))
    ]
    assert not any("Quickest" in line for line in sentences(halves))


def test_an_upload_is_taken_apart() -> None:
    cells = [
        (Cell(f"{half} {name}", HALVES[half], PlatformSpec.read(name), {}, name == "uml"), ratio * times)
        for name, times in (("uml", 10.0), ("tcg", 1.0))
        for half, ratio in (("full", 3.0), ("channel", 2.0), ("disk", 1.0))
    ]
    said = "\n".join(sentences(cells))
    assert "Upload on uml: the channel takes" in said
    assert "channel over disk ×2.0" in said or "channel over disk ×1.9" in said
    assert "Quickest channel bare: tcg's; uml's takes ×" in said


def test_runs_of_other_things_say_nothing_of_backends() -> None:
    assert (
        list_backend_conclusions(
            analysed([(Cell("host", WorkloadSpec("exec", {"argv": ["x"]}), HOST, {}, True), 1.0)])
        )
        == []
    )
