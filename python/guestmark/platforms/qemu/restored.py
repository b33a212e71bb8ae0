"""Guests that are restored from a saved guest, the *template*, instead of booting.

A template boots until its agent waits before mounting the root (a mounted 9p share cannot be saved), or until the
system of a disk image has booted, and is stopped there: its memory is one file, the state of its devices another. A
clone maps that memory privately, so any number of clones share it and none changes it. On its channel a clone first
receives the time and random bytes: without them all clones would draw the same random numbers. Templates are created
for one block and one command line, and removed when the block ends: clones share a layout of memory, so one template
for all blocks would make one boot look like many.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from guestmark.appliance.kernel import Kernel
from guestmark.appliance.paths import choose_scratch_parent
from guestmark.core.architectures import Architecture
from guestmark.core.errors import MachineError
from guestmark.core.keeper import keeper
from guestmark.core.machine_facts import TemplateFacts
from guestmark.core.model import Cell
from guestmark.core.units import format_size
from guestmark.platforms.process import SupervisedProcess, make_watchdog
from guestmark.platforms.qmp import Monitor
from guestmark.setting.base import format_switch, quote_qemu_value
from guestmark.setting.disk import Disks
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.machine import START, Start

_POLL_S = 0.001
_TICK_S = 0.05
_SAVE_S = 30.0
# With this capability QEMU saves only the devices, and leaves memory in a shared file where it is.
_CAPABILITY = {"capabilities": [{"capability": "x-ignore-shared", "state": True}]}
_ENTROPY_BYTES = 32
# Name of the state file's descriptor in QEMU.
_STATE_NAME = "state"
# Descriptors differ from start to start, so a template's key must not contain them.
_DESCRIPTOR = re.compile(r"\bfd=\d+")


@dataclass(slots=True)
class Template:
    """A saved guest, and the number of guests restored from it."""

    key: str
    memory: Path
    state: Path
    clones: int = 0
    made_s: float = 0.0

    @property
    def directory(self) -> Path:
        """The directory of its files, which is removed with it."""
        return self.memory.parent

    def describe_clone(self, *, generation_id: bool) -> TemplateFacts:
        """Returns the facts about the most recent clone."""
        # Only the first clone's start includes the time for the template.
        template_s = self.made_s if self.clones == 1 else 0.0
        return TemplateFacts(
            template=self.key, clone=self.clones, template_s=template_s, generation_id=generation_id
        )


@dataclass(slots=True)
class Templates:
    """The templates of this process; see the module's docstring.

    Inside `share_in_block` guests with the same command line share a template.
    """

    # Filesystems of all guests of the block. Templates load the modules of all of them, so that guests with different
    # filesystems share a template.
    filesystems: tuple[Filesystem, ...] = ()
    _sharing: bool = False
    _held: dict[str, Template] = field(default_factory=dict)

    @contextlib.contextmanager
    def share_in_block(self, cells: Iterable[Cell] = ()) -> Iterator[None]:
        """Keeps templates for one block of these cells, and removes them when it ends."""
        self._sharing = True
        used: set[Filesystem] = set()
        for cell in cells:
            if cell.levels.get(START) is Start.RESTORED:
                used |= {spec.filesystem for spec in cell.view(Disks) if spec.filesystem.maker}
        self.filesystems = tuple(sorted(used))
        try:
            yield
        finally:
            self._sharing, self.filesystems = False, ()
            for template in self._held.values():
                keeper().remove(template.directory)
            self._held.clear()

    @contextlib.contextmanager
    def take_template(self, key: str, size: int, make: Callable[[Template], None]) -> Iterator[Template]:
        """Yields the template with that key, for `size` bytes of memory; `make` fills one that does not exist yet."""
        template = self._held.get(key)
        if template is None:
            directory = keeper().directory("template", choose_scratch_parent())
            template = Template(key, directory / "memory", directory / "state")
            began = time.monotonic()
            try:
                with template.memory.open("wb") as memory:
                    memory.truncate(size)
                make(template)
            except BaseException:
                keeper().remove(directory)
                raise
            template.made_s = time.monotonic() - began
            if self._sharing:
                self._held[key] = template
        template.clones += 1
        try:
            yield template
        finally:
            if self._held.get(key) is not template and not self._sharing:
                keeper().remove(template.directory)


TEMPLATES = Templates()


def compute_template_key(command: Sequence[str], program: str) -> str:
    """Returns the key of a template: a hash of this command line and this QEMU.

    Kernel and agent are part of the command line, as their files are named by their content.
    """
    stamp = Path(program).stat()
    words = [_DESCRIPTOR.sub("fd=", word) for word in command]
    text = "\0".join([*words, program, str(stamp.st_size), str(stamp.st_mtime_ns)])
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def build_memory_arguments(template: Path, size: int, *, shared: bool) -> list[str]:
    """Returns QEMU's arguments for the guest's memory: the template's own file, or a private view of it."""
    path = quote_qemu_value(template)
    share = format_switch(shared)
    return [
        "-object", f"memory-backend-file,id=memory,size={format_size(size)},mem-path={path},share={share}",
        "-machine", "memory-backend=memory",
    ]  # fmt: skip


def drop_kernel(arguments: Sequence[str], kernel: Kernel, architecture: Architecture) -> list[str]:
    """Returns a clone's command line, without kernel and initramfs, which are in the saved memory.

    On x86 QEMU boots a kernel through an option ROM, which is part of the saved state and so has to be named. On other
    architectures the arguments are unchanged.
    """
    if not architecture.boots_by_rom:
        return list(arguments)
    rom = "pvh.bin" if kernel.elf else "linuxboot_dma.bin"
    left, words = [], iter(arguments)
    for word in words:
        if word in ("-kernel", "-initrd", "-append"):
            next(words)
        else:
            left.append(word)
    return [*left, "-option-rom", rom]


def save_template(
    process: SupervisedProcess, monitor: Monitor, channel: socket.socket, state: int, deadline_s: float
) -> None:
    """Waits until a template's agent is ready, then stops the guest and saves its devices through descriptor `state`.

    Raises `MachineError` with the console.
    """
    check, end = make_watchdog(process, "the template"), time.monotonic() + deadline_s
    while not select.select([channel], [], [], _TICK_S)[0]:
        check()
        if time.monotonic() > end:
            raise MachineError("the template was not ready in time", console=process.console.read_text())
    if not channel.recv(1):
        check()
        raise MachineError("the template ended before it was ready", console=process.console.read_text())
    monitor.execute("stop")
    monitor.execute("migrate-set-capabilities", _CAPABILITY)
    monitor.send_descriptor(_STATE_NAME, state)
    monitor.execute("migrate", {"uri": f"fd:{_STATE_NAME}"})
    end = time.monotonic() + _SAVE_S
    while (status := monitor.execute("query-migrate").get("status")) != "completed":
        if status in ("failed", "cancelled") or time.monotonic() > end:
            raise MachineError(f"the template was not saved: {status}", console=process.console.read_text())
        time.sleep(_POLL_S)


def resume_clone(
    monitor: Monitor, state: int, channel: socket.socket, deadline_s: float, *, renews: bool
) -> float | None:
    """Loads the devices through descriptor `state`, sends the clone the time and random bytes, and lets it run.

    A clone that is not to be renewed is sent neither. Returns the monotonic time at which it answered; None if it did
    not answer in time, or has ended.
    """
    monitor.execute("migrate-set-capabilities", _CAPABILITY)
    monitor.send_descriptor(_STATE_NAME, state)
    monitor.execute("migrate-incoming", {"uri": f"fd:{_STATE_NAME}"})
    end = time.monotonic() + deadline_s
    while monitor.execute("query-status")["status"] == "inmigrate":
        if time.monotonic() > end:
            return None
        time.sleep(_POLL_S)
    # Of the time 0 the agent takes no notice, nor of the bytes after it.
    now_ns = time.time_ns() if renews else 0
    channel.sendall(struct.pack("<Q", now_ns) + secrets.token_bytes(_ENTROPY_BYTES))
    monitor.execute("cont")
    if not select.select([channel], [], [], max(0.0, end - time.monotonic()))[0]:
        return None
    return time.monotonic() if channel.recv(1) else None


@contextlib.contextmanager
def open_inheritable(path: Path, flags: int) -> Iterator[int]:
    """Opens a file and yields its descriptor, which is sent to QEMU."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
