"""Whether the guests' clocks go as fast as the host's."""

from collections.abc import Iterator
from dataclasses import replace

from guestmark.core.model import Cell, Trial
from guestmark.stats.conditions.evidence import Compared
from guestmark.stats.validity import Finding, Severity, clock_disagreement

_HOST, _GUEST = "wall_s", "guest_wall_s"
_ON_HOST_ONLY = frozenset(
    {"host_flush_s", "launch_s"}
)  # with these, the host's duration holds more than the guest's


def clocks(compared: Compared) -> Iterator[Finding]:
    """Cells whose runs lasted longer or shorter on the guest's clock than on the host's."""
    for cell in compared.cells:
        finding = _of(compared, cell)
        if finding is not None:
            severe = finding.severity is Severity.SEVERE
            yield replace(
                finding,
                message=f"{cell.id}: {finding.message}",
                cells=compared.spoilt_by([cell.id]) if severe else (),
            )


def _of(compared: Compared, cell: Cell) -> Finding | None:
    pairs = [pair for trial in compared.good(cell) for pair in _durations(trial)]
    return clock_disagreement([host for host, _ in pairs], [guest for _, guest in pairs])


def _durations(trial: Trial) -> list[tuple[float, float]]:
    series = {measurement.metric.name: measurement.iterations for measurement in trial.measurements}
    if not {_HOST, _GUEST} <= series.keys() or series.keys() & _ON_HOST_ONLY:
        return []
    return list(zip(series[_HOST], series[_GUEST], strict=False))
