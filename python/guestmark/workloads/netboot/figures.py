"""From the analysis of a capture to a trial's measurements. Times are seconds, shares parts of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guestmark.core.errors import WorkloadError
from guestmark.core.model import Measurement, Metric
from guestmark.workloads.netboot import metrics

if TYPE_CHECKING:
    from guestmark.capture.model import Connection, Endpoint, Trace


def check_connections(trace: Trace, files: int, size: int) -> list[Connection]:
    """The connections that carried the files. Raises `WorkloadError` when the capture does not hold them all."""
    connections = [connection for connection in trace.connections if connection.protocol == "tcp"]
    if len(connections) != files:
        raise WorkloadError(f"the capture holds {len(connections)} connections for {files} files")
    for connection in connections:
        if connection.server.unique_bytes < size or connection.server.missing_bytes:
            raise WorkloadError(
                f"the capture of {connection.client.address}:{connection.client.port} holds "
                f"{connection.server.unique_bytes} bytes of the server's, "
                f"{connection.server.missing_bytes} are missing, for a file of {size}"
            )
    return connections


def measured(trace: Trace, connections: list[Connection], size: int, wall_s: float) -> list[Measurement]:
    """Every metric of one round of downloads; `wall_s` is the time of all of them on the host's clock."""
    total_s = sum(connection.duration_s for connection in connections)
    count = len(connections)
    values: list[tuple[Metric, float | None]] = [
        (metrics.DOWNLOAD, total_s / count),
        (metrics.THROUGHPUT, size * count / total_s),
        (metrics.WALL, wall_s),
    ]
    for role, own in metrics.RESPONSES.items():
        response = _endpoint(trace, role).response
        values += [
            (own.mean, response.mean_s),
            (own.p50, response.p50_s),
            (own.p99, response.p99_s),
            (own.max, response.max_s),
        ]
    sides = [side for connection in connections for side in (connection.client, connection.server)]
    handshakes = [connection.handshake_s for connection in connections if connection.handshake_s is not None]
    values += [
        (metrics.CLIENT_SHARE, trace.shares.client),
        (metrics.SERVER_SHARE, trace.shares.server),
        (metrics.HANDSHAKE, sum(handshakes) / len(handshakes) if handshakes else None),
        (metrics.RETRANSMITTED, float(sum(side.retransmitted_bytes for side in sides))),
        (metrics.ZERO_WINDOWS, float(sum(side.zero_windows for side in sides))),
    ]
    missing = [metric.name for metric, value in values if value is None]
    if missing:
        raise WorkloadError(f"the capture does not tell {', '.join(missing)}")
    return [Measurement(metric, value, (value,)) for metric, value in values if value is not None]


def _endpoint(trace: Trace, role: str) -> Endpoint:
    for endpoint in trace.endpoints:
        if endpoint.role == role and endpoint.protocol in (None, "tcp"):
            return endpoint
    raise WorkloadError(f"the capture shows no {role}")
