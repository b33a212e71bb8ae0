"""Recreates the recovered disk of a crash state from a stored log, for the check that judged it or for a shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.agent.client import Agent
from guestmark.core.errors import UsageError
from guestmark.core.temporary import scratch_directory
from guestmark.powercut import evidence, recovery, user_check
from guestmark.powercut.check_answer import Answer, Ending
from guestmark.powercut.cuts import Cut
from guestmark.powercut.judge import Replay
from guestmark.powercut.records import Acknowledged
from guestmark.powercut.recovery import Reader, Recovered
from guestmark.powercut.user_check import Check, Limit
from guestmark.powercut.writelog import WriteLog

_LIMIT_S = 3600.0
_ROOM = Path("/var/tmp")


def check_again(name: str, after: int, survival: str | None, ledger: Path | None) -> Iterator[str]:
    """Run the check on the disk that a cut leaves, and yield its output line by line.

    Raises `UsageError` for a log that no check has judged.
    """
    kept = evidence.load_evidence(name, ledger)
    if not kept.check:
        raise UsageError(
            f"the log {kept.log.parent.name} was not judged by a check",
            hint="--rerun needs a log of powercut --check; --shell opens the disk of any log",
        )
    reader = Check(
        kept.check,
        kept.lines,
        Limit(_LIMIT_S),
        apart=not user_check.explain_no_sandbox(),
        always=True,
        forgetful=True,
    )
    cut, left = _recover_cut(kept, after, survival, reader)
    yield f"cut {cut.after}, {cut.survival.as_clause}"
    if left.answer is None:
        yield f"  {left.damage}"
        return
    yield f"  {_describe_ending(left.answer)}"
    for line in left.answer.out:
        yield f"  out: {line}"
    for line in left.answer.err:
        yield f"  err: {line}"


def _describe_ending(answer: Answer) -> str:
    if not answer.is_conclusive:
        return f"the check gave no verdict on this disk: {answer.summary}"
    verb = "passed" if answer.ending is Ending.PASSED else "failed"
    return f"the check {verb}, {answer.exit}"


def open_shell(name: str, after: int, survival: str | None, ledger: Path | None) -> int:
    """Open a shell on the disk that a cut leaves, and discard the disk afterwards; return the shell's exit status.

    Raises `UsageError` for a disk that cannot be mounted.
    """
    kept = evidence.load_evidence(name, ledger)
    shell = _Shell(kept.check, kept.lines)
    cut, left = _recover_cut(kept, after, survival, shell)
    if left.damage:
        raise UsageError(
            f"the disk after cut {cut.after} cannot be opened: {left.damage}",
            hint="to write it to a file, unrecovered: --image FILE",
        )
    return shell.status


@dataclass(slots=True)
class _Shell:
    """A reader that opens a shell, with the check's command in `$CHECK` and its input in the file `$ACKNOWLEDGED`."""

    check: str
    lines: Sequence[bytes]
    status: int = 0

    def read(
        self, agent: Agent, directory: Path, names: Sequence[str], newest: int, *, exact: bool
    ) -> Recovered:
        """See `recovery.Reader`."""
        room, acknowledged = directory.parent / "room", directory.parent / "acknowledged"
        room.mkdir()
        acknowledged.write_bytes(user_check.encode_lines(self.lines[: newest + 1]))
        recovery.allow_changes(agent, directory)
        argv = [os.environ.get("SHELL") or "/bin/sh"]
        if not user_check.explain_no_sandbox():
            argv = [*user_check.build_world_command(room, directory), *argv]
        env = {**os.environ, "CHECK": self.check, "ACKNOWLEDGED": str(acknowledged)}
        run = agent.run_interactive if sys.stdin.isatty() else agent.run_piped
        self.status = run(argv, cwd=str(directory), env=env)
        return Recovered({})


def _recover_cut(
    kept: evidence.KeptLog, after: int, survival: str | None, reader: Reader
) -> tuple[Cut, Recovered]:
    if why := recovery.explain_not_recoverable(kept.filesystem, mounted=True):
        raise UsageError(
            f"the disk cannot be mounted here: {why}", hint="to write it to a file, unrecovered: --image FILE"
        )
    with WriteLog(kept.log) as log, scratch_directory("replay", _ROOM, 0o711) as directory:
        cut = evidence.rebuild_cut(kept, log, after, survival)
        newest = Acknowledged.from_marks(log.entries, 0, len(log)).find_newest_after(cut.after)
        replay = Replay(kept.base, log, log.entries, directory)
        try:
            image = replay.make_image(cut)
            with recovery.start_recovery(kept.filesystem, kept.form, directory, reader) as recovers:
                return cut, recovers.recover(image, (), newest, exact=False)
        finally:
            replay.close()
