"""What each factor of a matrix does by itself, and where two of them do more together than each for itself."""

from guestmark.core.units import format_count
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.tables import Align, Column, Row, RowName, Table, figure_cell
from guestmark.page.text import Span, Tone, line
from guestmark.stats.analysis import WorkloadResult
from guestmark.stats.effects import Effect, find_effects

_MOST_INTERACTIONS = 12
_LEGEND = f"an interaction is what both levels do together beyond what each does; {Claim.EFFECT}"


def make_tables(workload: WorkloadResult) -> list[Table]:
    """Return a table of the effects on the primary metric; none where the cells are no full matrix of two factors."""
    effects = find_effects(workload)
    if not effects:
        return []
    mains = [effect for effect in effects if len(effect.factors) == 1]
    pairs = [effect for effect in effects if len(effect.factors) == 2]
    pairs.sort(key=lambda effect: effect.size, reverse=True)
    blocks = format_count(effects[0].blocks, "block")
    together = f"intervals of {len(effects)} effects that hold together, from {blocks}"
    legend = [line(_LEGEND), (Span(together, Tone.SOFT),)]
    hidden = len(pairs) - _MOST_INTERACTIONS
    if hidden > 0:
        legend.append((Span(f"{hidden} smaller interactions are not shown", Tone.SOFT),))
    rows = tuple(_effect_row(effect) for effect in (*mains, *pairs[:_MOST_INTERACTIONS]))
    columns = (Column(f"{workload.metrics[0].name}, ratio", (Align.POINT, Align.LEFT, Align.LEFT)),)
    title = f"Effects of the factors of {workload.title}"
    return [Table(title, ("effect",), columns, rows, legend=tuple(legend), heading="Effects")]


def _effect_row(effect: Effect) -> Row:
    parts = [
        f"{factor} {level}/{first}"
        for factor, level, first in zip(effect.factors, effect.levels, effect.against, strict=True)
    ]
    name = " with ".join(parts)
    pieces = figures.ratio_pieces(effect.ratio, effect.ci)
    return Row(RowName((name,), name), (figure_cell(*pieces, "*" if effect.is_shown else ""),))
