"""What the workload `boot` finds out besides its metrics."""

import msgspec

from guestmark.core.findings import Fact


class Initcall(msgspec.Struct):
    """One of the kernel's initcalls."""

    name: str
    seconds: float


class Initcalls(msgspec.Struct, kw_only=True):
    """The slowest ones, slowest first; how many there were of all, and their sum."""

    slowest: list[Initcall]
    count: int
    seconds: float


class Boot(Fact, kw_only=True):
    """The initcalls of a kernel that was made to say how long each took."""

    initcalls: Initcalls
