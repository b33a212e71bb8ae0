"""Bars that show for each cell how its time divides into phases."""

from collections.abc import Callable, Sequence

from guestmark.core.metric import Metric
from guestmark.page import figures
from guestmark.page.charts import Stack, StackRow
from guestmark.page.names import name_in_charts, name_in_sentences
from guestmark.page.nodes import Chart
from guestmark.stats.analysis import CellResult, WorkloadResult


def average_phase_seconds(result: CellResult, phases: Sequence[Metric]) -> list[float]:
    """Returns the mean seconds of each phase in a cell; 0 for a phase that it lacks.

    A trial in which a phase was not seen has its time in the next phase, so it counts as 0 there.
    """
    found = [result.summary.get(metric.name) for metric in phases]
    trials = max((summary.n for summary in found if summary is not None), default=1)
    means = []
    for summary in found:
        if summary is None:
            means.append(0.0)
        else:
            means.append(summary.mean * summary.n / trials)
    return means


def draw_phase_bars(
    workload: WorkloadResult,
    lengths: Sequence[tuple[CellResult, Sequence[float]]],
    phases: Sequence[str],
    letters: str,
    *,
    title: str,
    caption: str,
    summary: Callable[[str], str],
    shares: bool = False,
) -> Chart:
    """Draws a bar for each cell from the seconds of its phases; `summary` makes one sentence from all sums.

    `shares` makes all bars equally long, for cells whose sums differ by orders of magnitude.
    """
    sums = [sum(parts) for _, parts in lengths]
    unit = figures.choose_table_unit("s", sums)
    in_charts, in_sentences = name_in_charts(workload), name_in_sentences(workload)
    rows, said = [], []
    for (result, seconds), total in zip(lengths, sums, strict=True):
        value = total / unit.size
        text = f"{figures.format_number(value, figures.count_decimals(None, value))} {unit.name}"
        whole = (total or 1.0) / 100.0 if shares else unit.size
        parts = tuple(second / whole for second in seconds)
        rows.append(StackRow(in_charts[result.cell.id], parts, text))
        most = max(range(len(parts)), key=parts.__getitem__)
        said.append(f"{in_sentences[result.cell.id]} {text}, most of it {phases[most]}")
    label = "% of the sum" if shares else f"sum, {unit.name}"
    stack = Stack(tuple(rows), tuple(phases), letters, label)
    return Chart(title, caption, summary("; ".join(said)), stack)
