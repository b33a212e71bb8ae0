"""What confinement costs a start: the same guests with it and without it, in random order.

Run from the checkout, with nothing else running: `.venv/bin/python -m bench.confined [--rounds 30] [--seed 1]`.
Aim: at most 1 % of a start. Without it, hypervisors run as anything else that this user starts.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

from bench.sidebyside import measure, ratio, table

from guestmark.agent.confinement import Confinement
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import registry
from guestmark.platforms.qemu import platform as qemu


def _ready(name: str, confined: bool) -> float:
    cell = Cell("bench", WorkloadSpec("bench"), PlatformSpec.read(name))
    with _confinement(confined), registry.get(name).start(cell) as guest:
        return guest.phases["ready"]


@contextmanager
def _confinement(on: bool) -> Iterator[None]:
    if on:
        yield
        return
    with (
        patch.object(Confinement, "around", lambda _self, command, *_: list(command)),
        patch.object(qemu, "sandbox", lambda: ()),
    ):
        yield


def main() -> None:
    """Prints a table of starts and the two ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on", default="uml,tcg")
    arguments = parser.parse_args()
    names = arguments.on.split(",")
    contenders: dict[str, Callable[[], float]] = {}
    for name in names:
        contenders[name] = partial(_ready, name, True)
        contenders[f"{name}, unconfined"] = partial(_ready, name, False)
        _ready(name, True)  # makes what is made once
    values = measure(contenders, arguments.rounds, arguments.seed)
    table(f"start to ready, {arguments.rounds} rounds", values, [f"{name}, unconfined" for name in names])
    for name in names:
        print(
            f"{name} / unconfined   {ratio(values[name], values[f'{name}, unconfined']):.4f}   (aim ≤ 1.01)"
        )


if __name__ == "__main__":
    main()
