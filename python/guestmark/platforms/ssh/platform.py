"""`ssh:DEST`: any machine that is reached over ssh; every trial has a new agent there.

That agent also determines the machine's processor, kernel, firmware and hypervisor.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from guestmark.agent.binary import PROGRAM
from guestmark.agent.client import Agent
from guestmark.agent.clocks import Ping, read_host_boot_id
from guestmark.core.context import Caller
from guestmark.core.environment import hash_machine_id
from guestmark.core.errors import (
    AttestationError,
    GuestmarkError,
    MachineError,
    PlatformUnusableError,
    UsageError,
)
from guestmark.core.machine_facts import Connection, RemoteMachine
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_kind import is_machine_factor
from guestmark.core.platform_spec import Layer, PlatformSpec
from guestmark.core.units import format_share
from guestmark.disks.attached import AttachedDisk
from guestmark.foreign import agents, parts
from guestmark.foreign.progress import LineProgress, tell_user
from guestmark.page.text import make_inert
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.commands import Ended, run_command, wait_for_success
from guestmark.platforms.exclusive import encode_own_holder, lock_remote
from guestmark.platforms.login import read_caller
from guestmark.platforms.network.existing import ExistingNetwork, open_existing_network
from guestmark.platforms.place import HERE, Place
from guestmark.platforms.ssh.connections import Connections
from guestmark.platforms.ssh.freshness import READY, RESTART
from guestmark.platforms.ssh.session import Session, UnreachableError
from guestmark.platforms.ssh_command import build_ssh_command
from guestmark.setting.disk import Disks

_BOOT_PAUSE_S = 1.0
# Environment variable of these commands with the destination.
DEST = "GUESTMARK_DEST"


def restart_machine(cell: Cell, dest: str, deadline: float) -> bool:
    """Runs the command of the factor `restart`, then `ready` until it succeeds; returns whether `restart` was set.

    `deadline` is on the monotonic clock. Raises `MachineError` if a command fails or takes too long.
    """
    command, ready = cell.factors.get(RESTART.name), cell.factors.get(READY.name)
    if command is None:
        if ready is not None:
            raise UsageError(f"{cell.id}: ready needs restart", hint="add --set restart=COMMAND")
        return False
    ended = _run_shell(command, dest, deadline - time.monotonic())
    if not ended.ok:
        raise MachineError(
            f"{dest} was not restarted: its command {ended.describe()}", hint=f"try it yourself: {command}"
        )
    if ready is not None:
        await_ready(ready, dest, deadline)
    return True


def await_ready(command: str, dest: str, deadline: float) -> None:
    """Runs the command once a second until it succeeds. Raises `MachineError` at the deadline."""
    ended = wait_for_success(
        lambda left_s: _run_shell(command, dest, left_s), deadline - time.monotonic(), _BOOT_PAUSE_S
    )
    if not ended.ok:
        raise MachineError(
            f"{dest} did not become ready: its command {ended.describe()}", hint=f"try it yourself: {command}"
        )


def _run_shell(command: str, dest: str, limit_s: float) -> Ended:
    return run_command(["/bin/sh", "-c", command], {**os.environ, DEST: dest}, max(0.1, limit_s))


READY_DEADLINE_S = 60.0
# Time limit of the command that makes a machine fresh, and again of the wait until the machine answers.
RESTART_S = 300.0
# Clocks that NTP disciplines differ less, because the kernel limits the correction to 500 ppm.
_DRIFT = 500e-6


@dataclass(slots=True)
class Remote:
    """Another machine; only an agent is started and stopped there."""

    agent: Agent
    session: Session
    first: Ping
    phases: dict[str, float] = field(default_factory=dict)
    vmm_pid: int | None = None
    disks: tuple[AttachedDisk, ...] = ()
    query: None = None
    place: Place = HERE
    # How the machine was made fresh.
    fresh: str = ""
    network: ExistingNetwork | None = None
    _found: RemoteMachine | None = None
    _caller: Caller | None = None

    @property
    def command_line(self) -> tuple[str, ...]:
        """The command line of ssh, without the script that the remote shell gets."""
        return (*self.session.command[:-1], "guestmark-agent", "trials")

    @property
    def scratch(self) -> str:
        """A private directory on the machine, which is removed at the end."""
        return self.session.directory

    def attest(self) -> RemoteMachine:
        """Returns facts about the machine. Raises `AttestationError` if they differ from its first report."""
        greeting = self.session.greeting
        assert greeting is not None
        self._found = describe_machine(self.agent, self.session.dest, greeting.arch, self.first)
        self._found.fresh = self.fresh
        if self.network is not None:
            self._found.network = self.network.attest()
        return self._found

    def caller(self) -> Caller:
        """Returns the user that ssh logs in as, with the environment of that user's commands there."""
        if self._caller is None:
            self._caller = read_caller(self.agent, home=self.scratch)
        return self._caller

    def console(self) -> str:
        """Returns the output of ssh."""
        return self.session.read_errors()

    def vmm_stats(self) -> Mapping[str, float]:
        """Returns nothing, because the machine's hypervisor cannot be accessed."""
        return {}

    def counters(self) -> Mapping[str, float]:
        """Returns nothing, because the machine's hypervisor cannot be accessed."""
        return {}

    def remarks(self) -> list[str]:
        """Returns remarks about the machine, and about its clock if that ran at another rate than this host's.

        Adds the drift to the attested facts.
        """
        found = self._found
        if found is None:
            return []
        remarks = []
        if found.is_this_host:
            remarks.append(f"{self.session.dest} is this very host, under another name")
        try:
            last = self.agent.find_last_reading()
        except GuestmarkError:
            return remarks
        host_ns, machine_ns = last.host_ns - self.first.host_ns, last.guest_ns - self.first.guest_ns
        if host_ns <= 0:
            return remarks
        drift, error = machine_ns / host_ns - 1, (last.round_trip_ns + self.first.round_trip_ns) / 2 / host_ns
        connection = found.connection
        connection.last_round_trip_ns = last.round_trip_ns
        connection.clock_drift, connection.clock_drift_error = drift, error
        if abs(drift) > _DRIFT + error:
            remarks.append(
                f"the clocks disagree: {host_ns / 1e9:.6g} s on this host's, {machine_ns / 1e9:.6g} s on "
                f"{self.session.dest} ({format_share(drift, 2, signed=True)})"
            )
        return remarks


class SshPlatform:
    """Another machine: it is not booted, and every trial has a separate agent and process tree."""

    def __init__(self, layer: Layer) -> None:
        assert layer.dest is not None
        self.name = str(layer)
        self._dest = layer.dest
        self._spec = PlatformSpec((layer,))
        # The boot id during the last trial.
        self._boot_id = ""
        self._connections = Connections(lambda: Session(self._dest))

    @contextlib.contextmanager
    def start(self, cell: Cell, deadline_s: float | None = None) -> Iterator[Remote]:
        """Begins a conversation with a new agent on the machine; leaving the context ends it and all that it runs.

        Waits until the machine is free, and locks it. During a run the connection is kept for the next trial. Raises
        `UsageError` for factors that the machine does not support, `MachineError` if ssh or the machine fails.
        """
        ours = encode_own_holder()
        with self._reach(cell, deadline_s, ours) as remote:
            yield remote

    @contextlib.contextmanager
    def _reach(self, cell: Cell, deadline_s: float | None, ours: bytes | None) -> Iterator[Remote]:
        check_cell(cell)
        begin = time.monotonic()
        deadline = begin + (deadline_s or READY_DEADLINE_S)
        restarted = restart_machine(cell, self._dest, begin + RESTART_S)
        if restarted:
            deadline = time.monotonic() + RESTART_S
        made_fresh = time.monotonic()
        with self._connections.hold_conversation(cell.id, deadline, ours, restarted=restarted) as (
            opened,
            agent,
        ):
            phases = {"ready": time.monotonic() - made_fresh}
            if restarted:
                phases["made_fresh"] = made_fresh - begin
            lock_remote(agent, str(self._spec), ours)
            fresh = self._describe_freshness(agent, restarted)
            with open_existing_network(self.name, cell.levels, agent, by_ssh=True) as network:
                yield Remote(agent, opened, agent.ping(), phases, fresh=fresh, network=network)

    def _describe_freshness(self, agent: Agent, restarted: bool) -> str:
        """Describes how the machine was made fresh, and whether it was booted since the last trial."""
        before, self._boot_id = self._boot_id, agent.hello().boot_id
        if not restarted:
            return ""
        if not before:
            return "its restart command"
        boot = "same" if before == self._boot_id else "another"
        return f"its restart command ({boot} boot)"

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] | None = None
    ) -> Usable | Unusable:
        """Starts an agent on the machine, which reports facts about it.

        A machine that does not answer is usable if `factors` have a command that restarts it: each trial runs that
        first, and until then the machine may be off. The agent for another architecture is built first, which takes
        minutes but is needed only once.
        """
        if shutil.which(build_ssh_command()[0]) is None:
            return Unusable(
                f"{build_ssh_command()[0]} is not installed", "install the package openssh-client"
            )
        try:
            try:
                return self._try_twice(deadline_s)
            except agents.AgentNotBuiltError as error:
                tell_user(
                    f"{self._dest} is {error.architecture.name}: building an agent for it; this is needed only once"
                )
                parts.get_agent(error.architecture, LineProgress(tell_user))
                return self._try_twice(deadline_s)
        except UnreachableError as error:
            if factors and RESTART.name in factors:
                return Usable(0.0)
            return Unusable(error.message, error.hint)
        except GuestmarkError as error:
            return Unusable(error.message, error.hint)

    def clean_up(self, *, dry_run: bool) -> list[str]:
        """Removes agents kept on the machine, and files that crashes left there; see `Session.clean_up`."""
        return Session(self._dest).clean_up(time.monotonic() + READY_DEADLINE_S, dry_run=dry_run)

    def _try_twice(self, deadline_s: float | None) -> Usable:
        """Tries the machine, and again if a connection was lost, but not for permanent errors such as a wrong key."""
        try:
            return self._try_once(deadline_s)
        except MachineError as error:
            if isinstance(error, UnreachableError) or error.cause is not None:
                raise
            return self._try_once(deadline_s)

    def _try_once(self, deadline_s: float | None) -> Usable:
        cell = Cell("probe", WorkloadSpec("probe"), self._spec)
        with self._reach(cell, deadline_s, None) as remote:
            remote.attest()
            return Usable(remote.phases["ready"])


def check_cell(cell: Cell) -> None:
    """Raises `UsageError` or `PlatformUnusableError` for a cell that other machines cannot serve."""
    if cell.view(Disks):
        raise PlatformUnusableError(
            f"{cell.platform}: disks of another machine are not supported",
            hint="measure a workload that needs no disk",
        )
    given = []
    for name in filter(is_machine_factor, cell.factors):
        if not cell.platform.takes_factor(name):
            given.append(name)
    if given:
        raise UsageError(
            f"{cell.platform} does not support {', '.join(sorted(given))}",
            hint="leave out factors that apply only to guests",
        )


NO_HYPERVISOR = "none"
# Longest text that is accepted from the machine, in characters.
_LIMIT = 200
_OUTPUT = 64 << 10
_S = 20.0
# Hypervisors by the signature in CPUID leaf 0x40000000. Sources: Linux, arch/x86/include/asm and arch/x86/kernel/cpu;
# QEMU, target/i386/kvm; Microsoft's and VMware's interfaces for guests.
_LEAVES: Mapping[str, str] = {
    "KVMKVMKVM": "kvm",
    "TCGTCGTCGTCG": "qemu",
    "VMwareVMware": "vmware",
    "Microsoft Hv": "microsoft",
    "XenVMMXenVMM": "xen",
    "VBoxVBoxVBox": "oracle",
    "bhyve bhyve": "bhyve",
    "ACRNACRNACRN": "acrn",
    "QNXQVMBSQG": "qnx",
    "prl hyperv": "parallels",
    "lrpepyh vr": "parallels",
    "Jailhouse": "jailhouse",
}
# Hypervisors by DMI vendor or product, as some show another's signature: VirtualBox pretends to be KVM or Hyper-V so
# that guests use the interfaces they know.
_VENDORS: tuple[tuple[str, str], ...] = (
    ("innotek", "oracle"),
    ("VirtualBox", "oracle"),
    ("VMware", "vmware"),
    ("Xen", "xen"),
    ("Parallels", "parallels"),
)
# Used without a CPUID signature, as with TCG's usual processor models.
_WITHOUT_LEAF = (*_VENDORS, ("QEMU", "qemu"), ("Bochs", "qemu"))
_SCRIPT = """
show() { printf "%s\\n" "== $1"; head -c 4096 "$2" 2>/dev/null; printf "\\n"; }
show id /etc/machine-id
show vendor /sys/class/dmi/id/sys_vendor
show product /sys/class/dmi/id/product_name
show xen /sys/hypervisor/type
show governor /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor
for file in /sys/devices/system/cpu/vulnerabilities/*; do show "mitigation ${file##*/}" "$file"; done
printf "== microcode\\n"; grep -m1 "^microcode" /proc/cpuinfo | cut -d: -f2
printf "== uml\\n"; grep -m1 -o "User Mode Linux" /proc/cpuinfo
"""


def describe_machine(agent: Agent, dest: str, arch: str, first: Ping) -> RemoteMachine:
    """Returns facts about the machine. Raises `AttestationError` if its agent runs on another one than the greeting."""
    hello, facts = agent.hello(), agent.read_facts()
    if hello.arch != arch:
        raise AttestationError(
            f"{dest} reported the architecture {arch} at login, but its agent runs on {hello.arch}"
        )
    answers = _query_machine(agent)
    leaf = _run_query(agent, [PROGRAM, "hypervisor"])
    vendor, product = answers.get("vendor", ""), answers.get("product", "")
    hypervisor = "uml"
    if not answers.get("uml"):
        hypervisor = name_hypervisor(leaf, vendor, product, answers.get("xen", ""))
    return RemoteMachine(
        dest=dest,
        machine=hash_machine_id(answers.get("id") or hello.hostname),
        kernel=_sanitize_line(hello.kernel),
        arch=_sanitize_line(hello.arch),
        boot_id=_sanitize_line(hello.boot_id),
        processors=facts.cpus_online,
        cpu=_sanitize_line(facts.cpu_model),
        memory_bytes=facts.mem_total_kib * 1024,
        clocksource=_sanitize_line(facts.clocksource),
        hypervisor=hypervisor,
        hypervisor_leaf=leaf,
        vendor=vendor,
        product=product,
        microcode=answers.get("microcode", ""),
        governor=answers.get("governor", ""),
        mitigations=_collect_mitigations(answers),
        is_this_host=hello.boot_id == read_host_boot_id(),
        connection=Connection(round_trip_ns=first.round_trip_ns),
    )


def name_hypervisor(leaf: str, vendor: str, product: str, xen: str = "") -> str:
    """Returns the name of the machine's hypervisor: `none` without one, its signature if it is unknown."""
    if xen:
        return "xen"
    if leaf:
        return _find_maker(_VENDORS, vendor, product) or _LEAVES.get(leaf, leaf)
    return _find_maker(_WITHOUT_LEAF, vendor, product) or NO_HYPERVISOR


def _find_maker(makers: Sequence[tuple[str, str]], vendor: str, product: str) -> str:
    """Returns the name of the first of the makers whose mark the vendor or the product contains; empty if none."""
    for mark, name in makers:
        if mark in vendor or mark in product:
            return name
    return ""


def _collect_mitigations(answers: Mapping[str, str]) -> dict[str, str]:
    mitigations = {}
    for name, value in answers.items():
        if name.startswith("mitigation ") and value:
            mitigations[name.removeprefix("mitigation ")] = value
    return mitigations


def _query_machine(agent: Agent) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in _run_query(agent, ["/bin/sh", "-c", _SCRIPT], lines=True).splitlines():
        if line.startswith("== "):
            name = _sanitize_line(line[3:])
        elif name and line.strip() and not found.get(name):
            found[name] = _sanitize_line(line)
    return found


def _run_query(agent: Agent, argv: list[str], *, lines: bool = False) -> str:
    done = agent.exec(argv, timeout_s=_S, output_limit=_OUTPUT, question=True)
    text = done.stdout.decode(errors="replace")
    return text if lines else _sanitize_line(text)


def _sanitize_line(text: str) -> str:
    """Returns one line of limited length without control characters, because the machine is not trusted."""
    return make_inert(text).strip()[:_LIMIT]
