"""Writing what is not a report of one run: a page on the terminal and in files, and a document for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guestmark.page.nodes import Page


def write_all(
    page: Page, document: Callable[[], Mapping[str, Any]], paths: Mapping[str, str | None], *more: str | None
) -> None:
    """Writes to `paths` (`json`, `markdown`, `html`; `-` is standard output), else shows the page on the terminal.

    `more` are paths of other documents that have been written: with `-` among them nothing else is shown.
    """
    from guestmark.cli.session import write, writing_to_stdout

    for name, path in paths.items():
        if path is not None:
            write(_text(name, page, document).encode(), path)
    if "-" not in (*paths.values(), *more):
        from guestmark.cli.console import Console
        from guestmark.report.render.terminal import print_page

        with writing_to_stdout():
            print_page(page, Console())


def _text(name: str, page: Page, document: Callable[[], Mapping[str, Any]]) -> str:
    if name == "json":
        import json

        from guestmark.page.text import escaped_in_json

        text = json.dumps(document(), indent=2, ensure_ascii=False, allow_nan=False)
        return escaped_in_json(text) + "\n"
    from guestmark.report.render import html, markdown

    return html.render(page) if name == "html" else markdown.render(page)
