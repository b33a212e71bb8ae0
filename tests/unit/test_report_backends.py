"""Nested over bare, and the published conclusions in words, from runs whose ratios are known."""

import re

import numpy as np
import pytest
from report_runs import constructed

from guestmark.core.model import Cell, WorkloadSpec
from guestmark.report.backends import backends
from guestmark.report.export_format import Format
from guestmark.report.formats import render
from guestmark.report.nested import nested_over_bare, pairs
from guestmark.stats.analysis import analyse

CALLS = WorkloadSpec("syscalls", {}, "system calls")
HALVES = {
    half: WorkloadSpec("upload", {"variant": half}, half, key=half) for half in ("full", "channel", "disk")
}


def analysed(cells):
    run = constructed(cells)
    return analyse(run.plan, run.trials, run.unusable)


def calls():
    ratios = {"uml": 2.0, "tcg": 1.0, "tcg/uml": 3.0, "tcg/kvm": 6.0, "tcg/tcg": 12.0}
    return [(Cell(name, CALLS, name, {}, name == "uml"), ratio) for name, ratio in ratios.items()]


def test_nested_is_divided_by_bare_within_blocks():
    found = {pair.nested.cell.platform: pair.ratio for pair in pairs(analysed(calls()))}
    assert found.keys() == {"tcg/uml", "tcg/tcg"}  # bare kvm was not measured
    for platform, truth in {"tcg/uml": 1.5, "tcg/tcg": 12.0}.items():
        ratio = found[platform]
        assert ratio.value == pytest.approx(truth, rel=0.02)
        assert ratio.ci[0] < truth < ratio.ci[1]
        assert np.log(ratio.ci[1] / ratio.ci[0]) < 0.05  # what blocks have in common cancels out


def test_the_table_says_both_and_the_ratio():
    text = "\n".join(line.plain for line in nested_over_bare(analysed(calls())))
    assert "uml → tcg/uml" in text
    assert "×1.5" in text
    assert nested_over_bare(analysed([one for one in calls() if "/" not in one[0].id])) == []


def test_pages_and_markdown_have_it_as_a_table_and_the_conclusions_below():
    run = constructed(calls())
    page, markdown = (render(run, form).decode() for form in (Format.HTML, Format.MARKDOWN))
    assert re.search(r"<td>uml → tcg/uml</td>(<td>[^<]*</td>){2}<td>×1\.5", page)
    assert "<strong>What this says of the backends</strong><br>system calls, bare: " in page
    assert re.search(r"^\| system calls \| uml → tcg/uml \|.*\| ×1\.5", markdown, re.M)
    assert re.search(r"^- system calls, nested: .*Fastest nested: tcg/uml", markdown, re.M)
    bare = constructed([one for one in calls() if "/" not in one[0].id])
    assert "Nested over bare" not in render(bare, Format.HTML).decode()


def test_factors_of_the_outer_guest_do_not_part_a_pair():
    bare = Cell("uml", CALLS, "uml", {"memory": "1G"}, True)
    nested = Cell("n", CALLS, "tcg/uml", {"memory": "1G", "outer": "trial"})
    other = Cell("o", CALLS, "tcg/uml", {"memory": "2G"})
    found = list(pairs(analysed([(bare, 1.0), (nested, 2.0), (other, 2.0)])))
    assert [pair.nested.cell.id for pair in found] == ["n"]


def test_who_is_faster_bare_and_nested():
    said = [line.plain for line in backends(analysed(calls()))]
    bare = next(line for line in said if ", bare" in line)
    nested = next(line for line in said if ", nested" in line)
    assert "Fastest bare: tcg" in bare
    assert "Fastest nested: tcg/uml" in nested
    assert "the time of tcg/kvm" in nested
    assert "the time of tcg/tcg" in nested


def test_an_upload_is_taken_apart():
    cells = [
        (Cell(f"{half} {name}", HALVES[half], name, {}, name == "uml"), ratio * times)
        for name, times in (("uml", 10.0), ("tcg", 1.0))
        for half, ratio in (("full", 3.0), ("channel", 2.0), ("disk", 1.0))
    ]
    said = "\n".join(line.plain for line in backends(analysed(cells)))
    assert "Upload on uml: the channel takes" in said
    assert "channel over disk ×2.0" in said or "channel over disk ×1.9" in said
    assert "Quickest channel bare: tcg's; uml's is ×" in said


def test_runs_of_other_things_say_nothing_of_backends():
    assert (
        backends(analysed([(Cell("host", WorkloadSpec("exec", {"argv": ["x"]}), "host", {}, True), 1.0)]))
        == []
    )
