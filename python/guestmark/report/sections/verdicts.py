"""How verdicts are worded and marked."""

from guestmark.core.metric import Metric
from guestmark.page.text import Tone
from guestmark.stats.compare import Comparison, Verdict, label
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
    return Tone.SAME if is_alike(found) else TONES[found.verdict]


def word(comparison: Comparison, metric: Metric) -> str:
    """The word for a verdict."""
    return ALIKE if comparison.alike else label(comparison.verdict, metric)
