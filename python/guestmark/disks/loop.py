"""Images mounted on the host itself through loop devices, with the same options as in a guest.

They are mounted in a mount namespace that contains only the trial's agent and what it runs. The agent ends at the
latest when this process does, whatever the signal; the namespace and its mounts disappear with it, and so do the loop
devices, which detach once nothing uses them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from guestmark.agent.client import Agent
from guestmark.core.errors import AttestationError, MachineError
from guestmark.setting.base import format_switch
from guestmark.setting.disk import DiskSpec

# Put before an agent's command, so that its mounts are private.
PRIVATE_MOUNTS = ("unshare", "--mount", "--propagation", "private", "--")
_HINT = "run guestmark as root on a machine with loop devices, or use host_disk=directory"
_DEADLINE_S = 60.0
# linux/loop.h
_CONTROL = "/dev/loop-control"
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
# struct loop_config: fd, block_size, …; lo_flags is the last of the four integers.
_CONFIG = struct.Struct("=II40xIIII160x16x64x")
_ATTEMPTS = 100
_CACHED = "write back"


def explain_no_loop() -> str:
    """Return why images cannot be mounted on this host; empty if they can. The result of the one attempt is cached."""
    return _probe_loop(os.geteuid())


@functools.cache
def _probe_loop(user: int) -> str:
    if user != 0:
        return "only root can mount an image on the host"
    if shutil.which("unshare") is None or shutil.which("losetup") is None:
        return "unshare and losetup (package util-linux) are not installed"
    try:
        done = subprocess.run(
            [*PRIVATE_MOUNTS, "losetup", "--find"],
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_DEADLINE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "finding a loop device took too long"
    if done.returncode == 0:
        return ""
    said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return f"this host provides no loop device or no mount namespace: {said}"


@functools.cache
def explain_unknown_filesystem(filesystem: str) -> str:
    """Return an error line if this host's kernel neither has the filesystem nor a module for it; else empty."""
    if any(line.split()[-1] == filesystem for line in Path("/proc/filesystems").read_text().splitlines()):
        return ""
    modprobe = shutil.which("modprobe", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if modprobe is not None:
        command = [modprobe, "--dry-run", "--quiet", filesystem]
        if subprocess.run(command, capture_output=True, timeout=_DEADLINE_S, check=False).returncode == 0:
            return ""
    return f"this host's kernel does not support {filesystem}"


def check_loop() -> None:
    """Raises `MachineError` with the reason when no image can be mounted on this host."""
    if reason := explain_no_loop():
        raise MachineError(reason, hint=_HINT)


@contextlib.contextmanager
def attach_loop(image: Path) -> Iterator[str]:
    """Yield a loop device for an image; it lasts as long as the context or a mount of it, without a helper program.

    Raises `OSError`.
    """
    with open(_CONTROL, "rb", buffering=0) as control, image.open("r+b", buffering=0) as file:
        # Another process may take the free device before it is configured here.
        for _ in range(_ATTEMPTS):
            device = f"/dev/loop{fcntl.ioctl(control.fileno(), _LOOP_CTL_GET_FREE)}"
            held = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                # Autoclear detaches the device with its last user, even if this process is killed.
                config = _CONFIG.pack(file.fileno(), 0, 0, 0, 0, _LO_FLAGS_AUTOCLEAR)
                try:
                    fcntl.ioctl(held, _LOOP_CONFIGURE, config)
                except OSError as error:
                    if error.errno == errno.EBUSY:  # another process took it
                        continue
                    raise
                # The writable descriptor is closed, because a kernel may refuse to mount a device that is open for
                # writing (BLK_DEV_WRITE_MOUNTED).
                read_only = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
            finally:
                os.close(held)
            try:
                yield device
            finally:
                os.close(read_only)
            return
    raise OSError(errno.EBUSY, "other processes took every free loop device first", _CONTROL)


def list_needed_options(spec: DiskSpec) -> str:
    """Return the mount options without which two disks cannot be mounted at once; empty if none are needed.

    Disks that are copies of one template have one UUID, and xfs refuses the second of them.
    """
    return "nouuid" if spec.filesystem == "xfs" else ""


def mount_loop(agent: Agent, spec: DiskSpec, image: str, directory: str) -> str:
    """Mount an image in the agent's namespace and return its device.

    With `cache=none` it bypasses the host's page cache.

    Raises `MachineError` with mount's message, and `AttestationError` when direct I/O did not take effect.
    """
    # The agent's own mount namespace makes the mount disappear with the agent.
    options = ",".join(filter(None, ("loop", list_needed_options(spec), spec.mount_options)))
    _run_checked(agent, ["mount", "-t", spec.filesystem, "-o", options, image, directory])
    for line in reversed(agent.read_facts().mounts.splitlines()):
        device, where, *_ = line.split(" ")
        if where == directory:
            break
    else:
        raise MachineError(f"{image} is not mounted at {directory}")
    wanted = spec.cache.direct
    if wanted:
        _run_checked(agent, ["losetup", "--direct-io=on", device])
    found = agent.read_file(f"/sys/block/{device.removeprefix('/dev/')}/loop/dio").strip() == b"1"
    if found != wanted:
        raise AttestationError(
            f"direct I/O of {device} is not what was asked for: asked for {format_switch(wanted)},"
            f" found {format_switch(found)}"
        )
    _force_write_back(device)
    return device


def _force_write_back(device: str) -> None:
    """Make the kernel send flushes to a loop device.

    Since Linux 6.11, a device that was once set to "write through" keeps that setting when its file is detached, and
    every flush to a later file would be lost.

    Raises `AttestationError` when it cannot be changed.
    """
    mode = Path("/sys/block", device.removeprefix("/dev/"), "queue/write_cache")
    try:
        if mode.read_text().strip() == _CACHED:
            return
        mode.write_text(_CACHED)
    except OSError as error:
        raise AttestationError(
            f"no flush reaches {device}: {mode} cannot be set: {error.strerror}"
        ) from error


def _run_checked(agent: Agent, argv: list[str]) -> None:
    done = agent.exec(argv, timeout_s=_DEADLINE_S)
    if not done.ok:
        said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())
        raise MachineError(
            f"{' '.join(argv[:-2])}: {said or 'failed'}",
            hint="check the mount options and the kernel log (dmesg)",
        )
