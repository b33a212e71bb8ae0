"""Nested over bare: a table of what each platform loses inside another guest, with intervals."""

from guestmark.core.metric import Metric
from guestmark.page import figures
from guestmark.page.names import format_workload_label
from guestmark.page.tables import Align, Column, Row, RowName, Table, make_figure_cell
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.nested import BlockRatio, pair_nested_with_bare

TITLE = "Nested over bare"


def make_tables(analysis: Analysis) -> list[Table]:
    """Return the table of all pairs; none when no platform was measured both ways."""
    rows = []
    for pair in pair_nested_with_bare(analysis):
        if pair.ratio is None:
            continue
        name = RowName(
            (format_workload_label(pair.bare), f"{pair.bare.cell.platform} → {pair.nested.cell.platform}")
        )
        cells = (
            make_figure_cell(*format_typical(pair.bare, pair.metric)),
            make_figure_cell(*format_typical(pair.nested, pair.metric)),
            make_figure_cell(*figures.format_ratio_pieces(pair.ratio.value, pair.ratio.ci)),
        )
        rows.append(Row(name, cells))
    if not rows:
        return []
    value = (Align.RIGHT, Align.LEFT)
    columns = (
        Column("bare", value),
        Column("nested", value),
        Column("nested over bare", (Align.POINT, Align.LEFT)),
    )
    return [Table(TITLE, ("workload", "backend"), columns, tuple(rows), heading=TITLE)]


def format_block_ratio(ratio: BlockRatio) -> str:
    """Return the ratio with its interval as text."""
    return figures.format_ratio(ratio.value, ratio.ci)


def format_typical(result: CellResult, metric: Metric) -> tuple[str, str]:
    """Return the typical value and its unit; nanoseconds become what reads best."""
    value, unit = result.summary[metric.name].typical, metric.unit
    if unit == "ns":
        value, unit = value / 1e9, "s"
    fitting = figures.choose_unit(unit, [value])
    return figures.format_three_digits(value / fitting.size), fitting.name
