"""Where the images of a run are kept: one directory in each location, removed however the run ends.

A keeper, the agent's `supervise` mode around a sleeping process, holds the read end of a pipe whose write end only this
process has; when this process ends, even by SIGKILL, the keeper removes the directory.
"""

import atexit
import os
import shutil
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from guestmark.agent.binary import agent_binary, start_host_agent
from guestmark.agent.client import Agent
from guestmark.core.errors import MachineError

_STOP_S = 5.0


class Store:
    """The directories of this run's images, and an agent on this host that fills and checks them."""

    def __init__(self) -> None:
        self.keep = (
            False  # keep images of failed or interrupted trials; set before the first directory is made
        )
        self.left: list[Path] = []  # what was kept
        self._lock = threading.Lock()
        self._kept: list[tuple[Path, int, subprocess.Popen[bytes] | None]] = []
        self._directories: dict[str, Path] = {}
        self._agent: Agent | None = None
        self._agent_process: subprocess.Popen[bytes] | None = None

    def directory(self, location: str) -> Path:
        """The run's own directory in `location`; made at the first use. Raises `MachineError` when it cannot be."""
        with self._lock:
            if location not in self._directories:
                if not self._directories:
                    atexit.register(self.close)
                self._directories[location] = self._make(location)
            return self._directories[location]

    def agent(self) -> Agent:
        """An agent on this host for filling and checksumming images."""
        if self._agent is None or self._agent.closed:
            self._agent_process, transport = start_host_agent()
            self._agent = Agent(transport)
        return self._agent

    def close(self) -> None:
        """Removes the directories except for what is kept. May be called twice; the store can be used again."""
        if self._agent is not None:
            self._agent.close()
            self._agent = None
        with self._lock:
            kept, self._kept = self._kept, []
            directories = list(self._directories.values())
            self._directories.clear()
        if self.keep:
            for directory in directories:
                self._remove_the_rest(directory)
        for _, lifeline, _ in kept:
            with suppress(OSError):
                os.close(lifeline)
        for _, _, keeper in kept:
            if keeper is not None:
                with suppress(subprocess.TimeoutExpired):
                    keeper.wait(_STOP_S)

    def _remove_the_rest(self, directory: Path) -> None:
        for path in directory.iterdir():
            if path not in self.left:
                path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):  # not empty: something is kept
            directory.rmdir()

    def _make(self, location: str) -> Path:
        try:
            path = Path(tempfile.mkdtemp(prefix="guestmark-disks-", dir=location)).resolve()
        except OSError as error:
            raise MachineError(
                f"no images can be made in {location}: {error.strerror}",
                hint="choose another directory with --set location=DIRECTORY",
            ) from error
        if self.keep:
            return path
        lifeline, ours = os.pipe()
        try:
            keeper = subprocess.Popen(
                [str(agent_binary()), "supervise", "--lifeline", str(lifeline), "--remove", str(path), "--",
                 "sleep", "infinity"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(lifeline,), cwd="/",
                start_new_session=True,
            )  # fmt: skip
        except OSError:
            os.close(ours)
            path.rmdir()
            raise
        finally:
            os.close(lifeline)
        self._kept.append((path, ours, keeper))
        return path


_store = Store()


def store() -> Store:
    """The store of this process."""
    return _store
