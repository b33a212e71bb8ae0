"""Templates of HTML pages: everything is escaped, and text from outside is made harmless."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from guestmark.page.text import make_inert

if TYPE_CHECKING:
    from jinja2 import Environment


def make_environment(package: str) -> Environment:
    """Return the templates in the folder `templates` of that package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_make_value_inert,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(script=_render_script, policy=_render_security_policy, style=_render_style)
    return made


@functools.cache
def _read_own_file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8").strip()


def _render_script() -> Markup:
    """Return the only script of a page, which makes charts react to the pointer."""
    return Markup("<script>{}</script>").format(Markup(_read_own_file("chart.js")))


def _render_style() -> Markup:
    """Return the styles that the script needs."""
    return Markup(_read_own_file("chart.css"))


def _render_security_policy() -> Markup:
    """Return a policy by which the browser loads nothing and runs no other script, whatever a page contains."""
    # The hash allows this one script; inline scripts in text from outside would not match it.
    digest = base64.b64encode(hashlib.sha256(_read_own_file("chart.js").encode()).digest()).decode()
    content = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return Markup('<meta http-equiv="Content-Security-Policy" content="{}">').format(Markup(content))


def _make_value_inert(value: object) -> object:
    """Return a value of a template as inert text; markup, which only charts contain, was created from inert text."""
    return make_inert(value) if type(value) is str else value
