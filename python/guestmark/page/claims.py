"""All sentences of reports that claim something.

`bench/statistics/SENTENCES.md` lists how often each is false, and how often it is found if it is true; a test compares
the two lists, so that every sentence has its rates.
"""

from enum import StrEnum


class Claim(StrEnum):
    """Sentences with placeholders; each member's name is that of its row in the list."""

    DIFFERS = " times {word} than "
    EQUAL = "No difference from {baseline}, within {margin}: {cells}."
    ALIKE = "Typical run as on {baseline}, within {margin}: {cells}. Events rarer than {rare} of {units} may be missed."
    BOUNDED = "at most {most}"
    SLOW_RUNS = "Slow runs: {baseline}; {cells}: {word}"
    DETECTABLE = "At least 3 in 4 such runs would find a difference of {size} in the typical run"
    FEWEST_FOR_FORECAST = (
        "{precision} in {left}; runs {factor} times as slow, {often}, would be found by 9 in 10 such runs in "
        "{rare_left}"
    )
    FINDABLE = "9 in 10 such runs would find slow runs that are {share} of all and independent of each other"
    DRIFT = "Drift: {ratio} from the first of {runs} to the last"
    NO_DRIFT = "No drift shown: {ratio} from the first of {runs} to the last"
    COPIES_DIFFER = (
        "Equal cells differ: {copy} to {cell}: {ratio}. All intervals of {metric} are wider by that much."
    )
    COPIES_ALIKE = "Copies of one cell, {copy} to {cell}: {ratio}, equal as expected"
    CHANGED = "{earlier}; this one is {ratio} of them: changed"
    NOT_CHANGED = "{earlier}; this one is {ratio} of them: no change shown"
    ONE_SESSION = "in 95 of 100 cases, one session lies within ±{size} of the mean of sessions"
    FASTEST = " Fastest {where}: {platform}."
    QUICKEST = "Quickest channel {where}: {platform}'s"
    FILESYSTEM_DIFFERS = "All else is equal, virtio too: the filesystem makes that difference."
    FILESYSTEM_ALIKE = "The typical run does not depend on the filesystem, within {margin}."
    PUBLISHED_HOLDS = "the published conclusion holds"
    PUBLISHED_FAILS = "it does not hold here."
    PUBLISHED_EXCLUDED = "a difference that large is excluded; whether there is a smaller one is open."
    PUBLISHED_AGREES = "which agrees"
    PUBLISHED_FACTOR = "the same direction, by another factor"
    PUBLISHED_OUTSIDE = "which is excluded here"
    BEST = " is {superlative}"
    GATE_BROKEN = "broken"
    GATE_BY_USER = "by user time, as other programs used {share} of the processors"
    GATE_KEPT = "kept"
    GATE_FINDS = "at least 3 in 4 such runs would find it broken at {size} or worse"
    SESSIONS_FIND = "Sessions that would find {gate} broken at least 3 times in 4: {sizes}"
    FIRST_BAD = " is the first bad commit"
    RUNS_HIGHER = "higher"
    RUNS_LOWER = "lower"
    RUNS_ALIKE = "no difference shown"
    CHANGE_POINT = "Change at {run}: from {before} to {after}"
    NO_CHANGE_POINT = "No change point."
    MORE_TIME = "would give {then}"
    EFFECT = "* the interval excludes ×1"
    RACE_BEST = "Best{among}: {cell}"
    RACE_LEADS = "In the lead{among}: {cell}"
    RACE_DROPPED = "Dropped configurations, with their blocks and the reason"
    MACHINE_DIFFERS = "{machine} differs from the others of class {kind} in {cell}"
    MACHINE_MOVED = "{machine}: {cell} {rose} by {size} over its blocks"
    QUANTILE = "intervals at 95 % with two blocks or more, wider if the starts of a block are alike"
    SCALES = "intervals at 95 % over blocks"
    MORE_WOULD_DO_MORE = ", and more machines would do more"
    NO_TWINS = "twins would have been seen (95 %) if they were {share} of the machines or more"
    UNANSWERED = "all {count} answered, so at most {share} never do"
