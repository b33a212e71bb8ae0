"""Makes tables of docs/results from what the programs of bench have printed: `python -m bench.results [--check]`.

A page contains `<!-- bench: NAME -->`, the table, and `<!-- bench: end -->`. Rows of scenarios become ranges there;
the RESULTS.md beside a program contains everything that it has printed.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "results"
_PART = re.compile(r"(<!-- bench: ([a-z-]+) -->\n\n).*?(\n<!-- bench: end -->)", re.DOTALL)

Row = list[str]


def read_table(printed: str, heading: str) -> tuple[Row, list[Row]]:
    """Return head and rows of the first table below a heading."""
    below = (ROOT / "bench" / printed).read_text().split(f"# {heading}\n", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert lines is not None, heading
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[0].splitlines())
    return head, rows


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def render_range(cells: Sequence[str]) -> str:
    """Return the smallest and the largest of some printed figures; a star marks a figure outside its limits."""
    figures = sorted(
        (cell for cell in cells if cell not in ("", "-")), key=lambda cell: float(cell.rstrip("*"))
    )
    if not figures:
        return "–"
    low, high = figures[0], figures[-1]
    return low if low == high else f"{low} to {high}"


def group_rows(rows: Sequence[Row], name_group: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Group rows in the order in which their groups first appear."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(name_group(row), []).append(row)
    return groups


def make_equal_cells() -> str:
    """Summarise simulated runs of equal cells by command."""
    head, rows = read_table("statistics/RESULTS.md", "Equal cells")
    shown = ("any claim", "typical", "coverage", "blocks", "seconds")
    groups = group_rows(
        rows, lambda row: "`--find`" if row[0].startswith("--find") else re.split("[:,]", row[0])[0]
    )
    columns = [head.index(name) for name in shown]
    summary = [
        [command, str(len(found)), *(render_range([row[column] for row in found]) for column in columns)]
        for command, found in groups.items()
    ]
    return render_table(["command", "scenarios", *shown], summary)


def make_unequal_cells() -> str:
    """Copy the rows of planted differences that have a counterpart in every kind of command."""
    head, rows = read_table("statistics/RESULTS.md", "Cells that differ")
    effects = r"\+[25] %.*|x2|x[25] in \d+ % of iterations"
    planted = re.compile(rf"(guest|timed pair, 100 ms|quick pair|host, \d+ ms): ({effects})")
    columns = [head.index(name) for name in ("typical", "total", "slow runs", "blocks", "seconds")]
    chosen = [
        [*row[0].split(": ", 1), *(row[column] for column in columns)]
        for row in rows
        if planted.fullmatch(row[0])
    ]
    return render_table(["command", "planted", "typical", "total", "slow runs", "blocks", "seconds"], chosen)


def make_typical_methods() -> str:
    """Copy the rows of ten blocks from the comparison of methods."""
    head, rows = read_table("statistics/RESULTS.md", "How the typical run's method was chosen")
    return render_table(head, [row for row in rows if row[0].endswith(", 10")])


def copy_table(heading: str) -> Callable[[], str]:
    """Return a function that copies a whole table."""
    return lambda: render_table(*read_table("statistics/RESULTS.md", heading))


def name_sentence(row: Row) -> str:
    """Return what a sentence claims, without the case in which it was simulated."""
    sentence, where = row[0], row[1]
    if sentence.startswith("±"):
        noise = ", AR .8" if "AR .8" in sentence else ""
        return f"± of a typical run ({where}){noise}"
    if sentence == "a value moved over the blocks":
        return f"{sentence}, {'independent' if where.endswith('AR 0') else 'autocorrelated'} blocks"
    if sentence == "what more blocks would give":
        return f"{sentence}, {'heavy tails' if where.endswith('t, 3') else 'normal'}"
    sentence = re.sub(r", (guest|timed pair|quick pair|\d+ earlier).*", "", sentence)
    return re.sub(r"\b\d+ sessions", "sessions", sentence)


def make_sentences() -> str:
    """Summarise how often each sentence of a report is false, and how often it is found."""
    _, rows = read_table("statistics/RESULTS.md", "Other sentences")
    summary = [
        [
            sentence,
            str(len(found)),
            render_range([row[2] for row in found]),
            render_range([row[3] for row in found]),
        ]
        for sentence, found in group_rows(rows, name_sentence).items()
    ]
    return render_table(["sentence", "cases", "false", "found"], summary)


def make_capture_causes() -> str:
    """Summarise captures with a known answer by their true cause."""
    _, rows = read_table("capture_truth/RESULTS.md", "Causes of captures")
    groups = group_rows(rows, lambda row: row[1].replace(" **miss**", ""))
    summary = []
    for cause, found in sorted(groups.items(), key=lambda item: -len(item[1])):
        shares = [int(share) for row in found for side in row[2:4] for share in _shares_of(cause, side)]
        apart = [float(row[4]) for row in found]
        worst = max(found, key=lambda row: float(row[4]))
        named = f"{min(shares)} to {max(shares)} %" if shares else "–"
        summary.append(
            [cause, str(len(found)), named, f"{statistics.median(apart):.1f}", f"{worst[4]} ({worst[0]})"]
        )
    head = ["true cause", "scenarios", "share of the time that has this name", "apart, %, median", "most"]
    return render_table(head, summary)


def _shares_of(cause: str, side: str) -> Iterator[str]:
    for part in side.split(", "):
        name, _, share = part.rpartition(" ")
        if name == cause:
            yield share.rstrip("%")


PARTS: dict[str, Callable[[], str]] = {
    "equal-cells": make_equal_cells,
    "unequal-cells": make_unequal_cells,
    "typical-methods": make_typical_methods,
    "many-cells": copy_table("Many cells, many metrics"),
    "noise-floor": copy_table("The noise floor and earlier runs"),
    "warm-up": copy_table("The warm-up"),
    "sentences": make_sentences,
    "capture-causes": make_capture_causes,
}


def fill_page(text: str) -> str:
    """Return a page with all of its parts made anew."""
    return _PART.sub(lambda part: part[1] + PARTS[part[2]]() + part[3], text)


def main(words: Sequence[str]) -> int:
    """Make the pages, or with `--check` name those that would change; returns the exit status."""
    stale = []
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text()
        made = fill_page(text)
        if made != text:
            stale.append(page)
            if "--check" not in words:
                page.write_text(made)
    if "--check" not in words:
        return 0
    for page in stale:
        print(
            f"{page.relative_to(ROOT)} is not what bench has printed: python -m bench.results makes it anew"
        )
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
