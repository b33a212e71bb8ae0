"""Shares host directories over virtiofs: the root for kernels without 9p (Debian's cloud kernel), and disks.

This needs the daemon virtiofsd.
"""

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from guestmark.agent.confinement import FILE_SERVER, HYPERVISOR, Confinement
from guestmark.core.distribution import make_install_hint
from guestmark.core.errors import PlatformUnusableError
from guestmark.disks.image import Image
from guestmark.platforms import confinement
from guestmark.platforms.process import SupervisedProcess
from guestmark.platforms.qemu.programs import VIRTIOFSD_PATHS
from guestmark.setting.filesystem import choose_share_cache

ROOT_DAEMON = confinement.SERVES_ROOT
# Cache modes with other names in the old daemon.
_OLD_CACHES = {"never": "none"}
_ALTERNATIVE = "use a kernel with 9p: --set kernel=FILE"


@dataclass(frozen=True, slots=True)
class Share:
    """A directory to serve, under the tag by which guests mount it.

    `why_needed` is the beginning of the error if it cannot be served.
    """

    tag: str
    directory: Path
    cache: str = "auto"
    writable: bool = False
    why_needed: str = ""
    # The daemon's name among the guest's helpers.
    name: str = ROOT_DAEMON


def choose_root_share(tag: str) -> Share:
    """Returns the host's root, for a guest whose kernel has no 9p."""
    return Share(tag, Path("/"), why_needed="this guest kernel has no 9p, and ")


def describe_share(image: Image) -> Share:
    """Returns the share for a disk that is a host directory."""
    spec = image.spec
    return Share(
        spec.name, image.path, choose_share_cache(spec), writable=True, name=f"virtiofsd of the {spec.name}"
    )


@contextlib.contextmanager
def serve_directory(hypervisor: SupervisedProcess, share: Share, bus: str) -> Iterator[list[str]]:
    """Runs virtiofsd and yields QEMU's arguments that attach the share.

    The socket is bound here and inherited by the daemon, so that it exists before QEMU connects. It is in the scratch
    directory of the hypervisor, which ends with the daemon. The guest's memory must be shared with the daemon. It is up
    to the guest whether it mounts read-only: for the daemon, all of the host is read-only except the directory of a
    writable share.
    """
    program, legacy = find_daemon(share.why_needed)
    path = hypervisor.scratch / share.tag
    with _bind_socket(path) as listening:
        process = SupervisedProcess("virtiofsd", _choose_confinement(legacy))
        try:
            process.start(
                [program, f"--fd={listening.fileno()}", *_build_daemon_options(share, legacy)],
                pass_fds=(listening.fileno(),),
                writable=(share.directory,) if share.writable else (),
            )
            listening.close()
            hypervisor.end_with(share.name, process)
            yield [
                "-chardev", f"socket,id={share.tag},path={path.name}",
                "-device", f"vhost-user-fs-{bus},chardev={share.tag},tag={share.tag},queue-size=1024",
            ]  # fmt: skip
        finally:
            process.stop()


@contextlib.contextmanager
def _bind_socket(path: Path) -> Iterator[socket.socket]:
    """Yields a socket that listens at `path`, which may be longer than a socket address can hold."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            # The path through /proc is short, however long the directory's path is.
            listening.bind(f"/proc/self/fd/{directory}/{path.name}")
            listening.listen(1)
            yield listening
    finally:
        os.close(directory)


def _choose_confinement(legacy: bool) -> Confinement:
    """Returns the daemon's confinement. The old daemon calls chroot, for which a user needs a user namespace."""
    return FILE_SERVER if legacy or os.getuid() == 0 else HYPERVISOR


def find_daemon(why_needed: str = "") -> tuple[str, bool]:
    """Returns the daemon's path, and whether it is the old one of QEMU up to 7.2, which takes other options.

    Raises `PlatformUnusableError` if there is none that this user can run.
    """
    # In the user namespace that the old daemon needs for `chroot`, files of other users belong to nobody, and cannot
    # be opened with O_NOATIME, which guests request.
    old = ""
    for candidate in (shutil.which("virtiofsd"), *VIRTIOFSD_PATHS):
        if candidate and os.access(candidate, os.X_OK):
            legacy = candidate == "/usr/lib/qemu/virtiofsd"
            if legacy and os.getuid() != 0:
                old = candidate
                continue
            return candidate, legacy
    if old:
        raise PlatformUnusableError(
            f"{why_needed}{old} (from QEMU up to 7.2) works only for root",
            hint=f"{make_install_hint('virtiofsd')}; or {_ALTERNATIVE}",
        )
    raise PlatformUnusableError(
        f"{why_needed}virtiofsd is not installed", hint=f"{make_install_hint('virtiofsd')}; or {_ALTERNATIVE}"
    )


def _build_daemon_options(share: Share, legacy: bool) -> list[str]:
    if legacy:
        cache = _OLD_CACHES.get(share.cache, share.cache)
        return ["-o", f"source={share.directory},cache={cache},sandbox=chroot"]
    sandbox = "chroot" if os.getuid() == 0 else "none"
    return [f"--shared-dir={share.directory}", f"--cache={share.cache}", f"--sandbox={sandbox}"]


def find_difference(served: SupervisedProcess, share: Share) -> str:
    """Returns how the daemon's command line differs from the requested one; empty if it does not."""
    pid = served.pid()
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
    except OSError:
        return "it has ended"
    for option in _build_daemon_options(share, "-o" in words):
        if not option.startswith("--sandbox") and option not in words:
            return f"no {option} in {' '.join(words[1:])}"
    return ""
