"""The output of `fio --output-format=json`; every field that is used must be present.

Fields as in fio's own documentation (HOWTO, "JSON output"): `bw_bytes` are bytes a second of a job's own run time,
`clat_ns` the time from a request to its completion, which for synchronous engines is the system call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guestmark.core.errors import WorkloadError

_HINT = "guestmark reads the JSON of fio 3 (Debian 12 and 13); is this another version?"
_P99 = "99.000000"


@dataclass(frozen=True, slots=True)
class Direction:
    """Reads or writes of all jobs: bytes and operations a second, latencies in seconds (None without operations)."""

    bytes_per_s: float
    operations_per_s: float
    latency_avg_s: float | None
    latency_p99_s: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """One run. `bytes` is what was read and written together; `notes` is what fio said before the JSON."""

    version: str
    jobs: int
    read: Direction
    write: Direction
    sync_latency_avg_s: float | None
    runtime_s: float
    bytes: int
    notes: tuple[str, ...]


def parse(output: str) -> Report:
    """Reads fio's standard output. Raises `WorkloadError` with what is missing, or with the error of a job."""
    lines = output.splitlines()
    start = next((at for at, line in enumerate(lines) if line.strip() == "{"), None)
    if start is None:
        raise WorkloadError(f"fio printed no JSON: {' '.join(output.split())[-300:]!r}", hint=_HINT)
    try:
        found = json.loads("\n".join(lines[start:]))
    except json.JSONDecodeError as error:
        shown = lines[start + error.lineno - 1 : start + error.lineno]
        raise WorkloadError(
            f"line {start + error.lineno} of fio's output is no JSON ({error.msg}): {''.join(shown)[:200]!r}",
            hint=_HINT,
        ) from error
    jobs = _field(found, "jobs", list)
    if not jobs:
        raise WorkloadError("fio ran no job", hint="the job file needs a section such as [randrw]")
    for job in jobs:
        if _field(job, "error", int):
            raise WorkloadError(f"fio's job {job.get('jobname')!r} failed with error {job['error']}")
    syncs = [_field(_field(job, "sync", dict), "lat_ns", dict) for job in jobs]
    directions = [[_field(job, name, dict) for job in jobs] for name in ("read", "write")]
    return Report(
        version=_field(found, "fio version", str).removeprefix("fio-"),
        jobs=len(jobs),
        read=_direction(directions[0]),
        write=_direction(directions[1]),
        sync_latency_avg_s=_mean([sync for sync in syncs if "N" in sync]),
        runtime_s=max(_field(direction, "runtime", int) for some in directions for direction in some) / 1e3,
        bytes=sum(_field(direction, "io_bytes", int) for some in directions for direction in some),
        notes=tuple(line.strip() for line in lines[:start] if line.strip()),
    )


def _direction(parts: Sequence[Mapping[str, Any]]) -> Direction:
    latencies = [_field(part, "clat_ns", dict) for part in parts]
    tails = [latency["percentile"][_P99] for latency in latencies if _P99 in latency.get("percentile", {})]
    return Direction(
        bytes_per_s=float(sum(_field(part, "bw_bytes", int) for part in parts)),
        operations_per_s=float(sum(_field(part, "iops", int, float) for part in parts)),
        latency_avg_s=_mean(latencies),
        latency_p99_s=max(tails) / 1e9 if tails else None,
    )


def _mean(latencies: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean over all requests, seconds."""
    count = sum(_field(latency, "N", int) for latency in latencies)
    return (
        sum(_field(latency, "mean", int, float) * latency["N"] for latency in latencies) / count / 1e9
        if count
        else None
    )


def _field(table: Any, name: str, *kinds: type) -> Any:
    value = table.get(name) if isinstance(table, dict) else None
    if not isinstance(value, kinds) or isinstance(value, bool):
        what = "is not there" if value is None else f"is {value!r:.60}"
        raise WorkloadError(f"{name!r} {what} in fio's JSON", hint=_HINT)
    return value
