"""The picture: response-latency distributions and a time-sequence view, as one HTML file without any other resource.

The markup is in `templates`, where Jinja2 escapes every value; what is active in text is spelled out before that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.capture import verdict
from guestmark.capture.drawings import Distributions, Sequences
from guestmark.capture.model import Document, Endpoint, Trace
from guestmark.capture.table import divided, request_lines, said_shares
from guestmark.core.errors import GuestmarkError
from guestmark.page.templates import environment

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_ENDPOINTS = 12
_PER_LETTER = 0.009  # of the bar's width: smaller shares have no room for their name
_VISIBLE = 0.001


def write(document: Document, path: Path) -> None:
    """Writes the picture of `document` (with histograms and sequence). Raises `GuestmarkError` when it cannot."""
    try:
        path.write_text(render(document), encoding="utf-8")
    except OSError as error:
        raise GuestmarkError(f"{path} cannot be written: {error.strerror}") from error


def render(document: Document) -> str:
    """The HTML text."""
    traces = [_shown(trace) for trace in document.files]
    return _environment().get_template("page.html.j2").render(traces=traces) + "\n"


def distributions(endpoints: Sequence[Endpoint]) -> str:
    """An SVG drawing with a row for each endpoint, which must have a histogram, on a common axis."""
    return _drawn("distributions", Distributions.all(list(endpoints)))


def sequences(trace: Trace) -> str:
    """The connections of `trace` in time: a heading and one SVG drawing for each direction."""
    return _drawn("sequences", Sequences.all(trace))


@dataclass(frozen=True, slots=True)
class _Share:
    """A part of the time, with its colour's class."""

    css: str
    name: str
    share: float

    @property
    def labelled(self) -> bool:
        return self.share > _PER_LETTER * (len(self.name) + 2)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the page says of one trace; no shares where they are unknown."""

    file: str
    verdict: tuple[_Share, ...]
    doubt: str
    refused: bool
    by_latency: str
    shares: tuple[_Share, ...]
    count: str
    error: str
    distributions: tuple[Distributions, ...]
    sequences: tuple[Sequences, ...]
    requests: tuple[str, ...]
    notes: tuple[str, ...]
    incomplete: str


def _shown(trace: Trace) -> _Shown:
    said, error, weak = said_shares(trace.shares), trace.error, verdict.doubt(trace)
    causes = tuple(
        _Share(cause, f"{verdict.NAMES[cause]} {percent} %", percent / 100)
        for cause, percent in verdict.percents(trace.causes)
    )
    endpoints = [
        endpoint for endpoint in trace.endpoints if endpoint.histogram and endpoint.address != "others"
    ]
    return _Shown(
        trace.file,
        causes or (_Share("", said, 1.0),),
        weak.reason if weak else "",
        weak is not None and weak.refused,
        said if causes else "",
        _shares(trace),
        f"{divided(trace)}, {trace.counters['packets']:,} packets",
        f"{trace.relative_error:.1%}",
        Distributions.all(endpoints[:MOST_ENDPOINTS]) if endpoints else (),
        Sequences.all(trace),
        tuple(request_lines(trace)) if trace.requests else (),
        tuple(f"{limit.count:,} {limit.text}" for limit in trace.limits),
        f"reading stopped at byte {error.offset}: {error.reason}" if error else "",
    )


def _shares(trace: Trace) -> tuple[_Share, ...]:
    return tuple(
        _Share(part.cause, f"{part.name} {part.share:.0%}", part.share)
        for part in verdict.parts(trace.causes)
        if part.share > _VISIBLE
    )


def _drawn(macro: str, drawing: tuple[Distributions, ...] | tuple[Sequences, ...]) -> str:
    return str(getattr(_environment().get_template("drawings.html.j2").module, macro)(drawing))


@functools.cache
def _environment() -> Environment:
    made = environment("guestmark.capture")
    made.filters["px"] = lambda value: f"{value:.1f}"
    return made
