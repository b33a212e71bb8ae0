"""The small print of a report: how much was measured, how far to trust it, where the time went."""

from collections import Counter

from guestmark.core.findings import Build
from guestmark.core.machine_facts import GuestMachine
from guestmark.core.model import RunState, Trial
from guestmark.core.units import counted, format_duration
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Command, Node, Note, NoteKind
from guestmark.page.text import Span, Tone, line, spans
from guestmark.report.commands import resume_command
from guestmark.report.sections import elsewhere, places
from guestmark.report.sections.environment import binaries, summary
from guestmark.stats.analysis import Analysis, WorkloadResult
from guestmark.stats.compare import MIN_BLOCKS, Verdict, null_differs
from guestmark.stats.family import detectable_difference
from guestmark.stats.finding import share_found
from guestmark.stats.validity import ALPHA
from guestmark.workloads.boot import TOTAL
from guestmark.workloads.exec.plan import named_commands

WALL = "wall_s"
_MEASURED = {WALL, TOTAL.name}  # what iterations took; of starts, the whole life of a machine
_RARE = 0.25  # what is more often slow is not called slow runs by anybody
_ROUNDED_TO_NOTHING, _TELLS_NOTHING = (
    0.0005,
    1.0,
)  # differences that are nothing to find, or say nothing if found
_COVERED = "95 % intervals, for this host today"
_CAUSES = {  # by name in `stats.THRESHOLDS`
    "psi_cpu_some": "processors overcommitted",
    "psi_io_full": "waiting for disks",
    "psi_memory_some": "memory pressure",
    "run_queue_delay": "hypervisor waiting for a processor",
    "foreign_cpu": "other programs on the machines' processors",
    "steal": "time stolen by the host's own host",
    "frequency_drop": "frequency dropped",
    "throttled": "thermal throttling",
    "swapped_pages": "swapping",
}


def footer(analysis: Analysis, run: StoredRun) -> list[Node]:
    """Notes and the command that shows or continues the run; warnings first, since they limit what was said above."""
    nodes: list[Node] = []
    level = ALPHA / max(sum(len(workload.null_cells) for workload in analysis.workloads), 1)
    for workload in analysis.workloads:
        nodes += _nulls(workload, level, many=len(analysis.workloads) > 1)
    nodes += _warnings(analysis, run)
    if not any(result.summary for result in analysis.cells):
        nodes.append(Note(line("Nothing was measured", Tone.ERROR), NoteKind.ERROR))
    policy = analysis.plan.policy
    made = f"{counted(analysis.blocks, 'block')}, {counted(analysis.trials, 'trial')}"
    if analysis.failed:
        made += f" ({analysis.failed} failed)"
    nodes.append(_small(f"{made}, seed {policy.seed}"))
    nodes += [_small(f"{name}: {text}") for name, text in named_commands(run.plan.cells).items()]
    nodes.append(_small(_COVERED))
    elapsed = run.plan.context.elapsed_s
    spent = time_spent(tuple(trial for result in analysis.cells for trial in result.trials), elapsed)
    if spent:
        nodes.append(_small(spent))
    if where := places.placement(run.trials):
        nodes.append(_small(f"Placement {where}"))
    if here := summary(run):
        nodes.append(_small(f"Measured on {here}"))
    nodes += [_small(f"{name}: {said}") for name, said in elsewhere.machines(run).items()]
    if run.id:
        going_on = run.state not in {RunState.COMPLETE, RunState.FAILED, RunState.STOPPED}
        nodes.append(_small(f"Run {run.id}, {run.state.said(len(run.trials))}"))
        command = resume_command(run) if going_on else f"guestmark show {run.id}"
        nodes.append(Command("Continue" if going_on else "See again", command))
    return nodes


def time_spent(trials: tuple[Trial, ...], elapsed_s: float | None = None) -> str:
    """Where the wall time of a run's commands went: starting machines, measured iterations, and everything else.

    Of runs of version 0.2 only the time of their trials is known.
    """
    within = sum(trial.duration_s for trial in trials)
    total = within if elapsed_s is None else max(elapsed_s, within)
    if total <= 0:
        return ""
    starting = sum(_start_s(trial) for trial in trials)
    measuring = sum(_measured_s(trial) for trial in trials)
    shares = [("starting", starting), ("measuring", measuring)]
    rest = max(0.0, total - starting - measuring)
    shares.append(("warm-up and harness", rest))
    said = ", ".join(f"{figures.percent(part / total)} {name}" for name, part in shares)
    return f"Time spent {format_duration(total)}: {said}"


def _measured_s(trial: Trial) -> float:
    """Seconds of its measured iterations: by what they measured where that is their time, else by how long they ran."""
    timed = [
        measurement.iterations for measurement in trial.measurements if measurement.metric.name in _MEASURED
    ]
    if timed:
        return sum(map(sum, timed))
    iterations = max((len(measurement.iterations) for measurement in trial.measurements), default=0)
    return sum(trial.run_s[-iterations:]) if iterations else 0.0


def _start_s(trial: Trial) -> float:
    """Seconds from asking for the machine until its agent answered, and of making what it was restored from.

    On the host that is next to nothing. Where the start itself was measured it counts as that.
    """
    if not trial.phases or any(measurement.metric == TOTAL for measurement in trial.measurements):
        return 0.0
    machine = trial.facts.of(GuestMachine)
    template_s = machine.restored.template_s if machine is not None and machine.restored else 0.0
    return float(trial.phases.get("ready", max(trial.phases.values()))) + template_s


def _nulls(workload: WorkloadResult, level: float, *, many: bool) -> list[Node]:
    """Copies beside what they copy; a warning of those that differ at `level`, which those of a report share."""
    if not workload.metrics:
        return []
    primary = workload.metrics[0].name
    nodes: list[Node] = []
    for result in workload.null_cells:
        comparison = result.comparison.get(primary)
        if comparison is None or comparison.ratio is None:
            continue
        names = {"copy": result.cell.id, "cell": result.cell.null_of}
        ratio = figures.ratio(comparison.ratio, comparison.ci)
        if primary in result.differing_null_metrics and null_differs(comparison, level):
            said = Claim.COPIES_DIFFER.format(
                **names, ratio=ratio, metric=figures.in_prose(workload.metrics[0])
            )
            nodes.append(Note(line(said), NoteKind.WARNING))
        elif comparison.verdict is Verdict.NO_DIFFERENCE:
            nodes.append(_small(Claim.COPIES_ALIKE.format(**names, ratio=ratio)))
        else:
            few = f", {counted(comparison.n, 'block')}" if comparison.n < MIN_BLOCKS else ""
            nodes.append(
                _small(f"Copies of one cell, {result.cell.id} to {result.cell.null_of}: {ratio}{few}")
            )
    if (share := _findable(workload)) is not None and share <= _RARE:
        nodes.append(_small(Claim.FINDABLE.format(share=figures.percent(share))))
    least = [
        size
        for result in workload.shown_cells
        if (comparison := result.comparison.get(primary)) is not None
        and not comparison.differs
        and (size := detectable_difference(comparison)) is not None
    ]
    if least and _ROUNDED_TO_NOTHING < max(least) <= _TELLS_NOTHING:
        where = f" ({workload.title})" if many else ""
        nodes.append(_small(Claim.DETECTABLE.format(size=figures.percent(max(least))) + where))
    return nodes


def _findable(workload: WorkloadResult) -> float | None:
    """The share of slow runs that each of the cells would have been found to have; None where that is over one half."""
    shares = []
    for result in workload.shown_cells:
        slow = None if result.answers is None else result.answers.slow
        if slow is not None and slow.verdict not in {Verdict.FASTER, Verdict.SLOWER} and slow.n:
            held = slow.cell.iterations // slow.n
            others = len(workload.shown_cells) - 1
            shares.append(share_found(slow.n, held, background=slow.baseline.slow_share, cells=others))
    known = [share for share in shares if share is not None]
    return max(known) if shares and len(known) == len(shares) else None


def _warnings(analysis: Analysis, run: StoredRun) -> list[Node]:
    said = [
        f"{binary.path} is NOT the same on all sides: guestmark show {run.id} --environment has the digests"
        for binary in binaries(run)
        # Those of other architectures are known to differ, and told of by name.
        if not binary.same and not any(trial.facts.of(Build) for trial in run.trials)
    ]
    counts = Counter(
        warning
        for result in analysis.cells
        for trial in result.trials
        for warning in dict.fromkeys(trial.warnings)
    )
    said += [f"{warning} ({counted(count, 'trial')})" for warning, count in counts.most_common(5)]
    nodes: list[Node] = [_warning(text) for text in said]
    if len(counts) > 5:
        nodes.append(_small(f"… and {len(counts) - 5} other warnings; guestmark export has them all"))
    # What others took of the processors has a finding of its own, in the words of the whole run.
    told = {"foreign_cpu", "steal", "psi_cpu_some", "run_queue_delay"}
    others = {name: count for name, count in analysis.disturbances.items() if name not in told}
    if others:
        causes = ", ".join(f"{_CAUSES.get(name, name)} in {count}" for name, count in others.items())
        nodes.append(_warning(f"of {counted(analysis.blocks, 'block')}: {causes}; all are kept"))
    return nodes


def _warning(text: str) -> Note:
    return Note(spans(Span("Warning: ", Tone.WARNING), text), NoteKind.WARNING)


def _small(text: str) -> Note:
    return Note(line(text))
