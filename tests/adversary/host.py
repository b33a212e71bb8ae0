"""A host with something of every kind to reach, and hypervisors that were taken over, in each way of starting them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from guestmark.agent.confinement import (
    HYPERVISOR,
    MOST_PROCESSES,
    WITH_MEMORY_FILE,
    WITH_NETWORK,
    Confinement,
)
from guestmark.core import own_program
from guestmark.core.errors import AgentError
from guestmark.core.keeper import keeper
from guestmark.core.units import format_size
from guestmark.platforms import confinement
from guestmark.platforms.sandbox.runtimes import RUNTIMES
from tests.framework.guests import start

NOBODY = 65534
_PYTHON = "/usr/bin/python3"  # that anybody may execute
_TAKEOVER = Path(__file__).with_name("takeover.py")
_LIMIT_S = 120.0
_MEMORY_BYTES = 256 << 20
_ENOUGH = "6G"  # for as many processes as a machine may have
_HANDLE_BYTES = 128
_NAME_TO_HANDLE = {"x86_64": 303, "aarch64": 264}
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Way:
    """How a hypervisor is started; `confinement` is None where nothing keeps it from anything."""

    confinement: Confinement | None
    user: int = 0


UNCONFINED = "nothing, as root"  # by which the attempts are seen to be ones
WAYS = {
    UNCONFINED: Way(None),
    "`uml`, `tcg`, `kvm`": Way(WITH_MEMORY_FILE),
    "as another user": Way(WITH_MEMORY_FILE, NOBODY),
    "disks and shares of daemons": Way(replace(HYPERVISOR, sockets=True)),
    "`aio=io_uring`": Way(replace(HYPERVISOR, rings=True)),
    "`network=user`": Way(WITH_NETWORK),
}


_MEMORY = "memory"
TOO_MANY = "more processes than a machine may have"
# Parts of the attempts that a whole sandbox may end with.
_EXHAUSTING = {
    _MEMORY: "more memory than a machine may have",
    "processes": TOO_MANY,
}
# In a sandbox, what these change or see is its own, unless something of the host was seen to change.
_OWN = {
    "change a file of the host", "make a file", "change a file's mode", "change a file's flags",
    "change a file by a handle made inside", "keep writers of a file waiting", "remount the root",
    "make mounts writable again", "mount a directory once more", "open a tree of mounts with attributes",
    "a new filesystem", "the host's name", "listen on TCP", "UDP", "netlink", "raw packets",
    "the I/O class of all processes of a user", "trace the cage's first process",
}  # fmt: skip
# Where a kernel of the sandbox's own answers, everything is, but what has the host's at its other end, or uses it up.
_OF_THE_HOST = {
    "TCP", "TCP by MPTCP", "TCP by MSG_FASTOPEN", "TCP by a ring", "a Unix socket by path", "a Unix socket by a ring",
    "a datagram to a Unix socket", "a datagram by a pair of sockets", "a datagram by a raw pair of sockets",
    "connect a pair of sockets elsewhere", "an abstract Unix socket", "write to a named pipe",
    "take what is in a named pipe", *_EXHAUSTING.values(),
}  # fmt: skip
OWN = "its own"


def taken_over(way: Way) -> dict[str, str]:
    """What became of each attempt, by its name: `reached`, or why not. Effects on the host count, whatever was said."""

    def run(command: list[str], targets: Mapping[str, object], part: str) -> str:
        with (
            _groups()
            if part == _MEMORY and way.confinement and not way.user
            else contextlib.nullcontext(()) as made
        ):
            inside = Path(str(targets["inside"]))
            if way.confinement is not None:
                _, *command = way.confinement.wrap_command(command, [inside], groups=made)
                command = [str(inside.parent / "agent"), *command]
            else:  # what it does to mounts is no other's
                command = ["unshare", "--mount", "--propagation=private", *command]
            become = ["setpriv", f"--reuid={way.user}", f"--regid={way.user}", "--clear-groups"]
            done = subprocess.run(
                [*(become if way.user else []), *command],
                capture_output=True, text=True, timeout=_LIMIT_S, check=False, cwd=inside,
            )  # fmt: skip
            assert done.returncode == 0, (done.returncode, done.stderr)
            return done.stdout

    said, changed = _tried(way.user, run)
    return said | dict.fromkeys(changed, "reached")


def in_sandbox(name: str) -> dict[str, str]:
    """The same of a program in the sandbox of that name; `its own`: it did not reach this host's."""

    def run(command: list[str], targets: Mapping[str, object], part: str) -> str:
        with start(name, memory=format_size(_MEMORY_BYTES) if part == _MEMORY else _ENOUGH) as machine:
            try:
                done = machine.agent.exec(command, cwd=str(targets["inside"]), timeout_s=_LIMIT_S)
            except AgentError:
                if part not in _EXHAUSTING:
                    raise
                return json.dumps({"attempt": _EXHAUSTING[part], "said": "the sandbox was ended"})
            assert done.ok, (done.status, done.stderr)
            return done.stdout.decode()

    said, changed = _tried(0, run)
    own = said.keys() - _OF_THE_HOST if RUNTIMES[name].own_kernel else _OWN
    seen = {each: OWN if what == "reached" and each in own else what for each, what in said.items()}
    return seen | dict.fromkeys(changed, "reached")


def _tried(
    user: int, run: Callable[[list[str], Mapping[str, object], str], str]
) -> tuple[dict[str, str], set[str]]:
    """What the program said of each attempt, and those that have changed something of the host."""
    said: dict[str, str] = {}
    changed: set[str] = set()
    for part in ("most", *_EXHAUSTING):  # little memory is too little for as many processes as can be
        with (
            tempfile.TemporaryDirectory(prefix="guestmark-test-", dir="/var/tmp") as name,
            _targets(Path(name), user) as targets,
        ):
            program = shutil.copy(_TAKEOVER, Path(name) / "takeover.py")
            given = json.dumps({**targets, "part": part})
            printed = run([_PYTHON, "-I", str(program), given], targets, part)
            found = [json.loads(line) for line in printed.splitlines()]
            said |= {one["attempt"]: one["said"] for one in found if "attempt" in one}
            changed |= set(_effects(targets))
    return said, changed


@contextlib.contextmanager
def _groups() -> Iterator[tuple[Path, ...]]:
    """The control groups of a machine with little memory, as root gets them."""
    made = confinement.make_control_groups("machine", _MEMORY_BYTES)
    try:
        yield made
    finally:
        for group in made:
            keeper().remove(group)


def _effects(targets: dict[str, object]) -> Iterator[str]:
    """Attempts that have changed something of the host."""
    victim, process = Path(str(targets["victim"])), int(str(targets["process"]))
    if victim.read_text() != "untouched":
        yield "change a file of the host"
    if victim.stat().st_mode & 0o777 != 0o644:
        yield "change a file's mode"
    if [path.name for path in victim.parent.iterdir()] != ["victim"]:
        yield "make a file"
    if _state(process) in "ZX":
        yield "end a process"
    elif os.getpriority(os.PRIO_PROCESS, process) != os.getpriority(os.PRIO_PROCESS, 0):
        yield "the nice value of a process"
    if _state(int(str(targets["other_process"]))) == "T":
        yield "stop a process by a file"
    heard = targets["heard"]
    assert isinstance(heard, list)
    yield from heard


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def _targets(folder: Path, user: int) -> Iterator[dict[str, object]]:
    folder.chmod(0o755)
    shutil.copy(own_program.find_agent_binary(), folder / "agent")
    (folder / "agent").chmod(0o755)
    outside, inside = folder / "outside", folder / "inside"
    for path in (outside, inside):
        path.mkdir()
        os.chown(path, user, user)
    victim = outside / "victim"
    victim.write_text("untouched")
    victim.chmod(0o644)
    os.chown(victim, user, user)
    owned = folder / "owned"
    owned.touch()
    os.chown(owned, user, user)
    heard: list[str] = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.bind(str(folder / "socket"))
        datagrams = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagrams.bind(str(folder / "datagrams"))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        name = f"guestmark-{os.urandom(6).hex()}"
        abstract.bind(f"\0{name}")
        for name_of_pipe in ("pipe", "full_pipe"):
            os.mkfifo(folder / name_of_pipe)
            (folder / name_of_pipe).chmod(0o666)
            end = os.open(folder / name_of_pipe, os.O_RDWR)
            stack.callback(os.close, end)
        os.write(end, b"x" * 64)
        for listening in (server, local, abstract):
            listening.listen(64)
        for path in (folder / "socket", folder / "datagrams"):
            path.chmod(0o777)
        master, slave = pty.openpty()
        stack.callback(os.close, slave)
        terminal = os.ttyname(slave)
        os.chown(terminal, user, user)
        queue = _libc.msgget(0, 0o1666)
        stack.callback(_libc.msgctl, queue, 0, None)
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        process, other = (
            stack.enter_context(subprocess.Popen([*become, "sleep", "300"], stdout=subprocess.DEVNULL))
            for _ in range(2)
        )
        stack.callback(other.kill)
        stack.callback(process.kill)
        for listen in (partial(_listen_to, master, heard), partial(_hear, udp, heard)):
            threading.Thread(target=listen, daemon=True).start()
        disks = [disk for disk in sorted(os.listdir("/sys/block")) if Path("/dev", disk).exists()]
        yield {
            "victim": str(victim), "outside": str(outside), "inside": str(inside),
            "handle": _handle(victim) if user == 0 else "00" * 16, "disk": f"/dev/{disks[0]}" if disks else "/dev/none",
            "port": server.getsockname()[1], "udp_port": udp.getsockname()[1], "interface": "lo",
            "socket": str(folder / "socket"), "datagrams": str(folder / "datagrams"), "abstract": name,
            "pipe": str(folder / "pipe"), "full_pipe": str(folder / "full_pipe"), "owned": str(owned),
            "process": process.pid, "other_process": other.pid, "queue": queue, "terminal": terminal,
            "many": MOST_PROCESSES + 64, "memory": 2 * _MEMORY_BYTES,
            "pid_namespace": os.readlink("/proc/self/ns/pid"), "heard": heard,
        }  # fmt: skip
        udp.sendto(b"", udp.getsockname())
        process.send_signal(signal.SIGKILL)


def _listen_to(master: int, heard: list[str]) -> None:
    with contextlib.suppress(OSError):
        while os.read(master, 64):
            heard.append("the user's terminal")
    os.close(master)


def _hear(udp: socket.socket, heard: list[str]) -> None:
    """Until an empty datagram comes, which is ours."""
    while udp.recv(64):
        heard.append("UDP")


def _handle(path: Path) -> str:
    handle = ctypes.create_string_buffer(_HANDLE_BYTES.to_bytes(4, "little"), 8 + _HANDLE_BYTES)
    mount = ctypes.c_int()
    number = _NAME_TO_HANDLE[os.uname().machine]
    assert _libc.syscall(number, -100, str(path).encode(), handle, ctypes.byref(mount), 0) == 0
    return handle.raw.hex()
