"""What libguestfs's workloads find out besides their metrics."""

import msgspec

from guestmark.core.findings import Fact
from guestmark.core.machine_facts import Confined


class Guestfs(Fact, kw_only=True):
    """The program, the QEMU that it started, and of `guestfs-run` the launch that the phases are of."""

    version: str | None = msgspec.field(name="guestfish", default=None)
    qemu: list[str] | None = msgspec.field(name="libguestfs_qemu", default=None)  # its command line
    confined: Confined | None = msgspec.field(name="libguestfs_confined", default=None)
    calls: int | None = None  # of the API, in a session
    traced_ready_s: float | None = None  # the time to ready of the launch that was traced
    appliance_s: float | None = None  # before the guest's start: the appliance is looked at
    features_s: float | None = None  # then what QEMU can do
