"""Templates of HTML pages: everything is escaped, and text from outside is made harmless."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guestmark.page.text import inert

if TYPE_CHECKING:
    from jinja2 import Environment


def environment(package: str) -> Environment:
    """The templates in the folder `templates` of that package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_inert,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _inert(value: object) -> object:
    """Every value that a template shows; markup, which only charts are, has been made of such text."""
    return inert(value) if type(value) is str else value
