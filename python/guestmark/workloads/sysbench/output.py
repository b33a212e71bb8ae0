"""Parses the output of `sysbench … run` line by line; a line that is not understood is an error, never skipped.

The grammar, of sysbench 1.0 (its sb_logger.c, sysbench.c, tests/*/sb_*.c and lua/oltp_common.lua). Empty lines may be
anywhere; LC_ALL must be C. `N` is a whole number, `X` one with decimals::

    report    = version preamble { interim } result general latency fairness
    version   = "sysbench 1.0.20 (using …)"
    preamble  = { one of _PREAMBLE }                      the options of the run, up to "Threads started!"
    interim   = "[ 1s ] thds: …"                          with --report-interval
    result    = [ cpu | memory | files | sql ]            as the preamble has it; nothing for threads and mutex
    cpu       = "CPU speed:" / "events per second: X"
    memory    = "Total operations: N (X per second)" / [ "X MiB transferred (X MiB/sec)" ]  unless "operation: none"
    files     = "File operations:" / "reads/s: X" / "writes/s: X" / "fsyncs/s: X" /
                "Throughput:" / "read, MiB/s: X" / "written, MiB/s: X"
    sql       = "SQL statistics:" / "queries performed:" / "read: N" / "write: N" / "other: N" / "total: N" /
                "transactions: N (X per sec.)" / "queries: …" / "ignored errors: …" / "reconnects: …"
    general   = "General statistics:" / "total time: Xs" / "total number of events: N"
    latency   = "Latency (ms):" / "min: X" / "avg: X" / "max: X" / ( "Nth percentile: X" |
                "percentile stats: disabled" ) / "sum: X"
    fairness  = "Threads fairness:" / "events (avg/stddev): X/X" / "execution time (avg/stddev): X/X"

`WARNING: …` lines may be anywhere and are kept; `FATAL: …` and `ALERT: …` give the reason for a failure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from guestmark.core.errors import WorkloadError

_VERSION = re.compile(r"sysbench (?P<version>1\.0\.\d+)(?: \(.*\))?")
_WARNING = re.compile(r"WARNING: (?P<text>.*)")
_FAULT = re.compile(r"(?:FATAL|ALERT): (?P<text>.*)")
_INTERIM = re.compile(r"\[ \d+s \] thds: \d+ .*")
_STARTED = "Threads started!"
_PREAMBLE = tuple(
    re.compile(text)
    for text in (
        r"Running the test with following options:",
        r"Number of threads: (?P<threads>\d+)",
        r"Target transaction rate: \d+/sec",
        r"Report intermediate results every \d+ second\(s\)",
        r"Initializing random number generator from (?:current time|seed \(\d+\)\.)",
        r"Prime numbers limit: \d+",
        r"Running memory speed test with the following options:",
        r"(?:block size|total size): \d+\w*",
        r"(?:operation|scope): \w+",
        r"Extra file open flags: .*",
        r"\d+ files, [\d.]+\w* each",
        r"[\d.]+\w* total file size",
        r"Block size [\d.]+\w*",
        r"Merging requests up to [\d.]+\w* for sequential IO\.",
        r"Number of IO requests: \d+",
        r"Read/Write ratio for combined random IO test: [\d.]+",
        r"Periodic FSYNC enabled, calling fsync\(\) each \d+ requests\.",
        r"Calling fsync\(\) at the end of test, Enabled\.",
        r"Calling fsync\(\) after each write operation\.",
        r"Using (?:synchronous|asynchronous|fast mmaped|slow mmaped) I/O mode",
        r"Doing [a-z/ ()]+ test",
        r"Initializing worker threads\.\.\.",
    )
)

_NUMBERS = {"N": r"\d+", "X": r"\d+\.\d+"}


def _compile_line_pattern(form: str) -> re.Pattern[str]:
    """Compiles a line's pattern: `{name:N}` is a whole number, `{name:X}` has decimals; blanks may vary."""
    text, *fields = re.split(r"\{(\w+):([NX])\}", form)
    pattern = _escape_text(text)
    for name, kind, after in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
        pattern += f"(?P<{name}>{_NUMBERS[kind]})" + _escape_text(after)
    # Numbers are padded to a width, which they may fill completely.
    return re.compile(pattern.replace(r":\s+(", r":\s*(").replace(r"\((?P", r"\(\s*(?P"))


def _escape_text(text: str) -> str:
    return re.escape(text).replace(r"\ ", r"\s+")


_CPU = "CPU speed:"
_FILES = "File operations:"
_THROUGHPUT = "Throughput:"
_SQL = "SQL statistics:"
_GENERAL = "General statistics:"
_LATENCY = "Latency (ms):"
_FAIRNESS = "Threads fairness:"
# The lines of each section, all of which must be present, in this order.
_SECTIONS: Mapping[str, tuple[re.Pattern[str], ...]] = {
    _CPU: (_compile_line_pattern("events per second: {rate:X}"),),
    _FILES: (
        _compile_line_pattern("reads/s: {reads:X}"),
        _compile_line_pattern("writes/s: {writes:X}"),
        _compile_line_pattern("fsyncs/s: {fsyncs:X}"),
    ),
    _THROUGHPUT: (
        _compile_line_pattern("read, MiB/s: {read_mib:X}"),
        _compile_line_pattern("written, MiB/s: {written_mib:X}"),
    ),
    _SQL: (
        _compile_line_pattern("queries performed:"),
        _compile_line_pattern("read: {sql_read:N}"),
        _compile_line_pattern("write: {sql_write:N}"),
        _compile_line_pattern("other: {sql_other:N}"),
        _compile_line_pattern("total: {sql_total:N}"),
        _compile_line_pattern("transactions: {transactions:N} ({transactions_rate:X} per sec.)"),
        _compile_line_pattern("queries: {queries:N} ({queries_rate:X} per sec.)"),
        _compile_line_pattern("ignored errors: {errors:N} ({errors_rate:X} per sec.)"),
        _compile_line_pattern("reconnects: {reconnects:N} ({reconnects_rate:X} per sec.)"),
    ),
    _GENERAL: (
        _compile_line_pattern("total time: {total_time:X}s"),
        _compile_line_pattern("total number of events: {events:N}"),
    ),
    _LATENCY: (
        _compile_line_pattern("min: {min:X}"),
        _compile_line_pattern("avg: {avg:X}"),
        _compile_line_pattern("max: {max:X}"),
        re.compile(
            rf"{_compile_line_pattern('{percent:N}th percentile: {percentile:X}').pattern}|percentile stats:\s+disabled"
        ),
        _compile_line_pattern("sum: {sum:X}"),
    ),
    _FAIRNESS: (
        _compile_line_pattern("events (avg/stddev): {events_avg:X}/{events_stddev:X}"),
        _compile_line_pattern("execution time (avg/stddev): {time_avg:X}/{time_stddev:X}"),
    ),
}
_OPERATIONS = _compile_line_pattern("Total operations: {operations:N} ({operations_rate:X} per second)")
_TRANSFERRED = _compile_line_pattern("{mib:X} MiB transferred ({mib_rate:X} MiB/sec)")
_FOLLOWED_BY = {_FILES: _THROUGHPUT}
_MEMORY_ASKED = "Running memory speed test with the following options:"
_NO_TRANSFER = "operation: none"
_ASKED = {"Prime numbers limit:": _CPU, "Extra file open flags:": _FILES}
_ALWAYS = (_GENERAL, _LATENCY, _FAIRNESS)


@dataclass(frozen=True, slots=True)
class Files:
    """Results of `fileio`: operations a second, and MiB a second."""

    reads_per_s: float
    writes_per_s: float
    fsyncs_per_s: float
    read_mib_per_s: float
    written_mib_per_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Results of `memory`; `mib` is in MiB, None for the operation `none`, which transfers nothing."""

    operations: int
    operations_per_s: float
    mib: float | None
    mib_per_s: float | None


@dataclass(frozen=True, slots=True)
class Sql:
    """Results of the database tests: counts, and transactions and queries a second."""

    reads: int
    writes: int
    others: int
    queries: int
    transactions: int
    transactions_per_s: float
    queries_per_s: float
    ignored_errors: int
    reconnects: int


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one run, in seconds; `percentile` is the `percent`th of the latencies, None if switched off.

    `events_per_s` is the value that the test prints (`cpu` does), else events over total time. Fairness compares
    threads: how many events each had and how long it was busy with them.
    """

    version: str
    threads: int
    total_time_s: float
    events: int
    events_per_s: float
    latency_min_s: float
    latency_avg_s: float
    latency_max_s: float
    latency_sum_s: float
    percent: int | None
    percentile_s: float | None
    thread_events_avg: float
    thread_events_stddev: float
    thread_time_avg_s: float
    thread_time_stddev_s: float
    files: Files | None = None
    memory: Memory | None = None
    sql: Sql | None = None
    warnings: tuple[str, ...] = ()

    @property
    def event_total_s(self) -> float:
        """Time of all events, summed over threads: the "e.total" of older publications."""
        return self.latency_sum_s

    @property
    def overhead_s(self) -> float:
        """Time that the threads spent outside of events: threads × total time − event total, at least zero."""
        return max(0.0, self.threads * self.total_time_s - self.latency_sum_s)


def parse_report(output: str) -> Report:
    """Parses the output of one run. Raises `WorkloadError` with the first line that does not follow the grammar."""
    return _Reader(output).read_report()


def check_faults(output: str) -> None:
    """Raises `WorkloadError` with sysbench's error message, if the output contains one."""
    for line in output.splitlines():
        if fault := _FAULT.fullmatch(line.strip()):
            raise WorkloadError(f"sysbench failed: {fault['text']}")


class _Reader:
    """Parses the lines of one output, one after the other."""

    def __init__(self, output: str) -> None:
        self._warnings: list[str] = []
        self._values: dict[str, str] = {}
        self._seen: list[str] = []
        self._at = 0
        self._lines: list[tuple[int, str]] = []
        check_faults(output)
        for number, raw in enumerate(output.splitlines(), 1):
            line = raw.strip()
            if warning := _WARNING.fullmatch(line):
                self._warnings.append(warning["text"])
            elif line:
                self._lines.append((number, line))

    def read_report(self) -> Report:
        """Returns the whole report; raises an error for the first line that is wrong."""
        self._take_line(_VERSION)
        begin = self._at
        while self._peek_line() != _STARTED:
            self._take_line(*_PREAMBLE)
        asked = [line for _, line in self._lines[begin : self._at]]
        self._at += 1
        while _INTERIM.fullmatch(self._peek_line()):
            self._at += 1
        self._read_result(asked)
        for name in _ALWAYS:
            self._read_section((name,))
        if self._at < len(self._lines):
            raise self._make_line_error("the end")
        return self._make_report()

    def _read_result(self, asked: list[str]) -> None:
        """Reads the part that depends on the test, which the preamble `asked` for."""
        if _MEMORY_ASKED in asked:
            self._take_line(_OPERATIONS)
            if _NO_TRANSFER not in asked:
                self._take_line(_TRANSFERRED)
            return
        for start, name in _ASKED.items():
            if any(line.startswith(start) for line in asked):
                self._read_section((name,))
                return
        if self._peek_line() != _GENERAL:
            self._read_section((_SQL, _GENERAL))

    def _read_section(self, names: tuple[str, ...]) -> None:
        name = self._peek_line()
        if name not in names:
            raise self._make_line_error(" or ".join(repr(name) for name in names))
        self._at += 1
        self._seen.append(name)
        for pattern in _SECTIONS[name]:
            self._take_line(pattern)
        if name in _FOLLOWED_BY:
            self._read_section((_FOLLOWED_BY[name],))

    def _peek_line(self) -> str:
        return self._lines[self._at][1] if self._at < len(self._lines) else ""

    def _take_line(self, *patterns: re.Pattern[str]) -> None:
        for pattern in patterns:
            if match := pattern.fullmatch(self._peek_line()):
                self._values |= {name: text for name, text in match.groupdict().items() if text is not None}
                self._at += 1
                return
        what = f"a line like {patterns[0].pattern!r}" if len(patterns) == 1 else repr(_STARTED)
        raise self._make_line_error(what)

    def _make_line_error(self, expected: str) -> WorkloadError:
        hint = "guestmark parses the output of sysbench 1.0 (Debian 12 and 13); check sysbench --version"
        if self._at >= len(self._lines):
            return WorkloadError(f"sysbench's output ends where {expected} was expected", hint=hint)
        number, line = self._lines[self._at]
        return WorkloadError(
            f"line {number} of sysbench's output is not {expected}: {line[:200]!r}", hint=hint
        )

    def _make_report(self) -> Report:
        value = {name: float(text) for name, text in self._values.items() if name != "version"}
        events, total_time_s = int(value["events"]), value["total_time"]
        if "threads" not in value:
            raise WorkloadError("sysbench's output does not state its number of threads")
        rate = value.get("rate", events / total_time_s if total_time_s else 0.0)
        report = Report(
            version=self._values["version"],
            threads=int(value["threads"]),
            total_time_s=total_time_s,
            events=events,
            events_per_s=rate,
            latency_min_s=value["min"] / 1e3,
            # The mean has two decimals of a millisecond, too few for events of microseconds; the sum has more digits.
            latency_avg_s=value["sum"] / 1e3 / events if events else 0.0,
            latency_max_s=value["max"] / 1e3,
            latency_sum_s=value["sum"] / 1e3,
            percent=int(value["percent"]) if "percent" in value else None,
            percentile_s=value["percentile"] / 1e3 if "percentile" in value else None,
            thread_events_avg=value["events_avg"],
            thread_events_stddev=value["events_stddev"],
            thread_time_avg_s=value["time_avg"],
            thread_time_stddev_s=value["time_stddev"],
            files=self._make_files(value),
            memory=self._make_memory(value),
            sql=self._make_sql(value),
            warnings=tuple(self._warnings),
        )
        _check_agreement(
            "events", report.thread_events_avg * report.threads, events, 0.00006 * report.threads
        )
        _check_agreement(
            "average latency (ms)", report.latency_avg_s * 1e3, value["avg"], 0.0051 + 0.0051 / max(events, 1)
        )
        return report

    def _make_files(self, value: Mapping[str, float]) -> Files | None:
        if _FILES not in self._seen:
            return None
        return Files(
            value["reads"], value["writes"], value["fsyncs"], value["read_mib"], value["written_mib"]
        )

    def _make_memory(self, value: Mapping[str, float]) -> Memory | None:
        if "operations" not in value:
            return None
        return Memory(
            int(value["operations"]), value["operations_rate"], value.get("mib"), value.get("mib_rate")
        )

    def _make_sql(self, value: Mapping[str, float]) -> Sql | None:
        if _SQL not in self._seen:
            return None
        _check_agreement(
            "queries", value["sql_read"] + value["sql_write"] + value["sql_other"], value["sql_total"], 0
        )
        return Sql(
            reads=int(value["sql_read"]),
            writes=int(value["sql_write"]),
            others=int(value["sql_other"]),
            queries=int(value["queries"]),
            transactions=int(value["transactions"]),
            transactions_per_s=value["transactions_rate"],
            queries_per_s=value["queries_rate"],
            ignored_errors=int(value["errors"]),
            reconnects=int(value["reconnects"]),
        )


def _check_agreement(what: str, one: float, other: float, tolerance: float) -> None:
    """Raises `WorkloadError` if two places of the output that should agree do not."""
    if abs(one - other) > tolerance + 1e-9:
        raise WorkloadError(f"sysbench's output contradicts itself: {what} are {one:g} and {other:g}")
