"""The workload `clones` in plans: how many machines are looked at."""

from guestmark.plan.schema import Strict, param


class Clones(Strict):
    """`machines`: how many are started one after the other and compared, `controls`: how many of each control.

    More machines find rarer faults; the report says which share of faulty ones would have been seen.
    """

    machines: int = param(10, "machines that are compared", ge=2, le=1000)
    controls: int = param(3, "machines of each control", ge=2, le=100)
