"""What is measured of a network boot; from the capture, but for `wall_s`."""

from dataclasses import dataclass

from guestmark.core.model import Better, Metric

DOWNLOAD = Metric(
    "download_s", "s"
)  # of one file, first packet of its connection to the last; mean over the files
THROUGHPUT = Metric("throughput", "B/s", Better.HIGHER)  # bytes of the files, in the same time
WALL = Metric("wall_s", "s")  # of all files together, by the host's clock, from iPXE's own messages
CLIENT_SHARE = Metric("client_share", "")  # of the connections' time that the client took to respond
SERVER_SHARE = Metric("server_share", "")
HANDSHAKE = Metric("handshake_s", "s")
RETRANSMITTED = Metric("retransmitted_bytes", "B")
ZERO_WINDOWS = Metric("zero_windows", "")


@dataclass(frozen=True, slots=True)
class Responses:
    """One endpoint's response latency."""

    mean: Metric
    p50: Metric
    p99: Metric
    max: Metric

    def all(self) -> tuple[Metric, ...]:
        """In table order."""
        return (self.mean, self.p50, self.p99, self.max)


def _responses(role: str) -> Responses:
    return Responses(*(Metric(f"{role}_{what}_s", "s") for what in ("mean", "p50", "p99", "max")))


RESPONSES = {"client": _responses("client"), "server": _responses("server")}
CLIENT, SERVER = RESPONSES["client"], RESPONSES["server"]
ALL = (
    DOWNLOAD, THROUGHPUT, CLIENT.mean, SERVER.mean, CLIENT_SHARE, SERVER_SHARE,
    CLIENT.p50, CLIENT.p99, CLIENT.max, SERVER.p50, SERVER.p99, SERVER.max,
    HANDSHAKE, RETRANSMITTED, ZERO_WINDOWS, WALL,
)  # fmt: skip
