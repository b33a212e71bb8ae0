"""Measures contenders in random order within rounds, and shows medians and ratios; shared by the benches."""

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

Contender = Callable[[], float]


def measure_contenders(contenders: Mapping[str, Contender], rounds: int, seed: int) -> dict[str, list[float]]:
    """Run every contender once a round, in an order drawn from `seed`; each returns its time in seconds."""
    order = random.Random(seed)
    values: dict[str, list[float]] = {name: [] for name in contenders}
    console = Console(stderr=True)
    for number in range(rounds):
        for name in order.sample(list(contenders), len(contenders)):
            begin = time.monotonic()
            values[name].append(contenders[name]())
            console.print(
                f"round {number + 1}/{rounds}  {name}: {values[name][-1]:.4f} s"
                f"  (took {time.monotonic() - begin:.1f} s)",
                highlight=False,
            )
    return values


def contenders_table(
    title: str, values: Mapping[str, Sequence[float]], beside: Sequence[str], unit: str = "s"
) -> None:
    """Print median, extremes, and the median of the paired ratios to each contender in `beside`."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("")
    for heading in ("median", "min", "max", *(f"/ {name}" for name in beside)):
        shown.add_column(heading, justify="right")
    scale = {"s": 1.0, "ms": 1e3, "µs": 1e6}[unit]
    for name, series in values.items():
        ratios = [median_ratio(series, values[other]) for other in beside]
        shown.add_row(
            name,
            *(
                f"{scale * figure:.3f} {unit}"
                for figure in (statistics.median(series), min(series), max(series))
            ),
            *(f"{figure:.3f}" for figure in ratios),
        )
    output().print(shown)


def output() -> Console:
    """Return a console for standard output, wide enough for the tables unless it is a terminal."""
    return Console(width=None if sys.stdout.isatty() else 110)


def median_ratio(series: Sequence[float], other: Sequence[float]) -> float:
    """Return the median of the ratios paired by round."""
    return statistics.median(a / b for a, b in zip(series, other, strict=True))
