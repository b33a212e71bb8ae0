"""The end of a network boot: iPXE fetches a kernel and its initramfs and hands over, and the kernel's agent answers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from guestmark.agent.client import Agent
from guestmark.appliance.initramfs import ModuleList, build_initramfs
from guestmark.appliance.kernel import find_kernel
from guestmark.core.architectures import X86_64
from guestmark.core.own_program import find_agent_binary
from guestmark.platforms.drives import VirtioBus
from guestmark.platforms.guest import await_ready
from guestmark.platforms.place import HERE, HypervisorProcess, Line
from guestmark.platforms.qemu.boots import rank_kernel

KERNEL, INITRAMFS = "kernel", "initrd"  # file names on the server
_PORTS = 2  # the first is for consoles only


@dataclass(frozen=True, slots=True)
class BootedKernel:
    """The kernel that iPXE boots: the distribution's, and an initramfs that holds only the agent."""

    image: Path
    initramfs: Path
    release: str
    arguments: str
    line: Line  # the agent's channel
    device: str

    @classmethod
    def find_kernel(cls, machine_type: str) -> BootedKernel:
        """Returns the kernel that other guests also boot here. Raises `GuestmarkError` if there is none."""
        virtio = VirtioBus.for_machine(X86_64, machine_type)
        kernel = find_kernel(rank=rank_kernel)
        modules = ModuleList((*virtio.modules, "virtio_console"))
        initramfs = build_initramfs(find_agent_binary(), kernel.modules, modules)
        arguments = (
            f"initrd={INITRAMFS} console={X86_64.console} quiet panic=-1 guestmark.channel=virtio:guestmark "
            "guestmark.root=none"
        )
        device = f"{virtio.format_device('virtio-serial')},max_ports={_PORTS}"
        return cls(kernel.image, initramfs, kernel.release, arguments, HERE.make_line("agent"), device)

    @property
    def files(self) -> dict[str, Path]:
        """Files that the server offers in addition to the numbered ones, by name."""
        return {KERNEL: self.image, INITRAMFS: self.initramfs}

    @property
    def size(self) -> int:
        """The total size of both files in bytes."""
        return sum(path.stat().st_size for path in self.files.values())

    def qemu_arguments(self) -> list[str]:
        """Returns QEMU's options for the agent's channel."""
        return [
            "-device", self.device, "-chardev", self.line.format_chardev("agent"),
            "-device", "virtserialport,chardev=agent,name=guestmark",
        ]  # fmt: skip


def wait_for_answer(process: HypervisorProcess, kernel: BootedKernel, limit_s: float) -> float:
    """Returns the seconds from the call, when iPXE may continue, until the kernel's agent answers.

    Raises `MachineError` with the console if it does not answer.
    """
    agent = Agent(kernel.line.transport())
    begin = time.monotonic()
    phases: dict[str, float] = {}
    try:
        await_ready(agent, process, limit_s, phases)
        return time.monotonic() - begin
    finally:
        agent.close()
