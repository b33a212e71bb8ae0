"""The outcomes of a run's gates: each limit, the ratio found, and how many more blocks would decide it."""

from collections.abc import Sequence
from typing import Any

from guestmark.core.gate import Gate, read_plan_gates
from guestmark.core.units import format_count
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.json_text import list_interval
from guestmark.page.nodes import Bullets, Command, Node, Note
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.report.commands import format_resume_command
from guestmark.stats.across_runs import (
    PastRatio,
    compute_detectable_over_sessions,
    estimate_single_session_error,
)
from guestmark.stats.analysis import Analysis
from guestmark.stats.gates import JudgedGate, Outcome, compute_ratio_beyond_limit, judge_gates

_SESSIONS = (3, 5, 10)
_WORDS = {Outcome.KEPT: Claim.GATE_KEPT.value, Outcome.BROKEN: Claim.GATE_BROKEN.value}
TONES = {
    Outcome.KEPT: Tone.FASTER,
    Outcome.BROKEN: Tone.SLOWER,
    Outcome.UNDECIDED: Tone.UNCLEAR,
    Outcome.UNMEASURED: Tone.ERROR,
}


def judge_own_gates(analysis: Analysis) -> tuple[JudgedGate, ...]:
    """Judge the gates of the run's own plan."""
    return judge_gates(read_plan_gates(analysis.plan), analysis)


def make_nodes(gates: tuple[JudgedGate, ...], analysis: Analysis, run: StoredRun) -> list[Node]:
    """Return a line for each gate and cell, and notes on the error of a single session; empty without gates."""
    if not gates:
        return []
    nodes: list[Node] = [list_gates(gates), *_make_session_notes(gates, analysis)]
    forecasts = [gate.blocks for gate in gates if gate.blocks]
    if forecasts and run.id:
        more = max(forecasts)
        command = format_resume_command(run, f"--blocks {analysis.blocks + more}")
        nodes.append(Command(f"Decide with {format_count(more, 'more block')}", command))
    return nodes


def list_gates(gates: Sequence[JudgedGate]) -> Bullets:
    """Return a list of the gates with their outcomes."""
    return Bullets(line("Gates:"), tuple(map(_describe_gate, gates)))


def _make_session_notes(gates: tuple[JudgedGate, ...], analysis: Analysis) -> list[Node]:
    """Return notes on the error of single runs on this host, for cells that were measured often enough."""
    if not analysis.plan.metrics:
        return []
    primary = analysis.plan.metrics[0].name
    notes: list[Node] = []
    for cell in dict.fromkeys(gate.cell for gate in gates if gate.metric == primary):
        # The blocks of a session share its boot and its host's state, so they cannot show how much sessions vary.
        earlier = analysis.history.ratios.get(cell, ())
        size = estimate_single_session_error(earlier)
        if size is None:
            continue
        claim = Claim.ONE_SESSION.format(size=figures.format_percent(size))
        notes.append(Note(line(f"{cell}: {claim} (from {format_count(len(earlier), 'earlier run')} here)")))
        limits = dict.fromkeys(gate.gate for gate in gates if gate.cell == cell and gate.metric == primary)
        notes += [Note(line(_describe_sessions(limit, earlier))) for limit in limits]
    return notes


def _describe_sessions(gate: Gate, earlier: Sequence[PastRatio]) -> str:
    """Return the ratios beyond which 3, 5 and 10 sessions would find a limit broken."""
    parts = []
    for sessions in _SESSIONS:
        size = compute_ratio_beyond_limit(gate, compute_detectable_over_sessions(earlier, sessions))
        if size:
            parts.append(f"{sessions} beyond {figures.format_limit(gate.limit, size)}")
    return Claim.SESSIONS_FIND.format(gate=gate.text, sizes=", ".join(parts) or "none of 10 or fewer")


def _describe_gate(gate: JudgedGate) -> Inline:
    about = f" ({gate.cell}, {gate.metric})" if gate.metric else f" ({gate.cell})"
    return spans(
        Span(_WORDS.get(gate.outcome, gate.outcome.value), TONES[gate.outcome]),
        " ",
        Span(gate.gate.text, Tone.NAME),
        about,
        ": ",
        explain_outcome(gate),
    )


def explain_outcome(gate: JudgedGate) -> str:
    """Return a short explanation of an outcome: the ratio, why it is undecided, and what would help."""
    parts = []
    if gate.ratio is not None:
        parts.append(figures.format_ratio(gate.ratio, gate.ci))
    if gate.reason:
        parts.append(gate.reason)
    if gate.beside is not None:
        parts.append(Claim.GATE_BY_USER.format(share=figures.format_percent(gate.beside)))
    if gate.finds and gate.outcome in {Outcome.KEPT, Outcome.UNDECIDED}:
        parts.append(Claim.GATE_FINDS.format(size=figures.format_limit(gate.gate.limit, gate.finds)))
    if gate.blocks:
        parts.append(f"about {format_count(gate.blocks, 'more block')} would decide it")
    return "; ".join(parts)


def make_document(gates: Sequence[JudgedGate]) -> list[dict[str, Any]]:
    """Return the gates for the result document."""
    return [_make_gate_document(gate) for gate in gates]


def _make_gate_document(gate: JudgedGate) -> dict[str, Any]:
    return {
        "gate": gate.gate.text,
        "cell": gate.cell,
        "metric": gate.metric,
        "limit": None if gate.gate.loss else gate.gate.limit,
        "above": None if gate.gate.loss else gate.gate.above,
        "loss": gate.gate.loss,
        "outcome": gate.outcome.value,
        "reason": gate.reason,
        "ratio": gate.ratio,
        "ci": list_interval(gate.ci),
        "n": gate.n,
        "p_broken": gate.p_broken,
        "p_kept": gate.p_kept,
        "more_blocks": gate.blocks,
        "finds": gate.finds,
    }
