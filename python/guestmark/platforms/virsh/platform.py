"""`virsh:DOMAIN`: a libvirt domain, made fresh for every trial; the agent runs over ssh, as on any other machine.

The domain is stopped afterwards, even if this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

import msgspec

from guestmark.agent.client import Agent
from guestmark.core.cause import Cause, Speaker, classify_message
from guestmark.core.errors import AttestationError, GuestmarkError, MachineError, PlatformUnusableError
from guestmark.core.machine_facts import Libvirt, LibvirtDisk, LibvirtMachine, RemoteMachine
from guestmark.core.model import Cell
from guestmark.core.platform_spec import Layer, PlatformSpec
from guestmark.page.text import make_inert
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.exclusive import encode_own_holder, lock_remote
from guestmark.platforms.ssh.connections import open_once
from guestmark.platforms.ssh.freshness import READY
from guestmark.platforms.ssh.platform import RESTART_S, Remote, await_ready, check_cell
from guestmark.platforms.ssh.session import Session
from guestmark.platforms.ssh.trial_mark import TrialMark
from guestmark.platforms.ssh_command import build_ssh_command as ssh
from guestmark.platforms.ssh_command import read_command_variable
from guestmark.platforms.virsh.factors import NONE, SNAPSHOT, SSH, THROW_AWAY

VARIABLE = "GUESTMARK_VIRSH"
_CALL_S = 60.0
_LIMIT = 300


def build_virsh_command() -> list[str]:
    """Returns the words of `GUESTMARK_VIRSH`, split as by a shell, or `virsh`.

    The variable holds the program and the user's own options.
    """
    return read_command_variable(VARIABLE, "virsh")


def build_virsh_environment() -> dict[str, str]:
    """Returns the environment in which virsh prints the English messages that this module parses."""
    return {**os.environ, "LC_ALL": "C"}


def run_virsh(domain: str, *arguments: str, timeout_s: float = _CALL_S) -> str:
    """Runs virsh for a domain and returns its output.

    Raises `PlatformUnusableError` for errors that the user has to correct, `MachineError` for others.
    """
    command = [*build_virsh_command(), "-q", *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=build_virsh_environment(),
            timeout=timeout_s,
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        raise PlatformUnusableError(
            f"{command[0]} cannot be started: {error.strerror}", hint="install the package libvirt-clients"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise MachineError(
            f"libvirt took more than {timeout_s:.0f} s for {arguments[0]} of {domain}"
        ) from error
    if done.returncode != 0:
        raise explain_refusal(domain, done.stderr.decode(errors="replace"))
    return done.stdout.decode(errors="replace")


def explain_refusal(domain: str, said: str) -> MachineError | PlatformUnusableError:
    """Returns the error for a failed call of virsh, from its messages `said`."""
    lines = [line.removeprefix("error:").strip() for line in said.splitlines() if line.strip()]
    cause = classify_message(Speaker.VIRSH, said).cause
    if cause is not Cause.OTHER:
        return PlatformUnusableError(
            f"{domain} {cause.words}", hint=cause.hint.format(name=domain), cause=cause
        )
    last = make_inert(lines[-1])[:_LIMIT] if lines else "virsh failed without a message"
    return MachineError(
        f"libvirt refuses {domain}: {last}",
        hint="try it yourself with virsh",
        console=make_inert(said, lines=True),
    )


# Where `virsh domifaddr` looks for addresses, the most reliable first.
_SOURCES = ("lease", "agent", "arp")
_ADDRESS = re.compile(r"\sipv[46]\s+([0-9a-fA-F.:]+)")
_QUERY_S = 10.0


def find_ssh_options(dest: str, domain: str) -> tuple[str, ...]:
    """Returns options for ssh with the address that libvirt knows; none if ssh's configuration has one for `dest`.

    The host key is looked up by `dest`, because the domain's address may change.
    """
    name = dest.rpartition("@")[2]
    if _extract_host_name(dest) != name.lower() or _is_address(name):
        return ()
    for source in _SOURCES:
        with contextlib.suppress(GuestmarkError):
            if found := parse_addresses(run_virsh(domain, "domifaddr", "--source", source, domain)):
                return ("-o", f"HostName={found[0]}", "-o", f"HostKeyAlias={name}")
    return ()


def parse_addresses(table: str) -> list[str]:
    """Returns the addresses in the output of `virsh domifaddr`, without loopback and link-local ones."""
    addresses = []
    for address in _ADDRESS.findall(table):
        if not address.lower().startswith(("127.", "::1", "fe80:", "169.254.")):
            addresses.append(address)
    return addresses


def _extract_host_name(dest: str) -> str:
    """Returns the host that ssh would connect to, in lower case; empty if ssh does not report it."""
    try:
        done = subprocess.run(
            [*ssh(), "-G", "--", dest], capture_output=True, text=True, timeout=_QUERY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        if key == "hostname":
            return value.lower()
    return ""


def _is_address(name: str) -> bool:
    return bool(re.fullmatch(r"[0-9.]+|\[?[0-9a-fA-F:]*:[0-9a-fA-F:.]*\]?", name))


_S = 20.0
# A new daemon inspects every installed QEMU before it answers: 40 s with all of Debian's on 2 CPUs.
_VERSION_S = 300.0
_OUTPUT = 64 << 10
_CARDS = "cat /sys/class/net/*/address; cat /sys/class/dmi/id/product_uuid 2>/dev/null"


def attest_domain(found: RemoteMachine, agent: Agent, domain: str) -> LibvirtMachine:
    """Attests the machine and its domain. Raises `AttestationError` if the machine is not the domain."""
    described = _describe_domain(domain)
    root = ElementTree.fromstring(run_virsh(domain, "dumpxml", domain))
    done = agent.exec(["/bin/sh", "-c", _CARDS], timeout_s=_S, output_limit=_OUTPUT)
    identities = set(done.stdout.decode(errors="replace").lower().split())
    uuid = (root.findtext("uuid") or "").lower()
    cards = {(mac.get("address") or "").lower() for mac in root.iterfind("devices/interface/mac")}
    if uuid in identities:
        described.known_by = "its UUID"
    elif cards & identities:
        described.known_by = "a network card"
    else:
        raise AttestationError(
            f"the machine that answers ssh is not the domain {domain}: neither its UUID nor one of its network cards "
            "is found there",
            hint="set the domain's ssh destination: --set ssh=DEST",
        )
    return LibvirtMachine(**msgspec.structs.asdict(found), libvirt=described)


def _describe_domain(domain: str) -> Libvirt:
    root = ElementTree.fromstring(run_virsh(domain, "dumpxml", domain))
    cpu = root.find("cpu")
    table = run_virsh(domain, "version", timeout_s=_VERSION_S)
    versions = dict(_split_version(line) for line in table.splitlines() if ":" in line)
    model = ""
    if cpu is not None:
        model = cpu.findtext("model") or cpu.get("mode") or ""
    disks = []
    for disk in root.iterfind("devices/disk"):
        if _is_disk(disk):
            disks.append(_describe_disk(disk))
    return Libvirt(
        domain=root.findtext("name") or domain,
        uuid=root.findtext("uuid") or "",
        accelerator=root.get("type", ""),
        machine=_read_attribute(root, "os/type", "machine"),
        cpu=model,
        emulator=root.findtext("devices/emulator") or "",
        hypervisor=versions.get("Running hypervisor", ""),
        version=versions.get("Using library", ""),
        disks=disks,
    )


def _is_disk(device: ElementTree.Element) -> bool:
    """Returns whether the device is a disk, and not a CD-ROM drive or a floppy drive."""
    return device.get("device", "disk") == "disk"


def _split_version(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def _describe_disk(disk: ElementTree.Element) -> LibvirtDisk:
    return LibvirtDisk(
        name=_read_attribute(disk, "target", "dev"),
        bus=_read_attribute(disk, "target", "bus"),
        format=_read_attribute(disk, "driver", "type"),
        cache=_read_attribute(disk, "driver", "cache", "default"),
        keeps=disk.find("transient") is None,
    )


def _read_attribute(element: ElementTree.Element, path: str, name: str, default: str = "") -> str:
    """Returns an attribute of a child; `default` if it is not set, empty without the child."""
    child = element.find(path)
    return "" if child is None else child.get(name, default)


_MARKED_FOLDER = "/var/tmp"


@dataclass(slots=True)
class Domain(Remote):
    """A running domain with an agent in it."""

    domain: str = ""

    def attest(self) -> LibvirtMachine:
        """Returns facts about the domain, as reported from inside it and by libvirt."""
        found = attest_domain(Remote.attest(self), self.agent, self.domain)
        # `remarks` adds the clock's drift at the end.
        self._found = found
        return found


class VirshPlatform:
    """A libvirt domain; the factor `snapshot` decides how it is made fresh."""

    def __init__(self, layer: Layer) -> None:
        assert layer.dest is not None
        self.name = str(layer)
        self._domain = layer.dest
        self._spec = PlatformSpec((layer,))
        self._mark = TrialMark()

    @contextlib.contextmanager
    def start(self, cell: Cell, deadline_s: float | None = None) -> Iterator[Domain]:
        """Makes the domain fresh and starts an agent in it; leaving the context ends both."""
        check_cell(cell)
        begin = time.monotonic()
        deadline = begin + (deadline_s or RESTART_S)
        with make_fresh(self._domain, cell.factors.get(SNAPSHOT.name, THROW_AWAY), deadline) as fresh:
            made_fresh = time.monotonic()
            if (ready := cell.factors.get(READY.name)) is not None:
                await_ready(ready, self._domain, deadline)
            session = self._make_session_opener(cell.factors.get(SSH.name, self._domain))
            with open_once(session, deadline, patient=bool(fresh)) as (opened, agent):
                phases = {"ready": time.monotonic() - made_fresh, "made_fresh": made_fresh - begin}
                if fresh:
                    self._leave_mark(agent)
                lock_remote(agent, self.name, encode_own_holder())
                yield Domain(agent, opened, agent.ping(), phases, fresh=fresh, domain=self._domain)

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] | None = None
    ) -> Usable | Unusable:
        """Checks that libvirt knows the domain. It is not started, because the cell decides how it is made fresh."""
        begin = time.monotonic()
        try:
            run_virsh(self._domain, "domstate", self._domain)
        except GuestmarkError as error:
            return Unusable.from_error(error)
        return Usable(time.monotonic() - begin)

    def _make_session_opener(self, dest: str) -> Callable[[], Session]:
        def open_new_session() -> Session:
            state = run_virsh(self._domain, "domstate", self._domain).strip()
            if state != "running":
                raise MachineError(f"the domain {self._domain} has ended: it is {state}")
            return Session(dest, find_ssh_options(dest, self._domain))

        return open_new_session

    def _leave_mark(self, agent: Agent) -> None:
        """Leaves a mark on the domain's disk.

        Raises `AttestationError` if the mark of the last trial is still there.
        """
        # Without the flush, the file could be lost when the domain ends, even if its disks keep what was written.
        if not self._mark.replace(agent, _MARKED_FOLDER, fsync=True):
            raise AttestationError(
                f"the domain {self._domain} is not fresh: a file that the last trial left is still there",
                hint="check that the snapshot includes the disk with /var/tmp",
            )


_STARTED = "guestmark-started"
_STOP_S = 20.0
_OFF = "shut off"
_QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
# The script starts the domain, reports that, waits until its input is closed everywhere, and ends the domain. It
# ignores signals, so that it always ends a domain that it has started.
_LIFE = f"""
trap '' INT TERM HUP PIPE
{{begin}} || exit 1
echo {_STARTED} 2> /dev/null
cat > /dev/null
{{virsh}} destroy {{domain}} > /dev/null 2>&1
exit 0
"""


def make_fresh(domain: str, way: str, deadline: float) -> contextlib.AbstractContextManager[str]:
    """Makes the domain fresh in that `way` (a level of `SNAPSHOT`); yields what was done in words, empty if nothing.

    Raises `PlatformUnusableError` if the domain cannot be made fresh in that way, `MachineError` if libvirt fails.
    """
    state = run_virsh(domain, "domstate", domain).strip()
    if way == NONE:
        if state != "running":
            raise PlatformUnusableError(f"{domain} is {state}", hint=f"start it: virsh start {domain}")
        return contextlib.nullcontext("")
    if way != THROW_AWAY:
        return _revert_snapshot(domain, way, deadline, was_off=state == _OFF)
    if state != _OFF:
        raise PlatformUnusableError(
            f"{domain} is {state}, so trials cannot start it from throw-away disks",
            hint=f"shut it down: virsh shutdown {domain}; or revert it to a snapshot for each trial, which discards "
            f"its current state: --set snapshot=NAME; or measure it as it runs: --set snapshot={NONE}",
        )
    return _start_throw_away(domain, deadline)


@contextlib.contextmanager
def _start_throw_away(domain: str, deadline: float) -> Iterator[str]:
    definition = make_transient(run_virsh(domain, "dumpxml", "--inactive", "--security-info", domain))
    begin = f"head -c {len(definition)} | {_format_shell_command()} create /dev/stdin > /dev/null"
    with _hold_alive(domain, begin, definition, deadline):
        yield "a start from throw-away disks"


@contextlib.contextmanager
def _revert_snapshot(domain: str, snapshot: str, deadline: float, *, was_off: bool) -> Iterator[str]:
    fresh = f"going back to its snapshot {snapshot}"
    revert = ("snapshot-revert", domain, snapshot, "--running")
    # A domain that was shut off is ended again afterwards.
    if was_off:
        with _hold_alive(
            domain, f"{_format_shell_command()} {shlex.join(revert)} > /dev/null", b"", deadline
        ):
            yield fresh
    else:
        run_virsh(domain, *revert, timeout_s=max(1.0, deadline - time.monotonic()))
        yield fresh


@contextlib.contextmanager
def _hold_alive(domain: str, begin: str, given: bytes, deadline: float) -> Iterator[None]:
    """Runs the domain inside the context; a separate process ends it after the context or if this process is killed."""
    script = _LIFE.format(begin=begin, virsh=_format_shell_command(), domain=shlex.quote(domain))
    life = subprocess.Popen(
        ["/bin/sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=build_virsh_environment(),
        start_new_session=True,
    )
    assert life.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            life.stdin.write(given)
            life.stdin.flush()
        _wait_for_domain_start(domain, life, deadline)
        yield
    finally:
        with contextlib.suppress(OSError):
            life.stdin.close()
        try:
            life.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(life.pid, signal.SIGKILL)
            life.wait()
        for stream in (life.stdout, life.stderr):
            assert stream is not None
            stream.close()


def _wait_for_domain_start(domain: str, life: subprocess.Popen[bytes], deadline: float) -> None:
    assert life.stdout is not None
    assert life.stderr is not None
    ready, _, _ = select.select([life.stdout], [], [], max(0.0, deadline - time.monotonic()))
    if not ready:
        raise MachineError(f"libvirt did not start {domain} in time", hint="try it yourself with virsh")
    if life.stdout.readline().strip() != _STARTED.encode():
        raise explain_refusal(domain, life.stderr.read().decode(errors="replace"))


def make_transient(definition: str) -> bytes:
    """Returns the domain's definition with disks that discard all writes."""
    ElementTree.register_namespace("qemu", _QEMU)
    root = ElementTree.fromstring(definition)
    for disk in root.iterfind("devices/disk"):
        if _is_disk(disk) and disk.find("readonly") is None and disk.find("transient") is None:
            ElementTree.SubElement(disk, "transient")
    return ElementTree.tostring(root)


def _format_shell_command() -> str:
    return f"{shlex.join(build_virsh_command())} -q"
