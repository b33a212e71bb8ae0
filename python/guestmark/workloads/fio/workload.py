"""The distribution's own fio with the user's job file; its files are laid out before the timing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from guestmark.core.cause import Cause, Speaker, heard
from guestmark.core.errors import PlatformUnusableError, WorkloadError
from guestmark.core.findings import TARGET
from guestmark.core.metric import Measurement, Metric
from guestmark.core.metric_spec import GUEST_WALL, SYSTEM, USER, WALL
from guestmark.core.model import Cell, Plan
from guestmark.disks.mounted import working_directory
from guestmark.workloads.base import Workload
from guestmark.workloads.common.durability import Below
from guestmark.workloads.common.metrics import THROUGHPUT
from guestmark.workloads.common.moving import measured, sync_everything, target_of
from guestmark.workloads.common.program import OUTPUT_LIMIT, find_same, judge, quote
from guestmark.workloads.fio import metrics
from guestmark.workloads.fio import output as fio_report
from guestmark.workloads.fio.facts import Fio
from guestmark.workloads.fio.variables import JOB_FILE, FioJob, environment
from guestmark.workloads.sysbench.metrics import READ_THROUGHPUT, READS, WRITE_THROUGHPUT, WRITES

if TYPE_CHECKING:
    from guestmark.agent.client import ExecResult
    from guestmark.platforms.base import Machine

FIO = "fio"
_FLUSHES = re.compile(
    r"^\s*(?:sync|end_fsync|fsync_on_close)\s*(?:=\s*(?!0\b|none\b|false\b)\S|$)", re.MULTILINE
)


def flushes(job: str) -> bool:
    """Whether a job file asks for flushes that fio's report does not count: O_SYNC, or one at a file's end."""
    return bool(_FLUSHES.search(job))


class FioWorkload(Workload[FioJob]):
    """`fio`: its working directory is the disk under test."""

    PARAMS = FioJob

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        path = plan.context.path
        self._env = {"PATH": path, "LC_ALL": "C", **environment(self.params.values, cell.factors)}
        self._cwd = "/"

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Raises `PlatformUnusableError` naming the package."""
        path = plan.context.path
        if any(cell.shares_root for cell in cells) and shutil.which(FIO, path=path) is None:
            raise PlatformUnusableError("fio is not installed", hint="install the package fio")
        return ()

    def prepare(self, machine: Machine) -> None:
        """Mounts the disk, lays the job's files out and empties the machine's caches."""
        agent, disk = machine.agent, target_of(machine)
        found = find_same(agent, FIO, path=self._env["PATH"], cwd="/", cell=self.cell)
        found.keep(self.facts)
        self.warnings += [found.warning] if found.warning else []
        self._cwd = disk.mount(agent)
        self.facts.add(disk.facts, TARGET)
        agent.write_file(f"{self._cwd}/{JOB_FILE}", self.params.job.encode())
        before = self._used(machine)
        self._do(machine, "--create_only=1")
        self._warn_of_memory(machine, self._used(machine) - before)
        disk.image.flush()
        self._cwd = disk.remount(agent, drop_caches=not disk.device)
        self.facts.add(working_directory(agent, self._cwd))

    def run(self, machine: Machine) -> list[Measurement]:
        """Runs the job file once. Raises `WorkloadError` when a job fails or the JSON is not as fio 3 has it."""
        sync_everything(machine.agent)
        below = Below.before(machine)
        result = self._do(machine)
        report = fio_report.parse(result.stdout.decode(errors="replace"))
        changes = below.after(flushed=bool(report.sync_latency_avg_s) or flushes(self.params.job))
        changes.note(self.facts)
        self.facts.add(Fio(version=report.version))
        self.warnings += [f"fio: {note}" for note in report.notes]
        values: list[tuple[Metric, float | None]] = [
            (THROUGHPUT, report.read.bytes_per_s + report.write.bytes_per_s),
            (metrics.OPERATIONS, report.read.operations_per_s + report.write.operations_per_s),
            (READ_THROUGHPUT, report.read.bytes_per_s or None),
            (WRITE_THROUGHPUT, report.write.bytes_per_s or None),
            (READS, report.read.operations_per_s or None),
            (WRITES, report.write.operations_per_s or None),
            (metrics.READ_LATENCY, report.read.latency_avg_s),
            (metrics.READ_P99, report.read.latency_p99_s),
            (metrics.WRITE_LATENCY, report.write.latency_avg_s),
            (metrics.WRITE_P99, report.write.latency_p99_s),
            (metrics.SYNC_LATENCY, report.sync_latency_avg_s),
            (metrics.RUNTIME, report.runtime_s),
            (WALL, result.wall_s),
            (GUEST_WALL, result.guest_wall_s),
            (USER, result.user_s),
            (SYSTEM, result.system_s),
        ]
        known = [(metric, value) for metric, value in values if value is not None]
        return [*measured(known), *(changes.measurements(report.bytes) if report.bytes else ())]

    def cleanup(self, machine: Machine) -> None:
        """Nothing: a guest's disk is removed with the guest, a directory with the trial."""
        disk = target_of(machine)
        if disk.spec.loop and disk.device:
            disk.umount(machine.agent, drop_caches=False)

    def _do(self, machine: Machine, *more: str) -> ExecResult:
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
            and heard(Speaker.ANY, said + result.stdout.decode(errors="replace")).cause is Cause.NO_ROOM
        ):
            raise WorkloadError(
                f"the files of the fio job do not fit on the disk{quote(said)}",
                hint="use a larger disk (--set size=8G), a smaller size in the job file, or --scale",
                cause=Cause.NO_ROOM,
            )
        judge(result, self.warnings, self.limit_s)
        return result

    def _used(self, machine: Machine) -> int:
        there = machine.agent.statfs(self._cwd)
        return (there.blocks - there.free) * there.block_size

    def _warn_of_memory(self, machine: Machine, size: int) -> None:
        memory = machine.agent.facts().mem_total_kib * 1024
        direct = any(
            line.replace(" ", "").lower() in ("direct=1", "direct=true", "direct")
            for line in self.params.job.splitlines()
        )
        if not direct and size < memory:
            self.warnings.append(
                f"the files ({size / 2**20:.0f}M) are smaller than the machine's memory ({memory / 2**20:.0f}M) and "
                "the job has no direct=1: the page cache is measured, not the disk"
            )
