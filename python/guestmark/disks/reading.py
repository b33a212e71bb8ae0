"""Reading a file from a disk image without a guest, with the filesystem's own tools."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.agent.confinement import HYPERVISOR
from guestmark.core.errors import WorkloadError
from guestmark.disks import programs
from guestmark.disks.store import store

if TYPE_CHECKING:
    from guestmark.agent.wire import Checksum

_READ_S = 600.0


def read_on_host(image: Path, name: str) -> Checksum:
    """Digest of the file `name` at the top of a raw image's filesystem, which must not be mounted."""
    program = programs.find("debugfs")
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        HYPERVISOR.around([program, "-R", f"cat {name}", str(image)], ()),
        stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        os.close(write_end)
        said: list[bytes] = []
        assert process.stderr is not None
        drain = threading.Thread(target=lambda stream: said.append(stream.read()), args=(process.stderr,))
        drain.start()
        try:
            found = store().agent().checksum(f"/proc/{os.getpid()}/fd/{read_end}", timeout_s=_READ_S)
        finally:
            os.close(read_end)
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            drain.join()
    lines = [line for line in b"".join(said).decode(errors="replace").splitlines() if line.strip()]
    complaints = [line for line in lines if not line.startswith("debugfs ")]
    if complaints:
        raise WorkloadError(f"the data cannot be read back: debugfs: {complaints[0]}")
    return found
