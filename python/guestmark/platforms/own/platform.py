"""`own:NAME`: a machine created by the user's commands for each trial; `exec` carries the agent's streams."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from guestmark.agent.client import Agent
from guestmark.agent.results import CallError
from guestmark.core.context import Caller
from guestmark.core.errors import (
    AttestationError,
    GuestmarkError,
    MachineError,
    PlatformUnusableError,
    UsageError,
    make_unknown_name_error,
)
from guestmark.core.machine_facts import OwnMachine
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_kind import OWN_PARAMETER
from guestmark.core.platform_spec import Layer, PlatformSpec
from guestmark.disks import processes
from guestmark.page.text import last_inert_line, make_inert
from guestmark.platforms.affinity import mark_machine_start
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.commands import run_to_success
from guestmark.platforms.network.existing import open_existing_network
from guestmark.platforms.own.definition import Definition, Template
from guestmark.platforms.own.guard import destroy_orphans
from guestmark.platforms.own.inside import check_requested_values, check_values_can_be_compared, look_inside
from guestmark.platforms.own.lifecycle import CreatedMachine, create_machine, make_command_environment
from guestmark.platforms.own.plain import open_plain
from guestmark.platforms.own.snapshots import SNAPSHOTS, Snapshot
from guestmark.platforms.own.store import check_trust, find_definition
from guestmark.platforms.ssh.connections import open_once
from guestmark.platforms.ssh.platform import Remote, check_cell
from guestmark.platforms.ssh.session import Session, quote_shell_words
from guestmark.platforms.ssh.trial_mark import TrialMark
from guestmark.setting.machine import START, Start

_AGENT = "guestmark-agent"
_VERSION_S = 20.0
_PID_S = 20.0
# A directory of most systems that is on the root's disk.
_KEPT_FOLDER = "/var/tmp"
_PROCESS = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)


class ExecSession(Session):
    """An agent's channel through a definition's command `exec`."""

    def __init__(self, made: CreatedMachine) -> None:
        super().__init__(made.definition.name)
        self.command = tuple(made.fill(made.definition.exec, quote_shell_words()))
        self.by_hand = shlex.join(made.fill(made.definition.exec, ["COMMAND"]))
        self.environment = made.environment
        self.hold = made.hold
        # No agent is kept, because the machine is destroyed afterwards, and keeping one takes a fifth of its start.
        if made.definition.create:
            self.most_kept = 0

    def _connect(self, deadline: float) -> None:
        """Start the command on the processors of machines, which the agent inherits."""
        with mark_machine_start():
            super()._connect(deadline)

    def make_refusal_error(self, printed: str = "") -> MachineError:
        """Return the error for a command that ended before the agent's greeting."""
        said, status = self.read_errors(), self.status()
        why = last_inert_line(said) or last_inert_line(printed)
        if not why and status is not None:
            why = f"its command exited with status {status}"
        elif not why:
            why = "its command printed nothing"
        return MachineError(
            f"nothing can be run in {self.dest}: {why}",
            hint=f"try it yourself, including its streams: echo hello | {self.by_hand.replace('COMMAND', 'cat')}",
            console=said,
        )

    def make_failure_error(self, why: str) -> MachineError:
        """Return the error for an agent that failed after its greeting."""
        last = last_inert_line(self.read_errors())
        what = f"the agent in {self.dest} failed ({why})"
        if self.gone:
            what = f"the connection to {self.dest} ended ({why})"
        if last:
            what += f": {last}"
        return MachineError(what, console=self.read_errors())


@dataclass(slots=True)
class Own(Remote):
    """A running machine with an agent in it. `started_at` is when its creation began."""

    made: CreatedMachine | None = None
    version: str = ""
    pid: int | None = (
        None  # id of the machine's process on this host, if the definition has the command `pid`
    )
    groups: tuple[Path, ...] = ()
    started_at: float = 0.0
    # When its agent had answered; what is asked about the machine after that is no part of its start.
    answered_at: float = 0.0
    host_boot_id: str = ""  # boot id of the other host on which it was created
    snapshot: Snapshot | None = None
    clone: int = 0  # number among the clones of its snapshot

    def attest(self) -> OwnMachine:
        """Return facts about the machine. Raises `AttestationError` if it is not what was requested."""
        assert self.made is not None
        found = Remote.attest(self)
        inside = look_inside(self.agent, found, self.host_boot_id)
        check_requested_values(self.made.values, inside, self.made.definition.name)
        restored = None
        if self.snapshot is not None:
            restored = self.snapshot.attest_restored(self.agent, self.made.definition.name, self.clone)
        # A container has this host's boot id, too, but is not the host itself.
        mine = msgspec.structs.asdict(found) | {"is_this_host": False}
        self._found = OwnMachine(
            **mine,
            definition=self.made.definition.name,
            digest=self.made.definition.digest,
            version=self.version,
            parameters=dict(self.made.values),
            price_per_hour=self.made.definition.price_per_hour,
            inside=inside,
            restored=restored,
            plain=self.made.definition.plain,
        )
        return self._found

    def caller(self) -> Caller:
        """Return the user who runs commands; empty for a plain machine, of which nothing is known."""
        return Remote.caller(self) if self.agent.in_machine else Caller()

    @property
    def command_line(self) -> tuple[str, ...]:
        """The command line of `exec`, and the agent's if there is one."""
        agent = (_AGENT, "trials") if self.agent.in_machine else ()
        return (*self.session.command[:-1], *agent)

    def list_pids(self) -> list[int]:
        """Return the process that the command `pid` names, its descendants, and others in its PID namespace."""
        if self.pid is None:
            return []
        return [self.pid, *processes.list_descendants(self.pid), *_list_processes_of_namespace(self.pid)]


class OwnPlatform:
    """Machines of one definition."""

    def __init__(self, layer: Layer) -> None:
        assert layer.dest is not None
        self.name = str(layer)
        self._spec = PlatformSpec((layer,))
        self._definition: Definition | None = None
        self._dest = layer.dest
        # What commands have printed that are asked once.
        self._answers: dict[tuple[str, ...], str] = {}
        self._marks = (TrialMark(), TrialMark())

    @property
    def definition(self) -> Definition:
        """The definition, read once. Raises `UsageError`."""
        if self._definition is None:
            self._definition = find_definition(self._dest)
        return self._definition

    @contextlib.contextmanager
    def start(self, cell: Cell, deadline_s: float | None = None) -> Iterator[Own]:
        """Create a machine and start an agent in it; leaving the context ends both."""
        definition = self.definition
        check_trust(definition)
        check_cell(cell)
        values = definition.list_placeholder_values(_list_parameters(cell, definition))
        check_values_can_be_compared(values)
        version = self._read_version(definition, values)
        host_boot_id = self._read_host_boot(definition, values)
        with contextlib.ExitStack() as stack:
            snapshot, saved_id, clone = None, "", 0
            if cell.levels[START] is Start.RESTORED:
                snapshot, clone = stack.enter_context(SNAPSHOTS.take(definition, values))
                saved_id = snapshot.id
            begin = time.monotonic()
            made = stack.enter_context(create_machine(definition, values, saved_id))
            deadline = time.monotonic() + (deadline_s or definition.timeouts.exec)
            opened, agent = stack.enter_context(_enter_machine(made, deadline))
            answered = time.monotonic()
            phases = {"ready": answered - begin, "created": made.created - begin}
            machine = Own(
                agent,
                opened,
                agent.ping(),
                phases,
                fresh=_describe_freshness(definition, snapshot),
                made=made,
                version=version,
                started_at=made.began,
                answered_at=answered,
                host_boot_id=host_boot_id,
                snapshot=snapshot,
                clone=clone,
            )
            machine.pid = _read_host_pid(made)
            machine.groups = _find_own_control_groups(machine.pid)
            if definition.create:
                self._check_new(machine)
            machine.network = stack.enter_context(
                open_existing_network(self.name, cell.levels, agent, by_ssh=False)
            )
            yield machine

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] | None = None
    ) -> Usable | Unusable:
        """Create a machine, start an agent in it, and let it report what it is."""
        try:
            cell = Cell("probe", WorkloadSpec("probe"), self._spec, dict(factors or {}))
            with self.start(cell, deadline_s) as machine:
                machine.attest()
                return Usable(machine.phases["ready"])
        except GuestmarkError as error:
            return Unusable.from_error(error)

    def clean_up(self, *, dry_run: bool) -> list[str]:
        """Destroy machines whose owners have ended; return their descriptions."""
        return [str(machine) for machine in destroy_orphans(dry_run=dry_run) if not machine.problem]

    def _read_version(self, definition: Definition, values: Mapping[str, str]) -> str:
        """Return what the command `version` prints with these values, asked once. Raises `PlatformUnusableError`."""
        if not definition.version:
            return ""
        words = definition.version.fill(values)
        if not words:
            raise PlatformUnusableError(
                f"{definition.name}: with these parameters its command `version` is empty",
                hint="give the parameter a value, or leave out version",
            )
        try:
            said = self._ask_once(words, definition)
        except MachineError as error:
            raise PlatformUnusableError(error.message, hint=error.hint, cause=error.cause) from error
        return " ".join(make_inert(said).split())[:200]

    def _read_host_boot(self, definition: Definition, values: Mapping[str, str]) -> str:
        """Return the boot id of the other host that creates machines, asked once; else "". Raises `MachineError`."""
        if not definition.host:
            return ""
        template = Template(("cat", "/proc/sys/kernel/random/boot_id"), definition.host)
        return self._ask_once(template.fill(values), definition).strip()

    def _ask_once(self, words: Sequence[str], definition: Definition) -> str:
        """Return what a command prints; it runs only the first time. Raises `MachineError`."""
        key = tuple(words)
        if key not in self._answers:
            self._answers[key] = run_to_success(key, make_command_environment(definition), _VERSION_S)
        return self._answers[key]

    def _check_new(self, machine: Own) -> None:
        """Raise `AttestationError` if the machine still has the file that the last trial left."""
        folders = [str(PurePosixPath(machine.session.directory).parent)]
        # The directory of temporary files is often in memory, and would be empty although the disk is the last one.
        with contextlib.suppress(CallError):
            machine.agent.stat(_KEPT_FOLDER)
            folders.append(_KEPT_FOLDER)
        kept = []
        for mark, folder in zip(self._marks, folders, strict=False):
            if not mark.replace(machine.agent, folder, fsync=True):
                kept.append(folder)
        if kept:
            raise AttestationError(
                f"{self.definition.name} is not fresh: files of the last trial are still there, in {kept[0]}",
                hint="create has to make a new machine each time, with its own root or overlay",
            )


@contextlib.contextmanager
def _enter_machine(made: CreatedMachine, deadline: float) -> Iterator[tuple[Session, Agent]]:
    """Start an agent in a machine; in a plain machine, an agent on this host runs commands through `exec`."""
    if made.definition.plain:
        with open_plain(made, deadline) as (session, outside):
            yield session, outside
        return
    with open_once(lambda: ExecSession(made), deadline, patient=False) as (opened, agent):
        yield opened, agent


def _describe_freshness(definition: Definition, snapshot: Snapshot | None) -> str:
    """Return what makes each machine fresh; empty for an existing machine."""
    if snapshot is not None:
        return "restore and destroy"
    return "create and destroy" if definition.create else ""


def _list_parameters(cell: Cell, definition: Definition) -> dict[str, str]:
    """Return the levels of the definition's parameters. Raises `UsageError` for unknown parameters and levels."""
    levels = {}
    for factor, level in cell.factors.items():
        if factor.startswith(OWN_PARAMETER):
            levels[factor.removeprefix(OWN_PARAMETER)] = level
    for name, level in levels.items():
        parameter = definition.parameters.get(name)
        if parameter is None:
            error = make_unknown_name_error("parameter", name, definition.parameters)
            raise UsageError(f"own:{definition.name}: {error.message}", hint=error.hint)
        if parameter.levels and level not in parameter.levels:
            raise UsageError(
                f"own:{definition.name}: {name} cannot be {level!r}",
                hint=f"use one of {', '.join(parameter.levels)}",
            )
    return levels


def _list_processes_of_namespace(pid: int) -> list[int]:
    """Return the processes in the PID namespace of `pid`; none if it is this process's own."""
    with contextlib.suppress(OSError):
        wanted = os.readlink(f"/proc/{pid}/ns/pid")
        if wanted == os.readlink("/proc/self/ns/pid"):
            return []
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{name}/ns/pid") == wanted:
                    found.append(int(name))
        return found
    return []


def _find_own_control_groups(pid: int | None) -> tuple[Path, ...]:
    """Return the memory control group of `pid`, unless it is this process's own."""
    if pid is None:
        return ()
    with contextlib.suppress(OSError):
        theirs, ours = _find_memory_group(pid), _find_memory_group(os.getpid())
        if theirs is not None and theirs != ours and theirs.is_dir():
            return (theirs,)
    return ()


def _find_memory_group(pid: int) -> Path | None:
    """Return the directory of a process's memory control group, of either version. Raises `OSError`."""
    unified = None
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
        if not controllers:
            unified = Path("/sys/fs/cgroup") / path.lstrip("/")
    return unified


def _read_host_pid(made: CreatedMachine) -> int | None:
    """Return the process of this host that the definition's command `pid` names. Raises `MachineError`."""
    if not made.definition.pid:
        return None
    said = made.run(made.definition.pid, _PID_S).strip()
    found = parse_pid(said)
    if found is None:
        raise MachineError(
            f"{made.definition.name}: pid printed {make_inert(said)[:60]!r}, which is not a machine's process",
            hint="it has to print only the process id of the machine's first process",
        )
    return found


def parse_pid(said: str) -> int | None:
    """Return the process id that `pid` printed; None unless it is a process here, and no ancestor of guestmark."""
    if not _PROCESS.fullmatch(said) or not Path(f"/proc/{said}").exists():
        return None
    # If this process descends from it, the machine would include this process.
    if os.getpid() in {int(said), *processes.list_descendants(int(said))}:
        return None
    return int(said)
