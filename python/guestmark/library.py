"""guestmark as a library: functions that do what the commands do, and results to compute with.

    import guestmark

    result = guestmark.exec(["./program"], on=["host", "tcg"])
    result.ratio("tcg")            # Ratio(value=9.4, low=9.2, high=9.8, verdict='slower', …)
    result.frame()                 # every trial, as a polars DataFrame
    result                         # in a notebook, the report

Runs are stored in the same ledger as those of the command line. Errors are `guestmark.core.errors.GuestmarkError`.
"""

from __future__ import annotations

import functools
import html as escaping
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from guestmark.core.context import Caller
from guestmark.core.errors import UsageError, make_unknown_name_error
from guestmark.core.gate import parse_gates
from guestmark.core.model import Plan
from guestmark.engine import preflight
from guestmark.engine.audience import Audience
from guestmark.engine.budget import choose_scale
from guestmark.engine.judgement import judge_run
from guestmark.engine.run import RunOptions, execute_plan
from guestmark.ledger import open_ledger
from guestmark.ledger.model import StoredRun
from guestmark.ledger.run_annotations import Annotations
from guestmark.ledger.store import Ledger
from guestmark.page.say import say
from guestmark.plan import library
from guestmark.plan.load import load_outline as load_plan
from guestmark.plan.outline import Outline, Overrides, assemble_plan, override_outline
from guestmark.plan.policy_options import choose_budget, collect_given_values
from guestmark.report import long_form, run_comparison
from guestmark.report.document import make_result_document
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.report.render import html
from guestmark.report.run_comparison import RunComparison
from guestmark.report.shared_facts import restore_shared
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.gates import JudgedGate, judge_gates
from guestmark.stats.pairwise import list_values_by_block
from guestmark.workloads.exec.plan import ExecOptions, build_plan

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = ["Compared", "Moved", "Ratio", "Result", "exec", "load", "read_document", "run"]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A cell's ratio to the baseline with its 95 % interval (None without one), and the verdict."""

    cell: str
    metric: str
    value: float
    low: float | None
    high: float | None
    verdict: str
    reason: str
    blocks: int


class Result:
    """A run: its cells, their ratios, and every trial."""

    def __init__(self, stored: StoredRun, analysis: Analysis, ledger: str | None = None) -> None:
        self.stored = stored
        self.analysis = analysis
        self._ledger = ledger

    @property
    def id(self) -> str:
        """The run's id."""
        return self.stored.id

    @property
    def state(self) -> str:
        """How the run ended: `complete`, `interrupted`, …"""
        return self.stored.state.value

    @property
    def cells(self) -> tuple[str, ...]:
        """The ids of its cells in plan order, without the copies that show the noise."""
        return tuple(cell.id for cell in self.stored.plan.cells if not cell.added)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the measured metrics, the primary one first."""
        names: list[str] = []
        for workload in self.analysis.workloads:
            names += [metric.name for metric in workload.metrics]
        return tuple(dict.fromkeys(names))

    def ratio(self, cell: str, metric: str | None = None) -> Ratio:
        """Return the ratio of a cell to the baseline, by default of the primary metric.

        Raises `UsageError` for an unknown cell, or one without a ratio.
        """
        found = self._find_cell(cell)
        name = metric or self._primary(found)
        comparison = found.comparison.get(name)
        if comparison is None or comparison.ratio is None:
            raise UsageError(
                f"cell {cell!r} has no ratio of {name}",
                hint=found.reason or "it may be the baseline, or have no values",
            )
        low, high = comparison.ci or (None, None)
        return Ratio(
            cell, name, comparison.ratio, low, high, comparison.verdict.value, comparison.reason, comparison.n
        )

    @property
    def ratios(self) -> tuple[Ratio, ...]:
        """The ratios of the primary metric, of every cell that has one."""
        ratios = []
        for result in self.analysis.cells:
            comparison = result.comparison.get(self._primary(result))
            if not result.cell.added and comparison is not None and comparison.ratio is not None:
                ratios.append(self.ratio(result.cell.id))
        return tuple(ratios)

    def values(self, cell: str, metric: str | None = None) -> dict[int, float]:
        """Return the value of each trial that is ok, by block."""
        found = self._find_cell(cell)
        return list_values_by_block(found.trials, metric or self._primary(found))

    @overload
    def frame(self, kind: Literal["polars"] = "polars") -> polars.DataFrame: ...
    @overload
    def frame(self, kind: Literal["pandas"]) -> pandas.DataFrame: ...
    def frame(self, kind: str = "polars") -> Any:
        """Every trial and metric, one row each, as the CSV has them; a polars DataFrame, or one of pandas."""
        if kind == "polars":
            return long_form.make_frame(self.stored, self.analysis)
        if kind != "pandas":
            raise UsageError(f"{kind!r} is not a kind of frame", hint="polars or pandas")
        try:
            import pandas
        except ImportError as error:
            raise UsageError("pandas is not installed", hint="pip install pandas, or use .frame()") from error
        return pandas.DataFrame(
            long_form.make_trial_rows(self.stored, self.analysis),
            columns=long_form.list_column_names(self.stored),
        )

    def gates(self, *limits: str) -> tuple[JudgedGate, ...]:
        """Judge limits such as `tcg > +5%`; see `guestmark gate`.

        Raises `UsageError` for a limit that cannot be read.
        """
        names = {metric.name for metric in self.stored.plan.metrics}
        return judge_gates(parse_gates(limits, self.stored.plan.cells, names), self.analysis)

    def compare(self, other: Result) -> Compared:
        """Compare this run (before) with another (after), cell by cell; see `guestmark compare`."""
        with _open_ledger(self._ledger, writable=False) as ledger:
            return Compared(run_comparison.compare_runs(ledger, self.stored, other.stored))

    def document(self) -> dict[str, Any]:
        """Return the result document, as `--json` writes it."""
        return make_result_document(self.stored, self.analysis)

    def html(self) -> str:
        """Return the report as an HTML page."""
        return export_run(self.stored, Format.HTML, self.analysis).decode()

    def _repr_html_(self) -> str:
        return _embed_page(self.html(), f"guestmark {self.id}")

    def __repr__(self) -> str:
        said = ", ".join(f"{ratio.cell} ×{ratio.value:.3g} {ratio.verdict}" for ratio in self.ratios)
        verdicts = f": {said}" if said else ""
        return f"<guestmark run {self.id}, {self.state}{verdicts}>"

    @cached_property
    def _by_id(self) -> Mapping[str, CellResult]:
        return {result.cell.id: result for result in self.analysis.cells}

    def _find_cell(self, cell: str) -> CellResult:
        if cell not in self._by_id:
            raise make_unknown_name_error("cell", cell, self._by_id)
        return self._by_id[cell]

    def _primary(self, result: CellResult) -> str:
        workload = next(workload for workload in self.analysis.workloads if result in workload.cells)
        return workload.metrics[0].name if workload.metrics else ""


@dataclass(frozen=True, slots=True)
class Moved:
    """How a cell's ratio to its baseline changed from one run to another, with its 95 % interval, and the verdict."""

    cell: str
    value: float  # after over before
    low: float | None
    high: float | None
    verdict: str


class Compared:
    """Two runs, compared cell by cell."""

    def __init__(self, found: RunComparison) -> None:
        self.found = found

    @property
    def before(self) -> str:
        """The id of the first run."""
        return self.found.before.id

    @property
    def after(self) -> str:
        """The id of the second run."""
        return self.found.after.id

    @property
    def same_host(self) -> bool:
        """True if both were measured on the same host."""
        return self.found.same_host

    @property
    def moved(self) -> tuple[Moved, ...]:
        """The changes of the ratios of all cells that both runs have."""
        found = []
        for pair in self.found.pairs:
            low, high = pair.change.ci or (None, None)
            found.append(Moved(pair.cell, pair.change.ratio, low, high, pair.change.verdict.value))
        return tuple(found)

    @property
    def surroundings(self) -> dict[str, str]:
        """What differs between the environments of the two runs, as `old → new` by name."""
        return {**self.found.decisive, **self.found.other}

    @property
    def missing(self) -> tuple[str, ...]:
        """Cells that only one run has, or whose ratio has no interval."""
        return self.found.missing

    def document(self) -> dict[str, Any]:
        """Return the document, as `guestmark compare --json` writes it."""
        return run_comparison.make_document([self.found])

    def html(self) -> str:
        """Return the comparison as an HTML page."""
        return html.render(run_comparison.make_page([self.found]))

    def _repr_html_(self) -> str:
        return _embed_page(self.html(), f"guestmark {self.before} {self.after}")

    def __repr__(self) -> str:
        said = [f"{change.cell} ×{change.value:.3g} {change.verdict}" for change in self.moved]
        if self.missing:
            said.append(f"{len(self.missing)} not in both")
        verdicts = f": {', '.join(said)}" if said else ""
        return f"<guestmark {self.before} → {self.after}{verdicts}>"


def _embed_page(page: str, title: str) -> str:
    """Return a page in a frame, so that its style stays its own."""
    style = "width: 100%; height: 40em; border: 0"
    return f'<iframe srcdoc="{escaping.escape(page, quote=True)}" style="{style}" title="{title}"></iframe>'


def load(run: str = "last", *, ledger: str | os.PathLike[str] | None = None) -> Result:
    """Load a run of the ledger, by its id, the beginning or end of it, its name, or `last`."""
    where = None if ledger is None else os.fspath(ledger)
    with _open_ledger(where, writable=False) as opened:
        found = judge_run(opened, run)
    return Result(found.stored, found.analysis, where)


def read_document(file: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the result document in a file (`--json FILE`), of any version, with everything in each trial.

    Raises `UsageError` for any other file.
    """
    try:
        return restore_shared(json.loads(Path(file).read_bytes()))
    except OSError as error:
        raise UsageError(f"cannot read {os.fspath(file)}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        raise UsageError(
            f"{os.fspath(file)} is not a result document of guestmark", hint="write one: --json FILE"
        ) from error


def exec(  # noqa: A001 (as the command is called)
    command: Sequence[str] | str,
    *,
    on: Sequence[str] = ("host",),
    settings: Mapping[str, Sequence[str] | str] | None = None,
    parameters: Mapping[str, Sequence[object]] | None = None,
    metrics: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    labels: Mapping[str, str] | None = None,
    name: str = "",
    **policy: Any,
) -> Result:
    """Measure a command on these platforms, as `guestmark exec` does, and return the result.

    A string is split as a shell would, but no shell runs it. `settings` are factors with their levels; `parameters`
    replace `{name}` in the command; `env` is added to the environment of this process. `policy` may hold the
    `baseline` and any field of `plan.policy_options.PolicyOptions`, such as `blocks`.
    """
    words = shlex.split(command) if isinstance(command, str) else list(command)
    caller = Caller.current()
    caller = replace(caller, env={**caller.env, **(env or {})})
    options = ExecOptions(
        on=tuple(on),
        settings=_format_settings(settings),
        parameters={name: tuple(map(str, levels)) for name, levels in (parameters or {}).items()},
        metrics=tuple(metrics),
        caller=caller,
        **policy,
    )
    return _measure_plan(build_plan(options, words), ledger, labels, name)


def run(
    plan: str | os.PathLike[str],
    *,
    on: Sequence[str] | None = None,
    settings: Mapping[str, Sequence[str] | str] | None = None,
    scale: float | None = None,
    budget_s: float | None = None,
    ledger: str | os.PathLike[str] | None = None,
    labels: Mapping[str, str] | None = None,
    name: str = "",
    **policy: Any,
) -> Result:
    """Run a plan, a built-in one or a TOML file, as `guestmark run` does; see `exec` for the other arguments.

    `budget_s` is the wall time in seconds of `--for`. `policy` may also hold `only`.
    """
    wanted = Overrides(on=on, settings=_format_settings(settings), **policy)
    text, where = library.find_plan(os.fspath(plan))

    @functools.cache
    def read_outline(size: float) -> Outline:
        return load_plan(text, where, scale=size)

    def build_scaled_plan(size: float) -> Plan:
        return assemble_plan(override_outline(read_outline(size), wanted), Caller.current())

    where_stored = None if ledger is None else os.fspath(ledger)
    planned_s = read_outline(1.0).budget_s
    budget_s = choose_budget(budget_s, planned_s, collect_given_values(wanted))
    if scale is None and budget_s is not None:
        with _open_ledger(where_stored, writable=True) as known:
            scaled = choose_scale(build_scaled_plan, known, budget_s)
    else:
        scaled = build_scaled_plan(1.0 if scale is None else scale)
    return _measure_plan(scaled, ledger, labels, name, budget_s)


def _format_settings(settings: Mapping[str, Sequence[str] | str] | None) -> list[str]:
    found = []
    for factor, levels in (settings or {}).items():
        every = [levels] if isinstance(levels, str) else list(levels)
        found.append(f"{factor}=" + ",".join(str(level).replace(",", "\\,") for level in every))
    return found


def _measure_plan(
    plan: Plan,
    where: str | os.PathLike[str] | None,
    labels: Mapping[str, str] | None,
    name: str,
    budget_s: float | None = None,
) -> Result:
    path = None if where is None else os.fspath(where)
    preflight.check_requests(plan, plan.cells)
    with _open_ledger(path, writable=True) as ledger:
        options = RunOptions(said=Annotations(name=name, labels=dict(labels or {})), budget_s=budget_s)
        judgement, _ = execute_plan(plan, ledger, Audience(say), options)
    return Result(judgement.stored, judgement.analysis, path)


def _open_ledger(where: str | None, *, writable: bool) -> AbstractContextManager[Ledger]:
    chosen = where or os.environ.get("GUESTMARK_LEDGER") or None
    where_found = chosen if chosen is None or "://" in chosen else Path(chosen)
    return open_ledger(where_found, writable=writable)
