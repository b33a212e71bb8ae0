"""What limits what a report's figures mean: every finding with what to do about it."""

from typing import Any

from guestmark.core.units import listed
from guestmark.page.nodes import Note, NoteKind
from guestmark.page.text import Span, Tone, spans
from guestmark.stats.analysis import Analysis
from guestmark.stats.validity import Finding, Severity, severe_by_cell

_TONES = {Severity.SEVERE: Tone.ERROR, Severity.WARNING: Tone.WARNING, Severity.NOTE: Tone.SOFT}
_KINDS = {
    Severity.SEVERE: NoteKind.ERROR,
    Severity.WARNING: NoteKind.WARNING,
    Severity.NOTE: NoteKind.SMALL,
}


def lines(analysis: Analysis, *, whole: bool = True) -> list[Note]:
    """A line for each finding, the severe ones first; told once where it is the same of several workloads.

    Unless `whole`, notes do not say what to do.
    """
    found: dict[tuple[Severity, str, str], list[str]] = {}
    for title, finding in _all(analysis):
        titles = found.setdefault((finding.severity, finding.message, finding.advice), [])
        titles += [title] if title else []
    order = list(Severity)
    several = len(analysis.workloads) > 1
    return [
        _line(
            severity,
            message,
            advice if whole or severity is not Severity.NOTE else "",
            titles if several and len(titles) < len(analysis.workloads) else (),
        )
        for (severity, message, advice), titles in sorted(
            found.items(), key=lambda entry: -order.index(entry[0][0])
        )
    ]


def document(analysis: Analysis) -> list[dict[str, Any]]:
    """For the result document: all findings, with the workload they are about (null: the whole run)."""
    return [
        {
            "name": finding.name,
            "severity": finding.severity.value,
            "reason": finding.message,
            "advice": finding.advice,
            "effect": finding.effect,
            "p": finding.p,
            "workload": title or None,
            "inconclusive": list(finding.cells) if finding.severity is Severity.SEVERE else [],
        }
        for title, finding in _all(analysis)
    ]


def doubts(analysis: Analysis) -> dict[str, str]:
    """By cell, the names of the severe findings that take its verdicts back."""
    found = severe_by_cell(finding for _, finding in _all(analysis))
    return {cell: "; ".join(names) for cell, names in found.items()}


def _all(analysis: Analysis) -> list[tuple[str, Finding]]:
    return [
        *(("", finding) for finding in analysis.findings),
        *((workload.title, finding) for workload in analysis.workloads for finding in workload.findings),
    ]


def _line(severity: Severity, message: str, advice: str, titles: list[str] | tuple[str, ...]) -> Note:
    where = f" ({listed(titles)})" if titles else ""
    said = f"{message}{where}"
    what_to_do = f". {advice[:1].upper()}{advice[1:]}." if advice else ""
    label = Span(f"{severity.value.capitalize()}: ", _TONES[severity])
    return Note(spans(label, f"{said}{what_to_do}"), _KINDS[severity])
