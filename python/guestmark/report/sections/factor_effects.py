"""Main effects of the factors of a matrix, and the interactions of two factors."""

from guestmark.core.units import format_count
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.tables import Align, Column, Row, RowName, Table, make_figure_cell
from guestmark.page.text import Span, Tone, line
from guestmark.stats.analysis import WorkloadResult
from guestmark.stats.effects import Effect, find_effects

_MOST_INTERACTIONS = 12
_LEGEND = f"an interaction is the joint effect of two levels beyond their separate effects; {Claim.EFFECT}"


def make_tables(workload: WorkloadResult) -> list[Table]:
    """Return a table of effects on the primary metric; none unless the cells are a full matrix."""
    effects = find_effects(workload)
    if not effects:
        return []
    mains = [effect for effect in effects if len(effect.factors) == 1]
    pairs = [effect for effect in effects if len(effect.factors) == 2]
    pairs.sort(key=lambda effect: effect.size, reverse=True)
    blocks = format_count(effects[0].blocks, "block")
    together = f"simultaneous intervals of {len(effects)} effects, from {blocks}"
    legend = [line(_LEGEND), (Span(together, Tone.SOFT),)]
    hidden = len(pairs) - _MOST_INTERACTIONS
    if hidden > 0:
        legend.append((Span(f"{hidden} smaller interactions are not shown", Tone.SOFT),))
    rows = tuple(_make_effect_row(effect) for effect in (*mains, *pairs[:_MOST_INTERACTIONS]))
    columns = (Column(f"{workload.metrics[0].name}, ratio", (Align.POINT, Align.LEFT, Align.LEFT)),)
    title = f"Effects of the factors of {workload.title}"
    return [Table(title, ("effect",), columns, rows, legend=tuple(legend), heading="Effects")]


def _make_effect_row(effect: Effect) -> Row:
    parts = []
    for factor, level, first in zip(effect.factors, effect.levels, effect.against, strict=True):
        parts.append(f"{factor} {level}/{first}")
    name = " with ".join(parts)
    pieces = figures.format_ratio_pieces(effect.ratio, effect.ci)
    mark = "*" if effect.is_shown else ""
    return Row(RowName((name,), name), (make_figure_cell(*pieces, mark),))
