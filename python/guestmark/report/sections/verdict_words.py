"""Words, signs and colours of verdicts."""

from guestmark.core.metric import Better, Metric
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.text import Tone
from guestmark.stats.cell_answers import SlowComparison
from guestmark.stats.compare import BOUNDED_RATIO, Comparison, Verdict, label_verdict

TONES = {
    Verdict.FASTER: Tone.FASTER,
    Verdict.SLOWER: Tone.SLOWER,
    Verdict.NO_DIFFERENCE: Tone.SAME,
    Verdict.INCONCLUSIVE: Tone.UNCLEAR,
}
MARKS = {Verdict.FASTER: "*", Verdict.SLOWER: "*", Verdict.NO_DIFFERENCE: "=", Verdict.INCONCLUSIVE: "?"}
ALIKE = "typical run alike"
BOUNDED_SIGN = "±"
BOUNDED_LEGEND = f"{BOUNDED_SIGN} within {figures.format_percent(BOUNDED_RATIO - 1)}"
LEGEND = f"* differs  = no difference  ≈ {ALIKE}  {BOUNDED_LEGEND}  ? inconclusive"


def mark_verdict(compared: Comparison | SlowComparison) -> str:
    """Return the sign for a verdict, or for an undecided but bounded difference."""
    if _is_bounded(compared):
        return BOUNDED_SIGN
    return "≈" if _is_typical_run_alike(compared) else MARKS[compared.verdict]


def choose_verdict_tone(compared: Comparison | SlowComparison) -> Tone:
    """Return the tone for a verdict, which determines its colour."""
    similar = _is_bounded(compared) or _is_typical_run_alike(compared)
    return Tone.SAME if similar else TONES[compared.verdict]


def format_verdict(comparison: Comparison, metric: Metric) -> str:
    """Return the word for a verdict; for an undecided but bounded difference, its largest possible size."""
    if comparison.is_bounded and comparison.ci is not None:
        return Claim.BOUNDED.format(most=_describe_bound(comparison.ci, metric))
    return ALIKE if comparison.alike else label_verdict(comparison.verdict, metric)


def _is_bounded(compared: Comparison | SlowComparison) -> bool:
    """Return whether there is no verdict, but a bound on the difference."""
    return isinstance(compared, Comparison) and compared.is_bounded


def _is_typical_run_alike(compared: Comparison | SlowComparison) -> bool:
    """Return whether the typical run is shown to equal the baseline's, while rarer slow runs are not excluded."""
    return isinstance(compared, Comparison) and compared.alike


def _describe_bound(ends: tuple[float, float], metric: Metric) -> str:
    """Return text such as `8 % slower, 6 % faster`: the distances of a ratio's interval from 1, on either side."""
    low, high = ends
    worse, better = (label_verdict(verdict, metric) for verdict in (Verdict.SLOWER, Verdict.FASTER))
    above, below = (worse, better) if metric.better is Better.LOWER else (better, worse)
    parts = []
    if high > 1:
        parts.append(f"{figures.format_percent(high - 1)} {above}")
    if low < 1:
        parts.append(f"{figures.format_percent(1 - low)} {below}")
    return ", ".join(parts)
