"""What the workload `fio` finds out besides its metrics."""

import msgspec

from guestmark.core.findings import Fact


class Fio(Fact, kw_only=True):
    """The program as it names itself."""

    version: str | None = msgspec.field(name="fio", default=None)
