"""The user's own machines in a run: how many were started, how many never answered, and what they cost."""

from __future__ import annotations

from guestmark.core.units import format_duration, format_share
from guestmark.ledger.model import StoredRun
from guestmark.page.claims import Claim
from guestmark.page.figures import format_percent
from guestmark.stats.creations import Creations, count_creations

_MOST_REASONS = 3


def describe_creations(run: StoredRun) -> dict[str, str]:
    """Return a line for each kind of the user's own machines."""
    found = count_creations(run.trials, run.plan.cells)
    return {f"{each.kind} machines": _describe_kind(each) for each in found}


def _describe_kind(found: Creations) -> str:
    low, high = found.interval
    if found.failed:
        said = f"{found.failed} of {found.tried} never answered, {format_percent(found.share)} "
        said += f"[{100 * low:.0f}, {100 * high:.0f}]"
        reasons = [f"{count} × {reason}" for reason, count in found.reasons[:_MOST_REASONS]]
        if others := sum(count for _, count in found.reasons[_MOST_REASONS:]):
            reasons.append(f"{others} × other reasons")
        said += f": {'; '.join(reasons)}"
    else:
        said = Claim.UNANSWERED.format(count=found.tried, share=format_share(high))
    if found.price_per_hour is not None:
        said += f"; price {found.price_per_hour:g} an hour"
        if (price := found.price_of_thousand_starts) is not None and found.ready_s is not None:
            said += f", {price:.3g} for 1,000 starts of {format_duration(found.ready_s)}"
    return said
