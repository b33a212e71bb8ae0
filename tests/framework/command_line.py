"""Runs the real command line in a separate process, as a user would."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guestmark.core.errors import LedgerError
from guestmark.ledger import codec, open_ledger
from guestmark.ledger.model import RunOverview
from guestmark.report import schema, shared_facts
from tests.framework import PACKAGES
from tests.framework.caches import TriedPlatforms, private_cache
from tests.framework.preloaded import PreloadedCall, same_interpreter
from tests.framework.processes import others, wait_until

_HYPERVISORS = (b"qemu-system-x86_64", b"linux.uml")


@dataclass(frozen=True)
class Result:
    """The result of a call that has ended."""

    status: int
    stdout: str
    stderr: str

    def document(self) -> Any:
        """Return standard output, parsed as JSON.

        A result document is checked against the published schema, and each of its trials gets the facts that it shares
        with others.
        """
        found = json.loads(self.stdout)
        if not isinstance(found, dict) or found.get("schema") != shared_facts.SCHEMA:
            return found
        codec.convert_plain(found, schema.ResultDocument, "the result document")
        return shared_facts.restore_shared(found)


class CommandLine:
    """`guestmark` with a private ledger and cache; every call has a time limit."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger.sqlite"
        # It contains links to the shared cache. Tests that expect an empty cache of their own give it another name.
        self.cache = private_cache(folder / "linked-cache")
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(PACKAGES),
            "GUESTMARK_LEDGER": str(self.ledger),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(self.cache),
        }
        self.folder = folder
        self.scratch = folder / "scratch"

    @classmethod
    def with_scratch(cls, folder: Path) -> CommandLine:
        """Return a command line whose temporary files are all in `folder/scratch`, so that leftovers can be found."""
        made = cls(folder)
        made.scratch.mkdir()
        made.environment |= {"TMPDIR": str(made.scratch), "XDG_RUNTIME_DIR": str(made.scratch)}
        return made

    def knows(self, tried: TriedPlatforms, *platforms: str) -> None:
        """Let calls know these platforms as tried from now on: the first guest that a call starts is a trial's."""
        tried.copy_to(self.cache, platforms, {"TMPDIR": str(self.folder)})

    def start(
        self,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        **more: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a call without waiting for it; `env` is added to the environment, `more` is passed to `Popen`."""
        environment = {**self.environment, **(env or {})}
        start = (
            PreloadedCall
            if same_interpreter(environment) and more.keys() <= {"start_new_session"}
            else subprocess.Popen
        )
        return start(
            [sys.executable, "-m", "guestmark", *map(str, arguments)],
            env=environment,
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **more,
        )

    @contextlib.contextmanager
    def running(self, *arguments: object, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Yield a started call, which is killed at the end of the block; only its output is left of it."""
        process = self.start(*arguments, **more)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def __call__(self, *arguments: object, timeout: float = 60, **more: Any) -> Result:
        """Run a whole call. Fails the test if the call shows a traceback or writes a crash report."""
        with self.running(*arguments, **more) as process:
            stdout, stderr = process.communicate(timeout=timeout)
        result = Result(process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))
        assert "Traceback" not in result.stderr, result.stderr
        assert not list((self.folder / "state").rglob("crash-*")), result.stderr
        return result

    def measure(self, *arguments: object, **more: Any) -> Result:
        """Run `exec` with its result document on standard output."""
        return self("exec", "--quiet", "--json", "-", *arguments, **more)

    def trials_of(self, run: str = "last") -> list[tuple[int, int, str]]:
        """Return the trials of a run as `all_trials` does; none if there is no such run."""
        shown = self("export", run)
        return [] if shown.status else all_trials(shown.document())

    def runs(self) -> list[RunOverview]:
        """Return the runs in the ledger, oldest first, read from its file, because a call takes much longer."""
        if self.ledger.exists():
            with contextlib.suppress(LedgerError), open_ledger(self.ledger, writable=False) as ledger:
                return ledger.list_runs()
        return []

    def trials_stored(self) -> int:
        """Return how many trials the newest run has; 0 if there is no run."""
        return next((run.trials for run in reversed(self.runs())), 0)

    def hypervisors(self) -> list[int]:
        """Return the ids of hypervisors whose working directory is below this command line's scratch directory."""
        found = []
        for folder, command in others():
            if command[0].rpartition(b"/")[2] in _HYPERVISORS:
                with contextlib.suppress(OSError):
                    if self.scratch in (folder / "cwd").readlink().parents:
                        found.append(int(folder.name))
        return found

    def reads(self, file: Path) -> bool:
        """Return whether a hypervisor of this command line has `file` open, that is, a guest's program reads it.

        Guests see the host's files, and a file that is open in a guest is open in its hypervisor. The path inside the
        guest is the same.
        """
        for pid in self.hypervisors():
            with contextlib.suppress(OSError):
                if any(_target(link) == str(file) for link in Path(f"/proc/{pid}/fd").iterdir()):
                    return True
        return False

    def leftovers(self) -> list[int | Path]:
        """Return the hypervisors and temporary files that exist now."""
        return [*self.hypervisors(), *self.scratch.iterdir()]

    def assert_nothing_left(self) -> None:
        """Assert that all hypervisors and temporary files disappear within seconds."""
        assert wait_until(lambda: not self.leftovers(), 5), self.leftovers()


def _target(link: Path) -> str:
    with contextlib.suppress(OSError):  # closed meanwhile
        return os.readlink(link)
    return ""


def all_trials(document: Any) -> list[tuple[int, int, str]]:
    """Return (block, order, cell) of every trial, including null cells, in the order of measurement."""
    cells = {cell["id"]: cell for cell in document["cells"] + document["null_cells"]}
    return sorted(
        (trial["block"], trial["order"], cell["id"]) for cell in cells.values() for trial in cell["trials"]
    )


def processes_with(word: str) -> list[int]:
    """Return the ids of processes whose last argument is `word`, except guestmark's own."""
    return [
        int(folder.name)
        for folder, (*before, last) in others()
        if last == word.encode() and b"guestmark" not in before
    ]
