"""`user@ARCH`: no machine is booted; programs run from a root of the architecture, each emulated on this host's kernel.

The agent is this host's own. It is started in the architecture's root, in a user and a mount namespace, so it needs no
privileges and cannot change this host. In the namespace, binfmt_misc (since Linux 6.7 each user namespace has its own)
makes the kernel start the emulator for every program of the architecture, including children of programs. On older
kernels the agent starts the emulator itself, but only for the first program: programs that this one starts fail. They
never fall back to this host's programs, which are not in that root.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from guestmark.agent.client import Agent
from guestmark.agent.frames import Transport
from guestmark.agent.results import CommandError, ExecResult
from guestmark.appliance.paths import choose_scratch_parent
from guestmark.core.architectures import Architecture
from guestmark.core.errors import AttestationError, MachineError, PlatformUnusableError
from guestmark.core.keeper import keeper
from guestmark.core.machine_facts import EmulatedPrograms
from guestmark.core.model import Cell
from guestmark.core.platform_spec import Layer
from guestmark.core.user_namespaces import explain_how_to_allow
from guestmark.core.workload_kind import find_packages
from guestmark.foreign import commands, parts
from guestmark.foreign.progress import Progress
from guestmark.platforms.affinity import Seat
from guestmark.platforms.host_like import Host, HostLike, Surroundings
from guestmark.setting.disk import DiskSpec

# The directory with agent and emulator in the root.
INSIDE = "/run/guestmark"
_PT_INTERP = 3
_PACKAGE = "qemu-user-static"
_KNOWN_BY = "usr/bin/true"
_NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private")
# Puts a layer in memory over the root, adds this host's /proc, /dev and /sys and the two programs, then executes the
# agent.
_SETUP = f"""
set -e
m=$1 root=$2 emulator=$3 format=$4 agent=$5; shift 5
mount -t tmpfs -o mode=755 guestmark "$m"
mkdir "$m/upper" "$m/work" "$m/root"
mount -t overlay -o "lowerdir=$root,upperdir=$m/upper,workdir=$m/work" overlay "$m/root"
for each in proc dev sys; do mount --rbind "/$each" "$m/root/$each"; done
mount -t tmpfs -o mode=755 run "$m/root/run"
mkdir "$m/root{INSIDE}"
for each in agent emulator; do touch "$m/root{INSIDE}/$each"; done
mount --bind "$agent" "$m/root{INSIDE}/agent"
mount --bind "$emulator" "$m/root{INSIDE}/emulator"
if mount -t binfmt_misc none "$m/root/proc/sys/fs/binfmt_misc" 2>/dev/null; then
    printf '%s' ":guestmark:M::$format:$m/root{INSIDE}/emulator:PF" >"$m/root/proc/sys/fs/binfmt_misc/register" || :
fi
exec chroot "$m/root" {INSIDE}/agent "$@"
"""


def format_command(scratch: Path, root: Path, program: str) -> list[str]:
    """Returns a command prefix that executes an agent in a root whose programs `program` emulates.

    It needs no privileges. `scratch` is an empty directory for private mounts.
    """
    return [
        *_NAMESPACES, "sh", "-c", _SETUP, "guestmark-user",
        str(scratch), str(root), program, format_binary_magic(root / _KNOWN_BY),
    ]  # fmt: skip


def format_binary_magic(example: Path) -> str:
    """Returns the magic number and mask by which the kernel recognizes programs of the same architecture.

    See Documentation/admin-guide/binfmt-misc.rst.
    """
    with example.open("rb") as stream:
        head = stream.read(20)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        raise MachineError(f"{example} is not a program")
    mask = bytearray(b"\xff" * 20)
    # EI_OSABI, EI_ABIVERSION and padding differ between programs of one architecture.
    mask[7:16] = bytes(9)
    # The file type, ET_EXEC (2) or ET_DYN (3), differs in its lowest bit; its byte depends on the byte order.
    low = 16 if head[5] == 1 else 17
    mask[low] = 0xFE
    return f"{_escape_bytes(head)}:{_escape_bytes(mask)}"


def _escape_bytes(content: bytes | bytearray) -> str:
    return "".join(f"\\x{byte:02x}" for byte in content)


def is_static(program: str) -> bool:
    """Returns whether an ELF program is static: it needs no interpreter, and hence no libraries."""
    data = Path(program).read_bytes()
    if data[:4] != b"\x7fELF" or data[4] != 2:
        return False
    return _PT_INTERP not in _iterate_segment_types(data)


def _iterate_segment_types(data: bytes) -> Iterator[int]:
    order = "<" if data[5] == 1 else ">"
    (start,) = struct.unpack_from(f"{order}Q", data, 32)
    size, number = struct.unpack_from(f"{order}HH", data, 54)
    for index in range(number):
        yield struct.unpack_from(f"{order}I", data, start + index * size)[0]


_SETUP_S = 30.0
_TRIED = "/bin/true"
_BY_KERNEL, _BY_AGENT = "every program", "the first program"


class UserPlatform(HostLike):
    """Runs programs of another architecture by emulation, without a machine around them."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        self.architecture = layer.architecture
        if not layer.is_foreign:
            raise PlatformUnusableError(
                f"this host runs {self.architecture.name} programs itself",
                hint="use the platform host",
            )
        if not self.architecture.user_emulator or not self.architecture.root:
            raise PlatformUnusableError(
                f"there are no packages for {self.architecture.name} that could provide programs",
                hint=f"use tcg@{self.architecture.name}, which runs the agent's own workloads",
            )

    def check_cell(self, cell: Cell, disks: Sequence[DiskSpec]) -> None:
        """Raises `PlatformUnusableError` for a cell with disks."""
        if disks:
            raise PlatformUnusableError(
                f"{self.name} has no disks: its programs use this host's filesystems",
                hint="measure disks on host",
            )

    @contextlib.contextmanager
    def enter_surroundings(self, cell: Cell, disks: Sequence[DiskSpec]) -> Iterator[Surroundings]:
        """Yields namespaces in which the agent has the architecture's root, and the root's programs are emulated."""
        program = self._find_emulator()
        root = parts.get_root(self.architecture, find_packages(cell))
        scratch = keeper().directory("user", choose_scratch_parent())
        try:
            yield Surroundings(format_command(scratch, root.path, program))
        finally:
            keeper().remove(scratch)

    def make_agent(self, transport: Transport) -> TranslatingAgent:
        """Returns the client of an agent that runs programs in the emulator."""
        return TranslatingAgent(transport)

    def make_machine(self, agent: Agent, command: tuple[str, ...], seat: Seat, pid: int) -> EmulatedHost:
        """Returns the machine, after testing whether the kernel or the agent starts the emulator."""
        assert isinstance(agent, TranslatingAgent)
        agent.translates = not _can_kernel_run_foreign_programs(agent)
        covers = _BY_AGENT if agent.translates else _BY_KERNEL
        return EmulatedHost(agent, command, seat=seat, pid=pid, row=self.architecture, covers=covers)

    def explain_silence(self, error: MachineError, within: Surroundings) -> MachineError:
        """Returns the error for namespaces that are not available."""
        return MachineError(
            f"the root for {self.architecture.name} cannot be entered: {error.message}",
            hint=explain_how_to_allow() or "this needs user and mount namespaces that allow overlay mounts",
            cause=error.cause,
        )

    def make_parts(self, packages: Sequence[str], progress: Progress) -> None:
        """Installs the emulator and builds the root if they are missing. Raises `GuestmarkError`."""
        try:
            self._find_emulator()
        except PlatformUnusableError:
            if not commands.install_packages([_PACKAGE], progress):
                raise
            self._find_emulator()
        parts.get_root(self.architecture, packages, progress)

    def _find_emulator(self) -> str:
        name = self.architecture.user_emulator
        for program in (f"{name}-static", name):
            found = shutil.which(program)
            if found and is_static(found):
                return found
        raise PlatformUnusableError(
            f"{name}-static is not installed (a dynamically linked emulator cannot be used in another root)",
            hint=f"install the package {_PACKAGE}",
        )


class EmulatedHost(Host):
    """This host as programs of another architecture see it."""

    def __init__(self, *arguments: Any, row: Architecture, covers: str, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._row, self._covers = row, covers

    def attest(self) -> EmulatedPrograms:
        """Returns this host's kernel and the architecture that programs see.

        Raises `AttestationError` if programs see another architecture.
        """
        here = super().attest()
        machine_name = (
            self.agent.exec(["uname", "-m"], timeout_s=_SETUP_S).stdout.decode(errors="replace").strip()
        )
        if machine_name != self._row.machine_name:
            raise AttestationError(
                f"programs are not emulated: asked for {self._row.machine_name}, "
                f"but uname -m prints {machine_name!r}"
            )
        return EmulatedPrograms(
            kernel=here.kernel,
            arch=here.arch,
            boot_id=here.boot_id,
            processors=here.processors,
            placement=here.placement,
            programs_arch=machine_name,
            emulated=self._covers,
        )


class TranslatingAgent(Agent):
    """An agent that starts the emulator for a program itself, if the kernel does not do so.

    Then programs that the program starts fail.
    """

    # True if the kernel does not start the emulator.
    translates = False

    def exec(self, argv: Sequence[str | bytes], **how: Any) -> ExecResult:
        """Runs a program like `Agent.exec`, through the emulator if the kernel does not start that."""
        if not self.translates:
            return super().exec(argv, **how)
        env, cwd = how.get("env") or {}, how.get("cwd")
        name = argv[0] if isinstance(argv[0], str) else argv[0].decode(errors="surrogateescape")
        program = self.which(name, path=env.get("PATH"), cwd=cwd)
        return super().exec([f"{INSIDE}/emulator", "-0", name, program, *argv[1:]], **how)


def _can_kernel_run_foreign_programs(agent: Agent) -> bool:
    """Returns whether the kernel runs programs of this architecture by itself (binfmt_misc)."""
    try:
        return agent.exec([_TRIED], timeout_s=_SETUP_S).status == 0
    except CommandError:
        return False
