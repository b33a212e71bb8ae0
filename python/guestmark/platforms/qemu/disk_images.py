"""A user's own disk image as a guest, with the image's boot loader, kernel and system, and the agent in it.

The image itself is never written to. libguestfs puts the agent, and a service that starts it, into an overlay, once for
each image; the overlay is kept in the cache. Where libguestfs cannot, the image is booted once, and the image's own
guest agent or sshd lets the agent in (`image_login`). Without libguestfs the agent is on a second disk, a seed for
cloud-init's data source NoCloud, if this host can make one, and the image must have cloud-init. Each guest writes to a
separate overlay.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import shutil
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from guestmark.appliance.kernel import Notify
from guestmark.appliance.paths import compute_file_identity, locate_cache
from guestmark.core.architectures import Architecture, find_architecture
from guestmark.core.architectures import Bus as MachineBus
from guestmark.core.context import Caller
from guestmark.core.distribution import read_pretty_name
from guestmark.core.errors import MachineError, PlatformUnusableError, UsageError
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import DiskImage, ImageEntry, ImageFirmware
from guestmark.core.own_program import find_agent_binary
from guestmark.core.temporary import replace_file, scratch_directory
from guestmark.foreign import parts
from guestmark.page.text import last_inert_line, make_inert
from guestmark.platforms import libguestfs
from guestmark.platforms.drives import VirtioBus
from guestmark.platforms.guest import Guest
from guestmark.platforms.login import read_caller
from guestmark.platforms.phases import FIRST_LINE, SETTLED
from guestmark.platforms.phases import KERNEL as KERNEL_DONE
from guestmark.platforms.phases import ROOT as ROOT_DONE
from guestmark.platforms.place import Place
from guestmark.platforms.qemu.firmware import build_flash_arguments, find_uefi
from guestmark.platforms.qemu.image_login import UPLOADED_AGENT, NoLoginError, install_by_login
from guestmark.setting.base import quote_qemu_value
from guestmark.setting.machine import IMAGE, KERNEL, KERNEL_ARGS, MODULES, ROOTFS, START, Start

# Booting a complete system under TCG on a busy host takes minutes.
START_LIMIT_S = 300.0
NODE = "guestmark-image"
_AGENT = "/usr/local/bin/guestmark-agent"
_PORT = "virtio:guestmark"
_UNIT = "/etc/systemd/system/guestmark.service"
# Programs that create cloud-init's seed.
_SEED_PROGRAMS = ("mkfs.vfat", "mcopy")
_MEBIBYTE = 1 << 20
_INSPECT_S = 600.0
_CREATE_S = 60.0
_SETTLE_S = 120.0
_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,9})?", re.ASCII)
_SECTOR = 512
# Sectors of the boot record, the header of a GUID partition table, and its 128 entries.
_HEAD_SECTORS = 34
_BOOT_CODE = slice(0, 440)
_EFI_SYSTEM_TYPE = 0xEF
# The type of an EFI system partition in a GUID partition table (UEFI specification 2.10, table 5.7), as stored.
_EFI_SYSTEM_GUID = bytes.fromhex("28732ac11ff8d211ba4b00a0c93ec93b")
# An image has at least one of these that is not a link, as libguestfs does not follow links.
_PROGRAMS = ("/usr/bin/bash", "/bin/bash", "/bin/busybox", "/usr/bin/coreutils", "/usr/bin/env")
# The service of the agent in a guest that is saved: the machine stands still once the whole system has booted.
_SERVE = f"{_AGENT} serve --channel {_PORT}"
_SERVE_TEMPLATE = (
    "/bin/sh -c 'command -v systemctl > /dev/null && systemctl is-system-running --wait > /dev/null; "
    f"exec {_SERVE} --template'"
)


@dataclass(frozen=True, slots=True)
class _Installation:
    """The files that start the agent in an image's system by the command `serve`."""

    serve: str

    @property
    def systemd_unit(self) -> str:
        """systemd's unit."""
        return f"""\
[Unit]
Description=guestmark's agent
[Service]
ExecStart={self.serve}
[Install]
WantedBy=multi-user.target
"""

    @property
    def user_data(self) -> str:
        """The commands that cloud-init runs early in a boot, before the network is up."""
        return f"""\
#cloud-config
bootcmd:
- |
  mkdir -p /run/guestmark
  mount -o ro LABEL=cidata /run/guestmark
  install -m 0755 /run/guestmark/agent {_AGENT}
  umount /run/guestmark
  cat >{_UNIT} <<'END'
{textwrap.indent(self.systemd_unit, "  ")}  END
  systemctl daemon-reload
  systemctl start --no-block guestmark.service
"""

    @property
    def init_script(self) -> str:
        """The script of a System V init, which OpenRC's local.d runs, too."""
        return f"""\
#!/bin/sh
### BEGIN INIT INFO
# Provides: guestmark
# Required-Start: $local_fs
# Required-Stop:
# Default-Start: 2 3 4 5
# Default-Stop:
# Short-Description: guestmark's agent
### END INIT INFO
[ "${{1:-start}}" != start ] || {self.serve} &
"""

    @property
    def install_script(self) -> str:
        """The commands that install the agent where it has been uploaded, as libguestfs does."""
        return f"""\
set -e
mkdir -p /usr/local/bin
mv -f {UPLOADED_AGENT} {_AGENT}
chmod 0755 {_AGENT}
if command -v systemctl > /dev/null; then
cat > {_UNIT} <<'END'
{self.systemd_unit}END
systemctl enable guestmark.service
else
if [ -d /etc/local.d ]; then script=/etc/local.d/guestmark.start; else script=/etc/init.d/guestmark; fi
cat > "$script" <<'END'
{self.init_script}END
chmod 0755 "$script"
if [ -d /etc/local.d ]; then ln -sf /etc/init.d/local /etc/runlevels/default/local
else for level in 2 3 4 5; do ln -sf ../init.d/guestmark /etc/rc$level.d/S99guestmark; done; fi
fi
if command -v restorecon > /dev/null; then restorecon {_AGENT} || true; fi
sync
"""


# Prints systemd's timestamps in microseconds, and the seconds at which the kernel executed the initrd's /init.
_BOOT_TIMES = r"""
systemctl show --property=InitRDTimestampMonotonic --property=UserspaceTimestampMonotonic
dmesg | sed -n 's/^\[ *\([0-9.]*\)\] Run \/init as init process.*/init=\1/p' | head -n 1
"""


@dataclass(frozen=True, slots=True)
class ImageBoot:
    """A prepared image: `overlay` contains the agent and has the user's file as its backing file."""

    overlay: Path
    image: DiskImage
    architecture: Architecture
    # The disk from which cloud-init installs the agent; None if the overlay contains it.
    seed: Path | None = None
    # Empty: the host's root is not shared with the guest.
    share: str = ""

    def make_arguments(self, place: Place, directory: Path, virtio: VirtioBus) -> list[str]:
        """Return the arguments that boot from the files in a directory; see `create_files`.

        Raises `PlatformUnusableError` if the firmware is missing.
        """
        disk, variables = self.list_files(directory)
        arguments = [
            "-blockdev", f"driver=qcow2,node-name={NODE},file.driver=file,file.filename={quote_qemu_value(disk)}",
            "-device", f"{virtio.format_device('virtio-blk')},drive={NODE},bootindex=0",
        ]  # fmt: skip
        if self.seed is not None:
            seed = quote_qemu_value(place.locate_file(self.seed))
            arguments += [
                "-drive", f"file={seed},format=raw,if=none,id={NODE}-seed,readonly=on",
                "-device", f"{virtio.format_device('virtio-blk')},drive={NODE}-seed",
            ]  # fmt: skip
        if self._has_uefi:
            code, _ = find_uefi(self.architecture)
            arguments += build_flash_arguments(place.locate_file(Path(code)), variables)
        return arguments

    def list_files(self, directory: Path) -> tuple[Path, Path]:
        """Return the guest's own overlay and UEFI's variables."""
        return directory / "image.qcow2", directory / "variables.fd"

    def create_files(self, place: Place, directory: Path, saved: Path | None = None) -> None:
        """Create a guest's own overlay, and UEFI's variables, in a directory.

        They begin with those of a saved guest in the directory `saved`, if there is one. Raises `MachineError`.
        """
        disk, variables = self.list_files(directory)
        if saved is not None:
            base, first = map(str, self.list_files(saved))
        else:
            base, first = place.locate_file(self.overlay), ""
        _run_in_place(place, _create_command(base, disk))
        if self._has_uefi:
            first = first or place.locate_file(Path(find_uefi(self.architecture)[1]))
            _run_in_place(place, ["cp", first, str(variables)])

    @property
    def _has_uefi(self) -> bool:
        return self.image.firmware is ImageFirmware.UEFI


@dataclass(slots=True)
class ImageGuest(Guest):
    """A guest that boots the system of a disk image."""

    _caller: Caller | None = None

    @property
    def scratch(self) -> str:
        """A directory in the guest's overlay, which is removed with the guest."""
        return "/var/tmp"

    def await_settled(self) -> None:
        """Wait until systemd has finished the boot, so that measured commands do not compete with it.

        On other systems this returns at once; there the agent is among the last programs to start.
        """
        command = "command -v systemctl >/dev/null || exit 0; exec systemctl is-system-running --wait"
        done = self.agent.exec(["/bin/sh", "-c", command], timeout_s=_SETTLE_S, question=True)
        if done.timed_out:
            raise MachineError(
                f"the image's boot did not end within {_SETTLE_S:g} s",
                hint="see what its services wait for, for instance a network: systemctl list-jobs",
                console=self.console(),
            )
        self.phases[SETTLED] = time.monotonic() - self.started_at
        if self.restored is None:
            self._add_boot_phases()

    def _add_boot_phases(self) -> None:
        """Add phases for the image's kernel, initrd and systemd, converted from the guest's clock to the host's."""
        ping = self.agent.ping()
        # The guest's monotonic clock starts with its kernel.
        kernel_s = (ping.host_ns - ping.guest_ns) / 1e9 - self.started_at
        done = self.agent.exec(["/bin/sh", "-c", _BOOT_TIMES], timeout_s=20.0, question=True)
        lines = done.stdout.decode(errors="replace").splitlines()
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        userspace_s = _read_number(found, "UserspaceTimestampMonotonic") / 1e6
        # systemd has no timestamp for an initrd without systemd; the kernel's log shows when its /init was executed.
        initrd_s = _read_number(found, "InitRDTimestampMonotonic") / 1e6 or _read_number(found, "init")
        if userspace_s:
            self.phases[FIRST_LINE] = kernel_s
            self.phases[KERNEL_DONE] = kernel_s + (initrd_s or userspace_s)
            self.phases[ROOT_DONE] = kernel_s + userspace_s

    def find_distribution(self) -> str:
        """Return the name of the image's distribution from its os-release; empty if there is none."""
        done = self.agent.exec(["cat", "/etc/os-release"], timeout_s=20.0, question=True)
        return make_inert(read_pretty_name(done.stdout.decode(errors="replace")))[:80]

    def caller(self) -> Caller:
        """Return the guest's root user, with the environment of its services."""
        if self._caller is None:
            self._caller = read_caller(self.agent, home="/root")
        return self._caller


def _read_number(found: Mapping[str, str], name: str) -> float:
    """Return the number that the guest printed under this name, or 0 if what it printed is no number."""
    text = found.get(name, "").strip()
    return float(text) if _NUMBER.fullmatch(text) else 0.0


def find_image_boot(
    architecture: Architecture, accelerator: str, levels: Levels, virtio: VirtioBus, notify: Notify
) -> ImageBoot:
    """Return the boot of the level `image`; the image is prepared if it is new or has changed.

    Raises `PlatformUnusableError` for an image that cannot take the agent, and for levels that contradict the image.
    """
    for factor in (KERNEL, KERNEL_ARGS, MODULES, ROOTFS):
        if levels.get(factor):
            raise PlatformUnusableError(
                f"an image boots its own kernel and root, which {factor.name} cannot change",
                hint=f"leave out image or {factor.name}",
            )
    if architecture.uefi is None and not architecture.boots_disks:
        raise PlatformUnusableError(
            f"no firmware for {architecture.name} machines boots a disk here",
            hint="leave out image: such guests boot a kernel directly",
        )
    if virtio.bus is MachineBus.MMIO:
        raise PlatformUnusableError(
            "a machine without PCI has no firmware that boots a disk", hint="leave out machine"
        )
    path = Path(levels[IMAGE])
    serve = _SERVE_TEMPLATE if levels[START] is Start.RESTORED else _SERVE
    agent = find_agent_binary() if architecture.is_host else parts.get_agent(architecture)
    key = hashlib.sha256(
        repr(
            [
                *map(compute_file_identity, (*list_backing_files(path), agent)),
                *(str(path), architecture.name, serve),
            ]
        ).encode()
    ).hexdigest()[:24]
    entry = _choose_entry()
    overlay = locate_cache() / "images" / f"{key}-{entry.name.lower()}.qcow2"
    facts = overlay.with_suffix(".json")
    seed = overlay.with_suffix(".seed") if entry is ImageEntry.SEED else None
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        if overlay.exists():
            image = msgspec.json.decode(facts.read_bytes(), type=DiskImage)
            return ImageBoot(overlay, image, architecture, seed)
    notify(f"preparing an overlay of {path.name}")
    overlay.parent.mkdir(exist_ok=True)
    if seed is not None:
        with replace_file(seed, 0o600) as part:
            _make_seed(part, agent, _Installation(serve))
    with replace_file(overlay, 0o600) as part:
        image = _make_overlay(path, part, entry, architecture)
        if entry is not ImageEntry.SEED:
            image = _enter_overlay(
                path,
                part,
                image,
                agent,
                _Installation(serve),
                architecture=architecture,
                accelerator=accelerator,
                notify=notify,
            )
        with replace_file(facts) as written:
            written.write_bytes(msgspec.json.encode(image))
    return ImageBoot(overlay, image, architecture, seed)


def _choose_entry() -> ImageEntry:
    """Return how to put the agent into an image: the first way for which this host has the programs."""
    if shutil.which(libguestfs.GUESTFISH):
        return ImageEntry.OVERLAY
    if all(map(shutil.which, _SEED_PROGRAMS)):
        return ImageEntry.SEED
    return ImageEntry.GUEST_AGENT


def _enter_overlay(
    path: Path,
    overlay: Path,
    image: DiskImage,
    agent: Path,
    files: _Installation,
    *,
    architecture: Architecture,
    accelerator: str,
    notify: Notify,
) -> DiskImage:
    """Put the agent into the overlay of an image; return the image's facts with the way in.

    Raises `PlatformUnusableError` with all that was tried.
    """
    tried = "guestfish is not installed"
    if image.entered is ImageEntry.OVERLAY:
        try:
            _check_architecture(path, _inject_agent(overlay, agent, files, accelerator), architecture)
        except _NoSystemError as error:
            tried = error.message
        else:
            return image
    notify(f"booting {path.name} once, to be let in by its guest agent or sshd")
    try:
        entry = install_by_login(
            overlay,
            image.firmware,
            agent,
            files.install_script,
            architecture=architecture,
            accelerator=accelerator,
        )
    except NoLoginError as error:
        raise PlatformUnusableError(
            f"the agent cannot be put into {path.name}: {tried}; {error.message}",
            hint="the image needs a Linux system on an unencrypted filesystem, QEMU's guest agent, "
            "or an sshd that takes your key for root; the file itself is never modified",
            cause=error.cause,
        ) from error
    return msgspec.structs.replace(image, entered=entry)


def _create_command(backing: str, overlay: Path, backing_format: str = "qcow2") -> list[str]:
    return ["qemu-img", "create", "-q", "-f", "qcow2", "-F", backing_format, "-b", backing, str(overlay)]


def _run_in_place(place: Place, command: Sequence[str]) -> None:
    """Run a short program where the hypervisor will run. Raises `MachineError` if it prints anything."""
    helper = place.start_helper(command)
    deadline = time.monotonic() + _CREATE_S
    while helper.is_running() and time.monotonic() < deadline:
        time.sleep(0.002)
    said = helper.end_by_signal(signal.SIGKILL, 1.0)
    if said.strip():
        raise MachineError(f"{command[0]} failed: {last_inert_line(said)}")


class _NoSystemError(PlatformUnusableError):
    """libguestfs cannot put the agent into the image."""


@dataclass(frozen=True, slots=True)
class _Description:
    """The report of `qemu-img info` about an image."""

    format: str
    size: int


def _describe_image(path: Path) -> _Description:
    """Query qemu-img about an image. Raises `PlatformUnusableError` if it is unreadable, unknown or encrypted."""
    if shutil.which("qemu-img") is None:
        raise PlatformUnusableError("qemu-img is not installed", hint="install the package qemu-utils")
    done = subprocess.run(
        ["qemu-img", "info", "-U", "--output=json", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PlatformUnusableError(
            f"{path.name} cannot be read as a disk image: {last_inert_line(done.stderr)}",
            hint="use qcow2, raw, vmdk, vhdx or any other format that `qemu-img info` knows",
        )
    found = msgspec.json.decode(done.stdout)
    if found.get("encrypted"):
        raise PlatformUnusableError(
            f"{path.name} is encrypted, so the agent cannot be put into it", hint="use a decrypted copy"
        )
    return _Description(str(found["format"]), int(found["virtual-size"]))


def choose_firmware(head: bytes, architecture: Architecture) -> ImageFirmware | None:
    """Return the firmware that can boot a disk with these first sectors; None if none can.

    A disk that both can boot is booted by BIOS, the default of QEMU and most clouds.
    """
    if architecture.uefi is None:
        return ImageFirmware.EMULATOR
    if (
        architecture.boots_disks
        and len(head) >= _SECTOR
        and head[510:512] == b"\x55\xaa"
        and any(head[_BOOT_CODE])
    ):
        return ImageFirmware.BIOS
    types = []
    if len(head) >= _SECTOR:
        types = [head[446 + 16 * number + 4] for number in range(4)]
    entries = head[2 * _SECTOR :]
    guids = {entries[offset : offset + 16] for offset in range(0, len(entries), 128)}
    if _EFI_SYSTEM_TYPE in types or _EFI_SYSTEM_GUID in guids:
        return ImageFirmware.UEFI
    return None


@functools.cache
def list_backing_files(path: Path) -> tuple[Path, ...]:
    """Return an image and all files below it, on which its content depends; only the image if they cannot be read."""
    if shutil.which("qemu-img") is None:
        return (path,)
    done = subprocess.run(
        ["qemu-img", "info", "-U", "--backing-chain", "--output=json", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        return (path,)
    files = [Path(each["filename"]) for each in msgspec.json.decode(done.stdout)]
    return (path, *(file for file in files[1:] if file.is_file()))


def _make_overlay(path: Path, overlay: Path, entry: ImageEntry, architecture: Architecture) -> DiskImage:
    """Create an overlay of an image; return facts about the image. Raises `PlatformUnusableError` if it cannot boot."""
    described = _describe_image(path)
    firmware = _find_firmware(path, architecture)
    command = _create_command(str(path), overlay, described.format)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PlatformUnusableError(
            f"an overlay of {path.name} cannot be created: {last_inert_line(done.stderr)}"
        )
    digest = hashlib.sha256()
    for file in list_backing_files(path):
        with file.open("rb") as content:
            hashlib.file_digest(content, lambda: digest)
    return DiskImage(
        path=str(path),
        sha256=digest.hexdigest(),
        format=described.format,
        size=described.size,
        firmware=firmware,
        entered=entry,
    )


def _check_architecture(path: Path, said: str, architecture: Architecture) -> None:
    # Lines that are not the name of an architecture are errors about missing programs.
    named = [line for line in said.splitlines() if line.replace("_", "").isalnum()]
    if named and named[0] != architecture.machine_name:
        raise PlatformUnusableError(
            f"{path.name} contains a system for {named[0]}, but the machine is {architecture.machine_name}",
            hint=_name_other_platform(named[0]),
        )


def _name_other_platform(machine_name: str) -> str:
    """Return the remedy for an image of another architecture."""
    with contextlib.suppress(UsageError):
        row = find_architecture(machine_name)
        if row.is_host:
            return "use --on tcg, or another image"
        return f"use --on tcg@{row.name}, or another image"
    return "use an image for the machine's architecture"


def _make_seed(target: Path, agent: Path, files: _Installation) -> None:
    """Create the filesystem with cloud-init's configuration and the agent that it installs."""
    with scratch_directory("image-seed") as room:
        (room / "user-data").write_text(files.user_data)
        # The instance id differs from any that the image has stored, so that cloud-init runs.
        (room / "meta-data").write_text("instance-id: guestmark\n")
        shutil.copy(agent, room / "agent")
        with target.open("wb") as stream:
            stream.truncate((agent.stat().st_size // _MEBIBYTE + 4) * _MEBIBYTE)
        made, copied = _SEED_PROGRAMS
        copies = [str(room / name) for name in ("user-data", "meta-data", "agent")]
        for command in ([made, "-n", "cidata", str(target)], [copied, "-i", str(target), *copies, "::"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise PlatformUnusableError(
                    f"a seed for cloud-init cannot be created: {last_inert_line(done.stderr)}"
                )


def _find_firmware(path: Path, architecture: Architecture) -> ImageFirmware:
    with scratch_directory("image-head") as room:
        head = room / "head"
        command = [
            "qemu-img", "dd", "-U", "-O", "raw", f"bs={_SECTOR}", f"count={_HEAD_SECTORS}", f"if={path}", f"of={head}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PlatformUnusableError(f"{path.name} cannot be read: {last_inert_line(done.stderr)}")
        firmware = choose_firmware(head.read_bytes(), architecture)
    if firmware is None:
        lacks = "neither a boot loader for BIOS nor an" if architecture.boots_disks else "no"
        raise PlatformUnusableError(
            f"{path.name} has {lacks} EFI system partition",
            hint="if it is only a root filesystem, unpack it and use --set rootfs=DIRECTORY",
        )
    return firmware


def _inject_agent(overlay: Path, agent: Path, files: _Installation, accelerator: str) -> str:
    """Put the agent and its service into the overlay; return libguestfs's output about the programs' architecture.

    Raises `_NoSystemError` if libguestfs finds no Linux system in the image.
    """
    with scratch_directory("image-files") as room:
        (room / "service").write_text(files.systemd_unit)
        (room / "script").write_text(files.init_script)
        # Commands with a hyphen may fail; which of them do depends on the image's init system.
        script = [
            *(f"-file-architecture {program}" for program in _PROGRAMS),
            "mkdir-p /usr/local/bin", f"upload {libguestfs.quote_word(str(agent))} {_AGENT}", f"chmod 0755 {_AGENT}",
            "-mkdir-p /etc/systemd/system/multi-user.target.wants",
            f"-upload {libguestfs.quote_word(f'{room}/service')} {_UNIT}", f"-chmod 0644 {_UNIT}",
            f"-ln-sf {_UNIT} /etc/systemd/system/multi-user.target.wants/guestmark.service",
            *(f"-{line}" for line in _list_init_commands(room / "script")),
            # With SELinux, as on Fedora, services without a label are not started.
            f"-selinux-relabel /etc/selinux/targeted/contexts/files/file_contexts {_AGENT} force:true",
        ]  # fmt: skip
        done = libguestfs.run_script(
            ["--format=qcow2", "-a", str(overlay), "-i"], script, accelerator, _INSPECT_S, [overlay, room]
        )
    if done.status != 0:
        raise _NoSystemError(f"libguestfs reports {_find_error(done.output)}")
    return done.output


def _find_error(output: str) -> str:
    """Return guestfish's error message; its last line may be advice about reporting bugs."""
    lines = [make_inert(line).strip() for line in output.splitlines() if line.strip()]
    errors = [line.partition("error:")[2].strip() for line in lines if "error:" in line]
    return (errors or lines or ["nothing"])[-1][:200]


def _list_init_commands(script: Path) -> Iterator[str]:
    """Yield the commands for systems without systemd: for OpenRC's local.d, and for System V's links."""
    quoted = libguestfs.quote_word(str(script))
    yield f"upload {quoted} /etc/local.d/guestmark.start"
    yield "chmod 0755 /etc/local.d/guestmark.start"
    yield "ln-sf /etc/init.d/local /etc/runlevels/default/local"
    yield f"upload {quoted} /etc/init.d/guestmark"
    yield "chmod 0755 /etc/init.d/guestmark"
    for level in range(2, 6):
        yield f"ln-sf ../init.d/guestmark /etc/rc{level}.d/S99guestmark"
