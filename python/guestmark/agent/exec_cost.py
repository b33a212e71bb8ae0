"""Measures the cost of running a command in a machine whose commands are timed from outside."""

from __future__ import annotations

import statistics

from guestmark.agent.client import Agent
from guestmark.core.errors import MachineError
from guestmark.core.findings import ExecCost

# One more is run first, and not counted. The second smallest and the second largest of nine hold the median in 96 % of
# cases, whatever the distribution (binomial).
_EMPTY_COMMANDS = 9
_LIMIT_S = 30.0


def measure_exec_cost(agent: Agent) -> ExecCost:
    """Run an empty command several times and return its cost. Raises `MachineError` if one fails."""
    runs = [agent.exec(["true"], timeout_s=_LIMIT_S) for _ in range(_EMPTY_COMMANDS + 1)][1:]
    if not all(run.ok for run in runs):
        raise MachineError("an empty command failed in the machine", hint="exec … true must always succeed")
    walls = sorted(run.wall_s for run in runs)
    return ExecCost(wall_s=statistics.median(walls), low_s=walls[1], high_s=walls[-2])
