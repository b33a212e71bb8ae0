"""Directories for a run's images: one in each location, removed however the run ends.

The keeper (`core.keeper`) records each directory before it exists.
"""

import atexit
import shutil
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.core.cause import classify_errno
from guestmark.core.errors import MachineError
from guestmark.core.keeper import keeper


class Store:
    """The directories of this run's images, and an agent on this host that fills and checks images."""

    def __init__(self) -> None:
        # Keep images of failed or interrupted trials; set before the first directory is created.
        self.keep = False
        self.left: list[Path] = []  # directories that were kept
        self._lock = threading.Lock()
        self._directories: dict[str, Path] = {}
        self._agent: Agent | None = None
        self._agent_process: subprocess.Popen[bytes] | None = None

    def directory(self, location: str) -> Path:
        """Return the run's own directory in `location`, created at first use. Raises `MachineError` if that fails."""
        # Machines of one trial may create their images in several threads.
        with self._lock:
            if location not in self._directories:
                if not self._directories:
                    atexit.register(self.close)
                self._directories[location] = self._make_directory(location)
            return self._directories[location]

    def find_missing_directory(self) -> Path | None:
        """Return a directory of this run that no longer exists; None while all exist."""
        return next((path for path in self._directories.values() if not path.is_dir()), None)

    def start_agent(self) -> Agent:
        """Return the agent on this host that fills and checksums images, started at the first use."""
        if self._agent is None or self._agent.closed:
            self._agent_process, transport = start_host_agent(hold=keeper().handles)
            self._agent = Agent(transport)
        return self._agent

    def close(self) -> None:
        """Remove the directories, except for what is kept. May be called twice; the store can be used again."""
        if self._agent is not None:
            self._agent.close()
            self._agent = None
        with self._lock:
            directories = list(self._directories.values())
            self._directories.clear()
        for directory in directories:
            if self.keep:
                self._remove_the_rest(directory)
            else:
                keeper().remove(directory)

    def _remove_the_rest(self, directory: Path) -> None:
        for path in directory.iterdir():
            if path in self.left:
                continue
            if path.is_file():
                path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)
        # Not empty: something is kept.
        with suppress(OSError):
            directory.rmdir()

    def _make_directory(self, location: str) -> Path:
        try:
            path = keeper().directory("disks", Path(location).resolve())
        except OSError as error:
            raise MachineError(
                f"images cannot be created in {location}: {error.strerror}",
                hint="choose another directory with --set location=DIRECTORY",
                cause=classify_errno(error.errno),
            ) from error
        if self.keep:
            keeper().forget(path)
        return path


_store = Store()


def get_scratch_store() -> Store:
    """Return the store of this process."""
    return _store
