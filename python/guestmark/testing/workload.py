"""Checks whether a workload meets its contract."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from guestmark.core import registry
from guestmark.core.errors import (
    GuestmarkError,
    WorkloadError,
)
from guestmark.core.metric import Metric
from guestmark.core.model import Cell, Plan, Trial, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.workload_kind import WorkloadClass
from guestmark.engine.interrupt import Interruption
from guestmark.engine.progress import SilentObserver
from guestmark.engine.trial import TrialSlot, run_trial
from guestmark.platforms import registry as platforms
from guestmark.testing.rules import (
    TYPED,
    Rule,
    Violation,
    check_import_cost,
    check_loading,
    collect_violations,
    make_not_found_violation,
    make_untyped_error_violation,
    run_guarded,
)
from guestmark.testing.trials import (
    check_interruption,
    check_level_read,
    kill_machine,
    make_plan,
    prepare_workload,
)
from guestmark.workloads import base

# Seconds. Only for a run this long is a quarter of its time clearly longer than a call to the agent.
_LONG_S = 0.2


def check_workload(
    name: str, params: Mapping[str, Any] | None = None, *, on: str = "host", optional: Collection[str] = ()
) -> list[Violation]:
    """Return the violations of a workload with these parameters, in a plan's form, on a platform of this host.

    `optional` are declared metrics that this platform may lack.
    """
    try:
        kind = registry.workload_kind(name)
    except GuestmarkError as error:
        return [make_not_found_violation(error)]
    if found := _check_description(kind):
        return found
    found += check_import_cost(
        lambda module: kind in vars(module).values(), [base.find_trial_class(name).__module__]
    )
    found += _check_parameters(kind, params or {})
    if any(violation.rule is Rule.PARAMETERS for violation in found):
        return found
    cell = Cell("checked", WorkloadSpec(name, kind.check_params(params or {})), PlatformSpec.read(on))
    trial, broken = _run_trial(make_plan(cell, kind.metrics_of(cell.workload)))
    found += broken
    if trial is None:
        return found
    if trial.status is not TrialStatus.OK:
        what = f"a trial failed: {trial.reason}"
        return [*found, Violation(Rule.MEASURED, what, "check with other parameters")]
    found += _check_metrics(kind.metrics_of(cell.workload), trial, optional)
    found += collect_violations("a trial whose machine was killed", _check_killed_machine(cell))
    found += collect_violations("a trial with a limit", _check_limit(cell, trial))
    for factor in kind.factors:
        if kind.has_factor(cell.workload, factor.name, cell.platform):
            found += check_level_read(cell, factor, _run_workload_once)
    found += collect_violations("an interrupted trial", check_interruption(cell))
    return found


def _check_description(kind: WorkloadClass) -> list[Violation]:
    if not issubclass(kind, base.Workload):
        hint = "derive it from workloads.base.Workload"
        return [Violation(Rule.DESCRIBED, f"{kind.__name__} is not a Workload", hint)]
    loaders: dict[str, Callable[[], object]] = {
        "model": kind.params_model,
        "trial_class": kind.trial_class,
        "sections": kind.report_sections,
        "conclusion": kind.report_conclusion,
    }
    return list(check_loading(kind.help, loaders))


def _check_parameters(kind: WorkloadClass, params: Mapping[str, Any]) -> Iterator[Violation]:
    try:
        checked = kind.check_params(params)
    except (GuestmarkError, ValueError) as error:
        yield Violation(
            Rule.PARAMETERS, f"these parameters are refused: {error}", "check with other parameters"
        )
        return
    try:
        kind.params_of(WorkloadSpec(kind.name, json.loads(json.dumps(checked))))
    # Extensions may raise anything.
    except Exception as error:
        hint = "to_stored() must return what JSON has, and the type of its parameters must read it"
        what = f"the parameters cannot be read back from the ledger: {error!r}"
        yield Violation(Rule.PARAMETERS, what, hint)


def _check_metrics(
    declared: Sequence[Metric], trial: Trial, optional: Collection[str]
) -> Iterator[Violation]:
    """Yield violations unless every declared metric, except optional ones, is measured as it was declared."""
    wanted = {metric.name: metric for metric in declared}
    measured = {measurement.metric.name: measurement for measurement in trial.measurements}
    for name in sorted(wanted.keys() - measured.keys() - set(optional)):
        yield Violation(
            Rule.METRICS, f"{name} is declared but not measured", "measure it, or remove it from metrics"
        )
    for name in sorted(measured.keys() - wanted.keys()):
        yield Violation(
            Rule.METRICS,
            f"{name} is measured but not declared",
            "declare it in the workload description's metrics",
        )
    for name, measurement in measured.items():
        if wanted.get(name, measurement.metric) != measurement.metric:
            yield Violation(
                Rule.METRICS, f"{name} has another unit or direction than declared", "use the declared Metric"
            )


def _run_trial(plan: Plan) -> tuple[Trial | None, list[Violation]]:
    """Run one trial of the plan's only cell, with a warm-up and two iterations."""
    (cell,) = plan.cells
    platform = platforms.get_platform(base.choose_started_cell(cell).platform)
    workload = base.find_trial_class(cell.workload.name)

    def run() -> Trial:
        workload.check_request(plan, [cell])
        if reason := workload.impossible(cell):
            raise WorkloadError(reason)
        workload.preflight(plan, [cell])
        return run_trial(
            plan, TrialSlot(cell, 0, 0, iterations=2), platform, Interruption(), SilentObserver()
        )

    return run_guarded("a trial", run)


def _check_killed_machine(cell: Cell) -> Iterator[Violation]:
    """Kill the machine once the workload is prepared, and yield violations by its `run` and `cleanup`."""
    with prepare_workload(cell) as (workload, machine):
        kill_machine(machine)
        try:
            workload.run(machine)
        except TYPED:
            pass
        # Extensions may raise anything.
        except Exception as error:
            yield make_untyped_error_violation("run() on a machine that was killed", error)
        else:
            yield Violation(
                Rule.TYPED,
                "run() on a machine that was killed returned measurements",
                "do not catch its errors",
            )
        try:
            workload.cleanup(machine)
        except TYPED:
            pass
        except Exception as error:
            yield make_untyped_error_violation("cleanup() on a machine that was killed", error)


def _check_limit(cell: Cell, trial: Trial) -> Iterator[Violation]:
    """Yield a violation if an iteration, limited to a quarter of its usual time, takes more than twice that limit."""
    took_s = min(trial.run_s)
    if took_s < _LONG_S:
        return
    with prepare_workload(cell, limit_s=took_s / 4) as (workload, machine):
        begin = time.monotonic()
        try:
            workload.run(machine)
        except TYPED:
            return
        # Extensions may raise anything.
        except Exception as error:
            yield make_untyped_error_violation("run() beyond its limit", error)
            return
        ran_s = time.monotonic() - begin
        if ran_s > took_s / 2:
            what = f"an iteration ran for {ran_s:.2g} s with a limit of {took_s / 4:.2g} s"
            yield Violation(Rule.LIMIT, what, "pass timeout_s=self.limit_s to the agent")


def _run_workload_once(cell: Cell) -> None:
    with prepare_workload(cell) as (workload, machine):
        workload.run(machine)
        workload.cleanup(machine)
