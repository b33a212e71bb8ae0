"""Measure what a machine of the user's own costs: `.venv/bin/python -m bench.own null|start|image` as root.

* `null [--blocks 30]`: one command in podman's containers, created by a definition and by the platform `podman`, on
  this host's root: the ratio of its times on the machine's clock, block by block. Exits with 1 if the interval does
  not lie within 1 % of 1.
* `start [--rounds 30]`: the time until a machine's first answer, beside its commands typed by hand: create, then exec
  with `true`. The machines are namespaces, whose start takes a few milliseconds, and podman's. Exits with 1 if the
  difference exceeds 10 % or 20 ms.
* `image --image FILE [--rounds 8]`: the time until the agent's first answer of a guest that boots a disk image, beside
  QEMU started by hand with the same line and a new overlay. Exits with 1 if the ratio exceeds 1.1.

Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.sharing.__main__ import judge
from bench.sidebyside import contenders_table, measure_contenders, median_ratio

from guestmark.agent.client import Agent
from guestmark.agent.frames import Transport
from guestmark.core.machine_facts import OWN_MACHINE_PREFIX
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.placement import FREE
from guestmark.core.platform_spec import PlatformSpec
from guestmark.ledger import open_ledger
from guestmark.platforms import registry
from guestmark.platforms.guest import Guest
from guestmark.platforms.own.definition import ID, Definition
from guestmark.platforms.own.store import VARIABLE, find_definition, trust
from guestmark.platforms.phases import READY
from guestmark.platforms.qemu.disk_images import NODE, START_LIMIT_S
from guestmark.setting.machine import IMAGE, PLACEMENT
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


def _boot_ours(image: Path) -> tuple[float, tuple[str, ...], str]:
    """Boot the image by guestmark; return the seconds until its first answer, QEMU's words and the overlay's base."""
    spec = PlatformSpec.read("tcg")
    cell = Cell("bench", WorkloadSpec("bench"), spec, {IMAGE.name: str(image), PLACEMENT.name: FREE})
    started = StartedMachine.start(registry.get_platform(spec), cell)
    guest = started.machine
    assert isinstance(guest, Guest)
    assert guest.query is not None
    nodes = guest.query("query-named-block-nodes")
    base = next(str(node["image"]["backing-filename"]) for node in nodes if node["node-name"] == NODE)
    # Until the agent answers; the start goes on until the system has started everything.
    took, words = guest.started_at + guest.phases[READY] - started.decided, guest.command_line
    started.end_machine()
    return took, words, base


def _boot_by_hand(words: Sequence[str], base: str, folder: Path) -> float:
    """Boot with the same words, a new overlay and new sockets; return the seconds until the agent's first answer."""
    overlay = folder / "by-hand.qcow2"
    overlay.unlink(missing_ok=True)
    sockets: dict[str, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        begin = time.monotonic()
        _run_quietly(["qemu-img", "create", "-f", "qcow2", "-F", "qcow2", "-b", base, str(overlay)])
        command, inherited = [], []
        for word in words:
            changed = re.sub(r"(?<=file\.filename=)/.*/image\.qcow2", str(overlay), word)
            if found := re.fullmatch(r"socket,id=(\w+),fd=\d+", word):
                sockets[found[1]], there = map(stack.enter_context, socket.socketpair())
                inherited.append(there.fileno())
                changed = f"socket,id={found[1]},fd={there.fileno()}"
            command.append(changed)
        null = subprocess.DEVNULL
        process = subprocess.Popen(command, pass_fds=inherited, stdin=null, stdout=null, stderr=null)
        try:
            agent = Agent(Transport.of_socket(sockets["agent"]))
            agent.hello(timeout_s=START_LIMIT_S)
            agent.ping(1)
            return time.monotonic() - begin
        finally:
            process.kill()
            process.wait()


def _compare_boots(folder: Path, given: argparse.Namespace) -> int:
    # The first start prepares the overlay, and shows the words.
    _, words, base = _boot_ours(given.image)
    ours, by_hand = "guestmark", "by hand"
    values = measure_contenders(
        {ours: lambda: _boot_ours(given.image)[0], by_hand: lambda: _boot_by_hand(words, base, folder)},
        given.rounds,
        given.seed,
    )
    contenders_table("Until the first answer of an image", values, [by_hand], "s")
    ratio = median_ratio(values[ours], values[by_hand])
    print(f"×{ratio:.3f}: {'within' if ratio <= 1 + _AIM else 'above'} the aim")
    print(f"load: {Path('/proc/loadavg').read_text().strip()}")
    return 0 if ratio <= 1 + _AIM else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    compared = {"null": _compare_null, "start": _compare_starts, "image": _compare_boots}
    parser.add_argument("what", choices=compared)
    parser.add_argument("--image", type=Path, help="disk image that is booted")
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runtime", default="crun", help="of podman (default: crun, as the platform has)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="guestmark-own-") as folder:
        for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            os.environ[variable] = folder
        return compared[given.what](Path(folder), given)


if __name__ == "__main__":
    sys.exit(main())
