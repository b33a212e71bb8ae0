"""What a session of libguestfs's API measures."""

from guestmark.core.model import Better, Metric
from guestmark.workloads.common.metrics import LAUNCH

WALL = Metric("wall_s", "s")  # of the session, between launch and shutdown
CALLS = Metric("rate", "calls/s", Better.HIGHER)
SESSION = (WALL, CALLS, LAUNCH)
