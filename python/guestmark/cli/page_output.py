"""Writes results other than the report of one run: a page on the terminal and in files, and a document for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from guestmark.cli.console import Console
from guestmark.cli.outputs import STANDARD_OUTPUT, report_failed_writes, write_document
from guestmark.page.nodes import Page
from guestmark.page.text import escape_json
from guestmark.report.render import html, markdown
from guestmark.report.render.terminal import print_page


def write_page(
    page: Page,
    build_document: Callable[[], Mapping[str, Any]],
    paths: Mapping[str, str | None],
    *written_paths: str | None,
) -> None:
    """Writes to `paths` (`json`, `markdown`, `html`; `-` is standard output), else shows the page on the terminal.

    `written_paths` are those of other documents that have been written: with `-` among them nothing else is shown.
    """
    for form, path in paths.items():
        if path is not None:
            write_document(_render_page(form, page, build_document).encode(), path)
    if STANDARD_OUTPUT not in {*paths.values(), *written_paths}:
        with report_failed_writes():
            print_page(page, Console())


def _render_page(form: str, page: Page, build_document: Callable[[], Mapping[str, Any]]) -> str:
    if form == "json":
        return render_json(build_document())
    return html.render(page) if form == "html" else markdown.render(page)


def render_json(document: Mapping[str, Any]) -> str:
    """Renders a document for programs, in which nothing is active on a page or a terminal."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return escape_json(text) + "\n"
