"""A user's own machines whose `exec` only returns output: single commands, timed by this host's clock.

No agent can communicate with such a machine. The agent of this host runs the definition's `exec` instead, once for each
command, and times that. So the times include the cost of `exec` itself, which `agent.exec_cost` measures with an empty
command; nothing else is known about the command, such as its processor time.
"""

from __future__ import annotations

import contextlib
import errno
import math
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Unpack

from guestmark.agent import wire
from guestmark.agent.background import Background
from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent, ExecResult, ProgramContext
from guestmark.agent.clocks import Ping
from guestmark.agent.frames import Transport
from guestmark.agent.results import CallError, CommandError
from guestmark.agent.wire import Call, Failure, Hello, Kind, StandardOutput
from guestmark.core.errors import AgentError, MachineError
from guestmark.core.performance_events import PerformanceEvent
from guestmark.page.text import make_inert
from guestmark.platforms.affinity import mark_machine_start
from guestmark.platforms.own.lifecycle import CreatedMachine
from guestmark.platforms.ssh.session import Greeting, Session

_ASK_S = 30.0
_STOP_S = 2.0
_HOST_AGENT_S = 10.0
_WHAT_IT_IS = """
echo "arch $(uname -m)"
echo "kernel $(uname -r)"
echo "name $(uname -n)"
echo "uid $(id -u)"
echo "boot $(cat /proc/sys/kernel/random/boot_id)"
echo "processors $(grep -c '^processor' /proc/cpuinfo)"
echo "memory $(grep '^MemTotal:' /proc/meminfo)"
echo "model $(grep -m 1 '^model name' /proc/cpuinfo)"
echo "clock $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
for folder in /var/tmp /tmp /root /dev/shm; do
  if [ -d "$folder" ] && [ -w "$folder" ]; then echo "folder $folder"; break; fi
done
"""
# Not `command -v`, which also finds a shell's builtins.
_FIND = """
case $1 in */*) [ -x "$1" ] && echo "$1" && exit 0; exit 1 ;; esac
IFS=:
for folder in $PATH; do
  if [ -f "$folder/$1" ] && [ -x "$folder/$1" ]; then echo "$folder/$1"; exit 0; fi
done
exit 1
"""
_LONGEST_LINE = 200


class PlainAgent(Agent):
    """The agent of this host, which runs commands in a machine through the definition's `exec`."""

    in_machine = False

    def __init__(self, transport: Transport, made: CreatedMachine) -> None:
        super().__init__(transport)
        self._made = made
        self._answers: dict[str, str] = {}

    @property
    def folder(self) -> str:
        """A writable directory in the machine."""
        return self._answers.get("folder", "/tmp")

    def ask_what_it_is(self, timeout_s: float) -> None:
        """Query the machine's kernel, processors and memory for the report. Raises `MachineError` if that fails."""
        done = self.exec(["/bin/sh", "-c", _WHAT_IT_IS], timeout_s=timeout_s)
        for line in done.stdout.decode(errors="replace").splitlines():
            name, _, value = line.strip().partition(" ")
            self._answers[name] = make_inert(value).strip()[:_LONGEST_LINE]
        if not done.ok or not self._answers.get("arch"):
            said = make_inert((done.stderr or done.stdout).decode(errors="replace")).strip()[-_LONGEST_LINE:]
            how = f"exited with status {done.status}"
            if done.timed_out:
                how = "did not end in time"
            if said:
                how += f": {said}"
            raise MachineError(
                f"nothing can be run in {self._made.definition.name}: its command {how}",
                hint=f"try it yourself: {shlex.join(self._made.fill(self._made.definition.exec, ['uname', '-a']))}",
            )

    def hello(self, timeout_s: float = 60.0) -> Hello:
        """Return the machine's greeting, as far as its own programs provide the facts."""
        ours = self._hello or super().hello(timeout_s)
        told = self._answers
        return Hello(
            protocol=ours.protocol,
            version=ours.version,
            arch=told.get("arch", ""),
            kernel=told.get("kernel", ""),
            pid=0,
            uid=_parse_number(told.get("uid", "")),
            hostname=told.get("name", ""),
            boot_id=told.get("boot", ""),
            clock=ours.clock,
            phases=(),
        )

    def read_facts(self, timeout_s: float = _ASK_S) -> wire.Facts:
        """Return what the machine's kernel reports about it."""
        words = self._answers.get("memory", "").split()
        memory_kib = 0
        if len(words) > 1:
            memory_kib = _parse_number(words[1])
        return wire.Facts(
            cpu_model=self._answers.get("model", "").partition(":")[2].strip(),
            cpu_flags=(),
            cpus_online=_parse_number(self._answers.get("processors", "")),
            mem_total_kib=memory_kib,
            cmdline="",
            mounts="",
            clocksource=self._answers.get("clock", ""),
            hypervisor="",
        )

    def ping(self, count: int = 1, timeout_s: float = _ASK_S) -> Ping:
        """Return a reading of the machine's clock by a command; the round trip includes the time of `exec`."""
        sent_ns = time.monotonic_ns()
        done = self.exec(["cat", "/proc/uptime"], timeout_s=timeout_s)
        received_ns = time.monotonic_ns()
        try:
            uptime_s = float(done.stdout.split()[0])
        except (ValueError, IndexError) as error:
            raise AgentError(f"ping: {self._made.definition.name} has no /proc/uptime") from error
        if not math.isfinite(uptime_s):
            raise AgentError(f"ping: {self._made.definition.name} reports an uptime of {uptime_s} s")
        return Ping(sent_ns, int(uptime_s * 1e9), received_ns)

    def find_last_reading(self) -> Ping:
        """Raise `CallError`: readings by a command are too coarse to show how a clock drifts."""
        raise self._refuse("read its clock")

    def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        stdin: bytes | Iterable[bytes] = b"",
        timeout_s: float,
        output_limit: int = 64 << 10,
        grace_s: float = 15.0,
        counters: Sequence[PerformanceEvent] = (),
        stdout: StandardOutput = StandardOutput.PIPE,
        tail: bool = False,
        question: bool = False,
        **where: Unpack[ProgramContext],
    ) -> ExecResult:
        """Run a command in the machine by `exec`. Only its status, its output and its time on this host are known."""
        if stdin:
            raise self._refuse("give it standard input")
        words = _surround(list(map(_decode_argument, argv)), where)
        done = super().exec(
            self._made.fill(self._made.definition.exec, words),
            timeout_s=timeout_s,
            output_limit=output_limit,
            grace_s=grace_s,
            stdout=stdout,
            tail=tail,
            env=self._made.environment,
        )
        return replace(
            done,
            argv=tuple(words),
            in_machine=False,
            # Events counted on this host would be those of `exec`.
            counted=(-errno.EOPNOTSUPP,) * len(counters),
        )

    def which(
        self, name: str, *, path: str | None = None, cwd: str | None = None, timeout_s: float = _ASK_S
    ) -> str:
        """Return the path of the program that `exec` would run. Raises `CommandError` if there is nothing."""
        where: ProgramContext = {"cwd": cwd, "env": None}
        if path is not None:
            where["env"] = {"PATH": path}
        done = self.exec(["/bin/sh", "-c", _FIND, "sh", name], timeout_s=timeout_s, **where)
        found = done.stdout.decode(errors="replace").strip()
        if not done.ok or not found:
            raise CommandError(Failure(kind=Kind.NOT_FOUND, message=f"command not found: {name!r}"))
        return found.splitlines()[-1]

    def sha256(self, path: str, timeout_s: float = 120.0) -> wire.Digest:
        """Return a file's digest, computed by the machine's own `sha256sum`, and its size."""
        done = self.exec(["/bin/sh", "-c", 'sha256sum "$1" && wc -c < "$1"', "sh", path], timeout_s=timeout_s)
        words = done.stdout.decode(errors="replace").split()
        if not done.ok or len(words) < 3:
            raise self._refuse(f"read {path}")
        return wire.Digest(sha256=words[0].lstrip("\\"), size=_parse_number(words[-1]))

    def read_file(
        self, path: str, *, offset: int = 0, limit: int = 64 << 10, timeout_s: float = _ASK_S
    ) -> bytes:
        """Return the content of a file in the machine; files about the reading process itself cannot be read."""
        if offset or (path.startswith("/proc/self/") and not path.startswith("/proc/self/mount")):
            raise self._refuse(f"read {path}")
        done = self.exec(["cat", path], timeout_s=timeout_s, output_limit=limit)
        if not done.ok:
            raise self._refuse(f"read {path}")
        return done.stdout

    def stat(self, path: str, timeout_s: float = _ASK_S) -> wire.Stat:
        """Return metadata of a file; symbolic links are followed."""
        done = self.exec(["stat", "-L", "-c", "%f %u %g %s %b %Y", path], timeout_s=timeout_s)
        words = done.stdout.decode(errors="replace").split()
        if not done.ok or len(words) != 6:
            raise CallError(Failure(kind=Kind.OS, message=f"{path}: no such file", errno=errno.ENOENT))
        mode, *numbers = words
        uid, gid, size, blocks, changed = map(_parse_number, numbers)
        return wire.Stat(
            mode=int(mode, 16), uid=uid, gid=gid, size=size, blocks=blocks, mtime_ns=changed * 10**9
        )

    def write_file(self, path: str, data: bytes | Iterable[bytes], **_: Any) -> wire.Count:
        """Create an empty file; content cannot be copied to the machine."""
        if data:
            raise self._refuse("copy files to it")
        begin = time.monotonic_ns()
        if not self.exec(["/bin/sh", "-c", ': > "$1"', "sh", path], timeout_s=_ASK_S).ok:
            raise self._refuse(f"write {path}")
        return wire.Count(bytes=0, started_ns=begin, ended_ns=time.monotonic_ns())

    def touch_memory(self, size: int, timeout_s: float = 60.0) -> wire.Touched:
        """Have a program in the machine, which then ends, write to `size` bytes of memory once."""
        begin = time.monotonic_ns()
        done = self.exec(["dd", "if=/dev/zero", "of=/dev/null", f"bs={size}", "count=1"], timeout_s=timeout_s)
        if not done.ok:
            raise self._refuse(f"touch {size} bytes of its memory")
        # dd has filled its buffer of that size with one read.
        return wire.Touched(pages=size // 4096, faults=0, started_ns=begin, ended_ns=time.monotonic_ns())

    def start_background(self, *_: Any, **__: Any) -> Background:
        """Raise `CallError`, because commands run only one at a time."""
        raise self._refuse("run several programs at once in it")

    def _call(self, call: Call[Any, Any], *arguments: Any, **more: Any) -> Any:
        if call is not wire.EXEC:
            raise self._refuse(f"call {call.name} in it")
        return super()._call(call, *arguments, **more)

    def _refuse(self, what: str) -> CallError:
        name = self._made.definition.name
        return CallError(
            Failure(
                kind=Kind.BAD_REQUEST,
                message=f"guestmark cannot {what}: own:{name} is plain, so only single commands run in it",
            )
        )


class PlainSession(Session):
    """Stands in for a session with the machine, to which there is no connection."""

    def __init__(self, made: CreatedMachine) -> None:
        super().__init__(made.definition.name)
        self.command = tuple(made.fill(made.definition.exec, ["COMMAND"]))
        self.by_hand = shlex.join(self.command)

    def describe_machine(self, agent: PlainAgent) -> None:
        """Store the machine's greeting, and its writable directory."""
        hello = agent.hello()
        self.greeting = Greeting("Linux", hello.arch, hello.boot_id)
        self.directory = f"{agent.folder}/guestmark-plain"


@contextlib.contextmanager
def open_plain(made: CreatedMachine, deadline: float) -> Iterator[tuple[PlainSession, PlainAgent]]:
    """Yield an agent of this host that runs commands in the machine. Raises `MachineError` if it does not answer."""
    with mark_machine_start():
        process, transport = start_host_agent(hold=made.hold)
    agent = PlainAgent(transport, made)
    try:
        agent.hello(_HOST_AGENT_S)
        agent.ask_what_it_is(max(1.0, deadline - time.monotonic()))
        session = PlainSession(made)
        session.describe_machine(agent)
        yield session, agent
    finally:
        agent.close()
        try:
            process.wait(_STOP_S)
        except Exception:
            process.kill()
            process.wait()


def _decode_argument(argument: str | bytes) -> str:
    if isinstance(argument, str):
        return argument
    return argument.decode()


def _surround(words: list[str], where: ProgramContext) -> list[str]:
    """Return the words, preceded by commands that set the environment and the directory."""
    if env := where.get("env"):
        words = ["env", *(f"{name}={value}" for name, value in env.items()), *words]
    if cwd := where.get("cwd"):
        words = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', cwd, *words]
    return words


def _parse_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return 0
    return int(text)
