"""Measure how long sandboxes take to start and to end, as `coldstart` does, and the same runtimes by hand.

Run from the checkout as root: `.venv/bin/python -m bench.starts [--rounds 20] [--seed 1]`. Every contender runs once a
round, in random order. Aims: at most 10 % apart until the greeting; at least 0.8 of the speed by hand.

* ours: runtime executed → the agent's greeting; the order to end → nothing is left, including control groups and
  layers. Guestmark's preparations before the start are in neither.
* by hand: RUNTIME with the same agent → the first byte of its greeting; the end of its input → the runtime's end.
  crun, runc and runsc have a bundle, podman has private storage. Their root is this host's, bound elsewhere; bwrap's
  lacks the mounts below it, as guestmark's does, because bwrap binds each mount again.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from bench.sidebyside import contenders_table, measure_contenders, median_ratio

from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.own_program import find_agent_binary
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import registry
from guestmark.platforms.phases import READY
from guestmark.platforms.sandbox.runtimes import RUNTIMES, Sandbox
from guestmark.workloads.common.starting import StartedMachine

_AIM, _SPEED = 0.10, 0.8
_WAITS_S = 0.05  # after this time the shell waits for input


def _time_our_start(name: str) -> tuple[float, float]:
    spec = PlatformSpec.read(name)
    started = StartedMachine.start(registry.get_platform(spec), Cell("bench", WorkloadSpec("bench"), spec))
    answered = started.machine.phases[READY]
    ordered, gone = started.end_machine()
    return answered, gone - ordered


def _by_hand(namespace: int, command: Sequence[str]) -> tuple[float, float]:
    """Return the seconds of a runtime's start and end, in a mount namespace that has only cgroups v2, as crun needs.

    A shell that waits for a word executes the runtime, so that creating a process is in neither figure.
    """
    enter = partial(ctypes.CDLL(None).setns, namespace, 0)
    with subprocess.Popen(
        ["sh", "-c", 'read -r _; exec "$@"', "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=enter,  # noqa: PLW1509 (it makes one system call)
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        time.sleep(_WAITS_S)
        begin = time.monotonic()
        process.stdin.write(b"go\n")
        process.stdin.flush()
        greeted = bool(os.read(process.stdout.fileno(), 1))
        answered = time.monotonic()
        process.stdin.close()
        process.wait()
        gone = time.monotonic()
        if not greeted or process.returncode:
            sys.exit(f"{command[0]} by hand failed: {process.stderr.read()[-300:].decode(errors='replace')}")
    return answered - begin, gone - answered


def _kept(part: dict[str, list[float]], name: str, contender: Callable[[], tuple[float, float]]) -> float:
    answered, ended = contender()
    part.setdefault(name, []).append(ended)
    return answered


@contextlib.contextmanager
def _namespace(whole: Path, bare: Path) -> Iterator[int]:
    """Yield a descriptor of a mount namespace, with this host's root bound at `whole` and `bare`.

    At `bare` the mounts below the root are missing.
    """
    whole.mkdir()
    bare.mkdir()
    script = """
        mount --bind / "$1" && mount --rbind / "$0" &&
        mount -t cgroup2 none /sys/fs/cgroup && mount -o remount,bind,ro /sys/fs/cgroup
        echo; exec cat
    """
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, str(whole), str(bare)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.read(1)
        descriptor = os.open(f"/proc/{holder.pid}/ns/mnt", os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _command(name: str, scratch: Path) -> list[str]:
    """Return the command of the same runtime on this host's root."""
    program = [str(find_agent_binary()), "serve"]
    if name == "bwrap":
        return RUNTIMES[name].command(Sandbox(scratch / "bare", scratch, scratch, program))
    if name == "podman":
        storage = [f"--{where}={scratch / where}" for where in ("root", "runroot", "tmpdir")]
        return [
            "podman", *storage, "--cgroup-manager=cgroupfs", "--events-backend=none", "run", "--rm",
            "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--cgroups=disabled", "--network=none",
            "--log-driver=none", "--interactive", "--rootfs", str(scratch / "rootfs"), *program,
        ]  # fmt: skip
    bundle = scratch / name
    bundle.mkdir()
    command = RUNTIMES[name].command(Sandbox(scratch / "rootfs", scratch / f"{name}-state", bundle, program))
    config = json.loads((bundle / "config.json").read_text())
    config["root"]["readonly"] = True
    (bundle / "config.json").write_text(json.dumps(config))
    return command


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    names = [name for name in RUNTIMES if shutil.which(RUNTIMES[name].program.name)]
    with (
        contextlib.ExitStack() as stack,
        tempfile.TemporaryDirectory(prefix="guestmark-bench-") as name_of_scratch,
    ):
        scratch = Path(name_of_scratch)
        scratch.chmod(0o755)  # gVisor's kernel runs as nobody
        namespace = stack.enter_context(_namespace(scratch / "rootfs", scratch / "bare"))
        contenders: dict[str, Callable[[], tuple[float, float]]] = {}
        for name in names:
            contenders[name] = partial(_time_our_start, name)
            contenders[f"{name} by hand"] = partial(_by_hand, namespace, _command(name, scratch))
        for contender in contenders.values():
            contender()  # fills the caches
        ends: dict[str, list[float]] = {}
        timed = {name: partial(_kept, ends, name, contender) for name, contender in contenders.items()}
        values = measure_contenders(timed, arguments.rounds, arguments.seed)
    contenders_table(f"runtime started to greeting, {arguments.rounds} rounds", values, [], unit="ms")
    contenders_table("ended to gone", {name: ends[name] for name in values}, [], unit="ms")
    for name in names:
        hand, ours = values[f"{name} by hand"], values[name]
        apart = statistics.median(ours) / statistics.median(hand) - 1
        faster = median_ratio(hand, ours)
        print(f"{name} by hand / {name}   {faster:.3f}   (aim ≥ {_SPEED})   {apart:+.0%}   (aim ±{_AIM:.0%})")


if __name__ == "__main__":
    main()
