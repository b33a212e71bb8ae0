"""What the workload `sysbench` finds out besides its metrics."""

import msgspec

from guestmark.core.findings import Fact


class Sysbench(Fact, kw_only=True):
    """How sysbench was called, and how long making and removing its files took, outside of the timing."""

    version: str | None = msgspec.field(name="sysbench", default=None)
    command: str | None = msgspec.field(name="sysbench_command", default=None)
    prepare_s: float | None = msgspec.field(name="sysbench_prepare_s", default=None)
    prepare_flush_s: float | None = None
    cleanup_s: float | None = msgspec.field(name="sysbench_cleanup_s", default=None)
