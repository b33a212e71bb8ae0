"""Turns packets and QEMU's trace into a trial's measurements. Times are in seconds; shares are between 0 and 1.

Packets are stamped by QEMU's clock, which starts with the machine. The control server timed the same connections on
this host's clock. The smallest difference aligns the clocks, as other connections waited for the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.capture.binary import analyse_file
from guestmark.capture.model import Endpoint, Exchange, Trace
from guestmark.capture.startup import find_lease
from guestmark.core.errors import GuestmarkError, WorkloadError
from guestmark.core.metric import Measurement, Metric
from guestmark.platforms.place import open_plain_file
from guestmark.workloads import netboot
from guestmark.workloads.common.metrics import to_known_measurements
from guestmark.workloads.netboot import Lease, LeaseStep


@dataclass(frozen=True, slots=True)
class Fetch:
    """The transfer of one file: a connection, or over TFTP a transfer without handshake and window."""

    start_ns: int
    duration_s: float
    unique_bytes: int  # sent by the server
    retransmitted_bytes: int
    handshake_s: float | None = None
    zero_windows: int | None = None


def find_fetches(trace: Trace, files: int, size: int, protocol: str) -> list[Fetch]:
    """Returns the transfer of each file, in order. Raises `WorkloadError` if the capture does not hold them all."""
    if protocol == "tftp":
        found, what = _find_transfers(trace), "transfers"
    else:
        found, what = _find_connections(trace, size), "connections"
    if len(found) != files:
        raise WorkloadError(f"the capture contains {len(found)} {what} for {files} files")
    for fetch in found:
        if fetch.unique_bytes < size:
            raise WorkloadError(
                f"the capture contains only {fetch.unique_bytes} bytes from the server for a file of {size}"
            )
    return sorted(found, key=lambda fetch: fetch.start_ns)


def _find_connections(trace: Trace, size: int) -> list[Fetch]:
    found = []
    for connection in trace.connections:
        if connection.protocol != "tcp":
            continue
        client, server = connection.client, connection.server
        if server.missing_bytes:
            raise WorkloadError(
                f"the capture of {client.address}:{client.port} contains {server.unique_bytes} bytes from the server "
                f"and lacks {server.missing_bytes}, for a file of {size}"
            )
        found.append(
            Fetch(
                connection.start_ns,
                connection.duration_s,
                server.unique_bytes,
                client.retransmitted_bytes + server.retransmitted_bytes,
                connection.handshake_s,
                client.zero_windows + server.zero_windows,
            )
        )
    return found


def _find_transfers(trace: Trace) -> list[Fetch]:
    transfers = []
    for exchange in trace.exchanges:
        if exchange.protocol != "tftp":
            continue
        repeated_bytes = exchange.repeated * round(exchange.bytes / max(exchange.count, 1))
        transfers.append(Fetch(exchange.start_ns, exchange.duration_s, exchange.bytes, repeated_bytes))
    return transfers


def measure_round(trace: Trace, files: list[Fetch], size: int, wall_s: float) -> list[Measurement]:
    """Returns the metrics of one round of downloads; `wall_s` is their time on the host's clock."""
    total_s = sum(fetch.duration_s for fetch in files)
    count = len(files)
    values: list[tuple[Metric, float | None]] = [
        (netboot.DOWNLOAD, total_s / count),
        (netboot.THROUGHPUT, size * count / total_s),
        (netboot.WALL, wall_s),
    ]
    for role, own in netboot.RESPONSES.items():
        response = _find_endpoint(trace, role).response
        values += [
            (own.mean, response.mean_s),
            (own.p50, response.p50_s),
            (own.p99, response.p99_s),
            (own.max, response.max_s),
        ]
    own_times = netboot.list_file_metrics(count)
    values += [(metric, fetch.duration_s) for metric, fetch in zip(own_times, files, strict=bool(own_times))]
    values += [
        (netboot.CLIENT_SHARE, trace.shares.client),
        (netboot.SERVER_SHARE, trace.shares.server),
        (netboot.RETRANSMITTED, float(sum(fetch.retransmitted_bytes for fetch in files))),
    ]
    handshakes = [fetch.handshake_s for fetch in files if fetch.handshake_s is not None]
    windows = [fetch.zero_windows for fetch in files if fetch.zero_windows is not None]
    if handshakes:
        values.append((netboot.HANDSHAKE, sum(handshakes) / len(handshakes)))
    if windows:
        values.append((netboot.ZERO_WINDOWS, float(sum(windows))))
    missing = [metric.name for metric, value in values if value is None]
    if missing:
        raise WorkloadError(f"the capture does not show {', '.join(missing)}")
    return to_known_measurements(values)


def _find_endpoint(trace: Trace, role: str) -> Endpoint:
    for endpoint in trace.endpoints:
        if endpoint.role == role and endpoint.protocol in {None, "tcp", "udp"}:
            return endpoint
    raise WorkloadError(f"the capture shows no {role}")


# Ends of a machine's phases, in order, in seconds since QEMU was started.
CARD, LINK, ADDRESS, READY = "card", "link", "address", "ready"
_ENDS = ((netboot.ROM, CARD), (netboot.LINK, LINK), (netboot.DHCP, ADDRESS), (netboot.SCRIPT, READY))


def read_capture(capture: Path) -> Trace | None:
    """Returns the packets of a boot; None if they cannot be read, which does not fail a boot that worked."""
    try:
        open_plain_file(capture).close()
        return analyse_file(capture)
    except (GuestmarkError, OSError):
        return None


def find_first_packets(trace: Trace, control_port: int, accepted: Sequence[float]) -> dict[str, float]:
    """Returns the times of the first packet and of the address's assignment, on this host's clock.

    `accepted` are the times at which the control server accepted connections. Without a lease only the first packet is
    known; the result is empty if no connection has both times.
    """
    asked = sorted(
        connection.start_ns for connection in trace.connections if connection.server.port == control_port
    )
    late = [at - start / 1e9 for at, start in zip(accepted, asked, strict=False)]
    if not late:
        return {}
    ahead = min(late)
    lease = find_lease(trace)
    if lease is None:
        return {LINK: ahead + min(asked) / 1e9}
    begun = ahead + lease.start_ns / 1e9
    return {LINK: begun, ADDRESS: begun + (lease.granted_s or 0.0)}


def convert_lease(lease: Exchange | None) -> Lease | None:
    """Returns the lease in the form that a trial stores."""
    if lease is None:
        return None
    steps = [LeaseStep(message.at_s, message.kind, message.client) for message in lease.messages]
    return Lease(lease.duration_s, lease.client_s, lease.server_s, lease.recovery_s, steps)


def measure_start(phases: Mapping[str, float]) -> list[Measurement]:
    """Returns the phases of the start, which add up to `ready`; one without a known end is part of the next."""
    found, before = [], 0.0
    for metric, end in _ENDS:
        if end in phases:
            at = min(max(phases[end], before), phases[READY])
            found.append(Measurement(metric, at - before, (at - before,)))
            before = at
    return found
