"""How verdicts are worded and marked."""

from guestmark.core.metric import Better, Metric
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.text import Tone
from guestmark.stats.compare import Comparison, Verdict, label_verdict
from guestmark.stats.trials import SlowComparison

TONES = {
    Verdict.FASTER: Tone.FASTER,
    Verdict.SLOWER: Tone.SLOWER,
    Verdict.NO_DIFFERENCE: Tone.SAME,
    Verdict.INCONCLUSIVE: Tone.UNCLEAR,
}
MARKS = {Verdict.FASTER: "*", Verdict.SLOWER: "*", Verdict.NO_DIFFERENCE: "=", Verdict.INCONCLUSIVE: "?"}
ALIKE = "typical run alike"
LEGEND = f"* differs   = no difference   ≈ {ALIKE}   ? inconclusive"


def is_alike(found: Comparison | SlowComparison) -> bool:
    """Whether the typical run is shown to be as on the baseline, and rarer slow runs are not excluded."""
    return isinstance(found, Comparison) and found.alike


def mark(found: Comparison | SlowComparison) -> str:
    """The sign for a verdict."""
    return "≈" if is_alike(found) else MARKS[found.verdict]


def tone(found: Comparison | SlowComparison) -> Tone:
    """The colour for a verdict."""
    bounded = isinstance(found, Comparison) and found.is_bounded
    return Tone.SAME if bounded or is_alike(found) else TONES[found.verdict]


def word(comparison: Comparison, metric: Metric) -> str:
    """The word for a verdict; where none is given and any difference is small, how large it is at most."""
    if comparison.is_bounded and comparison.stated_interval is not None:
        return Claim.BOUNDED.format(most=_most(comparison.stated_interval, metric))
    return ALIKE if comparison.alike else label_verdict(comparison.verdict, metric)


def _most(ends: tuple[float, float], metric: Metric) -> str:
    """`8 % slower, 6 % faster`: how far the ends of a ratio's interval are from 1, on either side of it."""
    low, high = ends
    worse, better = (label_verdict(verdict, metric) for verdict in (Verdict.SLOWER, Verdict.FASTER))
    above, below = (worse, better) if metric.better is Better.LOWER else (better, worse)
    said = []
    if high > 1:
        said.append(f"{figures.percent(high - 1)} {above}")
    if low < 1:
        said.append(f"{figures.percent(1 - low)} {below}")
    return ", ".join(said)
