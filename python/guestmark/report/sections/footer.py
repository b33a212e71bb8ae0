"""The small print of a report: how much was measured, how far to trust it, where the time went."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from guestmark.core.findings import Build, SharedMachine
from guestmark.core.machine_facts import GuestMachine, OwnMachine
from guestmark.core.metric_spec import WALL
from guestmark.core.model import RunState, Trial
from guestmark.core.units import format_count, format_duration
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Command, Node, Note, NoteKind
from guestmark.page.text import Span, Tone, line, spans
from guestmark.report.commands import format_resume_command
from guestmark.report.sections import locations, remote_machines
from guestmark.report.sections.creations import describe_creations
from guestmark.report.sections.disk_images import describe_images
from guestmark.report.sections.environment import describe_host, find_binaries
from guestmark.stats.analysis import Analysis, WorkloadResult
from guestmark.stats.compare import Verdict, null_differs
from guestmark.stats.sensitivity import estimate_findable_share, estimate_undetected_difference
from guestmark.stats.validity import ALPHA
from guestmark.workloads.boot import TOTAL
from guestmark.workloads.exec.plan import map_names_to_command_lines

# Metrics that are the duration of an iteration; in a start, an iteration is the machine's whole life.
_MEASURED = {WALL.name, TOTAL.name}
_COVERED = "95 % intervals, for this host today"
_MOST_WARNINGS = 5
_ENDED = {RunState.COMPLETE, RunState.FAILED, RunState.STOPPED}
_CAUSES = {  # by name in `stats.THRESHOLDS`
    "psi_cpu_some": "processors overcommitted",
    "psi_io_full": "waiting for disks",
    "psi_memory_some": "memory pressure",
    "run_queue_delay": "hypervisor waiting for a processor",
    "foreign_cpu": "other programs on the machines' processors",
    "steal": "time stolen by the hypervisor below this host (steal)",
    "frequency_drop": "frequency dropped",
    "throttled": "thermal throttling",
    "swapped_pages": "swapping",
}
# Findings about the whole run report these already, with the share of processor time that was lost.
_SAID_ELSEWHERE = frozenset({"foreign_cpu", "steal", "psi_cpu_some", "run_queue_delay"})


def make_footer_nodes(analysis: Analysis, run: StoredRun) -> list[Node]:
    """Return notes and the command that shows or continues the run; warnings come first, as they limit the results."""
    nodes: list[Node] = []
    copies = sum(len(workload.null_cells) for workload in analysis.workloads)
    # All copies in a report share one error rate, so that many copies do not cause false warnings.
    level = ALPHA / max(copies, 1)
    for workload in analysis.workloads:
        nodes += _make_copy_notes(workload, level)
        nodes += _make_sensitivity_notes(workload, many=len(analysis.workloads) > 1)
    nodes += _make_warning_notes(analysis, run)
    if not any(result.summary for result in analysis.cells):
        nodes.append(Note(line("Nothing was measured", Tone.ERROR), NoteKind.ERROR))
    nodes += map(_make_small_note, _list_circumstances(analysis, run))
    if run.id:
        nodes.append(_make_small_note(f"Run {run.id}, {run.state.describe_state(len(run.trials))}"))
        if run.state in _ENDED:
            nodes.append(Command("Show again", f"guestmark show {run.id}"))
        else:
            nodes.append(Command("Continue", format_resume_command(run)))
    return nodes


def _list_circumstances(analysis: Analysis, run: StoredRun) -> list[str]:
    amount = f"{format_count(analysis.blocks, 'block')}, {format_count(analysis.trials, 'trial')}"
    if analysis.failed:
        amount += f" ({analysis.failed} failed)"
    texts = [f"{amount}, seed {analysis.plan.policy.seed}"]
    texts += _label_texts(map_names_to_command_lines(run.plan.cells))
    texts.append(_COVERED)
    trials = tuple(chain.from_iterable(result.trials for result in analysis.cells))
    texts.append(describe_time_spent(trials, run.plan.context.elapsed_s))
    if placement := locations.describe_placement(run.trials):
        texts.append(f"Placement {placement}")
    if host := describe_host(run):
        texts.append(f"Measured on {host}")
    texts += _label_texts(remote_machines.describe_machines(run))
    texts += _label_texts(describe_images(run))
    texts += _label_texts(describe_creations(run))
    return [text for text in texts if text]


def _label_texts(texts: Mapping[str, str]) -> list[str]:
    return [f"{name}: {text}" for name, text in texts.items()]


def describe_time_spent(trials: Sequence[Trial], elapsed_s: float | None = None) -> str:
    """Return where a run's wall time went: starting machines, measured iterations, and everything else.

    For runs of version 0.2, only the time of their trials is known.
    """
    within = sum(trial.duration_s for trial in trials)
    total = within
    if elapsed_s is not None:
        total = max(elapsed_s, within)
    if total <= 0:
        return ""
    starting = sum(map(_sum_starting_s, trials))
    measuring = sum(map(_sum_measuring_s, trials))
    rest = max(0.0, total - starting - measuring)
    parts = (("starting", starting), ("measuring", measuring), ("warm-up and harness", rest))
    shares = ", ".join(f"{figures.format_percent(part / total)} {name}" for name, part in parts)
    return f"Time spent {format_duration(total)}: {shares}"


def _sum_measuring_s(trial: Trial) -> float:
    """Return the seconds of the measured iterations: their values if these are times, else how long they ran."""
    timed = []
    most = 0
    for measurement in trial.measurements:
        most = max(most, len(measurement.iterations))
        if measurement.metric.name in _MEASURED:
            timed.append(sum(measurement.iterations))
    if timed:
        return sum(timed)
    if not most:
        return 0.0
    return sum(trial.run_s[-most:])


def _sum_starting_s(trial: Trial) -> float:
    """Return the seconds from the request for the machine until its agent answered, and for creating its template.

    They are 0 if the start itself was measured, as it then counts as measuring.
    """
    if not trial.phases or any(measurement.metric == TOTAL for measurement in trial.measurements):
        return 0.0
    if (shared := trial.facts.find_fact(SharedMachine)) is not None:
        return shared.start_s
    machine = trial.facts.find_fact(GuestMachine) or trial.facts.find_fact(OwnMachine)
    template_s = 0.0
    if machine is not None and machine.restored:
        template_s = machine.restored.template_s
    return float(trial.phases.get("ready", max(trial.phases.values()))) + template_s


def _make_copy_notes(workload: WorkloadResult, level: float) -> list[Node]:
    """Return a note on each copy's ratio to the cell it copies; a warning if they differ at the level `level`."""
    if not workload.metrics:
        return []
    metric = workload.metrics[0]
    nodes: list[Node] = []
    for result in workload.null_cells:
        comparison = result.comparison.get(metric.name)
        if comparison is None or comparison.ratio is None:
            continue
        copy, original = result.cell.id, result.cell.null_of
        ratio = figures.format_ratio(comparison.ratio, comparison.ci)
        if metric.name in result.differing_null_metrics and null_differs(comparison, level):
            claim = Claim.COPIES_DIFFER.format(
                copy=copy, cell=original, ratio=ratio, metric=figures.name_metric(metric)
            )
            nodes.append(Note(line(claim), NoteKind.WARNING))
        elif comparison.verdict is Verdict.NO_DIFFERENCE:
            nodes.append(_make_small_note(Claim.COPIES_ALIKE.format(copy=copy, cell=original, ratio=ratio)))
        else:
            few = "" if comparison.has_enough_blocks else f", {format_count(comparison.n, 'block')}"
            nodes.append(_make_small_note(f"Copies of one cell, {copy} to {original}: {ratio}{few}"))
    return nodes


def _make_sensitivity_notes(workload: WorkloadResult, *, many: bool) -> list[Node]:
    """Return notes on the rarest slow runs and the smallest difference that such a run would have found."""
    if not workload.metrics:
        return []
    nodes: list[Node] = []
    share, difference = estimate_findable_share(workload), estimate_undetected_difference(workload)
    if share is not None:
        nodes.append(_make_small_note(Claim.FINDABLE.format(share=figures.format_percent(share))))
    if difference is not None:
        where = f" ({workload.title})" if many else ""
        nodes.append(
            _make_small_note(Claim.DETECTABLE.format(size=figures.format_percent(difference)) + where)
        )
    return nodes


def _make_warning_notes(analysis: Analysis, run: StoredRun) -> list[Node]:
    texts = []
    for binary in find_binaries(run):
        # Binaries for other architectures always differ, and each table names them.
        if not binary.is_same_everywhere and not _has_foreign_builds(run):
            texts.append(
                f"{binary.path} is NOT the same on all sides: guestmark show {run.id} --environment shows the digests"
            )
    counts: Counter[str] = Counter()
    for result in analysis.cells:
        for trial in result.trials:
            counts.update(dict.fromkeys(trial.warnings, 1))
    for warning, count in counts.most_common(_MOST_WARNINGS):
        texts.append(f"{warning} ({format_count(count, 'trial')})")
    nodes: list[Node] = [_make_warning_note(text) for text in texts]
    if len(counts) > _MOST_WARNINGS:
        others = format_count(len(counts) - _MOST_WARNINGS, "other warning")
        nodes.append(_make_small_note(f"… and {others}; guestmark export lists all of them"))
    causes = []
    for name, count in analysis.disturbances.items():
        if name not in _SAID_ELSEWHERE:
            causes.append(f"{_CAUSES.get(name, name)} in {count}")
    if causes:
        blocks, listed = format_count(analysis.blocks, "block"), ", ".join(causes)
        nodes.append(_make_warning_note(f"the host disturbed some of {blocks}: {listed}; all are kept"))
    return nodes


def _has_foreign_builds(run: StoredRun) -> bool:
    return any(trial.facts.find_fact(Build) for trial in run.trials)


def _make_warning_note(text: str) -> Note:
    return Note(spans(Span("Warning: ", Tone.WARNING), text), NoteKind.WARNING)


def _make_small_note(text: str) -> Note:
    return Note(line(text))
