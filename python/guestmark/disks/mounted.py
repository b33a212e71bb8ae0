"""Creates a command's working directory on a disk, and finds the mount that holds it by the machine's kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from guestmark.agent.client import Agent
from guestmark.core.errors import AgentError, AttestationError, WorkloadError
from guestmark.core.findings import WorkingDirectory
from guestmark.core.machine_facts import Mount, parse_mounts
from guestmark.disks.attached import AttachedDisk
from guestmark.setting.filesystem import Filesystem

# The placeholder in a command for its directory on the disk, or for a disk without a filesystem.
DISK = "{disk}"
# A new directory, because new filesystems are not empty: they may have lost+found.
_WORK = "work"
_ASK_S = 60.0
# The opened directory has the number of its mount, so that no path is resolved here (proc(5): fdinfo, mountinfo).
_ASK = (
    'test -w . || { echo "it is not writable" >&2; exit 9; }; '
    "exec 3<. && exec cat /proc/self/fdinfo/3 /proc/self/mountinfo"
)
_WRITTEN = re.compile(r"^write_bytes: (\d+)$", re.MULTILINE)
_LAYERS = ("lowerdir=", "upperdir=", "workdir=")
_MOUNT_ID = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)


def make_work_directory_on(agent: Agent, disk: AttachedDisk, **user: Any) -> WorkingDirectory | None:
    """Mount the disk and create an empty directory on it for a command of this user; `user` is as in `Agent.exec`.

    Returns None for a disk without a filesystem, which the command uses directly. Raises what `AttachedDisk.mount` and
    `locate_working_directory` raise, and `AttestationError` when the directory is on another mount.
    """
    if disk.spec.filesystem is Filesystem.NONE and disk.device:
        return None
    mounted = disk.mount(agent)
    path = make_work_directory(agent, mounted, **user)
    found = locate_working_directory(agent, path, **user)
    if disk.device and (found.mounted_at, found.source) != (mounted, disk.device):
        raise AttestationError(
            f"the command would not run on its disk: asked for {disk.device} at {mounted}, "
            f"found {found.source} at {found.mounted_at}"
        )
    return found


def make_work_directory(agent: Agent, mounted: str, **user: Any) -> str:
    """Create an empty directory for a command of this user on the filesystem mounted at `mounted`; return its path."""
    path = f"{mounted}/{_WORK}"
    agent.mkdir(path, parents=True)
    if user.get("uid"):
        agent.exec(["chown", f"{user['uid']}:{user.get('gid') or 0}", path], timeout_s=_ASK_S)
    return path


def locate_working_directory(agent: Agent, directory: str, **user: Any) -> WorkingDirectory:
    """Return the mount that holds this working directory as the command sees it; `user` as for `Agent.exec`.

    A process is started there in the same way as the command, so it has the command's user, namespaces and directory.
    Raises `WorkloadError` when it cannot write there, and `AttestationError` when its kernel does not show the mount.
    """
    done = agent.exec(["/bin/sh", "-c", _ASK], cwd=directory, timeout_s=_ASK_S, output_limit=1 << 20, **user)
    if done.status != 0:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise WorkloadError(
            f"the command cannot work in {directory}: {said}",
            hint="choose a filesystem and mount options that let the command's user write there",
        )
    return parse_working_directory(done.stdout.decode(errors="replace"), directory)


def find_working_directory(agent: Agent, directory: str) -> WorkingDirectory | None:
    """Return the mount that holds a directory, by the mounts of the agent; None if its kernel does not show it.

    Starts no process, and needs no access to directories that only the command's user may enter.
    """
    try:
        text = agent.read_file("/proc/self/mountinfo", limit=1 << 20).decode(errors="surrogateescape")
    except AgentError:
        return None
    return find_mount_by_path(text, directory)


def find_mount_by_path(text: str, directory: str) -> WorkingDirectory | None:
    """Return the mount of `/proc/self/mountinfo` that holds a directory whose path has no links; None without one."""
    path, found = Path(directory), None
    for mount in parse_mounts(text):
        # Of two mounts at one place the later one hides the other.
        if path.is_relative_to(mount.where) and (found is None or len(mount.where) >= len(found.where)):
            found = mount
    return None if found is None else _describe_mount(found, directory)


def count_written(agent: Agent) -> int | None:
    """Return the bytes that the agent and its ended children wrote to filesystems on disks; None if not counted."""
    try:
        text = agent.read_file("/proc/self/io", limit=4096).decode(errors="replace")
    except AgentError:
        return None
    number = _WRITTEN.search(text)
    return int(number[1]) if number else None


def parse_working_directory(text: str, directory: str) -> WorkingDirectory:
    """Parse `/proc/self/fdinfo/N` of the directory followed by `/proc/self/mountinfo`. Raises `AttestationError`."""
    number = _MOUNT_ID.search(text)
    if number:
        for mount in parse_mounts(text):
            if mount.number == int(number[1]):
                return _describe_mount(mount, directory)
    raise AttestationError(f"the machine's kernel does not show which mount holds {directory}")


def _describe_mount(mount: Mount, directory: str) -> WorkingDirectory:
    # The directories of an overlay are the machine's own, with other names in each trial.
    options = dict.fromkeys(option for option in mount.options if not option.startswith(_LAYERS))
    # Either the mount or its whole filesystem is read-only.
    if "ro" in options:
        options.pop("rw", None)
    return WorkingDirectory(
        path=directory,
        number=mount.device,
        mounted_at=mount.where,
        filesystem=mount.kind,
        source=mount.source,
        options=",".join(options),
    )
