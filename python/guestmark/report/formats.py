"""Runs as files: JSON, CSV, Parquet, Markdown, HTML, and the formats of other programs.

JSON is the whole result document; CSV and Parquet are the raw figures in long form; Markdown and HTML are the report as
people read it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, assert_never

from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Note, Page, Section
from guestmark.page.text import escape_json, line
from guestmark.report import hyperfine_tables, interchange, long_form
from guestmark.report.document import make_result_document
from guestmark.report.export_format import Format
from guestmark.report.full_report import make_page
from guestmark.report.render import html, markdown
from guestmark.stats.analysis import Analysis, analyse_run


def export_run(
    run: StoredRun,
    form: Format,
    analysis: Analysis | None = None,
    *,
    first: Sequence[Section] = (),
    referenced: bool = False,
) -> bytes:
    """Return the run in this format; text is UTF-8 and ends with a line feed.

    Pages begin with the sections `first`. Set `referenced` if the user chose the baseline: the tables in hyperfine's
    formats are then relative to it, and not to the fastest command.
    """
    form = Format(form)
    found = analysis or analyse_run(run.plan, run.trials, run.unusable)
    match form:
        case Format.PARQUET:
            return long_form.make_parquet(run, found)
        case Format.CSV:
            text = long_form.make_csv(run, found)
        case Format.HYPERFINE:
            text = _format_indented_json(interchange.make_hyperfine_document(found))
        case (
            Format.HYPERFINE_CSV
            | Format.HYPERFINE_MARKDOWN
            | Format.HYPERFINE_ASCIIDOC
            | Format.HYPERFINE_ORGMODE
        ):
            text = hyperfine_tables.render_table(found, form, referenced=referenced)
        case Format.BENCHER:
            text = _format_indented_json(interchange.make_bencher_document(found))
        case Format.GITHUB:
            text = _format_indented_json(interchange.make_github_action_document(found))
        case Format.MARKDOWN:
            text = markdown.render(_make_page_after(first, run, found))
        case Format.HTML:
            text = html.render(_make_page_after(first, run, found))
        case Format.JSON:
            text = _format_json_by_line(make_result_document(run, found, _make_page_after(first, run, found)))
        case _:
            assert_never(form)
    return text.encode()


def make_bundle_page(runs: Sequence[StoredRun]) -> str:
    """Return the page that a bundle shows in a browser: the reports of these runs as one HTML document."""
    pages = [
        make_page(run, analyse_run(run.plan, run.trials, run.unusable, environments=run.environments))
        for run in runs
    ]
    if len(pages) == 1:
        return html.render(pages[0])
    sections = []
    for page in pages:
        for section in page.sections:
            nodes = (Note(line(f"Run {page.run_id}")), *section.nodes)
            sections.append(replace(section, title=f"{page.title}: {section.title}", nodes=nodes))
    return html.render(Page(f"{len(pages)} runs", ", ".join(page.run_id for page in pages), tuple(sections)))


def _make_page_after(first: Sequence[Section], run: StoredRun, analysis: Analysis) -> Page:
    page = make_page(run, analysis)
    return replace(page, sections=(*first, *page.sections))


def _format_indented_json(document: Any) -> str:
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return escape_json(text) + "\n"


def _format_json_by_line(document: dict[str, Any]) -> str:
    """Return the document with each key, cell and trial on its own line."""
    # With deeper indentation, half of the file would be spaces.
    return escape_json("{\n" + ",\n".join(_format_members(document)) + "\n}") + "\n"


def _format_members(members: dict[str, Any]) -> list[str]:
    return [f"{_format_compact_json(key)}: {_format_value_by_line(value)}" for key, value in members.items()]


def _format_value_by_line(value: Any) -> str:
    if not (isinstance(value, list) and value and all(isinstance(each, dict) for each in value)):
        return _format_compact_json(value)
    return "[\n" + ",\n".join(map(_format_object_by_line, value)) + "\n]"


def _format_object_by_line(members: dict[str, Any]) -> str:
    return "{" + ", ".join(_format_members(members)) + "}"


def _format_compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
