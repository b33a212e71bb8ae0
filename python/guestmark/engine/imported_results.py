"""Results of other programs as runs: hyperfine's JSON, fio's JSON, and Phoronix Test Suite's results (JSON or XML).

A file is one session, whose order was not random and whose machine is unknown. So each benchmark becomes a cell with
one trial whose iterations are its figures: they can be shown and compared, but have no verdict.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from guestmark.core.errors import LedgerError
from guestmark.core.metric import Better, Measurement, Metric
from guestmark.core.metric_spec import MAX_RSS, WALL
from guestmark.core.model import Cell, Plan, Policy, RunState, Trial, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.ledger.bundle import PackedRun
from guestmark.ledger.model import StoredRun
from guestmark.ledger.run_annotations import Annotations
from guestmark.ledger.validation import MALFORMED, ReadBudget, check_run, describe_malformed
from guestmark.workloads import fio
from guestmark.workloads.common.metrics import THROUGHPUT
from guestmark.workloads.exec.command import ExecParams


class SourceProgram(StrEnum):
    """The program that wrote a file."""

    HYPERFINE = "hyperfine"
    FIO = "fio"
    PHORONIX = "Phoronix Test Suite"


@dataclass(frozen=True, slots=True)
class _Benchmark:
    """One cell: benchmarks of the same `table` are compared, and the first is the baseline."""

    table: str
    label: str
    values: Mapping[Metric, Sequence[float]]
    levels: Mapping[str, str]


class _UnknownFormatError(ValueError):
    """The file lacks something that files of that program contain."""


def is_foreign_result(data: bytes) -> bool:
    """Return whether a file may be another program's result rather than a bundle: it starts like JSON or XML."""
    head = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:200]
    return head[:1] in {b"{", b"["} or head.startswith((b"<?xml", b"<PhoronixTestSuite"))


def read_results(data: bytes, where: str, at: float = 0.0) -> list[PackedRun]:
    """Return the file's content as a run that was measured `at` this Unix time in seconds.

    Raises `LedgerError`, in one line, for a file of an unknown program and for a damaged one.
    """
    budget = ReadBudget()
    try:
        program, benchmarks = _parse_results(data, budget)
        if not benchmarks:
            raise _UnknownFormatError(f"it contains no result of {program}")
        run = _make_run(program, benchmarks, hashlib.sha256(data).hexdigest(), min(max(at, 0.0), time.time()))
        check_run(run)
    except LedgerError as error:
        raise LedgerError(f"{where} cannot be imported: {error.message}", hint=error.hint) from error
    except (*MALFORMED, ET.ParseError) as error:
        said = describe_malformed(error) or type(error).__name__
        raise LedgerError(
            f"{where} cannot be imported: {' '.join(said.split())[:160]}",
            hint="use a bundle, a ledger, JSON of hyperfine or fio, or a result of the Phoronix Test Suite",
        ) from error
    said_of_it = f"imported from {program}: one session, in its own order, on a machine that is not recorded"
    return [PackedRun(run, Annotations(notes=(said_of_it,), labels={"foreign": program.name.lower()}))]


def _make_run(program: SourceProgram, benchmarks: Sequence[_Benchmark], digest: str, at: float) -> StoredRun:
    cells: list[Cell] = []
    trials: list[Trial] = []
    tables: set[str] = set()
    metrics: dict[str, Metric] = {}
    for order, (name, each) in enumerate(zip(_name_benchmarks(benchmarks), benchmarks, strict=True)):
        cells.append(_make_imported_cell(name, each, baseline=each.table not in tables))
        tables.add(each.table)
        measured = []
        for metric, values in each.values.items():
            # One name stands for one metric, whatever units another benchmark gives it.
            metrics.setdefault(metric.name, metric)
            if values:
                measured.append(Measurement(metric, median(values), tuple(values)))
        trials.append(
            Trial(cell_id=name, block=0, order=order, status=TrialStatus.OK, measurements=tuple(measured))
        )
    return StoredRun(
        id=f"{program.name.lower()}-{digest[:16]}",
        plan=Plan(
            name=program.name.lower(),
            cells=tuple(cells),
            policy=Policy(blocks=1, warmup=0),
            metrics=tuple(metrics.values()),
            title=f"Results of {program}",
        ),
        environments=(),
        seed=0,
        state=RunState.COMPLETE,
        created_at=at,
        trials=tuple(trials),
    )


def _name_benchmarks(benchmarks: Iterable[_Benchmark]) -> list[str]:
    """Return a name for each benchmark: the beginning of its label, with a number if the name is already used."""
    names: dict[str, None] = {}
    numbers: dict[str, int] = {}
    for benchmark in benchmarks:
        beginning = benchmark.label[:200]
        name = beginning
        while name in names:
            numbers[beginning] = numbers.get(beginning, 1) + 1
            name = f"{beginning} ({numbers[beginning]})"
        names[name] = None
    return list(names)


def _split_command(command: str) -> list[str]:
    try:
        return shlex.split(command) or [command]
    except ValueError:
        return [command]


def _make_imported_cell(name: str, benchmark: _Benchmark, *, baseline: bool) -> Cell:
    params = ExecParams(argv=_split_command(benchmark.label), parameters=list(benchmark.levels)).to_stored()
    return Cell(
        id=name,
        workload=WorkloadSpec("exec", params, benchmark.label, key=name),
        platform=PlatformSpec.read("host"),
        factors=benchmark.levels,
        baseline=baseline,
        group=benchmark.table,
    )


def _parse_results(data: bytes, budget: ReadBudget) -> tuple[SourceProgram, list[_Benchmark]]:
    if data.lstrip()[:1] == b"<":
        return _parse_xml(data, budget)
    return _parse_json(data, budget)


def _parse_json(data: bytes, budget: ReadBudget) -> tuple[SourceProgram, list[_Benchmark]]:
    budget.charge_encoded(data)
    document = json.loads(data)
    if isinstance(document, dict):
        for key, (program, holds, take) in _JSON_PARSERS.items():
            if key in document and isinstance(document[key], holds):
                return program, list(take(document))
    raise _UnknownFormatError("it is not a result of hyperfine, fio or the Phoronix Test Suite")


def _parse_hyperfine(document: Mapping[str, Any]) -> Iterator[_Benchmark]:
    for result in document["results"]:
        label, times = _parse_text(result["command"]), _parse_numbers(result.get("times") or [result["mean"]])
        values = {WALL: times}
        if memory := result.get("memory_usage_byte"):
            values[MAX_RSS] = _parse_numbers(memory)
        levels: dict[str, str] = {}
        for name, level in (result.get("parameters") or {}).items():
            levels[_parse_text(name)] = _parse_text(str(level))
        yield _Benchmark("hyperfine", label, values, levels)


def _parse_fio(document: Mapping[str, Any]) -> Iterator[_Benchmark]:
    for job in document["jobs"]:
        if job.get("error"):
            raise _UnknownFormatError(f"job {_parse_text(job['jobname'])} ended with error {job['error']}")
        values: dict[Metric, list[float]] = {}
        moved = operations = 0.0
        for way, latency in (("read", fio.READ_LATENCY), ("write", fio.WRITE_LATENCY)):
            part = job.get(way) or {}
            if not part.get("total_ios"):
                continue
            (rate,), (often,) = _parse_numbers([part["bw_bytes"]]), _parse_numbers([part["iops"]])
            moved, operations = moved + rate, operations + often
            if "lat_ns" in part:
                values[latency] = [mean / 1e9 for mean in _parse_numbers([part["lat_ns"]["mean"]])]
        if operations:
            values = {THROUGHPUT: [moved], fio.OPERATIONS: [operations], **values}
            yield _Benchmark(_parse_text(job["jobname"]), f"fio {_parse_text(job['jobname'])}", values, {})


def _parse_phoronix_json(document: Mapping[str, Any]) -> Iterator[_Benchmark]:
    for result in document["results"].values():
        named = _parse_phoronix_names(result)
        for system, found in result["results"].items():
            values = found.get("all_results") or found.get("raw_values") or [found["value"]]
            if isinstance(values, str):
                values = values.split(":")
            yield _make_phoronix_benchmark(named, result, _parse_text(system), _parse_numbers(values))


def _parse_xml(data: bytes, budget: ReadBudget) -> tuple[SourceProgram, list[_Benchmark]]:
    # Entities could name other files, or expand without end.
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise _UnknownFormatError("it declares entities, which results do not")
    budget.charge_amount(16 * data.count(b"<"))
    root = ET.fromstring(data)
    if root.tag != "PhoronixTestSuite":
        raise _UnknownFormatError("it is not a result of the Phoronix Test Suite")
    found = []
    for result in root.iter("Result"):
        text = {child.tag.lower(): child.text or "" for child in result}
        named = _parse_phoronix_names(text)
        for entry in result.iter("Entry"):
            value = entry.findtext("Value") or ""
            # The test failed on that system.
            if not value:
                continue
            raw = entry.findtext("RawString") or value
            found.append(
                _make_phoronix_benchmark(
                    named,
                    text,
                    _parse_text(entry.findtext("Identifier") or ""),
                    _parse_numbers(raw.split(":")),
                )
            )
    return SourceProgram.PHORONIX, found


def _parse_phoronix_names(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the words that name one test; those that it lacks are empty."""
    names = ("identifier", "title", "arguments", "description")
    return {name: _parse_text(str(result.get(name) or "")) for name in names}


def _make_phoronix_benchmark(
    named: Mapping[str, str], result: Mapping[str, Any], system: str, values: Sequence[float]
) -> _Benchmark:
    """Return one system's figures of one test. More is better unless the suite says LIB (less is better)."""
    better = Better.LOWER if result.get("proportion") == "LIB" else Better.HIGHER
    title = " ".join(filter(None, (named["title"], named["description"] or named["arguments"])))
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", named["identifier"].rpartition("/")[2] or "result")[:60]
    unit = _parse_text(str(result.get("scale") or ""))[:40]
    return _Benchmark(
        title, f"{title} ({system})", {Metric(f"r_{name}", unit, better): values}, {"system": system}
    )


def _parse_numbers(values: Sequence[Any]) -> list[float]:
    if not isinstance(values, list) or not values:
        raise _UnknownFormatError("it lacks figures")
    found = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise _UnknownFormatError(f"{value!r} is not a number")
        number = float(value)
        if number < 0:
            raise _UnknownFormatError(f"{value!r} is negative")
        found.append(number)
    return found


def _parse_text(text: Any) -> str:
    if not isinstance(text, str):
        raise _UnknownFormatError(f"{text!r} is not a name")
    return text.replace("\0", "")[:500]


# By a key of a program's documents: the program, the type of the key's value, and the parser. Phoronix's documents
# have `results` as well, so `systems` comes first.
_JSON_PARSERS: Mapping[
    str, tuple[SourceProgram, type, Callable[[Mapping[str, Any]], Iterator[_Benchmark]]]
] = {
    "jobs": (SourceProgram.FIO, list, _parse_fio),
    "systems": (SourceProgram.PHORONIX, dict, _parse_phoronix_json),
    "results": (SourceProgram.HYPERFINE, list, _parse_hyperfine),
}
