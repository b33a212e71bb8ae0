"""The small print under a report: how much was measured, how far it can be trusted, where the time went."""

from collections import Counter

from rich.console import Group, RenderableType
from rich.text import Text

from guestmark.core.model import Trial
from guestmark.core.units import format_duration
from guestmark.ledger.model import RunState
from guestmark.report import figures
from guestmark.stats.analysis import Analysis, WorkloadResult
from guestmark.stats.compare import MIN_BLOCKS
from guestmark.workloads.boot.metrics import TOTAL

WALL = "wall_s"
_MEASURED = {WALL, TOTAL.name}  # what iterations took; of starts, the whole life of a machine
_CAUSES = {  # by name in `stats.THRESHOLDS`
    "psi_cpu_some": "processors overcommitted",
    "psi_io_full": "waiting for disks",
    "psi_memory_some": "memory pressure",
    "run_queue_delay": "hypervisor waiting for a processor",
    "steal": "time stolen by the host's own host",
    "frequency_drop": "frequency dropped",
    "throttled": "thermal throttling",
    "swapped_pages": "swapping",
}


def footer(analysis: Analysis, *, run_id: str = "", state: RunState | None = None) -> RenderableType:
    """The small print, for the terminal."""
    return Group(*lines(analysis, run_id=run_id, state=state))


def lines(analysis: Analysis, *, run_id: str = "", state: RunState | None = None) -> list[Text]:
    """Lines of small print; warnings first, since they limit what was said above."""
    said: list[Text] = []
    for workload in analysis.workloads:
        said += _null_lines(workload, many=len(analysis.workloads) > 1)
    said += _warnings(analysis)
    if not any(result.summary for result in analysis.cells):
        said.append(Text("Nothing was measured", style="bold red"))
    policy = analysis.plan.policy
    counted = f"{analysis.blocks} blocks, {analysis.trials} trials"
    if analysis.failed:
        counted += f" ({analysis.failed} failed)"
    said.append(_dim(f"{counted}, seed {policy.seed}, 95 % intervals over fresh machines"))
    spent = time_spent(tuple(trial for result in analysis.cells for trial in result.trials))
    if spent:
        said.append(_dim(spent))
    if run_id:
        going_on = state not in {None, RunState.COMPLETE, RunState.FAILED, RunState.STOPPED}
        said.append(_dim(f"Run {run_id}, {state.value}" if state is not None else f"Run {run_id}"))
        command = f"guestmark resume {run_id}" if going_on else f"guestmark show {run_id}"
        said.append(Text(f"{'Continue' if going_on else 'See again'}: {command}", style="dim", no_wrap=True))
    return said


def time_spent(trials: tuple[Trial, ...]) -> str:
    """Where the time of the trials went: starting machines, the measured iterations, and all the rest."""
    total = sum(trial.duration_s for trial in trials)
    if total <= 0:
        return ""
    starting = sum(_start_s(trial) for trial in trials)
    measuring = sum(
        sum(one.iterations) for trial in trials for one in trial.measurements if one.metric.name in _MEASURED
    )
    shares = [("starting", starting), ("measuring", measuring)]
    rest = max(0.0, total - starting - measuring)
    shares.append(("warm-up and harness", rest))
    said = ", ".join(f"{figures.percent(part / total)} {name}" for name, part in shares)
    return f"Time spent {format_duration(total)}: {said}"


def _start_s(trial: Trial) -> float:
    """Seconds from asking for the machine until its agent answered; on the host, next to nothing.

    Where the start itself was measured it counts as that.
    """
    if not trial.phases or any(one.metric == TOTAL for one in trial.measurements):
        return 0.0
    return float(trial.phases.get("ready", max(trial.phases.values())))


def _null_lines(workload: WorkloadResult, *, many: bool) -> list[Text]:
    if not workload.metrics:
        return []
    primary = workload.metrics[0].name
    lines = []
    for result in workload.null_cells:
        comparison = result.comparison.get(primary)
        if comparison is None or comparison.ratio is None:
            continue
        ratio = figures.ratio(comparison.ratio, comparison.ci)
        shown = f"{result.cell.id} to {result.cell.null_of}: {ratio}"
        if primary in result.null_differs:
            line = Text("Null comparison differs: ", style="bold red")
            line.append(f"{shown}. Equal cells look different on this host: no verdict is given.", "default")
        elif comparison.n < MIN_BLOCKS:
            line = _dim(f"Null comparison {shown}, too few blocks to tell")
        else:
            line = _dim(f"Null comparison {shown}, no difference, as it should be")
        lines.append(line)
    floor = workload.noise_floors.get(primary)
    if floor is not None:
        where = f" ({workload.title})" if many else ""
        lines.append(
            _dim(f"Noise floor {figures.percent(floor)}{where}: smaller differences are not claimed")
        )
    return lines


def _warnings(analysis: Analysis) -> list[Text]:
    lines = []
    counts = Counter(
        warning
        for result in analysis.cells
        for trial in result.trials
        for warning in dict.fromkeys(trial.warnings)
    )
    for warning, count in counts.most_common(5):
        line = Text("Warning: ", style="yellow")
        line.append(f"{warning} ({count} trial{'s' if count != 1 else ''})", style="default")
        lines.append(line)
    if len(counts) > 5:
        lines.append(_dim(f"… and {len(counts) - 5} other warnings; guestmark export has them all"))
    if analysis.flagged_blocks:
        count = len(analysis.flagged_blocks)
        where = f"all {count}" if count == analysis.blocks and count > 1 else f"{count} of {analysis.blocks}"
        causes = ", ".join(_CAUSES.get(name, name) for name in analysis.disturbances)
        line = Text("Warning: ", style="yellow")
        line.append(f"the host was disturbed in {where} blocks ({causes}); all are kept", style="default")
        lines.append(line)
    return lines


def _dim(text: str) -> Text:
    return Text(text, style="dim")
