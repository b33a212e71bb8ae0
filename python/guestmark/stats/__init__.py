"""Statistics: pure functions on arrays, one row per block, NaN where a trial is missing (docs/reference/statistics.md).

Importing this costs numpy.
"""

import guestmark.core.single_threaded_blas  # noqa: F401  (before anything imports numpy)
from guestmark.stats.compare import (
    Comparison,
    Estimand,
    Table,
    Verdict,
    adjust,
    blocks_to_claim,
    compare_table,
    compare_tables,
    downgraded,
    label,
    noise_floor,
    null_differs,
)
from guestmark.stats.noise import THRESHOLDS, Null, flag_blocks
from guestmark.stats.paired import (
    Summary,
    log_ratios,
    median_interval,
    reduce_iterations,
    sign_flip_p,
    summarise,
    t_interval,
    t_quantile,
)
from guestmark.stats.repetition import (
    Pilot,
    blocks_needed,
    choose_iterations,
    half_width,
    precise_enough,
    predicted_half_width,
    wanted_half_width,
    warmup_needed,
)
from guestmark.stats.tails import CellRuns, Unseen, cell_runs, unseen
from guestmark.stats.trials import Answers, SlowComparison, compare_slow, compare_trials
from guestmark.stats.validity import Finding, Severity, clock_disagreement, order_effects, trend

__all__ = [
    "THRESHOLDS",
    "Answers",
    "CellRuns",
    "Comparison",
    "Estimand",
    "Finding",
    "Null",
    "Pilot",
    "Severity",
    "SlowComparison",
    "Summary",
    "Table",
    "Unseen",
    "Verdict",
    "adjust",
    "blocks_needed",
    "blocks_to_claim",
    "cell_runs",
    "choose_iterations",
    "clock_disagreement",
    "compare_slow",
    "compare_table",
    "compare_tables",
    "compare_trials",
    "downgraded",
    "flag_blocks",
    "half_width",
    "label",
    "log_ratios",
    "median_interval",
    "noise_floor",
    "null_differs",
    "order_effects",
    "precise_enough",
    "predicted_half_width",
    "reduce_iterations",
    "sign_flip_p",
    "summarise",
    "t_interval",
    "t_quantile",
    "trend",
    "unseen",
    "wanted_half_width",
    "warmup_needed",
]
