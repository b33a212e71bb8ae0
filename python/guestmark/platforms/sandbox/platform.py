"""`bwrap`, `crun`, `runc`, `podman`, `gvisor`: a sandbox on this host, with the agent inside.

Its root is the host's own, read-only under a layer in memory that is thrown away. The root, the runtime's state and the
runtime itself are in a separate mount and process namespace, whose first process becomes the runtime
(`crates/agent/src/sandbox.rs`). When that ends, or its supervisor, which ends with this process, the kernel ends
everything in the namespaces. Preparing them is not part of the start: the first process waits for a signal before it
executes the runtime.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

from guestmark.agent.binary import build_supervise_command
from guestmark.agent.client import Agent
from guestmark.appliance.paths import choose_scratch_parent
from guestmark.core import procfs
from guestmark.core.errors import AttestationError, MachineError, PlatformUnusableError
from guestmark.core.keeper import keeper
from guestmark.core.machine_facts import Sandboxed, read_mounts
from guestmark.core.model import Cell
from guestmark.core.own_program import find_agent_binary
from guestmark.core.platform_spec import Layer
from guestmark.core.user_namespaces import explain_how_to_allow
from guestmark.disks import processes
from guestmark.disks.processes import find_field
from guestmark.page.text import list_filled_lines
from guestmark.platforms.affinity import Seat
from guestmark.platforms.confinement import list_own_namespaces, make_control_groups, read_limits
from guestmark.platforms.host_like import Host, HostLike, Surroundings
from guestmark.platforms.sandbox.runtimes import RUNTIMES, Runtime, Sandbox
from guestmark.setting.disk import DiskSpec
from guestmark.setting.machine import MEMORY
from guestmark.setting.network import NETWORK, Network

# The same as guests have.
_MEMORY = "1G"
_SETUP_S = 30.0
_SECCOMP = {"0": "off", "1": "strict", "2": "filter"}
_ALL_USERS = "0 0 4294967295"
# Filesystems that sandboxes do not get: they belong to the running host, or their files are interfaces of the kernel.
_NO_FILES = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "sysfs", "tracefs",
}  # fmt: skip
_OF_TRIALS = "/guestmark-disks-"
_OF_MACHINES = ("/proc", "/sys", "/dev", "/run")


class SandboxPlatform(HostLike):
    """A sandbox of one of the runtimes."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        self.runtime = RUNTIMES[layer.kind]

    def check_cell(self, cell: Cell, disks: Sequence[DiskSpec]) -> None:
        """Raises `PlatformUnusableError` for a runtime that this user cannot run, and for a cell with disks."""
        # This property raises if the runtime is not installed.
        _ = self.runtime.version
        if os.geteuid() != 0 and not self.runtime.for_users:
            raise PlatformUnusableError(f"{self.name} works only for root", hint="run guestmark as root")
        if disks:
            raise PlatformUnusableError(
                f"{self.name} has no disks: it uses this host's filesystems", hint="measure disks on host"
            )

    @contextlib.contextmanager
    def enter_surroundings(self, cell: Cell, disks: Sequence[DiskSpec]) -> Iterator[Surroundings]:
        """Yields a root, control groups and the command of a runtime, which waits until `begin` is called."""
        scratch = keeper().directory(self.name, choose_scratch_parent())
        limited = make_control_groups("machine", read_memory_level(cell))
        below, console = scratch / "m", scratch / "console"
        below.mkdir()
        # Podman does not accept a long path for its state.
        state = below / "run" if scratch.is_relative_to("/run") else Path("/run")
        sandbox = Sandbox(
            below / "root",
            state / "guestmark",
            scratch,
            (str(find_agent_binary()), "serve"),
            networked=cell.levels[NETWORK] is not Network.NONE,
        )
        with contextlib.ExitStack() as stack:
            for directory in (scratch, *limited):
                stack.callback(keeper().remove, directory)
            lifeline, prepared, go = (Pipe(stack) for _ in range(3))
            command = [
                str(find_agent_binary()), "sandbox", f"--at={below}", f"--complaints={console}",
                f"--prepared={prepared.write}", f"--go={go.read}",
                *(f"--group={group}" for group in limited), *(f"--layer={where}" for where in list_layers()),
            ]  # fmt: skip
            if os.geteuid() != 0:
                command.append("--own-users")
            # gVisor's kernel, which runs as the user nobody, mounts its root over the directory for temporary files:
            # every user can access /tmp, but perhaps not $TMPDIR.
            if self.runtime.own_kernel:
                command.append("--unset=TMPDIR")
                if sandbox.networked:
                    # It treats a namespace in which this directory has files as the host's, but with newer kernels
                    # every namespace has some.
                    command.append("--hide=/proc/sys/net/core")
            command += ["--", *self.runtime.command(sandbox)]

            def begin() -> float:
                prepared.close_write_end()
                if not select.select([prepared.read], [], [], _SETUP_S)[0] or not os.read(prepared.read, 16):
                    raise self.explain_silence(MachineError("its root cannot be set up"), within)
                began = time.monotonic()
                os.write(go.write, b"go\n")
                return began

            within = Surroundings(
                build_supervise_command(command, lifeline_fd=lifeline.read, hold=keeper().handles),
                agent_in_command=True,
                passed=(lifeline.read, prepared.write, go.read),
                begin=begin,
                groups=limited,
                console=console,
            )
            yield within

    def make_machine(self, agent: Agent, command: tuple[str, ...], seat: Seat, pid: int) -> SandboxMachine:
        """Returns the sandbox once its agent has answered."""
        # The supervisor's child creates the namespaces; its child is their first process, with which all others end.
        first = next(iter(processes.list_descendants(pid)[1:2]), pid)
        return SandboxMachine(agent, command, seat=seat, pid=first, runtime=self.runtime)

    def explain_silence(self, error: MachineError, within: Surroundings) -> MachineError:
        """Returns the error with the last message of the runtime, or of the process that prepares its root."""
        lines = list_filled_lines(within.read_console()) or [error.message]
        explained = self.runtime.explain_end(within.console.parent) if within.console else ""
        reason = explained or lines[-1]
        return MachineError(
            f"{self.name} did not start: {reason[:400]}",
            hint=(os.geteuid() and explain_how_to_allow())
            or "sandboxes need mount and process namespaces and overlays; guestmark doctor checks them",
            cause=error.cause,
            console=within.read_console(),
        )


class Pipe:
    """A pipe whose ends are closed with the stack, unless the write end was closed before."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.read, self.write = os.pipe()
        stack.callback(os.close, self.read)
        stack.callback(self.close_write_end)

    def close_write_end(self) -> None:
        """Closes the end for writing; may be called twice."""
        if self.write >= 0:
            os.close(self.write)
            self.write = -1


def read_memory_level(cell: Cell) -> int:
    """Returns the bytes of memory that a sandbox of this cell has."""
    return cell.levels.with_defaults({MEMORY.name: _MEMORY})[MEMORY]


def list_layers() -> list[str]:
    """Returns the directories of this host over which a sandbox gets a layer each, parents first.

    Only root can put a layer over a directory with mounts below it, so other users get one for each directory without
    mounts.
    """
    seen = read_mounts()
    if os.geteuid() != 0:
        return sorted(_list_mountless("/", {mount.where for mount in seen}))
    # The server of another trial's log may be stopped, and accessing its mount would then block forever.
    others = {mount.where for mount in seen if mount.kind.startswith("fuse") and _OF_TRIALS in mount.where}
    layers = set()
    for mount in seen:
        if mount.kind in _NO_FILES or mount.where in others:
            continue
        if _can_be_layer(mount.where):
            layers.add(mount.where)
    return sorted(layers)


def _list_mountless(directory: str, mounted: Set[str]) -> Iterator[str]:
    """Yields all directories at or below `directory` that have nothing mounted below them."""
    if not _can_be_layer(directory):
        return
    below = f"{directory.rstrip('/')}/"
    if not any(where.startswith(below) and where != directory for where in mounted):
        yield directory
        return
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _list_mountless(entry.path, mounted)


def _can_be_layer(where: str) -> bool:
    of_machines = any(where == top or where.startswith(f"{top}/") for top in _OF_MACHINES)
    # An overlay's options use these characters as separators.
    return not of_machines and os.path.isdir(where) and not any(mark in where for mark in ",:\\")


class SandboxMachine(Host):
    """A sandbox, attested by this host's kernel from outside and by its agent from inside."""

    def __init__(self, *arguments: Any, runtime: Runtime, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._runtime = runtime
        self._unlimited = False

    def attest(self) -> Sandboxed:
        """Returns facts about the sandbox. Raises `AttestationError` if its namespaces, root or kernel are wrong."""
        hello, seen = self.agent.hello(), self.agent.read_facts()
        holder = self._find_holder()
        folder = Path(f"/proc/{holder}")
        try:
            status = (folder / "status").read_text()
            users = " ".join((folder / "uid_map").read_text().split())
            joined = (folder / "cgroup").read_text()
        except OSError as error:
            raise AttestationError(f"the sandbox has ended: {error.strerror}") from error
        if self.network is not None and self._runtime.own_kernel:
            self.network.set_own_stack_mover(holder)
        memory, _ = read_limits(self.within.groups)
        self._unlimited = memory is None
        if not all(f"/{group.name}" in joined for group in self.within.groups):
            memory = None
        mechanism = _find_mechanism(holder) if self._runtime.own_kernel else ""
        found = Sandboxed(
            kernel=hello.kernel,
            arch=hello.arch,
            boot_id=hello.boot_id,
            processors=self.seat.count_processors(seen.cpus_online),
            placement=self.seat.attest(self.pid),
            network=self._attest_own_network(),
            runtime=self._runtime.program.name,
            version=self._runtime.version,
            root=_find_root_kind(seen.mounts),
            proc_version=self.agent.read_file("/proc/version", limit=512).decode(errors="replace").strip(),
            own_kernel=self._runtime.own_kernel,
            mechanism=mechanism,
            # Compared with the namespaces in which the runtime was started, which exist whatever the runtime does.
            namespaces=list_own_namespaces(folder, Path(f"/proc/{self.pid}")),
            seccomp=_SECCOMP.get(find_field(status, "Seccomp"), "unknown"),
            filters=int(find_field(status, "Seccomp_filters") or "0"),
            no_new_privileges=find_field(status, "NoNewPrivs") == "1",
            capabilities=int(find_field(status, "CapEff") or "0", 16).bit_count(),
            users="" if users == _ALL_USERS else users,
            memory_bytes=memory,
        )
        self._require_sandboxed(found)
        return found

    def remarks(self) -> list[str]:
        """Returns remarks about a missing memory limit, and about the network."""
        found = super().remarks()
        if self._unlimited:
            found.append("no memory limit was set: this process may not create control groups for memory")
        return found

    def _require_sandboxed(self, found: Sandboxed) -> None:
        here = os.uname()
        if found.own_kernel == (found.kernel == here.release):
            wanted = "a kernel of its own" if found.own_kernel else here.release
            raise AttestationError(
                f"the kernel is not what was asked for: asked for {wanted}, found {found.kernel}"
            )
        # gVisor's kernel manages its own processes, so it needs no process namespace of this host.
        needed = {"mnt"} if found.own_kernel else {"mnt", "pid"}
        if missing := needed - set(found.namespaces or ()):
            raise AttestationError(
                f"the sandbox shares namespaces with the host: {', '.join(sorted(missing))}"
            )
        wanted = "overlay" if os.geteuid() == 0 else "tmpfs"
        if not found.own_kernel and found.root != wanted:
            raise AttestationError(
                f"the sandbox's root is not what was asked for: asked for {wanted}, found {found.root}"
            )
        if self.within.groups and found.memory_bytes is None:
            raise AttestationError("the sandbox is not in the control groups that it was started in")

    def _find_holder(self) -> int:
        """Returns the process that runs the sandbox's programs: the agent, or gVisor's kernel, which answers calls."""
        for pid in (*reversed(processes.list_descendants(self.pid or 0)), self.pid or 0):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                own = os.path.basename(words[0]) == find_agent_binary().name
                if self._runtime.holder in words and (own or self._runtime.own_kernel):
                    return pid
        raise AttestationError("the sandbox's process cannot be found on this host")


def _find_root_kind(mounts: str) -> str:
    kind = ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        # The last of several mounts at one place hides the others.
        if fields[1:2] == ["/"]:
            kind = fields[2]
    return kind


def _find_mechanism(kernel: int) -> str:
    """Returns how gVisor's kernel intercepts system calls, as its open files, memory and tracers show it."""
    held = {end for _, end in procfs.list_open_files(kernel)}
    if any("kvm-vcpu" in name or name == "/dev/kvm" for name in held):
        return "kvm"
    if "systrap" in procfs.read_text(procfs.PROC / str(kernel) / "maps"):
        return "systrap"
    threads = set(map(str, procfs.list_threads(kernel)))
    for pid in processes.list_descendants(kernel):
        if find_field(procfs.read_text(procfs.PROC / str(pid) / "status"), "TracerPid") in threads:
            return "ptrace"
    return "unknown"
