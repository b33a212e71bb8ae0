"""Runs a command whose children may be programs of another architecture, by emulation of single programs.

The emulator is registered in a separate user namespace (Linux 6.7 and later), so nothing changes outside it.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_NEW_USERS, _NEW_MOUNTS = 0x10000000, 0x00020000
_REGISTER = Path("/proc/sys/fs/binfmt_misc/register")
_USERS = "0 0 65536"


def make_emulated_command(machine_name: str, command: Sequence[str]) -> list[str]:
    """Return the command that becomes `command`, as root of the namespace."""
    return [sys.executable, "-m", "tests.framework.foreign_programs", machine_name, *command]


def _enter_namespace() -> None:
    """Move this process into new user and mount namespaces, with all users of the host's by their own numbers."""
    libc = ctypes.CDLL(None, use_errno=True)
    ready, mapped = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        # The kernel lets a process outside the namespace map more than one user.
        os.read(ready[0], 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{os.getppid()}/{name}").write_text(_USERS)
        os.write(mapped[1], b"x")
        os._exit(0)
    if libc.unshare(_NEW_USERS | _NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    os.write(ready[1], b"x")
    os.read(mapped[0], 1)
    os.waitpid(child, 0)
    os.setgid(0)
    os.setuid(0)


def main() -> None:
    """Register the emulator of an architecture, and become the command."""
    machine_name, *command = sys.argv[1:]
    line = Path(f"/usr/lib/binfmt.d/qemu-{machine_name}.conf").read_text().strip()
    _enter_namespace()
    subprocess.run(["mount", "-t", "binfmt_misc", "none", str(_REGISTER.parent)], check=True)
    _REGISTER.write_text(line)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
