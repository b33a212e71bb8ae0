"""As much of an analysis as a picture needs, small enough to be kept with every trial."""

from __future__ import annotations

import msgspec

from guestmark.capture.model import Trace

_POINTS = 600  # of the time-sequence view


def drawn(trace: Trace) -> Trace:
    """The endpoints with their histograms, and one connection in time."""
    sequence = trace.sequence
    if sequence is not None and len(sequence.points) > _POINTS:
        step = -(-len(sequence.points) // _POINTS)
        sequence = msgspec.structs.replace(
            sequence, points=sequence.points[::step], stride=sequence.stride * step
        )
    wanted = sequence.connection if sequence is not None else None
    connections = [connection for connection in trace.connections if connection.index == wanted]
    return msgspec.structs.replace(trace, file="", connections=connections, sequence=sequence)
