"""Builds the parts of QEMU's command line."""

import contextlib
import functools
import mmap
import shutil
from collections.abc import Sequence
from pathlib import Path

from guestmark.appliance.kernel import Kernel
from guestmark.core.architectures import Architecture
from guestmark.core.errors import PlatformUnusableError
from guestmark.core.levels import Levels
from guestmark.disks.image import Image
from guestmark.platforms import drives
from guestmark.platforms.drives import VirtioBus
from guestmark.platforms.phases import Watch
from guestmark.platforms.place import HypervisorProcess, Line, Place
from guestmark.platforms.process import SupervisedProcess
from guestmark.platforms.qemu import virtiofs
from guestmark.platforms.qemu.accelerators import Accelerator
from guestmark.platforms.qemu.boots import NINE_P, VIRTIOFS, Boot
from guestmark.platforms.qemu.disk_images import ImageBoot
from guestmark.setting.drive import Bus
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.machine import SMP, iterate_guest_levels

SHARE_TAG = "guestmark-root"
# QEMU's seccomp filter with the options that libvirt uses: no fork or exec, no change of user, no scheduling.
_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
# Ports of the channel's device: the agent's, and spare ones for those that outer guests add.
_LEAST_PORTS = 8


def build_base_arguments(
    architecture: Architecture, accelerator: Accelerator, levels: Levels, program: str
) -> list[str]:
    """Returns the command line up to the devices: QEMU, its accelerator and the options for machine factors."""
    threads = ",thread=multi" if accelerator.emulates and levels[SMP] > 1 else ""
    given: list[str] = []
    for factor, level in iterate_guest_levels(levels):
        given += factor.qemu(level, architecture)
    return [
        program, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
        "-accel", accelerator.name + threads, *given,
    ]  # fmt: skip


@functools.cache
def build_sandbox_arguments(emulator: str) -> tuple[str, ...]:
    """Returns the option by which QEMU blocks system calls that it does not need.

    Empty if QEMU or this kernel was built without seccomp.
    """
    program = shutil.which(emulator)
    with contextlib.suppress(OSError, ValueError):
        if program and "\nSeccomp:" in Path("/proc/self/status").read_text():
            # No option of QEMU shows this, and a QEMU without the library does not start with -sandbox.
            with open(program, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(b"libseccomp.so") >= 0:
                    return ("-sandbox", _SANDBOX)
    return ()


def build_console_arguments(watch: Watch | None, architecture: Architecture) -> list[str]:
    """Returns the arguments for a console on QEMU's standard output, shared with the firmware if that is watched."""
    shared = ",mux=on" if watch else ""
    arguments = ["-chardev", f"stdio,id=console,signal=off{shared}", *architecture.console_device]
    if watch:
        arguments += watch.build_qemu_arguments(architecture)
    return arguments


def build_root_arguments(
    stack: contextlib.ExitStack, process: HypervisorProcess, virtio: VirtioBus, boot: Boot
) -> list[str]:
    """Returns the arguments that share the root; starts a daemon for it if the kernel has no 9p."""
    if not boot.share:
        return []
    if boot.share == NINE_P:
        return drives.build_plan9_arguments(SHARE_TAG, boot.root, "none", virtio, read_only=True)
    if not isinstance(process, SupervisedProcess):
        raise PlatformUnusableError(
            "a nested guest mounts its root over 9p, which its kernel does not support",
            hint="use a kernel with 9p: --set kernel=FILE",
        )
    return stack.enter_context(
        virtiofs.serve_directory(process, virtiofs.choose_root_share(SHARE_TAG), virtio.bus)
    )


def build_share_arguments(
    stack: contextlib.ExitStack, process: HypervisorProcess, virtio: VirtioBus, made: Sequence[Image]
) -> list[str]:
    """Starts a virtiofsd for each host directory that is a disk; returns QEMU's arguments. Nested guests have none."""
    arguments: list[str] = []
    for image in made:
        if image.spec.filesystem is Filesystem.VIRTIOFS and isinstance(process, SupervisedProcess):
            arguments += stack.enter_context(
                virtiofs.serve_directory(process, virtiofs.describe_share(image), virtio.bus)
            )
    return arguments


def needs_shared_memory(boot: Boot | ImageBoot, made: Sequence[Image]) -> bool:
    """Returns whether processes other than QEMU serve the guest's devices, and so have to map its memory."""
    return boot.share == VIRTIOFS or any(image.spec.bus in {Bus.VHOST_USER, Bus.VIRTIOFS} for image in made)


def build_channel_arguments(line: Line, virtio: VirtioBus, ports: int) -> list[str]:
    """Returns the arguments for a device with the agent's port, and with at least `ports` ports."""
    # Port 0 is reserved for a console.
    ports = max(_LEAST_PORTS, ports + 1)
    # With one interrupt for each queue: by default the 64 queues of 31 ports share one interrupt, at which the guest
    # looks through all of them.
    vectors = f",vectors={2 * ports + 4}" if virtio.on_pci else ""
    return [
        "-device", f"{virtio.format_device('virtio-serial')},max_ports={ports}{vectors}",
        "-chardev", line.format_chardev("agent"),
        "-device", "virtserialport,chardev=agent,name=guestmark",
    ]  # fmt: skip


def build_monitor_arguments(line: Line) -> list[str]:
    """Returns the arguments for a monitor on a line."""
    return ["-chardev", line.format_chardev("monitor"), "-mon", "chardev=monitor,mode=control"]


def build_kernel_arguments(place: Place, kernel: Kernel, initramfs: Path, arguments: str) -> list[str]:
    """Returns the arguments for kernel, initramfs and kernel command line, with the files' paths in the place."""
    image = place.locate_file(Path(kernel.elf or kernel.image))
    return ["-kernel", image, "-initrd", place.locate_file(initramfs), "-append", arguments]
