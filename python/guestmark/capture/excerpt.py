"""As much of an analysis as a picture needs, small enough to be kept with every trial."""

from __future__ import annotations

from typing import Any

import msgspec

from guestmark.capture.model import Trace

PICTURE = "capture_picture"  # its name among a trial's facts
_POINTS = 600  # of the time-sequence view


def drawn(trace: Trace) -> dict[str, Any]:
    """The endpoints with their histograms, and one connection in time, as plain JSON values."""
    sequence = trace.sequence
    if sequence is not None and len(sequence.points) > _POINTS:
        step = -(-len(sequence.points) // _POINTS)
        sequence = msgspec.structs.replace(
            sequence, points=sequence.points[::step], stride=sequence.stride * step
        )
    wanted = sequence.connection if sequence is not None else None
    connections = [one for one in trace.connections if one.index == wanted]
    plain: dict[str, Any] = msgspec.to_builtins(
        msgspec.structs.replace(trace, file="", connections=connections, sequence=sequence)
    )
    return plain


def read(plain: Any) -> Trace | None:
    """What `drawn` made; None for anything else."""
    try:
        return msgspec.convert(plain, Trace)
    except msgspec.ValidationError:
        return None
