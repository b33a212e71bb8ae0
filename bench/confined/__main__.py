"""Measure what confinement costs: the same machines and helpers with and without it, in random order.

Run from the checkout, with nothing else running: `.venv/bin/python -m bench.confined [--rounds 30] [--seed 1]`, with
`--of` to select contenders: `uml`, `tcg` and so on (a start; aim: at most 10 ms more), `uml processes` and so on (a
figure from within a guest: starting 100 programs; aim: at most 1 % apart), `guestfish` (a launch), `mariadb` and
`postgresql` (the time of a transaction on the host). Without confinement they run like any other program of this user;
User-Mode Linux keeps the setting that it needs on some processors.
"""

import argparse
import json
import os
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from bench.sidebyside import contenders_table, measure_contenders, median_ratio

from guestmark.agent.confinement import Confinement
from guestmark.core import registry as kinds
from guestmark.core.context import Context
from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.own_program import find_agent_binary
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.platforms import registry
from guestmark.platforms.qemu import command_line
from guestmark.workloads.guestfs import guestfish
from guestmark.workloads.guestfs.guestfish import Mark
from guestmark.workloads.oltp.databases import KINDS
from guestmark.workloads.oltp.trial import OltpTrial

_LIMIT_S = 120.0
_REPEATS = 6
_PROCESSES = ["sh", "-c", "n=0; while [ $((n += 1)) -le 100 ]; do /bin/true; done"]
_LOAD = {"test": "read_only", "tables": 1, "rows": 1000, "time": "2s"}  # without waiting for a disk


def _time_start(name: str) -> float:
    cell = Cell("bench", WorkloadSpec("bench"), PlatformSpec.read(name))
    with registry.get_platform(name).start(cell) as guest:
        return guest.phases["ready"]


def _time_processes(name: str) -> float:
    cell = Cell("bench", WorkloadSpec("bench"), PlatformSpec.read(name))
    with registry.get_platform(name).start(cell) as guest:
        # The least of several: what else runs on this host only makes it slower.
        return min(guest.agent.exec(_PROCESSES, timeout_s=_LIMIT_S).wall_s for _ in range(_REPEATS))


def _launched() -> float:
    timeline = guestfish.run("tcg", ["add /dev/null", "run", Mark("launched"), "shutdown"], _LIMIT_S)
    return timeline.marks["launched"] - timeline.started_at


def _time_transaction(server: str) -> float:
    """Return the seconds of a transaction by a client on one thread."""
    workload = WorkloadSpec("oltp", kinds.workload_kind("oltp").check_params({**_LOAD, "server": server}))
    cell = Cell("bench", workload, HOST)
    user = Context(uid=os.getuid(), gid=os.getgid())
    oltp = OltpTrial(Plan("bench", (cell,), Policy(trial_limit_s=_LIMIT_S), (), user), cell)
    with oltp.machine(registry.get_platform("host")) as machine:
        oltp.prepare(machine)
        try:
            found = {measurement.metric.name: measurement.value for measurement in oltp.run(machine)}
        finally:
            oltp.cleanup(machine)
    return 1.0 / found["transactions_per_s"]


def _measure_pair(name: str) -> float:
    if name == "guestfish":
        return _launched()
    if name in KINDS:
        return _time_transaction(name)
    platform, _, figure = name.partition(" ")
    return _time_processes(platform) if figure else _time_start(platform)


def _with(name: str, confined: bool) -> float:
    with _confinement(confined):
        return _measure_pair(name)


@contextmanager
def _confinement(on: bool) -> Iterator[None]:
    if on:
        yield
        return
    with (
        patch.object(Confinement, "wrap_command", _plain),
        patch.object(command_line, "build_sandbox_arguments", lambda _emulator: ()),
    ):
        yield


def _plain(confinement: Confinement, command: Sequence[str], *_: Path, **__: Path) -> list[str]:
    """Return the command as run by the same user without confinement."""
    if confinement.memory_file:
        return [str(find_agent_binary()), "traces", *command]
    if confinement.user is None:
        return list(command)
    user, group = confinement.user
    return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *command]


def _with_interval(series: Sequence[float], other: Sequence[float], seed: int) -> str:
    """Return the median of paired ratios with its 95 % bootstrap interval."""
    chance = random.Random(seed)
    pairs = list(zip(series, other, strict=True))
    medians = sorted(
        statistics.median(a / b for a, b in chance.choices(pairs, k=len(pairs))) for _ in range(2000)
    )
    return f"{median_ratio(series, other):.4f} [{medians[50]:.4f}, {medians[-51]:.4f}]"


def _with_earlier(file: Path, values: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return these series appended to those of earlier calls in the file; store the result in the file."""
    earlier = json.loads(file.read_text()) if file.exists() else {}
    both = {name: [*earlier.get(name, []), *series] for name, series in values.items()}
    file.write_text(json.dumps(earlier | both))
    return both


def main() -> None:
    """Print a table, and the ratio of each with confinement to without."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--of", default="uml,uml processes,tcg,tcg processes,guestfish,mariadb,postgresql")
    parser.add_argument(
        "--pairs", type=Path, help="a file to which pairs are added; all that are in it count"
    )
    arguments = parser.parse_args()
    names = arguments.of.split(",")
    contenders: dict[str, Callable[[], float]] = {}
    for name in names:
        contenders[name] = partial(_with, name, True)
        contenders[f"{name}, unconfined"] = partial(_with, name, False)
        _with(name, True)  # makes what is made once
    values = measure_contenders(contenders, arguments.rounds, arguments.seed)
    if arguments.pairs:
        values = _with_earlier(arguments.pairs, values)
    rounds = len(next(iter(values.values())))
    contenders_table(f"{rounds} rounds", values, [f"{name}, unconfined" for name in names], "ms")
    for name in names:
        with_it, without = values[name], values[f"{name}, unconfined"]
        more = statistics.median(a - b for a, b in zip(with_it, without, strict=True))
        print(
            f"{name} / unconfined   {_with_interval(with_it, without, arguments.seed)}   {more * 1000:+.1f} ms"
        )


if __name__ == "__main__":
    main()
