"""Permissions of the hypervisors, servers and helpers that `guestmark-agent confine` runs on this host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.core.own_program import find_agent_binary

# File in the scratch directory of User-Mode Linux: its guest's stops so far, 8 bytes in native order.
STOPS_FILE = "stops"
# Processes of one machine at most, its helpers and all threads included.
MOST_PROCESSES = 4096


@dataclass(frozen=True, slots=True)
class Confinement:
    """Permissions beyond reading and beyond writing to the scratch directory and to paths given as writable."""

    # The host's networks, and internet sockets.
    network: bool = False
    # Unix sockets with paths in directories that it may write to, in order to serve or use another program.
    sockets: bool = False
    # io_uring, whose operations no seccomp filter sees.
    rings: bool = False
    # Requests to the kernel's virtual machines.
    kvm: bool = False
    # Requests to a tap that it inherits.
    taps: bool = False
    # Requests to a /dev/vhost-net or /dev/vhost-vsock that it inherits.
    vhost: bool = False
    # Sockets for whole packets of the network namespace that it is started in, which is not the host's.
    packets: bool = False
    # Capabilities to change its user: virtiofsd does not start without them.
    serves_files: bool = False
    # For User-Mode Linux, whose memory is a file, and which traces its guest's programs.
    memory_file: bool = False
    # Writes to /tmp, whatever TMPDIR says.
    writes_tmp: bool = False
    # A /dev/shm of its own.
    own_memory: bool = False
    # It changes the modes of its files, and does not need to see who owns others.
    own_files: bool = False
    # It changes the modes of its files, and must see who owns all others.
    metadata: bool = False
    # Further options of `guestmark-agent confine`.
    more: tuple[str, ...] = ()
    # User and group that it becomes, which requires root.
    user: tuple[int, int] | None = None

    def wrap_command(
        self,
        command: Sequence[str],
        writable: Iterable[Path],
        temporary: Path | None = None,
        over_temporary: Path | None = None,
        *,
        lifeline: int | None = None,
        groups: Sequence[Path] = (),
        scratch: Path | None = None,
    ) -> list[str]:
        """Returns the command that runs `command` with only these permissions.

        `temporary` is its `TMPDIR`. With an empty directory `over_temporary`, whatever it nevertheless writes to `/tmp`
        is kept apart, in memory. It ends when the other end of the pipe `lifeline` is closed, and is put into the
        control groups `groups`. If it traces, its stops are counted in its directory `scratch`.
        """
        words = [str(find_agent_binary()), "confine"]
        words += [f"--writable={path}" for path in dict.fromkeys(writable)]
        if temporary:
            words.append(f"--temporary={temporary}")
        if over_temporary:
            words.append(f"--over-temporary={over_temporary}")
        switches = {
            "--network": self.network,
            "--serves-files": self.serves_files,
            "--sockets": self.sockets,
            "--no-io-uring": not self.rings,
            "--kvm": self.kvm,
            "--taps": self.taps,
            "--vhost": self.vhost,
            "--packets": self.packets,
            "--traces": self.memory_file,
            "--own-memory": self.own_memory,
            "--own-files": self.own_files,
            "--metadata": self.metadata,
        }
        words += [switch for switch, is_set in switches.items() if is_set]
        if self.memory_file and scratch:
            words.append(f"--stops={scratch / STOPS_FILE}")
        if self.user:
            words.append(f"--user={self.user[0]}:{self.user[1]}")
        if lifeline is not None:
            words.append(f"--lifeline={lifeline}")
        words += [f"--group={group}" for group in groups]
        return [*words, f"--processes={MOST_PROCESSES}", *self.more, "--", *command]


HYPERVISOR = Confinement()
FILE_SERVER = Confinement(serves_files=True)
WITH_MEMORY_FILE = Confinement(memory_file=True)
WITH_NETWORK = Confinement(network=True)
TEMPORARY_FILES = Confinement(own_files=True, writes_tmp=True, sockets=True, kvm=True)
BUILDER = Confinement(metadata=True)
