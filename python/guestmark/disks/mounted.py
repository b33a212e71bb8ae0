"""The working directory of a command on a disk, and the mount that holds it according to its machine's kernel."""

from __future__ import annotations

import re
from typing import Any

from guestmark.agent.client import Agent
from guestmark.core.errors import AttestationError, WorkloadError
from guestmark.core.findings import WorkingDirectory
from guestmark.core.machine_facts import parse_mounts as parsed_mounts
from guestmark.disks.attached import AttachedDisk
from guestmark.setting.filesystem import Filesystem

# The placeholder in a command for its directory on the disk, or for a disk without a filesystem.
DISK = "{disk}"
# A new directory, as filesystems are not empty at first.
_WORK = "work"
_ASK_S = 60.0
# The opened directory has the number of its mount, so that no path is resolved here (proc(5): fdinfo, mountinfo).
_ASK = (
    'test -w . || { echo "it may not be written" >&2; exit 9; }; '
    "exec 3<. && exec cat /proc/self/fdinfo/3 /proc/self/mountinfo"
)
_MOUNT_ID = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)


def make_work_directory_on(agent: Agent, disk: AttachedDisk, **user: Any) -> WorkingDirectory | None:
    """Mount the disk and make an empty directory on it for a command of this user; `user` as for `Agent.exec`.

    Returns None for a disk without a filesystem, which the command gets as it is. Raises what `AttachedDisk.mount` and
    `locate_working_directory` raise, and `AttestationError` when the directory is on another mount.
    """
    if disk.spec.filesystem is Filesystem.NONE and disk.device:
        return None
    mounted = disk.mount(agent)
    path = make_work_directory(agent, mounted, **user)
    found = locate_working_directory(agent, path, **user)
    if disk.device and (found.mounted_at, found.source) != (mounted, disk.device):
        raise AttestationError(
            f"the command would not run on its disk: asked {disk.device} at {mounted}, "
            f"found {found.source} at {found.mounted_at}"
        )
    return found


def make_work_directory(agent: Agent, mounted: str, **user: Any) -> str:
    """Make an empty directory for a command of this user on the filesystem mounted at `mounted`; return its path."""
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
            hint="give the disk a filesystem and mount options with which its user may write there",
        )
    return parse_working_directory(done.stdout.decode(errors="replace"), directory)


def parse_working_directory(text: str, directory: str) -> WorkingDirectory:
    """Parse `/proc/self/fdinfo/N` of the directory followed by `/proc/self/mountinfo`. Raises `AttestationError`."""
    number = _MOUNT_ID.search(text)
    for mount in parsed_mounts(text) if number else ():
        if number and mount.number == int(number[1]):
            options = dict.fromkeys(mount.options)
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
    raise AttestationError(f"the machine's kernel does not show on which mount {directory} is")
