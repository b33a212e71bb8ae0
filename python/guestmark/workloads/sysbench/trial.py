"""The trial of `sysbench`: runs one test, and parses its output by a strict grammar."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from guestmark.agent.client import ExecResult
from guestmark.core.errors import PlatformUnusableError, UsageError, WorkloadError
from guestmark.core.findings import TARGET
from guestmark.core.metric import Measurement, Metric
from guestmark.core.metric_spec import GUEST_WALL, SYSTEM, USER, WALL
from guestmark.core.model import Cell, Plan
from guestmark.core.units import format_size, parse_size
from guestmark.disks.mounted import locate_working_directory
from guestmark.disks.preflight import count_free_bytes
from guestmark.platforms.base import Machine
from guestmark.setting.disk import Disks, DiskSpec
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.machine import MEMORY
from guestmark.workloads import sysbench
from guestmark.workloads.common.factors import warn_of_shared_processors
from guestmark.workloads.common.flushes import CounterReading
from guestmark.workloads.common.metrics import THROUGHPUT, to_measurements
from guestmark.workloads.common.moving import (
    explain_host_cache,
    find_target,
    list_remarks,
    sync_everything,
    warn_of_caches,
)
from guestmark.workloads.common.program import OUTPUT_LIMIT, compare_program, judge_exit
from guestmark.workloads.sysbench import Sysbench, SysbenchWorkload
from guestmark.workloads.sysbench import output as sysbench_report
from guestmark.workloads.sysbench.options import NO_FLAGS, OPTIONS, SysbenchParams
from guestmark.workloads.sysbench.output import Report

_DEFAULT_MEMORY = "1G"  # default memory of QEMU's and UML's guests


def check_cells(cells: Iterable[tuple[Cell, Mapping[str, str]]]) -> list[str]:
    """Checks cells with their options; returns remarks. Raises `UsageError` for files larger than their disk."""
    found: list[tuple[Cell, str]] = []
    for cell, options in cells:
        found.append((cell, warn_of_shared_processors(cell, int(options["threads"]))))
        if "file_total_size" in options:
            disk = cell.view(Disks).target
            _check_size(cell, options, disk)
            found.append((cell, explain_cached_files(options, _read_memory_size(cell))))
            if "direct" in options["file_extra_flags"]:
                found.append((cell, explain_host_cache(cell, disk)))
    return list_remarks(found)


def explain_cached_files(options: Mapping[str, str], memory: int) -> str:
    """Returns why figures would mislead if files fit into the machine's memory, in bytes; else empty.

    With O_DIRECT, which bypasses the page cache, they do not.
    """
    size = parse_size(options["file_total_size"])
    if size >= memory or "direct" in options["file_extra_flags"]:
        return ""
    return (
        f"the files ({format_size(size)}) are smaller than the machine's memory ({memory / 2**20:.0f}M) and O_DIRECT "
        "is not used: the page cache is measured, not the disk (use larger files, or file_extra_flags=direct)"
    )


def _check_size(cell: Cell, options: Mapping[str, str], disk: DiskSpec) -> None:
    size = parse_size(options["file_total_size"])
    if disk.filesystem is Filesystem.NONE and not cell.platform.is_this_host:
        raise UsageError(
            f"{cell.id}: fileio needs a filesystem on its disk", hint="use --set filesystem=ext4"
        )
    on_directory = cell.platform.is_this_host and not disk.loop
    room = count_free_bytes(disk.location) if on_directory else disk.size
    if size < room:
        return
    where = f"but its disk has {format_size(room)}"
    if on_directory:
        where = f"of which {disk.location} has {room / 1e9:.1f} GB free"
    raise UsageError(
        f"{cell.id}: the files need {format_size(size)}, {where}",
        hint="use a larger disk (--set size=8G), another directory (--set location=DIRECTORY), or --scale",
    )


def _read_memory_size(cell: Cell) -> int:
    if cell.platform.is_guest:
        return cell.levels.get(MEMORY) or parse_size(_DEFAULT_MEMORY)
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


SYSBENCH = "sysbench"
PACKAGE = "sysbench"
# sysbench's warning about tests that end by themselves.
_NO_LIMIT = "Both event and time limits are disabled, running an endless test"
_MIB = 1 << 20


def merge_options(cell: Cell) -> dict[str, str]:
    """Returns a cell's options: those of the workload, overridden by levels of factors."""
    given: dict[str, str] = dict(cell.workload.read_params(SysbenchParams).options)
    given |= {name: level for name, level in cell.factors.items() if name in OPTIONS}
    if "file_total_size" in given:
        # Every file holds whole requests: a scaled size may leave a part of one, which O_DIRECT refuses.
        step = int(given["file_num"]) * parse_size(given["file_block_size"])
        given["file_total_size"] = format_size(
            max(1, round(parse_size(given["file_total_size"]) / step)) * step
        )
    return given


class SysbenchTrial(SysbenchWorkload):
    """Runs sysbench; for fileio, files on the disk under test are created before and removed after the timing."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._found = self.facts.add(Sysbench())
        self._options = merge_options(cell)
        self._env = {"PATH": plan.context.path, "LC_ALL": "C"}
        self._cwd = "/"
        self._on_host = cell.platform.is_this_host
        self._mounted = self._remounted = self._made = False

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Raises `PlatformUnusableError` naming the package, `UsageError` for files that do not fit on their disk."""
        path = plan.context.path
        if any(cell.shares_root for cell in cells) and shutil.which(SYSBENCH, path=path) is None:
            raise PlatformUnusableError("sysbench is not installed", hint=f"install the package {PACKAGE}")
        return check_cells([(cell, merge_options(cell)) for cell in cells])

    def prepare(self, machine: Machine) -> None:
        """Finds sysbench; for fileio mounts the disk and creates the files, then empties the machine's caches."""
        found = compare_program(machine.agent, SYSBENCH, path=self._env["PATH"], cwd="/", cell=self.cell)
        found.add_facts(self.facts)
        self._found.command = " ".join(self._build_sysbench_command("run"))
        if found.warning:
            self.warnings.append(found.warning)
        if self.params.test != "fileio":
            return
        disk = find_target(machine)
        self._cwd = disk.mount(machine.agent)
        self._mounted, self._remounted = True, bool(disk.device)
        self.facts.add(disk.facts, TARGET)
        self._require_space_for_files(machine)
        memory = machine.agent.read_facts().mem_total_kib * 1024
        remark = explain_cached_files(self._options, memory)
        if remark:
            self.warnings.append(remark)
        if self._options["file_test_mode"] != "seqwr":  # which creates its files itself
            self._found.prepare_s = self._run_sysbench(machine, "prepare").wall_s
            self._made = True
            # Otherwise the host would still write the image to its disk while the test runs.
            self._found.prepare_flush_s = disk.image.flush()
            # Newly created files are in the page caches of the machine and the host, which would serve the reads.
            if disk.device or self._reads_from_cache():
                self._cwd = disk.remount(machine.agent)
                self.warnings += warn_of_caches(disk)
        self.facts.add(locate_working_directory(machine.agent, self._cwd))

    def run(self, machine: Machine) -> list[Measurement]:
        """Runs the test once. Raises `WorkloadError` if it fails, or if its output does not follow the grammar."""
        if self.params.test != "fileio":
            report, result = self._run_measured(machine)
            return to_measurements([*_list_common_metrics(report, result), *_list_memory_rates(report)])
        sync_everything(machine.agent)
        below = CounterReading.read_before(machine)
        report, result = self._run_measured(machine)
        changes = below.read_changes(flushed=report.files is not None and report.files.fsyncs_per_s > 0)
        changes.add_facts(self.facts)
        files = _compute_file_rates(report, self._options)
        # The test seqwr creates its files itself, each time.
        if not self._made:
            self._remove_files(machine)
        # sysbench prints rates only; amplification needs the bytes behind them.
        moved = round(files[THROUGHPUT] * report.total_time_s)
        values = _list_common_metrics(report, result)
        values += [(metric, value) for metric, value in files.items() if value]
        measured = to_measurements(values)
        if moved:
            measured += changes.to_measurements(moved)
        return measured

    def cleanup(self, machine: Machine) -> None:
        """Removes the files on the host; a guest's disk is removed with the guest."""
        if not self._mounted or not self._on_host:
            return
        self._mounted = False
        try:
            if self._made:
                self._remove_files(machine)
        finally:
            disk = find_target(machine)
            if disk.device:
                disk.umount(machine.agent, drop_caches=False)

    def _remove_files(self, machine: Machine) -> None:
        self._found.cleanup_s = self._run_sysbench(machine, "cleanup").wall_s

    def _reads_from_cache(self) -> bool:
        """Returns whether the test may read newly written data from the machine's own page cache."""
        return "direct" not in self._options["file_extra_flags"] or self._options["file_io_mode"] == "mmap"

    def _build_sysbench_command(self, command: str) -> list[str]:
        options = dict(self._options)
        if command == "prepare" and self._remounted:
            # With many small direct writes preparing would take longer than measuring; the files are the same either
            # way.
            options["file_extra_flags"] = NO_FLAGS
        if options.get("file_extra_flags") == NO_FLAGS:
            options["file_extra_flags"] = ""
        flags = [f"{OPTIONS[name].command_flag}={level}" for name, level in options.items()]
        return [SYSBENCH, self.params.test, *flags, command]

    def _run_measured(self, machine: Machine) -> tuple[Report, ExecResult]:
        result = self._run_sysbench(machine, "run")
        report = sysbench_report.parse_report(result.stdout.decode(errors="replace"))
        self._found.version = report.version
        self.warnings += [f"sysbench: {text}" for text in report.warnings if text != _NO_LIMIT]
        return report, result

    def _run_sysbench(self, machine: Machine, command: str) -> ExecResult:
        result = machine.agent.exec(
            self._build_sysbench_command(command),
            env=self._env,
            cwd=self._cwd,
            timeout_s=self.limit_s,
            output_limit=OUTPUT_LIMIT,
        )
        if result.status not in (0, None):
            sysbench_report.check_faults(result.stdout.decode(errors="replace"))
        judge_exit(result, self.warnings, self.limit_s)
        return result

    def _require_space_for_files(self, machine: Machine) -> None:
        there = machine.agent.statfs(self._cwd)
        free, size = there.free * there.block_size, parse_size(self._options["file_total_size"])
        if free < size:
            raise WorkloadError(
                f"files of {size / 1e6:.0f} MB do not fit on the disk: {free / 1e6:.0f} MB are free",
                hint="use a larger disk (--set size=8G), a smaller file_total_size, or --scale",
            )


def list_event_spread(report: Report) -> list[tuple[Metric, float]]:
    """Returns the spread of the events' times and, with several threads, how evenly these shared events."""
    values = [
        (sysbench.LATENCY_AVG, report.latency_avg_s),
        (sysbench.LATENCY_P95, report.percentile_s or 0.0),
        (sysbench.LATENCY_MIN, report.latency_min_s),
        (sysbench.LATENCY_MAX, report.latency_max_s),
    ]
    # With a single thread there is nothing to share.
    if report.threads > 1:
        values += [
            (sysbench.EVENTS_STDDEV, report.thread_events_stddev),
            (sysbench.TIME_STDDEV, report.thread_time_stddev_s),
        ]
    return values


def _list_common_metrics(report: Report, result: ExecResult) -> list[tuple[Metric, float]]:
    values = [
        (sysbench.EVENTS_RATE, report.events_per_s),
        (sysbench.TOTAL_TIME, report.total_time_s),
        (sysbench.EVENT_TOTAL, report.event_total_s),
        (sysbench.OUTSIDE, report.overhead_s),
        *list_event_spread(report),
    ]
    return [
        *values,
        (WALL, result.wall_s),
        (GUEST_WALL, result.guest_wall_s),
        (USER, result.user_s),
        (SYSTEM, result.system_s),
    ]


def _list_memory_rates(report: Report) -> list[tuple[Metric, float]]:
    memory = report.memory
    if memory is None:
        return []
    values = [(sysbench.OPERATIONS, memory.operations_per_s)]
    if memory.mib_per_s is None:
        return values
    return [(THROUGHPUT, memory.mib_per_s * _MIB), *values]


def _compute_file_rates(report: Report, options: Mapping[str, str]) -> dict[Metric, float]:
    """Returns fileio's rates in bytes a second.

    Raises `WorkloadError` if sysbench's figures contradict each other.
    """
    files = report.files
    if files is None:
        raise WorkloadError("sysbench fileio did not print its file operations")
    block = parse_size(options["file_block_size"])
    read = _compute_precise_throughput(files.read_mib_per_s, files.reads_per_s * block, options)
    written = _compute_precise_throughput(files.written_mib_per_s, files.writes_per_s * block, options)
    return {
        THROUGHPUT: read + written,
        sysbench.READ_THROUGHPUT: read,
        sysbench.WRITE_THROUGHPUT: written,
        sysbench.READS: files.reads_per_s,
        sysbench.WRITES: files.writes_per_s,
        sysbench.FSYNCS: files.fsyncs_per_s,
    }


def _compute_precise_throughput(printed_mib: float, computed: float, options: Mapping[str, str]) -> float:
    """Returns operations times size, as the two decimals of MiB/s are too few for slow disks."""
    if options["file_merged_requests"] != "0":  # requests of several sizes
        return printed_mib * _MIB
    # Both figures are printed with two decimals: half of the last one of MiB/s, and of operations times a block.
    rounding = 0.0051 * (_MIB + parse_size(options["file_block_size"]))
    if abs(printed_mib * _MIB - computed) > rounding:
        raise WorkloadError(
            f"sysbench's output contradicts itself: {printed_mib:.2f} MiB/s printed, "
            f"{computed / _MIB:.2f} by its operations"
        )
    return computed
