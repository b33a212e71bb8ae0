"""Whether what a publication concluded holds in this run, in one sentence."""

from collections.abc import Iterator
from enum import StrEnum

from guestmark.page.text import Inline, Span, Tone, spans
from guestmark.report.sections.answering import Against, Answer
from guestmark.report.sections.cell_names import Names


class Held(StrEnum):
    """What became of a conclusion."""

    YES = "holds"
    NO = "does not hold"
    OPEN = "cannot be told yet"


_TONES = {Held.YES: Tone.FASTER, Held.NO: Tone.SLOWER, Held.OPEN: Tone.UNCLEAR}


def holds(answer: Answer, names: Names) -> Iterator[Inline]:
    """The sentence, where the question has a published conclusion and the run has cells that it is about."""
    found: dict[Held, list[str]] = {}
    for finding in answer.findings:
        if isinstance(finding, Against) and finding.published is not None:
            _, _, where = names.apart(finding.first.cell, finding.second.cell)
            factor = _factor(finding) if held(finding) is Held.YES else ""
            found.setdefault(held(finding), []).append(f"{where or finding.first.cell.id}{factor}")
    if not answer.question.conclusion or not found:
        return
    said: list[str | Span] = [f"The published conclusion – {answer.question.conclusion} – "]
    for word, places in sorted(found.items(), key=lambda item: list(Held).index(item[0])):
        if len(said) > 1:
            said.append("; ")
        said += [Span(word.value, _TONES[word]), f" for {', '.join(places)}"]
    yield spans(*said, ".")


def held(against: Against) -> Held:
    """Whether the measured difference has the direction of the published one."""
    found, then = against.found, against.published
    if found is None or found.ratio is None or then is None or found.undecided:
        return Held.OPEN
    if found.same:
        return Held.NO
    return Held.YES if (found.ratio > 1) == (then > 1) else Held.NO


def _factor(against: Against) -> str:
    found, then = against.found, against.published
    if found is None or found.ci is None or then is None or found.ci[0] <= then <= found.ci[1]:
        return ""
    return f" (×{found.ratio:.2g}, published ×{then:.2g})"
