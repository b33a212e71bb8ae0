"""Metrics that are read from a program's output: `NAME[:UNIT[:higher|lower]]=REGEX`, or `=json:PATH`.

`file:PATH#REGEX` and `file:PATH#json:PATH` read a file that the program wrote instead, `perf:EVENT` counts a
performance event, and `expr:ARITHMETIC` computes a metric from others.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from guestmark.core import regex
from guestmark.core.derived import Derived, parse_derived
from guestmark.core.errors import UsageError, WorkloadError, make_unknown_name_error
from guestmark.core.metric import Better, Metric
from guestmark.core.performance_events import EVENTS, PerformanceEvent
from guestmark.core.units import parse_number

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_FORM = "write NAME[:UNIT[:higher|lower]]=REGEX, e.g. 'speed:events/s:higher=events per second: *([0-9.]+)'"

# Prefix of a path such as jobs.0.read.bw into a JSON document, in place of a regular expression.
_JSON = "json:"
# Prefix of the path of a file and, after a #, what to search for in it.
_FILE = "file:"
_ANY_NUMBER = r"[-+]?[0-9][0-9,]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?"
# Prefix of the name of a performance event.
_PERF = "perf:"
# Prefix of arithmetic with other metrics; see `core.derived`.
EXPRESSION = "expr:"

WALL = Metric("wall_s", "s")
GUEST_WALL = Metric("guest_wall_s", "s")
USER = Metric("user_s", "s")
SYSTEM = Metric("system_s", "s")
MAX_RSS = Metric("max_rss_bytes", "B")
DEFAULT_METRICS = (WALL, GUEST_WALL, USER, SYSTEM, MAX_RSS)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric and the expression that finds it, as the group `value`, else the only group, else the whole match."""

    metric: Metric
    pattern: str

    @property
    def file(self) -> str:
        """The path of the file that contains it; empty if it is in the output."""
        if not self.pattern.startswith(_FILE):
            return ""
        return self.pattern.removeprefix(_FILE).partition("#")[0]

    @property
    def event(self) -> PerformanceEvent | None:
        """The performance event that it counts; None for others."""
        if not self.pattern.startswith(_PERF):
            return None
        return EVENTS.get(self.pattern.removeprefix(_PERF))

    @property
    def searched(self) -> str:
        """The expression to search for in that file or in the output."""
        if not self.file:
            return self.pattern
        return self.pattern.partition("#")[2] or _ANY_NUMBER

    def extract_value(self, *texts: str, limit_s: float = regex.LIMIT_S) -> float:
        """Return the value in the first of `texts` that contains the metric. Of several matches, the last one counts.

        Programs print interim figures first and the final one last. Raises `WorkloadError` if nothing matches, if
        the match is not a finite number, and when matching takes more than `limit_s` of processor time.
        """
        if self.searched.startswith(_JSON):
            return self._read_json(texts)
        try:
            found = regex.find_last_match(self.searched, texts, limit_s)
        except regex.TooCostlyError as error:
            raise WorkloadError(
                f"metric {self.metric.name}: {self.searched!r} takes {error} on this output",
                hint="do not repeat a group that contains a repetition, as in (a+)+",
            ) from error
        if found is None:
            raise WorkloadError(
                f"metric {self.metric.name}: nothing in {self.file or 'the output'} matches {self.searched!r}"
            )
        try:
            return parse_number(found)
        except ValueError as error:
            raise WorkloadError(f"metric {self.metric.name}: {error}") from error

    def _read_json(self, texts: Iterable[str]) -> float:
        """Return the number at a path in the first text that is JSON, or whose last line is."""
        path = [part for part in self.searched.removeprefix(_JSON).split(".") if part]
        for text in texts:
            for candidate in (text, text.strip().rpartition("\n")[2]):
                try:
                    found = json.loads(candidate)
                    for part in path:
                        found = found[int(part)] if isinstance(found, list) else found[part]
                    return parse_number(str(found))
                except (ValueError, KeyError, IndexError, TypeError, RecursionError):
                    continue
        where = self.file or "the output"
        raise WorkloadError(
            f"metric {self.metric.name}: {where} is not JSON with a number at {'.'.join(path)!r}"
        )

    def to_params(self) -> dict[str, Any]:
        """Return the metric in the form of a workload's parameters."""
        metric = self.metric
        return {
            "name": metric.name,
            "unit": metric.unit,
            "better": metric.better.value,
            "pattern": self.pattern,
        }

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> "MetricSpec":
        """Return the metric from the result of `to_params`."""
        return cls(Metric(params["name"], params["unit"], Better(params["better"])), params["pattern"])


def parse_metric(text: str) -> MetricSpec:
    """Parse one `--metric` value. Raises `UsageError` that points at a mistake in the expression."""
    head, equals, pattern = text.partition("=")
    if not equals or not pattern:
        raise UsageError(f"--metric {text!r}: the regular expression is missing", hint=_FORM)
    name, *rest = (part.strip() for part in head.split(":"))
    if not _NAME.fullmatch(name):
        raise UsageError(f"--metric {text!r}: {name!r} is not a valid metric name", hint=_FORM)
    if any(name == metric.name for metric in DEFAULT_METRICS):
        raise UsageError(f"--metric {text!r}: {name} is always measured", hint="choose another name")
    if len(rest) > 2:
        raise UsageError(f"--metric {text!r}: too many colons before the =", hint=_FORM)
    unit = rest[0] if rest else ""
    direction = rest[1] if len(rest) == 2 else "lower"
    if direction not in {"higher", "lower"}:
        raise UsageError(f"--metric {text!r}: {direction!r} is neither higher nor lower", hint=_FORM)
    made = MetricSpec(Metric(name, unit, Better(direction)), pattern)
    _check_pattern(name, made)
    return made


def _check_pattern(name: str, made: MetricSpec) -> None:
    """Raises `UsageError` for an invalid path, arithmetic or regular expression."""
    pattern = made.searched
    if made.pattern.startswith(_FILE) and not made.file:
        raise UsageError(f"--metric {name}: the file's path is missing", hint="e.g. n=file:out.json#json:n")
    if made.file and pattern.startswith((EXPRESSION, _PERF)):
        kind = pattern.partition(":")[0]
        raise UsageError(
            f"--metric {name}: {kind}: does not read a file",
            hint=f"give it alone, as in {name}={pattern}",
        )
    if pattern.startswith(EXPRESSION):
        try:
            parse_derived(name, pattern.removeprefix(EXPRESSION))
        except ValueError as error:
            raise UsageError(f"--metric {name}: {error}") from error
        return
    if pattern.startswith(_PERF) and made.event is None:
        raise make_unknown_name_error("performance event", pattern.removeprefix(_PERF), EVENTS)
    if pattern.startswith((_JSON, _PERF)):
        return
    try:
        groups = regex.read_groups(pattern)
    except regex.PatternError as error:
        pointer = f"{pattern}\n  {' ' * error.position}^"
        raise UsageError(
            f"--metric {name}: {error} in the regular expression:\n  {pointer}", hint=_FORM
        ) from error
    if groups.count > 1 and "value" not in groups.names:
        raise UsageError(
            f"--metric {name}: the regular expression has {groups.count} groups",
            hint="mark the group that holds the number as (?P<value>…), or make the others non-capturing: (?:…)",
        )


def parse_metrics(texts: Iterable[str]) -> tuple[MetricSpec, ...]:
    """Return all `--metric` values in order. Raises `UsageError` for a name given twice."""
    specs = tuple(parse_metric(text) for text in texts)
    names = [spec.metric.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--metric {name} is given twice", hint="give each metric its own name")
    return specs


def split_metrics(specs: Iterable[MetricSpec]) -> tuple[tuple[MetricSpec, ...], tuple[Derived, ...]]:
    """Return the metrics that are read from a program's output, and those that are derived from others."""
    read: list[MetricSpec] = []
    made: list[Derived] = []
    for spec in specs:
        if spec.pattern.startswith(EXPRESSION):
            metric, expression = spec.metric, spec.pattern.removeprefix(EXPRESSION)
            made.append(Derived(metric.name, metric.unit, metric.better, expression))
        else:
            read.append(spec)
    return tuple(read), tuple(made)
