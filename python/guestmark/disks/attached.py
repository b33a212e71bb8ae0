"""Mounts the disks of a running machine, and checks which options took effect."""

from __future__ import annotations

import contextlib
import errno
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from guestmark.agent.client import Agent
from guestmark.agent.results import CallError, CommandError
from guestmark.core.errors import AttestationError, MachineError
from guestmark.core.findings import Mount
from guestmark.disks import loop
from guestmark.disks.image import Image, make_images
from guestmark.setting import filesystem
from guestmark.setting.disk import DiskSpec

# Options that a kernel shows under another name, or not at all because they are the absence of something.
_ALSO_SHOWN_AS = {
    "barrier=0": ("nobarrier",),
    "barrier=1": ("barrier",),
    # 9p before Linux 6.4 shows the mode alone, later ones its bits (fs/9p/v9fs.h)
    "cache=loose": ("loose", "cache=f"),
    "cache=mmap": ("mmap", "cache=5"),
}
_ABSENCES = {
    "defaults": (),
    "rw": ("ro",),
    "async": ("sync",),
    "atime": ("noatime",),
    "diratime": ("nodiratime",),
    "dev": ("nodev",),
    "exec": ("noexec",),
    "suid": ("nosuid",),
    "barrier": ("nobarrier", "barrier=0"),
    "barrier=1": ("nobarrier", "barrier=0"),
    "cache=none": ("loose", "mmap", "fscache", "cache=1", "cache=5", "cache=f", "cache=8f"),
}
_VALUE_FILLED_IN = frozenset({"compress", "compress-force", "discard", "space_cache"})
_CONTRADICTED_BY = {"barrier=0": ("barrier", "barrier=1")}
# The kernel always shows these if they are in effect, so their absence refutes them.
_ALWAYS_SHOWN = {
    "ro",
    "sync",
    "dirsync",
    "noatime",
    "nodiratime",
    "nodev",
    "noexec",
    "nosuid",
    "lazytime",
    "relatime",
}


@dataclass(frozen=True, slots=True)
class LiveMount:
    """A mount as the guest's kernel reports it: `options` from all sources, `text` as in /proc/mounts."""

    filesystem: str
    text: str
    options: frozenset[str]


@dataclass(frozen=True, slots=True)
class OptionsVerdict:
    """Options that are certainly not in effect, and options that the kernel does not show."""

    refuted: tuple[str, ...]
    unconfirmed: tuple[str, ...]


def _is_shown_with_value(option: str, live: frozenset[str]) -> bool:
    """Return whether the kernel shows the option with a value that it filled in.

    For example, btrfs shows `compress=zstd` as `compress=zstd:3`, and `compress` or `discard` with their default value.
    """
    name, equals, _ = option.partition("=")
    if equals:
        return _shows_prefix(f"{option}:", live)
    return name in _VALUE_FILLED_IN and _shows_prefix(f"{name}=", live)


def _shows_prefix(prefix: str, live: frozenset[str]) -> bool:
    return any(setting.startswith(prefix) for setting in live)


def read_live_mount(agent: Agent, device: str, directory: str) -> LiveMount:
    """Return the live mount of `device` at `directory`. Raises `MachineError` if it is not mounted there."""
    for line in reversed(agent.read_facts().mounts.splitlines()):
        fields = line.split(" ")
        if len(fields) >= 4 and fields[1] == directory:
            shown = set(fields[3].split(","))
            break
    else:
        raise MachineError(f"{device} is not mounted at {directory}")
    # ext2 to ext4 show everything, defaults too, in a file of their own.
    try:
        more = agent.read_file(f"/proc/fs/ext4/{device.removeprefix('/dev/')}/options").decode(
            errors="replace"
        )
        shown |= set(more.split())
    except CallError:
        pass
    return LiveMount(fields[2], fields[3], frozenset(shown))


def compare_options(asked: str, shown: Iterable[str]) -> OptionsVerdict:
    """Compare options with what the kernel shows; an option that it does not show is unconfirmed.

    An option is refuted if the kernel would always show it but does not, or if it shows the opposite option or another
    value of the same one.
    """
    live = frozenset(shown)
    refuted, unconfirmed = [], []
    for option in filter(None, asked.split(",")):
        if not live.isdisjoint((option, *_ALSO_SHOWN_AS.get(option, ()))):
            continue
        if _is_shown_with_value(option, live):
            continue
        # The kernel shows nothing for a default, so only its opposite can refute it.
        if option in _ABSENCES:
            if not live.isdisjoint(_ABSENCES[option]):
                refuted.append(option)
            continue
        name, equals, _ = option.partition("=")
        other_value = equals and _shows_prefix(f"{name}=", live)
        opposite = f"no{option}" in live or (option.startswith("no") and option[2:] in live)
        contradicted = not live.isdisjoint(_CONTRADICTED_BY.get(option, ()))
        if option in _ALWAYS_SHOWN or other_value or opposite or contradicted:
            refuted.append(option)
        else:
            unconfirmed.append(option)
    return OptionsVerdict(tuple(refuted), tuple(unconfirmed))


_APPEAR_S = 15.0
_TIME_STAMP = re.compile(r"\[ *\d+\.\d+\] ")
_MOUNT_S = 120.0
_BUSY_S, _BUSY_AGAIN_S = 10.0, 0.05
_MOST_DISKS = 26  # one for each letter


@dataclass(slots=True)
class AttachedDisk:
    """One disk of a machine; `machine.disks` holds them in the order of `Disks`.

    `device` is its path in the guest (`/dev/vda`; the tag of a share), empty on the host. `directory` is where a
    formatted target is mounted; on the host it is a fresh directory of the location, which always exists. `facts`
    records how the disk was mounted.
    """

    spec: DiskSpec
    image: Image
    device: str = ""
    directory: str = ""
    facts: Mount = field(default_factory=Mount)
    # The process of this host that serves a share, unless that is the hypervisor.
    server: int | None = None

    @property
    def read_path(self) -> str:
        """The path from which a source is read: the device in a guest, the image itself on the host."""
        return self.device or str(self.image.path)

    def mount(self, agent: Agent) -> str:
        """Mount the formatted disk with its options, check that they took effect, and return the directory.

        Does nothing on the host. Raises `MachineError` with the kernel's message if the mount is refused, and
        `AttestationError` with both values if an option did not take effect.
        """
        if self.spec.loop:
            Path(self.directory).mkdir(exist_ok=True)
            self.device = loop.mount_loop(agent, self.spec, str(self.image.path), self.directory)
            self._attest_mount(agent)
            return self.directory
        if not self.device:
            return self.directory
        agent.mkdir(self.directory, parents=True)
        # A mark in the kernel's log separates the messages of this mount from earlier ones.
        about_to = f"guestmark: mounting {self.device}"
        with contextlib.suppress(CallError):
            agent.write_file("/dev/kmsg", about_to.encode())
        try:
            agent.mount(
                self.device,
                self.directory,
                self.spec.filesystem,
                self._list_mount_options(),
                timeout_s=_MOUNT_S,
            )
        except CallError as error:
            raise self._describe_refusal(error, _read_kernel_log(agent, about_to)) from error
        self._attest_mount(agent)
        return self.directory

    def umount(self, agent: Agent, *, drop_caches: bool = True) -> None:
        """Unmount the disk, so that none of its content stays in the guest's caches; on the host, only evict it.

        Without `drop_caches`, the guest's other caches and what the host has cached are kept.
        """
        if self.device:
            self._unmount_when_idle(agent)
        if not drop_caches:
            return
        # Dropping all caches of the host would slow what the next rows read there, and whatever else runs on it.
        if not self.device or self.spec.loop:
            self.evict_from_cache()
            return
        try:
            agent.drop_caches()
        except CallError as error:
            self.facts.caches = f"not dropped: {error.message}"

    def evict_from_cache(self) -> None:
        """Remove the disk's content from this host's page cache, so that what is read next comes from its disk."""
        try:
            self.image.evict_from_cache()
        except OSError as error:
            # A command may leave files on the host that this user cannot open.
            self.facts.caches = f"not dropped: {error.strerror}: {error.filename}"

    def _unmount_when_idle(self, agent: Agent) -> None:
        """Unmount once the disk is idle: a polled io_uring keeps it busy a moment longer than its process."""
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                return agent.umount(self.directory, timeout_s=_MOUNT_S)
            except CallError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
            time.sleep(_BUSY_AGAIN_S)

    def remount(self, agent: Agent) -> str:
        """Unmount and mount again, so that what is read next comes from the host's disk, on every machine."""
        self.umount(agent, drop_caches=False)
        self.evict_from_cache()
        return self.mount(agent)

    def _list_mount_options(self) -> str:
        if self.spec.is_directory:
            return filesystem.format_share_mount_options(self.spec, str(self.image.path))
        if self.spec.is_packed:
            return f"ro,{self.spec.mount_options}"
        return self.spec.mount_options

    def _describe_refusal(self, error: CallError, said: list[str]) -> MachineError:
        spec = self.spec
        shown = kernel = ""
        if spec.mount_options:
            shown = f" -o {spec.mount_options}"
        if said:
            kernel = f"; kernel log: {'; '.join(said[-3:])}"
        return MachineError(
            f"mount -t {spec.filesystem}{shown} {self.device}: {error.message.rpartition(': ')[2]}{kernel}",
            hint=f"check mount={spec.mount_options or filesystem.NO_OPTIONS} and that the guest's kernel supports "
            f"{spec.filesystem}",
            cause=error.cause,
        )

    def _attest_mount(self, agent: Agent) -> None:
        live = read_live_mount(agent, self.device, self.directory)
        if live.filesystem != self.spec.filesystem:
            raise AttestationError(
                f"the filesystem is not what was asked for: asked for {self.spec.filesystem}, found {live.filesystem}"
            )
        asked = self.spec.mount_options
        if self.spec.is_directory:
            asked = filesystem.list_attested_options(self.spec)
        verdict = compare_options(asked, live.options)
        if verdict.refuted:
            raise AttestationError(
                f"mount options did not take effect: asked for {asked}, found {live.text}"
                f" ({', '.join(verdict.refuted)})"
            )
        self.facts.options, self.facts.unconfirmed = live.text, list(verdict.unconfirmed)


@contextmanager
def attach_on_host(specs: Sequence[DiskSpec]) -> Iterator[tuple[AttachedDisk, ...]]:
    """Create the host's own disks for one trial: a fresh directory for the target, a file for the source."""
    if not specs:
        yield ()
        return
    with make_images(specs, formatted=False) as made:
        # The allocating thread writes zeroes into what was a hole when it began, also if that has been written since.
        settled = [image.finish_allocation() for image in made]
        attached = []
        for image in settled:
            attached.append(AttachedDisk(image.spec, image, directory=_choose_host_directory(image)))
        yield tuple(attached)


def _choose_host_directory(image: Image) -> str:
    """Return the host path of a target: the directory itself, or the one next to its image where that is mounted."""
    if image.spec.loop:
        return str(image.path.parent / "mounted")
    return str(image.path) if image.path.is_dir() else ""


def find_device(agent: Agent, spec: DiskSpec, index: int, serial: str = "") -> str:
    """Return the guest's path of a disk, found by its serial number, or its position on a bus without these.

    `serial` defaults to the disk's name. Raises `MachineError` when the disk has not appeared in time.
    """
    if not spec.bus.serial:
        return spec.bus.locate_device(index)
    deadline = time.monotonic() + _APPEAR_S
    # Disks may appear in another order than they were attached in, so each is asked for its serial number.
    candidates = [spec.bus.locate_device(position) for position in range(_MOST_DISKS)]
    while True:
        for device in candidates:
            if _read_serial(agent, f"/sys/block/{device.removeprefix('/dev/')}/{spec.bus.serial}") == (
                serial or spec.name
            ):
                return device
        if time.monotonic() >= deadline:
            raise MachineError(
                f"the {spec.name} disk ({spec.bus}) did not appear in the guest within {_APPEAR_S:g} s"
            )
        time.sleep(0.05)


def _read_serial(agent: Agent, path: str) -> str:
    try:
        content = agent.read_file(path, limit=256)
    except CallError:
        return ""
    if path.endswith("vpd_pg80"):
        # SPC: type, page, length
        content = content[4:]
    return content.decode(errors="replace").strip()


def _read_kernel_log(agent: Agent, mark: str) -> list[str]:
    """Return the kernel's messages after the last occurrence of `mark`, without time stamps."""
    try:
        done = agent.exec(["dmesg"], timeout_s=20, output_limit=1 << 20)
    except CommandError:
        # A root without the program has no messages to show.
        return []
    _, _, after = done.stdout.decode(errors="replace").rpartition(mark)
    return [_TIME_STAMP.sub("", line) for line in after.splitlines() if line]
