"""User-Mode Linux: the guest kernel is a process of the host; `hostfs` shares the host's root filesystem."""

import contextlib
import io
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from guestmark.agent.binary import agent_binary
from guestmark.agent.client import Agent
from guestmark.agent.frames import Transport
from guestmark.appliance.bzimage import release_of
from guestmark.appliance.initramfs import ModuleList, build_initramfs
from guestmark.errors import PlatformUnusableError
from guestmark.plan.model import Cell
from guestmark.platforms import drives
from guestmark.platforms.attest import attest_uml
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.guest import Guest, await_ready, stopping
from guestmark.platforms.probe import probe_by_start
from guestmark.platforms.process import SupervisedProcess
from guestmark.platforms.qemu import missing_program

UML = "linux.uml"
DEFAULTS = {"memory": "1G"}
_READY_DEADLINE_S = 30.0
_MODULE_TREES = Path("/usr/lib/uml/modules")


class UmlPlatform:
    """`uml`: one processor, no monitor; what it is must be read from inside."""

    name = "uml"

    @contextlib.contextmanager
    def start(self, cell: Cell, deadline_s: float | None = None) -> Iterator[Guest]:
        """Boots a fresh guest for `cell` and yields it once its agent answers; see `Platform.start`."""
        factors = {**DEFAULTS, **cell.factors}
        program = factors.get("kernel") or UML
        release = release_of(Path(shutil.which(program) or program))
        initramfs = build_initramfs(agent_binary(), _modules_of(program, release), ModuleList(("overlay",)))
        process = SupervisedProcess(self.name)
        # Pipes, not a socket: UML takes one byte a system call, which is cheaper from a pipe, and it loses bytes when
        # megabytes wait in a large socket buffer.
        to_guest, from_us = _pipe()
        from_guest, to_us = _pipe()
        with (
            stopping(process, to_guest.close, to_us.close, from_us.close, from_guest.close),
            drives.made_for(cell) as made,
        ):
            process.start(
                [
                    *command_line(
                        program, initramfs, factors, (to_guest.fileno(), to_us.fileno()), process.scratch
                    ),
                    *drives.uml_arguments(made, process.scratch),
                ],
                pass_fds=(to_guest.fileno(), to_us.fileno()),
            )
            to_guest.close()
            to_us.close()
            agent = Agent(Transport(from_guest.fileno(), from_us.fileno(), from_us.close))
            guest = Guest(cell, process, agent, dict, lambda g: attest_uml(g, factors, release))
            await_ready(agent, process, deadline_s or _READY_DEADLINE_S, guest.phases)
            try:
                guest.disks = drives.attached(made, agent)
                yield guest
            finally:
                agent.close()

    def probe(self, deadline_s: float | None = None) -> Usable | Unusable:
        """Boots a guest and attests it; what fails is the reason."""
        missing = missing_program(UML, "user-mode-linux")
        return missing or probe_by_start(self, deadline_s or _READY_DEADLINE_S)


def command_line(
    program: str, initramfs: Path, factors: Mapping[str, str], channel_fds: tuple[int, int], scratch: Path
) -> list[str]:
    """The command that starts the guest.

    The serial line is the agent's channel (`channel_fds`: into and out of the guest); the console goes to the output.
    """
    return [
        program,
        f"mem={factors['memory']}",
        f"initrd={initramfs}",
        f"umid={scratch.name}", f"uml_dir={scratch}",
        "con=null", "con0=null,fd:1", f"ssl0=fd:{channel_fds[0]},fd:{channel_fds[1]}", "ssl=null",
        "quiet", "panic=-1",
        "guestmark.channel=/dev/ttyS0", "guestmark.root=hostfs:/",
        *factors.get("kernel_args", "").split(),
    ]  # fmt: skip


def _pipe() -> tuple[io.FileIO, io.FileIO]:
    """Its read end and its write end, closed when they are dropped."""
    read_fd, write_fd = os.pipe()
    return io.FileIO(read_fd, "r"), io.FileIO(write_fd, "w")


def _modules_of(program: str, release: str) -> Path | None:
    """The module tree of a UML kernel, by its release; None for one of the user's own that has none."""
    tree = _MODULE_TREES / release
    if (tree / "modules.builtin").exists():
        return tree
    if program == UML:
        raise PlatformUnusableError(
            f"the modules of {program} are not in {tree}", hint="install the package user-mode-linux anew"
        )
    return None
