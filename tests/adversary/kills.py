"""Parts of a running machine are killed, stopped or made to hang: what is left of it within a second."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from guestmark.core.keeper import is_in_use
from guestmark.disks.processes import list_descendants
from tests.adversary.hanging import hang
from tests.framework import PACKAGES
from tests.framework.kernels import without_9p
from tests.framework.processes import alive, called, started_at, wait_until
from tests.storm.ways import family

WITHIN_S = 1.0
_ROOT = Path(__file__).resolve().parents[2]
_CONTROLLER = """
import json, sys, time
from tests.framework.guests import start
with start(sys.argv[1], **json.loads(sys.argv[2])) as guest:
    print("ready", flush=True)
    time.sleep(600)
"""
_SHARED = (Path("/dev/shm"), Path("/sys/fs/cgroup"))
_WITHOUT_9P = "KERNEL"
_HYPERVISORS, _HELPERS = (b"linux.uml", b"qemu-system-x86_64"), (b"qemu-storage-daemon", b"virtiofsd")
_FILES_S = 4.0  # until they are gone, and keepers; one that is stopped or hangs is waited for
_HUNG_S = 3.0  # until a hung process is taken for one
_INTERRUPTED_S = 15.0  # for an end in order, with a part that does not react


@dataclass(frozen=True, slots=True)
class Blow:
    """What is stopped or hangs first, and what is killed then, by its part. Else guestmark is interrupted."""

    killed: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    hung: tuple[str, ...] = ()
    cleaned: bool = False  # everything is stopped and nothing can react: `guestmark clean` ends it

    def __str__(self) -> str:
        stopped = "everything" if self.stopped == _EVERYTHING else " and ".join(self.stopped)
        first = f"{stopped} stopped, then " if stopped else ""
        first += f"{' and '.join(self.hung)} hung, then " if self.hung else ""
        then = f"{' and '.join(self.killed)} killed" if self.killed else "guestmark interrupted"
        return f"{first}{then}{', then `guestmark clean`' if self.cleaned else ''}{self._later}"

    @property
    def _later(self) -> str:
        return f" ({_HUNG_S:g} s)" if self.hung else ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is started, and what happens to it."""

    platform: str
    settings: dict[str, str] = field(default_factory=dict)
    blows: tuple[Blow, ...] = ()
    user: int = 0  # whose machine it is


_EVERYTHING = ("the supervisor", "the cage's outer process", "the cage's first process", "the hypervisor", "the keeper",
        "the keeper's second process")  # fmt: skip
BLOWS = (
    Blow(("the supervisor",)), Blow(("the cage's outer process",)), Blow(("the cage's first process",)),
    Blow(("the hypervisor",)), Blow(("guestmark",)), Blow(("guestmark", "the supervisor")),
    Blow(("the supervisor", "the cage's outer process")), Blow(("the keeper", "guestmark")),
    Blow(("the keeper's second process", "guestmark")), Blow(("guestmark",), ("the supervisor",)),
    Blow(("guestmark",), ("the keeper",)), Blow(("guestmark",), ("the keeper's second process",)),
    Blow(("guestmark",), ("the hypervisor",)), Blow((), ("the hypervisor",)), Blow((), ("the supervisor",)),
    Blow((), ("the keeper", "the keeper's second process")),
    Blow(("guestmark",), ("the supervisor", "the cage's outer process")),
    Blow(("guestmark", "the keeper"), ("the supervisor", "the cage's outer process")),
    Blow(("guestmark", "the keeper", "the keeper's second process")),
    Blow(("guestmark",), _EVERYTHING, cleaned=True),
    Blow(("guestmark",), hung=("the hypervisor",)), Blow((), hung=("the hypervisor",)),
    Blow(("guestmark",), hung=("the supervisor",)), Blow((), hung=("the supervisor",)),
    Blow(("guestmark",), hung=("the cage's outer process",)), Blow(("guestmark",), hung=("the cage's first process",)),
    Blow(("guestmark",), hung=("the keeper",)), Blow(("guestmark",), hung=("the keeper's second process",)),
    Blow((), hung=("the keeper",)),
)  # fmt: skip
_WITH_HELPER = (
    Blow(("the supervisor",)), Blow(("the helper",)), Blow(("the supervisor", "the helper")),
    Blow(("guestmark", "the helper")), Blow(("guestmark",), ("the helper",)), Blow((), ("the helper",)),
    Blow(("guestmark",), hung=("the helper",)), Blow((), hung=("the helper",)),
    Blow(("the supervisor",), hung=("the helper",)),
)  # fmt: skip
# There is no first process where there are no namespaces.
_WITHOUT_CAGE = (
    *(
        blow
        for blow in BLOWS
        if not blow.cleaned and "the cage's first process" not in blow.killed + blow.hung
    ),
    Blow(("guestmark", "the supervisor", "the cage's outer process")),
)
NOBODY = 65534
MACHINES = {
    "`uml`": Machine("uml", {}, BLOWS),
    "`tcg`": Machine("tcg", {}, BLOWS),
    "`uml` of another user": Machine("uml", {}, _WITHOUT_CAGE, NOBODY),
    "`tcg` of another user": Machine("tcg", {}, _WITHOUT_CAGE, NOBODY),
    "`uml`, a storage daemon": Machine("uml", {"size": "64M", "uml_disk": "vhost-user"}, _WITH_HELPER),
    "`tcg`, virtiofsd": Machine(
        "tcg",
        {"kernel": _WITHOUT_9P},
        (
            *_WITH_HELPER,
            Blow(("the helper's supervisor",)),
            Blow(("the supervisor", "the helper's supervisor")),
            Blow(("guestmark",), ("the helper's supervisor",)),
        ),
    ),
}


def left_after(machine: Machine, blow: Blow, *, slack_s: float = 0.0) -> list[str]:
    """Parts of a machine that are there when they should be gone; files and keepers have some seconds.

    `slack_s` is added to every limit: beside other work even an end in order takes as long as the others let it.
    """
    before = set(_files())
    with tempfile.TemporaryDirectory(prefix="guestmark-test-", dir="/var/tmp") as name:
        Path(name).chmod(0o711)
        scratch, home = Path(name, "scratch"), Path(name, "home")
        for folder in (scratch, home):
            folder.mkdir()
            os.chown(folder, machine.user, machine.user)
        environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": f"{PACKAGES}{os.pathsep}{_ROOT}"}
        become: list[str] = []
        if machine.user:
            environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home), "XDG_RUNTIME_DIR": ""}
            become = ["setpriv", f"--reuid={machine.user}", f"--regid={machine.user}", "--clear-groups"]
        settings = {
            key: str(without_9p(Path(name))) if level == _WITHOUT_9P else level
            for key, level in machine.settings.items()
        }
        controller = subprocess.Popen(
            [*become, sys.executable, "-c", _CONTROLLER, machine.platform, json.dumps(settings)],
            env=environment, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert controller.stdout is not None
        known: dict[int, int] = {}
        keepers: set[int] = set()
        try:
            assert controller.stdout.readline() == b"ready\n"
            parts = _parts(controller.pid)
            known = family(controller.pid)
            keepers = {parts["the keeper"], parts["the keeper's second process"]}
            _strike(blow, controller, parts)
            if blow.cleaned:
                clean = [sys.executable, "-m", "guestmark", "clean"]
                cleaning = subprocess.run(
                    clean, env=environment, cwd=scratch, stdout=subprocess.DEVNULL, check=False
                )
                # 1: something on this host that was not of this machine could not be removed.
                assert cleaning.returncode in {0, 1}
            # Those that were stopped together have nobody who could end them.
            may_stay = (
                keepers if len(keepers.intersection(parts[part] for part in blow.stopped)) > 1 else set()
            )
            of_machine = [pid for pid in known if pid not in keepers or blow.cleaned]

            def running() -> list[int]:
                return [pid for pid in of_machine if _is(pid, known)]

            wait_until(lambda: not running(), (_HUNG_S if blow.hung else WITHIN_S) + slack_s)
            left = [f"{pid}: {called(pid)[:80]}" for pid in running()]
            controller.kill()
            controller.wait()
            late = [] if blow.cleaned else sorted(keepers - may_stay)
            wait_until(
                lambda: not [
                    *scratch.iterdir(), *(set(_files()) - before), *(pid for pid in late if _is(pid, known))
                ],
                _FILES_S + slack_s,
            )  # fmt: skip
            left += [f"{pid}: {called(pid)[:80]}" for pid in late if _is(pid, known)]
            return [*left, *map(str, scratch.iterdir()), *map(str, set(_files()) - before)]
        finally:
            controller.kill()
            controller.wait()
            controller.stdout.close()
            _end([pid for pid in known if pid not in keepers], known)
            # They remove control groups, which nobody else would: not killed before they had the time.
            for pid in keepers:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGCONT)
            wait_until(lambda: not [pid for pid in keepers if _is(pid, known)], _INTERRUPTED_S)
            _end(list(keepers), known)


def _strike(blow: Blow, controller: subprocess.Popen[bytes], parts: dict[str, int]) -> None:
    for part in blow.stopped:
        os.kill(parts[part], signal.SIGSTOP)
    for part in blow.hung:
        hang(parts[part])
    for part in blow.killed:
        with contextlib.suppress(ProcessLookupError):  # it has gone with what was killed before it
            os.kill(parts[part], signal.SIGKILL)
    if not blow.killed:
        controller.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            controller.wait(_INTERRUPTED_S)
    elif "guestmark" in blow.killed:
        controller.wait()


def _end(pids: list[int], known: dict[int, int]) -> None:
    for pid in pids:
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
    for pid in list_descendants(controller):
        with contextlib.suppress(OSError):
            words[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    keepers = [pid for pid, word in words.items() if word[1:2] == [b"keep"]]
    of: dict[str, int] = {}
    for supervisor in [pid for pid, word in words.items() if word[1:2] == [b"supervise"]]:
        outer, first, *more = list_descendants(supervisor)
        # Without a cage the program is the outer process's child.
        program = first if words.get(first, [])[1:2] != [b"confine"] else more.pop(0)
        name = _program(words.get(program, []))
        if name in _HYPERVISORS:
            of |= {"the supervisor": supervisor, "the cage's outer process": outer,
                   "the cage's first process": first, "the hypervisor": program}  # fmt: skip
            helper = next((pid for pid in more if _program(words.get(pid, [])) in _HELPERS), None)
            of |= {"the helper": helper} if helper else {}
        elif name in _HELPERS:
            of |= {"the helper's supervisor": supervisor, "the helper": program}
    return {
        **of, "guestmark": controller, "the keeper": keepers[0], "the keeper's second process": keepers[1]
    }  # fmt: skip


def _program(words: list[bytes]) -> bytes:
    return words[0].rpartition(b"/")[2] if words else b""


def _files() -> list[Path]:
    """What runs have made in places that all users share, and that nobody uses: others run here, too."""
    memory, groups = _SHARED
    found = []
    of_groups = [Path(at) for at, _, _ in os.walk(groups) if Path(at).name.startswith("guestmark-")]
    for path in [*memory.glob("guestmark-memory-*"), *of_groups]:
        with contextlib.suppress(OSError):
            if not is_in_use(path):
                found.append(path)
    return found
