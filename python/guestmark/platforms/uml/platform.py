"""User-Mode Linux: the guest kernel is a process of the host; `hostfs` shares the host's root filesystem."""

import contextlib
import functools
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from guestmark.agent.client import Agent
from guestmark.agent.confinement import WITH_MEMORY_FILE
from guestmark.appliance.bzimage import read_release
from guestmark.appliance.initramfs import build_initramfs
from guestmark.core.architectures import find_host_architecture
from guestmark.core.cause import Cause, Speaker, classify_message
from guestmark.core.errors import MachineError, PlatformUnusableError
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import GuestMachine
from guestmark.core.model import Cell
from guestmark.core.own_program import find_agent_binary
from guestmark.core.platform_kind import Program
from guestmark.core.platform_spec import Layer
from guestmark.platforms import drives
from guestmark.platforms.affinity import take_seat
from guestmark.platforms.attest import (
    attest_disks,
    check_kernel,
    describe_inside,
    require_all_checks_pass,
    require_same,
)
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.guest import Guest, await_ready, make_mismatch, stop_on_exit
from guestmark.platforms.network.uml_link import open_uml_network
from guestmark.platforms.phases import Watch
from guestmark.platforms.place import HERE, Place
from guestmark.platforms.probe import NO_FACTORS, probe_by_start
from guestmark.platforms.qemu.platform import find_missing_program
from guestmark.setting.disk import Disks
from guestmark.setting.drive import Bus
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.machine import (
    KERNEL,
    MEMORY,
    StartedGuest,
    attest_levels,
    collect_guest_options,
    list_kernel_command_line_words,
)
from guestmark.setting.network import NETWORK, Network


def explain_start_failure(error: MachineError) -> MachineError:
    """Returns the error for a guest that did not start, with the cause if the console shows one."""
    found = classify_message(Speaker.UML, error.console)
    if found.cause is Cause.OTHER:
        return error
    return MachineError(
        f"{found.cause.words} ({found.line[:200]})",
        hint=found.cause.hint,
        cause=found.cause,
        console=error.console,
        phases=error.phases,
    )


def attest_uml(guest: Guest, levels: Levels, kernel: str) -> GuestMachine:
    """Attests the kernel's kind and release, processors and memory from inside.

    Raises `AttestationError` with both values if they differ.
    """
    inside = describe_inside(guest)
    # No other kernel reports this processor model.
    if inside.cpu != "UML":
        raise make_mismatch("the processor model", "UML", inside.cpu or inside.kernel, guest)
    require_same("the number of processors", 1, inside.processors, guest)
    check_kernel(kernel, inside, guest)
    require_all_checks_pass(attest_levels(levels, StartedGuest(inside)), guest)
    return GuestMachine(asked=dict(levels.texts), guest=inside, disks=attest_disks(guest))


UML = "linux.uml"
DEFAULTS: Mapping[str, str] = {MEMORY.name: "1G"}
LAYER = Layer("uml")
_MODULE_TREES = Path("/usr/lib/uml/modules")
# During boot the kernel benchmarks parity algorithms, which only RAID 5 and 6 need; that is two thirds of UML's boot
# time.
_PARITY_TRIALS = "initcall_blacklist=raid6_select_algo,calibrate_xor_blocks"


class UmlPlatform:
    """`uml`: one processor and no monitor, so its facts are read from inside."""

    def __init__(self, layer: Layer = LAYER) -> None:
        self.name = str(layer)

    @contextlib.contextmanager
    def start(self, cell: Cell, deadline_s: float | None = None, *, place: Place = HERE) -> Iterator[Guest]:
        """Boots a fresh guest for `cell` and yields it once its agent answers; see `Platform.start`.

        `place` is where its hypervisor runs: this host, or an outer guest.
        """
        levels = cell.levels.with_defaults(DEFAULTS)
        program = levels.get(KERNEL) or UML
        if missing := self.find_missing(levels):
            raise PlatformUnusableError(missing.reason, hint=missing.hint)
        release = read_release(Path(shutil.which(program) or program))
        initramfs = build_initramfs(
            find_agent_binary(), _find_modules(program, release), drives.list_uml_modules(cell)
        )
        watch = Watch.for_cell(cell)
        served = any(disk.bus is Bus.VHOST_USER for disk in cell.view(Disks))
        confinement = replace(
            WITH_MEMORY_FILE,
            # slirp has a Unix socket of its own.
            sockets=served or levels[NETWORK] is Network.SLIRP,
            network=levels[NETWORK] is not Network.NONE,
            packets=levels[NETWORK] in (Network.RAW, Network.HYBRID),
        )
        process = place.make_process(self.name, confinement)
        line = place.make_serial_line()
        with (
            take_seat(cell, emulator=False) as seat,
            stop_on_exit(process, line.close),
            place.prepare_disks(cell) as made,
            open_uml_network(levels, place) as link,
        ):
            command = format_command(
                program, place.locate_file(initramfs), levels, line.format_serial(), process.scratch
            )
            command += _skip_parity_trials(cell)
            command += watch.build_uml_arguments() if watch else ["quiet"]
            command += link.arguments
            command = drives.build_uml_disk_arguments(command, made, process.scratch, place)
            process.start(
                command,
                pass_fds=(*line.fds, *link.pass_fds),
                writable=drives.list_writable_paths(made),
                within=link.within,
            )
            line.close_inherited()
            agent = Agent(line.transport())
            check = functools.partial(attest_uml, levels=levels, kernel=release)
            guest = Guest(cell, process, agent, check, place=place, seat=seat)
            try:
                await_ready(agent, process, deadline_s or LAYER.description.start_limit_s, guest.phases)
            except MachineError as error:
                raise explain_start_failure(error) from error
            try:
                guest.disks = drives.find_attached_disks(made, agent)
                guest.network = link.connect(agent, process)
                yield guest
            finally:
                agent.close()

    def find_missing(self, levels: Levels) -> Unusable | None:
        """Returns a finding about what has to be installed first; None if the user gives a kernel."""
        if not find_host_architecture().user_mode_linux:
            return Unusable("there is no User-Mode Linux for this host's architecture", "use tcg")
        return None if levels.get(KERNEL) else find_missing_program(Program(UML, "user-mode-linux"))

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] = NO_FACTORS
    ) -> Usable | Unusable:
        """Boots a guest and attests it; if that fails, the error is the reason."""
        return self.find_missing(Levels(factors)) or probe_by_start(
            self, deadline_s or LAYER.description.start_limit_s, factors=factors
        )


def format_command(program: str, initramfs: str, levels: Levels, serial: str, scratch: Path) -> list[str]:
    """Returns the command that starts the guest.

    The serial line is the agent's channel (`serial`, as UML names it); the console goes to the output.
    """
    return [
        program,
        *collect_guest_options(levels, lambda factor: factor.uml),
        f"initrd={initramfs}",
        f"umid={scratch.name}", f"uml_dir={scratch}",
        "con=null", "con0=null,fd:1", f"ssl0={serial}", "ssl=null",
        "panic=-1",
        "guestmark.channel=/dev/ttyS0", "guestmark.root=hostfs:/",
        *list_kernel_command_line_words(levels),
    ]  # fmt: skip


def _skip_parity_trials(cell: Cell) -> list[str]:
    """Returns kernel arguments that skip benchmarks of parity algorithms, which shortens the start.

    Empty if btrfs may need parity, or if the cell has its own `initcall_blacklist`.
    """
    for word in list_kernel_command_line_words(cell.levels):
        if word.startswith("initcall_blacklist="):
            return []
    for disk in cell.view(Disks):
        if disk.filesystem is Filesystem.BTRFS:
            return []
    return [_PARITY_TRIALS]


def _find_modules(program: str, release: str) -> Path | None:
    """Returns the module tree of a UML kernel with that release; None for a user's kernel without modules."""
    tree = _MODULE_TREES / release
    if (tree / "modules.builtin").exists():
        return tree
    if program == UML:
        raise PlatformUnusableError(
            f"the modules of {program} are not in {tree}", hint="reinstall the package user-mode-linux"
        )
    return None
