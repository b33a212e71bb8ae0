"""The processor time of long tests: `costs.tsv` has a line for each file, with the time of all its tests together.

It is the time that a test and everything it starts use on all processors, and depends little on the machine's other
load. `python -m tests.framework.costs` prints the table; `--write` publishes the times that this machine has measured
in runs of `pytest --count-processors`.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("costs.tsv")
_UNKNOWN_S = 10.0  # of a test whose file is not in the table


@dataclass(frozen=True, slots=True)
class Cost:
    """The number of long tests in a file, and the processor seconds of all of them."""

    tests: int
    seconds: float

    @property
    def each_s(self) -> float:
        """The mean processor seconds of one test."""
        return self.seconds / self.tests


@functools.cache
def read_table() -> Mapping[str, Cost]:
    """Return the published costs by file."""
    found = {}
    for line in TABLE.read_text().splitlines():
        file, tests, seconds = line.split("\t")
        found[file] = Cost(int(tests), float(seconds))
    return found


def published_s(name: str) -> float:
    """Return the published processor seconds of a test; an estimate if its file is not published."""
    cost = read_table().get(name.partition("::")[0])
    return _UNKNOWN_S if cost is None else cost.each_s


def file_s(file: str) -> float:
    """Return the published processor seconds of all long tests of a file; 0 if it has none."""
    cost = read_table().get(file)
    return 0.0 if cost is None else cost.seconds


def sum_published(names: Iterable[str]) -> float:
    """Return the published processor seconds of these tests together."""
    return sum(map(published_s, names))


def _collect_costs(seconds: Mapping[str, float]) -> dict[str, Cost]:
    found: dict[str, Cost] = {}
    for name, took in seconds.items():
        file = name.partition("::")[0]
        before = found.get(file, Cost(0, 0.0))
        found[file] = Cost(before.tests + 1, before.seconds + took)
    return found


def _write_table(costs: Mapping[str, Cost]) -> None:
    lines = [f"{file}\t{cost.tests}\t{cost.seconds:.0f}\n" for file, cost in sorted(costs.items())]
    TABLE.write_text("".join(lines))


def _print_table(costs: Mapping[str, Cost]) -> None:
    for file, cost in sorted(costs.items(), key=lambda item: -item[1].seconds):
        print(f"{cost.seconds:7.0f} s {cost.tests:4}  {file}")
    whole = sum(cost.seconds for cost in costs.values())
    processors = len(os.sched_getaffinity(0))
    print(
        f"{whole:7.0f} s {sum(cost.tests for cost in costs.values()):4}  all; "
        f"{whole / processors / 60:.0f} min on {processors} processors that are never idle"
    )


def main() -> None:
    """Print the table, or with `--write` publish the measured times first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="publish what this machine remembers")
    if parser.parse_args().write:
        from tests.framework import long_tests, picking

        remembered = picking.read_memory(long_tests.memory_file())
        counted = {name: each.processor_s for name, each in remembered.items() if each.processor_s}
        _write_table({**read_table(), **_collect_costs(counted)})
        read_table.cache_clear()
    _print_table(read_table())


if __name__ == "__main__":
    main()
