"""Measure what the user's own definition of a machine costs: `.venv/bin/python -m bench.own null|start` as root.

* `null [--blocks 30]`: one command in podman's containers, created by a definition and by the platform `podman`, on
  this host's root: the ratio of its times on the machine's clock, block by block. Exits with 1 if the interval does
  not lie within 1 % of 1.
* `start [--rounds 30]`: the time until a machine's first answer, beside its commands typed by hand: create, then exec
  with `true`. The machines are namespaces, whose start takes a few milliseconds, and podman's. Exits with 1 if the
  difference exceeds 10 % or 20 ms.

Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.sharing.__main__ import judge
from bench.sidebyside import contenders_table, measure_contenders, median_ratio

from guestmark.core.machine_facts import OWN_MACHINE_PREFIX
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.ledger import open_ledger
from guestmark.platforms import registry
from guestmark.platforms.own.definition import ID, Definition
from guestmark.platforms.own.store import VARIABLE, find_definition, trust
from guestmark.workloads.common.starting import StartedMachine

ROOT = Path(__file__).resolve().parents[2]
# Long enough that a context switch more does not matter; without variables, as a shell is slower the more it has, and
# the two machines have different ones.
_COUNT = ["env", "-i", "/bin/sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"]
_METRIC = "guest_wall_s"
_MARGIN, _AIM, _AIM_S = 0.01, 0.10, 0.020
_NAMESPACES = """
name    = "cell"
create  = ["sh", "-c", 'setsid unshare --fork --pid --kill-child --mount --uts --mount-proc sh -c "mount -t tmpfs none /tmp && mount -t tmpfs none /var/tmp && touch /tmp/up && exec sleep infinity" > /dev/null 2>&1 < /dev/null & echo $! > "/run/$0"', "{id}"]
ready   = ["sh", "-c", 'nsenter --all --target $(cat /proc/$(cat "/run/$0")/task/*/children | cut -d" " -f1 | grep .) test -e /tmp/up', "{id}"]
exec    = ["sh", "-c", 'machine=$(cat /proc/$(cat "/run/$0")/task/*/children | cut -d" " -f1) && exec nsenter --all --target "$machine" "$@"', "{id}", "{command}"]
destroy = ["sh", "-c", 'kill -KILL $(cat "/run/$0"); rm "/run/$0"', "{id}"]
"""  # noqa: E501
_PODMAN = """
name    = "box"
create  = "podman --runtime {runtime} run --detach --name {id} --network none --ulimit nofile=LIMIT:LIMIT --ulimit nproc=LIMIT:LIMIT --tmpfs /run:notmpcopyup --rootfs /:O sleep infinity"
exec    = "podman exec -i {id} {command}"
destroy = "podman rm --force --ignore --time 0 {id}"

[parameters]
runtime = "RUNTIME"
"""  # noqa: E501


def _define(text: str, folder: Path) -> Definition:
    """Define machines, trusted by a key of this bench."""
    name = text.split('"')[1]
    path = folder / f"{name}.toml"
    path.write_text(text)
    os.environ[VARIABLE] = f"{os.environ.get(VARIABLE, '')}:{path}".strip(":")
    definition = find_definition(name)
    trust(definition)
    return definition


def _podman_text(runtime: str) -> str:
    # Without CAP_SYS_RESOURCE podman could not raise them.
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1024)
    return _PODMAN.replace("LIMIT", str(limit)).replace("RUNTIME", runtime)


def _compare_null(folder: Path, given: argparse.Namespace) -> int:
    _define(_podman_text(given.runtime), folder)
    ledger = folder / "ledger"
    words = ["exec", "--on", "podman,own:box", "--null", "none", "--blocks", str(given.blocks)]
    subprocess.run(
        [str(ROOT / "guestmark"), *words, "--ledger", str(ledger), "--", *_COUNT],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    times: dict[str, dict[int, float]] = {}
    with open_ledger(str(ledger), writable=False) as opened:
        for trial in opened.load_run(opened.list_runs()[0].id).trials:
            for measurement in trial.measurements:
                if measurement.metric.name == _METRIC:
                    times.setdefault(trial.cell_id, {})[trial.block] = measurement.value
    ours, theirs = times["own:box"], times["podman"]
    both = sorted(ours.keys() & theirs.keys())
    effect = judge("own:box over podman", [math.log(ours[block] / theirs[block]) for block in both], 1)
    print(f"| cell | blocks | time on the machine's clock | |\n| --- | ---: | ---: | --- |\n{effect.row}")
    return 0 if effect.is_within(_MARGIN) else 1


def _start_ours(name: str) -> float:
    spec = PlatformSpec.read(f"own:{name}")
    started = StartedMachine.start(registry.get_platform(spec), Cell("bench", WorkloadSpec("bench"), spec))
    took = started.answered - started.decided
    started.end_machine()
    return took


def _start_by_hand(definition: Definition) -> float:
    values = {**definition.list_placeholder_values({}), ID: f"{OWN_MACHINE_PREFIX}{os.urandom(8).hex()}"}
    begin = time.monotonic()
    _run_quietly(definition.create.fill(values))
    while definition.ready and _run_quietly(definition.ready.fill(values), must_succeed=False):
        time.sleep(0.001)
    _run_quietly(definition.exec.fill(values, ["true"]))
    took = time.monotonic() - begin
    _run_quietly(definition.destroy.fill(values))
    return took


def _run_quietly(argv: Sequence[str], *, must_succeed: bool = True) -> int:
    null = subprocess.DEVNULL
    return subprocess.run(argv, check=must_succeed, stdin=null, stdout=null, stderr=null).returncode


def _compare_starts(folder: Path, given: argparse.Namespace) -> int:
    definitions = [_define(_NAMESPACES, folder), _define(_podman_text(given.runtime), folder)]
    late = 0
    for definition in definitions:
        values = measure_contenders(
            {
                f"own:{definition.name}": lambda name=definition.name: _start_ours(name),  # type: ignore[misc]
                "by hand": lambda definition=definition: _start_by_hand(definition),  # type: ignore[misc]
            },
            given.rounds,
            given.seed,
        )
        ours, theirs = values[f"own:{definition.name}"], values["by hand"]
        contenders_table(f"Until the first answer: {definition.name}", values, ["by hand"], "ms")
        more_s = statistics.median(a - b for a, b in zip(ours, theirs, strict=True))
        ratio = median_ratio(ours, theirs)
        met = ratio <= 1 + _AIM and more_s <= _AIM_S
        print(
            f"{definition.name}: {1e3 * more_s:.1f} ms more, ×{ratio:.3f}: {'within' if met else 'above'} the aim"
        )
        late += not met
    print(f"load: {Path('/proc/loadavg').read_text().strip()}")
    return 1 if late else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("null", "start"))
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runtime", default="crun", help="of podman (default: crun, as the platform has)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="guestmark-own-") as folder:
        for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            os.environ[variable] = folder
        return (
            _compare_null(Path(folder), given)
            if given.what == "null"
            else _compare_starts(Path(folder), given)
        )


if __name__ == "__main__":
    sys.exit(main())
