"""The page that a bundle shows in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Note, Page
from guestmark.page.text import line
from guestmark.report.render import html
from guestmark.report.sections import page as page_of
from guestmark.stats.analysis import analyse


def page(runs: Sequence[StoredRun]) -> str:
    """The reports of these runs, one after another, as one HTML document."""
    pages = [
        page_of(run, analyse(run.plan, run.trials, run.unusable, environments=run.environments))
        for run in runs
    ]
    first, *others = pages
    if not others:
        return html.render(first)
    sections = [
        replace(
            section,
            title=f"{each.title}: {section.title}",
            nodes=(Note(line(f"Run {each.run_id}")), *section.nodes),
        )
        for each in pages
        for section in each.sections
    ]
    return html.render(Page(f"{len(pages)} runs", ", ".join(each.run_id for each in pages), tuple(sections)))
