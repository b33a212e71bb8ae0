"""What is measured of a network boot: its start once, its files in every round; from captures, but for `wall_s`."""

from dataclasses import dataclass

import msgspec

from guestmark.core.metric import Better, Metric

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
# The phases of a start, in order; they add up to the time from QEMU's start to the question what to do.
ROM = Metric("rom_s", "s")  # → the ROM's driver takes the card
LINK = Metric("link_s", "s")  # → the card's first packet, for which it waits until the link is up
DHCP = Metric("dhcp_s", "s")  # → the address is acknowledged
SCRIPT = Metric("script_s", "s")  # → iPXE has its script, and asks what to do
START = (ROM, LINK, DHCP, SCRIPT)
# With params.kernel, at the end of a boot.
KERNEL = Metric("kernel_s", "s")  # kernel and initramfs are fetched
HANDOVER = Metric("handover_s", "s")  # iPXE has them → the agent of the kernel answers
_MOST_FILES = 9  # whose times are metrics of their own

ALL = (
    DOWNLOAD, THROUGHPUT, CLIENT.mean, SERVER.mean, CLIENT_SHARE, SERVER_SHARE,
    CLIENT.p50, CLIENT.p99, CLIENT.max, SERVER.p50, SERVER.p99, SERVER.max,
    HANDSHAKE, RETRANSMITTED, ZERO_WINDOWS, WALL, *START,
)  # fmt: skip


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters as a stored plan has them; see `NetbootParams`."""

    size: str
    files: int
    port: int = 0
    kernel: bool = False
    certificate: str = ""


def of(params: Fetched) -> tuple[Metric, ...]:
    """What is measured with these parameters, in table order."""
    return (*ALL, *((KERNEL, HANDOVER) if params.kernel else ()), *each_file(params.files))


def each_file(files: int) -> tuple[Metric, ...]:
    """The time of each file of a round; nothing for a single one, whose time is `download_s`, or for many."""
    if not 1 < files <= _MOST_FILES:
        return ()
    return tuple(Metric(f"file_{number}_s", "s") for number in range(1, files + 1))
