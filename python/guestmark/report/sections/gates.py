"""What became of the gates of a run: each limit, the ratio that was found, and how many more blocks would decide it."""

from collections.abc import Sequence
from typing import Any

from guestmark.core.gate import Gate
from guestmark.core.units import counted
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Bullets, Command, Node, Note
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.report.sections import more_time
from guestmark.stats.across_runs import PastRatio, detectable_over_sessions, single_session_error
from guestmark.stats.analysis import Analysis
from guestmark.stats.gates import JudgedGate, Outcome, ratio_beyond_limit

_SESSIONS = (3, 5, 10)
_WORDS = {Outcome.KEPT: Claim.GATE_KEPT.value, Outcome.BROKEN: Claim.GATE_BROKEN.value}
TONES = {
    Outcome.KEPT: Tone.FASTER,
    Outcome.BROKEN: Tone.SLOWER,
    Outcome.UNDECIDED: Tone.UNCLEAR,
    Outcome.UNMEASURED: Tone.ERROR,
}


def judged(analysis: Analysis) -> tuple[JudgedGate, ...]:
    """The gates that the run was made with, judged."""
    from guestmark.core.gate import gates_of
    from guestmark.stats.gates import judge_gates

    return judge_gates(gates_of(analysis.plan), analysis)


def nodes(found: tuple[JudgedGate, ...], analysis: Analysis, run: StoredRun) -> list[Node]:
    """A line for each gate and cell, and by how much one session may mislead; empty without gates."""
    if not found:
        return []
    shown: list[Node] = [lines(found), *_one_session(found, analysis)]
    more = [one.blocks for one in found if one.blocks]
    if more and run.id:
        purpose = f"To decide, {counted(max(more), 'more block')}"
        shown.append(Command(purpose, more_time.command(run, analysis.blocks + max(more))))
    return shown


def lines(found: Sequence[JudgedGate]) -> Bullets:
    """What became of each gate."""
    return Bullets(line("Gates:"), tuple(map(_line, found)))


def _one_session(found: tuple[JudgedGate, ...], analysis: Analysis) -> list[Node]:
    """How far single runs have strayed here, of those cells that were measured often enough."""
    if not analysis.plan.metrics:
        return []
    notes: list[Node] = []
    for cell in dict.fromkeys(one.cell for one in found if one.metric == analysis.plan.metrics[0].name):
        earlier = analysis.history.ratios.get(cell, ())
        size = single_session_error(earlier)
        if size is not None:
            told = Claim.ONE_SESSION.format(size=figures.percent(size))
            notes.append(Note(line(f"{cell}: {told} (from {counted(len(earlier), 'earlier run')} here)")))
            gates = dict.fromkeys(one.gate for one in found if one.cell == cell)
            notes += [Note(line(_several(gate, earlier))) for gate in gates]
    return notes


def _several(gate: Gate, earlier: Sequence[PastRatio]) -> str:
    """What more sessions would find of a limit."""
    sizes = [
        (number, ratio_beyond_limit(gate, detectable_over_sessions(earlier, number))) for number in _SESSIONS
    ]
    known = [f"{number} from {figures.limit(gate.limit, size)} on" for number, size in sizes if size]
    return Claim.SESSIONS_FIND.format(gate=gate.text, sizes=", ".join(known) or "none of 10 or fewer")


def _line(judged: JudgedGate) -> Inline:
    about = f" ({judged.cell}, {judged.metric})" if judged.metric else f" ({judged.cell})"
    return spans(
        Span(_WORDS.get(judged.outcome, judged.outcome.value), TONES[judged.outcome]),
        " ",
        Span(judged.gate.text, Tone.NAME),
        about,
        ": ",
        said(judged),
    )


def said(judged: JudgedGate) -> str:
    """What was found, in a few words: the ratio, why it is undecided, and what would help."""
    parts = [] if judged.ratio is None else [figures.ratio(judged.ratio, judged.ci)]
    parts += [judged.reason] if judged.reason else []
    if judged.beside is not None:
        parts.append(Claim.GATE_BY_USER.format(share=figures.percent(judged.beside)))
    if judged.finds and judged.outcome in {Outcome.KEPT, Outcome.UNDECIDED}:
        parts.append(Claim.GATE_FINDS.format(size=figures.limit(judged.gate.limit, judged.finds)))
    if judged.blocks:
        parts.append(f"about {counted(judged.blocks, 'more block')} would do")
    return "; ".join(parts)


def document(found: Sequence[JudgedGate]) -> list[dict[str, Any]]:
    """For the result document."""
    return [
        {
            "gate": one.gate.text,
            "cell": one.cell,
            "metric": one.metric,
            "limit": None if one.gate.loss else one.gate.limit,
            "above": None if one.gate.loss else one.gate.above,
            "loss": one.gate.loss,
            "outcome": one.outcome.value,
            "reason": one.reason,
            "ratio": one.ratio,
            "ci": None if one.ci is None else list(one.ci),
            "n": one.n,
            "p_broken": one.p_broken,
            "p_kept": one.p_kept,
            "more_blocks": one.blocks,
            "finds": one.finds,
        }
        for one in found
    ]
