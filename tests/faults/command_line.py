"""Runs the real command line as a process of its own, as a user would."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from processes import others

CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Result:
    status: int
    stdout: str
    stderr: str

    def document(self):
        return json.loads(self.stdout)


class CommandLine:
    """`guestmark` with a ledger of its own; every call is bounded in time."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger.sqlite"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(CHECKOUT / "python"),
            "GUESTMARK_LEDGER": str(self.ledger),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.folder = folder

    @classmethod
    def with_scratch(cls, folder: Path) -> "CommandLine":
        """One whose temporary files are all in `folder/scratch`, so that what is left there can be seen."""
        scratch = folder / "scratch"
        scratch.mkdir()
        made = cls(folder)
        made.environment |= {"TMPDIR": str(scratch), "XDG_RUNTIME_DIR": str(scratch)}
        return made

    def start(self, *arguments, **more):
        return subprocess.Popen(
            [sys.executable, "-m", "guestmark", *map(str, arguments)],
            env={**self.environment, **more.pop("env", {})},
            cwd=more.pop("cwd", self.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **more,
        )

    def __call__(self, *arguments, timeout=60, **more):
        process = self.start(*arguments, **more)
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        finally:
            process.kill()
            process.wait()
        result = Result(process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))
        assert "Traceback" not in result.stderr, result.stderr
        assert not list((self.folder / "state").rglob("crash-*")), result.stderr
        return result

    def measure(self, *arguments, **more):
        """`exec` with its result document on standard output."""
        return self("exec", "--quiet", "--json", "-", *arguments, **more)

    def trials_of(self, run="last"):
        shown = self("export", run)
        return [] if shown.status else all_trials(shown.document())


def all_trials(document):
    """(block, order, cell) of every trial, null cells included, in the order they were made."""
    found = [
        (trial["block"], trial["order"], cell["id"])
        for cell in {cell["id"]: cell for cell in document["cells"] + document["null_cells"]}.values()
        for trial in cell["trials"]
    ]
    return sorted(found)


def processes_with(word):
    """Ids of all processes but guestmark's own whose last argument is `word`."""
    return [
        int(folder.name)
        for folder, (*before, last) in others()
        if last == word.encode() and b"guestmark" not in before
    ]
