"""git's own bisection, in worktrees beside the user's checkout, which is not touched."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from guestmark.core.errors import GuestmarkError, UsageError

_FOUND = re.compile(r"^([0-9a-f]{40,64}) is the first bad commit", re.MULTILINE)
_TAIL = 5  # lines of a failed build that are quoted


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: its full hash, and hash and subject as people know it."""

    hash: str
    shown: str

    @property
    def short(self) -> str:
        """The beginning of its hash."""
        return self.shown.partition(" ")[0]


class Bisection:
    """A good build that stays, and a worktree that git moves from candidate to candidate."""

    def __init__(self, repository: Path, parent: Path, good: str, bad: str) -> None:
        self._repository = repository
        self.good_build, self.candidate_build = parent / "good", parent / "next"  # paths of one length
        self.good, self.bad = self._commit(good), self._commit(bad)
        if not self._run(
            repository, "merge-base", "--is-ancestor", self.good.hash, self.bad.hash, check=False
        )[0]:
            raise UsageError(
                f"--good {good} is not an ancestor of {bad}", hint="give the older commit as --good"
            )

    @contextmanager
    def started(self) -> Iterator[None]:
        """Both worktrees are there, the second at the bad commit; they are removed when the block is left."""
        try:
            for folder, commit in ((self.good_build, self.good), (self.candidate_build, self.bad)):
                self._git(
                    self._repository, "worktree", "add", "--quiet", "--detach", str(folder), commit.hash
                )
            yield
        finally:
            self._run(self.candidate_build, "bisect", "reset", check=False)
            for folder in (self.good_build, self.candidate_build):
                self._run(self._repository, "worktree", "remove", "--force", str(folder), check=False)
            self._run(self._repository, "worktree", "prune", check=False)

    def begin(self) -> Commit | None:
        """The first candidate; None when the bad commit is the only one."""
        said = self._git(
            self.candidate_build, "bisect", "start", "--no-checkout", self.bad.hash, self.good.hash
        )
        return None if _FOUND.search(said) else self._next()

    def tell(self, word: str) -> Commit | str | None:
        """What the candidate is: `good`, `bad` or `skip`. The next one, the hash of the first bad commit once it is
        found, or None when only skipped ones are left."""
        ok, said = self._run(self.candidate_build, "bisect", word, check=False)
        if found := _FOUND.search(said):
            return found[1]
        return self._next() if ok else None

    def build(self, folder: Path, command: str) -> str:
        """Runs the build command in a worktree; what it said at last if it failed, else nothing."""
        if not command:
            return ""
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode == 0:
            return ""
        tail = (done.stdout + done.stderr).strip().splitlines()[-_TAIL:]
        return "; ".join(tail) or f"exit status {done.returncode}"

    def commit(self, name: str) -> Commit:
        """The commit of that name."""
        return self._commit(name)

    def _next(self) -> Commit:
        commit = self._commit("BISECT_HEAD", self.candidate_build)
        self._git(self.candidate_build, "checkout", "--quiet", "--detach", "--force", commit.hash)
        return commit

    def _commit(self, name: str, where: Path | None = None) -> Commit:
        ok, said = self._run(
            where or self._repository,
            "log",
            "-1",
            "--format=%H %h %s",
            f"{name}^{{commit}}",
            "--",
            check=False,
        )
        if not ok:
            raise UsageError(f"there is no commit {name!r} in {self._repository}", hint="git log lists them")
        digest, _, shown = said.strip().partition(" ")
        return Commit(digest, shown)

    def _git(self, where: Path, *words: str) -> str:
        return self._run(where, *words)[1]

    @staticmethod
    def _run(where: Path, *words: str, check: bool = True) -> tuple[bool, str]:
        try:
            done = subprocess.run(
                ["git", "-C", str(where), "-c", "advice.detachedHead=false", *words],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise GuestmarkError(
                f"git cannot be run: {error.strerror}", hint="install the package git"
            ) from error
        if check and done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise GuestmarkError(f"git {words[0]} failed: {''.join(last)}", hint=f"look at {where}")
        return done.returncode == 0, done.stdout + done.stderr
