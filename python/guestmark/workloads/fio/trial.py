"""The trial of `fio`: the distribution's fio with the user's job file, whose files are laid out before timing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guestmark.agent.client import ExecResult
from guestmark.core.cause import Cause, Speaker, classify_message
from guestmark.core.errors import PlatformUnusableError, WorkloadError
from guestmark.core.findings import TARGET
from guestmark.core.metric import Measurement, Metric
from guestmark.core.metric_spec import GUEST_WALL, SYSTEM, USER, WALL
from guestmark.core.model import Cell, Plan
from guestmark.disks.mounted import locate_working_directory
from guestmark.platforms.base import Machine
from guestmark.setting.disk import Disks
from guestmark.workloads import fio
from guestmark.workloads.common.flushes import CounterReading
from guestmark.workloads.common.metrics import THROUGHPUT, to_known_measurements
from guestmark.workloads.common.moving import (
    explain_host_cache,
    find_target,
    list_remarks,
    sync_everything,
    warn_of_caches,
)
from guestmark.workloads.common.program import OUTPUT_LIMIT, compare_program, judge_exit, quote_output
from guestmark.workloads.fio import JOB_FILE, Fio, FioParams, FioWorkload, build_job_environment
from guestmark.workloads.sysbench import READ_THROUGHPUT, READS, WRITE_THROUGHPUT, WRITES

_HINT = "guestmark parses the JSON of fio 3 (Debian 12 and 13); check fio --version"
_P99 = "99.000000"


@dataclass(frozen=True, slots=True)
class Direction:
    """Reads or writes of all jobs: bytes and operations a second; latencies in seconds, None without operations."""

    bytes_per_s: float
    operations_per_s: float
    latency_avg_s: float | None
    latency_p99_s: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one run. `bytes` counts reads and writes; `notes` are the lines before fio's JSON."""

    version: str
    jobs: int
    read: Direction
    write: Direction
    sync_latency_avg_s: float | None
    runtime_s: float
    bytes: int
    notes: tuple[str, ...]


def parse_report(output: str) -> Report:
    """Parses fio's standard output. Raises `WorkloadError` that names what is missing, or the error of a job."""
    lines = output.splitlines()
    # fio prints warnings before its JSON, even on standard output.
    start = _find_json_start(lines)
    if start is None:
        raise WorkloadError(f"fio printed no JSON: {' '.join(output.split())[-300:]!r}", hint=_HINT)
    try:
        found = json.loads("\n".join(lines[start:]))
    except json.JSONDecodeError as error:
        shown = lines[start + error.lineno - 1 : start + error.lineno]
        raise WorkloadError(
            f"line {start + error.lineno} of fio's output is not JSON ({error.msg}): {''.join(shown)[:200]!r}",
            hint=_HINT,
        ) from error
    jobs = _read_field(found, "jobs", list)
    if not jobs:
        raise WorkloadError("fio ran no job", hint="the job file needs a section such as [randrw]")
    for job in jobs:
        if _read_field(job, "error", int):
            raise WorkloadError(f"fio's job {job.get('jobname')!r} failed with error {job['error']}")
    syncs = [_read_field(_read_field(job, "sync", dict), "lat_ns", dict) for job in jobs]
    reads = [_read_field(job, "read", dict) for job in jobs]
    writes = [_read_field(job, "write", dict) for job in jobs]
    directions = [*reads, *writes]
    return Report(
        version=_read_field(found, "fio version", str).removeprefix("fio-"),
        jobs=len(jobs),
        read=_parse_direction(reads),
        write=_parse_direction(writes),
        sync_latency_avg_s=_mean_latency([sync for sync in syncs if "N" in sync]),
        runtime_s=max(_read_field(direction, "runtime", int) for direction in directions) / 1e3,
        bytes=sum(_read_field(direction, "io_bytes", int) for direction in directions),
        notes=tuple(line.strip() for line in lines[:start] if line.strip()),
    )


def _find_json_start(lines: Sequence[str]) -> int | None:
    for number, line in enumerate(lines):
        if line.strip() == "{":
            return number
    return None


def _parse_direction(parts: Sequence[Mapping[str, Any]]) -> Direction:
    latencies = [_read_field(part, "clat_ns", dict) for part in parts]
    tails = [latency["percentile"][_P99] for latency in latencies if _P99 in latency.get("percentile", {})]
    return Direction(
        bytes_per_s=float(sum(_read_field(part, "bw_bytes", int) for part in parts)),
        operations_per_s=float(sum(_read_field(part, "iops", int, float) for part in parts)),
        latency_avg_s=_mean_latency(latencies),
        latency_p99_s=max(tails) / 1e9 if tails else None,
    )


def _mean_latency(latencies: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the mean latency of all requests, in seconds."""
    count, total_ns = 0, 0.0
    for latency in latencies:
        requests = _read_field(latency, "N", int)
        count += requests
        total_ns += _read_field(latency, "mean", int, float) * requests
    return total_ns / count / 1e9 if count else None


def _read_field(table: Any, name: str, *kinds: type) -> Any:
    value = table.get(name) if isinstance(table, dict) else None
    if not isinstance(value, kinds) or isinstance(value, bool):
        what = "is missing" if value is None else f"is {value!r:.60}"
        raise WorkloadError(f"{name!r} {what} in fio's JSON", hint=_HINT)
    return value


FIO = "fio"
_FLUSHES = re.compile(
    r"^\s*(?:sync|end_fsync|fsync_on_close)\s*(?:=\s*(?!0\b|none\b|false\b)\S|$)", re.MULTILINE
)


def requests_flushes(job: str) -> bool:
    """Returns whether a job requests flushes that fio's report does not count: by O_SYNC, or at the end of a file."""
    return bool(_FLUSHES.search(job))


def asks_for_direct_io(job: str) -> bool:
    """Returns whether a job, or a part of it, uses O_DIRECT."""
    lines = {line.replace(" ", "").lower() for line in job.splitlines()}
    return not lines.isdisjoint({"direct=1", "direct=true", "direct"})


class FioTrial(FioWorkload):
    """Runs the job file; its working directory is on the disk under test."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        path = plan.context.path
        self._env = {"PATH": path, "LC_ALL": "C", **build_job_environment(self.params.values, cell.levels)}
        self._cwd = "/"

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Returns remarks on jobs whose O_DIRECT ends at the host's page cache.

        Raises `PlatformUnusableError`, which names the package, if fio is not installed.
        """
        path = plan.context.path
        if any(cell.shares_root for cell in cells) and shutil.which(FIO, path=path) is None:
            raise PlatformUnusableError("fio is not installed", hint="install the package fio")
        direct = [cell for cell in cells if asks_for_direct_io(cell.workload.read_params(FioParams).job)]
        return list_remarks((cell, explain_host_cache(cell, cell.view(Disks).target)) for cell in direct)

    def prepare(self, machine: Machine) -> None:
        """Mounts the disk, lays out the job's files and removes them from the caches of the machine and the host."""
        agent, disk = machine.agent, find_target(machine)
        found = compare_program(agent, FIO, path=self._env["PATH"], cwd="/", cell=self.cell)
        found.add_facts(self.facts)
        if found.warning:
            self.warnings.append(found.warning)
        self._cwd = disk.mount(agent)
        self.facts.add(disk.facts, TARGET)
        agent.write_file(f"{self._cwd}/{JOB_FILE}", self.params.job.encode())
        before = self._count_used_bytes(machine)
        self._run_fio(machine, "--create_only=1")
        self._warn_of_memory(machine, self._count_used_bytes(machine) - before)
        disk.image.flush()
        self._cwd = disk.remount(agent)
        self.warnings += warn_of_caches(disk)
        self.facts.add(locate_working_directory(agent, self._cwd))

    def run(self, machine: Machine) -> list[Measurement]:
        """Runs the job file once. Raises `WorkloadError` if a job fails or the JSON is not that of fio 3."""
        sync_everything(machine.agent)
        below = CounterReading.read_before(machine)
        result = self._run_fio(machine)
        report = parse_report(result.stdout.decode(errors="replace"))
        changes = below.read_changes(
            flushed=bool(report.sync_latency_avg_s) or requests_flushes(self.params.job)
        )
        changes.add_facts(self.facts)
        self.facts.add(Fio(version=report.version))
        self.warnings += [f"fio: {note}" for note in report.notes]
        values: list[tuple[Metric, float | None]] = [
            (THROUGHPUT, report.read.bytes_per_s + report.write.bytes_per_s),
            (fio.OPERATIONS, report.read.operations_per_s + report.write.operations_per_s),
            (READ_THROUGHPUT, report.read.bytes_per_s or None),
            (WRITE_THROUGHPUT, report.write.bytes_per_s or None),
            (READS, report.read.operations_per_s or None),
            (WRITES, report.write.operations_per_s or None),
            (fio.READ_LATENCY, report.read.latency_avg_s),
            (fio.READ_P99, report.read.latency_p99_s),
            (fio.WRITE_LATENCY, report.write.latency_avg_s),
            (fio.WRITE_P99, report.write.latency_p99_s),
            (fio.SYNC_LATENCY, report.sync_latency_avg_s),
            (fio.RUNTIME, report.runtime_s),
            (WALL, result.wall_s),
            (GUEST_WALL, result.guest_wall_s),
            (USER, result.user_s),
            (SYSTEM, result.system_s),
        ]
        measured = to_known_measurements(values)
        if report.bytes:
            measured += changes.to_measurements(report.bytes)
        return measured

    def cleanup(self, machine: Machine) -> None:
        """Unmounts a loop device; a guest's disk is removed with the guest, and a directory with the trial."""
        disk = find_target(machine)
        if disk.spec.loop and disk.device:
            disk.umount(machine.agent, drop_caches=False)

    def _run_fio(self, machine: Machine, *more: str) -> ExecResult:
        result = machine.agent.exec(
            [FIO, "--output-format=json", *more, JOB_FILE],
            env=self._env,
            cwd=self._cwd,
            timeout_s=self.limit_s,
            output_limit=OUTPUT_LIMIT,
        )
        said = result.stderr.decode(errors="replace")
        if (
            result.status not in (0, None)
            and classify_message(Speaker.ANY, said + result.stdout.decode(errors="replace")).cause
            is Cause.NO_ROOM
        ):
            raise WorkloadError(
                f"the files of the fio job do not fit on the disk{quote_output(said)}",
                hint="use a larger disk (--set size=8G), a smaller size in the job file, or --scale",
                cause=Cause.NO_ROOM,
            )
        judge_exit(result, self.warnings, self.limit_s)
        return result

    def _count_used_bytes(self, machine: Machine) -> int:
        there = machine.agent.statfs(self._cwd)
        return (there.blocks - there.free) * there.block_size

    def _warn_of_memory(self, machine: Machine, size: int) -> None:
        memory = machine.agent.read_facts().mem_total_kib * 1024
        if not asks_for_direct_io(self.params.job) and size < memory:
            self.warnings.append(
                f"the files ({size / 2**20:.0f}M) are smaller than the machine's memory ({memory / 2**20:.0f}M) and "
                "the job has no direct=1: the page cache is measured, not the disk"
            )
