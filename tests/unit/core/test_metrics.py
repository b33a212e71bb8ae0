"""`--metric` specifications and what they find in output."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core.errors import UsageError, WorkloadError
from guestmark.core.metric import Better
from guestmark.core.metric_spec import MetricSpec, parse_metric, parse_metrics
from guestmark.core.performance_events import explain_errno
from tests.framework.command_line import CommandLine
from tests.framework.known import known

SYSBENCH = "CPU speed:\n    events per second:   871.34\n\nGeneral statistics:\n    total time:  3.4420s\n"


def test_all_parts() -> None:
    spec = parse_metric(r"speed:events/s:higher=events per second: *([0-9.]+)")
    assert (spec.metric.name, spec.metric.unit, spec.metric.better) == ("speed", "events/s", Better.HIGHER)
    assert spec.extract_value(SYSBENCH) == 871.34
    assert MetricSpec.from_params(spec.to_params()) == spec


def test_the_expression_may_hold_equals_signs_and_colons() -> None:
    assert parse_metric(r"n=x=:(\d+)").extract_value("x=:7") == 7


@pytest.mark.parametrize(
    ("text", "output", "value"),
    [
        (r"n=(?P<value>\d+) of (\d+)", "3 of 4", 3),
        (r"n=\d+$", "10\n20\n", 20),  # of several matches the last; $ is the end of a line
        (r"n=^t (.*)$", "t 1,234.5\nend", 1234.5),
        (r"n=(?:a|b)=(\S+)", "a=1e3", 1000),
    ],
)
def test_what_counts(text: str, output: str, value: float) -> None:
    assert parse_metric(text).extract_value(output) == value


def test_stderr_is_searched_when_stdout_has_no_match() -> None:
    assert parse_metric(r"n=n=(\d+)").extract_value("nothing", "n=5") == 5


@pytest.mark.parametrize(
    ("output", "telling"), [("", "nothing in the output"), ("n=abc", "not a number"), ("n=nan", "not a")]
)
def test_a_metric_that_is_not_there_fails_the_trial(output: str, telling: str) -> None:
    with pytest.raises(WorkloadError, match=telling):
        parse_metric(r"n=n=(\w+)").extract_value(output)


def test_a_group_that_took_no_part_is_not_a_number() -> None:
    with pytest.raises(WorkloadError, match="not a number"):
        parse_metric(r"n=x(\d)?").extract_value("x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n",
        "n=",
        "=x",
        "1n=x",
        "n:s:up=x",
        "n:s:higher:x=y",
        "wall_s=x",
        "a b=x",
        r"n=(\d)(\d)",
        "n=(",
        "n=[",
        "n=*",
        "n=file:out#expr:b*2",
        "n=file:out#perf:cycles",
    ],
)
def test_bad_specifications(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_metric(text)
    assert caught.value.hint


def test_the_place_of_a_mistake_is_shown() -> None:
    with pytest.raises(UsageError) as caught:
        parse_metric("n=abc(def")
    lines = caught.value.message.splitlines()
    assert lines[-1].index("^") == lines[-2].index("(")


def test_a_name_can_be_given_once() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_metrics(["n=a", "n=b"])


@given(st.text())
def test_any_text_parses_or_is_a_usage_error(text: str) -> None:
    try:
        spec = parse_metric(text)
    except UsageError:
        return
    assert MetricSpec.from_params(spec.to_params()) == spec


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(alphabet="abc :\n"))
def test_a_printed_number_is_found_again(value: float, noise: str) -> None:
    assert parse_metric(r"n=<([^>]*)>").extract_value(f"{noise}<{value!r}>{noise}") == value


def test_performance_events_have_names() -> None:
    spec = parse_metric("instructions=perf:instructions")
    assert known(spec.event).config == 1
    assert MetricSpec.from_params(spec.to_params()) == spec
    with pytest.raises(UsageError, match="instruction"):
        parse_metric("n=perf:instruction")
    assert explain_errno(errno.ENOENT) != explain_errno(errno.EACCES)


def test_what_cannot_be_counted_is_told_once(guestmark: CommandLine) -> None:
    """Page faults every kernel counts; whether this processor counts instructions, nobody knows."""
    done = guestmark.measure(
        "--metric", "faults=perf:page-faults", "--metric", "instructions=perf:instructions", "--metric",
        "per_fault=expr:instructions / faults", "--blocks", "1", "--iterations", "2", "--null", "none", "--", "true",
    )  # fmt: skip
    assert done.status == 0, done.stderr
    (trial,) = done.document()["cells"][0]["trials"]
    assert trial["measurements"]["faults"] > 10
    there = "instructions" in trial["measurements"]
    assert ("per_fault" in trial["measurements"]) == there
    assert sum("instructions is not counted" in warning for warning in trial["warnings"]) == (not there)
