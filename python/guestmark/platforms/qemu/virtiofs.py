"""The host's root over virtiofs, for kernels that have no 9p (Debian's cloud kernel). Needs the virtiofsd daemon."""

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from guestmark.agent.confinement import FILE_SERVER, HYPERVISOR, Confinement
from guestmark.core.errors import PlatformUnusableError
from guestmark.platforms.process import SupervisedProcess

DAEMONS = ("/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", "/usr/lib/virtiofsd")


@contextlib.contextmanager
def server(hypervisor: SupervisedProcess, tag: str, bus: str) -> Iterator[list[str]]:
    """Runs virtiofsd on `/` and yields QEMU's arguments that attach it under `tag`.

    The socket is bound here and handed over, so there is no moment at which it does not exist yet; it lives in the
    scratch directory of the hypervisor, which ends with the daemon. The guest's memory must be shared with the daemon.
    That the guest mounts read-only is the guest's own affair: the daemon sees a host in which everything is read-only.
    """
    program, legacy = daemon()
    path = hypervisor.scratch / "virtiofs"
    with _listening(path) as listening:
        process = SupervisedProcess("virtiofsd", _confinement(legacy))
        try:
            process.start(
                [program, f"--fd={listening.fileno()}", *_options(legacy)], pass_fds=(listening.fileno(),)
            )
            listening.close()
            hypervisor.end_with("virtiofsd", process)
            yield [
                "-chardev", f"socket,id=virtiofs,path={path.name}",
                "-device", f"vhost-user-fs-{bus},chardev=virtiofs,tag={tag},queue-size=1024",
            ]  # fmt: skip
        finally:
            process.stop()


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """A socket that listens at `path`, which may be longer than a socket's may be."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(f"/proc/self/fd/{directory}/{path.name}")
            listening.listen(1)
            yield listening
    finally:
        os.close(directory)


def _confinement(legacy: bool) -> Confinement:
    """The old daemon insists on changing its root, which takes a user namespace of its own where it is not root's."""
    return FILE_SERVER if legacy or os.getuid() == 0 else HYPERVISOR


def daemon() -> tuple[str, bool]:
    """The daemon, and whether it is the old one of QEMU up to 7.2, which takes other options.

    Raises `PlatformUnusableError` when there is none that this user can run.
    """
    # Files of other users belong to nobody in the user namespace that the old one needs for its `chroot`, and those it
    # may not open as guests ask for it, without leaving a trace (`O_NOATIME`).
    old = ""
    for candidate in (shutil.which("virtiofsd"), *DAEMONS):
        if candidate and os.access(candidate, os.X_OK):
            legacy = candidate == "/usr/lib/qemu/virtiofsd"
            if legacy and os.getuid() != 0:
                old = candidate
                continue
            return candidate, legacy
    if old:
        raise PlatformUnusableError(
            f"this guest kernel has no 9p, and {old}, of QEMU up to 7.2, serves the host's root to root alone",
            hint="give a kernel with 9p: --set kernel=FILE",
        )
    raise PlatformUnusableError(
        "this guest kernel has no 9p, and virtiofsd is not installed",
        hint="install the package virtiofsd, or give a kernel with 9p: --set kernel=FILE",
    )


def _options(legacy: bool) -> list[str]:
    if legacy:
        return ["-o", "source=/,cache=auto,sandbox=chroot"]
    return ["--shared-dir=/", "--cache=auto", f"--sandbox={'chroot' if os.getuid() == 0 else 'none'}"]
