"""Small plans and trials, to fill ledgers with."""

import random

from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, Plan, Policy, Trial, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import HOST

WALL = Metric("wall_s", "s")
PLAN = Plan("exec", (Cell("host", WorkloadSpec("exec", {}, "true"), HOST, {}, True),), Policy(), (WALL,))
INCOMPRESSIBLE = random.Random(1).randbytes(150_000).decode("latin-1")  # for a console


def trial(block: int, console: str = "") -> Trial:
    """Return a trial of the only cell of `PLAN`, with 50 iterations."""
    measurements = (Measurement(WALL, float(block), tuple(map(float, range(50)))),)
    return Trial("host", block, 0, TrialStatus.OK, measurements=measurements, console=console)
