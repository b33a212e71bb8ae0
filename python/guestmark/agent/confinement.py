"""What hypervisors, servers and other helpers may do to this host: `guestmark-agent confine` becomes each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.core.own_program import find_agent_binary

STOPS_FILE = (
    "stops"  # in the scratch directory of User-Mode Linux: its guest's stops so far, 8 bytes in native order
)
MOST_PROCESSES = 4096  # that one machine has at most, threads and those of its helpers included


@dataclass(frozen=True, slots=True)
class Confinement:
    """What is left to a process beside reading: its scratch directory, what it is given as writable, and this."""

    network: bool = False  # the host's networks, and sockets of the internet
    sockets: bool = (
        False  # sockets by path, in what it may write to: it serves, or is served by, another program
    )
    rings: bool = False  # io_uring, whose operations no filter sees
    kvm: bool = False  # requests to the kernel's virtual machines
    serves_files: bool = False  # virtiofsd does not start without root's ways of changing who it is
    memory_file: bool = False  # User-Mode Linux: its memory is a file, and it traces its guest's programs
    writes_tmp: bool = False  # to /tmp, whatever TMPDIR says
    own_memory: bool = False  # a /dev/shm of its own
    own_files: bool = False  # it sets modes of its files, and looks at nobody else's owners
    metadata: bool = False  # it sets modes of its files, and must see whose all others are
    more: tuple[str, ...] = ()  # further options of `guestmark-agent confine`
    user: tuple[int, int] | None = None  # the user and group that it becomes, which takes root

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
        """The command that becomes `command`, confined.

        `temporary` is its `TMPDIR`. What it writes to `/tmp` all the same is kept apart, and in memory, when it has an
        empty directory `over_temporary` for that. It ends with the other end of the pipe `lifeline`, and is in the
        control groups `groups`. Stops are counted in its directory `scratch`, if it traces and has one.
        """
        return [
            str(find_agent_binary()), "confine",
            *(f"--writable={path}" for path in dict.fromkeys(writable)),
            *([f"--temporary={temporary}"] if temporary else []),
            *([f"--over-temporary={over_temporary}"] if over_temporary else []),
            *(["--network"] if self.network else []),
            *(["--serves-files"] if self.serves_files else []),
            *(["--sockets"] if self.sockets else []),
            *([] if self.rings else ["--no-io-uring"]),
            *(["--kvm"] if self.kvm else []),
            *(["--traces"] if self.memory_file else []),
            *([f"--stops={scratch / STOPS_FILE}"] if self.memory_file and scratch else []),
            *(["--own-memory"] if self.own_memory else []),
            *(["--own-files"] if self.own_files else []),
            *(["--metadata"] if self.metadata else []),
            *([f"--user={self.user[0]}:{self.user[1]}"] if self.user else []),
            *([f"--lifeline={lifeline}"] if lifeline is not None else []),
            *(f"--group={group}" for group in groups),
            f"--processes={MOST_PROCESSES}",
            *self.more,
            "--", *command,
        ]  # fmt: skip


HYPERVISOR = Confinement()
FILE_SERVER = Confinement(serves_files=True)
WITH_MEMORY_FILE = Confinement(memory_file=True)
WITH_NETWORK = Confinement(network=True)
TEMPORARY_FILES = Confinement(own_files=True, writes_tmp=True, sockets=True, kvm=True)
BUILDER = Confinement(metadata=True)
