"""Statistics: pure functions on arrays of one value per block, NaN where a trial is missing
(docs/reference/statistics.md).

Importing this costs numpy; scipy is imported when first needed.
"""

from guestmark.stats.compare import Comparison, Verdict, compare_table, downgraded, label, null_differs
from guestmark.stats.multiple import adjust, blocks_to_claim
from guestmark.stats.noise import THRESHOLDS, flag_blocks, noise_floor
from guestmark.stats.paired import equivalence_p, log_ratios, median_interval, sign_flip_p, t_interval
from guestmark.stats.repetition import (
    blocks_needed,
    half_width,
    iterations_for,
    kalibera_jones,
    precise_enough,
    variance_components,
)
from guestmark.stats.summary import Summary, reduce_iterations, summarise
from guestmark.stats.warmup import steady_from

__all__ = [
    "THRESHOLDS",
    "Comparison",
    "Summary",
    "Verdict",
    "adjust",
    "blocks_needed",
    "blocks_to_claim",
    "compare_table",
    "downgraded",
    "equivalence_p",
    "flag_blocks",
    "half_width",
    "iterations_for",
    "kalibera_jones",
    "label",
    "log_ratios",
    "median_interval",
    "noise_floor",
    "null_differs",
    "precise_enough",
    "reduce_iterations",
    "sign_flip_p",
    "steady_from",
    "summarise",
    "t_interval",
    "variance_components",
]
