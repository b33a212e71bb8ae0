"""Whether the machines had the processors they were given: others that ran there, and the host's own host.

What takes a share s of the time makes a run up to 1/(1 - s) times as long, and need not do so to both sides alike: it
meets long runs and spares short ones. So it is severe for ratios that are no larger than that, and ×10 stands where
half of the processor's time was taken.
"""

import math
from collections.abc import Iterator, Mapping

from guestmark.stats.conditions.evidence import Compared, named
from guestmark.stats.disturbed import foreign_share, stolen_share
from guestmark.stats.noise import THRESHOLDS
from guestmark.stats.validity import Finding, Severity

HEAVY_LOAD = 0.25
HEAVY_STEAL = 0.10


def foreign_load(compared: Compared) -> Iterator[Finding]:
    """Other programs on the machines' processors."""
    share = foreign_share(_noise_here(compared))
    if share is not None and share > THRESHOLDS["foreign_cpu"]:
        yield _taken(
            compared,
            "foreign load",
            share,
            HEAVY_LOAD,
            f"other programs had {100 * share:.0f} % of the processors that the machines ran on",
            "stop what else runs here, or keep it elsewhere: --set placement=cpus=LIST, taskset, a cpuset",
        )


def steal(compared: Compared) -> Iterator[Finding]:
    """Time that the hypervisor of a virtual host gave to others."""
    share = stolen_share(_noise_here(compared))
    if share is not None and share > THRESHOLDS["steal"]:
        yield _taken(
            compared,
            "steal",
            share,
            HEAVY_STEAL,
            f"the host's own host took {100 * share:.0f} % of the processors' time (steal)",
            "measure on a machine of your own, or on dedicated processors",
        )


def _noise_here(compared: Compared) -> Iterator[Mapping[str, object]]:
    """Of the trials that were made on this host: it says nothing about another machine's processors."""
    for cell in compared.cells:
        if not cell.platform.is_elsewhere:
            yield from (trial.noise for trial in compared.good(cell))


def _taken(  # noqa: PLR0917 (one finding, told in the order of its fields)
    compared: Compared, name: str, share: float, heavy: float, said: str, advice: str
) -> Finding:
    reach = -math.log1p(-min(share, 0.99))
    much = share > heavy and not compared.counted
    doubtful = [name for name, log in compared.logs.items() if abs(log) <= reach] if much else []
    costs = f", so that ratios up to ×{math.exp(reach):.2f} may be due to it" if much else ""
    whose = f" ({named(doubtful)})" if doubtful else ""
    return Finding(
        name,
        Severity.SEVERE if doubtful else Severity.WARNING,
        f"{said}{costs}{whose}",
        share,
        cells=tuple(doubtful),
        advice=advice,
    )
