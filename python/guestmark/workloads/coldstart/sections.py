"""The report's part on starts: quantiles, phases, and sentences about what each layer adds."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from guestmark.core.platform_spec import HOST
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.names import name_rows
from guestmark.page.nodes import Bullets, Node
from guestmark.page.tables import Align, Cell, Column, Row, Table, make_figure_cell, make_word_cell
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.stats.quantiles import Quantile, count_needed_values, estimate_quantile
from guestmark.workloads.coldstart import (
    PAGE_CACHE,
    SHARES,
    CacheState,
    ColdstartParams,
    OneStart,
    StartKind,
    Starts,
)
from guestmark.workloads.common.facts import list_facts, pair_with_cells
from guestmark.workloads.common.phase_bars import draw_phase_bars

_LETTERS = "PCAT"
_NAMES = ("prepare", "create", "answer", "touch")
_LEGEND = (
    f"All starts of all blocks; {Claim.QUANTILE}. "
    "Too few: this quantile cannot be determined from so few starts."
)


def render_starts(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Renders a table of quantiles, a bar of phases for each cell, and sentences; nothing if there are no starts."""
    found = pair_with_cells(workload, collect_starts)
    if not found:
        return []
    shown = [result for result, _ in found]
    chart = draw_phase_bars(
        workload,
        [(result, _average_phases(blocks)) for result, blocks in found],
        _NAMES,
        _LETTERS,
        title="Phases of a start",
        caption="Shares of the mean over all starts; prepare: until the runtime or hypervisor runs; create: until the "
        "first instruction of the program in it; answer: until it answers; touch: until its working set is touched.",
        summary=lambda said: f"From the decision to a touched working set: {said}.",
        shares=True,
    )
    return [
        _build_start_table(workload, shown, [blocks for _, blocks in found]),
        chart,
        *_render_sentences(found),
    ]


def collect_starts(result: CellResult) -> list[list[OneStart]]:
    """Returns a list of starts for each good trial of a cell."""
    return [fact.starts for fact in list_facts(result.good_trials, Starts) if fact.starts]


def estimate_quantiles(blocks: Sequence[Sequence[OneStart]]) -> list[Quantile]:
    """Estimates quantiles of the time from decision to touched working set."""
    times = []
    for starts in blocks:
        times.append([start.start_s for start in starts])
    return [estimate_quantile(times, share) for share in SHARES]


def _average_phases(blocks: Sequence[Sequence[OneStart]]) -> list[float]:
    """Returns the mean seconds of each phase."""
    starts = list(itertools.chain.from_iterable(blocks))
    means = []
    for name in _NAMES:
        means.append(sum(getattr(start, name) for start in starts) / len(starts))
    return means


def _build_start_table(
    workload: WorkloadResult, shown: Sequence[CellResult], blocks: Sequence[Sequence[Sequence[OneStart]]]
) -> Table:
    quantiles = [estimate_quantiles(each) for each in blocks]
    known = []
    for row_quantiles in quantiles:
        known += [quantile.value for quantile in row_quantiles if quantile.value is not None]
    unit = choose_unit(known)
    columns = [Column("starts", (Align.RIGHT,)), Column("page cache")]
    columns += [Column(f"p{round(share * 100)}, {unit.name}", (Align.POINT, Align.LEFT)) for share in SHARES]
    columns.append(Column(f"teardown, {unit.name}", (Align.POINT,)))
    headings, names = name_rows(workload, shown)
    rows = []
    for result, name, row_quantiles, row_blocks in zip(shown, names, quantiles, blocks, strict=True):
        cells = [make_figure_cell(str(sum(map(len, row_blocks)))), make_word_cell(_describe_cache(result))]
        cells += [_render_quantile(quantile, unit) for quantile in row_quantiles]
        cells.append(_render_teardown(row_blocks, unit))
        rows.append(Row(name, tuple(cells), strong=result.cell.baseline))
    return Table(
        "Quantiles of the time from the decision to a touched working set",
        headings,
        tuple(columns),
        tuple(rows),
        divisible=True,
        legend=(line(_LEGEND),),
        heading="Quantiles of a start:",
    )


def choose_unit(seconds: Sequence[float]) -> figures.Unit:
    """Returns the unit that suits most values.

    A single machine that resumes within microseconds must not turn 200 ms into 200,000 µs.
    """
    return figures.choose_table_unit("s", [statistics.median(seconds)] if seconds else [0.0])


def _describe_cache(result: CellResult) -> str:
    """Returns the state of the page cache if machines are newly created; others read no files."""
    return result.cell.levels[PAGE_CACHE] if _read_launch(result) is StartKind.NEW else "–"


def _read_launch(result: CellResult) -> StartKind:
    return result.cell.workload.read_params(ColdstartParams).launch


def _render_quantile(found: Quantile, unit: figures.Unit) -> Cell:
    if found.value is None:
        return make_word_cell("too few")
    if found.interval is None:
        return make_figure_cell(_format_seconds(found.value, unit))
    low, high = (_format_seconds(end, unit) for end in found.interval)
    return make_figure_cell(_format_seconds(found.value, unit), f"[{low}, {high}]")


def _render_teardown(blocks: Sequence[Sequence[OneStart]], unit: figures.Unit) -> Cell:
    ends = []
    for starts in blocks:
        ends.append([start.end for start in starts])
    median = estimate_quantile(ends, 0.5).value
    # A machine that is only resumed does not end.
    return make_figure_cell(_format_seconds(median, unit) if median else "–")


def _format_seconds(seconds: float, unit: figures.Unit) -> str:
    value = seconds / unit.size
    return figures.format_number(value, figures.count_decimals(None, value))


def _render_sentences(found: Sequence[tuple[CellResult, list[list[OneStart]]]]) -> list[Node]:
    items = [_describe_longest_phase(result, blocks) for result, blocks in found]
    items += _describe_p99(found)
    items += _describe_caches(found)
    return [Bullets(line("Where the time of a start goes:", Tone.STRONG), tuple(items))]


def _describe_longest_phase(result: CellResult, blocks: Sequence[Sequence[OneStart]]) -> Inline:
    """Returns a sentence that names the longest phase of a start."""
    means = _average_phases(blocks)
    whole = sum(means) or 1.0
    most = max(range(len(means)), key=means.__getitem__)
    answered, touched = "between its program's first instruction and its first answer", "for the first time"
    if _read_launch(result) is StartKind.RESUMED:
        answered, touched = "until its first answer", "again"
    what = (
        "before any part of it runs",
        f"between {_describe_carrier(result)} start and its program's first instruction",
        answered,
        f"while it touches its working set {touched}",
    )[most]
    unit = figures.choose_unit("s", [whole])
    return spans(
        Span(f"{result.cell.id}: ", Tone.STRONG),
        f"{figures.format_percent(means[most] / whole)} of {_format_seconds(whole, unit)} {unit.name} pass {what}.",
    )


def _describe_carrier(result: CellResult) -> str:
    """Returns the name of the program that starts before the machine's own."""
    kind = result.cell.platform.inner.description
    if kind.guest:
        return "its hypervisor's"
    return "its" if result.cell.platform == HOST else "its runtime's"


def _describe_p99(found: Sequence[tuple[CellResult, list[list[OneStart]]]]) -> list[Inline]:
    lacking = []
    for _, blocks in found:
        quantile = estimate_quantiles(blocks)[-1]
        if quantile.value is None:
            lacking.append(quantile)
    if not lacking:
        return []
    number = max(quantile.number for quantile in lacking)
    worth = max(quantile.effective for quantile in lacking)
    who = "no row has" if len(lacking) == len(found) else f"{len(lacking)} of {len(found)} rows lack"
    return [
        line(
            f"p99 needs {count_needed_values(SHARES[-1])} independent starts, which {who}: at most {number} were "
            f"measured, equivalent to at most {worth:.0f} independent ones. To measure more: --override "
            "workloads.coldstart.params.time=20s --override workloads.coldstart.params.starts=400, or more blocks."
        )
    ]


def _describe_caches(found: Sequence[tuple[CellResult, list[list[OneStart]]]]) -> list[Inline]:
    if any(result.cell.levels[PAGE_CACHE] is CacheState.DROPPED for result, _ in found):
        return [
            line(
                "Dropped: the host's page cache was emptied, except for pages that running programs map; a test file "
                "confirmed this. Sandboxes share this host's root, so they have no image cache to drop."
            )
        ]
    return []
