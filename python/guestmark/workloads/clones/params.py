"""The workload `clones` in plans: how many machines are looked at."""

from pydantic import Field

from guestmark.plan.schema import Strict


class Clones(Strict):
    """`machines`: how many are started one after the other and compared, `controls`: how many of each control.

    More machines find rarer faults; the report says which share of faulty ones would have been seen.
    """

    machines: int = Field(default=10, ge=2, le=1000)
    controls: int = Field(default=3, ge=2, le=100)
