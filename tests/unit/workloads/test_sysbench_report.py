"""Real outputs of sysbench as Debian 12 (1.0.20+ds-5) and Debian 13 (1.0.20+ds-7) carry it, read to the last line."""

import re
from pathlib import Path

import pytest

from guestmark.core.errors import WorkloadError
from guestmark.workloads.sysbench.output import parse_report
from tests.framework import GOLDEN
from tests.framework.known import known

OUTPUTS = sorted(
    path for path in (GOLDEN / "sysbench").glob("debian*/*.txt") if not path.name.startswith("fault-")
)
DEBIAN = ("debian12", "debian13")


def text(release: str, name: str) -> str:
    return ((GOLDEN / "sysbench") / release / f"{name}.txt").read_text()


@pytest.mark.parametrize("path", OUTPUTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_number_that_is_printed_is_in_the_report(path: Path) -> None:
    printed = path.read_text()
    report = parse_report(printed)
    numbers = [
        float(number)
        for line in printed.partition("Threads started!")[2].splitlines()
        if not re.match(r"\[ \d+s \]", line)
        for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?=s?(?:[^\w.]|$))", line)
    ]
    held = []
    for part in (report, report.files, report.memory, report.sql):
        if part is not None:
            held += [
                getattr(part, name) for name in part.__slots__ if isinstance(getattr(part, name), int | float)
            ]
    for number in numbers:
        close = [
            figure for figure in held for shown in (figure, figure * 1e3) if abs(shown - number) <= 0.00501
        ]
        assert close, f"{number} is printed and not in {report}"


@pytest.mark.parametrize("release", DEBIAN)
def test_the_event_total_is_the_sum_over_threads(release: str) -> None:
    report = parse_report(text(release, "cpu"))
    assert report.threads == 2
    assert report.event_total_s == pytest.approx(report.thread_time_avg_s * 2, abs=2e-4)
    assert report.overhead_s == pytest.approx(report.total_time_s * 2 - report.event_total_s)
    assert (report.files, report.memory, report.sql) == (None, None, None)


def test_figures_of_one_output() -> None:
    report = parse_report(text("debian12", "fileio-rndrw"))
    assert report.files is not None
    assert (report.files.reads_per_s, report.files.writes_per_s, report.files.fsyncs_per_s) == (
        13643.16,
        9156.08,
        2425.45,
    )
    assert (report.files.read_mib_per_s, report.files.written_mib_per_s) == (213.17, 143.06)
    assert (report.total_time_s, report.events) == (0.0158, 400)
    assert report.events_per_s == pytest.approx(400 / 0.0158)
    assert (report.latency_max_s, report.latency_sum_s) == pytest.approx((0.00486, 0.02417))
    assert report.latency_avg_s == pytest.approx(0.02417 / 400)
    assert report.percent == 95
    assert report.percentile_s == pytest.approx(0.00021)
    assert (report.thread_events_avg, report.thread_events_stddev) == (200, 170)
    assert (report.thread_time_avg_s, report.thread_time_stddev_s) == (0.0121, 0)


@pytest.mark.parametrize("release", DEBIAN)
def test_what_a_test_does_not_do_is_not_there(release: str) -> None:
    memory = parse_report(text(release, "memory-none")).memory
    assert memory is not None
    assert memory.operations == 16384
    assert memory.mib is None
    assert parse_report(text(release, "p0")).percentile_s is None
    assert known(parse_report(text(release, "oltp")).sql).transactions == 100


@pytest.mark.parametrize("release", DEBIAN)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fault-mode", "sysbench failed: Invalid IO operations mode: nonsense."),
        (
            "fault-nofiles",
            "sysbench failed: Cannot open file 'test_file.0' errno = 2 (No such file or directory)",
        ),
    ],
)
def test_what_sysbench_failed_with_is_the_reason(release: str, name: str, reason: str) -> None:
    with pytest.raises(WorkloadError) as error:
        parse_report(text(release, name))
    assert error.value.message == reason


@pytest.mark.parametrize("path", OUTPUTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_line_can_be_missing_doubled_or_another(path: Path) -> None:
    lines = path.read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line == "Threads started!")
    for at in range(start, len(lines)):
        if not lines[at].strip() or lines[at].startswith("["):
            continue
        for changed in (lines[:at] + lines[at + 1 :], [*lines[: at + 1], lines[at], *lines[at + 1 :]]):
            with pytest.raises(WorkloadError):
                parse_report("\n".join(changed))
        other = [*lines[:at], lines[at].replace("e", "E"), *lines[at + 1 :]]
        with pytest.raises(WorkloadError) as error:
            parse_report("\n".join(other if other != lines else [*lines[:at], "more: 1.00", *lines[at:]]))
        assert re.match(r"line \d+ of sysbench's output is not ", error.value.message)


def test_the_line_that_is_not_understood_is_shown() -> None:
    newer = text("debian12", "fileio-rndrw").replace(
        "File operations:\n    reads/s:                      13643.16",
        "Throughput:\n         read:  IOPS=13643.16 213.17 MiB/s (223.52 MB/s)",
    )
    with pytest.raises(WorkloadError) as error:
        parse_report(newer)
    assert error.value.message == ("line 23 of sysbench's output is not 'File operations:': 'Throughput:'")
    assert "Debian 12 and 13" in error.value.hint
    with pytest.raises(WorkloadError, match=r"line 1 .*'sysbench 1\.1\.0'"):
        parse_report("sysbench 1.1.0\n")
    with pytest.raises(WorkloadError, match="ends where"):
        parse_report("")


def test_an_output_that_contradicts_itself_is_refused() -> None:
    good = text("debian12", "cpu")
    for old, new in (
        ("number of events:              500", "number of events:              501"),
        ("0.07", "0.09"),
    ):
        assert old in good
        with pytest.raises(WorkloadError, match="contradicts itself"):
            parse_report(good.replace(old, new))
