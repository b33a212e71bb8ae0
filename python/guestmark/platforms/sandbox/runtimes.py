"""The programs that create sandboxes, and their arguments: all run the agent of a `Sandbox` in its root."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guestmark.core.distribution import make_install_hint
from guestmark.core.errors import PlatformUnusableError
from guestmark.core.platform_kind import Program, read_version_line
from guestmark.platforms.sandbox.programs import BWRAP, CRUN, PODMAN, RUNC, RUNSC

_NAME = "guestmark"
_AS_ROOT = ("--root", "--runroot", "--tmpdir")
# Default capabilities of podman's and docker's containers, and the paths that are read-only or masked in them.
_CAPABILITIES = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP",
    "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
)  # fmt: skip
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_MASKED = (
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/sched_debug",
    "/proc/timer_list",
    "/sys/firmware",
)
_NAMESPACES = ("pid", "ipc", "uts", "mount")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox to create: its root, directories for the runtime's state and its bundle, and the program that it runs.

    With `networked` it has the network namespace in which the runtime is started, otherwise an empty one.
    """

    root: Path
    state: Path
    bundle: Path
    program: Sequence[str]
    networked: bool = False


@dataclass(frozen=True, slots=True)
class Runtime:
    """A program that creates sandboxes.

    `command` returns the command line that starts a sandbox in the foreground, connected to the standard streams.
    """

    program: Program
    command: Callable[[Sandbox], list[str]]
    # A word in the command line of the process that runs the sandbox's programs; by default the agent's.
    holder: str = "serve"
    # False if only root can run it.
    for_users: bool = True
    # True if that process is a kernel that answers the programs' system calls.
    own_kernel: bool = False
    # Returns why its processes ended, from logs in the directory of its bundle; empty if unknown.
    explain_end: Callable[[Path], str] = lambda _bundle: ""

    @property
    def version(self) -> str:
        """The runtime's printed version. Raises `PlatformUnusableError` if it is not installed, or prints none."""
        if self.program.path is None:
            raise PlatformUnusableError(
                f"{self.program.name} is not installed", hint=make_install_hint(self.program.package)
            )
        return _read_version(self.program.path)


@functools.cache
def _read_version(path: str) -> str:
    try:
        return read_version_line(path).split(" ")[-1].strip()
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise PlatformUnusableError(
            f"cannot read the version of {path}: {error}",
            hint="reinstall it",
        ) from error


def _build_bwrap_command(sandbox: Sandbox) -> list[str]:
    shared = ["--share-net"] if sandbox.networked else []
    return [
        BWRAP.name, "--unshare-all", *shared, "--die-with-parent", "--bind", str(sandbox.root), "/", "--dev", "/dev",
        # By default /proc/sys would be writable, and root in the sandbox could change this host's kernel settings.
        "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys",
        "--ro-bind", "/sys", "/sys", "--tmpfs", "/run", "--chdir", "/", *sandbox.program,
    ]  # fmt: skip


def _build_crun_command(sandbox: Sandbox) -> list[str]:
    _write_bundle(sandbox)
    return [
        CRUN.name, f"--root={sandbox.state}", "--cgroup-manager=disabled",
        "run", f"--bundle={sandbox.bundle}", _NAME,
    ]  # fmt: skip


def _build_runc_command(sandbox: Sandbox) -> list[str]:
    _write_bundle(sandbox)
    # In the mode "rootless", runc also works without creating control groups.
    return [
        RUNC.name,
        f"--root={sandbox.state}",
        "--rootless=true",
        "run",
        f"--bundle={sandbox.bundle}",
        _NAME,
    ]


def _build_runsc_command(sandbox: Sandbox) -> list[str]:
    _write_bundle(sandbox)
    network = "sandbox" if sandbox.networked else "none"
    return [
        RUNSC.name, f"--root={sandbox.state}", f"--network={network}", "--ignore-cgroups",
        f"--debug-log={sandbox.bundle}/",
        # The container's name also names an abstract socket, so it must be unique on the host.
        "run", f"--bundle={sandbox.bundle}", sandbox.bundle.name,
    ]  # fmt: skip


def _explain_runsc_end(bundle: Path) -> str:
    """Returns the last error of gVisor's kernel or file server; runsc itself only reports that they have ended."""
    for log in sorted(bundle.glob("runsc.log.*.boot.txt")) + sorted(bundle.glob("runsc.log.*.gofer.txt")):
        for line in log.read_text(errors="replace").splitlines():
            if (found := line.partition("FATAL ERROR: ")[2]) or line.startswith("panic: "):
                return found or line
    return ""


def _build_podman_command(sandbox: Sandbox) -> list[str]:
    """Returns podman's command line.

    Its storage is created with the sandbox, so the user's own containers are not touched.
    """
    network = "host" if sandbox.networked else "none"
    storage = [f"{option}={sandbox.state / option.lstrip('-')}" for option in _AS_ROOT]
    command, limits = [PODMAN.name], ["--interactive"]
    # These variables tell podman that the user namespace, which it would otherwise create, already exists.
    if os.geteuid() != 0:
        configured = ("_CONTAINERS_USERNS_CONFIGURED=done", f"_CONTAINERS_ROOTLESS_UID={os.geteuid()}")
        # Podman would otherwise create directories in the user's home.
        own = f"HOME={sandbox.state.parent}"
        command = ["env", *configured, own, PODMAN.name, "--storage-driver=vfs"]
        limits += ["--ulimit=host", f"--env=HOME={os.environ.get('HOME', '/')}"]
    return [
        *command, *storage, "--cgroup-manager=cgroupfs", "--events-backend=none", "run", "--rm", *limits,
        "--cgroups=disabled", f"--network={network}", "--log-driver=none", "--env-host", "--workdir=/",
        "--tmpfs=/run", "--rootfs", str(sandbox.root), *sandbox.program,
    ]  # fmt: skip


def _write_bundle(sandbox: Sandbox) -> None:
    """Writes a container's configuration according to the runtime specification of the Open Container Initiative."""
    config: dict[str, Any] = {
        "ociVersion": "1.0.0",
        "root": {"path": str(sandbox.root), "readonly": False},
        "hostname": _NAME,
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(sandbox.program),
            "env": [f"{name}={value}" for name, value in {**os.environ, "XDG_RUNTIME_DIR": "/run"}.items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES),
            "noNewPrivileges": True,
        },
        "mounts": [
            _describe_mount("/proc", "proc"),
            _describe_mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
            _describe_mount(
                "/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"
            ),
            _describe_mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777"),
            _describe_mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
            _describe_mount("/run", "tmpfs", "nosuid", "nodev", "mode=755"),
        ],
        "linux": {
            "namespaces": _list_namespaces(sandbox),
            "readonlyPaths": _READ_ONLY,
            "maskedPaths": _MASKED,
        },
    }
    (sandbox.bundle / "config.json").write_text(json.dumps(config))


def _list_namespaces(sandbox: Sandbox) -> list[dict[str, str]]:
    """Returns the namespaces that the runtime creates, and the existing network namespace if there is one."""
    made = [{"type": name} for name in _NAMESPACES]
    if sandbox.networked:
        # Without a path, gVisor would not use the interfaces in the namespace.
        made.append({"type": "network", "path": "/proc/self/ns/net"})
    else:
        made.append({"type": "network"})
    return made


def _describe_mount(where: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": where, "type": kind, "source": kind, "options": list(options)}


RUNTIMES = {
    "bwrap": Runtime(BWRAP, _build_bwrap_command),
    "crun": Runtime(CRUN, _build_crun_command),
    "runc": Runtime(RUNC, _build_runc_command),
    "podman": Runtime(PODMAN, _build_podman_command),
    "gvisor": Runtime(
        RUNSC, _build_runsc_command, "boot", for_users=False, own_kernel=True, explain_end=_explain_runsc_end
    ),
}
