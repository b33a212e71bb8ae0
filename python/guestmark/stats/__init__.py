"""Statistics: pure functions on arrays, one row per block, NaN where a trial is missing (docs/reference/statistics.md).

Importing this package imports numpy.
"""

import guestmark.core.single_threaded_blas  # noqa: F401  (before anything imports numpy)
from guestmark.stats.cell_answers import Answers, SlowComparison, compare_slow_runs, compare_trials
from guestmark.stats.compare import (
    Comparison,
    Estimand,
    Table,
    Verdict,
    adjust_benjamini_hochberg,
    compare_table,
    compare_tables,
    count_blocks_to_claim,
    downgrade_verdict,
    estimate_noise_floor,
    label_verdict,
    null_differs,
)
from guestmark.stats.noise import THRESHOLDS, Null, flag_blocks
from guestmark.stats.paired import (
    Summary,
    log_ratios,
    median_interval,
    reduce_iterations,
    sign_flip_p,
    summarise_trials,
    t_interval,
    t_quantile,
)
from guestmark.stats.repetition import (
    Pilot,
    choose_iterations,
    compute_wanted_half_width,
    count_needed_blocks,
    count_needed_warmups,
    half_width,
    is_precise_enough,
    predict_half_width,
)
from guestmark.stats.tails import CellRuns, Unseen, bound_unseen_events, describe_cell_runs
from guestmark.stats.validity import (
    Finding,
    Severity,
    detect_clock_disagreement,
    detect_order_effects,
    detect_trend,
)

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
    "adjust_benjamini_hochberg",
    "bound_unseen_events",
    "choose_iterations",
    "compare_slow_runs",
    "compare_table",
    "compare_tables",
    "compare_trials",
    "compute_wanted_half_width",
    "count_blocks_to_claim",
    "count_needed_blocks",
    "count_needed_warmups",
    "describe_cell_runs",
    "detect_clock_disagreement",
    "detect_order_effects",
    "detect_trend",
    "downgrade_verdict",
    "estimate_noise_floor",
    "flag_blocks",
    "half_width",
    "is_precise_enough",
    "label_verdict",
    "log_ratios",
    "median_interval",
    "null_differs",
    "predict_half_width",
    "reduce_iterations",
    "sign_flip_p",
    "summarise_trials",
    "t_interval",
    "t_quantile",
]
