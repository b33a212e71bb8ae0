"""A server on this host behind the launcher that confines hypervisors; in a guest it runs as it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guestmark.agent.confinement import Confinement
from guestmark.agent.keeper import keeper
from guestmark.appliance.paths import scratch_parent
from guestmark.core.machine_facts import Confined
from guestmark.disks.processes import named_inside
from guestmark.platforms.confinement import attested
from guestmark.workloads.oltp.databases.base import Account


@dataclass(frozen=True, slots=True)
class Launcher:
    """How the programs of a server are started, and on this host what is left to them."""

    confinement: Confinement | None = None
    writable: tuple[Path, ...] = ()
    over_temporary: Path | None = None

    def identity(self, account: Account) -> dict[str, Any]:
        """Whose they are, for `Agent.exec`: on this host they become another user only when they are confined."""
        return {} if self.confinement is not None else account.arguments(on_host=False)

    def around(self, command: Sequence[str]) -> list[str]:
        """The command to be given to the agent."""
        if self.confinement is None:
            return list(command)
        return self.confinement.around(command, self.writable, over_temporary=self.over_temporary)

    def attested(self, pid_file: str) -> Confined | None:
        """What holds for the server whose process id is in that file; None in guests, and where it cannot be known."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            if self.confinement is not None:
                number = int(Path(pid_file).read_text().split()[0])
                return attested(next(named_inside(number, str(self.writable[0])), number), self.writable)
        return None


@contextlib.contextmanager
def launcher(
    data: str, settings: Mapping[str, str], account: Account, *, on_host: bool
) -> Iterator[Launcher]:
    """For a server with that data directory; directories that its settings name are its own as well."""
    if not on_host:
        yield Launcher()
        return
    named = (Path(value) for value in settings.values() if value.startswith("/"))
    other = os.geteuid() != account.uid
    confinement = Confinement(
        sockets=True, rings=True, own_files=True, own_memory=True, writes_tmp=True,
        user=(account.uid, account.gid) if other else None,
    )  # fmt: skip
    scratch = keeper().directory("server", scratch_parent())
    try:
        writable = (Path(data), *(path for path in named if path.is_dir()))
        yield Launcher(confinement, writable, scratch)
    finally:
        keeper().remove(scratch)
