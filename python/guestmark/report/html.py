"""A run as one HTML page that needs nothing else: no script, no font, no address."""

import math
from collections.abc import Iterable, Sequence
from html import escape

from rich.text import Text

from guestmark.core.model import CellStatus, Metric, Trial, TrialStatus
from guestmark.ledger.model import StoredRun
from guestmark.report import figures, nested, surroundings
from guestmark.report.backends import backends
from guestmark.report.conclusion import by_workload
from guestmark.report.document import clean
from guestmark.report.footer import lines as footer_lines
from guestmark.report.latency import latencies
from guestmark.report.phases import drawn
from guestmark.report.terminal import durability
from guestmark.report.then import Side, sides
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult, analyse
from guestmark.stats.compare import Verdict, label

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1c2025;background:#fff}
h1{font-size:1.3rem}h3{font-size:1rem}h2{font-size:1.1rem;margin-top:2.5rem;overflow-wrap:anywhere}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .9rem .25rem 0;text-align:left;white-space:nowrap}th{font-weight:500;color:#5b6570}
tr+tr td{border-top:1px solid #dde2e7}.scroll{overflow-x:auto}
.wrap td{white-space:normal;overflow-wrap:anywhere}.wrap th{vertical-align:top}
.faster{color:#14743a}.slower{color:#b3261e}.same{color:#0b6b80}.unclear{color:#8a6100}
svg{display:block;width:100%;height:auto;margin:.5rem 0}footer,.note{color:#5b6570;font-size:.9rem}
text{font:13px system-ui,sans-serif;fill:currentColor}
@media(prefers-color-scheme:dark){body{color:#e3e6ea;background:#15181c}th,footer,.note{color:#98a2ad}
tr+tr td{border-color:#30363d}.faster{color:#5fd38d}.slower{color:#ff8a80}.same{color:#63cfe3}.unclear{color:#e8bd5a}}
"""
_CLASSES = {
    Verdict.FASTER: "faster",
    Verdict.SLOWER: "slower",
    Verdict.NO_DIFFERENCE: "same",
    Verdict.INCONCLUSIVE: "unclear",
}
_WIDTH, _LEFT, _RIGHT, _ROW = 900, 220, 30, 34  # of a plot, in its own units


def page(run: StoredRun, analysis: Analysis | None = None) -> str:
    """The whole page. Everything that came from outside is escaped."""
    found = analysis or analyse(run.plan, run.trials, run.unusable)
    parts = [
        f"<h1>{_text(run.plan.title or run.plan.name)}</h1>",
        f'<p class="note">guestmark run {_text(run.id)}</p>',
        _said(by_workload(found)),
        _nested(found),
        _said(backends(found)),
    ]
    for workload in found.workloads:
        parts.append(f"<h2>{_text(workload.title)}</h2>")
        if workload.metrics:
            parts += [_plot(workload), _table(workload), drawn(workload), latencies(workload)]
        parts += [_then(side) for side in sides(workload, run.plan)]
        parts += [
            f'<p class="note">{_text(f"{result.cell.id}: {result.status.value} – {result.reason}")}</p>'
            for result in workload.cells
            if result.status is not CellStatus.OK
        ]
    parts.append(_environment(run))
    small = "<br>".join(_text(line.plain) for line in footer_lines(found, run_id=run.id, state=run.state))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>guestmark {_text(run.id)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + f"\n<footer><p>{small}</p></footer></body></html>\n"
    )


def _said(lines: Sequence[Text]) -> str:
    """Sentences; what is bold begins a paragraph."""
    paragraphs: list[list[str]] = []
    for line in lines:
        heads = str(line.style) == "bold"
        if heads or not paragraphs:
            paragraphs.append([])
        paragraphs[-1].append(f"<strong>{_text(line.plain)}</strong>" if heads else _text(line.plain))
    return "".join(f"<p>{'<br>'.join(paragraph)}</p>" for paragraph in paragraphs)


def _nested(analysis: Analysis) -> str:
    rows = nested.table(analysis)
    return f"<h3>{nested.TITLE}</h3>{_grid(nested.HEADING, rows)}" if rows else ""


def _grid(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of plain texts."""
    lines = ["".join(f"<th>{_text(head)}</th>" for head in heads)]
    lines += ["".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rows]
    return f'<div class="scroll"><table>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def _environment(run: StoredRun) -> str:
    rows = "".join(
        f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>"
        for name, value in surroundings.rows(run, whole=True)
    )
    return f'<h2>Measured on</h2><table class="wrap">{rows}</table>' if rows else ""


def _text(value: str) -> str:
    return escape(str(clean(value)))


def _table(workload: WorkloadResult) -> str:
    units = {metric.name: _unit(workload, metric) for metric in workload.metrics}
    first = workload.metrics[0]
    heads = ["cell", figures.heading(first, units[first.name]), "ratio", "verdict"]
    durable = [durability(result) for result in workload.shown]
    heads += ["durable"] if any(durable) else []
    heads += [figures.heading(metric, units[metric.name]) for metric in workload.metrics[1:]]
    rows = ["<tr>" + "".join(f"<th>{_text(head)}</th>" for head in heads) + "</tr>"]
    for result, reached in zip(workload.shown, durable, strict=True):
        comparison = result.comparison.get(first.name)
        against = verdict = ""
        if comparison is not None and comparison.ratio is not None:
            against = figures.ratio(comparison.ratio, comparison.ci)
        if comparison is not None:
            said = label(comparison.verdict, first)
            title = f' title="{_text(comparison.reason)}"' if comparison.reason else ""
            verdict = f'<span class="{_CLASSES[comparison.verdict]}"{title}>{said}</span>'
        cells = [_text(result.cell.id), _estimate(result, first, units[first.name])]
        cells += ["baseline" if result.cell.baseline else _text(against), verdict]
        cells += [_text(reached)] if any(durable) else []
        cells += [_estimate(result, metric, units[metric.name]) for metric in workload.metrics[1:]]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    table = f'<div class="scroll"><table>{"".join(rows)}</table></div>'
    note = '<p class="note">durable: whether the guest\'s flushes reached the host</p>'
    return f"{table}{note}" if any(durable) else table


def _then(side: Side) -> str:
    """Published figures beside the measured ones: a row for each pair, as on the terminal."""
    heads = ["cell", *(column[0] for column in side.numbers)]
    rows = [
        [pair.result.cell.id, *(column[number].strip() for column in side.numbers)]
        for number, pair in enumerate(side.pairs, start=1)
    ]
    small = "<br>".join(_text(line) for line in side.small_print)
    return f'<h3>{_text(side.title)}</h3>{_grid(heads, rows)}<p class="note">{small}</p>'


def _unit(workload: WorkloadResult, metric: Metric) -> figures.Unit:
    summaries = [result.summary.get(metric.name) for result in workload.shown]
    return figures.table_unit(metric.unit, [one.mean for one in summaries if one])


def _estimate(result: CellResult, metric: Metric, unit: figures.Unit) -> str:
    summary = result.summary.get(metric.name)
    if summary is None:
        return _text(result.status.value if result.status is not CellStatus.OK else "–")
    mean, half = figures.estimate(summary.mean, summary.ci, unit)
    return _text(f"{mean} ± {half}" if half else mean)


# --- the plot: for every cell the ratio of each block, and the interval of their mean --------------------------------


def _plot(workload: WorkloadResult) -> str:
    metric = workload.metrics[0].name
    rows = [result for result in workload.cells if _comparable(result, metric)]
    by_id = {result.cell.id: result for result in workload.cells}
    baseline = workload.baseline
    if not rows or baseline is None:
        return ""
    dots = {
        result.cell.id: block_ratios(
            by_id.get(result.cell.null_of or "", baseline).trials, result.trials, metric
        )
        for result in rows
    }
    shown = [ratio for ratios in dots.values() for ratio in ratios.values()]
    for result in rows:
        shown += result.comparison[metric].ci or ()
    low, high = min([*shown, 0.98]), max([*shown, 1.02])
    span = math.log(high / low)

    def across(ratio: float) -> float:
        return _LEFT + (math.log(ratio / low) / span) * (_WIDTH - _LEFT - _RIGHT)

    height = _ROW * len(rows) + 40
    parts = [
        f'<line x1="{across(1):.1f}" x2="{across(1):.1f}" y1="4" y2="{height - 34}" stroke="currentColor"/>'
    ]
    for position, result in enumerate(rows):
        y = _ROW * position + _ROW / 2 + 4
        comparison = result.comparison[metric]
        name = result.cell.id if len(result.cell.id) <= 28 else result.cell.id[:27] + "…"
        parts.append(
            f'<text x="0" y="{y + 4:.1f}">{_text(name)}<title>{_text(result.cell.id)}</title></text>'
        )
        parts.append(f'<g class="{_CLASSES[comparison.verdict]}" fill="currentColor">')
        if comparison.ci is not None:
            left, right = across(comparison.ci[0]), across(comparison.ci[1])
            tip = _text(figures.ratio(comparison.ratio or 1.0, comparison.ci))
            parts.append(
                f'<rect x="{left:.1f}" y="{y - 9:.1f}" width="{max(right - left, 2):.1f}" height="18" rx="3" '
                f'opacity=".35"><title>{tip}</title></rect>'
            )
        parts += [
            f'<circle cx="{across(ratio):.1f}" cy="{y + (block % 5 - 2) * 2.5:.1f}" r="3" opacity=".75">'
            f"<title>block {block + 1}: ×{ratio:.4g}</title></circle>"
            for block, ratio in dots[result.cell.id].items()
        ]
        parts.append("</g>")
    for ratio in ticks(low, high):
        parts.append(
            f'<text x="{across(ratio):.1f}" y="{height - 16}" text-anchor="middle">×{ratio:g}</text>'
            f'<line x1="{across(ratio):.1f}" x2="{across(ratio):.1f}" y1="4" y2="{height - 34}" '
            'stroke="currentColor" opacity=".15"/>'
        )
    said = (
        f"{metric} against {baseline.cell.id}: a dot for each block, a bar for the 95 % interval of the mean"
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{_text(said)}">{"".join(parts)}</svg>'
        f'<p class="note">{_text(said)}. Null cells stand against what they copy.</p>'
    )


def _comparable(result: CellResult, metric: str) -> bool:
    return metric in result.comparison and result.comparison[metric].ratio is not None


def block_ratios(reference: tuple[Trial, ...], trials: tuple[Trial, ...], metric: str) -> dict[int, float]:
    """Ratio of `trials` to `reference` in every block that has both, by block; values not above zero are left out."""
    base, cell = _by_block(reference, metric), _by_block(trials, metric)
    return {block: value / base[block] for block, value in cell.items() if block in base}


def _by_block(trials: tuple[Trial, ...], metric: str) -> dict[int, float]:
    return {
        trial.block: one.value
        for trial in trials
        if trial.status is TrialStatus.OK
        for one in trial.measurements
        if one.metric.name == metric and math.isfinite(one.value) and one.value > 0
    }


def ticks(low: float, high: float) -> list[float]:
    """Round ratios from `low` to `high`, 1 among them if it is inside, no more than eight."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        if (high - low) / step <= 7:
            return [
                round(n * step, 2) for n in range(math.ceil(low / step), math.floor(high / step) + 1) if n > 0
            ]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for multiples in ((1, 2, 5), (1,)):
        found = [m * 10.0**d for d in decades for m in multiples if low <= m * 10.0**d <= high]
        if len(found) <= 8:
            return found
    return found[:: math.ceil(len(found) / 8)]
