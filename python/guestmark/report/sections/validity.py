"""The limits of a report's figures: each finding with advice on what to do about it."""

from collections.abc import Iterator, Sequence
from typing import Any

from guestmark.core.units import join_names
from guestmark.page.nodes import Note, NoteKind
from guestmark.page.text import Span, Tone, spans
from guestmark.stats.analysis import Analysis
from guestmark.stats.validity import Finding, Severity, list_severe_by_cell

_TONES = {Severity.SEVERE: Tone.ERROR, Severity.WARNING: Tone.WARNING, Severity.NOTE: Tone.SOFT}
_KINDS = {
    Severity.SEVERE: NoteKind.ERROR,
    Severity.WARNING: NoteKind.WARNING,
    Severity.NOTE: NoteKind.SMALL,
}


def make_notes(analysis: Analysis, *, whole: bool = True) -> list[Note]:
    """Return a line for each finding, the severe ones first; one line where several workloads have the same.

    Unless `whole`, notes do not say what to do.
    """
    titles: dict[tuple[Severity, str, str], list[str]] = {}
    for title, finding in _yield_all_findings(analysis):
        of_finding = titles.setdefault((finding.severity, finding.message, finding.advice), [])
        if title:
            of_finding.append(title)
    order = list(Severity)
    count = len(analysis.workloads)
    notes = []
    for (severity, message, advice), where in sorted(
        titles.items(), key=lambda item: -order.index(item[0][0])
    ):
        shown_advice = advice if whole or severity is not Severity.NOTE else ""
        # What is true of all workloads names none of them.
        shown_titles = where if len(where) < count else ()
        notes.append(_make_note(severity, message, shown_advice, shown_titles))
    return notes


def find_main_limit(analysis: Analysis) -> tuple[Note, str] | None:
    """Return what limits the figures most, and ` (and 2 more)` for further limits; None without any."""
    limits = [note for note in make_notes(analysis, whole=False) if note.kind is not NoteKind.SMALL]
    if not limits:
        return None
    more = f" (and {len(limits) - 1} more)" if len(limits) > 1 else ""
    return limits[0], more


def make_document(analysis: Analysis) -> list[dict[str, Any]]:
    """Return all findings for the result document, with the workload they are about (null for the whole run)."""
    return [_make_limit_document(title, finding) for title, finding in _yield_all_findings(analysis)]


def _make_limit_document(title: str, finding: Finding) -> dict[str, Any]:
    inconclusive: list[str] = []
    if finding.severity is Severity.SEVERE:
        inconclusive = list(finding.cells)
    return {
        "name": finding.name,
        "severity": finding.severity.value,
        "reason": finding.message,
        "advice": finding.advice,
        "effect": finding.effect,
        "p": finding.p,
        "workload": title or None,
        "inconclusive": inconclusive,
    }


def name_doubts(analysis: Analysis) -> dict[str, str]:
    """Return by cell the names of the severe findings that withdraw its verdicts."""
    severe = list_severe_by_cell(finding for _, finding in _yield_all_findings(analysis))
    return {cell: "; ".join(names) for cell, names in severe.items()}


def _yield_all_findings(analysis: Analysis) -> Iterator[tuple[str, Finding]]:
    for finding in analysis.findings:
        yield "", finding
    for workload in analysis.workloads:
        for finding in workload.findings:
            yield workload.title, finding


def _make_note(severity: Severity, message: str, advice: str, titles: Sequence[str]) -> Note:
    where = f" ({join_names(titles)})" if titles else ""
    what_to_do = f". {advice[:1].upper()}{advice[1:]}." if advice else ""
    label = Span(f"{severity.value.capitalize()}: ", _TONES[severity])
    return Note(spans(label, f"{message}{where}{what_to_do}"), _KINDS[severity])
