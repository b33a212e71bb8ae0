"""A file that each trial leaves on its machine: if the next trial finds it, the machine is not fresh."""

from __future__ import annotations

import errno
import secrets

from guestmark.agent.client import Agent
from guestmark.agent.results import CallError

_PREFIX = "guestmark-trial-"


class TrialMark:
    """The mark of the last trial on the machines of one platform."""

    def __init__(self) -> None:
        self._path = ""

    def replace(self, agent: Agent, folder: str, *, fsync: bool = False) -> bool:
        """Leave a new mark in `folder` and return True; if the last trial's mark still exists, only return False.

        Without `fsync` the file may be lost when the machine ends, even if its disks keep what was written.
        """
        if self._path and _path_exists(agent, self._path):
            self._path = ""
            return False
        path = f"{folder}/{_PREFIX}{secrets.token_hex(8)}"
        agent.write_file(path, b"", fsync=fsync)
        self._path = path
        return True


def _path_exists(agent: Agent, path: str) -> bool:
    try:
        agent.stat(path)
    except CallError as error:
        if error.errno == errno.ENOENT:
            return False
        raise
    return True
