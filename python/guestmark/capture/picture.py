"""Draws latency distributions and a time-sequence view as one HTML file that needs no other resource.

The markup is in `templates`, where Jinja2 escapes every value. Control characters in texts are made visible before
that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.capture import verdict
from guestmark.capture.drawings import Distributions, Sequences
from guestmark.capture.model import Document, Endpoint, Trace
from guestmark.capture.table import count_divided_connections, describe_requests, describe_shares
from guestmark.core.errors import GuestmarkError
from guestmark.core.units import format_share
from guestmark.page.templates import make_environment

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_ENDPOINTS = 12
# Share of the bar's width that a letter takes; shares too small for their name are not labelled.
_PER_LETTER = 0.009
_VISIBLE = 0.001


def write_picture(document: Document, path: Path) -> None:
    """Write the picture of `document` (with histograms and sequence). Raises `GuestmarkError` if that fails."""
    try:
        path.write_text(render_picture(document), encoding="utf-8")
    except OSError as error:
        raise GuestmarkError(f"{path} cannot be written: {error.strerror}") from error


def render_picture(document: Document) -> str:
    """Return the picture of `document` as HTML."""
    traces = [_prepare_trace(trace) for trace in document.files]
    return _make_template_environment().get_template("page.html.j2").render(traces=traces) + "\n"


def draw_distributions(endpoints: Sequence[Endpoint]) -> str:
    """Return an SVG drawing with a row for each endpoint, which must have a histogram, on a common axis."""
    return _render_macro("distributions", Distributions.lay_out_for_all_widths(list(endpoints)))


def draw_sequences(trace: Trace) -> str:
    """Return the connections of `trace` in time: a heading and one SVG drawing for each direction."""
    return _render_macro("sequences", Sequences.from_trace(trace))


@dataclass(frozen=True, slots=True)
class _Share:
    """A share of the time, with the CSS class of its colour."""

    css: str
    name: str
    share: float

    @property
    def labelled(self) -> bool:
        return self.share > _PER_LETTER * (len(self.name) + 2)


@dataclass(frozen=True, slots=True)
class _PageTrace:
    """One trace as the page shows it; without shares if they are unknown."""

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


def _prepare_trace(trace: Trace) -> _PageTrace:
    by_latency = describe_shares(trace.shares)
    causes = tuple(_list_cause_percents(trace))
    if not causes:
        causes, by_latency = (_Share("", by_latency, 1.0),), ""
    doubt, refused = "", False
    if weak := verdict.find_doubt(trace):
        doubt, refused = weak.reason, weak.refused
    requests: tuple[str, ...] = ()
    if trace.requests:
        requests = tuple(describe_requests(trace))
    incomplete = ""
    if error := trace.error:
        incomplete = f"reading stopped at byte {error.offset}: {error.reason}"
    return _PageTrace(
        trace.file,
        causes,
        doubt,
        refused,
        by_latency,
        tuple(_list_cause_shares(trace)),
        f"{count_divided_connections(trace)}, {trace.counters['packets']:,} packets",
        f"{format_share(trace.relative_error, 1)}",
        _lay_out_endpoints(trace),
        Sequences.from_trace(trace),
        requests,
        tuple(f"{limit.count:,} {limit.text}" for limit in trace.limits),
        incomplete,
    )


def _lay_out_endpoints(trace: Trace) -> tuple[Distributions, ...]:
    endpoints = []
    for endpoint in trace.endpoints:
        if endpoint.histogram and endpoint.address != "others":
            endpoints.append(endpoint)
    if not endpoints:
        return ()
    return Distributions.lay_out_for_all_widths(endpoints[:MOST_ENDPOINTS])


def _list_cause_percents(trace: Trace) -> Iterator[_Share]:
    for cause, percent in verdict.list_cause_percents(trace.causes):
        yield _Share(cause, f"{verdict.CAUSE_NAMES[cause]} {percent} %", percent / 100)


def _list_cause_shares(trace: Trace) -> Iterator[_Share]:
    for part in verdict.list_cause_shares(trace.causes):
        if part.share > _VISIBLE:
            yield _Share(part.cause, f"{part.name} {format_share(part.share)}", part.share)


def _render_macro(macro: str, drawing: tuple[Distributions, ...] | tuple[Sequences, ...]) -> str:
    return str(getattr(_make_template_environment().get_template("drawings.html.j2").module, macro)(drawing))


@functools.cache
def _make_template_environment() -> Environment:
    made = make_environment("guestmark.capture")
    made.filters["px"] = lambda value: f"{value:.1f}"
    return made
