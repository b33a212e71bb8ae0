"""What the workload `oltp` finds out besides its metrics."""

import msgspec

from guestmark.core.findings import Fact
from guestmark.core.machine_facts import Confined

SERVER = "server"  # the name of the server's program; sysbench has none


class Oltp(Fact, kw_only=True):
    """The server as it was called, and how long what is outside of the timing took; the client is a `Sysbench`."""

    prepared_s: float | None = msgspec.field(name="database_prepared_s", default=None)
    from_cache: bool | None = msgspec.field(name="database_from_cache", default=None)
    server: str | None = None  # as it names itself
    server_command: str | None = None
    server_start_s: float | None = None
    server_stop_s: float | None = None
    confined_server: Confined | None = None  # on this host
    server_log: str | None = None  # its end, when something went wrong
