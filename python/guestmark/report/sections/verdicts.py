"""How verdicts are worded and marked."""

from guestmark.page.text import Tone
from guestmark.stats.compare import Verdict

TONES = {
    Verdict.FASTER: Tone.FASTER,
    Verdict.SLOWER: Tone.SLOWER,
    Verdict.NO_DIFFERENCE: Tone.SAME,
    Verdict.INCONCLUSIVE: Tone.UNCLEAR,
}
MARKS = {Verdict.FASTER: "*", Verdict.SLOWER: "*", Verdict.NO_DIFFERENCE: "=", Verdict.INCONCLUSIVE: "?"}
LEGEND = "* differs from the baseline   = no difference   ? inconclusive"
