"""Processes of a running machine are killed or stopped, one or several at once: what is left of it within a second."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from guestmark.agent.keeper import is_in_use
from guestmark.disks.processes import descendants
from tests.framework import PACKAGES
from tests.framework.processes import alive, called, started_at, wait_until
from tests.storm.ways import family

WITHIN_S = 1.0
_ROOT = Path(__file__).resolve().parents[2]
_CONTROLLER = """
import sys, time
from tests.framework.guests import start
with start(sys.argv[1]) as guest:
    print("ready", flush=True)
    time.sleep(600)
"""
_SHARED = (Path("/dev/shm"), Path("/sys/fs/cgroup"))


@dataclass(frozen=True, slots=True)
class Blow:
    """What is stopped first, and what is killed then, by the parts they play."""

    killed: tuple[str, ...]
    stopped: tuple[str, ...] = ()
    leaves: bool = False  # what is stopped stays until it goes on: nobody is left who could end it

    def __str__(self) -> str:
        first = f"{' and '.join(self.stopped)} stopped, then " if self.stopped else ""
        return f"{first}{' and '.join(self.killed)} killed"


BLOWS = (
    Blow(("the supervisor",)), Blow(("the cage's outer process",)), Blow(("the cage's first process",)),
    Blow(("the hypervisor",)), Blow(("guestmark",)), Blow(("guestmark", "the supervisor")),
    Blow(("the supervisor", "the cage's outer process")), Blow(("the keeper", "guestmark")),
    Blow(("the keeper's second process", "guestmark")), Blow(("guestmark",), ("the supervisor",)),
    Blow(("guestmark",), ("the keeper",)), Blow(("guestmark",), ("the hypervisor",)),
    Blow(("guestmark",), ("the supervisor", "the cage's outer process"), leaves=True),
)  # fmt: skip


def left_after(platform: str, blow: Blow) -> list[str]:
    """What of a machine is there when it should have been gone; files have some seconds, as a keeper may be stopped."""
    before = set(_files())
    with tempfile.TemporaryDirectory(prefix="guestmark-test-", dir="/var/tmp") as name:
        environment = {**os.environ, "TMPDIR": name, "PYTHONPATH": f"{PACKAGES}{os.pathsep}{_ROOT}"}
        controller = subprocess.Popen(
            [sys.executable, "-c", _CONTROLLER, platform], env=environment, cwd=_ROOT, stdout=subprocess.PIPE
        )
        assert controller.stdout is not None
        known: dict[int, int] = {}
        try:
            assert controller.stdout.readline() == b"ready\n"
            parts = _parts(controller.pid)
            known = family(controller.pid)
            keepers = {parts["the keeper"], parts["the keeper's second process"]}
            for part in blow.stopped:
                os.kill(parts[part], signal.SIGSTOP)
            for part in blow.killed:
                os.kill(parts[part], signal.SIGKILL)
            machine = [pid for pid in known if pid not in keepers]

            def running() -> list[int]:
                return [pid for pid in machine if _is(pid, known)]

            wait_until(lambda: not running(), WITHIN_S)
            left = [f"{pid}: {called(pid)}" for pid in running()]
            controller.kill()
            controller.wait()
            wait_until(lambda: not [*Path(name).iterdir(), *(set(_files()) - before)], 4)
            return [*left, *map(str, Path(name).iterdir()), *map(str, set(_files()) - before)]
        finally:
            controller.kill()
            controller.wait()
            controller.stdout.close()
            time.sleep(0.2)
            for pid in known:
                if _is(pid, known):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)


def _is(pid: int, known: dict[int, int]) -> bool:
    with contextlib.suppress(OSError):
        return alive(pid) and started_at(pid) == known[pid]
    return False


def _parts(controller: int) -> dict[str, int]:
    """Who plays which part in a machine with a cage."""
    words = {}
    for pid in descendants(controller):
        with contextlib.suppress(OSError):
            words[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    of = {
        verb: [pid for pid, word in words.items() if word[1:2] == [verb]] for verb in (b"supervise", b"keep")
    }
    supervisor = of[b"supervise"][-1]
    outer, first, hypervisor = descendants(supervisor)[:3]
    return {
        "guestmark": controller, "the supervisor": supervisor, "the cage's outer process": outer,
        "the cage's first process": first, "the hypervisor": hypervisor,
        "the keeper": of[b"keep"][0], "the keeper's second process": of[b"keep"][1],
    }  # fmt: skip


def _files() -> list[Path]:
    """What runs have made in places that all users share, and that nobody uses: others run here, too."""
    memory, groups = _SHARED
    found = []
    for path in [*memory.glob("guestmark-memory-*"), *groups.glob("**/guestmark-machine-*")]:
        with contextlib.suppress(OSError):
            if not is_in_use(path):
                found.append(path)
    return found
