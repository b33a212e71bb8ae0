"""docs/results: the tables that are made of what bench has printed are those of the pages."""

import re

import pytest
from bench import results


def test_the_pages_hold_what_bench_has_printed() -> None:
    assert results.main(["--check"]) == 0, "python -m bench.results makes them anew"
    named = {
        name
        for page in results.PAGES.glob("*.md")
        for name in re.findall("<!-- bench: ([a-z-]+) -->", page.read_text())
    }
    assert named - {"end"} == set(results.PARTS)


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        ([".040", ".012"], ".012 to .040"),
        ([".922*", ".978"], ".922* to .978"),
        (["2", "2"], "2"),
        (["-", "-"], "–"),
    ],
)
def test_figures_become_a_range_and_keep_their_star(cells: list[str], shown: str) -> None:
    assert results.render_range(cells) == shown


def test_a_stale_table_is_noticed() -> None:
    page = (results.PAGES / "statistics.md").read_text()
    assert results.fill_page(page) == page
    changed = page.replace("| guest | 17 |", "| guest | 16 |")
    assert changed != page
    assert results.fill_page(changed) == page
