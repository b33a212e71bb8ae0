"""The host's root over virtiofs, for kernels that have no 9p (Debian's cloud kernel). Needs the virtiofsd daemon."""

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from guestmark.core.errors import PlatformUnusableError
from guestmark.platforms.process import SupervisedProcess

DAEMONS = ("/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", "/usr/lib/virtiofsd")


@contextlib.contextmanager
def server(scratch: Path, tag: str, bus: str, memory: str) -> Iterator[list[str]]:
    """Runs virtiofsd on `/` and yields QEMU's arguments that attach it under `tag`.

    The socket is bound here and handed over, so there is no moment at which it does not exist yet; it lives in the
    machine's scratch directory. The guest mounts read-only; its memory is shared with the daemon.
    """
    program, legacy = _daemon()
    path = scratch / "virtiofs"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen(1)
        process = SupervisedProcess("virtiofsd")
        try:
            process.start(
                [program, f"--fd={listening.fileno()}", *_options(legacy)], pass_fds=(listening.fileno(),)
            )
            yield [
                "-object", f"memory-backend-memfd,id=memory,size={memory},share=on", "-machine",
                "memory-backend=memory", "-chardev", f"socket,id=virtiofs,path={path}",
                "-device", f"vhost-user-fs-{bus},chardev=virtiofs,tag={tag},queue-size=1024",
            ]  # fmt: skip
        finally:
            process.stop()
            with contextlib.suppress(OSError):
                path.unlink()


def _daemon() -> tuple[str, bool]:
    """The daemon, and whether it is the old one of QEMU up to 7.2, which takes other options."""
    for candidate in (shutil.which("virtiofsd"), *DAEMONS):
        if candidate and os.access(candidate, os.X_OK):
            return candidate, candidate == "/usr/lib/qemu/virtiofsd"
    raise PlatformUnusableError(
        "this guest kernel has no 9p, and virtiofsd is not installed",
        hint="install the package virtiofsd, or give a kernel with 9p: --set kernel=FILE",
    )


def _options(legacy: bool) -> list[str]:
    if legacy:
        return ["-o", "source=/,cache=auto,sandbox=chroot"]
    return ["--shared-dir=/", "--cache=auto", f"--sandbox={'chroot' if os.getuid() == 0 else 'none'}"]
