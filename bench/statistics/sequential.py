"""Decide whether a simulated error rate keeps its limit, examined after every run.

Wald's sequential probability ratio test (A. Wald, "Sequential Tests of Statistical Hypotheses", Annals of Mathematical
Statistics 16, 1945) of the limit against twice the limit. A rate at its limit is called broken in at most `FALSE_ALARM`
of examinations, a doubled one is missed in at most `MISSED`. Where nothing is wrong it takes a quarter of the runs that
a fixed number with the same two errors would take.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MISSED = 0.09  # one in ten with the few more that a random number of runs misses
FALSE_ALARM = 0.001
MOST = 2_000  # runs, after which a rate between the limit and its double counts as kept if it is nearer to the limit


@dataclass(slots=True)
class RateTest:
    """One error rate against its `limit`; `kept` is None until it is decided."""

    limit: float
    runs: int = 0
    errors: int = 0
    evidence: float = 0.0  # log of the likelihood ratio: the doubled rate over the limit
    kept: bool | None = None

    def add(self, error: bool) -> None:
        """Add the outcome of one run; after a decision it is only counted."""
        doubled = 2 * self.limit
        self.runs += 1
        self.errors += error
        if self.kept is not None:
            return
        self.evidence += math.log(doubled / self.limit if error else (1 - doubled) / (1 - self.limit))
        if self.evidence >= math.log((1 - MISSED) / FALSE_ALARM):
            self.kept = False
        elif self.evidence <= math.log(MISSED / (1 - FALSE_ALARM)):
            self.kept = True
        elif self.runs >= MOST:
            self.kept = self.evidence < 0

    def __str__(self) -> str:
        return f"{self.errors} of {self.runs}, limit {self.limit:g}"


def examine_rates(
    limits: Mapping[str, float], run: Callable[[int], Mapping[str, bool]]
) -> dict[str, RateTest]:
    """Simulate run after run until every rate is decided. `run(number)` returns the errors of that run."""
    tests = {name: RateTest(limit) for name, limit in limits.items()}
    number = 0
    while any(test.kept is None for test in tests.values()):
        for name, error in run(number).items():
            tests[name].add(error)
        number += 1
    return tests
